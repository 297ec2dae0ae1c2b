"""What a graph reaches in several ways."""

from __future__ import annotations

from typing import Any

from graphcore.nodes.traversal import places
from graphcore.refmap import RefMap
from graphcore.state.filters import Filter, to_predicate
from graphcore.trails import Path

__all__ = ["find_duplicates"]


def find_duplicates(node: Any, /, *, only: Filter = ...) -> list[list[Path]]:
    """Finds what is reached in several ways.

    Args:
        node: A graph node or pytree node.
        only: Selects graph nodes and variables.

    Returns:
        For each that is reached more than once, all of its paths.

    Example:
        >>> import graphcore as gc
        >>> shared = gc.Param(1)
        >>> gc.find_duplicates(gc.Dict(a=shared, b=gc.Param(2), c=shared))
        [[('a',), ('c',)]]
    """
    predicate = to_predicate(only)
    paths: RefMap[Any, list[Path]] = RefMap()
    for path, _, x in places(node):
        found = paths.setdefault(x, [])
        if not found or predicate(path, x):
            found.append(path)
    return [found for found in paths.values() if len(found) > 1]
