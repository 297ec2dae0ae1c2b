"""Whether `==` between nodes and variables means `is`, for a moment, in this thread.

A plan compares what containers hold with what they held. Two dicts or lists are
compared much faster than by a call for each entry, as long as they hold the same
objects; but `==` must not find an object equal to another one that took its place.
"""

from __future__ import annotations

import functools
import threading
from typing import Any


class _Comparing(threading.local):
    by_identity = False

    def __reduce__(self) -> str:
        return "comparing"  # classes that are pickled by value refer to it


comparing = _Comparing()


def by_identity_too(kind: type[Any], base: type[Any]) -> None:
    """Makes the `__eq__` of a class of nodes or variables respect `comparing`.

    Python asks a subclass first, also where the other object is the recorded one.

    Args:
        kind: The class.
        base: The base class whose `__eq__` does.
    """
    cls: Any = kind
    equal = cls.__eq__
    if equal is base.__eq__ or hasattr(equal, "_is_by_identity_too"):
        return

    @functools.wraps(equal)
    def method(self: Any, other: object) -> Any:
        return self is other if comparing.by_identity else equal(self, other)

    method._is_by_identity_too = True  # type: ignore[attr-defined]
    cls.__eq__ = method
