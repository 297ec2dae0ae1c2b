"""Pytrees some of whose leaves are arguments of a function, the others constants."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax


def separate(
    tree: Any, is_argument: Callable[[Any], bool]
) -> tuple[list[Any], Callable[[Iterable[Any]], Any]]:
    """The leaves that are arguments, and the inverse.

    Args:
        tree: a pytree.
        is_argument: tells for a leaf.

    Returns:
        The arguments, and a function that puts others in their places.
    """
    leaves, treedef = jax.tree.flatten(tree)
    places = [i for i, leaf in enumerate(leaves) if is_argument(leaf)]

    def fill(arguments: Iterable[Any]) -> Any:
        filled = list(leaves)
        for place, argument in zip(places, arguments, strict=True):
            filled[place] = argument
        return treedef.unflatten(filled)

    return [leaves[i] for i in places], fill


def is_array(leaf: Any) -> bool:
    """Whether a leaf is an array, a tracer, or a shape in the place of one."""
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")
