"""`custom_gradient`: a function of live objects that returns its own gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from nnx_transforms.transforms.derivatives.rules import (
    RuleCall,
    RuleFunction,
    named_like,
    pair_of,
)
from nnx_transforms.transforms.derivatives.tangents import zeros_like
from nnx_transforms.transforms.graph_mode import accepts_graph_mode
from nnx_transforms.transforms.types import P, R


class CustomGradient(RuleFunction[P, R]):
    """A function that returns its own gradient; see `custom_gradient`."""

    _rules = ()

    def _define(self, call: RuleCall, fun: Any, *rules: Any) -> Callable[..., Any]:
        def pure(*args: Any) -> Any:
            inside, function, inner = call.enter(0, args)
            out, vjp_fun = pair_of(
                function(*inner),
                f"The custom_gradient function {call.name!r}",
                "(out, vjp_fun)",
            )
            if not callable(vjp_fun):
                raise TypeError(
                    f"The custom_gradient function {call.name!r} must return the "
                    "output and a function of its cotangent, but the second is "
                    f"{vjp_fun!r}."
                )
            left = call.leave(inside, out, "the function")

            def pure_vjp(g: Any) -> Any:
                values_g, tree_g = g
                value = call.values(values_g, lambda n: zeros_like(call.avals[n]))
                tangents = vjp_fun(call.out_states(tree_g, value, with_old=True))
                if len(call.names) == 1 and not isinstance(tangents, tuple | list):
                    tangents = (tangents,)
                rule = f"The gradient function of {call.name!r}"
                return call.take_tangents(tangents, rule)

            return left, pure_vjp

        return jax.custom_gradient(named_like(fun, pure))  # type: ignore[no-any-return]


@accepts_graph_mode
def custom_gradient(fun: Callable[P, tuple[R, Any]]) -> CustomGradient[P, R]:
    """Lets a function of live objects return its own gradient.

    Args:
        fun: `fun(*args) -> (out, vjp_fun)`. `vjp_fun(out_g)` is called with the
            cotangent of `out`, in which a graph node has a `State`, and returns a
            tuple with one tangent for each argument: a `State` for a graph node, a
            pytree or None otherwise. It may use whatever `fun` computed. What `fun`
            does to its arguments is published and has no cotangent.

    Returns:
        A function of the same arguments that returns `out`.

    Raises:
        TypeError: At a call, if the function does not return a pair; in a derivative,
            if a tangent is of the wrong kind, with the argument.
        ValueError: In a derivative, if a tangent has another structure or shape than
            is due, with the argument.

    Example:
        >>> import nnx_transforms as nnx, jax, jax.numpy as jnp
        >>> @nnx.custom_gradient
        ... def scale(model, x):
        ...     def vjp_fun(g):
        ...         tangent = nnx.State({'w': model.w.to_state().replace(g * 7.0)})
        ...         return tangent, g * model.w.value
        ...     return model.w.value * x, vjp_fun
        >>> graphdef, state = nnx.split(nnx.Dict(w=nnx.Param(jnp.array(2.0))))
        >>> g = jax.grad(lambda s: scale(nnx.merge(graphdef, s), 5.0))(state)
        >>> float(g['w'].value)
        7.0
    """
    return CustomGradient(fun)  # type: ignore[arg-type]  # (it returns a pair)
