"""Static arguments of a call: what bodies are told apart by, and no place for state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from graphcore._jax import OUTSIDE, current_trace
from graphcore.boundary.captures import EXACTLY_PLAIN
from graphcore.boundary.places import Place, take_objects
from graphcore.content import static_key
from graphcore.display.printing import leaf_text
from graphcore.graphdef.joint import joint_of


def with_room(args: Sequence[Any], statics: Mapping[Place, Any]) -> Sequence[Any]:
    """The arguments of a call, with None in the place of static ones at their end.

    Args:
        args: The positional arguments; None stands in the place of static ones that
            others come after.
        statics: The static ones, by position or name.

    Raises:
        ValueError: If a static argument has variables that outlive the running trace,
            or there is none at a position.
    """
    for place, x in statics.items():
        found = next(filter(_is_outside, _objects_in(x)), None)
        if found is not None:
            kind = type(found).__name__
            what = f"is a {kind}" if found is x else f"has a {kind} in it,"
            raise ValueError(
                f"The static argument {place!r} {what} with variables: what they hold "
                "now would be a constant of the function, which later updates do not "
                "reach. Pass it as an argument that is not static."
            )
    numbers = [place for place in statics if type(place) is int]
    count = len(args)
    while count in numbers:
        count += 1
    for number in numbers:
        if not 0 <= number < count:
            raise ValueError(
                f"There is a static argument at position {number}, but the call has "
                f"only {count} positional arguments. Positions count from the start, "
                "static arguments among them."
            )
    return (*args, *[None] * (count - len(args)))


def keys_of(statics: Mapping[Place, Any]) -> Any:
    """What static arguments are told apart by.

    Args:
        statics: The static arguments, by position or name.

    Returns:
        Something that is hashable if all of them are.
    """
    found = tuple([(place, static_key(x)) for place, x in statics.items()])
    try:
        # The hash comes first, so that one that was changed in place is another one.
        return hash(found), found
    except TypeError:  # It is kept for no other call.
        return found


def check_hashable(what: str, value: Any, name: str) -> None:
    """Says that something of a call can't be told apart, if it can't be.

    Args:
        what: What it is, for the message.
        value: The value.
        name: The name of the function that is called.

    Raises:
        ValueError: If it is not hashable.
    """
    try:
        hash(static_key(value))
    except TypeError as error:
        raise ValueError(
            f"The {what} of {name!r} is not hashable: {leaf_text(value)} of type "
            f"{type(value).__name__}. Compiled functions are looked up by it: pass a "
            "hashable value, such as a tuple."
        ) from error


def _is_outside(x: Any) -> bool:
    """Whether an object has variables that outlive the running trace."""
    joint, plans = joint_of([x])
    found, here = [plan.trace for plan in plans], current_trace()
    return bool(joint.variable_definitions) and OUTSIDE in (here, *found)


def _objects_in(x: Any) -> Sequence[Any]:
    """The objects in a static argument: a pytree, or a frozenset."""
    if type(x) in EXACTLY_PLAIN:
        return ()
    try:
        return take_objects([*x] if isinstance(x, frozenset) else x)[2]
    except Exception:  # No pytree that JAX can take apart.
        return ()
