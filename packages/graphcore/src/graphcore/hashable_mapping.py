"""A mapping that can be part of a hashable definition."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from graphcore.content import is_immutable
from graphcore.content_key import content_key, same_content, snapshot
from graphcore.display.printing import Parts, mapping_parts

__all__ = ["HashableMapping"]

K = TypeVar("K")
V = TypeVar("V")


class HashableMapping(Mapping[K, V]):
    """A mapping whose contents must not change, with a hash that ignores order.

    Values of different types never compare equal: `{'a': 1}` is not `{'a': True}`.

    Args:
        mapping_or_pairs: The contents.
        copy: Whether to copy them; leave it only if nobody else holds the dict.

    Example:
        >>> a, b = HashableMapping({'x': 1, 2: 'y'}), HashableMapping({2: 'y', 'x': 1})
        >>> a == b, hash(a) == hash(b)
        (True, True)
    """

    __slots__ = ("_hash", "_mapping")

    def __init__(
        self,
        mapping_or_pairs: Mapping[K, V] | Iterable[tuple[K, V]] = (),
        copy: bool = True,
    ) -> None:
        if copy or not isinstance(mapping_or_pairs, dict):
            mapping_or_pairs = dict(mapping_or_pairs)
        self._mapping: dict[K, V] = mapping_or_pairs
        self._hash: int | None = None

    def __getitem__(self, key: K) -> V:
        return self._mapping[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self._mapping)

    def __len__(self) -> int:
        return len(self._mapping)

    def __contains__(self, key: object) -> bool:
        return key in self._mapping

    def __hash__(self) -> int:
        if self._hash is None:
            entries = frozenset((k, content_key(v)) for k, v in self._mapping.items())
            self._hash = hash(entries)
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, HashableMapping):
            return NotImplemented
        if self._mapping.keys() != other._mapping.keys():
            return False
        return all(
            same_content(value, other._mapping[key])
            for key, value in self._mapping.items()
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return HashableMapping, (self._mapping,)

    def __repr__(self) -> str:
        return f"HashableMapping({self._mapping!r})"

    def __parts__(self) -> Parts:
        return mapping_parts("HashableMapping", self.items())


EMPTY: HashableMapping[str, Any] = HashableMapping()
"""The one empty mapping: most variables have no metadata, and `is` is a quick test."""


def as_hashable(metadata: Mapping[str, Any]) -> HashableMapping[str, Any]:
    """Returns metadata as a `HashableMapping`, without a copy where it is one already.

    Args:
        metadata: Any mapping from names.

    Returns:
        The mapping; `EMPTY` itself if there is nothing in it.

    Example:
        >>> as_hashable({}) is EMPTY
        True
    """
    if metadata is EMPTY or not metadata:
        return EMPTY
    if isinstance(metadata, HashableMapping):
        return metadata
    return HashableMapping(metadata)


def as_kept(metadata: HashableMapping[str, Any]) -> HashableMapping[str, Any]:
    """Returns metadata in a form that later changes of its values don't reach.

    Args:
        metadata: Metadata in use.

    Returns:
        The mapping itself if all of its values are immutable.

    Example:
        >>> metadata = as_hashable({'unit': 'm'})
        >>> as_kept(metadata) is metadata
        True
    """
    if metadata is EMPTY or all(map(is_immutable, metadata._mapping.values())):
        return metadata
    kept = {name: snapshot(value) for name, value in metadata.items()}
    return HashableMapping(kept, copy=False)
