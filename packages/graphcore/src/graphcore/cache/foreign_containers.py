"""The dicts and lists that nodes and variables of registered types keep things in.

Nobody is told when such an object gets another class, or another `__dict__`. So a plan
asks all of them for their containers whenever it is asked, and then looks at these as
at the containers of our own nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter, is_
from typing import Any

from graphcore.content import is_immutable
from graphcore.nodes.registry import NodeImpl
from graphcore.variables.impl import VariableImpl

__all__ = ["NOTHING_CONTAINED", "ForeignContainers", "has_plain_metadata"]


class ForeignContainers:
    """Some objects, their classes, and where they keep their containers.

    Args:
        root: The root of the graph, which is not kept.
        nodes: Nodes with declared containers, and how each is handled.
        variables: Variables with their metadata in a dict, and how each is handled.

    Attributes:
        recorded: Their containers; those of nodes first.
        contents: Copies of these.

    Example:
        >>> import graphcore as gc
        >>> class Box: pass
        >>> impl = gc.PytreeNodeImpl(Box, None, None, containers=('__dict__',))
        >>> box = Box(); box.content = 1
        >>> watched = ForeignContainers(None, [(box, impl)], [])
        >>> watched.contents, watched.now(None)
        ([{'content': 1}], [{'content': 1}])
        >>> class OtherBox: pass
        >>> box.__class__ = OtherBox
        >>> watched.now(None) is None
        True
    """

    __slots__ = ("_sources", "_types", "contents", "recorded")

    def __init__(
        self,
        root: Any,
        nodes: Iterable[tuple[Any, NodeImpl]],
        variables: Iterable[tuple[Any, VariableImpl]],
    ) -> None:
        # Objects by how their container is read.
        alike: dict[Any, tuple[Callable[[Any], Any], list[Any]]] = {}
        for node, impl in nodes:
            for name in impl.containers:
                get: Callable[[Any], Any] = attrgetter(name)
                alike.setdefault(name, (get, []))[1].append(node)
        count = len(alike)
        for variable, how in variables:
            alike.setdefault(how, (how.get_metadata, []))[1].append(variable)
        # How they are read, whether of the root too, and the others. By address: with
        # thousands of them, memory is read faster from end to end.
        self._sources: list[tuple[Callable[[Any], Any], bool, list[Any]]] = []
        self._types: list[list[type[Any]]] = []
        for get, owners in alike.values():
            others = [owner for owner in owners if owner is not root]
            others.sort(key=lambda owner: id(get(owner)))
            self._sources.append((get, len(others) < len(owners), others))
            self._types.append(list(map(type, others)))
        self.recorded: list[Any] = []
        self.contents: list[Any] = []
        # Variables mostly have the same metadata, of which one copy is enough.
        known: dict[Any, Any] = {}
        for number, (get, has_root, others) in enumerate(self._sources):
            for container in map(get, [root] * has_root + others):
                self.recorded.append(container)
                copy = container.copy()
                if number >= count:
                    key = (*copy, *map(id, copy.values()))
                    copy = known.setdefault(key, copy)
                self.contents.append(copy)

    def __bool__(self) -> bool:
        return bool(self._sources)

    def now(self, root: Any) -> list[Any] | None:
        """The containers as they are now.

        Args:
            root: The root.

        Returns:
            Their containers in the order of `recorded`; None if one of the objects has
            become one of another class.
        """
        found: list[Any] = []
        for (get, has_root, others), types in zip(
            self._sources, self._types, strict=True
        ):
            if list(map(type, others)) != types:
                return None
            if has_root:
                found.append(get(root))
            found += map(get, others)
        return found

    def are_the_same(self, containers: list[Any]) -> bool:
        """Tells whether containers are the recorded ones, and not their equals."""
        return all(map(is_, containers, self.recorded))


def has_plain_metadata(impl: VariableImpl, variable: Any) -> bool:
    """Whether the metadata of a variable is a dict of values that stay what they are.

    Args:
        impl: How the variable is handled.
        variable: The variable.
    """
    found = impl.get_metadata(variable)
    return type(found) is dict and all(map(is_immutable, found.values()))


NOTHING_CONTAINED = ForeignContainers(None, (), ())
"""What is watched where all objects are of the library's own types, or plain."""
