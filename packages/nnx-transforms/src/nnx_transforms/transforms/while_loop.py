"""Loops over live objects.

What is carried holds the values of all variables; JAX passes by those that no iteration
changes. An iteration must leave the structure of the objects alone, which is checked
while it is traced.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import jax

from graphcore.authors import Body, Entry, Inside, Left, enter
from nnx_transforms.transforms.graph_mode import accepts_graph_mode
from nnx_transforms.transforms.loops.agreement import (
    check_unchanged,
    failure,
    merged_change,
    outline,
    type_differences,
    value_differences,
)
from nnx_transforms.transforms.loops.carried_anew import carrying
from nnx_transforms.transforms.loops.carry import check_carried_objects, objects_by_path
from nnx_transforms.transforms.loops.held import put_held, take_held, without_held
from nnx_transforms.transforms.loops.traced import TracedBody

__all__ = ["fori_loop", "while_loop"]

A = TypeVar("A")


@accepts_graph_mode
def while_loop(cond_fun: Any, body_fun: Any, init_val: A) -> A:
    """Repeats a function of live objects while a condition holds.

    Args:
        cond_fun: Called with the carry, returns a boolean scalar. It may only read.
        body_fun: Called with the carry, returns the next one: objects must come back
            in their places. What it writes to them goes on to the next iteration.
        init_val: The first carry, any pytree with objects in it.

    Returns:
        The last carry; objects in it are the caller's own.

    Raises:
        ValueError: If an iteration changes the structure of the objects or rewires
            their references, or `cond_fun` writes; with the paths.
        TypeError: If a shape or dtype changes, with the path; or as
            `jax.lax.while_loop` says.

    Example:
        >>> import nnx_transforms as nnx, jax.numpy as jnp
        >>> x = nnx.Variable(jnp.array(1))
        >>> def double(x):
        ...     x.value *= 2
        ...     return x
        >>> nnx.while_loop(lambda x: x.value < 100, double, x) is x, int(x.value)
        (True, 128)
    """
    out: A = _loop("while_loop", _while, (body_fun, cond_fun), (init_val,))
    return out


@accepts_graph_mode
def fori_loop(
    lower: Any,
    upper: Any,
    body_fun: Any,
    init_val: A,
    *,
    unroll: int | bool | None = None,
) -> A:
    """Repeats a function of live objects for each integer of a range.

    Args:
        lower: The first integer.
        upper: One beyond the last.
        body_fun: Called with the integer and the carry, returns the next carry:
            objects must come back in their places.
        init_val: The first carry, any pytree with objects in it.
        unroll: As for `jax.lax.fori_loop`.

    Returns:
        The last carry; objects in it are the caller's own.

    Raises:
        ValueError: If an iteration changes the structure of the objects or rewires
            their references, with the paths.
        TypeError: If a shape or dtype changes, with the path; or as
            `jax.lax.fori_loop` says.

    Example:
        >>> import nnx_transforms as nnx, jax.numpy as jnp
        >>> total = nnx.Variable(jnp.array(0))
        >>> def add(i, total):
        ...     total.value += i
        ...     return total
        >>> int(nnx.fori_loop(0, 5, add, total).value), int(total.value)
        (10, 10)
    """
    repeat = functools.partial(jax.lax.fori_loop, lower, upper, unroll=unroll)
    # Any integer stands for the first one; JAX gives each.
    out: A = _loop("fori_loop", repeat, (body_fun,), (0, init_val))
    return out


Path: TypeAlias = tuple[Any, ...]


def _loop(
    name: str,
    repeat: Callable[..., Any],
    functions: tuple[Any, ...],
    args: tuple[Any, ...],
) -> Any:
    """Runs a loop: over live objects if there are any, else JAX's own.

    Args:
        name: What users call it.
        repeat: Returns the last carry, given the pure functions and the first one.
        functions: That of one iteration, and further ones.
        args: The arguments of an iteration, the first carry last.

    Returns:
        The last carry.
    """

    def run(step: Any, *given: Any) -> Any:
        *asked, args = given
        make = _Iteration, *[_Condition] * len(asked)
        entry = enter((step, *asked), args, make=make, options=name)
        if entry.has_objects or not entry.is_kept:
            return _repeated(entry, repeat)
        return repeat(step, *asked, args[-1])

    if not all(map(callable, functions)):
        return repeat(*functions, args[-1])  # JAX says so.
    return carrying(run, functions, args, (len(args) - 1,))


def _while(step: Any, holds: Any, carry: Any) -> Any:
    if not isinstance(getattr(step, "func", None), _Iteration):
        return jax.lax.while_loop(holds, step, carry)

    # JAX would show a condition each `Ref` as it was before the loop.
    def asked(carry: Any) -> Any:
        return holds(carry), carry

    first = asked(carry)
    return jax.lax.while_loop(lambda c: c[0], lambda c: asked(step(c[1])), first)[1]


def _repeated(entry: Entry, repeat: Callable[..., Any]) -> Any:
    """Runs a pure loop, and publishes its last carry.

    Args:
        entry: The first iteration.
        repeat: As for `_loop`.

    Returns:
        The last carry, with objects.
    """
    body: _Iteration = entry.body
    *leading, carry = entry.args
    values, held = take_held(entry.raw)
    bodies = entry.bodies
    if held is not None:
        bodies = [functools.partial(body, held=held) for body in bodies]
    first = values, carry
    with entry.blaming():
        last = repeat(*bodies, first)
    carries = [first, jax.tree.map(_as_traced, first, last)]
    # Where no dtype changed, JAX traced once.
    if all(map(operator.is_, *map(jax.tree.leaves, carries))):
        del carries[0]
    changes = [
        body.change([put_held(values, held)], (*leading, carry))
        for values, carry in carries
    ]
    change = merged_change(body, changes)
    values, carry = put_held(last[0], held), last[1]
    return entry.commit([[values[p] for p in change.positions]], carry, change)


def _as_traced(first: Any, last: Any) -> Any:
    """A leaf of the type that JAX traced an iteration with.

    JAX traces with the type of the first carry, even a weak one, unless an iteration
    changes its dtype.
    """
    return first if jax.typeof(first).dtype == jax.typeof(last).dtype else last


class _Carried:
    """Names the carry, which is the last argument, in messages."""

    out_called = "carry"
    options: str

    def shown(self, path: Path) -> Path:
        if path == ("self",):
            return path
        is_index = self.options == "fori_loop" and path == (0,)
        return ("index" if is_index else "carry", *path[1:])


class _Iteration(_Carried, TracedBody):
    """One iteration, as JAX calls it: with the carry, and in front of it an integer."""

    def __call__(self, *args: Any, held: Any = None) -> Any:
        """Runs one iteration; returns the next carry."""
        *leading, (values, carry) = args
        return self.traced([put_held(values, held)], (*leading, carry))[:2]

    def call(self, inside: Inside, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        objects = objects_by_path(args[-1])
        out = super().call(inside, args, kwargs)
        check_carried_objects(objects, out)
        return out

    def leave(self, inside: Inside, out: Any) -> Left:
        left = super().leave(inside, out)
        check_unchanged(
            self,
            left.change,
            "Carry references must be the same between iterations, and so must the "
            "structure of what is carried. Make such changes before the loop. An "
            f"iteration of `{self.options}` changes (before -> after):",
        )
        return left

    def whole(self, groups: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        before = outline(args[-1])  # now: it may be of no use after the run
        values = self.ungrouped(groups)
        left = self.run(values, args, {})
        now = left.all_values(values)
        # JAX itself promotes weak types in the first carry, and then traces again.
        changed = value_differences(self, values, now, promotes=True)
        after = outline(left.out)
        changed += type_differences(("carry",), before, after, promotes=True)
        if changed:
            raise failure(
                TypeError,
                f"An iteration of `{self.options}` must keep shapes, dtypes and what "
                "is static. It changes (before -> after):",
                changed,
            )
        return without_held(now, values), left.out, left.change


class _Condition(_Carried, Body):
    """The condition, as JAX calls it."""

    def __call__(self, carry: Any, held: Any = None) -> Any:  # type: ignore[override]
        """Asks the condition; refuses what it writes."""
        return self.run(put_held(carry[0], held), (carry[1],), {}).out

    def leave(self, inside: Inside, out: Any) -> Left:
        left = super().leave(inside, None)
        message = (
            f"The condition of `{self.options}` may only read, since what it writes "
            "would be lost: write in the body. It changes"
        )
        check_unchanged(self, left.change, f"{message} (before -> after):")
        if left.written:
            places = [self.place(w.path) for w in left.written]
            raise failure(ValueError, f"{message}:", places)
        left.out = out  # JAX says what is wrong with an object.
        return left
