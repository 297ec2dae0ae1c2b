"""Functions bound to arguments that stay the same from call to call."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from nnx_transforms.transforms.decorators import LATER, called_with_the_same
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


@called_with_the_same
def make_jaxpr(
    fun: Any = LATER, static_argnums: Any = (), *, return_shape: bool = False
) -> Any:
    """Shows what JAX makes of a function of objects.

    Args:
        fun: The function. Left out, a decorator is returned.
        static_argnums: Positions of arguments that are not traced.
        return_shape: Whether to return a pair of the jaxpr and the output with
            `jax.ShapeDtypeStruct`s in the place of arrays.

    Returns:
        A function of the same arguments that returns a jaxpr, or such a pair.

    Example:
        >>> import nnx_transforms as nnx
        >>> model = nnx.Dict(w=nnx.Param(2.0))
        >>> jaxpr = make_jaxpr(lambda model, x: model.w.value * x)(model, 3.0)
        >>> [equation.primitive.name for equation in jaxpr.eqns]
        ['mul']
    """
    jitted = jit(fun, static_argnums=static_argnums)

    def made(*args: Any, **kwargs: Any) -> Any:
        jaxpr = jitted.trace(*args, **kwargs).jaxpr
        return (jaxpr, jitted.eval_shape(*args, **kwargs)) if return_shape else jaxpr

    return made
