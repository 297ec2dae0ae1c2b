"""Cached properties that are asked for the first time in a loop or a branch.

What one iteration or one branch adds to an object, it does not have everywhere. Of a
`functools.cached_property` that is known when the function is traced that makes no
difference: it is asked again, and says the same. So it is not kept. One that depends on
arrays of the loop is: kept in one place only, it would be refused, as any attribute is.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import jax

from graphcore import iter_graph
from graphcore.authors import is_object


@contextlib.contextmanager
def not_kept(roots: Sequence[Any]) -> Iterator[None]:
    """Forgets what cached properties of objects were found to be meanwhile.

    Args:
        roots: The objects.
    """
    absent = [
        (x, names - vars(x).keys())
        for _, x in iter_graph([*roots])
        if (names := _cached_properties(type(x)))
    ]
    yield
    for x, names in absent:
        for name in names & vars(x).keys():
            if _is_known(vars(x)[name]):
                del vars(x)[name]


# By class, as long as there is the class.
_known: WeakKeyDictionary[type[Any], frozenset[str]] = WeakKeyDictionary()


def _cached_properties(kind: type[Any]) -> frozenset[str]:
    """The names of those that a class has."""
    found = _known.get(kind)
    if found is None:
        members = inspect.getmembers_static(kind)
        found = _known[kind] = frozenset(
            name for name, x in members if isinstance(x, functools.cached_property)
        )
    return found


def _is_known(value: Any) -> bool:
    """Whether a value is the same wherever it is asked for."""
    return not any(
        is_object(leaf) or isinstance(leaf, jax.core.Tracer)
        for leaf in jax.tree.leaves(value, is_leaf=is_object)
    )
