"""`linear_call`: a linear function of live objects, and its transpose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jax.custom_derivatives import linear_call as jax_linear_call

from graphcore import api_boundary
from graphcore.authors import Callee, enter
from nnx_transforms.transforms.derivatives.guards import on_tracers, without_tangents
from nnx_transforms.transforms.derivatives.rule_call import RuleCall, named_like
from nnx_transforms.transforms.derivatives.tangents import Part, map_parts
from nnx_transforms.transforms.derivatives.zeros import zeros_like

R = TypeVar("R")


@jax.custom_jvp
def _together(xs: Any) -> Any:
    """The same values; if one of them has a tangent, all have.

    The differential of JAX's `linear_call` has no place for symbolic zeros. A zero
    that does not depend on any tangent would become symbolic again.
    """
    return xs


def _together_rule(primals: Any, tangents: Any) -> Any:
    (xs,), (ts,) = primals, tangents
    found = [t for t in ts if type(t) is not SymbolicZero]
    if not found or len(found) == len(ts):
        return xs, ts
    total = sum(jnp.sum(t) for t in found)

    def zero_like(x: Any) -> Any:
        zero = jnp.where(False, total, 0.0)
        dtype = jnp.result_type(x)
        if not jnp.issubdtype(dtype, jnp.complexfloating):
            zero = zero.real
        return jnp.broadcast_to(zero.astype(dtype), jnp.shape(x))

    return xs, [
        zero_like(x) if type(t) is SymbolicZero else t
        for x, t in zip(xs, ts, strict=True)
    ]


_together.defjvp(_together_rule, symbolic_zeros=True)


def _not_differentiable(name: str, what: str) -> str:
    return (
        f"linear_call of {name!r} has no derivative with respect to {what}, for JAX "
        "knows only that the function is linear in linear_args: compute what depends "
        "on the residuals outside, or stop their gradient with "
        "`jax.lax.stop_gradient`."
    )


@api_boundary
def linear_call(
    fun: Callable[..., R],
    fun_transpose: Callable[..., Any],
    residual_args: Any,
    linear_args: Any,
) -> R:
    """Calls a linear function of live objects that has a transpose of its own.

    It composes with other transformations as far as `jax.custom_derivatives.
    linear_call` does: it has no batching rule, and no derivative with respect to
    `residual_args`. Variables of `linear_args` that are not inexact count as residual.
    What the function does to its arguments is published. Such updates need not be
    linear; where there are any, the function runs twice.

    Args:
        fun: `fun(residual_args, linear_args) -> out`, linear in its second argument.
        fun_transpose: `fun_transpose(residual_args, out_g)` returns what has the
            structure of `linear_args`: a `State` for each graph node. In `out_g`, a
            graph node has a `State`. Its objects are copies; what it writes to them
            is dropped.
        residual_args: A pytree with objects in it.
        linear_args: Likewise; the two share no objects.

    Returns:
        What the function returns.

    Raises:
        ValueError: If an object can be reached from both arguments, or in the
            transpose, if a tangent has another structure or shape than is due.
        TypeError: In a derivative, if it is one with respect to `residual_args`, or a
            tangent is of the wrong kind.

    Example:
        >>> import nnx_transforms as nnx, jax, jax.numpy as jnp
        >>> def divide(x, by):
        ...     scale = nnx.Dict(by=nnx.Variable(by))
        ...     return nnx.linear_call(
        ...         lambda s, x: x / s.by.value, lambda s, g: g / s.by.value, scale, x
        ...     )
        >>> by = jnp.array(2.0)
        >>> float(divide(3.0, by)), float(jax.grad(divide)(3.0, by))
        (1.5, 0.5)
    """
    names = ("residual_args", "linear_args")
    args = residual_args, linear_args
    callees = Callee(fun), Callee(fun_transpose)
    name, rule_name = (callee.name for callee in callees)
    # Arguments of which one is linear, and the other is not, share no objects.
    entry = enter(callees, args, settings=names)
    call = RuleCall(name, callees, entry, args, names, lambda i, path, x: i == 1)
    residual, linear, *rest = call.pure_args(entry, args)

    def primal(residual: Any, linear: Any) -> Any:
        """The function without its updates, which need not be linear."""
        first, rest = residual
        values, out = call.primal(first, linear, *rest)
        pairs = zip(values, call.updated(), strict=True)
        return [value for value, is_update in pairs if not is_update], out

    def transposed(residual: Any, g: Any) -> Any:
        values_g, out_g = g
        of_output = iter(values_g)
        given = [None if u else next(of_output) for u in call.updated()]
        out_g = call.out_states(
            out_g, call.values(given, lambda number: None), with_old=False
        )
        # Nobody sees the linear arguments here: abstract values stand in for them.
        first, rest = residual
        _, function, (inner, _) = call.enter(1, (first, call.due(1), *rest))
        tangent = function(inner, out_g)
        if not call.has_objects:
            return tangent  # JAX checks it
        rule = f"The transpose {rule_name!r} of {name!r}"
        return map_parts(filled, call.take_tangent(1, tangent, rule))

    def filled(part: Part) -> Part:
        """The tangent of an object with arrays in the place of None."""
        pairs = zip(part.values, part.layout.numbers, strict=True)
        return Part(
            part.layout,
            [zeros_like(call.avals[n]) if x is None else x for x, n in pairs],
        )

    try:
        of_output, out = jax_linear_call(
            named_like(fun, primal),
            named_like(fun_transpose, transposed),
            without_tangents(
                (residual, rest), _not_differentiable(name, "residual_args")
            ),
            on_tracers(_together, linear),
        )
    except NotImplementedError as error:
        if "Batching rule" in str(error):  # else it comes from the function
            error.add_note(
                f"This is `linear_call` of {name!r}: JAX has no rule for it under "
                "`vmap`. Use `map`, or `custom_vjp` for the function."
            )
        raise
    except AssertionError as error:
        if call.settled is None:
            raise  # from the user's function
        # JAX asserts that no value that the function closes over has a tangent.
        what = "what the function closes over"
        raise TypeError(_not_differentiable(name, what)) from error
    values = of_output
    if any(call.updated()):
        # They are no output of the linear function: it runs once more for them.
        again, _ = call.primal(residual, linear, *rest)
        given = iter(of_output)
        values = [
            value if is_update else next(given)
            for value, is_update in zip(again, call.updated(), strict=True)
        ]
    return entry.commit([values], out, call.change)  # type: ignore[no-any-return]
