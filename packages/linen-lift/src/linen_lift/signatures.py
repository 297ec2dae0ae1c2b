"""Functions with the parameters of other ones, which are written down once."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


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
