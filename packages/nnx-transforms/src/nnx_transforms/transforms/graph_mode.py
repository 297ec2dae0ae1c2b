"""Flax's arguments `graph` and `graph_updates`.

Flax has modes in which modules are trees: nothing may be shared, changes of structure
stay inside, and derivatives are modules. Functions here take any of them. They keep
what objects share and publish all changes nevertheless; but derivatives have the form
that is asked for.
"""

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


def take_graph_mode(function: Any, arguments: dict[str, Any]) -> None:
    """Takes `graph` and `graph_updates` out of the arguments of a function.

    Args:
        function: The function.
        arguments: Its keyword arguments. If one of the two is there and False, and the
            function has a keyword argument `as_objects`, that becomes True.

    Example:
        >>> def derive(x, *, as_objects=False): ...
        >>> arguments = {'graph': False}
        >>> take_graph_mode(derive, arguments); arguments
        {'as_objects': True}
        >>> arguments = {'graph': True}
        >>> take_graph_mode(derive, arguments); arguments
        {}
    """
    of_trees = [arguments.pop(mode, None) is False for mode in _MODES]
    # Of functions that run at each call; a signature would take longer than many.
    if any(of_trees) and "as_objects" in (function.__kwdefaults__ or ()):
        arguments["as_objects"] = True


def accepts_graph_mode(function: F) -> F:
    """Lets a function take Flax's `graph` and `graph_updates`.

    Args:
        function: The function; see `take_graph_mode`.

    Returns:
        The same with these arguments.

    Example:
        >>> @accepts_graph_mode
        ... def touch(x):
        ...     return x
        >>> touch(1, graph=True)
        1
    """

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if kwargs:
            take_graph_mode(function, kwargs)
        return function(*args, **kwargs)

    return graphcore.api_boundary(wrapper)  # type: ignore[return-value]


# graphcore's functions, for code that says the mode.
clone = accepts_graph_mode(graphcore.clone)
flatten = accepts_graph_mode(graphcore.flatten)
graphdef = accepts_graph_mode(graphcore.graphdef)
iter_graph = accepts_graph_mode(graphcore.iter_graph)
split = accepts_graph_mode(graphcore.split)
state = accepts_graph_mode(graphcore.state)
variables = accepts_graph_mode(graphcore.variables)


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
    if value is not True:
        raise ValueError(
            f"The mode can't be set to {value!r}: graphs keep what they share here. "
            "Say `graph=False` where a derivative is to have the form of an object."
        )
    return _nothing()


@contextmanager
def _nothing() -> Iterator[None]:
    yield


set_graph_updates = set_graph_mode
