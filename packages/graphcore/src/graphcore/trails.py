"""Paths, how messages write them, and trails: paths that share their beginnings.

A walk passes through many places and needs the path of few. A *trail* is a key with
the trail of the place above it, so that each takes the same small amount of memory,
however deep the graph is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

Path: TypeAlias = tuple[Any, ...]
Trail: TypeAlias = Any
"""`(trail above, key)`; None for the root."""


def path_text(path: Iterable[Any]) -> str:
    """Writes a path as `layers/3/kernel`, the root as `<root>`.

    Args:
        path: The keys from the root to the place that is meant.

    Returns:
        The keys, separated by slashes.

    Example:
        >>> path_text(('layers', 3, 'kernel')), path_text(())
        ('layers/3/kernel', '<root>')
    """
    return "/".join(map(str, path)) or "<root>"


def key_of(entry: Any) -> Any:
    """The plain key of an entry in one of JAX's key paths.

    Args:
        entry: A key that JAX wraps, as of its type.

    Returns:
        What the entry wraps; its text, if it is of an unknown type.

    Example:
        >>> import jax
        >>> key_of(jax.tree_util.DictKey('a')), key_of(jax.tree_util.SequenceKey(0))
        ('a', 0)
    """
    for name in ("key", "idx", "name"):
        if hasattr(entry, name):
            return getattr(entry, name)
    return str(entry)


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
