"""Random streams: how the key of a draw is found.

A stream is one key, the *root key*, that all scopes share. The key of a draw is the
root key folded with a 32-bit number that stands for the path of the scope and for how
many keys of the stream were drawn there before. Nothing else enters, so a new layer
changes no other layer's keys.

The number is a *sum* of one hash per path component. A sum can be taken in parts: a
lifted `jit` passes the part that belongs to the path outside as an argument, so one
compilation serves every place where a module is used.
"""

from __future__ import annotations

import functools
import hashlib
from typing import Any, TypeAlias

import jax
import numpy as np

__all__ = ["DrawCounts", "Path", "draw_key", "is_key", "path_number"]

Path: TypeAlias = tuple[str, ...]

_MASK = 0xFFFFFFFF


@functools.lru_cache(maxsize=65536)
def _component_number(position: int, name: str) -> int:
    digest = hashlib.blake2s(f"{position}/{name}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little")


def path_number(path: Path) -> int:
    """The part of the folded number that stands for a path.

    Args:
        path: the names from the root to a scope.

    Returns:
        An integer below 2**32.
    """
    return sum(_component_number(i, name) for i, name in enumerate(path)) & _MASK


def draw_key(key: Any, path: Path, count: int, offset: Any, offset_path: Path) -> Any:
    """The key of one draw.

    Args:
        key: the root key of the stream.
        path: the path of the scope that draws.
        count: how many keys of the stream were drawn at the path before.
        offset: None, or the traced number of `offset_path`, a uint32 scalar.
        offset_path: the first components of `path` that `offset` stands for.

    Returns:
        A key.
    """
    number = path_number(path) + _component_number(-1, str(count))
    if offset is None:
        return jax.random.fold_in(key, np.uint32(number & _MASK))
    number -= path_number(offset_path)
    return jax.random.fold_in(key, offset + np.uint32(number & _MASK))


class DrawCounts:
    """How many keys were drawn, by path and stream.

    Args:
        outer: the counts that these continue; they are read and never written until
            `publish`. A lifted function may be traced several times, and each trace
            must start from the same counts.
    """

    __slots__ = ("counts", "outer")

    def __init__(self, outer: DrawCounts | None = None) -> None:
        self.counts: dict[tuple[Path, str], int] = {}
        self.outer = outer

    def get(self, place: tuple[Path, str]) -> int:
        """The count at a path, of a stream."""
        counts: DrawCounts | None = self
        while counts is not None:
            found = counts.counts.get(place)
            if found is not None:
                return found
            counts = counts.outer
        return 0

    def snapshot(self) -> DrawCounts:
        """The counts of now, which later draws do not change."""
        new = DrawCounts()
        counts: DrawCounts | None = self
        while counts is not None:
            new.counts = {**counts.counts, **new.counts}
            counts = counts.outer
        return new

    def next(self, place: tuple[Path, str]) -> int:
        """The count before one more key is drawn."""
        count = self.get(place)
        self.counts[place] = count + 1
        return count

    def publish(self, counts: dict[tuple[Path, str], int]) -> None:
        """Takes over counts that an inner scope reached."""
        for place, count in counts.items():
            if count > self.get(place):
                self.counts[place] = count


def is_key(x: Any) -> bool:
    """Whether `x` is one random key, typed or raw.

    Args:
        x: anything.

    Returns:
        True for a scalar typed key and for a raw uint32 key.
    """
    dtype, shape = getattr(x, "dtype", None), getattr(x, "shape", None)
    if dtype is None or shape is None:
        return False
    if jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
        return bool(shape == ())
    return len(shape) == 1 and bool(dtype == np.uint32)
