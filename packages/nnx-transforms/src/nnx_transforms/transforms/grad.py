"""Derivatives of functions of live objects.

Each of these is JAX's own derivative of a pure function; see `differentiation` for how
one is made of a function of objects, and `tangents` for what stands for an object in
gradients and tangents.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import jax

from graphcore import Filter
from nnx_transforms.transforms.differentiation import (
    Argnums,
    Differentiation,
    all_arguments,
)
from nnx_transforms.transforms.lifting import lifted
from nnx_transforms.transforms.tangents import from_states, has_parts, to_states

_MISSING: Any = object()


def value_and_grad(
    f: Callable[..., Any] = _MISSING,
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
    again = functools.partial(
        value_and_grad,
        argnums=argnums,
        has_aux=has_aux,
        holomorphic=holomorphic,
        allow_int=allow_int,
        reduce_axes=reduce_axes,
        wrt=wrt,
    )
    if f is _MISSING:
        return again
    chosen = Argnums(argnums, wrt)
    options: dict[str, Any] = {"holomorphic": holomorphic, "allow_int": allow_int}

    @lifted(f, again)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        call = Differentiation(
            f,
            args,
            kwargs,
            chosen.filters,
            has_aux=has_aux,
            reduce_axes=reduce_axes,
            scalar=True,
        )
        call.check(jax.grad, **options)
        derivative = jax.value_and_grad(
            call.function, chosen.numbers, has_aux=True, **options
        )
        (value, rest), gradient = derivative(*call.args, **call.kwargs)
        return call.publish(rest, value), to_states(gradient)

    return wrapper


def grad(
    f: Callable[..., Any] = _MISSING,
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
    again = functools.partial(
        grad,
        argnums=argnums,
        has_aux=has_aux,
        holomorphic=holomorphic,
        allow_int=allow_int,
        reduce_axes=reduce_axes,
        wrt=wrt,
    )
    if f is _MISSING:
        return again
    with_value = value_and_grad(
        f, argnums, has_aux, holomorphic, allow_int, reduce_axes, wrt=wrt
    )

    @lifted(f, again)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        out, gradient = with_value(*args, **kwargs)
        return (gradient, out[1]) if has_aux else gradient

    return wrapper


def vjp(
    f: Callable[..., Any],
    *primals: Any,
    has_aux: bool = False,
    reduce_axes: Hashable = (),
    wrt: Filter | None = None,
    **more: Any,
) -> Any:
    """Runs a function, and makes the function that maps cotangents back.

    What `f` does to its objects is published, now and once. The cotangent of an object
    that `f` returns is a `State` over its inexact variables; of an argument, over the
    selected variables. A variable that stands in several places has it in the first.

    Args:
        f: A function of `primals`.
        *primals: Its arguments; all of them are differentiated.
        has_aux: Whether `f` returns a pair of which only the first is differentiated.
        reduce_axes: Names of axes of surrounding maps. Over each of them, the
            cotangent of what is not mapped over it is summed.
        wrt: Selects the differentiated variables of objects; `Param` by default.
        **more: Further arguments that the installed `jax.vjp` takes.

    Returns:
        `(out, vjp_fun)` or `(out, vjp_fun, aux)`. `vjp_fun` takes a cotangent of `out`
        and returns a tuple with one for each argument; it may be called any number of
        times.

    Raises:
        TypeError: As `jax.vjp` does. From `vjp_fun`: if there is no `State` where one
            is due, or a cotangent has the wrong structure or dtype.
        ValueError: If a variable can't be taken, as in `grad`. From `vjp_fun`: if a
            `State` has not exactly the variables that are due, or a wrong shape; with
            the paths.

    Example:
        >>> import nnx_transforms as nnx, jax.numpy as jnp
        >>> model = nnx.Dict(w=nnx.Param(jnp.array(3.0)))
        >>> out, vjp_fun = nnx.vjp(lambda m, x: m.w.value * x, model, 2.0)
        >>> m_bar, x_bar = vjp_fun(jnp.array(1.0))
        >>> float(out), float(m_bar.w.value), float(x_bar)
        (6.0, 2.0, 3.0)
    """
    call = Differentiation(
        f, primals, {}, all_arguments(wrt), has_aux=has_aux, reduce_axes=reduce_axes
    )
    out, pull, rest = jax.vjp(call.function, *call.args, has_aux=True, **more)
    if call.has_objects or has_parts(out):
        # As JAX's own function, this is a pytree that may pass through `jit`.
        pull = jax.tree_util.Partial(_Pullback(_abstract(out)), pull)
    result = call.publish(rest, out)
    return (result[0], pull, result[1]) if has_aux else (result, pull)


@dataclass(frozen=True, eq=False)
class _Pullback:
    """Maps cotangents back.

    Args:
        out: The output with abstract values.
    """

    out: Any

    def __call__(self, pull: Callable[..., Any], cotangent: Any) -> Any:
        return to_states(pull(from_states(cotangent, self.out, "cotangent")))


def jvp(
    f: Callable[..., Any],
    primals: Any,
    tangents: Any,
    has_aux: bool = False,
    *,
    wrt: Filter | None = None,
) -> Any:
    """Runs a function, and maps tangents of its arguments to one of its output.

    What `f` does to its objects is published. The tangent of an object among the
    arguments is a `State` over the selected variables, as `state(node, Param)` gives
    it; of one that `f` returns, a `State` over its inexact variables.

    Args:
        f: A function of `primals`.
        primals: Its arguments, a tuple or list.
        tangents: A tangent for each.
        has_aux: Whether `f` returns a pair of which only the first is differentiated.
        wrt: Selects the differentiated variables of objects; `Param` by default.

    Returns:
        `(out, out_tangent)` or `(out, out_tangent, aux)`.

    Raises:
        TypeError: As `jax.jvp` does; if there is no `State` where one is due, or a
            tangent has the wrong structure or dtype.
        ValueError: If a `State` has not exactly the variables that are due, or a
            tangent has the wrong shape; with the paths.

    Example:
        >>> import nnx_transforms as nnx, jax, jax.numpy as jnp
        >>> model = nnx.Dict(w=nnx.Param(jnp.array(3.0)))
        >>> ones = jax.tree.map(jnp.ones_like, nnx.state(model, nnx.Param))
        >>> out, dot = nnx.jvp(lambda m, x: m.w.value * x, (model, 2.0), (ones, 0.0))
        >>> float(out), float(dot)
        (6.0, 2.0)
    """
    if not all(isinstance(given, tuple | list) for given in (primals, tangents)):
        return jax.jvp(f, primals, tangents, has_aux)  # JAX refuses it.
    call = Differentiation(f, tuple(primals), {}, all_arguments(wrt), has_aux=has_aux)
    args = call.args if isinstance(primals, tuple) else list(call.args)
    dots = from_states(tangents, args, "tangent")
    out, dot, rest = jax.jvp(call.function, args, dots, has_aux=True)
    result = call.publish(rest, out)
    dot = to_states(dot)
    return (result[0], dot, result[1]) if has_aux else (result, dot)


def linearize(
    f: Callable[..., Any],
    *primals: Any,
    has_aux: bool = False,
    wrt: Filter | None = None,
    **more: Any,
) -> Any:
    """Runs a function, and makes the linear function that maps tangents forward.

    What `f` does to its objects is published, now and once. Tangents are as for `jvp`.

    Args:
        f: A function of `primals`.
        *primals: Its arguments; all of them are differentiated.
        has_aux: Whether `f` returns a pair of which only the first is differentiated.
        wrt: Selects the differentiated variables of objects; `Param` by default.
        **more: Further arguments that the installed `jax.linearize` takes.

    Returns:
        `(out, jvp_fun)` or `(out, jvp_fun, aux)`. `jvp_fun` takes a tangent for each
        argument and returns that of the output.

    Raises:
        TypeError: As `jvp`; also from `jvp_fun`.
        ValueError: Likewise.

    Example:
        >>> import nnx_transforms as nnx, jax, jax.numpy as jnp
        >>> model = nnx.Dict(w=nnx.Param(jnp.array(3.0)))
        >>> out, jvp_fun = nnx.linearize(lambda m: m.w.value ** 2, model)
        >>> tangent = jax.tree.map(jnp.ones_like, nnx.state(model, nnx.Param))
        >>> float(out), float(jvp_fun(tangent))
        (9.0, 6.0)
    """
    call = Differentiation(f, primals, {}, all_arguments(wrt), has_aux=has_aux)
    out, push, rest = jax.linearize(call.function, *call.args, has_aux=True, **more)
    if call.has_objects or has_parts(out):
        push = jax.tree_util.Partial(_Pushforward(_abstract(call.args)), push)
    result = call.publish(rest, out)
    return (result[0], push, result[1]) if has_aux else (result, push)


@dataclass(frozen=True, eq=False)
class _Pushforward:
    """Maps tangents forward.

    Args:
        args: The arguments with abstract values.
    """

    args: Any

    def __call__(self, push: Callable[..., Any], *tangents: Any) -> Any:
        return to_states(push(*from_states(tangents, self.args, "tangent")))


def _abstract(tree: Any) -> Any:
    """The abstract values of a pytree, so that no array is kept alive."""
    return jax.tree.map(jax.typeof, tree)
