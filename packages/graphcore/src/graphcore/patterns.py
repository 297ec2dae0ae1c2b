"""What graphs of one definition look like, to recognize another one at a glance.

Inside a transformation the same few structures are met again and again: a function is
traced for each block of a model, every block is a new object, and afterwards it is
asked whether the function changed it. To describe such a graph takes a walk with many
decisions. To compare it with what is due takes none.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from graphcore.content import is_immutable, static_key
from graphcore.graphdef import (
    GraphDef,
    NodeDef,
    NodeRef,
    StaticAttribute,
    VariableDef,
    definition_paths,
)
from graphcore.hashable_mapping import HashableMapping, as_kept
from graphcore.owned import OwnedNode, attributes_of
from graphcore.registry import NodeImpl, find_node_impl, get_node_impl_for_type
from graphcore.variable_impl import find_variable_impl, variable_impl
from graphcore.walk import Visit

__all__ = ["Pattern", "known_patterns", "learn"]

# What CPython sets in `__flags__` of types that are not built in.
_HEAP_TYPE = 1 << 9
# Of these, another object may be the same static value.
_VALUES = frozenset((bool, int, float, complex, str, bytes))


class _Node(NamedTuple):
    # Where a node is found, what it is, and where its children are put. References are
    # to objects that have their place already. A node that keeps all children in its
    # `__dict__` needs no `impl`.
    place: int
    kind: type[Any]
    impl: NodeImpl | None
    metadata: Any
    size: int
    statics: list[tuple[Any, Any]]
    children: list[tuple[Any, int]]
    references: list[tuple[Any, int]]


class Pattern:
    """The looks of the graphs of some definitions in one index space.

    Args:
        definitions: Definitions that refer to nothing outside of themselves.

    Attributes:
        count: The number of graph nodes and variables.
        is_watched: Whether a plan of such a graph needs to know nothing but the
            contents of containers; see `Visit`.

    Raises:
        ValueError: If graphs of these definitions can't be told at a glance, because
            something static in them can change in place.

    Example:
        >>> import graphcore as gc
        >>> pattern = Pattern([gc.graphdef(gc.Dict(a=gc.Param(1)))])
        >>> twin = gc.Dict(a=gc.Param(2))
        >>> pattern.match([twin]) == [twin, twin.a], pattern.match([gc.Dict(a=2)])
        (True, None)
    """

    __slots__ = (
        "_kinds",
        "_metadata",
        "_metadata_of",
        "_nodes",
        "_owned_nodes",
        "_roots",
        "_size",
        "_strangers",
        "_variables",
        "count",
        "is_watched",
    )

    def __init__(self, definitions: Sequence[GraphDef[Any]]) -> None:
        self._nodes: list[_Node] = []
        variables: list[VariableDef[Any]] = []
        self._strangers: list[tuple[Any, type[Any]]] = []
        self._roots: list[tuple[int, bool]] = []
        pending: list[tuple[NodeDef[Any], int]] = []
        # Pytree nodes have no index; their places come behind the others.
        anonymous = count(-1, -1)

        def place_of(definition: Any) -> int:
            if isinstance(definition, VariableDef):
                if as_kept(definition.metadata) is not definition.metadata:
                    raise ValueError("metadata that can change in place")
                variables.append(definition)
            elif isinstance(definition, NodeDef):
                place = definition.index
                if place == -1:
                    place = next(anonymous)
                pending.append((definition, place))
                return place
            index: int = definition.index
            return index

        for root in definitions:
            self._roots.append((place_of(root), isinstance(root, NodeRef)))
        while pending:
            self._add(*pending.pop(), place_of)
        named = [node for node in self._nodes if node.place >= 0]
        self.count = len(named) + len(variables)
        self._size = self.count + len(self._nodes) - len(named)
        self._owned_nodes = [
            node.place for node in self._nodes if issubclass(node.kind, OwnedNode)
        ]
        variables.sort(key=lambda d: d.index)
        self._variables = [d.index for d in variables]
        self._kinds = [d.type for d in variables]
        self._metadata = [d.metadata for d in variables]
        impls = list(map(variable_impl, self._kinds))
        self._metadata_of: list[Any] = [
            impl.get_metadata if impl.is_owned else impl.metadata for impl in impls
        ]
        self.is_watched = all(impl.is_owned for impl in impls) and all(
            issubclass(node.kind, OwnedNode) or node.kind in (list, dict, tuple)
            for node in self._nodes
        )

    def _add(self, definition: NodeDef[Any], place: int, place_of: Any) -> None:
        kind = definition.type
        impl: NodeImpl | None = get_node_impl_for_type(kind)
        if issubclass(kind, OwnedNode) and kind._has_only_attributes:
            impl = None
        statics: list[tuple[Any, Any]] = []
        children: list[tuple[Any, int]] = []
        references: list[tuple[Any, int]] = []
        for attribute in definition.attributes:
            key = attribute.key
            if isinstance(attribute, StaticAttribute):
                value = attribute.value
                if not is_immutable(value):
                    raise ValueError("a static value that can change in place")
                if type(value).__flags__ & _HEAP_TYPE:
                    self._strangers.append((value, type(value)))
                statics.append((key, value))
            elif attribute.value.type is type(None):
                statics.append((key, None))
            elif isinstance(attribute.value, NodeRef):
                references.append((key, attribute.value.index))
            else:
                children.append((key, place_of(attribute.value)))
        size = len(definition.attributes)
        self._nodes.append(
            _Node(
                *(place, kind, impl, definition.metadata, size),
                *(statics, children, references),
            )
        )

    def match(self, roots: Sequence[Any]) -> list[Any] | None:
        """Compares the graphs of some roots with the definitions.

        Args:
            roots: As many nodes and variables as there are definitions.

        Returns:
            The object of each index, then other nodes; None if walking the roots
            would give other definitions, or there is no quick way to tell.
        """
        objects: list[Any] = [None] * self._size
        references: list[tuple[Any, int]] = []
        for root, (place, is_reference) in zip(roots, self._roots, strict=True):
            if is_reference:
                references.append((root, place))
            else:
                objects[place] = root
        try:
            for (
                place,
                kind,
                impl,
                metadata,
                size,
                statics,
                children,
                refs,
            ) in self._nodes:
                node = objects[place]
                if type(node) is not kind:
                    return None
                if impl is None:
                    found = attributes_of(node)
                else:
                    if find_node_impl(node) is not impl:
                        return None
                    pairs, metadata_now = impl.flatten(node)
                    if metadata_now is not metadata:
                        return None
                    found = dict(pairs)
                if len(found) != size:
                    return None
                for key, value in statics:
                    if found[key] is not value and not _same(found[key], value):
                        return None
                for key, child in children:
                    objects[child] = found[key]
                for key, child in refs:
                    references.append((found[key], child))
        except Exception:  # a key that isn't there, or one that can't be sorted
            return None
        variables = [objects[index] for index in self._variables]
        if list(map(type, variables)) != self._kinds:
            return None
        for variable, metadata_of, due in zip(
            variables, self._metadata_of, self._metadata, strict=True
        ):
            now = metadata_of(variable)
            if now is not due and (as_kept(now) is not now or now != due):
                return None
        if any(x is not objects[index] for x, index in references):
            return None
        if len(set(map(id, objects[: self.count]))) < self.count:
            return None
        for value, kind in self._strangers:
            if (
                type(value) is not kind
                or find_variable_impl(kind) is not None
                or find_node_impl(value) is not None
            ):
                return None
        return objects

    def members(self, objects: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The variables, in order of index, and the nodes that are our own.

        Args:
            objects: What `match` returned.
        """
        return (
            [objects[place] for place in self._variables],
            [objects[place] for place in self._owned_nodes],
        )

    def visit(self, objects: Sequence[Any]) -> Visit:
        """What a walk would have seen that a plan has to watch.

        Args:
            objects: What `match` returned; the pattern `is_watched`.

        Returns:
            The containers and static values.
        """
        visit = Visit(strangers=[value for value, _ in self._strangers])
        for place, kind, *_ in self._nodes:
            node = objects[place]
            if issubclass(kind, OwnedNode):
                visit.containers += node._containers()
            elif kind is not tuple:
                visit.containers.append(node)
        return visit


def _same(a: Any, b: Any) -> bool:
    return type(a) in _VALUES and bool(static_key(a) == static_key(b))


_MAX_PATTERNS = 4


def known_patterns(kind: type[Any]) -> Sequence[tuple[Pattern, Any]]:
    """The patterns of graphs with a root of some type that were met more than once.

    Args:
        kind: The type.

    Returns:
        Patterns, each with what `learn` was given beside it.
    """
    known: _Known | None = kind.__dict__.get("_patterns")
    return () if known is None else known.patterns


class _Known:
    def __init__(self) -> None:
        self.last = 0
        self.patterns: list[tuple[Pattern, Any]] = []


def learn(definition: NodeDef[Any], layout: Any) -> None:
    """Takes note of the structure of a graph, to recognize it if it comes often.

    Whatever is noted stays as long as the class of the root. So it must refer to
    nothing that could go before: only to that class, to plain values, and to types and
    functions of modules.

    Args:
        definition: The definition of the graph; hashable.
        layout: What is kept with its pattern.
    """
    kind = definition.type
    known: _Known | None = kind.__dict__.get("_patterns")
    if known is None:
        known = _Known()
        type.__setattr__(kind, "_patterns", known)
    key = hash(definition)
    if known.last != key:
        known.last = key
        return
    if any(noted.root is definition for _, noted in known.patterns):
        return  # A graph that can't be told at a glance, though others like it can.
    if not _may_stay(definition):
        return
    try:
        pattern = Pattern([definition])
    except ValueError:
        return
    if pattern.is_watched:
        known.patterns = [(pattern, layout), *known.patterns[: _MAX_PATTERNS - 1]]


_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.dtype)


def _may_stay(root: NodeDef[Any]) -> bool:
    checked: set[int] = set()
    item: Any
    for _, item in definition_paths(root):
        if isinstance(item, StaticAttribute):
            values = [item.value]
        else:
            values = [item.type]
            metadata = getattr(item, "metadata", None)
            if isinstance(metadata, HashableMapping):
                values += metadata.values()
            elif metadata is not None:
                return False
        for value in values:
            if type(value) in _PLAIN or value is root.type or id(value) in checked:
                continue
            if not _is_global(value):
                return False
            checked.add(id(value))
    return True


def _is_global(x: Any) -> bool:
    """Whether a type or function is found by its name in its module."""
    if type(x) is tuple:
        return all(type(y) in _PLAIN or _is_global(y) for y in x)
    try:
        return getattr(sys.modules[x.__module__], x.__qualname__) is x
    except (AttributeError, KeyError, TypeError):
        return False
