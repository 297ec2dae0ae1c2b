"""`custom_vjp`: functions of live objects with a derivative rule of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast, overload

import jax

from graphcore import Static, from_tree, to_tree
from graphcore.authors import Callee, Divided
from nnx_transforms.prefixes import DiffState
from nnx_transforms.transforms.decorators import LATER, optional_function
from nnx_transforms.transforms.derivatives.key_data import keys_from_data, keys_to_data
from nnx_transforms.transforms.derivatives.pairs import pair_of
from nnx_transforms.transforms.derivatives.rule_call import RuleCall, named_like, unwrap
from nnx_transforms.transforms.derivatives.rule_function import RuleFunction
from nnx_transforms.transforms.derivatives.zeros import zero_of, zeros_like
from nnx_transforms.transforms.types import P, R, Rest, WithOptions


class CustomVJP(RuleFunction[P, R]):
    """A function with a custom derivative for reverse mode; see `custom_vjp`.

    Args:
        input_updates: As for `custom_vjp`.
        as_objects: Likewise.
        **more: The arguments of `RuleFunction`.
    """

    _defined_by = "defvjp(fwd, bwd)"

    def __init__(self, *, input_updates: bool, as_objects: bool, **more: Any) -> None:
        super().__init__(**more)
        self._input_updates = input_updates and not as_objects
        self._as_objects = as_objects

    def defvjp(
        self,
        fwd: Callable[..., Any],
        bwd: Callable[..., Any],
        symbolic_zeros: bool = False,
        **more: Any,
    ) -> None:
        """Defines the rules of the derivative.

        Args:
            fwd: `fwd(*args) -> (out, residuals)`, with live objects among arguments
                and residuals. What it does to the objects is published, as is what
                the function itself does where no derivative is taken.
            bwd: `bwd(*nondiff, residuals, g)` returns one tangent for each argument
                that is not named by an integer in `nondiff_argnums`: a `State` for a
                graph node, or a node like it, a pytree or None otherwise. `g` is
                `(input_updates_g, out_g)`, or `out_g` alone; see `custom_vjp`. Objects
                in the residuals are copies of what they were in `fwd`: the rule may
                compute with them again, and what it writes to them is dropped. So draw
                random keys in `fwd`; here each call would draw the same.
            symbolic_zeros: Whether to tell the rules what is not differentiated.
                Arrays then come to `fwd` as `jax.custom_derivatives.CustomVJPPrimal`,
                and in an object the `raw_value` of each differentiable variable is
                one: to run it, set its `value` in the place of each. Cotangents may be
                `jax.custom_derivatives.SymbolicZero`.
            **more: Further arguments that the installed `jax.custom_vjp.defvjp` takes.

        Example:
            >>> import nnx_transforms as nnx, jax
            >>> @nnx.custom_vjp(input_updates=False)
            ... def f(x):
            ...     return x ** 2
            >>> f.defvjp(lambda x: (x ** 2, x), lambda x, g: (g * 10,))
            >>> float(jax.grad(f)(3.0))
            10.0
        """
        self._rules, self._backward = (fwd,), bwd
        self._options = {"symbolic_zeros": symbolic_zeros, **more}
        self._with_logs = False

    def defvjp_with_logs(
        self,
        fwd: Callable[..., Any],
        bwd: Callable[..., Any],
        symbolic_zeros: bool = False,
        **more: Any,
    ) -> None:
        """Defines the rules of the derivative, of which the backward one also logs.

        Args:
            fwd: As for `defvjp`.
            bwd: As for `defvjp`, but it returns `(tangents, logs)`, with a dict of
                named pytrees or None: what `vjp_fun.with_logs` of `vjp` gives beside
                the cotangents, and what is dropped otherwise.
            symbolic_zeros: As for `defvjp`.
            **more: Likewise.

        Raises:
            AttributeError: Before JAX 0.12, when the function is called.

        Example:
            >>> import nnx_transforms as nnx, jax
            >>> @nnx.custom_vjp(input_updates=False)
            ... def f(x):
            ...     return x ** 2
            >>> def bwd(x, g):
            ...     return (g * 2 * x,), {"g": g}
            >>> if hasattr(jax.custom_vjp, "defvjp_with_logs"):  # from JAX 0.12 on
            ...     f.defvjp_with_logs(lambda x: (x ** 2, x), bwd)
            ...     _, vjp_fun = nnx.vjp(f, 3.0)
            ...     _, logs = vjp_fun.with_logs(7.0)
            ...     assert logs["g"] == 7.0
        """
        self.defvjp(fwd, bwd, symbolic_zeros, **more)
        self._with_logs = True

    def _define(self, call: RuleCall, fun: Any, *rules: Any) -> Callable[..., Any]:
        (fwd,), bwd = rules, self._backward
        input_updates, with_logs = self._input_updates, self._with_logs
        make_zero = zero_of if self._options["symbolic_zeros"] else zeros_like

        def forward(*args: Any) -> Any:
            inside, rule, inner = call.enter(1, args)
            passed = to_tree([inner[n] for n in call.passed])
            out, residuals = pair_of(
                rule(*inner),
                f"The forward rule {Callee(fwd).name!r} of {call.name!r}",
                "(out, residuals)",
            )
            left = call.leave(inside, out, "the forward rule")
            # As a list, since JAX asks for the path of each leaf of a pytree.
            pure = Divided.within((to_tree(residuals), passed))[0]
            saved, structure = jax.tree.flatten(pure)
            if call.has_objects:
                saved = unwrap(saved)
            saved, kinds = keys_to_data(saved)
            return left, (saved, Static((structure, kinds)))

        def backward(*args: Any) -> Any:
            *nondiff, (saved, how), (values_g, tree_g) = args
            structure, kinds = how.value
            tree = jax.tree.unflatten(structure, keys_from_data(saved, kinds))
            zeros: list[Any] = []

            def zero(number: int) -> Any:
                tree = jax.tree.map(make_zero, call.avals[number])
                zeros.extend(jax.tree.leaves(tree))
                return tree

            value = call.values(values_g, zero)
            tree_g = Divided.map(Divided.bare, tree_g)
            g = call.out_states(tree_g, value, with_old=not input_updates)
            if input_updates:
                g = call.update_states(value), g
            residuals, passed = map(from_tree, Divided.map(Divided.join, tree))
            known = dict(
                zip((*call.nondiff, *call.passed), (*nondiff, *passed), strict=True)
            )
            tangents = bwd(*(known[n] for n in sorted(known)), residuals, g)
            rule = f"The backward rule {Callee(bwd).name!r} of {call.name!r}"
            logs = None
            if with_logs:
                tangents, logs = pair_of(tangents, rule, "(tangents, logs)")
            taken = call.take_tangents(tangents, rule)
            # Zeros that come back are none that anything need be added to.
            made = set(map(id, zeros))
            taken = jax.tree.map(lambda x: None if id(x) in made else x, taken)
            return (taken, logs) if with_logs else taken

        f = jax.custom_vjp(
            named_like(fun, call.primal), nondiff_argnums=tuple(call.nondiff)
        )
        define = getattr(f, "defvjp_with_logs" if with_logs else "defvjp")
        define(named_like(fwd, forward), named_like(bwd, backward), **self._options)
        return f


class MakesCustomVJP(Protocol[P]):
    """`custom_vjp`, with options `P`."""

    @overload
    def __call__(
        self, fun: Callable[Rest, R], /, *args: P.args, **options: P.kwargs
    ) -> CustomVJP[Rest, R]: ...
    @overload
    def __call__(
        self, *args: P.args, **options: P.kwargs
    ) -> Callable[[Callable[Rest, R]], CustomVJP[Rest, R]]: ...


def _optional(transform: WithOptions[P]) -> MakesCustomVJP[P]:
    return cast("MakesCustomVJP[P]", optional_function(transform))


@_optional
def custom_vjp(
    fun: Callable[..., Any] = LATER,
    nondiff_argnums: int | DiffState | Sequence[int | DiffState] = (),
    nondiff_argnames: Sequence[str] = (),
    *,
    input_updates: bool = True,
    as_objects: bool = False,
) -> Any:
    """Gives a function of live objects a derivative rule for reverse mode.

    The rules are defined with `.defvjp(fwd, bwd, symbolic_zeros=False)`. The function
    may write to its arguments, so their updated states are outputs, too, and have
    cotangents: `bwd` is given `g = (input_updates_g, out_g)`. `input_updates_g` has
    one entry for each differentiable argument: None for what is no graph node, else a
    `State` that holds every variable of the node. It serves as the template for the
    tangent, which may leave out what a `DiffState` does not select. Where the output
    has graph nodes that are new, `out_g` has a `State`.

    JAX decides whether the function or `fwd` runs, and the updates of the one that
    runs are published. Where a call is traced first and differentiated later, as in
    the gradient of a compiled function, `fwd` must write no more than the function.

    An object that the function is bound to takes part, but the function can't be
    differentiated by it: let it be an argument for that. A method may be decorated in
    its class; `self` is then the first argument.

    Args:
        fun: The function. Left out, `custom_vjp` returns a decorator.
        nondiff_argnums: Integers: positions of arguments, without graph nodes, that
            are passed on to `bwd`, first. `DiffState(argnum, filter)`s: what is
            differentiable in an argument with graph nodes; everything by default.
        nondiff_argnames: As in `jax.custom_vjp`.
        input_updates: Whether `g` has the cotangents of the updated arguments. If
            not, `g` is `out_g` alone, as in `jax.custom_vjp`.
        as_objects: Whether an object in the output has an object in `out_g`; then `g`
            is `out_g` alone, and an integer in `nondiff_argnums` may name an argument
            with graph nodes, which `bwd` is given as the call was. Flax's
            `graph_updates=False` and `graph=False` ask for that.

    Returns:
        A callable with `.defvjp` and, from JAX 0.12 on, `.defvjp_with_logs`.

    Raises:
        ValueError: If `nondiff_argnums` names an argument twice; in a derivative, if a
            tangent has another structure or shape than is due, with the argument.
        TypeError: If `nondiff_argnums` holds anything else, or its integers name an
            argument with graph nodes; in a derivative, if a tangent is of the wrong
            kind, with the argument.
        AttributeError: At a call, if no rules were defined.

    Example:
        >>> import nnx_transforms as nnx, jax, jax.numpy as jnp
        >>> @nnx.custom_vjp
        ... def clipped(model, x):
        ...     return model.w.value * x
        >>> def fwd(model, x):
        ...     return clipped(model, x), x
        >>> def bwd(x, g):
        ...     (model_g, _), out_g = g
        ...     model_g['w'].value = jnp.clip(out_g * x, -1.0, 1.0)
        ...     return model_g, None
        >>> clipped.defvjp(fwd, bwd)
        >>> graphdef, state = nnx.split(nnx.Dict(w=nnx.Param(jnp.array(2.0))))
        >>> g = jax.grad(lambda s: clipped(nnx.merge(graphdef, s), 5.0))(state)
        >>> float(g['w'].value)
        1.0
    """
    return CustomVJP(**locals())
