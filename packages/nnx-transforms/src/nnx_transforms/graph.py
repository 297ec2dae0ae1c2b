"""Walks over whole graphs, beside graphcore's functions on graphs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from graphcore import GraphNodeImpl, get_node_impl, is_node, is_variable
from graphcore.authors import is_object, path_text
from nnx_transforms.transforms.graph_mode import accepts_graph_mode, clone, iter_graph

_A = TypeVar("_A")
Key = Any
Path = tuple[Key, ...]


def __getattr__(name: str) -> Any:
    return getattr(sys.modules[__package__], name)


@accepts_graph_mode
def recursive_map(f: Callable[[Path, Any], Any], node: _A, /) -> _A:
    """Copies a graph, with every node and leaf replaced by what a function says.

    Args:
        f: Called as `f(path, value)` for each graph node, pytree node, variable and
            static value, children before parents; graph nodes and variables once, at
            their first path. A node that it is given has its new children already.
        node: A graph node or pytree node. It stays as it is, but the copy has the same
            variables, where the function leaves them.

    Returns:
        What the function returns for the root.

    Raises:
        ValueError: If a graph node is below itself, with its path.

    Example:
        >>> import graphcore as gc
        >>> node = gc.Dict(a=1, b=[2, 3])
        >>> double = lambda path, x: 2 * x if isinstance(x, int) else x
        >>> recursive_map(double, node)
        Dict({'a': 2, 'b': [4, 6]})
    """
    node = clone(node, variables=False)
    # By path, and by identity of what may be reached in several ways.
    done: dict[Path | int, Any] = {}
    result: Any = node
    for path, value in list(iter_graph(node)):
        is_leaf = is_variable(value) or not is_node(value)
        result = f(path, value if is_leaf else _with_children(path, value, done))
        done[id(value) if is_object(value) else path] = result
    return result  # type: ignore[no-any-return]


def _with_children(path: Path, node: Any, done: Mapping[Path | int, Any]) -> Any:
    impl = get_node_impl(node)
    pairs, metadata = impl.flatten(node)
    new = []
    for key, child in pairs:
        where = (*path, key)
        if where not in done and id(child) not in done:
            raise ValueError(
                f"The {type(child).__name__} at {path_text(where)!r} is below itself: "
                "a graph with a cycle has no order in which each node comes after its "
                "children. Change it in place, as `iter_graph` visits it."
            )
        new.append((key, done.get(where, done.get(id(child)))))
    both = zip(pairs, new, strict=True)
    changed = [pair for old, pair in both if old[1] is not pair[1]]
    if not isinstance(impl, GraphNodeImpl):
        return impl.unflatten(new, metadata) if changed else node
    for key, child in changed:
        impl.set_key(node, key, child)
    return node


@accepts_graph_mode
def iter_children(node: Any, /) -> Iterator[tuple[Any, Any]]:
    """Lists the variables and graph nodes that a node holds itself.

    Args:
        node: A graph node or pytree node.

    Yields:
        `(key, child)` in sorted order.

    Example:
        >>> import graphcore as gc
        >>> [key for key, child in iter_children(gc.Dict(a=gc.Param(1), b=gc.Dict()))]
        ['a', 'b']
    """
    pairs, _ = get_node_impl(node).flatten(node)
    return ((key, child) for key, child in pairs if is_object(child))
