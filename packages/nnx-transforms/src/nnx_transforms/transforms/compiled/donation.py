"""Which buffers a compiled step may take over from its caller."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Container, Sequence
from typing import Any

import jax
import numpy as np
from jax.dtypes import canonicalize_dtype

from graphcore.authors import Body

# In `count`, how many functions with a derivative rule, or rules, run in this thread:
# JAX runs them as they are, outside of a trace, on the arrays of the caller.
rules_running = type("Rules", (threading.local,), {"count": 0})()


class OtherWrites(Exception):
    """Raised while tracing: the function overwrites other variables than assumed.

    Args:
        positions: The numbers of the variables that it does overwrite.
    """

    def __init__(self, positions: frozenset[int]) -> None:
        self.positions = positions
        super().__init__(positions)


def variables_at(body: Body, places: Container[int | str]) -> frozenset[int]:
    """Finds the variables of the objects in some arguments.

    Args:
        body: The function.
        places: The positions and names of the arguments.

    Returns:
        The numbers of the variables.
    """
    structure = body.structure
    return frozenset(
        position
        for position, (number, *_) in enumerate(structure.joint.paths)
        if any(place in places for place, *_ in structure.root_places[number])
    )


def held_twice(values: Sequence[Any], others: Any) -> set[int]:
    """Finds the values whose arrays something else in the call holds as well.

    Args:
        values: The raw values of the variables.
        others: All other arguments.

    Returns:
        The numbers of the values that must not be donated.
    """
    own = values if _are_arrays(values) else jax.tree.leaves(values)
    every = [*own, *jax.tree.leaves(others)]
    if len(set(map(id, every))) == len(every):
        return set()
    count = Counter(map(id, every))
    return {
        number
        for number, value in enumerate(values)
        if any(count[id(x)] > 1 for x in jax.tree.leaves(value))
    }


def never_donated(values: Sequence[Any]) -> set[int]:
    """Finds the values that must stay where they are.

    JAX writes a `jax.Ref` in its place. Of NumPy's 64 bits it takes 32, and what comes
    back for a donated value takes its place.

    Args:
        values: The raw values of the variables.

    Returns:
        Their numbers.
    """
    if _are_arrays(values):
        return set()

    def stays(x: Any) -> bool:
        if isinstance(x, np.ndarray | np.generic):
            return x.dtype != canonicalize_dtype(x.dtype)
        return isinstance(x, jax.Ref)

    pairs = enumerate(values)
    return {number for number, x in pairs if any(map(stays, jax.tree.leaves(x)))}


def _are_arrays(values: Sequence[Any]) -> bool:
    """Whether all are arrays; asking each takes time, so types are asked once."""
    if _ARRAYS.issuperset(map(type, values)):
        return True
    alone = (x for x in values if isinstance(x, jax.Array))
    _ARRAYS.update(type(x) for x in alone if not isinstance(x, _MAY_BE_REFS))
    return _ARRAYS.issuperset(map(type, values))


_ARRAYS: set[type[Any]] = set()
_MAY_BE_REFS = jax.core.Tracer, jax.Ref


def copied(value: Any) -> Any:
    """Copies the arrays in a value."""
    return jax.tree.map(lambda x: x.copy() if isinstance(x, jax.Array) else x, value)


def apart(
    body: Body, values: Sequence[Any], donated: Collection[int]
) -> tuple[list[list[Any]], list[list[Any]]]:
    """Divides the values of variables into those that stay and those that are donated.

    Args:
        body: The function.
        values: The values.
        donated: The numbers of those that are.

    Returns:
        Both by setting, each with None in the place of what is in the other.
    """
    if len(donated) == len(values):
        return body.grouped([None] * len(values)), body.grouped(values)
    kept = [None if i in donated else value for i, value in enumerate(values)]
    given = [value if i in donated else None for i, value in enumerate(values)]
    return body.grouped(kept), body.grouped(given)


def together(kept: Sequence[Any], given: Sequence[Any]) -> list[Any]:
    """Puts lists together that have None where the other has an entry."""
    return [y if x is None else x for x, y in zip(kept, given, strict=True)]


def abstract_key(values: Any) -> Any:
    """What a trace depends on: structure, shapes and dtypes of a pytree of arrays."""
    leaves, structure = jax.tree.flatten(values)
    return structure, tuple(map(jax.typeof, leaves))
