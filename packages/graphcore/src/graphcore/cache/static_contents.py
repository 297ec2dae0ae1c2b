"""Static values that may be changed in place, and whether they were.

A model's configuration is often a dataclass of thirty fields. To compare its content
with what it was takes a step of Python's for each. Where all of it is in dicts, lists
and attributes, addresses tell in C that nothing was replaced; only if something was,
content has to be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from operator import is_
from typing import Any

from graphcore.cache.identities import Identities
from graphcore.content import is_immutable
from graphcore.content_key import content_key, has_only_attributes


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

    def hold(self, root: Any = None) -> bool:
        """Tells whether they hold the same, as a plan asks it."""
        if self._references is not None and self._references.hold():
            return True
        references = _References.of(self._values)
        now = [*map(content_key, self._values)]
        if [*map(hash, now)] != self._hashes or now != self._keys:
            return False
        self._references = references
        return True


class _References:
    """What values refer to, at any depth down to what never changes."""

    def __init__(
        self, nodes: list[Any], containers: list[Any], dicts: list[Any]
    ) -> None:
        self._containers = containers
        # They keep what the containers hold, so that no address is used again.
        self._copies = [container.copy() for container in containers]
        self._dicts = dicts
        self._keys = [*chain.from_iterable(dicts)]
        owners = [(node, ("__dict__",)) for node in nodes]
        self._identities = Identities(owners, containers)

    @classmethod
    def of(cls, values: Sequence[Any]) -> _References | None:
        """Those of some values; None if there is anything but plain containers."""
        pending, seen = [*values], set()
        nodes: list[Any] = []
        containers: list[Any] = []
        dicts: list[Any] = []  # Of attributes, the order does not matter.
        for part in pending:  # grows during the loop
            if is_immutable(part) or id(part) in seen:
                continue
            seen.add(id(part))
            kind = type(part)
            if kind is tuple:
                pending += part
                continue
            if has_only_attributes(kind):
                nodes.append(part)
                part = vars(part)
            elif kind is dict:
                dicts.append(part)
            elif kind is not list:
                return None
            containers.append(part)
            if type(part) is dict:
                if not all(map(is_immutable, part)):
                    return None
                pending += part.values()
            else:
                pending += part
        return cls(nodes, containers, dicts)

    def hold(self) -> bool:
        """Tells whether all of them refer to the same objects."""
        # In this order, keys alone are left to compare, and then their order and type.
        return (
            self._identities.hold()
            and self._copies == self._containers
            and all(map(is_, self._keys, chain.from_iterable(self._dicts)))
        )
