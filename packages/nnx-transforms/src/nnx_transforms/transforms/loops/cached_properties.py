"""Cached properties that are asked for the first time in a loop or a branch.

What one iteration or one branch adds to an object is missing in the others. For a
`functools.cached_property` that is known when the function is traced, that makes no
difference: asked again, it says the same. So it is not kept. One that depends on
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
    nodes = [x for _, x in iter_graph([*roots]) if hasattr(x, "__dict__")]
    before = [{*vars(x)} for x in nodes]
    yield
    for x, names in zip(nodes, before, strict=True):
        for name in vars(x).keys() - names:
            found = inspect.getattr_static(type(x), name, None)
            is_cached = isinstance(found, functools.cached_property)
            if is_cached and _is_known(vars(x)[name]):
                del vars(x)[name]


def _is_known(value: Any) -> bool:
    """Whether a value is the same wherever it is asked for."""
    return not any(
        is_object(leaf) or isinstance(leaf, jax.core.Tracer)
        for leaf in jax.tree.leaves(value, is_leaf=is_object)
    )
