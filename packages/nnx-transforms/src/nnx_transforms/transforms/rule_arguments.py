"""The arguments of functions with derivative rules.

Rules have one tangent for each argument, so every argument has a position, and those
that are not differentiated are told by it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nnx_transforms.prefixes import DiffState


def bind_positions(
    f: Callable[..., Any], name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Any, ...]:
    """Turns the arguments of a call into positional ones, defaults included.

    A rule has one tangent for each argument, so every argument has a position, as in
    `jax.custom_vjp`.

    Args:
        f: The function.
        name: What it is called.
        args: Positional arguments.
        kwargs: Keyword arguments.

    Returns:
        All of the function's arguments.

    Raises:
        TypeError: If the arguments do not fit, or one has no position.
    """
    # The defaults of a partial function are no arguments of the rules, as in JAX.
    if isinstance(f, functools.partial) and not kwargs:
        return tuple(args)
    try:
        bound = inspect.signature(f).bind(*args, **kwargs)
    except (TypeError, ValueError) as error:
        if isinstance(error, ValueError) and not kwargs:
            return tuple(args)  # some functions of C have no signature
        raise TypeError(f"The arguments of {name!r} have no positions: {error}.") from (
            error
        )
    bound.apply_defaults()
    if bound.kwargs:
        raise TypeError(
            f"The keyword arguments {', '.join(map(repr, bound.kwargs))} of {name!r} "
            "have no positions, which derivative rules go by: let the function take "
            "them by position too."
        )
    return bound.args


def argument_names(f: Callable[..., Any], count: int) -> list[str]:
    """What the arguments of a function are called in messages.

    Args:
        f: The function.
        count: The number of its arguments in a call.

    Returns:
        Names such as `argument 1 ('x')`.
    """
    try:
        parameters = list(inspect.signature(f).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    names: list[str] = []
    for position in range(count):
        name = f"argument {position}"
        if position < len(parameters):
            parameter = parameters[position]
            if parameter.kind is not parameter.VAR_POSITIONAL:
                name += f" ({parameter.name!r})"
            else:
                parameters = []
        names.append(name)
    return names


def positions_of_names(
    fun: Callable[..., Any], name: str, argnames: Sequence[str]
) -> list[int]:
    """Finds the positions of arguments by name.

    Args:
        fun: The function.
        name: What it is called.
        argnames: Names of its parameters.

    Returns:
        Their positions.

    Raises:
        ValueError: If it has no such parameter.
    """
    if not argnames:
        return []
    known = list(inspect.signature(fun).parameters)
    argnames = [argnames] if isinstance(argnames, str) else list(argnames)
    for argname in argnames:
        if argname not in known:
            raise ValueError(
                f"nondiff_argnames of {name!r} has {argname!r}, but its arguments are "
                f"{', '.join(map(repr, known))}."
            )
    return [known.index(argname) for argname in argnames]


def divide_argnums(
    positions: Sequence[int | DiffState], name: str
) -> tuple[list[int], dict[int, DiffState]]:
    """Divides `nondiff_argnums` into integers and filters.

    Args:
        positions: What the user gave.
        name: What the function is called.

    Returns:
        The integers, sorted; and the filters by position.

    Raises:
        ValueError: If a position is negative or there twice.
        TypeError: If there is anything else.
    """
    integers: list[int] = []
    filters: dict[int, DiffState] = {}
    for entry in positions:
        if isinstance(entry, DiffState):
            argnum = entry.argnum
        elif isinstance(entry, int):
            argnum = entry
        else:
            raise TypeError(
                f"nondiff_argnums of {name!r} holds a {type(entry).__name__}: expected "
                "integers and `DiffState`s."
            )
        if argnum < 0:
            raise ValueError(
                f"nondiff_argnums of {name!r} holds {entry!r}: count positions from 0."
            )
        if argnum in integers or argnum in filters:
            raise ValueError(
                f"nondiff_argnums of {name!r} names argument {argnum} twice: "
                f"{list(positions)!r}."
            )
        if isinstance(entry, DiffState):
            filters[argnum] = entry
        else:
            integers.append(argnum)
    return sorted(integers), filters
