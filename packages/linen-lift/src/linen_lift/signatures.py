"""Functions with the parameters of other ones, which are written down once."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")


def parameters_of(
    other: Callable[P, Any],
) -> Callable[[Callable[..., R]], Callable[P, R]]:
    """Declares that a function has the parameters of another one.

    Args:
        other: the other one.

    Returns:
        A decorator.
    """

    def declare(fn: Callable[..., R]) -> Callable[P, R]:
        fn.__signature__ = inspect.signature(other)  # type: ignore[attr-defined]
        return fn

    return declare


def parameters_of_method(
    other: Callable[Concatenate[Any, P], Any],
) -> Callable[[Callable[Concatenate[S, ...], R]], Callable[Concatenate[S, P], R]]:
    """Declares that a method has the parameters of one of another class.

    Args:
        other: the other one.

    Returns:
        A decorator.
    """
    return parameters_of(other)
