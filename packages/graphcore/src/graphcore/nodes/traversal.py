"""Visits of live graphs in depth-first order, without describing them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from graphcore.errors import path_text
from graphcore.identity import identity
from graphcore.nodes.registry import (
    GraphNodeImpl,
    NodeImpl,
    find_node_impl,
    get_node_impl,
)
from graphcore.trails import Path
from graphcore.variables.impl import find_variable_impl, is_variable

__all__ = ["iter_graph"]


_ATOMS = frozenset((bool, int, float, complex, str, bytes, type(...)))


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
    impl = None if is_variable(node) else find_node_impl(node)
    if impl is None:
        yield (), node
        return
    visit = _Visit(node, impl)
    seen = visit.seen
    stack = visit.stack
    while stack:
        path, value, pending = stack[-1]
        for key, child in pending:
            kind = type(child)
            if kind in _ATOMS:
                yield (*path, key), child
            elif find_variable_impl(kind) is not None:
                if identity(child) not in seen:
                    seen[identity(child)] = child
                    yield (*path, key), child
            else:
                impl = find_node_impl(child)
                if impl is None:
                    yield (*path, key), child
                elif visit.open((*path, key), child, impl):
                    break
        else:
            visit.close()
            yield path, value


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
    visit = _Visit(root, get_node_impl(root))
    stack = visit.stack
    while stack:
        path, node, pending = stack[-1]
        for key, child in pending:
            here = (*path, key)
            yield here, node, key, child
            kind = type(child)
            if kind in _ATOMS or find_variable_impl(kind) is not None:
                continue
            impl = find_node_impl(child)
            if impl is not None and visit.open(here, child, impl):
                break
        else:
            visit.close()


class _Visit:
    """The nodes on the way from the root, and the graph nodes seen so far."""

    __slots__ = ("_graph_nodes", "_open_pytrees", "seen", "stack")

    def __init__(self, root: Any, impl: NodeImpl) -> None:
        # The values keep their ids from being taken over.
        self.seen: dict[int, Any] = {}
        self.stack: list[tuple[Path, Any, Iterator[tuple[Any, Any]]]] = []
        self._graph_nodes = 0
        # As in `walk`: the number of graph nodes seen when each was opened.
        self._open_pytrees: dict[int, list[int]] = {}
        self.open((), root, impl)

    def open(self, path: Path, node: Any, impl: NodeImpl) -> bool:
        if isinstance(impl, GraphNodeImpl):
            if identity(node) in self.seen:
                return False
            self.seen[identity(node)] = node
            self._graph_nodes += 1
        else:
            above = self._open_pytrees.setdefault(identity(node), [])
            if above and above[-1] == self._graph_nodes:
                raise ValueError(
                    f"The {type(node).__name__} at {path_text(path)!r} contains itself."
                )
            above.append(self._graph_nodes)
        self.stack.append((path, node, iter(impl.flatten(node)[0])))
        return True

    def close(self) -> None:
        _, node, _ = self.stack.pop()
        above = self._open_pytrees.get(identity(node))
        if above:
            above.pop()
