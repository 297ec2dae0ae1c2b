"""Transforms of one's own for module classes and methods."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

from graphcore import StaticAttribute

from .targets import Lifting, Methods, lift_function, runner_of

__all__ = ["lift_transform"]

T = TypeVar("T", bound=Callable[..., Any])


@dataclasses.dataclass(frozen=True)
class _Lift:
    """Lifts functions; equal for equal transforms, so that classes are made once."""

    transform: Callable[..., Any]
    args: StaticAttribute

    def __hash__(self) -> int:
        if getattr(self.transform, "__closure__", None):
            raise TypeError("made anew each time, of what must not be kept")
        return hash((self.transform, self.args))

    def __call__(self, fn: Callable[..., Any], **options: Any) -> Any:
        runner = runner_of(self.transform, *self.args.value, **options)
        return lift_function(fn, "lift_transform", runner, None)


def lift_transform(
    transform: Callable[..., Any],
    target: T,
    *args: Any,
    methods: Methods = None,
    **options: Any,
) -> T:
    """Applies a transform of scope functions to a module class or a method.

    Such a transform is made of those of `linen_lift.lift`, or with `lift.pack`. The
    modules that take part are given to it as scopes, and cloned in the inner ones.

    Args:
        transform: takes a function of `(scopes, *args, **kwargs)`, and returns another;
            it hands `scopes` on to transforms of `linen_lift.lift` as it is.
        target: a module class, a `functools.partial` of one, or a function of a module.
        *args: further arguments of `transform`.
        methods: the methods of a class to transform (`__call__` by default), or a
            mapping from them to options.
        **options: further options of `transform`.

    Returns:
        A class or function like `target`; the name of a class starts with that of the
        transform.

    Raises:
        TransformTargetError: if `target` is something else.

    Example:
        >>> import linen_lift as nn, jax, jax.numpy as jnp
        >>> def experts(fn, count):
        ...     each = nn.lift.vmap(
        ...         fn, variable_axes={'params': 0}, split_rngs={'params': True})
        ...     def by_expert(scopes, x):
        ...         parts = each(scopes, x.reshape(count, -1, x.shape[-1]))
        ...         return parts.reshape(*x.shape[:-1], -1)
        ...     return by_expert
        >>> model = nn.lift_transform(experts, nn.Dense, count=4)(3)
        >>> out, variables = model.init_with_output(jax.random.key(0), jnp.ones((8, 2)))
        >>> out.shape, variables['params']['kernel'].shape, type(model).__name__
        ((8, 3), (4, 2, 3), 'ExpertsDense')
    """
    prefix = getattr(transform, "__name__", type(transform).__name__).capitalize()
    lift = _Lift(transform, StaticAttribute("args", args))
    lifted: T = Lifting("lift_transform", prefix, lift)(target, options, methods)
    return lifted
