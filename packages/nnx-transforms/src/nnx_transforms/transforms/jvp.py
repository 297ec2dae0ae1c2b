"""`jvp` and `linearize`: derivatives of functions of live objects in forward mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from graphcore import Filter
from nnx_transforms.transforms.decorators import LATER, at_once_or_later
from nnx_transforms.transforms.derivatives.differentiation import (
    Differentiation,
    linear_map,
    of_all,
)
from nnx_transforms.transforms.derivatives.tangents import from_states, to_states
from nnx_transforms.transforms.derivatives.zeros import abstract


@at_once_or_later
def jvp(
    f: Callable[..., Any] = LATER,
    primals: Any = LATER,
    tangents: Any = LATER,
    has_aux: bool = False,
    *,
    wrt: Filter | None = None,
    as_objects: bool = False,
) -> Any:
    """Runs a function, and maps tangents of its arguments to one of its output.

    What `f` does to its objects is published. The tangent of an object among the
    arguments is a `State` over the selected variables, as `state(node, Param)` gives
    it; of one that `f` returns, a `State` over its inexact variables.

    Args:
        f: A function of `primals`. Left out, this is a decorator.
        primals: Its arguments, a tuple or list.
        tangents: A tangent for each.
        has_aux: Whether `f` returns a pair of which only the first is differentiated.
        wrt: Selects the differentiated variables of objects; `Param` by default.
        as_objects: Whether tangents of objects are objects like them, as in `grad`.

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
    how: Any = {"has_aux": has_aux, "as_objects": as_objects}
    call = Differentiation(f, tuple(primals), {}, of_all(primals, wrt), **how)
    args = call.args if isinstance(primals, tuple) else list(call.args)
    if call.has_objects:
        tangents = from_states(tangents, abstract(args), _HOLD)
    with call.entry.blaming():
        _, dot, rest = jax.jvp(call.function, args, tangents, has_aux=True)
    dot = to_states(dot)
    out, *aux = call.result(rest)
    return out, dot, *aux


_HOLD = "The tangents hold"


@at_once_or_later
def linearize(
    f: Callable[..., Any] = LATER,
    *primals: Any,
    has_aux: bool = False,
    wrt: Filter | None = None,
    as_objects: bool = False,
    **more: Any,
) -> Any:
    """Runs a function, and makes the linear function that maps tangents forward.

    What `f` does to its objects is published, now and once. Tangents are as for `jvp`.

    Args:
        f: A function of `primals`. Left out, this is a decorator.
        *primals: Its arguments; all of them are differentiated.
        has_aux: Whether `f` returns a pair of which only the first is differentiated.
        wrt: Selects the differentiated variables of objects; `Param` by default.
        as_objects: Whether tangents of objects are objects like them, as in `grad`.
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
    return linear_map(jax.linearize, _pushed, backward=False, **locals())


def _pushed(args: Any, push: Callable[..., Any], *tangents: Any) -> Any:
    """Maps tangents forward, of arguments with these abstract values."""
    return to_states(push(*from_states(tangents, args, _HOLD)))
