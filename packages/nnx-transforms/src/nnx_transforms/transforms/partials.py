"""Functions bound to arguments that stay the same from call to call."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax

from graphcore.authors import enter, lifted
from nnx_transforms.arguments import ChosenArguments, counted_from_the_start
from nnx_transforms.transforms.decorators import LATER, called_with_the_same
from nnx_transforms.transforms.eval_shape import shapes_of
from nnx_transforms.transforms.jit import PartialJitted, jit

__all__ = ["cached_partial", "jit_partial", "make_jaxpr"]

R = TypeVar("R")
cached_partial = functools.partial
"""Binds objects to a jitted function. The compiled call finds what it knows of them.

Example:
    >>> import nnx_transforms as nnx, jax.numpy as jnp
    >>> counter = nnx.Variable(jnp.array(0))
    >>> @nnx.jit
    ... def add(counter, k):
    ...     counter.value += k
    >>> step = cached_partial(add, counter); step(2); step(3)
    >>> int(counter.value)
    5
"""


def jit_partial(
    fun: Callable[..., R], *partial_args: Any, **options: Any
) -> PartialJitted[R]:
    """Compiles a function and binds its first arguments.

    Args:
        fun: The function.
        *partial_args: Its first arguments, such as a model and its optimizer. Updates
            of them are seen, in both directions.
        **options: Those of `jit`.

    Returns:
        A function of the other arguments, with `lower` and the rest of what `jit`
        returns.

    Example:
        >>> import nnx_transforms as nnx, jax.numpy as jnp
        >>> counter = nnx.Dict(n=nnx.Variable(jnp.array(0)))
        >>> def add(counter, k):
        ...     counter.n.value += k
        >>> step = jit_partial(add, counter); step(2); step(3)
        >>> int(counter.n.value)
        5
    """
    return PartialJitted(jit(fun, **options), *partial_args)


@called_with_the_same  # type: ignore[arg-type]  # (`more` will not hold `fun`)
def make_jaxpr(
    fun: Any = LATER,
    static_argnums: Any = (),
    axis_env: Any = None,
    return_shape: bool = False,
    **more: Any,
) -> Any:
    """Shows what JAX makes of a function of objects.

    Args:
        fun: The function. Left out, a decorator is returned.
        static_argnums: Positions of arguments that are not traced.
        axis_env: Pairs of a name and a size: axes over which the function is mapped.
        return_shape: Whether to return a pair of the jaxpr and the output with
            `jax.ShapeDtypeStruct`s in the place of arrays.
        **more: Further arguments that the installed `jax.make_jaxpr` takes.

    Returns:
        A function of the same arguments that returns a jaxpr, or such a pair. What
        comes out of the jaxpr first is the values of the variables that are written.

    Example:
        >>> import nnx_transforms as nnx
        >>> model = nnx.Dict(w=nnx.Param(2.0))
        >>> jaxpr = make_jaxpr(lambda model, x: model.w.value * x)(model, 3.0)
        >>> [equation.primitive.name for equation in jaxpr.eqns]
        ['mul']
    """
    argnums = counted_from_the_start(fun, static_argnums)
    statics = ChosenArguments(fun, argnums, None)
    how: Any = {"axis_env": axis_env, "return_shape": True, **more}
    jax.make_jaxpr(fun, **how)  # It refuses what it does not take.

    def trace(body: Any, *values: Any) -> Any:
        make: Any = jax.make_jaxpr(body, **how)
        return make(*values)

    @lifted(fun)
    def made(f: Any, /, *args: Any, **kwargs: Any) -> Any:
        args, kwargs, chosen = statics.take(args, kwargs)
        entry = enter(f, args, kwargs, statics=chosen)
        with entry.blaming():
            jaxpr, _ = trace(entry.body, *entry.values)
        if not return_shape:
            return jaxpr
        return jaxpr, shapes_of(f, args, kwargs, chosen, lambda *x: trace(*x)[1])

    return made
