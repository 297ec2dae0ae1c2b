"""Random streams: how the key of a draw is found.

A stream is one key, the *root key*, that all scopes share. The key of a draw is the
root key folded with a 32-bit number that stands for the path of the scope and for how
many keys of the stream were drawn there before. Nothing else enters, so a new layer
changes no other layer's keys.

The number is a *rolling* hash of the names: that of a path is computed from that of its
first part and from the rest. A lifted `jit` passes the number of the path outside as an
argument, so one compilation serves every place, at any depth, where a module is used.
"""

from __future__ import annotations

import functools
import hashlib
from collections import ChainMap
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np

from .errors import InvalidRngError

Path: TypeAlias = tuple[str, ...]

_MASK = 0xFFFFFFFF
_BASE = 0x9E3779B1  # odd, so that no part of a number is lost by multiplying


@functools.lru_cache(maxsize=65536)
def _hashed(text: str) -> int:
    digest = hashlib.blake2s(text.encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little")


class Origin(NamedTuple):
    """A path whose number is known, and from which those of paths below are found.

    Args:
        path: the path; the root's by default.
        number: its number, a uint32 scalar; None for the root, which has none.
    """

    path: Path = ()
    number: Any = None

    def number_of(self, path: Path, *below: str) -> Any:
        """The number that stands for a path.

        Args:
            path: the names from the root to a scope, the first those of the origin.
            *below: what comes after the path.

        Returns:
            A uint32 scalar.
        """
        # Marked, so that no name is taken for the count of a draw.
        texts = (*[f"name/{name}" for name in path[len(self.path) :]], *below)
        number = 0
        for text in texts:
            number = (number * _BASE + _hashed(text)) & _MASK
        if self.number is None:
            return np.uint32(number)
        if not texts:
            return self.number
        shift = np.uint32(pow(_BASE, len(texts), _MASK + 1))
        return self.number * shift + np.uint32(number)


ROOT = Origin()


def draw_key(key: Any, path: Path, count: int, origin: Origin) -> Any:
    """The key of one draw.

    Args:
        key: the root key of the stream.
        path: the path of the scope that draws.
        count: how many keys of the stream were drawn at the path before.
        origin: where numbers of paths start.

    Returns:
        A key.
    """
    return jax.random.fold_in(key, origin.number_of(path, f"count/{count}"))


DrawCounts: TypeAlias = "ChainMap[tuple[Path, str], int]"
"""How many keys were drawn by path and stream: here, then in the trees around."""


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


def checked_rngs(rngs: Any) -> dict[str, Any]:
    """Root keys by stream, from one key or a mapping.

    Raises:
        InvalidRngError: if they are neither.
    """
    if rngs is None:
        return {}
    if not isinstance(rngs, Mapping):
        if not is_key(rngs):
            raise InvalidRngError(
                "rngs must be one key or a mapping from the names of streams to keys, "
                f"such as {{'params': jax.random.key(0)}}; found {rngs!r}."
            )
        return {"params": rngs}
    for name, key in rngs.items():
        if not isinstance(name, str) or not is_key(key):
            raise InvalidRngError(
                f'Random stream "{name}" needs one key, from jax.random.key or '
                f"jax.random.PRNGKey; found {key!r}."
            )
    return dict(rngs)
