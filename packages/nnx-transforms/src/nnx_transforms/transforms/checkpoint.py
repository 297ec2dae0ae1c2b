"""`remat`: computing again on the way back what would take memory to keep."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

from graphcore.authors import Body, enter, lifted
from nnx_transforms.arguments import ChosenArguments, positions_of
from nnx_transforms.transforms.decorators import LATER, called_as_before

__all__ = ["checkpoint", "remat"]


@called_as_before
def remat(
    f: Callable[..., Any] = LATER,
    *,
    prevent_cse: bool | Sequence[Any] = True,
    static_argnums: int | tuple[int, ...] = (),
    static_argnames: str | Iterable[str] = (),
    policy: Callable[..., bool] | None = None,
) -> Any:
    """Makes a function whose intermediate values are computed again on the way back.

    Under differentiation only what `policy` says, by default nothing, is kept of what
    `f` computes; see `jax.checkpoint`. What `f` does to its objects is published once,
    and the computation that is repeated draws the same random keys, since it starts
    from the same state.

    Like JAX, this keeps traces: `f` is traced again if the definition of its objects,
    an abstract value or a static argument changes, and at each call if `f` can be
    seen to close over objects, so that it reads what they hold now.

    Args:
        f: A function of any pytrees with objects. Left out, this is a decorator.
        prevent_cse: As for `jax.checkpoint`; of an object, it is that of all variables.
        static_argnums: The positions of arguments that are not traced.
        static_argnames: The names of arguments that are not traced.
        policy: As for `jax.checkpoint`, such as one of `jax.checkpoint_policies`.

    Returns:
        A function with the arguments of `f`.

    Raises:
        TypeError: As `jax.checkpoint` does.
        ValueError: At a call, if `static_argnums` are out of range, or an object can't
            be flattened or belongs to another trace.

    Example:
        >>> import nnx_transforms as nnx, jax, jax.numpy as jnp
        >>> model = nnx.Dict(w=nnx.Param(jnp.array(2.0)), calls=nnx.BatchStat(0))
        >>> @nnx.remat
        ... def layer(model, x):
        ...     model.calls.value += 1
        ...     return jnp.sin(model.w.value * x)
        >>> grads = nnx.grad(layer)(model, 0.0)
        >>> float(grads.w.value), int(model.calls.value)
        (0.0, 1)
    """
    is_default = isinstance(static_argnums, tuple) and not static_argnums
    argnums = None if is_default else static_argnums
    statics = ChosenArguments(f, argnums, static_argnames or None)
    due = max(statics.numbers, default=-1) + 1

    @lifted(f)
    def call(f: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        positions, named = positions_of(f, args, kwargs, due)
        if argnums is not None:
            _check_argnums(argnums, positions)
        positions, named, fixed = statics.take(positions, named)
        flags: Any = prevent_cse
        if named and not isinstance(flags, bool):
            flags = any(jax.tree.leaves(flags))  # no flag is for one by keyword
        given: dict[str, Any] = {}
        if not isinstance(flags, bool):
            given = {"settings": tuple(flags), "kwargs_settings": {}}
            given["bound_setting"] = True
        entry = enter(f, positions, named, statics=fixed, make=_Body, **given)
        flags = entry.settings if given else flags
        with entry.blaming():
            body = jax.checkpoint(entry.body, prevent_cse=flags, policy=policy)
            left = body(*entry.values)
        return entry.commit(*left)

    return call


checkpoint = remat


class _Body(Body):
    settings_called = "prevent_cse", "out_settings"


def _check_argnums(argnums: Any, args: Sequence[Any]) -> None:
    numbers = (argnums,) if isinstance(argnums, int) else argnums
    if not isinstance(numbers, tuple) or not all(
        isinstance(n, int) and -len(args) <= n < len(args) for n in numbers
    ):
        # JAX says what is wrong.
        jax.checkpoint(lambda *_: (), static_argnums=argnums)(*(0.0 for _ in args))
