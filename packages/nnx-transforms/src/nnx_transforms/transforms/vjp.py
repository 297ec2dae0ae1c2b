"""`vjp`: a function of live objects, and what maps cotangents of it back."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import jax

from graphcore import Filter
from nnx_transforms.transforms.decorators import LATER, at_once_or_later
from nnx_transforms.transforms.derivatives.differentiation import linear_map
from nnx_transforms.transforms.derivatives.tangents import from_states, to_states


@at_once_or_later
def vjp(
    f: Callable[..., Any] = LATER,
    *primals: Any,
    has_aux: bool = False,
    reduce_axes: Hashable = (),
    wrt: Filter | None = None,
    as_objects: bool = False,
    **more: Any,
) -> Any:
    """Runs a function, and makes the function that maps cotangents back.

    What `f` does to its objects is published, now and once. The cotangent of an object
    that `f` returns is a `State` over its inexact variables; of an argument, over the
    selected variables. A variable that stands in several places has it in the first.

    Args:
        f: A function of `primals`. Left out, this is a decorator.
        *primals: Its arguments; all of them are differentiated.
        has_aux: Whether `f` returns a pair of which only the first is differentiated.
        reduce_axes: Names of axes of surrounding maps. Over each of them, the
            cotangent of what is not mapped over it is summed.
        wrt: Selects the differentiated variables of objects; `Param` by default.
        as_objects: Whether cotangents of objects are objects like them, as in `grad`.
        **more: Further arguments that the installed `jax.vjp` takes.

    Returns:
        `(out, vjp_fun)` or `(out, vjp_fun, aux)`. `vjp_fun` takes a cotangent of `out`
        and returns a tuple with one for each argument; it may be called any number of
        times. From JAX 0.12 on, `vjp_fun.with_logs` returns the tuple and what backward
        rules log; see `custom_vjp`.

    Raises:
        TypeError: As `jax.vjp` does. From `vjp_fun`: if there is no `State` where one
            is due, or a cotangent in one has the wrong structure or dtype.
        ValueError: If a variable can't be taken, as in `grad`. From `vjp_fun`: if a
            `State` has not exactly the variables that are due, or a wrong shape, with
            the paths; and as JAX's own for the cotangents of arrays.

    Example:
        >>> import nnx_transforms as nnx, jax.numpy as jnp
        >>> model = nnx.Dict(w=nnx.Param(jnp.array(3.0)))
        >>> out, vjp_fun = nnx.vjp(lambda m, x: m.w.value * x, model, 2.0)
        >>> m_bar, x_bar = vjp_fun(jnp.array(1.0))
        >>> float(out), float(m_bar.w.value), float(x_bar)
        (6.0, 2.0, 3.0)
    """
    return linear_map(jax.vjp, _pulled, backward=True, **locals())


def _pulled(out: Any, pull: Callable[..., Any], *cotangents: Any) -> Any:
    """Maps a cotangent back, for an output with these abstract values."""
    if len(cotangents) != 1:
        raise TypeError(
            "The function that `vjp` returned takes one cotangent, that of the output: "
            f"a tuple where that is one. It was given {len(cotangents)} arguments."
        )
    return to_states(pull(from_states(cotangents[0], out, "The cotangent holds")))
