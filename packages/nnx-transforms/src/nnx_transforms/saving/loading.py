"""From what a file has to the state that is written into a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from graphcore import Filter, State, VariableState, state, update
from graphcore.authors import raw_value_of
from nnx_transforms.saving.arrays import Request, placed, placement_of
from nnx_transforms.saving.comparison import differences
from nnx_transforms.saving.contents import (
    Contents,
    check_selection,
    contents_of,
    named_leaves,
)
from nnx_transforms.saving.errors import DamagedCheckpointError, DifferentGraphError
from nnx_transforms.saving.names import Path, name_of

A = TypeVar("A")
B = TypeVar("B")


class Source(NamedTuple):
    """A file to load from.

    Args:
        title: What messages call it.
        contents: What it has.
        name_of: Its name for a leaf that has a given name in the graph.
        due: A filter for what of it must be in the graph.
        arrays: Reads arrays by their names in the file, as `placed` takes them.
    """

    title: str
    contents: Contents
    name_of: Callable[[str], str]
    due: Filter
    arrays: Callable[[Mapping[str, Request]], Mapping[str, Any]]


def load_into(node: A, filter: Filter, sharding: Any, find: Callable[[], Source]) -> A:
    """Loads a file into a graph, in all processes or in none.

    Args:
        node: The graph.
        filter: Which of its variables.
        sharding: Where to put arrays, as `restore` takes it.
        find: Finds the file; must not wait for other processes.

    Returns:
        The graph.

    Raises:
        Exception: What finding or reading the file raises.
        DifferentGraphError: If file and graph differ.
        DamagedCheckpointError: If another process could not read the file.
    """
    make_state = _agreed(lambda: _read(find(), node, filter, sharding))
    update(node, make_state())
    return node


def _agreed(read: Callable[[], B]) -> B:
    """Reads something in all processes, or refuses it in all."""
    if jax.process_count() == 1:
        return read()
    problem: Exception | None = None
    try:
        result = read()
    except Exception as error:
        problem = error
    failed = multihost_utils.process_allgather(np.array(problem is not None))
    if problem is not None:
        raise problem
    if failed.any():
        raise DamagedCheckpointError(
            f"The processes {np.flatnonzero(failed).tolist()} could not read the "
            "checkpoint; nothing was changed."
        )
    return result


def _read(
    source: Source, node: Any, filter: Filter, sharding: Any
) -> Callable[[], State[Any, Any]]:
    """Compares a file with a graph and reads it; the graph itself is not changed.

    What is returned makes the state, with the values and the metadata of the file. It
    puts arrays in place, for which JAX may let the processes wait for each other.
    """
    file = source.contents
    graph, _ = contents_of(node, filter)
    names = {name: source.name_of(name) for name in graph.leaves}
    different = list(differences(graph, file, names, source.due))
    if different:
        raise DifferentGraphError(different, source.title)
    check_selection(graph, node, filter)
    variables: State[Any, Any] = state(node, filter)
    requests: dict[str, Request] = {}
    for path, variable in variables.flat_state():
        for name, value in named_leaves(name_of(path), variable):
            if name in names and (leaf := file.leaves[names[name]]).form != "python":
                where = placement_of(path, variable, value, leaf, sharding)
                requests[names[name]] = Request(leaf, where, value)
    found = source.arrays(requests)

    def restored(name: str, value: Any) -> Any:
        if name not in names:
            return value
        name = names[name]
        if name in requests:
            return placed(requests[name], found.get(name))
        return file.leaves[name].value

    def rebuilt(path: Path, variable: Any) -> Any:
        name = name_of(path)
        leaves = [restored(*leaf) for leaf in named_leaves(name, variable)]
        value = jax.tree.unflatten(jax.tree.structure(raw_value_of(variable)), leaves)
        if not isinstance(variable, VariableState):
            return value
        return variable.replace(value, **file.metadata.get(file.first_name(name), {}))

    return lambda: variables.map(rebuilt)
