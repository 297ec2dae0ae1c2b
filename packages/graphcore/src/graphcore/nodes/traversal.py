"""Visits of live graphs in depth-first order, without describing them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from graphcore.errors import path_text
from graphcore.identity import identity
from graphcore.nodes.registry import (
    ATOMS,
    GraphNodeImpl,
    NodeImpl,
    find_node_impl,
    get_node_impl,
)
from graphcore.refmap import RefMap
from graphcore.trails import Path
from graphcore.variables.impl import is_variable

__all__ = ["iter_graph"]


def iter_graph(node: Any, /) -> Iterator[tuple[Path, Any]]:
    """Lists every node and leaf of a graph with its path, children before parents.

    Args:
        node: A graph node or pytree node.

    Yields:
        `(path, value)` for each graph node, pytree node, variable and static value;
        graph nodes and variables once, at their first path. The root comes last.

    Raises:
        ValueError: If a plain container contains itself, with its path.

    Example:
        >>> import graphcore as gc
        >>> node = gc.Dict(a=gc.Param(1), b=2)
        >>> [path for path, value in gc.iter_graph(node)]
        [('a',), ('b',), ()]
    """
    if is_variable(node) or find_node_impl(node) is None:
        yield (), node
        return
    seen: dict[int, tuple[Path, Any]] = {}
    for path, _, _, child, impl, is_left in _visit(node):
        if impl is None:
            found = path, child
            if not is_left and type(child) not in ATOMS and is_variable(child):
                if seen.setdefault(identity(child), found) is not found:
                    continue
            yield found


def edges(root: Any) -> Iterator[tuple[Path, Any, Any, Any]]:
    """Lists every way from a node to a child in a graph, in depth-first order.

    Args:
        root: A graph node or pytree node.

    Yields:
        `(path, node, key, child)`. The children of a graph node are listed where it is
        reached first.

    Raises:
        ValueError: If a plain container contains itself, with its path.

    Example:
        >>> import graphcore as gc
        >>> inner = gc.Dict(c=1)
        >>> [path for path, *_ in edges(gc.Dict(a=inner, b=inner))]
        [('a',), ('a', 'c'), ('b',)]
    """
    for path, node, key, child, _, is_left in _visit(root):
        if not is_left:
            yield path, node, key, child


def _visit(root: Any) -> Iterator[tuple[Path, Any, Any, Any, NodeImpl | None, bool]]:
    """As `edges`; and each node once more, when all of its children were visited."""
    seen: RefMap[Any, None] = RefMap()
    # As in `walk`: the number of graph nodes seen when each was opened.
    open_pytrees: RefMap[Any, list[int]] = RefMap()
    stack: list[tuple[Path, Any, Iterator[tuple[Any, Any]]]] = []

    def enter(path: Path, node: Any, impl: NodeImpl) -> bool:
        if isinstance(impl, GraphNodeImpl):
            if node in seen:
                return False
            seen[node] = None
        else:
            above = open_pytrees.setdefault(node, [])
            if above and above[-1] == len(seen):
                raise ValueError(
                    f"The {type(node).__name__} at {path_text(path)!r} contains itself."
                )
            above.append(len(seen))
        stack.append((path, node, iter(impl.flatten(node)[0])))
        return True

    enter((), root, get_node_impl(root))
    while stack:
        path, node, pending = stack[-1]
        for key, child in pending:
            here = (*path, key)
            impl = find_node_impl(child)
            yield here, node, key, child, impl, False
            if impl is not None and enter(here, child, impl):
                break
        else:
            stack.pop()
            if above := open_pytrees.get(node):
                above.pop()
            yield path, None, None, node, None, True
