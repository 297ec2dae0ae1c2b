"""Visits of live graphs in depth-first order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from graphcore.cache.plans import plan_of
from graphcore.graphdef.definition import NodeDef, StaticAttribute
from graphcore.nodes.registry import (
    GraphNodeImpl,
    NodeImpl,
    find_impl,
    get_node_impl,
)
from graphcore.refmap import RefMap
from graphcore.state.filters import Filter, to_predicate
from graphcore.trails import Path, path_text
from graphcore.variables.impl import VariableImpl

__all__ = ["find_duplicates", "iter_graph"]


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
    impl = find_impl(node)
    if not isinstance(impl, NodeImpl):
        yield (), node
        return
    nodes: RefMap[Any, None] = RefMap()
    variables: RefMap[Any, None] = RefMap()
    open_pytrees: set[Any] = set()  # as in `walk`

    def opened(path: Path, node: Any, impl: NodeImpl) -> tuple[Any, ...]:
        mark = None
        if isinstance(impl, GraphNodeImpl):
            nodes[node] = None
        else:
            mark = id(node), len(nodes)
            if mark in open_pytrees:
                raise ValueError(
                    f"The {type(node).__name__} at {path_text(path)!r} contains itself."
                )
            open_pytrees.add(mark)
        return path, node, mark, iter(impl.flatten(node)[0])

    stack = [opened((), node, impl)]
    while stack:
        path, node, mark, pending = stack[-1]
        for key, child in pending:
            here = (*path, key)
            impl = find_impl(child)
            if impl is None:
                yield here, child
            elif isinstance(impl, VariableImpl):
                if child not in variables:
                    variables[child] = None
                    yield here, child
            elif child not in nodes:
                stack.append(opened(here, child, impl))
                break
        else:
            stack.pop()
            open_pytrees.discard(mark)
            yield path, node


def places(root: Any) -> Iterator[tuple[Path, Any, Any]]:
    """Lists the graph nodes and variables of a graph at every place where they stand.

    Args:
        root: A node or variable.

    Yields:
        `(path, holder, object)`, parents first and in order of keys. The holder is the
        graph node that has the object for a child, None where that is a pytree node,
        and for the root. For a bare array the object is its `BareArray`.

    Raises:
        ValueError: If the graph has no plan; see `plan_of`.

    Example:
        >>> import graphcore as gc
        >>> inner = gc.Dict(c=gc.Param(1))
        >>> [path for path, *_ in places(gc.Dict(a=inner, b=inner))]
        [(), ('a',), ('a', 'c'), ('b',)]
    """
    plan = plan_of(root)
    indices = (definition.index for definition in plan.layout.definitions)
    variables = dict(zip(indices, plan.variables, strict=True))
    pending: list[tuple[Path, Any, Any, Any]] = [((), None, plan.definition, root)]
    while pending:
        path, holder, item, x = pending.pop()
        inside = None
        if item.index >= 0:
            inside = x
            yield path, holder, variables.get(item.index, x)
        if isinstance(item, NodeDef):
            pairs = zip(item.attributes, get_node_impl(x).flatten(x)[0], strict=True)
            pending += [
                ((*path, key), inside, each.value, child)
                for each, (key, child) in reversed([*pairs])
                if type(each) is not StaticAttribute
            ]


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
