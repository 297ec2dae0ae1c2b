"""What graphs of one definition look like, to recognize another one at a glance.

Inside a transformation the same few structures are met again and again: a function is
traced for each block of a model, every block is a new object, and afterwards it is
asked whether the function changed it. To describe such a graph takes a walk with many
decisions. To compare it with what is due takes none.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Sequence
from operator import is_
from typing import Any, NamedTuple

import numpy as np

from graphcore.content import is_immutable, static_key
from graphcore.getters import Getter, getter
from graphcore.graphdef import (
    GraphDef,
    NodeDef,
    NodeRef,
    StaticAttribute,
    VariableDef,
    definition_paths,
)
from graphcore.hashable_mapping import HashableMapping, as_kept
from graphcore.identity import identity
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
    # Where a node stands among all children, what it is, and what gets its children,
    # which come next. One that keeps them all in its `__dict__` needs no `impl`.
    position: int
    kind: type[Any]
    impl: NodeImpl | None
    metadata: Any
    size: int
    children: Getter


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
        >>> pattern.match([twin]) == (twin, twin.a), pattern.match([gc.Dict(a=2)])
        (True, None)
    """

    __slots__ = (
        "_all_owned",
        "_kinds",
        "_metadata",
        "_metadata_of",
        "_nodes",
        "_objects",
        "_owned_nodes",
        "_places",
        "_referenced",
        "_references",
        "_static_values",
        "_statics",
        "_strangers",
        "_variables",
        "count",
        "is_watched",
    )

    def __init__(self, definitions: Sequence[GraphDef[Any]]) -> None:
        self._nodes: list[_Node] = []
        self._strangers: list[tuple[Any, type[Any]]] = []
        self._static_values: list[Any] = []
        variables: list[VariableDef[Any]] = []
        # All children stand in one sequence: the roots, then those of the first node,
        # those of the second, and so on. The places of nodes, objects of indices
        # before pytree nodes, and what stands where in the sequence:
        position_of: dict[int, int] = {}
        anonymous: list[int] = []
        statics: list[int] = []
        references: list[tuple[int, int]] = []
        pending: deque[tuple[NodeDef[Any], int]] = deque()
        length = 0

        def add(item: Any) -> None:
            nonlocal length
            position, length = length, length + 1
            value = item.value if isinstance(item, StaticAttribute) else None
            if isinstance(item, StaticAttribute) or item.type is type(None):
                statics.append(position)
                self._static_values.append(value)
                if not is_immutable(value):
                    raise ValueError("a static value that can change in place")
                if type(value).__flags__ & _HEAP_TYPE:
                    self._strangers.append((value, type(value)))
            elif isinstance(item, NodeRef):
                references.append((position, item.index))
            else:
                if item.index != -1:
                    position_of[item.index] = position
                if isinstance(item, NodeDef):
                    pending.append((item, position))
                elif as_kept(item.metadata) is item.metadata:
                    variables.append(item)
                else:
                    raise ValueError("metadata that can change in place")

        for root in definitions:
            add(root)
        while pending:
            definition, position = pending.popleft()
            if definition.index == -1:
                anonymous.append(position)
            kind = definition.type
            impl: NodeImpl | None = get_node_impl_for_type(kind)
            if issubclass(kind, OwnedNode) and kind._has_only_attributes:
                impl = None
            keys = [attribute.key for attribute in definition.attributes]
            self._nodes.append(
                _Node(
                    *(position, kind, impl, definition.metadata),
                    *(len(keys), getter(keys)),
                )
            )
            for attribute in definition.attributes:
                is_static = isinstance(attribute, StaticAttribute)
                add(attribute if is_static else attribute.value)
        self.count = len(position_of)
        positions = [position_of[index] for index in sorted(position_of)] + anonymous
        places = {position: place for place, position in enumerate(positions)}
        self._objects = getter(positions)
        self._places = [places[node.position] for node in self._nodes]
        self._owned_nodes = getter(
            [
                place
                for place, node in zip(self._places, self._nodes, strict=True)
                if issubclass(node.kind, OwnedNode)
            ]
        )
        self._statics = getter(statics)
        self._references = getter([position for position, _ in references])
        self._referenced = getter([index for _, index in references])
        variables.sort(key=lambda d: d.index)
        self._variables = getter([d.index for d in variables])
        self._kinds = [d.type for d in variables]
        self._metadata = [d.metadata for d in variables]
        impls = list(map(variable_impl, self._kinds))
        self._all_owned = all(impl.is_owned for impl in impls)
        self._metadata_of: list[Any] = [
            impl.get_metadata if impl.is_owned else impl.metadata for impl in impls
        ]
        self.is_watched = self._all_owned and all(
            issubclass(node.kind, OwnedNode) or node.kind in (list, dict, tuple)
            for node in self._nodes
        )

    def match(self, roots: Sequence[Any]) -> tuple[Any, ...] | None:
        """Compares the graphs of some roots with the definitions.

        Args:
            roots: As many nodes and variables as there are definitions.

        Returns:
            The object of each index, then other nodes; None if walking the roots
            would give other definitions, or there is no quick way to tell.
        """
        objects = self._look(roots)
        if objects is None:
            return None
        are_distinct = len(set(map(identity, objects[: self.count]))) == self.count
        return objects if are_distinct else None

    def is_made_of(self, roots: Sequence[Any], objects: Sequence[Any]) -> bool:
        """Tells whether the graphs of some roots are made of some objects.

        Args:
            roots: As for `match`.
            objects: Distinct objects, one for each index.

        Returns:
            Whether `match` would return these; False if there is no quick way to tell.
        """
        found = self._look(roots)
        return found is not None and all(map(is_, objects, found))

    def _look(self, roots: Sequence[Any]) -> tuple[Any, ...] | None:
        """As `match`, except that one object may be found for several indices."""
        children = [*roots]
        try:
            for position, kind, impl, metadata, size, children_of in self._nodes:
                node = children[position]
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
                children += children_of(found)
        except Exception:  # a key that isn't there, or one that can't be sorted
            return None
        statics = self._statics(children)
        if not all(map(is_, statics, self._static_values)) and not all(
            map(_same, statics, self._static_values)
        ):
            return None
        objects = self._objects(children)
        variables = self._variables(objects)
        if (
            list(map(type, variables)) != self._kinds
            or not self._metadata_holds(variables)
            or not all(map(is_, self._references(children), self._referenced(objects)))
        ):
            return None
        for value, kind in self._strangers:
            if (
                type(value) is not kind
                or find_variable_impl(kind) is not None
                or find_node_impl(value) is not None
            ):
                return None
        return objects

    def _metadata_holds(self, variables: Sequence[Any]) -> bool:
        if self._all_owned:
            found = [variable._facts.metadata for variable in variables]
            if all(map(is_, found, self._metadata)):
                return True
        for variable, metadata_of, due in zip(
            variables, self._metadata_of, self._metadata, strict=True
        ):
            now = metadata_of(variable)
            if now is not due and (as_kept(now) is not now or now != due):
                return False
        return True

    def members(self, objects: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The variables, in order of index, and the nodes that are our own.

        Args:
            objects: What `match` returned.
        """
        return [*self._variables(objects)], [*self._owned_nodes(objects)]

    def visit(self, objects: Sequence[Any]) -> Visit:
        """What a walk would have seen that a plan has to watch.

        Args:
            objects: What `match` returned; the pattern `is_watched`.

        Returns:
            The containers and static values.
        """
        visit = Visit(strangers=[value for value, _ in self._strangers])
        for place, (_, kind, *_) in zip(self._places, self._nodes, strict=True):
            node = objects[place]
            if issubclass(kind, OwnedNode):
                visit.containers += node._containers()
            elif kind is not tuple:
                visit.containers.append(node)
        return visit


def _same(a: Any, b: Any) -> bool:
    if a is b:
        return True
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
