"""Flax's arguments `graph` and `graph_updates`.

Flax has modes in which modules are trees: nothing is shared, changes of structure stay
inside, and derivatives are modules. A transformation here takes any of them. It keeps
what objects share and publishes all changes nevertheless; but derivatives have the form
that is asked for. Functions of graphs without a transformation refuse the other modes.
"""

from __future__ import annotations

import functools
import inspect
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


def drop_graph_mode(name: str, arguments: dict[str, Any], instead: str) -> None:
    """Takes `graph` and `graph_updates` out of the arguments of a function.

    Args:
        name: The function, for the message.
        arguments: Its keyword arguments.
        instead: What does what other values ask for.

    Raises:
        ValueError: If one of the two is there and neither True nor None.

    Example:
        >>> arguments = {'graph': True, 'variables': False}
        >>> drop_graph_mode('clone', arguments, 'jax.tree.map'); arguments
        {'variables': False}
    """
    for mode in _MODES:
        if (found := arguments.pop(mode, None)) not in (None, True):
            raise ValueError(
                f"{name} got {mode}={found!r}: it takes graphs of live objects here, "
                "keeps what they share, publishes what changes, and has no other mode. "
                f"Leave {mode} out, or use `{instead}`, which changes "
                "nothing in place."
            )


def take_graph_mode(transform: Callable[..., Any], arguments: dict[str, Any]) -> None:
    """Takes `graph` and `graph_updates` out of the arguments of a transformation.

    Args:
        transform: The transformation.
        arguments: Its keyword arguments. If one of the two is there and False, and the
            transformation has an argument `as_objects`, that becomes True.

    Example:
        >>> import nnx_transforms as nnx
        >>> arguments = {'graph': False}
        >>> take_graph_mode(nnx.grad, arguments); arguments
        {'as_objects': True}
        >>> arguments = {'graph': False}
        >>> take_graph_mode(nnx.vmap, arguments); arguments
        {}
    """
    of_trees = [arguments.pop(mode, None) is False for mode in _MODES]
    if any(of_trees) and "as_objects" in inspect.signature(transform).parameters:
        arguments["as_objects"] = True


def accepts_graph_mode(instead: str | None = None) -> Callable[[F], F]:
    """Lets a function take Flax's `graph` and `graph_updates`.

    Args:
        instead: What does what other values than True ask for; they are refused. Left
            out, the function is a transformation: see `take_graph_mode`.

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
            if not kwargs:
                return function(*args)
            if instead is None:
                take_graph_mode(function, kwargs)
            else:
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
