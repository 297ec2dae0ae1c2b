"""What graphs of one definition look like, to recognize another one at a glance.

Inside a transformation the same few structures are met again and again: a function is
traced for each block of a model, every block is a new object, and afterwards it is
asked whether the function changed it. To describe such a graph takes a walk with many
decisions. To compare it with what is due takes none.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from operator import is_
from typing import Any

import numpy as np

from graphcore.content import is_immutable, static_key, unusual_keys
from graphcore.getters import getter
from graphcore.graphdef.definition import GraphDef, NodeDef
from graphcore.graphdef.layouts import layout_of
from graphcore.graphdef.walk import Visit, is_stranger
from graphcore.hashable_mapping import as_kept
from graphcore.known_types import ATOMS
from graphcore.nodes.owned import OwnedNode, attributes_of
from graphcore.nodes.registry import (
    containers_of,
    find_impl,
    get_node_impl,
    get_node_impl_for_type,
)


class Pattern:
    """What graphs look like that have certain definitions in one index space.

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
        >>> pattern.match([twin]) == (twin.a, twin), pattern.match([gc.Dict(a=2)])
        (True, None)
    """

    def __init__(self, definitions: Sequence[GraphDef[Any]]) -> None:
        layout = self._layout = layout_of(definitions)
        if layout.bare:
            raise ValueError("arrays, which are known by their places alone")
        if not all(map(is_immutable, layout.statics)):
            raise ValueError("a static value that can change in place")
        if any(node.changeable for node in layout.nodes):
            raise ValueError("metadata of a node that can change in place")
        self._metadata = [d.metadata for d in layout.definitions]
        if not all(as_kept(metadata) is metadata for metadata in self._metadata):
            raise ValueError("metadata that can change in place")
        self._types = [d.type for d in layout.definitions]
        self._strangers = [
            (value, type(value)) for value in layout.statics if is_stranger(value)
        ]
        # Attributes have names, so only other containers are asked for unusual keys.
        unusual = [
            unusual_keys(node.keys) or ([] if issubclass(node.kind, Mapping) else None)
            for node in layout.nodes
        ]
        # For each node, how to get its children, which stand next in the order of
        # places: without an implementation if they are all in its `__dict__`.
        self._nodes = [
            (
                layout.places[node.thing],
                None
                if node.thing in layout.plain
                else get_node_impl_for_type(node.kind),
                getter(node.keys),
                len(node.keys),
                keys,
                node.kind,
                node.metadata,
            )
            for node, keys in zip(layout.nodes, unusual, strict=True)
        ]
        self._things = getter(layout.places)
        self._references = getter([place for place, _ in layout.references])
        self._referenced = getter([thing for _, thing in layout.references])
        self._indices = getter([*layout.indices.values()])
        self.count = len(layout.indices)
        self.is_watched = layout.all_owned and all(
            issubclass(node.kind, OwnedNode) or node.kind in (list, dict, tuple)
            for node in layout.nodes
        )

    def match(self, roots: Sequence[Any]) -> tuple[Any, ...] | None:
        """Compares the graphs of some roots with the definitions.

        Args:
            roots: As many nodes and variables as there are definitions.

        Returns:
            The things that they consist of, as their layout lists them; None if
            walking the roots would give other definitions, or there is no quick way to
            tell.
        """
        things = self._look(roots)
        if things is None:
            return None
        are_distinct = len(set(map(id, self._indices(things)))) == self.count
        return things if are_distinct else None

    def is_made_of(self, roots: Sequence[Any], objects: Sequence[Any]) -> bool:
        """Tells whether the graphs of some roots are made of some objects.

        Args:
            roots: As for `match`.
            objects: Distinct objects, one for each index.

        Returns:
            Whether `match` would find these; False if there is no quick way to tell.
        """
        things = self._look(roots)
        return things is not None and all(map(is_, objects, self._indices(things)))

    def _look(self, roots: Sequence[Any]) -> tuple[Any, ...] | None:
        """As `match`, except that one object may be found for several indices."""
        found = [*roots]
        try:
            for place, impl, children_of, count, unusual, kind, metadata in self._nodes:
                node = found[place]
                if type(node) is not kind:
                    return None
                if impl is None:
                    children = attributes_of(node)
                else:
                    if find_impl(node) is not impl:
                        return None
                    pairs, metadata_now = impl.flatten(node)
                    if metadata_now is not metadata:
                        return None
                    children = dict(pairs)
                if len(children) != count:
                    return None
                if unusual is not None and unusual_keys(children) != unusual:
                    return None
                found += children_of(children)
        except Exception:  # a key that isn't there, or one that can't be sorted
            return None
        things = self._things(found)
        layout = self._layout
        variables = things[: len(self._types)]
        statics = things[layout.first_static :]
        if (
            (
                not all(map(is_, statics, layout.statics))
                and not all(map(_same, statics, layout.statics))
            )
            or list(map(type, variables)) != self._types
            or not self._metadata_holds(variables)
            or not all(map(is_, self._references(found), self._referenced(things)))
        ):
            return None
        for value, kind in self._strangers:
            if type(value) is not kind or find_impl(value) is not None:
                return None
        return things

    def _metadata_holds(self, variables: Sequence[Any]) -> bool:
        if self._layout.all_owned:
            found = [variable._facts.metadata for variable in variables]
            if all(map(is_, found, self._metadata)):
                return True
        for variable, impl, due in zip(
            variables, self._layout.impls, self._metadata, strict=True
        ):
            now = impl.metadata(variable)
            if now is not due and (as_kept(now) is not now or now != due):
                return False
        return True

    def members(self, things: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The variables, in order of index, and the nodes that are our own.

        Args:
            things: What `match` returned; the pattern `is_watched`.
        """
        count = len(self._types)
        return [*things[:count]], [*things[count : self._layout.first_static]]

    def visit(self, things: Sequence[Any]) -> Visit:
        """What a plan has to watch, as a walk would have found it.

        Args:
            things: What `match` returned; the pattern `is_watched`.

        Returns:
            The containers and static values.
        """
        visit = Visit(strangers=[value for value, _ in self._strangers], contents=[])
        for node in self._layout.nodes:
            x = things[node.thing]
            visit.watch(containers_of(x, get_node_impl(x)) or ())
        return visit


def pattern_of(*definitions: GraphDef[Any]) -> Pattern | None:
    """The pattern of definitions in one index space; their layout keeps it.

    Args:
        *definitions: Definitions that refer to nothing outside of themselves.

    Returns:
        The pattern; None if such graphs can't be told at a glance.
    """
    layout = layout_of(definitions)
    if layout.pattern is None:
        try:
            layout.pattern = Pattern(definitions)
        except ValueError:
            layout.pattern = False
    return layout.pattern or None


def _same(a: Any, b: Any) -> bool:
    # Atoms may be equal without being one object.
    return a is b or (type(a) in ATOMS and bool(static_key(a) == static_key(b)))


_MAX_PATTERNS = 4


def known_patterns(kind: type[Any]) -> Sequence[tuple[Pattern, NodeDef[Any]]]:
    """The patterns of graphs with a root of some type that were met more than once.

    Args:
        kind: The type.

    Returns:
        Patterns, each with the definition of such graphs.
    """
    known: _Known | None = kind.__dict__.get("_node__patterns")
    return () if known is None else known.patterns


class _Known:
    def __init__(self) -> None:
        self.last: int | None = None
        self.patterns: list[tuple[Pattern, NodeDef[Any]]] = []


def learn(definition: NodeDef[Any]) -> None:
    """Takes note of the structure of a graph, to recognize it if it comes often.

    Whatever is noted stays as long as the class of the root. So it must refer to
    nothing that could go before: only to that class, to plain values, and to types and
    functions of modules.

    Args:
        definition: The definition of the graph; hashable.
    """
    kind = definition.type
    known: _Known | None = kind.__dict__.get("_node__patterns")
    if known is None:
        known = _Known()
        type.__setattr__(kind, "_node__patterns", known)
    key = hash(definition)
    if known.last != key:
        known.last = key
        return
    # One that is noted already has something that the pattern can't check.
    is_noted = any(noted is definition for _, noted in known.patterns)
    if is_noted or not _may_stay(definition):
        return
    pattern = pattern_of(definition)
    if pattern is not None and pattern.is_watched:
        known.patterns = [(pattern, definition), *known.patterns[: _MAX_PATTERNS - 1]]


_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.dtype)


def _may_stay(root: NodeDef[Any]) -> bool:
    layout = layout_of([root])
    values: list[Any] = [*layout.statics]
    for metadata in {id(d.metadata): d.metadata for d in layout.definitions}.values():
        values += metadata.values()
    values += {d.type for d in layout.definitions}
    values += {node.kind for node in layout.nodes}
    return all(node.metadata is None for node in layout.nodes) and all(
        type(value) in _PLAIN or value is root.type or _is_global(value)
        for value in values
    )


def _is_global(x: Any) -> bool:
    """Whether a type or function is found by its name in its module."""
    if type(x) is tuple:
        return all(type(y) in _PLAIN or _is_global(y) for y in x)
    if not callable(x):  # Asked for a name, an object may make what it has none of.
        return False
    try:
        return getattr(sys.modules[x.__module__], x.__qualname__) is x
    except (AttributeError, KeyError, TypeError):
        return False
