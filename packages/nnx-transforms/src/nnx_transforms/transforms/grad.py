"""`grad` and `value_and_grad`: gradients by the variables of live objects.

This is JAX's own derivative of a pure function; see `differentiation` for how one is
made of a function of objects, and `tangents` for what stands for an object in it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol, cast, overload

import jax

from graphcore import Filter
from nnx_transforms.prefixes import DiffState
from nnx_transforms.transforms.decorators import (
    LATER,
    called_with_the_same,
    optional_function,
)
from nnx_transforms.transforms.derivatives.differentiation import derivative_function
from nnx_transforms.transforms.types import P, R, Rest, WithOptions

__all__ = ["grad", "value_and_grad"]


class ValueAndGrad(Protocol[P]):
    """`value_and_grad`, with options `P`."""

    @overload
    def __call__(
        self, f: Callable[Rest, R], /, *args: P.args, **options: P.kwargs
    ) -> Callable[Rest, tuple[R, Any]]: ...
    @overload
    def __call__(
        self, *args: P.args, **options: P.kwargs
    ) -> Callable[[Callable[Rest, R]], Callable[Rest, tuple[R, Any]]]: ...


def _optional(transform: WithOptions[P]) -> ValueAndGrad[P]:
    return cast("ValueAndGrad[P]", optional_function(transform))


@_optional
def value_and_grad(
    f: Callable[..., Any] = LATER,
    argnums: int | DiffState | Sequence[int | DiffState] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Hashable = (),
    *,
    wrt: Filter | None = None,
    as_objects: bool = False,
) -> Any:
    """Makes a function that computes a function's value and gradient.

    What `f` does to its objects is published. The gradient of an object is a `State`
    with exactly the selected variables; of a variable that is an argument itself, a
    `VariableState`; of a pytree, a pytree. An object that stands in two differentiated
    arguments has its gradient in the first, and an empty `State` in the second.

    Args:
        f: A function that returns a scalar. Left out, this is a decorator.
        argnums: The positions of the differentiated arguments: an integer, a
            `DiffState`, or a sequence of them, for which the gradient is a tuple.
        has_aux: Whether `f` returns a pair `(value, aux)`, of which only the first is
            differentiated.
        holomorphic: As for `jax.grad`.
        allow_int: As for `jax.grad`: the gradient of integers has dtype `float0`.
        reduce_axes: Names of axes of surrounding maps. Over each of them, the gradient
            of what is not mapped over it is summed.
        wrt: Selects the differentiated variables of objects, where `argnums` has no
            `DiffState`. By default that is `Param`.
        as_objects: Whether the gradient of an object is an object like it, whose
            variables hold the gradients, and no `State`. It is one by everything in
            it: `wrt` is `...` by default. What stands in several places does so in
            the gradient, too. Flax's `graph_updates=False` and `graph=False` ask for
            that.

    Returns:
        A function with the arguments of `f` that returns `(value, gradient)`, or
        `((value, aux), gradient)`.

    Raises:
        TypeError: As `jax.grad` does; with the path if a selected variable can't be
            differentiated.
        ValueError: If an argument is named twice in `argnums`, or a variable is
            differentiated in one argument and not in another.
        NameError: If one of `reduce_axes` is not bound.

    Example:
        >>> import nnx_transforms as nnx, jax.numpy as jnp
        >>> model = nnx.Dict(w=nnx.Param(jnp.array(3.0)), n=nnx.BatchStat(0))
        >>> def loss(model, x):
        ...     model.n.value += 1
        ...     return model.w.value ** 2 * x
        >>> value, grads = nnx.value_and_grad(loss)(model, 2.0)
        >>> float(value), float(grads.w.value), int(model.n.value)
        (18.0, 12.0, 1)
    """
    return derivative_function(jax.grad, with_value=True, scalar=True, **locals())


@called_with_the_same
def grad(
    f: Callable[..., Any] = LATER,
    argnums: int | DiffState | Sequence[int | DiffState] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Hashable = (),
    *,
    wrt: Filter | None = None,
    as_objects: bool = False,
) -> Any:
    """Makes a function that computes a function's gradient.

    As `value_and_grad`, without the value.

    Args:
        f: A function that returns a scalar. Left out, this is a decorator.
        argnums: The positions of the differentiated arguments: an integer, a
            `DiffState`, or a sequence of them.
        has_aux: Whether `f` returns a pair `(value, aux)`.
        holomorphic: As for `jax.grad`.
        allow_int: As for `jax.grad`.
        reduce_axes: Names of axes over which the gradient of what is not mapped over
            them is summed.
        wrt: Selects the differentiated variables of objects; `Param` by default.
        as_objects: Whether the gradient of an object is an object.

    Returns:
        A function with the arguments of `f` that returns the gradient, or
        `(gradient, aux)`.

    Raises:
        TypeError: As `value_and_grad`.
        ValueError: Likewise.
        NameError: Likewise.

    Example:
        >>> import nnx_transforms as nnx, jax.numpy as jnp
        >>> model = nnx.Dict(w=nnx.Param(jnp.array(3.0)), b=nnx.BatchStat(1.0))
        >>> grads = nnx.grad(lambda m, x: m.w.value * x + m.b.value)(model, 2.0)
        >>> grads.to_pure_dict()
        {'w': Array(2., dtype=float32, weak_type=True)}
    """
    return derivative_function(jax.grad, scalar=True, **locals())
