"""Variables of other libraries that a loop carries, and makes anew in each iteration.

What another library calls a state may be a pytree of its variables. Its programs map
such a state, as an optimizer does, and hand on the new one: it is a value. A loop first
takes variables for the objects that they are. Where all come back as others, it is run
once more, with what they hold in their place.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from graphcore import VariableState, find_duplicates
from graphcore.authors import Callee, is_object, raw_value_of
from nnx_transforms.transforms.loops.carry import (
    CarriedAnew,
    CarryPlace,
    is_foreign_variable,
    put_carry,
    take_carry,
)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Held:
    """What a variable holds, in its place: a pytree."""

    state: VariableState[Any]


def _apart(carry: Any) -> Any:
    def held(x: Any) -> Any:
        is_due = is_foreign_variable(x)
        return _Held(VariableState.from_variable(x)) if is_due else x

    return jax.tree.map(held, carry, is_leaf=is_object)


def _whole(carry: Any) -> Any:
    def variable(x: Any) -> Any:
        return x.state.to_variable() if type(x) is _Held else x

    def is_leaf(x: Any) -> bool:
        return type(x) is _Held or is_object(x)

    return jax.tree.map(variable, carry, is_leaf=is_leaf)


def carrying(
    run: Callable[..., Any],
    functions: Sequence[Callable[..., Any]],
    args: tuple[Any, ...],
    place_in: CarryPlace,
    place_out: CarryPlace = (),
) -> Any:
    """Runs a loop; where variables come back as others, with what they hold instead.

    Args:
        run: The loop, as a function of its functions and the arguments of the first.
        functions: That of one iteration, and others, which return no carry.
        args: The arguments.
        place_in: The place of the carry in the arguments.
        place_out: Its place in the output of an iteration.

    Returns:
        What the loop returns, with new variables in the carry if that was due.

    Raises:
        ValueError: If variables come back as others of which one is reached in another
            way, too, or is written as well.
    """
    try:
        return run(*functions, args)
    except CarriedAnew:
        carry, others = take_carry(args, place_in)
        carried = set(map(id, jax.tree.leaves(carry, is_leaf=is_object)))

        def is_carried(_: Any, x: Any) -> bool:
            return is_foreign_variable(x) and id(x) in carried

        if find_duplicates([Callee(functions[0]).bound, args], only=is_carried):
            raise  # One of them is reached in another way as well.
    given = put_carry(others, _apart(carry), place_in)
    step, *rest = functions
    asked = [_by_value(f, place_in, None) for f in rest]
    out = run(_by_value(step, place_in, place_out), *asked, given)
    carry, others = take_carry(out, place_out)
    return put_carry(others, _whole(carry), place_out)


def _by_value(
    f: Callable[..., Any], place_in: CarryPlace, place_out: CarryPlace
) -> Callable[..., Any]:
    """A function of variables as one of what they hold, where it is carried."""

    @functools.wraps(f)
    def function(*args: Any) -> Any:
        carry, others = take_carry(args, place_in)
        carry = _whole(carry)
        leaves = jax.tree.leaves(carry, is_leaf=is_object)
        before = [(x, raw_value_of(x)) for x in leaves if is_foreign_variable(x)]
        out = f(*put_carry(others, carry, place_in))
        for variable, value in before:
            if raw_value_of(variable) is not value:
                raise ValueError(
                    f"The function wrote to a {type(variable).__name__} that is "
                    "carried, and returned another one in its place. Write to those "
                    "that were given and return them, or make all anew."
                )
        left, rest = take_carry(out, place_out)
        return put_carry(rest, _apart(left), place_out)

    return function
