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

import jax

from graphcore import iter_graph
from graphcore.authors import is_object


@contextlib.contextmanager
def not_kept(roots: Sequence[Any]) -> Iterator[None]:
    """Forgets what cached properties of objects were found to be meanwhile.

    Args:
        roots: The objects.
    """
    had = [
        (x, {*vars(x)})
        for _, x in iter_graph([*roots])
        if _has_cached_properties(type(x))  # type: ignore[arg-type]  # it is hashable
    ]
    yield
    for x, names in had:
        for name in vars(x).keys() - names:
            if _is_cached_property(type(x), name) and _is_known(vars(x)[name]):
                del vars(x)[name]


@functools.cache
def _has_cached_properties(kind: Any) -> bool:
    return any(_is_cached_property(kind, name) for name in dir(kind))


def _is_cached_property(kind: type[Any], name: str) -> bool:
    found = inspect.getattr_static(kind, name, None)
    return isinstance(found, functools.cached_property)


def _is_known(value: Any) -> bool:
    """Whether a value is the same wherever it is asked for."""
    return not any(
        is_object(leaf) or isinstance(leaf, jax.core.Tracer)
        for leaf in jax.tree.leaves(value, is_leaf=is_object)
    )
