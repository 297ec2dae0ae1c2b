"""Work on many things at once that runs in C, without a step of Python for each."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any, TypeAlias

Getter: TypeAlias = Callable[[Any], tuple[Any, ...]]


def getter(keys: Sequence[Any]) -> Getter:
    """Like `operator.itemgetter`, which returns no tuple for a single key.

    Args:
        keys: Keys or positions, any number of them.

    Returns:
        A function from a container to a tuple of what it has there.

    Example:
        >>> getter(['b'])({'a': 1, 'b': 2}), getter([])({})
        ((2,), ())
    """
    if not keys:
        return lambda container: ()
    if len(keys) == 1:
        (key,) = keys
        return lambda container: (container[key],)
    return itemgetter(*keys)


def consume(calls: Iterable[Any]) -> None:
    """Makes the calls of a `map`, and lets go of what they return.

    Args:
        calls: The map.

    Example:
        >>> found = []
        >>> consume(map(found.append, "ab")); found
        ['a', 'b']
    """
    deque(calls, maxlen=0)
