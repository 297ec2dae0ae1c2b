"""Branches and loops over live objects.

JAX wants all branches to return the same pytree. So the values of all variables come
out of each; JAX passes by those that no branch changes. Which variables a branch
writes, and what it does to the structure, is known from its trace: all must agree on
the structure of the objects, and may write different variables. What a loop carries
holds the values of all variables, too, and an iteration must leave the structure of the
objects alone, which is checked while it is traced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax

from graphcore.authors import Body, Entry, Inside, enter, path_text, take_objects
from nnx_transforms.graph_mode import accepts_graph_mode
from nnx_transforms.transforms.agreement import (
    Description,
    check_unchanged,
    describe_left,
    failure,
    merged_change,
    no_change,
)
from nnx_transforms.transforms.traced import HOLDS, TracedBody, WholeBody

Path: TypeAlias = tuple[Any, ...]
_MISSING: Any = object()


@accepts_graph_mode()
def cond(
    pred: Any,
    true_fun: Any,
    false_fun: Any,
    *operands: Any,
    operand: Any = _MISSING,
) -> Any:
    """Runs one of two functions of live objects, as a value decides.

    Both are traced. They may write different variables; what no branch writes is left
    alone. They must leave the same structure: objects that both make alike are fine.

    Args:
        pred: A scalar: a boolean or a number.
        true_fun: Called as `true_fun(*operands)` if it is true.
        false_fun: Called likewise if not.
        *operands: Any pytrees, with objects in them.
        operand: One operand, by keyword; as in `jax.lax.cond`, which also describes
            the older form `cond(pred, true_operand, true_fun, false_operand,
            false_fun)`.

    Returns:
        What the function returned. Objects in it stand in the same places for both.

    Raises:
        ValueError: If the branches leave different structures or return different
            objects, with the paths.
        TypeError: If a variable or an output has another shape or dtype in one branch
            than in the other, with the path; or as `jax.lax.cond` says.

    Example:
        >>> import nnx_transforms as nnx, jax.numpy as jnp
        >>> count = nnx.Variable(jnp.array(3))
        >>> def halve(n): n.value //= 2
        >>> def grow(n): n.value = 3 * n.value + 1
        >>> nnx.cond(count.value % 2 == 0, halve, grow, count)
        >>> int(count.value)
        10
    """
    if not (callable(true_fun) and callable(false_fun)):
        if callable(false_fun) and len(operands) == 2 and callable(operands[1]):
            f_true, (x_false, f_false) = false_fun, operands
            return cond(
                pred,
                lambda x, _: f_true(x),
                lambda _, x: f_false(x),
                true_fun,
                x_false,
            )
        return jax.lax.cond(pred, true_fun, false_fun, *operands)
    return _choose(
        "cond",
        (true_fun, false_fun),
        ("true_fun", "false_fun"),
        _operands(operands, operand),
        lambda branches, *args: jax.lax.cond(pred, *branches, *args),
    )


@accepts_graph_mode()
def switch(
    index: Any,
    branches: Any,
    *operands: Any,
    operand: Any = _MISSING,
) -> Any:
    """Runs one of several functions of live objects, as an index decides.

    What is said of the two functions of `cond` holds for all branches.

    Args:
        index: An integer scalar; clamped to the number of branches.
        branches: Functions of the operands.
        *operands: Any pytrees, with objects in them.
        operand: One operand, by keyword.

    Returns:
        What the branch returned.

    Raises:
        ValueError: If branches leave different structures or return different objects,
            with the paths.
        TypeError: If a variable or an output has another shape or dtype in one branch
            than in another, with the path; or as `jax.lax.switch` says.

    Example:
        >>> import nnx_transforms as nnx, jax.numpy as jnp
        >>> x = nnx.Variable(jnp.array(2.0))
        >>> def add(x): x.value += 1
        >>> def double(x): x.value *= 2
        >>> nnx.switch(1, [add, double], x)
        >>> float(x.value)
        4.0
    """
    functions = tuple(branches) if isinstance(branches, Sequence) else ()
    if not functions or not all(map(callable, functions)):
        return jax.lax.switch(index, branches, *operands)
    return _choose(
        "switch",
        functions,
        [f"branch {number}" for number in range(len(functions))],
        _operands(operands, operand),
        lambda branches, *args: jax.lax.switch(index, branches, *args),
    )


def _operands(operands: tuple[Any, ...], operand: Any) -> tuple[Any, ...]:
    if operand is _MISSING:
        return operands
    if operands:
        raise TypeError(
            "Expected operands either by position or as `operand=`, got both: "
            f"{len(operands)} by position and {operand!r}."
        )
    return (operand,)


def _choose(
    name: str,
    functions: tuple[Callable[..., Any], ...],
    names: Sequence[str],
    operands: tuple[Any, ...],
    choose: Callable[..., Any],
) -> Any:
    """Has JAX choose a branch, and publishes what the branches do together.

    Args:
        name: The name of the transformation.
        functions: The branches.
        names: What they are called.
        operands: Their arguments.
        choose: Calls JAX with pure branches and their arguments.

    Returns:
        What the branch returned.
    """
    refused: Exception | None = None
    entry = enter(functions, operands, make=_Branch)
    if not entry.has_objects:
        # As in JAX, and by JAX, unless what a branch returns is an object.
        try:
            return choose(functions, *operands)
        except (TypeError, ValueError) as error:
            refused = error
    try:
        results = [jax.eval_shape(b.traced, *entry.values) for b in entry.bodies]
    except (TypeError, ValueError) as error:
        if refused is not None:
            raise refused from None
        entry.body.blame(entry.raw, error, HOLDS)
        raise
    if refused is not None and not any(change.returned for *_, change in results):
        raise refused
    _check(name, names, entry, results, values=False)
    try:
        values, new, out = choose(entry.bodies, *entry.values)
    except TypeError:
        _check(name, names, entry, results, values=True)
        raise
    change = merged_change(entry.body, [change for *_, change in results])
    written = [values[p] for p in change.positions if p is not None]
    return entry.commit([[*written, *new]], out, change)


def _check(
    name: str, names: Sequence[str], entry: Entry, results: Sequence[Any], values: bool
) -> None:
    """Checks that the branches leave the same structure, or the same types of values.

    Raises:
        ValueError: If a structure differs, with the paths.
        TypeError: If a shape or dtype does.
    """

    def described(result: Any) -> Description:
        values, new, out, change = result
        return describe_left(entry.body, change, values, new, out)

    first, *others = results
    for which, other in zip(names[1:], others, strict=True):
        differ = f"They differ ({names[0]} -> {which}):"
        if values:
            described(first).check_values(
                described(other),
                f"All branches of `{name}` must leave and return values of the same "
                f"shapes and dtypes. {differ}",
                promotes=False,
            )
        elif first[3].structure != other[3].structure:
            described(first).check_graph(
                described(other),
                f"All branches of `{name}` must leave the same structure and return "
                "the same objects, because only at run time it is known which of them "
                f"runs. {differ}",
            )


class _WholeBranch(WholeBody):
    called = ("operands", None)


class _Branch(TracedBody):
    """One branch, as JAX calls it: without what became of the structure."""

    whole = _WholeBranch
    called = _WholeBranch.called

    def __call__(self, *args: Any) -> Any:
        """Runs the branch; returns values, new values and the output."""
        return self.traced(*args)[:3]


@accepts_graph_mode()
def while_loop(cond_fun: Any, body_fun: Any, init_val: Any) -> Any:
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
    if callable(cond_fun) and callable(body_fun):
        how: Any = {"make": (_Iteration, _Condition), "options": "while_loop"}
        entry = enter((body_fun, cond_fun), (init_val,), **how)
        if entry.has_objects:
            step, holds = entry.bodies
            return _repeated(entry, lambda c: jax.lax.while_loop(holds, step, c))
    return jax.lax.while_loop(cond_fun, body_fun, init_val)


@accepts_graph_mode()
def fori_loop(
    lower: Any,
    upper: Any,
    body_fun: Any,
    init_val: Any,
    *,
    unroll: int | bool | None = None,
) -> Any:
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
    if callable(body_fun):
        # Any integer stands for the first one; JAX gives each.
        entry = enter(body_fun, (0, init_val), make=_Iteration, options="fori_loop")
        if entry.has_objects:
            return _repeated(
                entry,
                lambda c: jax.lax.fori_loop(lower, upper, entry.body, c, unroll=unroll),
            )
    return jax.lax.fori_loop(lower, upper, body_fun, init_val, unroll=unroll)


def _repeated(entry: Entry, repeat: Callable[[Any], Any]) -> Any:
    """Runs a pure loop, and publishes its last carry.

    Args:
        entry: The first iteration.
        repeat: Returns the last carry for the first one.

    Returns:
        The last carry, with objects.
    """
    body: _Iteration = entry.body
    (*leading, carry) = entry.args
    try:
        last = repeat((entry.raw, carry))
    except TypeError as error:
        body.blame(entry.raw, error, HOLDS)
        raise
    values, carry = last
    # By the types that were carried in the end: JAX promotes weak ones.
    change = body.change([values], (*leading, carry))
    change = merged_change(body, [change])
    return entry.commit([[values[p] for p in change.positions]], carry, change)


class _Carried:
    """Names the carry, which is the last argument, in messages."""

    out_called = "carry"

    def shown(self, path: Path) -> Path:
        return path if path == ("self",) else ("carry", *path[1:])


class _WholeIteration(_Carried, WholeBody):
    """One iteration; returns the values of all variables, the next carry and change."""

    def __call__(
        self, groups: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        values, carry = self.ungrouped(groups), args[-1]
        inside = Inside(self.structure.joint, values)
        args, _ = self.fill(inside, args, {})
        given = no_change(self, take_objects(args[-1])[1])
        before = describe_left(self, given, values, (), carry)
        left = self.leave(inside, self.bind(inside)(*args))
        self.check_written(left)
        now = inside.values()
        new = [w.value for w in left.written if w.position is None]
        after = describe_left(self, left.change, now, new, left.out)
        before.check_graph(
            after,
            "Carry references must be the same between iterations, and so must the "
            f"structure of what is carried. An iteration of `{self.options}` changes "
            "(before -> after):",
        )
        # JAX itself promotes weak types in the first carry, and then traces again.
        before.check_values(
            after,
            f"An iteration of `{self.options}` must keep shapes and dtypes. It changes "
            "(before -> after):",
            promotes=True,
        )
        return now, left.out, left.change


class _Iteration(_Carried, TracedBody):
    """One iteration, as JAX calls it: with the carry, and in front of it an integer."""

    whole = _WholeIteration

    def __call__(self, *args: Any) -> Any:
        """Runs one iteration; returns the next carry."""
        *leading, (values, carry) = args
        return self.traced([values], (*leading, carry))[:2]


class _Condition(_Carried, Body):
    """The condition, as JAX calls it."""

    def __call__(self, carry: Any) -> Any:  # type: ignore[override]
        """Asks the condition; refuses what it writes."""
        values, plain = carry
        inside = Inside(self.structure.joint, values)
        (given,), _ = self.fill(inside, (plain,), {})
        holds = self.bind(inside)(given)
        left = inside.leave(None)
        message = (
            f"The condition of `{self.options}` may only read, since what it writes "
            "would be lost: write in the body. It changes"
        )
        check_unchanged(self, left.change, f"{message} (before -> after):")
        if left.written:
            paths = [
                path_text(self.variable_path(w.position))
                for w in left.written
                if w.position is not None
            ]
            raise failure(ValueError, f"{message}:", paths)
        return holds
