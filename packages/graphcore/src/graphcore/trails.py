"""Paths that share their beginnings.

A walk passes through many places and needs the path of few. A *trail* is a key with
the trail of the place above it, so that each takes the same small amount of memory,
however deep the graph is.
"""

from __future__ import annotations

from typing import Any, TypeAlias

Path: TypeAlias = tuple[Any, ...]
Trail: TypeAlias = Any
"""`(trail above, key)`; None for the root."""


def path_of(trail: Trail) -> Path:
    """Writes a trail out.

    Args:
        trail: The trail of a place.

    Returns:
        The keys from the root to the place.

    Example:
        >>> path_of(((None, 'layers'), 3)), path_of(None)
        (('layers', 3), ())
    """
    keys: list[Any] = []
    while trail is not None:
        trail, key = trail
        keys.append(key)
    return tuple(reversed(keys))
