"""`custom_gradient`: a function of live objects that returns its own gradient."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import jax

from nnx_transforms.transforms.argument_states import Arguments, instantiate, zero_of
from nnx_transforms.transforms.lifting import Callee
from nnx_transforms.transforms.rule_arguments import RuleCall
from nnx_transforms.transforms.rule_runs import (
    Runs,
    keep_metadata,
    named_like,
    released,
)


class CustomGradient:
    """A function that returns its own gradient; see `custom_gradient`.

    Args:
        fun: The function.
    """

    def __init__(self, fun: Callable[..., Any]) -> None:
        keep_metadata(self, fun)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function.

        Args:
            *args: Its arguments: any pytrees with objects in them.
            **kwargs: Likewise, resolved to positions.

        Returns:
            The first of the two things that it returns.

        Raises:
            TypeError: If it does not return a pair.
        """
        fun: Callable[..., Any] = self.__wrapped__  # type: ignore[attr-defined]
        callee = Callee(fun)
        call = RuleCall.of(fun, callee.name, args, kwargs, (), callee.bound)
        runs = Runs(call.arguments, callee.name)
        pure = _pure(released(callee), call.arguments, runs)
        values, tree = jax.custom_gradient(named_like(fun, pure))(*call.pure_args)
        assert runs.outcome is not None
        return call.inputs.publish(runs.outcome, values, tree)


def _pure(callee: Callee, arguments: Arguments, runs: Runs) -> Callable[..., Any]:
    def pure(*args: Any) -> Any:
        inside, inner = arguments.enter_call(args, ())
        pair = arguments.bind(callee, inside)(*inner)
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise TypeError(
                f"The custom_gradient function {callee.name!r} must return a pair "
                f"(out, vjp_fun), but returned {pair!r}."
            )
        out, vjp_fun = pair
        left = runs.leave(inside, out, "the function")

        def pure_vjp(g: Any) -> Any:
            values_g, tree_g = g
            value = runs.values(values_g, lambda p: _zeros(arguments.avals[p]))
            tangents = vjp_fun(runs.out_states(tree_g, values_g, value))
            if not arguments.has_objects:
                return tangents  # JAX checks it
            if arguments.count == 1 and not isinstance(tangents, tuple | list):
                tangents = (tangents,)
            plain, of_variables = arguments.take_tangents(
                tangents,
                arguments.inexact,
                f"The gradient function of {callee.name!r}",
                runs.new_paths(),
            )
            return (*plain, of_variables)

        return left, pure_vjp

    return pure


def _zeros(avals: Any) -> Any:
    return jax.tree.map(lambda aval: instantiate(zero_of(aval)), avals)


def custom_gradient(fun: Callable[..., Any]) -> Any:
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
    return CustomGradient(fun)
