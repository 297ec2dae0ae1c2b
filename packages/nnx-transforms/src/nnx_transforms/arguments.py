"""Keyword arguments in the places where a function takes them by position.

Axes, differentiated arguments and carries are told by position. So a transformation
first finds the position of each keyword argument in the signature of its function.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from typing_extensions import Format

from graphcore.authors import UNSET, Callee

__all__ = ["resolve_kwargs"]

# Names in annotations may stand for what is defined further down, from Python 3.14 on:
# such as the class in whose body a function stands.
_AS_WRITTEN: Any = {}
if sys.version_info >= (3, 14):
    _AS_WRITTEN["annotation_format"] = Format.FORWARDREF


def resolve_kwargs(
    f: Callable[..., Any] = UNSET,
    args: Sequence[Any] = UNSET,
    kwargs: Mapping[str, Any] = UNSET,
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
    if f is UNSET:
        return resolve_kwargs
    if args is UNSET:

        @functools.wraps(f)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return f(*resolve_kwargs(f, args, kwargs))

        return wrapper
    positions, rest = positions_of(f, args, {} if kwargs is UNSET else kwargs)
    if rest:
        raise TypeError(
            f"The keyword arguments {', '.join(map(repr, rest))} of "
            f"{Callee(f).name!r} have no position in its signature, "
            f"{signature_of(f) or 'which is not known'}. Let the function take them "
            "by position too, or bind them beforehand, with `functools.partial` or a "
            "closure."
        )
    return positions


def positions_of(
    f: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    due: int = 0,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Finds positions for as many keyword arguments as have one.

    Args:
        f: The function.
        args: The positional arguments of a call.
        kwargs: Its keyword arguments.
        due: How many positions are spoken of: those that the call leaves out are given
            their defaults, if all of them have one.

    Returns:
        The positional arguments, and the keyword arguments that have no position.

    Raises:
        TypeError: If the arguments do not fit the signature.

    Example:
        >>> positions_of(lambda a, b=2, *, c: None, (1,), {'c': 3, 'b': 4})
        ((1, 4), {'c': 3})
        >>> positions_of(lambda a, b=2, c=3: None, (1,), {}, due=2)
        ((1, 2), {})
    """
    if not kwargs and due <= len(args):
        return tuple(args), {}
    signature = signature_of(f)
    if signature is None:
        return tuple(args), dict(kwargs)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        if not kwargs:  # Who speaks of the positions says what is missing.
            return tuple(args), {}
        raise TypeError(
            f"The arguments do not fit {Callee(f).name!r}, whose signature is "
            f"{signature}: {error}."
        ) from None
    names = positional_names(signature)
    count = max(
        (i + 1 for i, name in enumerate(names) if name in bound.arguments), default=0
    )
    bound.apply_defaults()
    rest = {name: x for name, x in bound.kwargs.items() if name in kwargs}
    return bound.args[: max(count, len(args), due)], rest


class ChosenArguments:
    """Arguments that are chosen by position or name, as JAX understands the two.

    Args:
        f: The function.
        argnums: Positions, as JAX takes them: an integer, several, or None.
        argnames: Names, likewise. If only one of the two is given, the other follows
            from the signature.

    Example:
        >>> chosen = ChosenArguments(lambda a, b: None, 1, None)
        >>> chosen.take((1, 2), {}), chosen.take((1,), {'b': 2})
        (((1, None), {}, {1: 2}), ((1,), {}, {'b': 2}))
    """

    def __init__(self, f: Callable[..., Any], argnums: Any, argnames: Any) -> None:
        numbers = _as_tuple(argnums, int)
        names = _as_tuple(argnames, str)
        if (argnums is None) != (argnames is None):
            signature = signature_of(f)
            positional = [] if signature is None else positional_names(signature)
            if argnums is None:
                numbers = tuple(positional.index(n) for n in names if n in positional)
            else:
                count = len(positional)
                names = tuple(positional[i] for i in numbers if -count <= i < count)
        self.numbers: tuple[int, ...] = tuple(sorted(numbers))
        self.names: frozenset[str] = frozenset(names)

    def __bool__(self) -> bool:
        return bool(self.numbers or self.names)

    def __eq__(self, other: object) -> bool:
        if type(other) is not ChosenArguments:
            return False
        return (self.numbers, self.names) == (other.numbers, other.names)

    def __hash__(self) -> int:
        return hash((self.numbers, self.names))

    def take(
        self, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any], dict[int | str, Any]]:
        """Takes the chosen arguments out of a call.

        Args:
            args: Its positional arguments.
            kwargs: Its keyword arguments.

        Returns:
            The positional arguments with None in the place of those, the keyword
            arguments without them, and those by position or name.
        """
        found: dict[int | str, Any] = {}
        rest = [*args]
        for number in self.numbers:
            place = number if number >= 0 else number + len(args)
            if 0 <= place < len(args):
                found[place] = args[place]
                rest[place] = None
        if kwargs and not self.names.isdisjoint(kwargs):
            found.update((k, kwargs[k]) for k in sorted(self.names & kwargs.keys()))
            kwargs = {k: v for k, v in kwargs.items() if k not in found}
        return tuple(rest), kwargs, found


def counted_from_the_start(f: Callable[..., Any], argnums: Any) -> Any:
    """Positions of parameters, some of which may be given from the end.

    Args:
        f: A function.
        argnums: An integer, several, or None.

    Returns:
        The positions from the start; as given for a function without a signature, or
        one that takes any number of arguments.
    """
    if argnums is None:
        return None
    if (signature := signature_of(f)) is None:
        return argnums
    kinds = [p.kind for p in signature.parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return argnums
    count = len(positional_names(signature))
    numbers = _as_tuple(argnums, int)
    return tuple(i + count if -count <= i < 0 else i for i in numbers)


def signature_of(f: Callable[..., Any]) -> inspect.Signature | None:
    """The signature of a function; None for some functions of C, which have none."""
    try:
        return inspect.signature(f, **_AS_WRITTEN)
    except (TypeError, ValueError):
        return None


def positional_names(signature: inspect.Signature) -> list[str]:
    """The names of the parameters that have a position."""
    kinds = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    return [p.name for p in signature.parameters.values() if p.kind in kinds]


def _as_tuple(x: Any, kind: type[Any]) -> tuple[Any, ...]:
    if x is None:
        return ()
    return (x,) if isinstance(x, kind) else tuple(x)


def with_statics(args: Sequence[Any], statics: Mapping[int | str, Any]) -> list[Any]:
    """Puts static arguments between the others.

    Args:
        args: What belongs to the positional arguments that are not static.
        statics: What belongs to the static ones, by position or name.

    Returns:
        What belongs to all positional arguments.

    Example:
        >>> with_statics('ac', {1: 'b', 'name': 'd'})
        ['a', 'b', 'c']
    """
    every = list(args)
    for place in sorted(place for place in statics if isinstance(place, int)):
        every.insert(place, statics[place])
    return every
