"""What objects refer to at one time, told by addresses.

`==` between two containers is quick, but asks objects that are not the same whether
they are equal; and `1` equals `True`, a variable another one of the same value, and
some objects anything. Objects of other libraries, moreover, get another class or
another `__dict__` without telling. So a plan compares the addresses of all that must
be the same, which the garbage collector lists faster than any iterator.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import chain, compress
from operator import attrgetter, call
from typing import Any, TypeAlias

import numpy as np

# Reads the addresses of the items of a list of a known length.
_Reader: TypeAlias = Callable[[list[Any]], bytes]
_WORD = ctypes.sizeof(ctypes.c_void_p)
# Where a list has the address of these addresses, after its length; see below.
_ITEMS = object.__basicsize__ + _WORD


def _portable_reader(count: int) -> _Reader:
    return lambda objects: np.fromiter(objects, object, count).tobytes()


def _direct_reader(count: int) -> _Reader:
    start: Any = ctypes.c_void_p.from_address
    items = ctypes.c_char * (count * _WORD)
    return lambda objects: items.from_address(start(id(objects) + _ITEMS).value).raw


def _reads_addresses() -> bool:
    sample = [None, "text", 2, ...]
    start = ctypes.c_void_p.from_address(id(sample) + _ITEMS).value
    due = np.array([*map(id, sample)], np.uintp).tobytes()
    return start is not None and _direct_reader(4)(sample) == due


# True of every CPython so far; the direct reader is ten times as fast.
_is_known = sys.implementation.name == "cpython" and _reads_addresses()
_reader = _direct_reader if _is_known else _portable_reader


class Identities:
    """What some objects refer to: their classes, containers, and what these hold.

    Who keeps this must also keep what the containers hold now; else a new object could
    get the address of one that is gone.

    Args:
        nodes: Nodes of registered types, with the names of their containers.
        containers: Dicts and lists of which all contents matter.
        further: What lists more objects, anew each time.
        apart: The ids of objects in the containers that do not matter.

    Example:
        >>> import types
        >>> box = types.SimpleNamespace(a=1, b=[None])
        >>> seen = Identities([(box, ('__dict__',))], [vars(box), box.b])
        >>> box.a, hold = True, seen.hold(); hold, seen.hold()
        (True, False)
    """

    def __init__(
        self,
        nodes: Iterable[tuple[Any, Sequence[str]]],
        containers: Sequence[Any],
        further: Sequence[Callable[[], list[Any]]] = (),
        apart: Collection[int] = frozenset(),
    ) -> None:
        watched: list[Any] = []
        # What nodes refer to that the garbage collector does not see.
        asked: list[tuple[Callable[[Any], Any], Any]] = []
        in_nodes: set[int] = set()
        for node, names in nodes:
            watched.append(node)
            found = _addresses(gc.get_referents(node))
            getters: list[Callable[[Any], Any]] = [type, *map(attrgetter, names)]
            for get in getters:
                part = get(node)
                if id(part) in found:
                    continue
                if _is_mirror(part, found):
                    in_nodes.add(id(part))
                else:
                    asked.append((get, node))
        others = [c for c in containers if id(c) not in in_nodes]
        self._watched = (*watched, *others)
        self._getters = [get for get, _ in asked]
        self._owners = [owner for _, owner in asked]
        # The others are read themselves unless the collector sees all that they hold.
        self._containers = [
            c
            for c in others
            if not _addresses(_contents([c])) <= _addresses(gc.get_referents(c))
        ]
        self._further = further
        self._lists_all = not (further or asked or self._containers)
        now = gc.get_referents(*self._watched)
        now += self._unlisted()
        self._length = len(now)
        self._chosen: list[bool] | None = None
        if apart:
            self._chosen = [id(x) not in apart for x in now]
            now = [*compress(now, self._chosen)]
        # An empty list has no array of addresses to read.
        self._read = _reader(len(now)) if now else bytes
        self._addresses = self._read(now)

    def _unlisted(self) -> Iterable[Any]:
        """What the collector does not list."""
        further = chain.from_iterable(map(call, self._further))
        asked = map(call, self._getters, self._owners)
        return chain(further, asked, _contents(self._containers))

    def hold(self) -> bool:
        """Tells whether all of them still refer to the same objects."""
        # In one function: between calls of JAX's, each further one costs far more than
        # it does in a loop of its own.
        now = gc.get_referents(*self._watched)
        if not self._lists_all:
            now += self._unlisted()
        if len(now) != self._length:
            return False
        if self._chosen is not None:
            now = [*compress(now, self._chosen)]
        return self._read(now) == self._addresses


def _addresses(objects: Iterable[Any]) -> Counter[int]:
    return Counter(map(id, objects))


def _is_mirror(part: Any, found: Counter[int]) -> bool:
    """Whether an attribute is a dict that only mirrors what its object refers to.

    Such is `__dict__` from Python 3.13 on, until it is replaced: then the collector
    finds the other dict, and nothing of what is in it. So both can't be mistaken for
    each other, unless a dict is all that there is.
    """
    if type(part) is not dict or not part:
        return False
    held = [*part.values()]
    is_only_a_dict = len(held) == 1 and type(held[0]) is dict
    return not is_only_a_dict and _addresses(held) <= found


def _contents(containers: Iterable[Any]) -> list[Any]:
    parts = (dict.values(c) if isinstance(c, dict) else c for c in containers)
    return list(chain.from_iterable(parts))
