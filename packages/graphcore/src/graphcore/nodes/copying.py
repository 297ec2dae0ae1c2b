"""Deep copies and pickles of graphs of any depth.

`copy.deepcopy` and `pickle` recurse into what an object holds, so a long chain of
nodes would exhaust the stack. A deep copy is made here without recursion. For pickle,
the first node that is reached names all of those below it, to be pickled before it,
the lowest first; each then meets nodes that are known already.
"""

from __future__ import annotations

import copy
import threading
import weakref
from collections.abc import Iterator
from typing import Any

from graphcore.nodes.owned import OwnedNode

_CONTAINERS = (list, tuple, dict)


def deepcopy_node(root: OwnedNode, memo: dict[int, Any]) -> Any:
    """What `copy.deepcopy` returns for a node, made without recursion.

    Args:
        root: The node.
        memo: Of `copy.deepcopy`.

    Returns:
        The copy.
    """
    made: list[tuple[Any, Any]] = []
    for x in _children_first(root):
        # A class with a way of its own to be copied is left to that.
        if id(x) not in memo and type(x)._node__is_copied_plainly:
            memo[id(x)] = twin = type(x).__new__(type(x))
            made.append((x, twin))
    # As `copy` does it: what the ids stand for must live as long as the memo.
    memo.setdefault(id(memo), []).extend(node for node, _ in made)
    for node, twin in made:
        twin.__setstate__(copy.deepcopy(node.__getstate__(), memo))
    return memo[id(root)]


class _Early(list[Any]):
    """Nodes to pickle before the one that names them; turns into None."""

    __slots__ = ("__weakref__", "ids")

    ids: set[int]

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _nothing, tuple(self)


def _nothing(*nodes: Any) -> None:
    return None


class _Active(threading.local):
    # Weak: pickle keeps the object alive while it runs. It is only a hint, which does
    # not decide what a node turns into.
    early: weakref.ref[_Early] | None = None


_active = _Active()


def reduce_node(node: OwnedNode, protocol: Any) -> Any:
    """What `node.__reduce_ex__(protocol)` returns.

    Args:
        node: The node.
        protocol: Of pickle.

    Returns:
        What `object.__reduce_ex__` returns, with nodes to be pickled before this one.
    """
    # Older protocols would make the node without its `__new__`.
    reduced: Any = object.__reduce_ex__(node, max(protocol, 2))
    if not type(node)._node__is_copied_plainly:
        return reduced
    active = _active.early() if _active.early is not None else None
    if active is not None and id(node) in active.ids:
        return reduced
    early = _Early(_children_first(node))
    early.ids = {*map(id, early)}
    early.pop()  # the node itself
    _active.early = weakref.ref(early)
    make, arguments, state, *_ = reduced
    return make, arguments, (early, state), None, None, _set_state


def _set_state(node: Any, early_and_state: tuple[None, Any]) -> None:
    node.__setstate__(early_and_state[1])


def _children_first(root: OwnedNode) -> Iterator[OwnedNode]:
    """The nodes of a graph, each after those below it; the root is the last."""
    seen = {id(root)}
    made: list[Any] = []  # kept, so that nothing else gets the id of one
    stack: list[tuple[Any, Iterator[Any]]] = [(root, _children(root, made))]
    while stack:
        x, pending = stack[-1]
        for child in pending:
            is_inner = type(child) in _CONTAINERS or isinstance(child, OwnedNode)
            if is_inner and id(child) not in seen:
                seen.add(id(child))
                stack.append((child, _children(child, made)))
                break
        else:
            stack.pop()
            if isinstance(x, OwnedNode):
                yield x


def _children(x: Any, made: list[Any]) -> Iterator[Any]:
    containers: tuple[Any, ...] = (x,)
    if isinstance(x, OwnedNode):
        containers = x._node__containers()
        if not type(x)._node__is_copied_plainly:
            # The class says how it is copied, and may leave out what it holds.
            containers = ((x.__getstate__(),),)
            made.append(containers)
    for container in containers:
        yield from container.values() if isinstance(container, dict) else container
