"""`eval_shape`: what a function would return, without computing it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from graphcore.authors import Body, Inside, Left, enter
from nnx_transforms.graph_mode import accepts_graph_mode

__all__ = ["eval_shape"]


class _Body(Body):
    """The function without what it does to its arguments."""

    def leave(self, inside: Inside, out: Any) -> Left:
        return Inside.empty().leave(out)


@accepts_graph_mode
def eval_shape(f: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Returns what a function would return, with shapes and dtypes for arrays.

    The function runs on stand-ins; the caller's objects are left alone.

    Args:
        f: A function of any pytrees with objects in them.
        *args: Its arguments; arrays and values of variables may be
            `jax.ShapeDtypeStruct`s.
        **kwargs: Likewise.

    Returns:
        The output with `jax.ShapeDtypeStruct`s in the place of arrays. Objects in it
        are new; those that share something with each other still do.

    Raises:
        ValueError: If an object belongs to a different trace level.

    Example:
        >>> import nnx_transforms as nnx
        >>> model = nnx.eval_shape(lambda: nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
        >>> model.kernel.value
        ShapeDtypeStruct(shape=(2, 3), dtype=float32)
    """
    return shapes_of(f, args, kwargs, {})


def shapes_of(
    f: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    statics: Mapping[int | str, Any],
) -> Any:
    """As `eval_shape`, with static arguments.

    Args:
        f: The function.
        args: Its positional arguments, None in the place of static ones.
        kwargs: Its keyword arguments but the static ones.
        statics: The static arguments by position or name.

    Returns:
        The output.
    """
    entry = enter(f, args, kwargs, statics=statics, make=_Body)
    (values,), out, change = jax.eval_shape(entry.body, *entry.values)
    return entry.discard([values], out, change)
