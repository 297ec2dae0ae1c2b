"""`closure_convert`: what a function captures becomes an argument."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import jax

from graphcore import api_boundary, diff, is_variable, iter_graph
from graphcore.authors import (
    Callee,
    Divided,
    captured_objects,
    enter,
    raw_value_of,
    take_objects,
    variable_impl,
)
from nnx_transforms.transforms.derivatives.rule_call import named_like
from nnx_transforms.transforms.loops.agreement import failure

__all__ = ["closure_convert"]

R = TypeVar("R")


@contextmanager
def _values_for(variables: Sequence[Any], values: Sequence[Any]) -> Iterator[None]:
    """Lets variables hold other values for a while.

    This is how the variables that a function captures become arguments: it cannot be
    given others. It must not write them; they belong to another trace, so it can't.
    """
    with ExitStack() as undo:
        for variable, value in zip(variables, values, strict=True):
            impl = variable_impl(type(variable))
            undo.callback(impl.set_value, variable, impl.get_value(variable))
            impl.set_value(variable, value)
        yield


def _converted(*args: Any) -> None:
    """What the arguments of converted functions enter."""


@api_boundary
def closure_convert(
    fun: Callable[..., R], *example_args: Any
) -> tuple[Callable[..., R], list[Any]]:
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
    # JAX's caches keep the functions that were traced, and what these refer to. So it
    # gets one that is made to refer to nothing after its trace.
    captured = [x for _, x in iter_graph(captured_objects(fun)) if is_variable(x)]
    parts: list[tuple[Any, list[Any]]] = [(fun, captured)]

    def run(*args: Any) -> Any:
        return parts[0][0](*args)

    name = run.__name__ = run.__qualname__ = Callee(fun).name
    entry = enter(run, example_args)
    body, due = entry.body, entry.joint.definitions
    raw = Divided.of_values([*map(raw_value_of, captured)])
    leaves, of_values = jax.tree.flatten(raw)

    def pure(captured_leaves: Any, *args: Any) -> Any:
        values = Divided.map(Divided.join, of_values.unflatten(captured_leaves))
        with _values_for(parts[0][1], values):
            return body(*args)

    count, structure = len(example_args), take_objects(example_args)[1]
    try:
        with entry.blaming():
            if not captured:
                on_values, hoisted = jax.closure_convert(body, *entry.values)
            else:
                on_values, hoisted = _hoist(named_like(fun, pure), leaves, entry.values)
    finally:
        parts.clear()

    @api_boundary
    def converted(*args_and_hoisted: Any) -> Any:
        args, hoisted = args_and_hoisted[:count], args_and_hoisted[count:]
        entry = enter(_converted, args)
        found = entry.joint.definitions
        if found != due or take_objects(args)[1] != structure:
            pairs = zip(due, found, strict=False)
            lines = [str(d) for a, b in pairs if a != b for d in diff(a, b)]
            if len(due) != len(found):
                lines = [f"objects: {len(due)} -> {len(found)}"]
            raise failure(
                TypeError,
                f"The converted {name!r} was called with arguments of another "
                "structure than the example arguments that it was converted for.",
                lines,
            )
        return entry.commit(*on_values(*entry.values, *hoisted))

    converted.__name__ = name
    return converted, hoisted


def _hoist(
    pure: Callable[..., Any], captured: list[Any], examples: Sequence[Any]
) -> tuple[Callable[..., Any], list[Any]]:
    """Converts a function, and hoists those of the captured values that it reads."""
    converted, hoisted = jax.closure_convert(pure, captured, *examples)
    jaxpr = jax.make_jaxpr(converted)(captured, *examples, *hoisted).jaxpr
    read = {id(v) for equation in jaxpr.eqns for v in equation.invars}
    read |= {id(v) for v in jaxpr.outvars}
    is_read = [id(v) in read for v in jaxpr.invars[: len(captured)]]
    chosen = [leaf for leaf, r in zip(captured, is_read, strict=True) if r]
    count, end = len(examples), len(examples) + len(chosen)

    def with_hoisted(*args: Any) -> Any:
        due, found = len(chosen) + len(hoisted), len(args) - count
        if found != due:
            raise TypeError(
                f"The converted function takes {due} hoisted values behind its "
                f"arguments, got {found}: give those that `closure_convert` returned."
            )
        given = iter(args[count:end])
        # What is not read may be anything, and is not kept for this.
        leaves = [next(given) if r else 0.0 for r in is_read]
        return converted(leaves, *args[:count], *args[end:])

    return with_hoisted, [*chosen, *hoisted]
