"""`linear_call`: a linear function of live objects, and its transpose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jax.custom_derivatives import linear_call as jax_linear_call

from graphcore.prefixes import AliasCheck
from nnx_transforms.transforms.argument_states import (
    Arguments,
    instantiate,
    zero_of,
)
from nnx_transforms.transforms.guards import on_tracers, without_tangents
from nnx_transforms.transforms.lifting import Callee, Inside, take
from nnx_transforms.transforms.rule_runs import Runs, named_like, released

_NAMES = ("residual_args", "linear_args")


class _Call:
    """The two functions of one call as pure ones; holds neither objects nor arrays.

    Args:
        callee: The function.
        transpose: Its transpose.
        arguments: The residual and the linear arguments.
    """

    def __init__(self, callee: Callee, transpose: Callee, arguments: Arguments) -> None:
        self._callee = callee
        self._transpose = transpose
        self._arguments = arguments
        self._linear = [
            p
            for p, owner in enumerate(arguments.owners)
            if owner == 1 and p in arguments.inexact
        ]
        self.runs = Runs(arguments, callee.name)

    def divide(self, values: Sequence[Any], plain: Any) -> tuple[Any, Any]:
        """Divides the arguments into those of JAX's function."""
        residual, linear = plain
        if not self._arguments.has_objects:
            return residual, linear
        rest = [v for p, v in enumerate(values) if p not in self._linear]
        return (residual, rest), (linear, [values[p] for p in self._linear])

    def _enter(self, residual: Any, linear: Any) -> tuple[Inside, Any]:
        if not self._arguments.has_objects:
            return self._arguments.enter((), (residual, linear))
        (residual, rest), (linear, values) = residual, linear
        of_linear, of_rest = iter(values), iter(rest)
        merged = [
            next(of_linear) if p in self._linear else next(of_rest)
            for p in range(len(self._arguments.avals))
        ]
        return self._arguments.enter(merged, (residual, linear))

    @property
    def _is_update(self) -> list[bool]:
        """Whether each written value belongs to an argument, and not to the output."""
        assert self.runs.outcome is not None
        in_roots = self.runs.places_in_roots()
        return [
            position is not None or place in in_roots
            for place, position in enumerate(self.runs.outcome.positions)
        ]

    def _run(self, residual: Any, linear: Any) -> tuple[list[Any], Any]:
        inside, inner = self._enter(residual, linear)
        function = self._arguments.bind(self._callee, inside)
        return self.runs.leave(inside, function(*inner), "the function")

    def primal(self, residual: Any, linear: Any) -> Any:
        """The function without its updates."""
        values, tree = self._run(residual, linear)
        pairs = zip(values, self._is_update, strict=True)
        return [value for value, is_update in pairs if not is_update], tree

    def updates(
        self, residual: Any, linear: Any, of_output: Sequence[Any]
    ) -> list[Any]:
        """The written values, those of the output as given.

        Updates need not be linear, so they are no output of the linear function. It
        runs once more for them.
        """
        if not any(self._is_update):
            return list(of_output)
        values, _ = self._run(residual, linear)
        rest = iter(of_output)
        return [
            value if is_update else next(rest)
            for value, is_update in zip(values, self._is_update, strict=True)
        ]

    def transposed(self, residual: Any, g: Any) -> Any:
        """The transpose."""
        values_g, tree_g = g
        of_output = iter(values_g)
        given = [None if u else next(of_output) for u in self._is_update]
        out_g = self.runs.out_states(tree_g, given, None)
        arguments = self._arguments
        # Nobody sees the linear arguments here: abstract values stand in for them.
        nothing = arguments.plain_avals(1), [None] * len(self._linear)
        linear = nothing if arguments.has_objects else None
        inside, (inner, _) = self._enter(residual, linear)
        function = arguments.bind(self._transpose, inside, len(self._callee.bound))
        tangent = function(inner, out_g)
        if not arguments.has_objects:
            return tangent  # JAX checks it
        values: list[Any] = [None] * len(arguments.avals)
        rule = f"The transpose {self._transpose.name!r} of {self._callee.name!r}"
        plain = arguments.take_tangent(1, tangent, set(self._linear), rule, values)
        return plain, [_filled(values[p], arguments.avals[p]) for p in self._linear]


def _filled(value: Any, avals: Any) -> Any:
    """A tangent with arrays in the place of None."""
    if value is None:
        return jax.tree.map(lambda aval: instantiate(zero_of(aval)), avals)
    return value


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


def _not_differentiable(name: str, what: str) -> TypeError:
    return TypeError(
        f"linear_call of {name!r} has no derivative with respect to {what}, for JAX "
        "knows only that the function is linear in linear_args: compute what depends "
        "on the residuals outside, or stop their gradient with "
        "`jax.lax.stop_gradient`."
    )


def linear_call(
    fun: Callable[..., Any],
    fun_transpose: Callable[..., Any],
    residual_args: Any,
    linear_args: Any,
) -> Any:
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
            graph node has a `State`.
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
    callee, transpose = Callee(fun), Callee(fun_transpose)
    args = (residual_args, linear_args)
    inputs = take(args, bound=(*callee.bound, *transpose.bound))
    aliases = AliasCheck()
    for path, x, _ in inputs.spots:
        name = _NAMES[path[0]]
        aliases.add((name, *path[1:]), x, name)
    arguments = Arguments(inputs, args, _NAMES)
    call = _Call(released(callee), released(transpose), arguments)
    residual, linear = call.divide(inputs.values(), inputs.plain)

    def primal(residual: Any, linear: Any) -> Any:
        return call.primal(residual, linear)

    def transposed(residual: Any, g: Any) -> Any:
        return call.transposed(residual, g)

    try:
        of_output, tree = jax_linear_call(
            named_like(fun, primal),
            named_like(fun_transpose, transposed),
            without_tangents(
                residual, lambda: _not_differentiable(callee.name, "residual_args")
            ),
            on_tracers(_together, linear, at_least=2),
        )
    except AssertionError as error:
        if call.runs.outcome is None:
            raise  # from the user's function
        # JAX asserts that no value that the function closes over has a tangent.
        raise _not_differentiable(
            callee.name, "what the function closes over"
        ) from error
    values = call.updates(residual, linear, of_output)
    assert call.runs.outcome is not None
    return inputs.publish(call.runs.outcome, values, tree)
