"""Which objects many containers hold, told by their addresses.

`==` between containers is quick, but asks objects that are not the same whether they
are equal; and `1` equals `True`, a variable another one of the same value, and some
objects anything. Where what stands in a container can be equal to something else, its
address is compared as well, that of all objects at once and in C.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Sequence
from itertools import chain, compress
from typing import Any

import numpy as np

__all__ = ["Identities"]


class Identities:
    """The objects in some dicts and lists at one time.

    Args:
        containers: The containers. Who keeps this keeps what they hold now, so that no
            other object gets the address of one.
        apart: The ids of objects that do not matter.

    Example:
        >>> seen = Identities([{'a': 1}, [None]])
        >>> seen.hold([{'a': 1}, [None]]), seen.hold([{'a': True}, [None]])
        (True, False)
    """

    __slots__ = ("_addresses", "_chosen", "_count", "_length", "_read")

    def __init__(
        self, containers: Sequence[Any], apart: Collection[int] = frozenset()
    ) -> None:
        # The collector goes through dicts and lists several times faster than an
        # iterator does; but not through a dict that only mirrors an object's slots.
        self._read: Callable[..., list[Any]] = gc.get_referents
        found, due = gc.get_referents(*containers), _contents(*containers)
        if sorted(map(id, found)) != sorted(map(id, due)):
            self._read, found = _contents, due
        self._length = self._count = len(found)
        self._chosen: list[bool] | None = None
        if apart:
            self._chosen = [id(x) not in apart for x in found]
            self._count = sum(self._chosen)
        self._addresses = self._addresses_of(found)

    def _addresses_of(self, found: list[Any]) -> bytes:
        chosen = found if self._chosen is None else compress(found, self._chosen)
        # The bytes of an array of objects are their addresses.
        return np.fromiter(chosen, object, self._count).tobytes()

    def hold(self, containers: Sequence[Any]) -> bool:
        """Tells whether containers hold the same objects in the same order.

        Args:
            containers: As many as there were.
        """
        found = self._read(*containers)
        return len(found) == self._length and (
            self._addresses_of(found) == self._addresses
        )


def _contents(*containers: Any) -> list[Any]:
    parts = (dict.values(c) if isinstance(c, dict) else c for c in containers)
    return list(chain.from_iterable(parts))
