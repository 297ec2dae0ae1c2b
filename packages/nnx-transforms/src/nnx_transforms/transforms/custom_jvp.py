"""`custom_jvp`: functions of live objects with a rule for their differential."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar, cast, overload

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from graphcore.authors import Callee, is_object
from nnx_transforms.transforms.decorators import LATER, optional_function
from nnx_transforms.transforms.derivatives.pairs import pair_of
from nnx_transforms.transforms.derivatives.rule_call import RuleCall, named_like
from nnx_transforms.transforms.derivatives.rule_function import RuleFunction
from nnx_transforms.transforms.derivatives.tangents import to_states
from nnx_transforms.transforms.derivatives.zeros import instantiate
from nnx_transforms.transforms.types import P, R, Rest, WithOptions

F = TypeVar("F", bound=Callable[..., Any])


class CustomJVP(RuleFunction[P, R]):
    """A function with a custom differential; see `custom_jvp`."""

    _defined_by = "defjvp(rule)"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        for chosen in self._filters.values():
            raise TypeError(
                f"nondiff_argnums of {self._name!r} holds {chosen!r}: `custom_jvp` "
                "takes integers. A rule may ignore tangents."
            )

    def defjvp(self, rule: F, symbolic_zeros: bool = False) -> F:
        """Defines the rule.

        Args:
            rule: `rule(*nondiff, primals, tangents) -> (out, out_tangent)`. The
                primals are the arguments, with live objects. The tangent of a graph
                node is a `State` over its inexact variables. A new graph node in
                `out` has a `State`, or None for zero, in `out_tangent`.
            symbolic_zeros: Whether tangents that are zero come as
                `jax.custom_derivatives.SymbolicZero`.

        Returns:
            The rule, so that this is a decorator.

        Example:
            >>> import nnx_transforms as nnx, jax
            >>> @nnx.custom_jvp
            ... def f(x):
            ...     return x ** 2
            >>> @f.defjvp
            ... def f_jvp(primals, tangents):
            ...     return f(*primals), 10 * tangents[0]
            >>> float(jax.jvp(f, (3.0,), (1.0,))[1])
            10.0
        """
        self._rules = (rule,)
        self._symbolic_zeros = symbolic_zeros
        return rule

    def defjvps(self, *rules: Callable[..., Any] | None) -> None:
        """Defines a rule for each argument; the tangents that they return are summed.

        Args:
            *rules: `rule(tangent, out, *primals) -> out_tangent`, or None for zero.

        Raises:
            TypeError: If there are arguments that are not differentiated.

        Example:
            >>> import nnx_transforms as nnx, jax
            >>> @nnx.custom_jvp
            ... def f(x, y):
            ...     return x * y
            >>> f.defjvps(lambda t, out, x, y: 10 * t, None)
            >>> [float(g) for g in jax.grad(f, argnums=(0, 1))(3.0, 2.0)]
            [10.0, 0.0]
        """
        name = self._name
        if self._nondiff:
            raise TypeError(
                f"defjvps of {name!r} takes one rule for each argument, but there are "
                "nondiff_argnums: define one rule with `defjvp`."
            )

        def rule(primals: Any, tangents: Any) -> Any:
            if len(rules) != len(primals):
                raise ValueError(
                    f"defjvps of {name!r} was given {len(rules)} rules for "
                    f"{len(primals)} arguments: give one, or None, for each."
                )
            out = self(*primals)  # type: ignore[call-arg]
            parts = [
                rule(tangent, out, *primals)
                for rule, tangent in zip(rules, tangents, strict=True)
                if rule is not None
            ]
            if not parts:
                parts = [jax.tree.map(_zero_like, out, is_leaf=is_object)]
            return out, functools.reduce(functools.partial(jax.tree.map, _add), parts)

        self.defjvp(named_like(self, rule))

    def _define(self, call: RuleCall, fun: Any, *rules: Any) -> Callable[..., Any]:
        (rule,) = rules
        nondiff = tuple(self._nondiff)
        # Only with symbolic zeros can a rule say that updates have no tangent.
        may_be_symbolic = self._symbolic_zeros or call.has_objects
        zero_like = SymbolicZero.from_primal_value if may_be_symbolic else _zero_like
        make = (lambda x: x) if self._symbolic_zeros else instantiate

        def pure_rule(*args: Any) -> Any:
            *given, primals, tangents = args
            if call.has_objects:
                tangents = tangents[:-1]
            diff, rest = iter(primals), iter(given)
            count = len(primals) + len(given)
            whole = [next(rest if i in nondiff else diff) for i in range(count)]
            inside, function, inner = call.enter(1, whole)
            chosen = tuple(x for i, x in enumerate(inner) if i not in nondiff)
            dots = to_states(jax.tree.map(make, tuple(tangents)))
            where = f"he rule {Callee(rule).name!r} of {call.name!r}"
            out, out_tangent = pair_of(
                function(*given, chosen, dots), f"T{where}", "(out, out_tangent)"
            )
            written, tree = call.leave(inside, out, "the rule")
            tangent_tree, new = call.take_out(
                out_tangent, tree, f"The tangent that t{where} returned holds"
            )
            # Updates carry no tangent; what is returned in a new object does.
            of_written = [
                new[place] if place in new else jax.tree.map(zero_like, value)
                for place, value in enumerate(written)
            ]
            return (written, tree), (of_written, tangent_tree)

        f: Any = jax.custom_jvp(named_like(fun, call.primal), nondiff_argnums=nondiff)
        f.defjvp(named_like(rule, pure_rule), symbolic_zeros=may_be_symbolic)
        return f  # type: ignore[no-any-return]


def _zero_like(x: Any) -> Any:
    return None if is_object(x) else instantiate(SymbolicZero.from_primal_value(x))


def _add(a: Any, b: Any) -> Any:
    if getattr(a, "dtype", None) == jax.dtypes.float0:
        return a
    return jnp.add(instantiate(a), instantiate(b))


class MakesCustomJVP(Protocol[P]):
    """`custom_jvp`, with options `P`."""

    @overload
    def __call__(
        self, fun: Callable[Rest, R], /, *args: P.args, **options: P.kwargs
    ) -> CustomJVP[Rest, R]: ...
    @overload
    def __call__(
        self, *args: P.args, **options: P.kwargs
    ) -> Callable[[Callable[Rest, R]], CustomJVP[Rest, R]]: ...


def _optional(transform: WithOptions[P]) -> MakesCustomJVP[P]:
    return cast("MakesCustomJVP[P]", optional_function(transform))


@_optional
def custom_jvp(
    fun: Callable[..., Any] = LATER,
    nondiff_argnums: int | Sequence[int] = (),
    nondiff_argnames: Sequence[str] = (),
) -> Any:
    """Gives a function of live objects a rule for its differential.

    The rule is defined with `.defjvp(rule, symbolic_zeros=False)`, or one rule for each
    argument with `.defjvps(*rules)`. Both modes of differentiation use it. Updates
    that the rule makes are published where it runs in the place of the function; they
    carry no tangent. Where a call is traced first and differentiated later, the rule
    must write no more than the function.

    An object that the function is bound to takes part, but the function can't be
    differentiated by it: let it be an argument for that. A method may be decorated in
    its class; `self` is then the first argument.

    Args:
        fun: The function. Left out, `custom_jvp` returns a decorator.
        nondiff_argnums: Positions of arguments, without graph nodes, that are passed
            on to the rule, first.
        nondiff_argnames: As in `jax.custom_jvp`.

    Returns:
        A callable with `.defjvp` and `.defjvps`.

    Raises:
        ValueError: If `nondiff_argnums` names an argument twice.
        TypeError: If it holds what is no integer, or names an argument with graph
            nodes; in a derivative, if a tangent has another structure than is due.
        AttributeError: At a call, if no rule was defined.

    Example:
        >>> import nnx_transforms as nnx, jax, jax.numpy as jnp
        >>> @nnx.custom_jvp
        ... def scale(model, x):
        ...     return model.w.value * x
        >>> @scale.defjvp
        ... def scale_jvp(primals, tangents):
        ...     (model, x), (model_t, x_t) = primals, tangents
        ...     return scale(model, x), 10 * model_t['w'].value * x
        >>> model = nnx.Dict(w=nnx.Param(jnp.array(2.0)))
        >>> graphdef, state = nnx.split(model)
        >>> g = jax.grad(lambda s: scale(nnx.merge(graphdef, s), 5.0))(state)
        >>> float(g['w'].value)
        50.0
    """
    return CustomJVP(fun, nondiff_argnums, nondiff_argnames)
