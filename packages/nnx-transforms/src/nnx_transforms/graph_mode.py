"""Flax's arguments `graph` and `graph_updates`, accepted where they change nothing."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import graphcore

__all__ = [
    "clone",
    "flatten",
    "graphdef",
    "iter_graph",
    "set_graph_mode",
    "set_graph_updates",
    "split",
    "state",
    "variables",
]

F = TypeVar("F", bound=Callable[..., Any])
_MODES = ("graph", "graph_updates")


def drop_graph_mode(name: str, arguments: dict[str, Any], instead: str = "") -> None:
    """Takes `graph` and `graph_updates` out of the arguments of a function.

    Args:
        name: The function, for the message.
        arguments: Its keyword arguments.
        instead: What does what other values ask for; JAX's function of that name, if
            left out.

    Raises:
        ValueError: If one of the two is there and neither True nor None.

    Example:
        >>> arguments = {'graph': True, 'axis': 0}
        >>> drop_graph_mode('vmap', arguments); arguments
        {'axis': 0}
    """
    for mode in _MODES:
        if (found := arguments.pop(mode, None)) not in (None, True):
            raise ValueError(
                f"{name} got {mode}={found!r}: it takes graphs of live objects here, "
                "keeps what they share, publishes what changes, and has no other mode. "
                f"Leave {mode} out, or use `{instead or 'jax.' + name}`, which changes "
                "nothing in place."
            )


def accepts_graph_mode(instead: str = "") -> Callable[[F], F]:
    """Lets a function take `graph=True` and `graph_updates=True`.

    Args:
        instead: As for `drop_graph_mode`.

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
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if kwargs:
                drop_graph_mode(function.__name__, kwargs, instead)
            return function(*args, **kwargs)

        return wrapper  # type: ignore[return-value]

    return decorate


# graphcore's functions, for code that says the mode.
clone = accepts_graph_mode("jax.tree.map")(graphcore.clone)
flatten = accepts_graph_mode("jax.tree.flatten")(graphcore.flatten)
graphdef = accepts_graph_mode("jax.tree.structure")(graphcore.graphdef)
iter_graph = accepts_graph_mode("jax.tree.leaves")(graphcore.iter_graph)
split = accepts_graph_mode("jax.tree.flatten")(graphcore.split)
state = accepts_graph_mode("jax.tree.leaves")(graphcore.state)
variables = accepts_graph_mode("jax.tree.leaves")(graphcore.variables)


def set_graph_mode(value: bool, /) -> Any:
    """Accepts Flax's switch to the mode that is the only one here.

    Args:
        value: True.

    Returns:
        A context manager and decorator that does nothing.

    Raises:
        ValueError: If it is False.

    Example:
        >>> with set_graph_mode(True):
        ...     pass
    """
    drop_graph_mode("set_graph_mode", {"graph": value}, "the functions of `jax`")
    return _nothing()


@contextmanager
def _nothing() -> Iterator[None]:
    yield


set_graph_updates = set_graph_mode
