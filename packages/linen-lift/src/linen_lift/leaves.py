"""Pytrees some of whose leaves are arguments of a function, the others constants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax


def as_function_of(
    is_argument: Callable[[Any], bool],
    fn: Callable[..., Any],
    /,
    *args: Any,
    **kwargs: Any,
) -> tuple[Callable[..., Any], list[Any]]:
    """A call as a function of some leaves of what is passed; the others are constants.

    Args:
        is_argument: whether a leaf is an argument.
        fn: the function to call.
        *args: its arguments, which are pytrees.
        **kwargs: its keyword arguments, likewise.

    Returns:
        The function of these leaves, and the leaves.
    """
    leaves, treedef = jax.tree.flatten((args, kwargs))
    places = [i for i, leaf in enumerate(leaves) if is_argument(leaf)]

    def call(*arguments: Any) -> Any:
        filled = list(leaves)
        for place, argument in zip(places, arguments, strict=True):
            filled[place] = argument
        args, kwargs = treedef.unflatten(filled)
        return fn(*args, **kwargs)

    return call, [leaves[i] for i in places]


def is_struct(leaf: Any) -> bool:
    """Whether a leaf is a shape in the place of an array."""
    return isinstance(leaf, jax.ShapeDtypeStruct)


def is_array(leaf: Any) -> bool:
    """Whether a leaf is an array, a tracer, or a shape in the place of one."""
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")
