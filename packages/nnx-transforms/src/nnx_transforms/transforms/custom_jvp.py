"""`custom_jvp`: functions of live objects with a rule for their differential."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from nnx_transforms.transforms.argument_states import Arguments, instantiate, zero_of
from nnx_transforms.transforms.lifting import Callee, is_object
from nnx_transforms.transforms.rule_arguments import (
    RuleCall,
    divide_argnums,
    positions_of_names,
)
from nnx_transforms.transforms.rule_runs import (
    Runs,
    keep_metadata,
    named_like,
    released,
)


class CustomJVP:
    """A function with a custom differential; see `custom_jvp`.

    Args:
        fun: The function.
        nondiff_argnums: As for `custom_jvp`.
        nondiff_argnames: Likewise.
    """

    def __init__(
        self,
        fun: Callable[..., Any],
        nondiff_argnums: Sequence[int],
        nondiff_argnames: Sequence[str],
    ) -> None:
        keep_metadata(self, fun)
        self._name = Callee(fun).name
        self._rule: Callable[..., Any] | None = None
        self._symbolic_zeros = False
        name = self._name
        argnums = [*nondiff_argnums, *positions_of_names(fun, name, nondiff_argnames)]
        self._nondiff, filters = divide_argnums(argnums, name)
        if filters:
            raise TypeError(
                f"nondiff_argnums of {name!r} holds {next(iter(filters.values()))!r}: "
                "`custom_jvp` takes integers. A rule may ignore tangents."
            )

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def defjvp(
        self, rule: Callable[..., Any], symbolic_zeros: bool = False
    ) -> Callable[..., Any]:
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
        self._rule = rule
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
            out = self(*primals)
            parts = [
                rule(tangent, out, *primals)
                for rule, tangent in zip(rules, tangents, strict=True)
                if rule is not None
            ]
            if not parts:
                parts = [jax.tree.map(_zero_like, out, is_leaf=is_object)]
            return out, functools.reduce(
                lambda a, b: jax.tree.map(_add, a, b), parts[1:], parts[0]
            )

        self.defjvp(named_like(self, rule))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function.

        Args:
            *args: Its arguments: any pytrees with objects in them.
            **kwargs: Likewise, resolved to positions.

        Returns:
            What it returns.

        Raises:
            AttributeError: If no rule was defined.
            TypeError: If an argument that is not differentiated holds a graph node.
        """
        name = self._name
        if self._rule is None:
            raise AttributeError(
                f"The custom_jvp function {name!r} has no rule: define it with "
                f"`@{name}.defjvp` before it is called."
            )
        fun: Callable[..., Any] = self.__wrapped__  # type: ignore[attr-defined]
        # Anew at each call: whether the object that a method is bound to takes part
        # depends on the running trace.
        callee, rule = Callee(fun), Callee(self._rule)
        hidden = (*callee.bound, *rule.bound)
        rule_call = RuleCall.of(fun, name, args, kwargs, self._nondiff, hidden)
        runs = Runs(rule_call.arguments, name)
        primal = _primal(released(callee), rule_call.arguments, self._nondiff, runs)
        f: Any = jax.custom_jvp(
            named_like(fun, primal), nondiff_argnums=tuple(self._nondiff)
        )
        first = len(callee.bound)
        pure = _rule(
            released(rule), first, name, rule_call.arguments, runs, self._symbolic_zeros
        )
        # Only with symbolic zeros can a rule say that updates have no tangent.
        symbolic = self._symbolic_zeros or rule_call.arguments.has_objects
        f.defjvp(named_like(self._rule, pure), symbolic_zeros=symbolic)
        values, tree = f(*rule_call.pure_args)
        assert runs.outcome is not None
        return rule_call.inputs.publish(runs.outcome, values, tree)


def _primal(
    callee: Callee, arguments: Arguments, nondiff: Sequence[int], runs: Runs
) -> Callable[..., Any]:
    def primal(*args: Any) -> Any:
        inside, inner = arguments.enter_call(args, nondiff)
        function = arguments.bind(callee, inside)
        return runs.leave(inside, function(*inner), "the function")

    return primal


def _rule(
    callee: Callee,
    first: int,
    name: str,
    arguments: Arguments,
    runs: Runs,
    symbolic: bool,
) -> Callable[..., Any]:
    def rule(*args: Any) -> Any:
        *nondiff, primals, tangents = args
        if not symbolic:
            tangents = jax.tree.map(instantiate, tangents)
        # As `__call__` tells JAX.
        may_be_symbolic = symbolic or arguments.has_objects
        values, value_tangents = (), ()
        if arguments.has_objects:
            *primals, values = primals
            *tangents, value_tangents = tangents
        inside, inner = arguments.enter(values, tuple(primals))
        states = arguments.states(lambda p: value_tangents[p], only=arguments.inexact)
        function = arguments.bind(callee, inside, first)
        pair = function(*nondiff, inner, arguments.with_states(tangents, states))
        where = f"The rule {callee.name!r} of {name!r}"
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise TypeError(
                f"{where} must return a pair (out, out_tangent), but returned {pair!r}."
            )
        out, out_tangent = pair
        written, tree = runs.leave(inside, out, "the rule")
        tangent_tree, new = runs.take_out_states(
            out_tangent, f"The tangent that {where[0].lower()}{where[1:]} returned"
        )
        # Updates carry no tangent; what is returned in a new object does.
        of_written = [
            new[place]
            if place in new
            else jax.tree.map(
                _symbolic_zero_like if may_be_symbolic else _zero_like, value
            )
            for place, value in enumerate(written)
        ]
        return (written, tree), (of_written, tangent_tree)

    return rule


def _symbolic_zero_like(x: Any) -> Any:
    return zero_of(jax.typeof(x))


def _zero_like(x: Any) -> Any:
    return None if is_object(x) else instantiate(_symbolic_zero_like(x))


def _add(a: Any, b: Any) -> Any:
    if getattr(a, "dtype", None) == jax.dtypes.float0:
        return a
    return jnp.add(instantiate(a), instantiate(b))


def custom_jvp(
    fun: Callable[..., Any] | None = None,
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
    argnums = (
        [nondiff_argnums] if isinstance(nondiff_argnums, int) else list(nondiff_argnums)
    )
    if fun is None:
        return lambda f: CustomJVP(f, argnums, nondiff_argnames)
    return CustomJVP(fun, argnums, nondiff_argnames)
