"""Branches over live objects.

JAX wants all branches to return the same pytree. So the values of all variables come
out of each; JAX passes by those that no branch changes. Which variables a branch
writes, and what it does to the structure, is known from its trace: all must agree on
the structure of the objects, and may write different variables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

import jax

from graphcore.authors import UNSET, Entry, enter
from nnx_transforms.transforms.graph_mode import accepts_graph_mode
from nnx_transforms.transforms.loops.agreement import describe_left, merged_change
from nnx_transforms.transforms.loops.traced import TracedBody

__all__ = ["cond", "switch"]

A = TypeVar("A")
B = TypeVar("B")


@overload
def cond(
    pred: Any,
    true_fun: Callable[..., A],
    false_fun: Callable[..., B],
    *operands: Any,
    operand: Any = ...,
) -> A | B: ...
@overload
def cond(
    pred: Any,
    true_operand: Any,
    true_fun: Callable[..., A],
    false_operand: Any,
    false_fun: Callable[..., B],
    /,
) -> A | B: ...
@accepts_graph_mode
def cond(
    pred: Any,
    true_fun: Any,
    false_fun: Any,
    *operands: Any,
    operand: Any = UNSET,
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


@accepts_graph_mode
def switch(
    index: Any,
    branches: Sequence[Callable[..., A]],
    *operands: Any,
    operand: Any = UNSET,
) -> A:
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
    given: Any = branches
    functions = tuple(given) if isinstance(given, Sequence) else ()
    if not functions or not all(map(callable, functions)):
        return jax.lax.switch(index, branches, *operands)  # type: ignore[no-any-return]
    out: A = _choose(
        "switch",
        functions,
        [f"branch {number}" for number in range(len(functions))],
        _operands(operands, operand),
        lambda branches, *args: jax.lax.switch(index, branches, *args),
    )
    return out


def _operands(operands: tuple[Any, ...], operand: Any) -> tuple[Any, ...]:
    if operand is UNSET:
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
    if entry.is_kept and not entry.has_objects:
        # As in JAX, and by JAX, unless what a branch returns is an object.
        try:
            return choose(functions, *operands)
        except (TypeError, ValueError) as error:
            refused = error
    try:
        changes = [body.change(*entry.values) for body in entry.bodies]
    except (TypeError, ValueError) as error:
        if refused is not None:
            raise refused from None
        entry.body.blame(entry.raw, error)
        raise
    if refused is not None and not any(change.returned for change in changes):
        raise refused
    if any(change.structure != changes[0].structure for change in changes[1:]):
        _check(name, names, entry)
    try:
        values, new, out = choose(entry.bodies, *entry.values)
    except TypeError as error:
        entry.body.blame(entry.raw, error)
        _check(name, names, entry)
        raise
    change = merged_change(entry.body, changes)
    written = [values[p] for p in change.positions if p is not None]
    return entry.commit([[*written, *new]], out, change)


def _check(name: str, names: Sequence[str], entry: Entry) -> None:
    """Checks that the branches leave the same structure, and the same types of values.

    Raises:
        ValueError: If a structure differs, with the paths.
        TypeError: If a shape or dtype does.
    """
    results = [jax.eval_shape(b.traced, *entry.values) for b in entry.bodies]
    first, *others = [
        describe_left(entry.body, change, values, new, out)
        for values, new, out, change in results
    ]
    differ = [f"They differ ({names[0]} -> {which}):" for which in names[1:]]
    for how, other in zip(differ, others, strict=True):
        first.check_graph(
            other,
            f"All branches of `{name}` must leave the same structure and return the "
            "same objects, because only at run time it is known which of them runs. "
            f"Make such changes in all of them, or before. {how}",
        )
    for how, other in zip(differ, others, strict=True):
        first.check_values(
            other,
            f"All branches of `{name}` must leave and return values of the same "
            f"shapes and dtypes. {how}",
        )


class _Branch(TracedBody):
    """One branch, as JAX calls it: without what became of the structure."""

    called = ("operands", None)

    def __call__(self, *args: Any) -> Any:
        """Runs the branch; returns values, new values and the output."""
        return self.traced(*args)[:3]
