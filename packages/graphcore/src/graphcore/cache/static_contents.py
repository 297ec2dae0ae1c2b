"""Static values that may be changed in place, and whether they were.

A model's configuration is often a dataclass of thirty fields. To compare its content
with what it was takes a step of Python's for each. Where all of it is in dicts, lists
and attributes, addresses tell in C that nothing was replaced; only if something was,
content has to be compared.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Sequence
from itertools import chain
from operator import is_
from types import GetSetDescriptorType
from typing import Any

import jax

from graphcore.cache.identities import Identities
from graphcore.content import is_immutable, method_of
from graphcore.content_key import (
    content_base,
    content_key,
    is_view,
    shown,
    slots_of,
)
from graphcore.holding import attributes_of


class StaticContents:
    """What some static values held.

    Args:
        values: The values.

    Raises:
        TypeError: If the content of one can't be compared.

    Example:
        >>> words = ['a']
        >>> contents = StaticContents([words])
        >>> words[0], held = 'b', contents.hold()
        >>> held, contents.hold()
        (True, False)
    """

    def __init__(self, values: Sequence[Any]) -> None:
        self._values = values
        # First: what is changed meanwhile must be seen later.
        self._references = _References.of(values)
        self._keys = [content_key(value, keep=True) for value in values]
        self._hashes = [*map(hash, self._keys)]

    def __eq__(self, other: object) -> bool:
        """Whether both held the same."""
        return isinstance(other, StaticContents) and self._keys == other._keys

    __hash__ = None  # type: ignore[assignment]

    def hold(self, root: Any = None) -> bool:
        """Tells whether they hold the same, as a plan asks it."""
        references = self._references
        if references is not None:
            if references.hold():
                return True
            references = _References.of(self._values)
        now = [*map(content_key, self._values)]
        if [*map(hash, now)] != self._hashes or now != self._keys:
            return False
        self._references = references
        return True


class _References:
    """What values refer to, at any depth down to what never changes.

    Args:
        parts: The values and all that they hold; kept, so that no address of it is
            used again.
        nodes: Those of classes of Python's, with the names of further containers.
        containers: Dicts, of items and of attributes, lists, sets and queues.
        keys: Views of the keys of those of items, whose order matters.
    """

    def __init__(
        self,
        parts: list[Any],
        nodes: list[tuple[Any, Sequence[str]]],
        containers: list[Any],
        keys: list[Any],
    ) -> None:
        self._parts = parts
        self._containers = containers
        self._copies = [_COPY[content_base(type(x))](x) for x in containers]
        self._views = keys
        self._keys = [*chain.from_iterable(keys)]
        self._identities = Identities(nodes, containers)

    @classmethod
    def of(cls, values: Sequence[Any]) -> _References | None:
        """Those of some values; None if one can't tell all that one of them holds."""
        parts, seen = [*values], set()
        nodes: list[tuple[Any, Sequence[str]]] = []
        containers: list[Any] = []
        keys: list[Any] = []
        for part in parts:  # grows during the loop
            if id(part) in seen or isinstance(part, jax.Array) or is_immutable(part):
                continue
            seen.add(id(part))
            if is_view(part):
                parts.append(shown(part))  # it never shows another one
                continue
            kind = type(part)
            base, own = content_base(kind), []
            if base is None:
                return None
            attributes = attributes_of(part)
            if attributes is not None:
                # If a class calls something else `__dict__`, no one can replace this.
                is_named = isinstance(method_of(kind, "__dict__"), GetSetDescriptorType)
                nodes.append((part, ("__dict__",) if is_named else ()))
                own.append(attributes)
            elif kind is not base:
                nodes.append((part, ()))
            try:
                parts += [slot.__get__(part) for slot in slots_of(kind).values()]
            except AttributeError:  # A value could move to an empty slot unnoticed.
                return None
            if base in _COPY:
                own.append(part)
            elif base is not object:
                parts += part
            for container in own:
                containers.append(container)
                if not isinstance(container, dict):
                    parts += container
                    continue
                if not all(map(is_immutable, dict.keys(container))):
                    return None
                parts += dict.values(container)
            if isinstance(part, dict):
                keys.append(base.keys(part))
            if isinstance(part, defaultdict):
                parts.append(part.default_factory)
        return cls(parts, nodes, containers, keys)

    def hold(self) -> bool:
        """Tells whether all of them refer to the same objects."""
        # In this order, keys alone are left to compare, and then their order and type.
        return (
            self._identities.hold()
            and self._copies == self._containers
            and all(map(is_, self._keys, chain.from_iterable(self._views)))
        )


# What is done to containers, however a subclass may do it.
_COPY: dict[Any, Callable[[Any], Any]] = {
    dict: dict.copy,
    OrderedDict: dict.copy,
    defaultdict: dict.copy,
    list: list.copy,
    set: set.copy,
    deque: deque.copy,
}
