"""`custom_vjp`: functions of live objects with a derivative rule of their own."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any

import jax

from graphcore.joint import Joint
from nnx_transforms.prefixes import DiffState
from nnx_transforms.transforms.argument_states import Arguments, instantiate, zero_of
from nnx_transforms.transforms.key_data import keys_from_data, keys_to_data
from nnx_transforms.transforms.lifting import Callee, Inside, Skeleton, take
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
    unwrap,
)


class _Residuals:
    """How the objects among residuals are built: static, so it travels with them."""

    def __init__(self, joint: Joint, skeleton: Skeleton) -> None:
        self.joint = joint
        self.skeleton = skeleton

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Residuals):
            return NotImplemented
        return (
            self.joint.definitions == other.joint.definitions
            and self.skeleton == other.skeleton
        )

    def __hash__(self) -> int:
        # Not the definitions: they may hold static values that are not hashable.
        return hash(self.skeleton.spots)


jax.tree_util.register_static(_Residuals)


class CustomVJP:
    """A function with a custom derivative for reverse mode; see `custom_vjp`.

    Args:
        fun: The function.
        nondiff_argnums: As for `custom_vjp`.
        nondiff_argnames: Likewise.
        input_updates: Likewise.
    """

    def __init__(
        self,
        fun: Callable[..., Any],
        nondiff_argnums: Sequence[int | DiffState],
        nondiff_argnames: Sequence[str],
        input_updates: bool,
    ) -> None:
        keep_metadata(self, fun)
        self._name = Callee(fun).name
        self._input_updates = input_updates
        self._rules: tuple[Callable[..., Any], Callable[..., Any]] | None = None
        self._options: dict[str, Any] = {}
        positions = [
            *nondiff_argnums,
            *positions_of_names(fun, self._name, nondiff_argnames),
        ]
        self._nondiff, self._filters = divide_argnums(positions, self._name)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

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
                graph node, a pytree or None otherwise. `g` is `(input_updates_g,
                out_g)`, or `out_g` alone; see `custom_vjp`.
            symbolic_zeros: Whether to tell the rules what is not differentiated.
                Arrays then come to `fwd` as `jax.custom_derivatives.CustomVJPPrimal`,
                and in an object the `raw_value` of each differentiable variable is
                one; cotangents may be `jax.custom_derivatives.SymbolicZero`.
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
        self._rules = fwd, bwd
        self._options = {"symbolic_zeros": symbolic_zeros, **more}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function.

        Args:
            *args: Its arguments: any pytrees with objects in them.
            **kwargs: Likewise, resolved to positions.

        Returns:
            What it returns.

        Raises:
            AttributeError: If no rules were defined.
            TypeError: If an argument that is not differentiated holds a graph node.
        """
        name = self._name
        if self._rules is None:
            raise AttributeError(
                f"The custom_vjp function {name!r} has no rules: define them with "
                f"`{name}.defvjp(fwd, bwd)` before it is called."
            )
        fun: Callable[..., Any] = self.__wrapped__  # type: ignore[attr-defined]
        # Anew at each call: whether the object that a method is bound to takes part
        # depends on the running trace.
        callee = Callee(fun)
        fwd, bwd = self._rules
        forward = Callee(fwd)
        hidden = (*callee.bound, *forward.bound)
        rule_call = RuleCall.of(fun, name, args, kwargs, self._nondiff, hidden)
        inputs, arguments = rule_call.inputs, rule_call.arguments
        differentiable = rule_call.differentiable
        for argnum, chosen in self._filters.items():
            if argnum not in differentiable:
                raise IndexError(
                    f"nondiff_argnums of {name!r} holds {chosen!r}, but the call has "
                    f"{len(differentiable) + len(self._nondiff)} arguments."
                )
        selected = frozenset(
            position
            for position, variable in enumerate(inputs.variables)
            if position in arguments.inexact
            and self._selects(arguments, position, differentiable, variable)
        )
        call = _Call(
            name,
            (released(callee), released(forward), bwd),
            arguments,
            selected,
            tuple(self._nondiff),
            self._input_updates,
            bool(self._options["symbolic_zeros"]),
        )
        f = jax.custom_vjp(call.primal(fun), nondiff_argnums=tuple(self._nondiff))
        f.defvjp(call.forward(fwd), call.backward(bwd), **self._options)
        values, tree = f(*rule_call.pure_args)
        assert call.runs.outcome is not None
        return inputs.publish(call.runs.outcome, values, tree)

    def _selects(
        self,
        arguments: Arguments,
        position: int,
        differentiable: Sequence[int],
        variable: Any,
    ) -> bool:
        owner = arguments.owners[position]
        if owner is None:
            return False
        chosen = self._filters.get(differentiable[owner])
        path = arguments.joint.paths[position][1:]
        return chosen is None or bool(chosen.predicate(path, variable))


class _Call:
    """The rules of one call as pure functions; holds neither objects nor arrays.

    Args:
        name: What the function is called.
        functions: The function, the forward rule, and the backward rule.
        arguments: The arguments.
        selected: The positions of the differentiable variables.
        nondiff: The positions of the arguments that are passed on to `bwd`.
        input_updates: Whether `g` has the cotangents of the updated arguments.
        symbolic: Whether the rules are told of symbolic zeros.
    """

    def __init__(
        self,
        name: str,
        functions: tuple[Callee, Callee, Callable[..., Any]],
        arguments: Arguments,
        selected: frozenset[int],
        nondiff: tuple[int, ...],
        input_updates: bool,
        symbolic: bool,
    ) -> None:
        self._callee, self._forward, self._bwd = functions
        self._arguments = arguments
        self._selected = selected
        self._nondiff = nondiff
        self._input_updates = input_updates
        self._symbolic = symbolic
        self._name = name
        self.runs = Runs(arguments, name)

    def _enter(self, args: tuple[Any, ...]) -> tuple[Inside, tuple[Any, ...]]:
        """Builds the inner objects, and all of the function's arguments."""

        def shown(position: int, value: Any) -> Any:
            return value if position in self._selected else unwrap(value)

        return self._arguments.enter_call(args, self._nondiff, shown)

    def primal(self, like: Callable[..., Any]) -> Callable[..., Any]:
        """The function."""

        def primal(*args: Any) -> Any:
            inside, inner = self._enter(args)
            function = self._arguments.bind(self._callee, inside)
            return self.runs.leave(inside, function(*inner), "the function")

        return named_like(like, primal)

    def forward(self, like: Callable[..., Any]) -> Callable[..., Any]:
        """The forward rule."""

        def forward(*args: Any) -> Any:
            inside, inner = self._enter(args)
            hidden = len(self._callee.bound)
            rule = self._arguments.bind(self._forward, inside, hidden)
            pair = rule(*inner)
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise TypeError(
                    f"The forward rule {self._forward.name!r} of {self._name!r} must "
                    f"return a pair (out, residuals), but returned {pair!r}."
                )
            out, residuals = pair
            left = self.runs.leave(inside, out, "the forward rule")
            kept = take(residuals)
            how = _Residuals(kept.joint, kept.skeleton)
            saved = keys_to_data(unwrap(kept.values()))
            return left, (saved, kept.plain, how)

        return named_like(like, forward)

    def backward(self, like: Callable[..., Any]) -> Callable[..., Any]:
        """The backward rule."""

        def backward(*args: Any) -> Any:
            *nondiff, (values, plain, how), (values_g, tree_g) = args
            kept = Inside(how.joint, keys_from_data(values)).roots
            residuals = how.skeleton.fill(plain, kept)
            zeros: list[Any] = []

            def zero(position: int) -> Any:
                tree = jax.tree.map(zero_of, self._arguments.avals[position])
                if not self._symbolic:
                    tree = jax.tree.map(instantiate, tree)
                zeros.extend(jax.tree.leaves(tree))
                return tree

            value = self.runs.values(values_g, zero)
            if self._input_updates:
                new = self.runs.new_in_roots(values_g)
                updates = self._arguments.states(value, new=new)
                g = (updates, self.runs.out_states(tree_g, values_g, None))
            else:
                g = self.runs.out_states(tree_g, values_g, value)
            tangents = self._bwd(*nondiff, residuals, g)
            if not self._arguments.has_objects:
                return tangents  # JAX checks it
            rule = (
                f"The backward rule {getattr(self._bwd, '__name__', 'bwd')!r} of "
                f"{self._name!r}"
            )
            plain_tangents, of_variables = self._arguments.take_tangents(
                tangents, self._selected, rule, self.runs.new_paths()
            )
            # Zeros that come back are none that anything need be added to.
            known = set(map(id, zeros))
            of_variables = jax.tree.map(
                lambda x: None if id(x) in known else x, of_variables
            )
            return (*plain_tangents, of_variables)

        return named_like(like, backward)


def custom_vjp(
    fun: Callable[..., Any] | None = None,
    nondiff_argnums: int | DiffState | Sequence[int | DiffState] = (),
    nondiff_argnames: Sequence[str] = (),
    *,
    input_updates: bool = True,
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

    Returns:
        A callable with `.defvjp`.

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
    argnums: Sequence[int | DiffState] = (
        [nondiff_argnums]
        if isinstance(nondiff_argnums, int | DiffState)
        else list(nondiff_argnums)
    )
    if fun is None:
        return lambda f: CustomVJP(f, argnums, nondiff_argnames, input_updates)
    return CustomVJP(fun, argnums, nondiff_argnames, input_updates)
