"""What a plan watches of nodes and variables of registered types.

Nobody is told when such an object changes. So a plan looks at the dicts that hold its
children, or its metadata, whenever it is asked: at those of all objects at once, and in
C.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np

from graphcore.content import is_immutable
from graphcore.nodes.registry import NodeImpl
from graphcore.variables.bare_arrays import are_arrays, is_array
from graphcore.variables.impl import VariableImpl

__all__ = ["NOTHING_CONTAINED", "ForeignContainers"]


class ForeignContainers:
    """The classes and containers of some objects at one time, and what these held.

    Nothing in a container is asked whether it equals something: a plan is made of the
    same objects under the same keys in the same order. Of arrays in nodes it is enough
    that there are some.

    Args:
        root: The root of the graph, which is not kept.
        nodes: Nodes with declared containers, and how each is handled.
        variables: Variables with their metadata in a dict, and how each is handled.

    Example:
        >>> import graphcore as gc
        >>> class Box: pass
        >>> impl = gc.PytreeNodeImpl(Box, None, None, containers=('__dict__',))
        >>> box = Box(); box.content = 1
        >>> watched = ForeignContainers(None, [(box, impl)], [])
        >>> watched.hold(None)
        True
        >>> box.content = True
        >>> watched.hold(None)
        False
    """

    __slots__ = (
        *("_addresses", "_array_places", "_keys", "_lengths", "_sources", "_types"),
        "_values",
    )

    def __init__(
        self,
        root: Any,
        nodes: Iterable[tuple[Any, NodeImpl]],
        variables: Iterable[tuple[Any, VariableImpl]],
    ) -> None:
        # Objects by how their container is read, and by what it is.
        alike: dict[Any, tuple[Callable[[Any], Any], list[Any]]] = {}
        for node, impl in nodes:
            for name in impl.containers:
                get = attrgetter(name)
                alike.setdefault((name, type(get(node))), (get, []))[1].append(node)
        for variable, how in variables:
            alike.setdefault(how, (how.get_metadata, []))[1].append(variable)
        # Whether they are dicts, how they are read, whether of the root too, the rest.
        self._sources: list[tuple[bool, Callable[[Any], Any], bool, list[Any]]] = []
        self._types: list[type[Any]] = []
        for get, owners in alike.values():
            others = [owner for owner in owners if owner is not root]
            is_dict = type(get(owners[0])) is dict
            self._sources.append((is_dict, get, len(others) < len(owners), others))
            self._types += map(type, others)
        dicts, lists, _ = self._look(root)
        self._lengths = list(map(len, chain(dicts, lists)))
        self._keys = list(chain.from_iterable(dicts))
        # They are kept, so that no other object gets the address of one.
        self._values = list(_contents(dicts, lists))
        self._array_places = [i for i, x in enumerate(self._values) if is_array(x)]
        for place in self._array_places:
            self._values[place] = None
        self._addresses = _objects(self._values, len(self._values)).tobytes()

    def __bool__(self) -> bool:
        return bool(self._sources)

    def _look(self, root: Any) -> tuple[list[Any], list[Any], list[type[Any]]]:
        """The containers as they are now, and the types of their owners."""
        dicts: list[Any] = []
        lists: list[Any] = []
        types: list[type[Any]] = []
        for is_dict, get, has_root, others in self._sources:
            found = dicts if is_dict else lists
            if has_root:
                found.append(get(root))
            found += map(get, others)
            types += map(type, others)
        return dicts, lists, types

    def hold(self, root: Any) -> bool:
        """Tells whether all of it is still what it was.

        Args:
            root: The root.

        Returns:
            Whether the objects would be taken apart alike.
        """
        dicts, lists, types = self._look(root)
        if (
            types != self._types
            or list(map(len, chain(dicts, lists))) != self._lengths
            or list(chain.from_iterable(dicts)) != self._keys
        ):
            return False
        found = _objects(_contents(dicts, lists), len(self._values))
        if self._array_places:
            if not are_arrays(found[self._array_places].tolist()):
                return False
            found[self._array_places] = None
        return found.tobytes() == self._addresses


def _contents(dicts: Sequence[Any], lists: Sequence[Any]) -> Iterator[Any]:
    return chain.from_iterable(chain(map(dict.values, dicts), lists))


def _objects(values: Iterable[Any], count: int) -> np.ndarray[Any, Any]:
    """An array of objects, whose bytes are their addresses."""
    return np.fromiter(values, object, count)


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
