"""Jacobians and Hessians of functions of live objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from graphcore import Filter
from nnx_transforms.prefixes import DiffState
from nnx_transforms.transforms.decorators import LATER, called_with_the_same
from nnx_transforms.transforms.derivatives.differentiation import derivative_function
from nnx_transforms.transforms.derivatives.tangents import has_parts

__all__ = ["hessian", "jacfwd", "jacrev"]


def _or_empty(jacobian: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a Jacobian of JAX's one that may be by objects without any variables."""

    def derivative(
        function: Callable[..., Any], argnums: Any = 0, **options: Any
    ) -> Callable[..., Any]:
        compute = jacobian(function, argnums, **options)

        def derive(*args: Any, **kwargs: Any) -> Any:
            # JAX says what is out of range.
            found = jax.tree.map(lambda n: args[n:][:1], argnums)
            if jax.tree.leaves(found) or not has_parts(found):
                return compute(*args, **kwargs)
            chosen = jax.tree.map(args.__getitem__, argnums)
            out, rest = function(*args, **kwargs)
            return jax.tree.map(lambda _: chosen, out), rest

        return derive

    return derivative


@called_with_the_same
def jacfwd(
    f: Callable[..., Any] = LATER,
    argnums: int | DiffState | Sequence[int | DiffState] = 0,
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
    return derivative_function(_or_empty(jax.jacfwd), **locals())


@called_with_the_same
def jacrev(
    f: Callable[..., Any] = LATER,
    argnums: int | DiffState | Sequence[int | DiffState] = 0,
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
    return derivative_function(_or_empty(jax.jacrev), **locals())


@called_with_the_same
def hessian(
    f: Callable[..., Any] = LATER,
    argnums: int | DiffState | Sequence[int | DiffState] = 0,
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
