"""What a plan watches of nodes of registered types.

Such a node tells nobody when it changes. So a plan looks at its containers whenever it
is asked, at those of all nodes at once and in C.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from operator import attrgetter, is_
from typing import Any

from graphcore.nodes.registry import NodeImpl

__all__ = ["NO_NODES", "ForeignNodes"]


class ForeignNodes:
    """The classes and containers of some nodes at one time, and what these held.

    Of what is in a container nobody is asked whether it equals something: the same
    objects under the same keys in the same order are what a plan is made of.

    Args:
        root: The root of the graph, which is not kept.
        nodes: Nodes with declared containers, and how each is handled.

    Example:
        >>> import graphcore as gc
        >>> class Box: pass
        >>> impl = gc.PytreeNodeImpl(Box, None, None, containers=('__dict__',))
        >>> box = Box(); box.content = 1
        >>> watched = ForeignNodes(None, [(box, impl)])
        >>> watched.hold(None)
        True
        >>> box.content = True
        >>> watched.hold(None)
        False
    """

    __slots__ = ("_dicts", "_keys", "_lengths", "_lists", "_owners", "_types", "_values")

    def __init__(self, root: Any, nodes: Sequence[tuple[Any, NodeImpl]]) -> None:
        of_name: dict[str, list[Any]] = {}
        for node, impl in nodes:
            for name in impl.containers:
                of_name.setdefault(name, []).append(node)
        # For each attribute how it is read, whether the root has it, the other nodes
        # that do, and what was found there.
        self._owners: list[tuple[Any, bool, list[Any], list[Any]]] = []
        self._types: list[type[Any]] = []
        for name, owners in of_name.items():
            others = [node for node in owners if node is not root]
            has_root = len(others) < len(owners)
            found = list(map(attrgetter(name), [root] * has_root + others))
            self._owners.append((attrgetter(name), has_root, others, found))
            self._types += map(type, others)
        every = [container for *_, found in self._owners for container in found]
        self._dicts = [container for container in every if type(container) is dict]
        self._lists = [container for container in every if type(container) is list]
        self._lengths = list(map(len, chain(self._dicts, self._lists)))
        self._keys = list(chain.from_iterable(self._dicts))
        self._values = list(self._contents())

    def __bool__(self) -> bool:
        return bool(self._owners)

    def _contents(self) -> Iterator[Any]:
        of_dicts = map(dict.values, self._dicts)
        return chain.from_iterable(chain(of_dicts, self._lists))

    def hold(self, root: Any) -> bool:
        """Tells whether all of it is still what it was.

        Args:
            root: The root.

        Returns:
            Whether the nodes would be taken apart alike.
        """
        types: list[type[Any]] = []
        for get, has_root, others, recorded in self._owners:
            now = map(get, chain((root,), others) if has_root else others)
            if not all(map(is_, now, recorded)):
                return False
            types += map(type, others)
        return (
            types == self._types
            and list(map(len, chain(self._dicts, self._lists))) == self._lengths
            and list(chain.from_iterable(self._dicts)) == self._keys
            and all(map(is_, self._contents(), self._values))
        )


NO_NODES = ForeignNodes(None, ())
"""What is watched where all nodes are of the library's own types, or plain."""
