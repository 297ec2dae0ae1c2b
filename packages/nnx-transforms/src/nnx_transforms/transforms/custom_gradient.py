"""`custom_gradient`: a function of live objects that returns its own gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, cast, overload

import jax

from nnx_transforms.transforms.decorators import LATER, optional_function
from nnx_transforms.transforms.derivatives.pairs import pair_of
from nnx_transforms.transforms.derivatives.rule_call import RuleCall, named_like
from nnx_transforms.transforms.derivatives.rule_function import RuleFunction
from nnx_transforms.transforms.derivatives.zeros import zeros_like
from nnx_transforms.transforms.types import P, R

__all__ = ["custom_gradient"]


class CustomGradient(RuleFunction[P, R]):
    """A function that returns its own gradient; see `custom_gradient`."""

    _rules = ()

    def __init__(self, fun: Callable[P, R], with_logs: bool) -> None:
        super().__init__(fun)
        self._with_logs = with_logs

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
                rule = f"The gradient function of {call.name!r}"
                logs = None
                if self._with_logs:
                    tangents, logs = pair_of(tangents, rule, "(tangents, logs)")
                if len(call.names) == 1 and not isinstance(tangents, tuple | list):
                    tangents = (tangents,)
                taken = call.take_tangents(tangents, rule)
                return (taken, logs) if self._with_logs else taken

            return left, pure_vjp

        # The option came with JAX 0.12.
        more: Any = {"with_logs": True} if self._with_logs else {}
        return jax.custom_gradient(named_like(fun, pure), **more)  # type: ignore[no-any-return]


class MakesCustomGradient(Protocol):
    """`custom_gradient`, with its options."""

    @overload
    def __call__(
        self, fun: Callable[P, tuple[R, Any]], /, *, with_logs: bool = ...
    ) -> CustomGradient[P, R]: ...
    @overload
    def __call__(
        self, *, with_logs: bool = ...
    ) -> Callable[[Callable[P, tuple[R, Any]]], CustomGradient[P, R]]: ...


def _optional(transform: Any) -> MakesCustomGradient:
    return cast("MakesCustomGradient", optional_function(transform))


@_optional
def custom_gradient(fun: Callable[..., Any] = LATER, *, with_logs: bool = False) -> Any:
    """Lets a function of live objects return its own gradient.

    Args:
        fun: `fun(*args) -> (out, vjp_fun)`. `vjp_fun(out_g)` is called with the
            cotangent of `out`, in which a graph node has a `State`, and returns a
            tuple with one tangent for each argument: a `State` for a graph node, a
            pytree or None otherwise. It may use whatever `fun` computed. What `fun`
            does to its arguments is published and has no cotangent.
        with_logs: Whether `vjp_fun` returns `(tangents, logs)`, with a dict of named
            pytrees or None: what `vjp_fun.with_logs` of `vjp` gives beside the
            cotangents, and what is dropped otherwise. From JAX 0.12 on.

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
    return CustomGradient(fun, with_logs)
