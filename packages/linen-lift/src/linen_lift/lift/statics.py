"""Arguments that are not traced, told by position or name, however they are passed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import jax

from graphcore import Static


@jax.tree_util.register_static
class _Fixed(Static[Any]):
    """A static argument among traced ones: JAX finds no leaves in it."""


def as_tuple(value: int | Iterable[int]) -> tuple[int, ...]:
    """A tuple of one number or several."""
    return tuple(value) if isinstance(value, Iterable) else (value,)


def static_marker(
    fn: Callable[..., Any],
    argnums: int | Iterable[int] | None,
    argnames: str | Iterable[str] | None,
) -> Callable[[Any, Any], tuple[tuple[Any, ...], dict[str, Any]]]:
    """Finds out which arguments of a function are static.

    A position also stands for the parameter's name and a name for its position, as in
    `jax.jit`.

    Args:
        fn: the function; its first parameter is the scope or module.
        argnums: positions, the scope or module being 0.
        argnames: names.

    Returns:
        A function that takes positional arguments after the scope or module, and a
        dict of keyword arguments. It marks the static ones, so that JAX takes them for
        structure; `unmarked` is the inverse.

    Raises:
        ValueError: if the scope or module itself is counted.
    """
    nums = set(() if argnums is None else as_tuple(argnums))
    names = {argnames} if isinstance(argnames, str) else set(argnames or ())
    if nums or names:
        positional = _positional(fn)
        nums = {n + len(positional) if n < 0 else n for n in nums}
        names |= {positional[n] for n in nums if n < len(positional)}
        # The scope or module is static anyway, so its name may be among them.
        nums |= {i for i, name in enumerate(positional) if i and name in names}
    if 0 in nums:
        raise ValueError(
            "The scope or module is argument 0 and cannot be static; static "
            f"arguments count from 1. Found static_argnums={argnums!r}, "
            f"static_argnames={argnames!r}."
        )

    def mark(args: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (
            tuple([_Fixed(x) if i in nums else x for i, x in enumerate(args, 1)]),
            {name: _Fixed(x) if name in names else x for name, x in kwargs.items()},
        )

    return mark


def _positional(fn: Callable[..., Any]) -> list[str]:
    """The parameters that can be given by position, as far as they are known."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in parameters if p.kind in kinds]


def marked(fn: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, ...]:
    """The marked ones of arguments, for the key of a compiled function.

    Args:
        fn: the function that they are for.
        args: its positional arguments after the scope or module.
        kwargs: its keyword arguments.

    Raises:
        ValueError: if one has no hash.
    """
    given = (*enumerate(args, 1), *kwargs.items())
    fixed = {place: x for place, x in given if isinstance(x, _Fixed)}
    for place, argument in fixed.items():
        try:
            hash(argument)
        except TypeError as error:
            name = dict(enumerate(_positional(fn))).get(place, place)
            raise ValueError(
                f'Static argument "{name}" of {getattr(fn, "__qualname__", fn)} is a '
                f"{type(argument.value).__name__}, which has no hash: {error}. What is "
                "compiled is known by the values of static arguments; pass a tuple or "
                "another value with a hash, or do not name it as static."
            ) from error
    return tuple(fixed.values())


def unmarked(args: Any, kwargs: Any) -> tuple[list[Any], dict[str, Any]]:
    """The arguments that were marked."""
    return [*map(_plain, args)], {name: _plain(x) for name, x in kwargs.items()}


def _plain(argument: Any) -> Any:
    return argument.value if isinstance(argument, _Fixed) else argument
