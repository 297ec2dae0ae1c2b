"""What enters a loop or branch, but does not leave it.

A `jax.Ref` is written where it is: JAX takes it, and gives back none. And what JAX does
not take at all is the same in all iterations. A loop does not carry such values; its
function holds them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from nnx_transforms.transforms.loops.agreement import has_type


def take_held(tree: Any, *, with_statics: bool = False) -> tuple[Any, Any]:
    """Takes apart what goes from iteration to iteration, and what is held.

    Args:
        tree: A pytree of what enters a loop.
        with_statics: Whether what JAX does not take is held, or left for it to refuse.

    Returns:
        The pytree with None in the place of what is held; and the other way round, or
        None if nothing is.

    Example:
        >>> take_held([1.0, 'relu'], with_statics=True)
        ([1.0, None], [None, 'relu'])
        >>> take_held([1.0, 2.0])
        ([1.0, 2.0], None)
    """

    def is_held(x: Any) -> bool:
        return isinstance(x, jax.Ref) or (with_statics and not has_type(x))

    if not any(map(is_held, jax.tree.leaves(tree))):
        return tree, None
    held = jax.tree.map(lambda x: x if is_held(x) else None, tree)
    return jax.tree.map(lambda x: None if is_held(x) else x, tree), held


def put_held(tree: Any, held: Any) -> Any:
    """Puts a pytree together that is in two, each None in the place of the other's.

    Args:
        tree: What goes from iteration to iteration.
        held: The rest; None for nothing.

    Returns:
        The whole.

    Example:
        >>> put_held([1.0, None], [None, 'relu'])
        [1.0, 'relu']
    """
    if held is None:
        return tree
    return jax.tree.map(
        lambda x, y: y if x is None else x, tree, held, is_leaf=lambda x: x is None
    )


def without_held(now: Sequence[Any], before: Sequence[Any]) -> list[Any]:
    """What leaves a run of the values of variables.

    Args:
        now: The values. JAX is left to refuse a `Ref` that the function put there.
        before: What they were.

    Returns:
        The values, None for each `Ref` that is where it was.
    """
    pairs = zip(now, before, strict=True)
    return [take_held(x)[0] if x is old else x for x, old in pairs]
