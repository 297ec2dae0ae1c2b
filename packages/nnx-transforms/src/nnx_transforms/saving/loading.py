"""From what a file has to the state that is written into a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax

from graphcore import Filter, State, VariableState, state
from graphcore.authors import path_text, raw_value_of
from nnx_transforms.prefixes import StateSharding
from nnx_transforms.saving.arrays import (
    Placement,
    Request,
    on_devices,
    placed,
    placement_of,
)
from nnx_transforms.saving.comparison import differences
from nnx_transforms.saving.contents import Contents, contents_of, value_leaves
from nnx_transforms.saving.errors import DifferentGraphError
from nnx_transforms.saving.names import Path, name_of
from nnx_transforms.sharding.shardings import sharding_of


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


def loaded(
    source: Source, node: Any, filter: Filter, sharding: Any
) -> Callable[[], State[Any, Any]]:
    """Compares a file with a graph and reads it; the graph itself is not changed.

    Args:
        source: The file.
        node: The graph.
        filter: Which of its variables.
        sharding: Where to put arrays, as `restore` takes it.

    Returns:
        Makes the state, with the values and the metadata of the file. It puts arrays in
        place, for which JAX may let the processes wait for each other.

    Raises:
        DifferentGraphError: If file and graph differ.
    """
    file = source.contents
    graph, _ = contents_of(node, filter)
    names = {name: source.name_of(name) for name in graph.leaves}
    different = list(differences(graph, file, names, source.due))
    if different:
        raise DifferentGraphError(different, source.title)
    variables: State[Any, Any] = state(node, filter)
    requests: dict[str, Request] = {}
    for path, variable in variables.flat_state():
        for inside, value in value_leaves(variable):
            name = names.get(name_of(path) + inside)
            if name is not None and file.leaves[name].form != "python":
                where = _placement(path, variable, value, sharding)
                requests[name] = Request(file.leaves[name], where, value)
    found = source.arrays(requests)

    def rebuilt(path: Path, variable: Any) -> Any:
        name = name_of(path)
        leaves: list[Any] = []
        for inside, value in value_leaves(variable):
            source = names.get(name + inside)
            if source in requests:
                value = placed(requests[source], found.get(source))
            elif source is not None:
                value = file.leaves[source].value
            leaves.append(value)
        value = jax.tree.unflatten(jax.tree.structure(raw_value_of(variable)), leaves)
        if not isinstance(variable, VariableState):
            return value
        return variable.replace(value, **file.metadata.get(file.first_name(name), {}))

    return lambda: variables.map(rebuilt)


def _placement(path: Path, variable: Any, value: Any, sharding: Any) -> Placement:
    if isinstance(sharding, StateSharding):
        sharding = sharding.map_prefix(path, variable)
    if sharding is None:
        sharding = placement_of(value)
    is_abstract = isinstance(value, jax.ShapeDtypeStruct)
    if sharding is None and is_abstract and isinstance(variable, VariableState):
        sharding = sharding_of(variable.get_metadata(), path=path_text(path))
    return on_devices(sharding)
