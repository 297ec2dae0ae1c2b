"""The arguments of functions with derivative rules.

Rules have one tangent for each argument, so every argument has a position, and those
that are not differentiated are told by it.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nnx_transforms.arguments import resolve_kwargs
from nnx_transforms.prefixes import DiffState


def bind_positions(
    f: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], list[str]]:
    """Turns the arguments of a call into positional ones, defaults included.

    A rule has one tangent for each argument, so every argument has a position, as in
    `jax.custom_vjp`.

    Args:
        f: The function.
        args: Positional arguments.
        kwargs: Keyword arguments.

    Returns:
        All of the function's arguments; and what they are called in messages, such as
        `argument 1 ('x')`.

    Raises:
        TypeError: If the arguments do not fit, or one has no position.
    """
    positions: tuple[Any, ...] = resolve_kwargs(f, args, kwargs)
    parameters: list[inspect.Parameter] = []
    with contextlib.suppress(ValueError):  # Some functions of C have no signature.
        signature = inspect.signature(f)
        parameters = list(signature.parameters.values())
        # The defaults of a partial function are no arguments of the rules, as in JAX.
        if not isinstance(f, functools.partial):
            bound = signature.bind(*positions)
            bound.apply_defaults()
            positions = bound.args
    names = [f"argument {i}" for i in range(len(positions))]
    for i, parameter in enumerate(parameters[: len(positions)]):
        if parameter.kind is parameter.VAR_POSITIONAL:
            break
        names[i] += f" ({parameter.name!r})"
    return positions, names


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
    filters = {e.argnum: e for e in positions if isinstance(e, DiffState)}
    numbers = [e.argnum if isinstance(e, DiffState) else e for e in positions]
    for entry, number in zip(positions, numbers, strict=True):
        if not isinstance(number, int):
            raise TypeError(
                f"nondiff_argnums of {name!r} holds a {type(entry).__name__}: expected "
                "integers and `DiffState`s."
            )
        if number < 0:
            raise ValueError(
                f"nondiff_argnums of {name!r} holds {entry!r}: count positions from 0."
            )
        if numbers.count(number) > 1:
            raise ValueError(
                f"nondiff_argnums of {name!r} names argument {number} twice: "
                f"{list(positions)!r}."
            )
    return sorted(set(numbers) - filters.keys()), filters
