"""`map`: a function of one example, applied to one after the other, or to batches."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax

from graphcore.authors import OUTSIDE, current_trace, enter
from nnx_transforms.transforms.compiled.donation import together
from nnx_transforms.transforms.graph_mode import accepts_graph_mode
from nnx_transforms.transforms.mapped.mapping import MappedBody, is_axis
from nnx_transforms.transforms.mapped.mapping_errors import check_given, explained

R = TypeVar("R")


@accepts_graph_mode
def map(  # noqa: A001  JAX's own name
    f: Callable[..., R], xs: Any, *, batch_size: int | None = None
) -> R:
    """Applies a function to each index of the leading axes, in a loop.

    As `vmap` over axis 0, with less memory: examples are computed one after the other,
    or `batch_size` of them together. So a large model evaluates as many examples as
    one likes, or an ensemble of modules whose variables are stacked runs member by
    member. Unlike `jax.lax.map`, but like `jax.lax.scan`, it traces the function once
    for the same structures and types: pass as an argument what changes between calls.

    Args:
        f: A function of one argument. An object that it is bound to, such as the model
            of which it is a method, is one for all indices, and may be read.
        xs: Any pytree of arrays and objects; they are mapped over their first axes, of
            objects over those of all variables. What the function does to the objects
            in it is visible in the caller's own objects afterwards.
        batch_size: How many indices to map together, by `vmap`; one if left out. The
            size of the axis need not be a multiple of it.

    Returns:
        The outputs, stacked along a first axis; objects in it likewise.

    Raises:
        ValueError: If the function writes what all indices share, or if sizes differ;
            with the paths.

    Example:
        >>> import nnx_transforms as nnx, jax.numpy as jnp
        >>> model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
        >>> nnx.map(model, jnp.ones((10, 2)), batch_size=4).shape
        (10, 3)
    """
    entry = enter(f, (xs,), settings=(0,), out_settings=0, make=_Body)
    body: _Body = entry.body
    groups = entry.values[0]
    pairs = zip(body.groups, groups, strict=True)
    mapped = [group if is_axis(setting) else None for setting, group in pairs]
    # JAX's loop is traced at each call. A number among the values would be traced, too.
    is_kept = current_trace() == OUTSIDE and all(
        isinstance(x, jax.Array) for x in jax.tree.leaves(groups)
    )
    run = body.compiled if is_kept else body.over
    before = functools.partial(check_given, "map", entry, {})
    with explained(entry, before, lambda error: None):
        out = run((mapped, entry.args[0]), groups, batch_size)
    return entry.commit(*out)  # type: ignore[no-any-return]


class _Body(MappedBody):
    """The function of one example."""

    def over(self, examples: Any, groups: Any, batch_size: int | None) -> Any:
        """Runs it on all indices."""
        one = functools.partial(self.of_one, groups=groups)
        return jax.lax.map(one, examples, batch_size=batch_size)

    @functools.cached_property
    def compiled(self) -> Callable[..., Any]:
        """The same, compiled."""
        return jax.jit(self.over, static_argnums=2)

    def of_one(self, example: Any, groups: Any) -> Any:
        """Runs it on one index of what is mapped, and on what all indices share."""
        own, x = example
        left = self.run(self.ungrouped(together(own, groups)), (x,), {})
        for w in left.written:
            if not is_axis(w.setting):
                raise ValueError(
                    f"The function wrote to the variable at {self.place(w.path)!r}, "
                    "which all indices share, as what a function is bound to is. "
                    "Return the value, or use `scan`, in which one iteration sees what "
                    "the one before wrote."
                )
        written, change = self.divide(left)
        return written, left.out, change
