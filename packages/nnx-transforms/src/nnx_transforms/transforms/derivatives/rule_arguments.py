"""The arguments of functions with derivative rules.

Rules have one tangent for each argument, so every argument has a position, and those
that are not differentiated are told by it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nnx_transforms.adapters.settings import own_settings
from nnx_transforms.arguments import positional_names, resolve_kwargs, signature_of
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
    known: list[str] = []
    signature = signature_of(f)
    if signature is not None:
        known = positional_names(signature)
        # The defaults of a partial function are no arguments of the rules, as in JAX.
        if not isinstance(f, functools.partial):
            bound = signature.bind(*positions)
            bound.apply_defaults()
            positions = bound.args
    called = [f" ({name!r})" for name in known] + [""] * len(positions)
    return positions, [f"argument {i}{called[i]}" for i in range(len(positions))]


def nondiff_arguments(
    fun: Callable[..., Any], name: str, argnums: Any, argnames: str | Sequence[str]
) -> tuple[list[int], dict[int, DiffState]]:
    """The arguments that are not differentiated, or only in part.

    Args:
        fun: The function.
        name: What it is called.
        argnums: `nondiff_argnums`.
        argnames: `nondiff_argnames`.

    Returns:
        The positions of those that are not, in order, and the filters of the others.

    Raises:
        ValueError: If an argument is named twice, counted from the end, or unknown.
        TypeError: If there is anything else among the positions.
    """
    signature = signature_of(fun) if argnames else None
    known = [] if signature is None else list(signature.parameters)
    argnames = [argnames] if isinstance(argnames, str) else argnames
    for argname in argnames:
        if argname not in known:
            raise ValueError(
                f"nondiff_argnames of {name!r} has {argname!r}, but its arguments are "
                f"{', '.join(map(repr, known))}."
            )
    argnums = own_settings(argnums)
    alone = isinstance(argnums, int | DiffState)
    positions = [*([argnums] if alone else argnums), *map(known.index, argnames)]
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
                f"{positions!r}."
            )
    return sorted(set(numbers) - filters.keys()), filters
