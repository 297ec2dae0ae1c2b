"""What functions and containers hold."""

from __future__ import annotations

import functools
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

T = TypeVar("T")
_OF_PYTHON = types.GetSetDescriptorType | types.MemberDescriptorType
_COLLECTIONS = (list, tuple, set, frozenset, deque)


def held_by(x: Any) -> list[Any] | None:
    """Lists what a function captures by itself, or a container has in it.

    Args:
        x: Anything.

    Returns:
        What is in the cells and defaults of a function, beside one that is bound or
        partial, or in a container of Python's; None for anything else.

    Example:
        >>> def add(x, y=1): return x + y
        >>> held_by(add), held_by({'a': 2}), held_by(3)
        ([1], [2], None)
    """
    kind = type(x)  # not `isinstance`: a mock says that it is what it stands for
    if kind is types.FunctionType:
        found: list[Any] = []
        for cell in x.__closure__ or ():
            try:
                found.append(cell.cell_contents)
            except ValueError:  # not filled yet
                continue
        found += x.__defaults__ or ()
        if x.__kwdefaults__:
            found += x.__kwdefaults__.values()
        return found
    if kind is types.MethodType:
        return [x.__self__, x.__func__]
    if issubclass(kind, functools.partial):
        return [x.func, *x.args, *x.keywords.values()]
    if issubclass(kind, dict):
        return list(dict.values(x))
    if issubclass(kind, Mapping):  # What it gives may be in a file, or be missing.
        attributes = attributes_of(x)
        return list((x if attributes is None else attributes).values())
    return list(x) if issubclass(kind, _COLLECTIONS) else None


def attributes_of(x: Any) -> dict[str, Any] | None:
    """Returns the dict with the attributes of an instance, not a copy of it.

    Args:
        x: Any object.

    Returns:
        What Python made for it, whatever its class calls `__dict__`; None if there is
        no place for one.

    Example:
        >>> class Point:
        ...     __dict__ = {'x': 0}
        >>> point = Point(); point.x = 1; attributes_of(point), attributes_of(3)
        ({'x': 1}, None)
    """
    for base in type(x).__mro__:
        found = vars(base).get("__dict__")
        if isinstance(found, _OF_PYTHON):
            attributes: dict[str, Any] = found.__get__(x)
            return attributes
    if not type(x).__dictoffset__:
        return None
    # Where a class calls something else so, this is the only way; None if it is empty.
    state: Any = object.__getstate__(x)
    return (state[0] if isinstance(state, tuple) else state) or {}


def reached(
    start: Iterable[T],
    inside: Callable[[T], Iterable[T] | None],
    seen: dict[int, Any] | None = None,
) -> Iterator[T]:
    """Lists what can be reached, each object once.

    Args:
        start: Where to begin.
        inside: Says what is reached from an object next; None for nothing.
        seen: What was reached before, by id, and is left out now; extended.

    Yields:
        The objects, those to begin with among them.

    Example:
        >>> list(reached([bool], lambda kind: kind.__bases__))
        [<class 'bool'>, <class 'int'>, <class 'object'>]
    """
    pending = [*start]
    seen = {} if seen is None else seen  # keeps the objects alive, so ids stay unique
    while pending:
        x = pending.pop()
        if id(x) not in seen:
            seen[id(x)] = x
            yield x
            pending += inside(x) or ()
