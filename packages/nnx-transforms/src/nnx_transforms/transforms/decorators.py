"""Transformations as functions, as decorators, and as decorators with options."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, cast

from graphcore import api_boundary
from nnx_transforms.transforms.graph_mode import take_graph_mode
from nnx_transforms.transforms.types import AtOnce, OfArguments, P, Same, T, WithOptions

LATER: Any = inspect.Parameter.empty
"""The default of a function that a decorator with options gets afterwards."""


def optional_function(transform: T) -> T:
    """Lets a transformation be used as `t(f, ...)`, as `@t` and as `@t(...)`.

    Args:
        transform: Takes the function that is transformed first, then options. Type
            checkers want a default for it: `LATER`.

    Returns:
        The same, with the function optional: without it, a decorator.

    Example:
        >>> @optional_function
        ... def scaled(f, by=2):
        ...     return lambda x: by * f(x)
        >>> @scaled(by=10)
        ... def add_one(x):
        ...     return x + 1
        >>> scaled(abs)(-3), add_one(1)
        (6, 20)
    """
    return _optional(transform, lambda f, options: transform(f, **options))


def called_as_before(transform: WithOptions[P]) -> Same[P]:
    """`optional_function`, for transformations that keep the type of a function.

    Args:
        transform: As for `optional_function`.

    Returns:
        The same, for type checkers too.

    Example:
        >>> @called_as_before
        ... def twice(f=LATER, *, offset=0):
        ...     return lambda x: 2 * f(x) + offset
        >>> twice(offset=1)(abs)(-3)
        7
    """
    return cast("Same[P]", optional_function(transform))


def called_with_the_same(transform: WithOptions[P]) -> OfArguments[P]:
    """As `called_as_before`, for those after which a function returns other things."""
    return cast("OfArguments[P]", optional_function(transform))


def at_once_or_later(transform: Callable[..., Any]) -> AtOnce:
    """Lets a transformation that calls its function decorate it as well.

    Args:
        transform: Takes the function first, then arguments of it, then options by
            keyword. Type checkers want a default for it: `LATER`.

    Returns:
        The same, with the function optional: without it, a decorator with options,
        which makes a function that takes the other arguments.

    Example:
        >>> @at_once_or_later
        ... def scaled(f=LATER, *args, by=2):
        ...     return by * f(*args)
        >>> @scaled(by=10)
        ... def add_one(x):
        ...     return x + 1
        >>> scaled(abs, -3), add_one(1)
        (6, 20)
    """
    return _optional(
        cast("AtOnce", transform),
        lambda f, options: functools.partial(transform, f, **options),
    )


def _optional(transform: T, later: Callable[[Any, dict[str, Any]], Any]) -> T:
    kinds = {k: p.kind for k, p in inspect.signature(transform).parameters.items()}
    name = next(iter(kinds))
    # The kinds are in order: those that may be given by position come first.
    last = inspect.Parameter.POSITIONAL_OR_KEYWORD
    by_place = [k for k, kind in kinds.items() if kind <= last]
    takes_more = inspect.Parameter.VAR_POSITIONAL in kinds.values()

    @functools.wraps(transform)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if kwargs:
            take_graph_mode(transform, kwargs)
            if "fun" in kwargs and not (args or name in kwargs):  # as JAX calls it
                kwargs[name] = kwargs.pop("fun")
        if len(args) > len(by_place) and not takes_more:
            of = transform.__name__
            raise TypeError(
                f"{of} got {len(args)} positional arguments, and takes at most "
                f"{len(by_place)}: {', '.join(by_place)}. Other options are given by "
                "keyword, and what the function is to be called with to what "
                f"{of} makes of it: `{of}(f)(...)`."
            )
        if args or name in kwargs:
            return transform(*args, **kwargs)
        return lambda f: later(f, kwargs)

    return api_boundary(wrapper)  # type: ignore[return-value]
