"""Nested dicts and their leaves by path, in the order that states keep."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from graphcore.trails import Path, path_text

Key: TypeAlias = Any
"""A string or an integer (other hashable keys of plain dicts pass through)."""


def key_order(key: Key) -> tuple[int, Any, Any]:
    """The sort key of a key: integers before strings before anything else."""
    if isinstance(key, str):
        return 1, "", key
    if isinstance(key, int):
        return 0, "", key
    return 2, type(key).__qualname__, key


def own_key(own: Mapping[Any, Any], key: Any) -> Any:
    """The key of a dict that one that went through JSON means."""
    if key not in own and isinstance(key, str):
        try:
            number = int(key)
        except ValueError:
            return key
        if number in own and str(number) == key:
            return number
    return key


def sorted_leaves(nested: dict[Any, Any]) -> Iterator[tuple[Path, Any]]:
    """Lists the leaves of nested plain dicts with their paths, sorted by path."""
    pending: list[tuple[Path, Any]] = [((), nested)]
    while pending:
        path, node = pending.pop()
        if type(node) is dict:
            keys = sorted(node, key=key_order, reverse=True)
            pending += [((*path, key), node[key]) for key in keys]
        else:
            yield path, node


def nested_from_flat(pairs: Iterable[tuple[Path, Any]]) -> dict[Any, Any]:
    """Builds nested plain dicts from leaves with their paths.

    Raises:
        TypeError: If a path is no tuple.
        ValueError: If a path is empty, or goes through another's leaf.
    """
    root: dict[Any, Any] = {}
    parents: dict[Path, dict[Any, Any]] = {(): root}

    def parent(path: Path) -> dict[Any, Any]:
        known = len(path)
        while path[:known] not in parents:
            known -= 1
        node = parents[path[:known]]
        for depth in range(known, len(path)):
            if path[depth] in node:
                conflict = path_text(path[: depth + 1])
                raise ValueError(f"{conflict!r} is a leaf as well as a subtree.")
            node = node.setdefault(path[depth], {})
            parents[path[: depth + 1]] = node
        return node

    for path, leaf in pairs:
        if not isinstance(path, tuple):
            raise TypeError(
                f"A path is a tuple of keys, such as ('layers', 0), but got {path!r}."
            )
        if not path:
            raise ValueError("A state is a mapping; a leaf can't have an empty path.")
        if path in parents:
            raise ValueError(f"{path_text(path)!r} is a leaf as well as a subtree.")
        parent(path[:-1])[path[-1]] = leaf
    return root
