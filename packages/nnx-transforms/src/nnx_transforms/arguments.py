"""Keyword arguments in the places where a function takes them by position.

Axes, differentiated arguments and carries are told by position. So a transformation
first finds the position of each keyword argument in the signature of its function.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["resolve_kwargs"]

_MISSING: Any = object()


def resolve_kwargs(
    f: Callable[..., Any] = _MISSING,
    args: Sequence[Any] = _MISSING,
    kwargs: Mapping[str, Any] = _MISSING,
) -> Any:
    """Turns the keyword arguments of a call into positional ones.

    Positions in front of a keyword argument that the call leaves out get their
    defaults; those behind the last one given stay out. Without keyword arguments
    nothing is changed, and the signature is not looked at.

    Args:
        f: The function. Left out, or given alone, this is a decorator: it calls the
            function with positional arguments only.
        args: The positional arguments of the call.
        kwargs: Its keyword arguments.

    Returns:
        The positional arguments, a tuple; or the decorated function; or a decorator.

    Raises:
        TypeError: If a keyword argument has no position, because the function takes
            it by keyword alone or has no signature; or if the arguments do not fit
            the signature.

    Example:
        >>> import nnx_transforms as nnx
        >>> def f(a, b=2, c=3):
        ...     return a, b, c
        >>> nnx.resolve_kwargs(f, (1,), {'c': 5})
        (1, 2, 5)
        >>> @nnx.resolve_kwargs()
        ... def g(*args):
        ...     return args
        >>> g(1, 2)
        (1, 2)
    """
    if f is _MISSING:
        return _with_positions
    if args is _MISSING:
        return _with_positions(f)
    positions, rest = positions_of(f, args, {} if kwargs is _MISSING else kwargs)
    if rest:
        raise TypeError(
            f"The keyword arguments {', '.join(map(repr, rest))} of "
            f"{_name(f)!r} have no position in its signature{_signature_text(f)}. "
            "Let the function take them by position too, or bind them beforehand, "
            "with `functools.partial` or a closure."
        )
    return positions


def positions_of(
    f: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Finds positions for as many keyword arguments as have one.

    Args:
        f: The function.
        args: The positional arguments of a call.
        kwargs: Its keyword arguments.

    Returns:
        The positional arguments, and the keyword arguments that have no position.

    Raises:
        TypeError: If the arguments do not fit the signature.

    Example:
        >>> positions_of(lambda a, b=2, *, c: None, (1,), {'c': 3, 'b': 4})
        ((1, 4), {'c': 3})
    """
    if not kwargs:
        return tuple(args), {}
    try:
        signature = inspect.signature(f)
    except ValueError:  # Some functions of C have none.
        return tuple(args), dict(kwargs)
    try:
        given = signature.bind(*args, **kwargs).arguments
    except TypeError as error:
        raise TypeError(
            f"The arguments do not fit {_name(f)!r}, whose signature is {signature}: "
            f"{error}."
        ) from None
    parameters = signature.parameters.values()
    positional = [
        p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    count = max((i + 1 for i, p in enumerate(positional) if p.name in given), default=0)
    positions = [given.get(p.name, p.default) for p in positional[:count]]
    positions += args[len(positions) :]  # for `*args`
    rest: dict[str, Any] = {}
    for parameter in parameters:
        if parameter.name in given:
            if parameter.kind is parameter.KEYWORD_ONLY:
                rest[parameter.name] = given[parameter.name]
            elif parameter.kind is parameter.VAR_KEYWORD:
                rest.update(given[parameter.name])
    return tuple(positions), rest


def _with_positions(f: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(f)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return f(*resolve_kwargs(f, args, kwargs))

    return wrapper


def _name(f: Callable[..., Any]) -> str:
    return getattr(f, "__name__", type(f).__name__)


def _signature_text(f: Callable[..., Any]) -> str:
    try:
        return f", {inspect.signature(f)}"
    except ValueError:
        return ", which is not known"
