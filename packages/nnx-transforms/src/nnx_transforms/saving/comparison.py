"""What differs between a file and a graph, found before anything is changed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from graphcore import Filter, Variable, VariableState, to_predicate
from graphcore import variable_type_from_name as type_from_name
from nnx_transforms.saving.contents import BARE, Contents, Leaf
from nnx_transforms.saving.errors import Difference
from nnx_transforms.saving.names import path_of, text_of


def differences(
    graph: Contents, file: Contents, sources: dict[str, str], filter: Filter
) -> Iterator[Difference]:
    """Lists what differs.

    Args:
        graph: What the graph, or the selected part of it, consists of.
        file: What the file has.
        sources: The name in the file for each leaf of the graph.
        filter: What of the file is due in the graph.

    Yields:
        The differences: those of the graph's leaves, then what only the file has.
    """
    takers: dict[str, str] = {}
    for name, leaf in graph.leaves.items():
        found = file.leaves.get(sources[name])
        where = text_of(name)
        if found is None:
            yield Difference(where, "missing", leaf, None)
            continue
        other = takers.setdefault(sources[name], name)
        if other != name:
            shared = f"shared with {text_of(other)}"
            yield Difference(where, "sharing", "its own object", shared)
        if leaf.type is not None and found.type is not None:
            # Types of two libraries agree by name.
            if _class_name(leaf.type) != _class_name(found.type):
                yield Difference(where, "type", leaf.type, found.type)
        if leaf.shape != found.shape:
            yield Difference(where, "shape", leaf.shape, found.shape)
        if not _same_dtype(leaf, found):
            yield Difference(where, "dtype", leaf.dtype, found.dtype)
    predicate = to_predicate(filter)
    for name, leaf in file.leaves.items():
        if name in takers:
            continue
        first = graph.first_name(name)
        if first != name and first in graph.leaves:
            shared = f"shared with {text_of(first)}"
            yield Difference(text_of(name), "sharing", shared, "its own object")
        elif predicate(path_of(name), _stand_in(leaf, file.metadata, name)):
            yield Difference(text_of(name), "new", None, leaf)


def _class_name(name: str) -> str:
    """What a type of variables is called, in small letters, by its collection."""
    with contextlib.suppress(ValueError):  # no type, or several, has that name
        name = type_from_name(name).__name__
    return name.replace("_", "").lower()


def _same_dtype(one: Leaf, other: Leaf) -> bool:
    """Whether the types agree; a Python number is like any scalar of its kind.

    A counter that starts as `Variable(0)` is an array after the first compiled step.
    And where JAX has no 64 bits, its stand-in for a NumPy array of them has 32.
    """
    if one.dtype == other.dtype:
        return True
    if one.form == other.form:
        return False
    if "python" in (one.form, other.form):
        return _number(one) == _number(other)
    return _of_jax(one) == _of_jax(other)


def _of_jax(leaf: Leaf) -> str:
    """The name of the dtype that JAX gives to such an array."""
    is_numpy = leaf.form == "numpy"
    return str(jax.dtypes.canonicalize_dtype(leaf.dtype)) if is_numpy else leaf.dtype


def _number(leaf: Leaf) -> str:
    """`int` for `int32`, `uint8` and `int`, `float` for `bfloat16`, and so on."""
    try:
        return type(np.zeros((), jnp.dtype(leaf.dtype)).item()).__name__
    except TypeError:  # of keys, or of something that is no number
        return leaf.dtype


def _stand_in(leaf: Leaf, metadata: dict[str, dict[str, object]], name: str) -> object:
    """What a filter looks at, for a leaf that no object has."""
    try:
        kind = type_from_name(leaf.type) if leaf.type else Variable
    except ValueError:  # The type is not imported, or there are several.
        kind = Variable
    value = leaf.value
    if leaf.form != "python" and not leaf.is_key:
        value = jax.ShapeDtypeStruct(leaf.shape, jnp.dtype(leaf.dtype))
    if leaf.type == BARE:
        return value
    variable = name.partition("#")[0]
    return VariableState(kind, value, **metadata.get(variable, {}))
