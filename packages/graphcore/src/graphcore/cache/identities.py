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
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import chain, compress
from operator import attrgetter, call
from typing import Any, TypeAlias

import numpy as np

from graphcore.variables.impl import VariableImpl

__all__ = ["Identities"]


# Reads the addresses of the items of a tuple.
_Reader: TypeAlias = Callable[[tuple[Any, ...]], bytes]
# A tuple ends with the addresses of its items; see below.
_START = tuple.__basicsize__


def _direct_reader(count: int) -> _Reader:
    items = ctypes.c_char * (count * tuple.__itemsize__)
    return lambda objects: items.from_address(id(objects) + _START).raw


def _portable_reader(count: int) -> _Reader:
    return lambda objects: np.fromiter(objects, object, count).tobytes()


_SAMPLE = (None, "text", 2, ...)
_reader = _portable_reader
if _direct_reader(4)(_SAMPLE) == np.array([*map(id, _SAMPLE)], np.uintp).tobytes():
    # So it is with this interpreter, and ten times as fast.
    _reader = _direct_reader


class Identities:
    """What some objects refer to: their classes, containers, and what these hold.

    Who keeps this must keep what the containers hold now, so that no other object gets
    the address of one.

    Args:
        nodes: Nodes of registered types, with the names of their containers.
        containers: Dicts and lists of which all contents matter.
        variables: Variables of registered types, and how they are handled; their
            classes and their metadata, but not what that holds.
        apart: The ids of objects in the containers that do not matter.

    Example:
        >>> import types
        >>> box = types.SimpleNamespace(a=1, b=[None])
        >>> seen = Identities([(box, ('__dict__',))], [vars(box), box.b])
        >>> box.a, hold = True, seen.hold(); hold, seen.hold()
        (True, False)
    """

    __slots__ = (
        *("_addresses", "_chosen", "_containers", "_getters", "_length", "_owners"),
        *("_read", "_variables", "_watched"),
    )

    def __init__(
        self,
        nodes: Iterable[tuple[Any, Sequence[str]]],
        containers: Sequence[Any],
        variables: Iterable[tuple[Any, VariableImpl]] = (),
        apart: Collection[int] = frozenset(),
    ) -> None:
        watched: list[Any] = []
        # What an object is asked for that the collector does not find.
        asked: list[tuple[Callable[[Any], Any], Any]] = []
        for node, names in nodes:
            watched.append(node)
            found = {*map(id, gc.get_referents(node))}
            getters: list[Callable[[Any], Any]] = [type, *map(attrgetter, names)]
            asked += [(get, node) for get in getters if id(get(node)) not in found]
        self._watched = (*watched, *containers)
        self._getters = [get for get, _ in asked]
        self._owners = [owner for _, owner in asked]
        # Nor does it go through dicts that only mirror what an object holds itself.
        due = Counter(map(id, _contents(containers)))
        is_found = due <= Counter(map(id, gc.get_referents(*self._watched)))
        self._containers = () if is_found else containers
        alike: dict[VariableImpl, list[Any]] = {}
        for variable, impl in variables:
            alike.setdefault(impl, []).append(variable)
        self._variables = [*alike.items()]
        now = self._now()
        self._length = len(now)
        self._chosen: list[bool] | None = None
        if apart:
            self._chosen = [id(x) not in apart for x in now]
            now = list(compress(now, self._chosen))
        self._read = _reader(len(now))
        self._addresses = self._read(tuple(now))

    def _now(self) -> list[Any]:
        now = gc.get_referents(*self._watched)
        for impl, variables in self._variables:
            now += map(type, variables)
            now += impl.all_metadata(variables)
        if self._owners:
            now += map(call, self._getters, self._owners)
        if self._containers:
            now += _contents(self._containers)
        return now

    def hold(self) -> bool:
        """Tells whether all of them still refer to the same objects."""
        now = self._now()
        if len(now) != self._length:
            return False
        chosen = now if self._chosen is None else compress(now, self._chosen)
        return self._read(tuple(chosen)) == self._addresses


def _contents(containers: Iterable[Any]) -> list[Any]:
    parts = (dict.values(c) if isinstance(c, dict) else c for c in containers)
    return list(chain.from_iterable(parts))
