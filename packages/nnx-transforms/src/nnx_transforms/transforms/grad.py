"""Gradients, Jacobians and Hessians by the variables of live objects.

This is JAX's own derivative of a pure function; see `differentiation` for how one is
made of a function of objects, and `tangents` for what stands for an object in it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import jax

from graphcore import Filter
from nnx_transforms.decorators import LATER, optional_function
from nnx_transforms.transforms.differentiation import derivative_function

__all__ = ["grad", "hessian", "jacfwd", "jacrev", "value_and_grad"]


@optional_function
def value_and_grad(
    f: Callable[..., Any] = LATER,
    argnums: Any = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Hashable = (),
    *,
    wrt: Filter | None = None,
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
    how: Any = {"arranged": lambda both, aux: ((both[0], aux), both[1])}
    how |= {"reduce_axes": reduce_axes, "scalar": True}
    how |= {"holomorphic": holomorphic, "allow_int": allow_int}
    return derivative_function(_value_and_gradient, f, argnums, wrt, has_aux, **how)


@optional_function
def grad(
    f: Callable[..., Any] = LATER,
    argnums: Any = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Hashable = (),
    *,
    wrt: Filter | None = None,
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
    how: Any = {"reduce_axes": reduce_axes, "scalar": True}
    how |= {"holomorphic": holomorphic, "allow_int": allow_int}
    return derivative_function(jax.grad, f, argnums, wrt, has_aux, **how)


def _value_and_gradient(function: Any, *how: Any, **options: Any) -> Any:
    """As `jax.value_and_grad`, but further output comes last, as from `jax.grad`."""
    compute = jax.value_and_grad(function, *how, **options)

    def both(*args: Any, **kwargs: Any) -> Any:
        (value, rest), gradient = compute(*args, **kwargs)
        return (value, gradient), rest

    return both


@optional_function
def jacfwd(
    f: Callable[..., Any] = LATER,
    argnums: Any = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    *,
    wrt: Filter | None = None,
) -> Any:
    """Makes a function that computes a Jacobian in forward mode.

    What `f` does to its objects is published. The Jacobian has the structure of the
    output, and in the place of each array the structure of the arguments, with a
    `State` over the selected variables for each object.

    Args:
        f: A function that returns arrays. Left out, this is a decorator.
        argnums: The positions of the differentiated arguments: an integer, a
            `DiffState`, or a sequence of them.
        has_aux: Whether `f` returns a pair of which only the first is differentiated.
        holomorphic: As for `jax.jacfwd`.
        wrt: Selects the differentiated variables of objects; `Param` by default.

    Returns:
        A function with the arguments of `f` that returns the Jacobian, or
        `(jacobian, aux)`. An output of shape `s` and a variable of shape `t` give an
        array of shape `s + t`.

    Raises:
        TypeError: As `jax.jacfwd` does, with the path if it is about a variable.
        ValueError: As `grad` does.

    Example:
        >>> import nnx_transforms as nnx, jax.numpy as jnp
        >>> model = nnx.Dict(w=nnx.Param(jnp.array([1.0, 2.0])))
        >>> nnx.jacfwd(lambda m: m.w.value ** 2)(model).w.value.tolist()
        [[2.0, 0.0], [0.0, 4.0]]
    """
    return derivative_function(
        jax.jacfwd, f, argnums, wrt, has_aux, holomorphic=holomorphic
    )


@optional_function
def jacrev(
    f: Callable[..., Any] = LATER,
    argnums: Any = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    *,
    wrt: Filter | None = None,
) -> Any:
    """Makes a function that computes a Jacobian in reverse mode.

    As `jacfwd`, which is cheaper where there are more outputs than inputs.

    Args:
        f: A function that returns arrays. Left out, this is a decorator.
        argnums: The positions of the differentiated arguments: an integer, a
            `DiffState`, or a sequence of them.
        has_aux: Whether `f` returns a pair of which only the first is differentiated.
        holomorphic: As for `jax.jacrev`.
        allow_int: As for `jax.jacrev`.
        wrt: Selects the differentiated variables of objects; `Param` by default.

    Returns:
        A function with the arguments of `f` that returns the Jacobian, or
        `(jacobian, aux)`.

    Raises:
        TypeError: As `jax.jacrev` does, with the path if it is about a variable.
        ValueError: As `grad` does.

    Example:
        >>> import nnx_transforms as nnx, jax.numpy as jnp
        >>> model = nnx.Dict(w=nnx.Param(jnp.array([1.0, 2.0])))
        >>> jacobian = nnx.jacrev(lambda m: {'sum': m.w.value.sum()})(model)
        >>> jacobian['sum'].w.value.tolist()
        [1.0, 1.0]
    """
    options: Any = {"holomorphic": holomorphic, "allow_int": allow_int}
    return derivative_function(jax.jacrev, f, argnums, wrt, has_aux, **options)


@optional_function
def hessian(
    f: Callable[..., Any] = LATER,
    argnums: Any = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    *,
    wrt: Filter | None = None,
) -> Any:
    """Makes a function that computes a Hessian: `jacfwd` of `jacrev`.

    The Hessian of an object is a `State` of `State`s: that of the first derivative
    has in the place of each array a `State` of second derivatives.

    Args:
        f: A function that returns arrays. Left out, this is a decorator.
        argnums: The positions of the differentiated arguments: an integer, a
            `DiffState`, or a sequence of them.
        has_aux: Whether `f` returns a pair of which only the first is differentiated.
        holomorphic: As for `jax.hessian`.
        wrt: Selects the differentiated variables of objects; `Param` by default.

    Returns:
        A function with the arguments of `f` that returns the Hessian, or
        `(hessian, aux)`.

    Raises:
        TypeError: As `jacrev` does.
        ValueError: As `grad` does.

    Example:
        >>> import nnx_transforms as nnx, jax.numpy as jnp
        >>> model = nnx.Dict(a=nnx.Param(jnp.array(2.0)), b=nnx.Param(jnp.array(3.0)))
        >>> h = nnx.hessian(lambda m: m.a.value ** 2 * m.b.value)(model)
        >>> float(h.a.value.a.value), float(h.a.value.b.value)
        (6.0, 4.0)
    """
    first = jacrev(f, argnums, has_aux, holomorphic, wrt=wrt)
    return jacfwd(first, argnums, has_aux, holomorphic, wrt=wrt)
