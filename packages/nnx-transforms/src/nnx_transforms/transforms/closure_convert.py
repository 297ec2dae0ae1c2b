"""`closure_convert`: what a function captures becomes an argument."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax

from graphcore.comparison import definition_differences
from graphcore.joint import joint_of
from graphcore.variable_impl import variable_impl
from nnx_transforms.transforms.argument_states import Arguments
from nnx_transforms.transforms.captures import captured_objects
from nnx_transforms.transforms.lifting import Callee, take
from nnx_transforms.transforms.rule_runs import Runs, named_like


@contextmanager
def _values_for(variables: Sequence[Any], values: Sequence[Any]) -> Iterator[None]:
    """Lets variables hold other values for a while.

    This is how the variables that a function captures become arguments: it cannot be
    given others. It must not write them; they belong to another trace, so it can't.
    """
    impls = [variable_impl(type(variable)) for variable in variables]
    pairs = list(zip(variables, impls, strict=True))
    before = [impl.get_value(variable) for variable, impl in pairs]
    try:
        for (variable, impl), value in zip(pairs, values, strict=True):
            impl.set_value(variable, value)
        yield
    finally:
        for (variable, impl), value in zip(pairs, before, strict=True):
            impl.set_value(variable, value)


class _Converted:
    """A function whose captured values are arguments.

    Args:
        name: What the function is called.
        pure: The function of values: of the arguments without objects, the values of
            their variables if there are any, then the hoisted values.
        arguments: The example arguments.
        runs: What the function does to them.
    """

    def __init__(
        self,
        name: str,
        pure: Callable[..., Any],
        arguments: Arguments,
        runs: Runs,
    ) -> None:
        self.__name__ = name
        self._pure = pure
        self._arguments = arguments
        self._runs = runs

    def __call__(self, *args_and_hoisted: Any) -> Any:
        """Calls the function.

        Args:
            *args_and_hoisted: Arguments like the examples, then the hoisted values.

        Returns:
            What the function returns.

        Raises:
            TypeError: If the arguments have another structure than the examples.
        """
        count = self._arguments.count
        args, hoisted = args_and_hoisted[:count], args_and_hoisted[count:]
        inputs = take(args)
        found, due = inputs.joint.definitions, self._arguments.joint.definitions
        if found != due or inputs.skeleton != self._arguments.skeleton:
            raise TypeError(
                f"The converted {self.__name__!r} was called with arguments of another "
                "structure than the example arguments that it was converted for."
                + _differences(due, found)
            )
        values = [inputs.values()] if self._arguments.has_objects else []
        written, tree = self._pure(*inputs.plain, *values, *hoisted)
        assert self._runs.outcome is not None
        return inputs.publish(self._runs.outcome, written, tree)


def _differences(due: Sequence[Any], found: Sequence[Any]) -> str:
    if len(due) != len(found):
        return (
            f" There were {len(due)} objects in them, and now there are {len(found)}."
        )
    lines = [
        f"\n  {difference}"
        for a, b in zip(due, found, strict=True)
        if a != b
        for difference in definition_differences(a, b)
    ]
    return "".join(lines)


def closure_convert(
    fun: Callable[..., Any], *example_args: Any
) -> tuple[Callable[..., Any], list[Any]]:
    """Turns what a function of live objects captures into arguments.

    The values of the variables of all graph nodes that the function captures and reads
    are hoisted, be they traced or not; each conversion reads them anew. Of other
    captured values, `jax.closure_convert` decides which to hoist.

    Args:
        fun: A function that writes no object but those among its arguments.
        *example_args: Arguments of the kind that it will be called with: pytrees of
            arrays, or `jax.ShapeDtypeStruct`s, with objects in them. They are left
            alone.

    Returns:
        A function of the same arguments, followed by the hoisted values; and these.

    Raises:
        TraceContextError: If the function writes an object that it captures.
        TypeError: When the function is called with arguments of another structure than
            the examples.

    Example:
        >>> import nnx_transforms as nnx, jax, jax.numpy as jnp
        >>> model = nnx.Dict(w=nnx.Param(jnp.array(2.0)))
        >>> f, hoisted = nnx.closure_convert(lambda x: model.w.value * x, 3.0)
        >>> hoisted, float(f(3.0, *hoisted)), float(f(3.0, jnp.array(10.0)))
        ([Array(2., dtype=float32, weak_type=True)], 6.0, 30.0)
    """
    callee = Callee(fun)
    inputs = take(example_args)
    names = [f"argument {i}" for i in range(len(example_args))]
    arguments = Arguments(inputs, example_args, names)
    runs = Runs(arguments, callee.name)
    joint, plans = joint_of(captured_objects(fun))
    captured = joint.variables(plans)
    values = [inputs.values()] if arguments.has_objects else []
    examples = (*inputs.plain, *values)

    # JAX remembers what it traced, and what that refers to. It is given a function
    # that refers to nothing once it was traced.
    parts: list[tuple[Any, list[Any]]] = [(fun, captured)]

    def pure(captured_values: Any, *args: Any) -> Any:
        f, variables = parts[0]
        inside, inner = arguments.enter_call(args, ())
        with _values_for(variables, captured_values):
            return runs.leave(inside, f(*inner), "the function")

    def pure_without_captured(*args: Any) -> Any:
        return pure((), *args)

    try:
        if not captured:
            named_like(fun, pure_without_captured)
            converted, hoisted = jax.closure_convert(pure_without_captured, *examples)
        else:
            named_like(fun, pure)
            converted, hoisted = _hoist(pure, joint.values(plans), examples)
    finally:
        parts.clear()
    return _Converted(callee.name, converted, arguments, runs), hoisted


def _hoist(
    pure: Callable[..., Any], captured: list[Any], examples: tuple[Any, ...]
) -> tuple[Callable[..., Any], list[Any]]:
    """Converts a function, and hoists those of the captured values that it reads."""
    converted, hoisted = jax.closure_convert(pure, captured, *examples)
    leaves, structure = jax.tree.flatten(captured)
    jaxpr = jax.make_jaxpr(converted)(captured, *examples, *hoisted).jaxpr
    read = {id(v) for equation in jaxpr.eqns for v in equation.invars}
    read |= {id(v) for v in jaxpr.outvars}
    is_read = [id(v) in read for v in jaxpr.invars[: len(leaves)]]
    chosen = [leaf for leaf, r in zip(leaves, is_read, strict=True) if r]
    counts = len(examples), len(examples) + len(chosen)

    def with_hoisted(*args: Any) -> Any:
        given = iter(args[counts[0] : counts[1]])
        merged = [
            next(given) if r else leaf for leaf, r in zip(leaves, is_read, strict=True)
        ]
        whole = jax.tree.unflatten(structure, merged)
        return converted(whole, *args[: counts[0]], *args[counts[1] :])

    # The values that are not read leave no trace in what comes out of this.
    again, further = jax.closure_convert(with_hoisted, *examples, *chosen, *hoisted)
    return again, [*chosen, *hoisted, *further]
