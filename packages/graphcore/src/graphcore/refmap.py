"""Mappings keyed by identity."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any, TypeVar

from graphcore.display.printing import Parts

__all__ = ["RefMap", "compose_mapping", "compose_mapping_reversed"]

K = TypeVar("K")
V = TypeVar("V")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")


class RefMap(MutableMapping[K, V]):
    """A mutable mapping that compares its keys with `is` and keeps them alive.

    Keys need not be hashable. Iteration follows the order of insertion.

    Args:
        mapping_or_pairs: What the mapping holds at first.

    Example:
        >>> a, b = [1], [1]
        >>> names = RefMap([(a, 'first'), (b, 'second')])
        >>> names[a], names[b], [1] in names
        ('first', 'second', False)
    """

    __slots__ = ("_entries",)

    def __init__(
        self, mapping_or_pairs: Mapping[K, V] | Iterable[tuple[K, V]] = (), /
    ) -> None:
        # The key is stored beside its value: that keeps it alive, so its id can't be
        # taken over by another object while the entry stands.
        self._entries: dict[int, tuple[K, V]] = {}
        if mapping_or_pairs != ():
            self.update(mapping_or_pairs)

    def __getitem__(self, key: K) -> V:
        try:
            return self._entries[id(key)][1]
        except KeyError:
            raise KeyError(key) from None

    def get(self, key: K, default: Any = None) -> Any:
        """Returns the value of a key, or a default.

        Args:
            key: The object.
            default: What to return if the object is not a key.

        Returns:
            The value or the default.

        Example:
            >>> RefMap().get(object(), 'none')
            'none'
        """
        entry = self._entries.get(id(key))
        return default if entry is None else entry[1]

    def __setitem__(self, key: K, value: V) -> None:
        self._entries[id(key)] = (key, value)

    def __delitem__(self, key: K) -> None:
        try:
            del self._entries[id(key)]
        except KeyError:
            raise KeyError(key) from None

    def __contains__(self, key: object) -> bool:
        return id(key) in self._entries

    def __iter__(self) -> Iterator[K]:
        return iter([key for key, _ in self._entries.values()])

    def __len__(self) -> int:
        return len(self._entries)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RefMap):
            return NotImplemented
        if self._entries.keys() != other._entries.keys():
            return False
        return all(other[key] == value for key, value in self._entries.values())

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        # As pairs, because a copy of a key has another id.
        return RefMap, (list(self._entries.values()),)

    def __repr__(self) -> str:
        pairs = ", ".join(f"{k!r}: {v!r}" for k, v in self._entries.values())
        return f"RefMap({{{pairs}}})"

    def __parts__(self) -> Parts:
        # As pairs, because a key may have as much inside as a value.
        return Parts("RefMap", [("", pair) for pair in self.items()], ("([", "])"))


@contextlib.contextmanager
def forgetting(refs: RefMap[Any, Any]) -> Iterator[None]:
    """Removes what the block has added to a map, if it raises.

    Args:
        refs: The map.
    """
    known = len(refs)
    try:
        yield
    except BaseException:
        for key in list(refs)[known:]:
            del refs[key]
        raise


def compose_mapping(ab: Mapping[A, B], bc: Mapping[B, C], /) -> Mapping[A, C]:
    """Follows `ab`, then `bc`; keys that don't continue are dropped.

    Args:
        ab: From A to B.
        bc: From B to C.

    Returns:
        From A to C; keyed by identity if `ab` is.

    Example:
        >>> compose_mapping({'x': 1, 'y': 2}, {1: 'one'})
        {'x': 'one'}
    """
    pairs = ((a, bc[b]) for a, b in ab.items() if b in bc)
    return RefMap(pairs) if isinstance(ab, RefMap) else dict(pairs)


def compose_mapping_reversed(ab: Mapping[A, B], bc: Mapping[B, C], /) -> Mapping[C, A]:
    """The inverse of `compose_mapping(ab, bc)`.

    Args:
        ab: From A to B.
        bc: From B to C.

    Returns:
        From C to A; keyed by identity if a C is not hashable.

    Example:
        >>> compose_mapping_reversed({'x': 1, 'y': 2}, {1: 'one'})
        {'one': 'x'}
    """
    pairs: list[tuple[Any, A]] = [(bc[b], a) for a, b in ab.items() if b in bc]
    try:
        return dict(pairs)
    except TypeError:
        return RefMap(pairs)
