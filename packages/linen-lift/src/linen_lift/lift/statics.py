"""Arguments that are not traced, told by position or name, however they are passed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple


class SplitArguments(NamedTuple):
    """Arguments without the static ones, and how to put those back.

    Args:
        args: the traced positional arguments.
        kwargs: the traced keyword arguments.
        positions: the place of each of `args` among all positional arguments.
        static: the static arguments, as `((place or name, value), ...)`.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    positions: tuple[int, ...]
    static: tuple[tuple[int | str, Any], ...]

    def join(
        self, args: Iterable[Any], kwargs: Any
    ) -> tuple[list[Any], dict[str, Any]]:
        """All arguments, with `args` and `kwargs` for the traced ones."""
        placed = dict(zip(self.positions, args, strict=True))
        named = dict(kwargs)
        for place, value in self.static:
            if isinstance(place, int):
                placed[place] = value
            else:
                named[place] = value
        return [placed[i] for i in range(len(placed))], named


class StaticArguments:
    """Which arguments of a function are static.

    A position also stands for the parameter's name and a name for its position, as in
    `jax.jit`.

    Args:
        fn: the function; its first parameter is the scope or module.
        argnums: positions, the scope or module being 0.
        argnames: names.

    Raises:
        ValueError: if the scope or module itself is named.
    """

    __slots__ = ("names", "positions")

    names: frozenset[str]
    positions: frozenset[int]

    def __init__(
        self,
        fn: Callable[..., Any],
        argnums: int | Iterable[int] | None,
        argnames: str | Iterable[str] | None,
    ) -> None:
        nums = {argnums} if isinstance(argnums, int) else set(argnums or ())
        names = {argnames} if isinstance(argnames, str) else set(argnames or ())
        if nums or names:
            try:
                parameters = list(inspect.signature(fn).parameters.values())
            except (TypeError, ValueError):
                parameters = []
            positional = [
                p.name
                for p in parameters
                if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
            ]
            nums = {n + len(positional) if n < 0 else n for n in nums}
            named = names & set(positional)
            names |= {positional[n] for n in nums if n < len(positional)}
            nums |= {positional.index(name) for name in named}
        if 0 in nums:
            raise ValueError(
                "The scope or module is argument 0 and cannot be static; static "
                f"arguments count from 1. Found static_argnums={argnums!r}, "
                f"static_argnames={argnames!r}."
            )
        self.positions = frozenset(nums)
        self.names = frozenset(names)

    def split(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> SplitArguments:
        """Takes the static arguments out.

        Args:
            args: positional arguments after the scope or module.
            kwargs: keyword arguments.
        """
        positions = self.positions
        if not positions and not self.names:
            return SplitArguments(args, kwargs, tuple(range(len(args))), ())
        traced = tuple(i for i in range(len(args)) if i + 1 not in positions)
        static: list[tuple[int | str, Any]] = [
            (i, args[i]) for i in range(len(args)) if i + 1 in positions
        ]
        named = {}
        for name, value in kwargs.items():
            if name in self.names:
                static.append((name, value))
            else:
                named[name] = value
        return SplitArguments(
            tuple(args[i] for i in traced), named, traced, tuple(static)
        )
