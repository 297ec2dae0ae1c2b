"""Flax's arguments `graph` and `graph_updates`, accepted where they change nothing."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def accepts_graph_mode(instead: str = "jax") -> Callable[[F], F]:
    """Lets a function take `graph=True` and `graph_updates=True`, as it always does.

    Args:
        instead: What does what the other values ask for: a function of this package,
            or the module of JAX that has a function of the same name.

    Returns:
        A decorator.

    Example:
        >>> @accepts_graph_mode('clone')
        ... def touch(x):
        ...     return x
        >>> touch(1, graph=True)
        1
    """

    def decorate(function: F) -> F:
        name = getattr(function, "__name__", str(function))
        other = instead if instead != "jax" else f"jax.{name}"

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if not kwargs.keys().isdisjoint(_MODES):
                for mode in _MODES:
                    if (found := kwargs.pop(mode, None)) not in (None, True):
                        raise ValueError(
                            f"{name} got {mode}={found!r}: here it takes graphs of "
                            "live objects, whose sharing and updates it keeps, and "
                            f"has no other mode. Leave {mode} out, or use `{other}`, "
                            "which takes modules by value and changes nothing in "
                            "place."
                        )
            return function(*args, **kwargs)

        return wrapper  # type: ignore[return-value]

    return decorate


_MODES = ("graph", "graph_updates")
