"""Nested mappings to flat ones, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

Path = tuple[Any, ...]


class _EmptyNode:
    """Stands for an empty mapping in a flat one."""

    def __repr__(self) -> str:
        return "empty_node"


empty_node = _EmptyNode()


def flatten_to_sequence(
    xs: Mapping[Any, Any],
    /,
    *,
    is_leaf: Callable[[Path, Mapping[Any, Any]], bool] | None = None,
    keep_empty_nodes: bool = False,
) -> list[tuple[Path, Any]]:
    """Lists the leaves of a nested mapping with their paths, in its order.

    Args:
        xs: The mapping.
        is_leaf: Whether a mapping at a path is to be a leaf.
        keep_empty_nodes: Whether empty mappings are listed, as `empty_node`.

    Returns:
        Pairs of path and leaf.

    Example:
        >>> flatten_to_sequence({'a': 1, 'b': {'c': 2, 'd': {}}})
        [(('a',), 1), (('b', 'c'), 2)]
    """
    found: list[tuple[Path, Any]] = []
    pending: list[tuple[Path, Any]] = [((), xs)]
    while pending:
        path, value = pending.pop()
        if not isinstance(value, Mapping) or (is_leaf and is_leaf(path, value)):
            found.append((path, value))
        elif value:
            below = [((*path, key), child) for key, child in value.items()]
            pending += reversed(below)
        elif keep_empty_nodes and path:
            found.append((path, empty_node))
    return found


def flatten_mapping(
    xs: Mapping[Any, Any],
    /,
    *,
    keep_empty_nodes: bool = False,
    is_leaf: Callable[[Path, Mapping[Any, Any]], bool] | None = None,
    sep: str | None = None,
) -> dict[Any, Any]:
    """Turns a nested mapping into a flat one.

    Args:
        xs: The mapping.
        keep_empty_nodes: Whether empty mappings are kept, as `empty_node`.
        is_leaf: Whether a mapping at a path is to be a leaf.
        sep: Joins the keys of a path to a string; None leaves it a tuple.

    Returns:
        A dict from paths to leaves.

    Example:
        >>> flatten_mapping({'a': 1, 'b': {'c': 2}}, sep='/')
        {'a': 1, 'b/c': 2}
    """
    pairs = flatten_to_sequence(xs, is_leaf=is_leaf, keep_empty_nodes=keep_empty_nodes)
    return {path if sep is None else sep.join(path): leaf for path, leaf in pairs}


def unflatten_mapping(
    xs: Mapping[Any, Any] | Iterable[tuple[Any, Any]],
    /,
    *,
    sep: str | None = None,
) -> dict[Any, Any]:
    """Turns a flat mapping into a nested one.

    Args:
        xs: Paths and leaves, as `flatten_mapping` returns them.
        sep: What joins the keys of a path, if paths are strings.

    Returns:
        Nested dicts.

    Example:
        >>> unflatten_mapping({('a',): 1, ('b', 'c'): 2})
        {'a': 1, 'b': {'c': 2}}
    """
    result: dict[Any, Any] = {}
    for path, value in xs.items() if isinstance(xs, Mapping) else xs:
        *above, last = path if sep is None else path.split(sep)
        node = result
        for key in above:
            node = node.setdefault(key, {})
        node[last] = {} if value is empty_node else value
    return result
