"""Graph definitions: the static half of an object graph.

A definition is a tree of `NodeDef`s. A graph node or variable that is reached again
appears there as a `NodeRef` to the index it got at the first visit, so sharing and
cycles are part of the definition. Definitions are hashable and compare by value; two
graphs with equal definitions have the same structure, static values and metadata.

Definitions can be as deep as the graph they describe, so everything here that visits
one works with an explicit stack.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

import jax

from graphcore.content import is_immutable, static_key
from graphcore.content_key import (
    UnhashableContent,
    content_key,
    same_content,
    snapshot,
)
from graphcore.display.printing import text
from graphcore.errors import path_text
from graphcore.hashable_mapping import HashableMapping
from graphcore.trails import Trail, path_of

__all__ = [
    "GraphDef",
    "LeafAttribute",
    "NodeDef",
    "NodeRef",
    "Static",
    "StaticAttribute",
    "SubGraphAttribute",
    "VariableDef",
]

A = TypeVar("A")
Kind: TypeAlias = tuple[type[Any], HashableMapping[str, Any]]
"""What is static of one variable: its type and its metadata."""


class GraphDef(Generic[A]):
    """The static half of a graph of objects.

    This is the base class of `NodeDef`, `NodeRef` and `VariableDef`.

    Example:
        >>> import graphcore as gc
        >>> isinstance(gc.graphdef(gc.Dict(a=gc.Param(1))), gc.GraphDef)
        True
    """

    __slots__ = ()

    # What `apply` returns. Calling needs everything that is built on definitions, so
    # the module that defines it sets this.
    _proxy: ClassVar[type[Any]]

    def apply(self, state: Any, /, *states: Any) -> Any:
        """Calls a method of the merged node, functionally.

        Args:
            state: The state to merge with this definition.
            *states: More of them.

        Returns:
            A proxy. Access to attributes and items of it selects a method; calling it
            merges, calls the method, and returns `(output, (graphdef, state))` with
            the definition and state after the call.

        Example:
            >>> import graphcore as gc
            >>> class Count(gc.Object):
            ...     def __init__(self): self.n = gc.Variable(1)
            ...     def add(self, k): self.n.value += k; return k
            >>> graphdef, state = gc.split(Count())
            >>> out, (graphdef, state) = graphdef.apply(state).add(2)
            >>> out, state.n.value
            (2, 3)
        """
        return self._proxy(self, (state, *states))


@jax.tree_util.register_static
@dataclass(frozen=True, slots=True)
class NodeRef(GraphDef[A]):
    """A graph node or variable that stands earlier in the same definition.

    Args:
        type: The type of the object.
        index: The index it got where it was first visited.

    Example:
        >>> import graphcore as gc
        >>> NodeRef(gc.Param, 0) == NodeRef(gc.Param, 0)
        True
    """

    type: type[Any]
    index: int

    __repr__ = text


@jax.tree_util.register_static
@dataclass(frozen=True, slots=True)
class VariableDef(GraphDef[A]):
    """A variable, without its value.

    Args:
        type: The variable type.
        index: Its place among the graph nodes and variables, in order of first visit.
        metadata: The metadata.
        index_mapping: As in `NodeDef`, for a variable that is itself a root.

    Example:
        >>> import graphcore as gc
        >>> VariableDef(gc.Param, 0, gc.HashableMapping()).type.__name__
        'Param'
    """

    type: type[Any]
    index: int
    metadata: HashableMapping[str, Any]
    index_mapping: HashableMapping[int, int] | None = None
    _kind: Kind | None = field(default=None, init=False, compare=False)

    @property
    def kind(self) -> Kind:
        """Type and metadata: what is static of a state, always the same object."""
        if self._kind is None:
            object.__setattr__(self, "_kind", (self.type, self.metadata))
        return self._kind  # type: ignore[return-value]

    def with_index_mapping(
        self, index_mapping: HashableMapping[int, int] | None
    ) -> VariableDef[A]:
        """Returns the same definition with another index mapping.

        Args:
            index_mapping: The mapping, or None to remove it.

        Returns:
            A new definition.

        Example:
            >>> import graphcore as gc
            >>> d = VariableDef(gc.Param, 0, gc.HashableMapping())
            >>> d.with_index_mapping(gc.HashableMapping({0: 0})) == d
            False
        """
        return replace(self, index_mapping=index_mapping)

    __repr__ = text


@jax.tree_util.register_static
@dataclass(frozen=True, slots=True)
class SubGraphAttribute:
    """An attribute that holds a node.

    Args:
        key: The attribute's key.
        value: The node's definition, or a reference if the node was seen before.

    Example:
        >>> import graphcore as gc
        >>> SubGraphAttribute('me', NodeRef(gc.Dict, 0)).key
        'me'
    """

    key: Any
    value: NodeDef[Any] | NodeRef[Any]

    __repr__ = text


@jax.tree_util.register_static
@dataclass(frozen=True, slots=True)
class StaticAttribute:
    """An attribute that holds a static value.

    Args:
        key: The attribute's key.
        value: The value. It is compared as strictly as `content_key` says, and as it
            was when this attribute was made: a later change in place has no effect.

    Example:
        >>> StaticAttribute('n', 1) == StaticAttribute('n', True)
        False
    """

    key: Any
    value: Any
    compared: Any = field(init=False)
    # A copy, of what may change in place.
    _kept: Any = field(init=False)

    def __post_init__(self) -> None:
        value, kept = self.value, None
        if is_immutable(value):
            compared = content_key(value)
        else:
            kept = (snapshot(value),)
            try:
                compared = content_key(value, keep=True)
            except UnhashableContent:  # for who asks for the hash
                compared, kept = static_key(kept[0]), None
        object.__setattr__(self, "compared", compared)
        object.__setattr__(self, "_kept", kept)

    @property
    def can_change(self) -> bool:
        """Whether the value may be changed in place."""
        return self._kept is not None

    def as_made(self) -> Any:
        """The value; if that was changed in place since, a copy of what it was."""
        if self._kept is None or content_key(self.value) == self.compared:
            return self.value
        return copy.deepcopy(self._kept[0])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StaticAttribute):
            return NotImplemented
        return bool(self.key == other.key and self.compared == other.compared)

    def __hash__(self) -> int:
        return hash((self.key, self.compared))

    def __reduce__(self) -> tuple[Any, ...]:
        return StaticAttribute, (self.key, self.value)

    __repr__ = text


@jax.tree_util.register_static
@dataclass(frozen=True, slots=True)
class LeafAttribute:
    """An attribute that holds a variable.

    Args:
        key: The attribute's key.
        value: The variable's definition, or a reference if it was seen before.

    Example:
        >>> import graphcore as gc
        >>> LeafAttribute('kernel', NodeRef(gc.Param, 1)).key
        'kernel'
    """

    key: Any
    value: VariableDef[Any] | NodeRef[Any]

    __repr__ = text


Attribute: TypeAlias = SubGraphAttribute | StaticAttribute | LeafAttribute


@jax.tree_util.register_static
@dataclass(frozen=True, slots=True, weakref_slot=True)
class NodeDef(GraphDef[A]):
    """A node and, nested, everything below it.

    Args:
        type: The node's type.
        index: Its place among the graph nodes and variables, in order of first visit;
            -1 for a pytree node, which has no identity.
        attributes: One entry a child, in sorted order of keys.
        metadata: What the node type's `flatten` returned beside the children.
        index_mapping: Set by an update context: from indices here to those in the
            definition that the graph was merged from.

    Example:
        >>> import graphcore as gc
        >>> graphdef = gc.graphdef(gc.Dict(a=1))
        >>> graphdef.type.__name__, graphdef.index, graphdef.attributes[0].value
        ('Dict', 0, 1)
    """

    type: type[Any]
    index: int
    attributes: tuple[Attribute, ...]
    metadata: Any = None
    index_mapping: HashableMapping[int, int] | None = None
    _hash: int | None = field(default=None, init=False)
    # Its linear form; see `layouts`.
    _layout: Any = field(default=None, init=False)

    def children(self) -> Iterator[tuple[Any, Any]]:
        """The keys with what stands there: a definition or a static attribute."""
        for each in self.attributes:
            yield each.key, each if type(each) is StaticAttribute else each.value

    def __hash__(self) -> int:
        if self._hash is None:
            for trail, node in _nodes_children_first(self):
                if node._hash is None:
                    object.__setattr__(node, "_hash", node._own_hash(trail))
        return self._hash  # type: ignore[return-value]

    def _own_hash(self, trail: Trail) -> int:
        mapping = self.index_mapping
        parts: list[Any] = [self.type, self.index, mapping]
        try:
            parts.append(hash(content_key(self.metadata)))
        except TypeError as error:
            where = path_text(path_of(trail))
            raise TypeError(
                f"The metadata of the {self.type.__name__} at {where!r} is "
                f"not hashable: {self.metadata!r}; {error}. Definitions key compiled "
                "functions, so everything static in a graph must be comparable."
            ) from None
        for attribute in self.attributes:
            try:
                parts.append(hash(attribute))
            except (TypeError, ValueError):
                raise TypeError(
                    _unhashable_message((*path_of(trail), attribute.key), attribute)
                ) from None
        return hash(tuple(parts))

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, NodeDef):
            return NotImplemented
        if None not in (self._hash, other._hash) and self._hash != other._hash:
            return False
        pending: list[tuple[NodeDef[Any], Any]] = [(self, other)]
        while pending:
            a, b = pending.pop()
            if a is b:
                continue
            if not a._equal_except_subgraphs(b):
                return False
            for one, two in zip(a.attributes, b.attributes, strict=True):
                if isinstance(one, SubGraphAttribute):
                    if isinstance(one.value, NodeDef):
                        pending.append((one.value, two.value))
        return True

    def _equal_except_subgraphs(self, other: NodeDef[Any]) -> bool:
        if (
            self.type is not other.type
            or self.index != other.index
            or len(self.attributes) != len(other.attributes)
            or self.index_mapping != other.index_mapping
            or not same_content(self.metadata, other.metadata)
        ):
            return False
        for a, b in zip(self.attributes, other.attributes, strict=True):
            if type(a) is not type(b) or a.key != b.key:
                return False
            if isinstance(a, SubGraphAttribute) and isinstance(a.value, NodeDef):
                if not isinstance(b.value, NodeDef):
                    return False
            elif a != b:
                return False
        return True

    def with_index_mapping(
        self, index_mapping: HashableMapping[int, int] | None
    ) -> NodeDef[A]:
        """Returns the same definition with another index mapping.

        Args:
            index_mapping: The mapping, or None to remove it.

        Returns:
            A new definition; its hash is not known yet.

        Example:
            >>> import graphcore as gc
            >>> graphdef = gc.graphdef(gc.Dict(a=1))
            >>> mapped = graphdef.with_index_mapping(gc.HashableMapping({0: 0}))
            >>> mapped.with_index_mapping(None) == graphdef
            True
        """
        return replace(self, index_mapping=index_mapping)

    def __reduce__(self) -> tuple[Any, ...]:
        # A flat list of nodes, children first: pickle itself recurses.
        position: dict[int, int] = {}
        entries: list[tuple[Any, ...]] = []
        for _, node in _nodes_children_first(self):
            attributes = tuple(
                (attribute.key, position[id(attribute.value)])
                if isinstance(attribute, SubGraphAttribute)
                and isinstance(attribute.value, NodeDef)
                else attribute
                for attribute in node.attributes
            )
            position[id(node)] = len(entries)
            entries.append(
                (node.type, node.index, attributes, node.metadata, node.index_mapping)
            )
        return _from_entries, (entries,)

    def __deepcopy__(self, memo: dict[int, Any]) -> NodeDef[A]:
        return self

    __repr__ = text


def _from_entries(entries: list[tuple[Any, ...]]) -> NodeDef[Any]:
    nodes: list[NodeDef[Any]] = []
    for kind, index, attributes, metadata, index_mapping in entries:
        restored = tuple(
            SubGraphAttribute(attribute[0], nodes[attribute[1]])
            if type(attribute) is tuple
            else attribute
            for attribute in attributes
        )
        nodes.append(NodeDef(kind, index, restored, metadata, index_mapping))
    return nodes[-1]


def _nodes_children_first(root: NodeDef[Any]) -> Iterator[tuple[Trail, NodeDef[Any]]]:
    pending: list[tuple[Trail, NodeDef[Any], bool]] = [(None, root, False)]
    while pending:
        trail, node, visited = pending.pop()
        if visited:
            yield trail, node
            continue
        pending.append((trail, node, True))
        pending += [
            ((trail, key), child, False)
            for key, child in reversed([*node.children()])
            if type(child) is NodeDef
        ]


def _unhashable_message(path: tuple[Any, ...], attribute: Attribute) -> str:
    if isinstance(attribute, StaticAttribute):
        try:
            content_key(attribute.value)
            why = "what it held when it was compared was not"
        except UnhashableContent as error:
            why = str(error)
        return (
            f"The static attribute at {path_text(path)!r} is not hashable: "
            f"{attribute.value!r} of type {type(attribute.value).__name__}; {why}. "
            "Definitions key compiled functions. Give that type a `__hash__`, hold it "
            "in a dataclass, list, dict or array, or declare that its instances never "
            "change: `register_immutable_type`."
        )
    metadata = getattr(attribute.value, "metadata", None)
    return (
        f"The metadata of the variable at {path_text(path)!r} is not hashable: "
        f"{metadata!r}. Definitions key compiled functions, so metadata must be "
        "hashable."
    )


_interned: weakref.WeakValueDictionary[int, NodeDef[Any]] = (
    weakref.WeakValueDictionary()
)


def interned(definition: GraphDef[Any]) -> GraphDef[Any]:
    """Returns the one object that stands for all definitions equal to a given one.

    Definitions key caches. Two that are the same object are compared at once, two that
    are only equal node by node: so whoever keeps a definition for later comparisons
    interns it first.

    Args:
        definition: Any definition.

    Returns:
        An equal definition; the given one if it is not hashable.

    Example:
        >>> import graphcore as gc
        >>> one, two = gc.graphdef(gc.Dict(a=1)), gc.graphdef(gc.Dict(a=1))
        >>> interned(one) is interned(two)
        True
    """
    if not isinstance(definition, NodeDef):
        return definition
    try:
        key = hash(definition)
    except TypeError:
        return definition
    known = _interned.setdefault(key, definition)
    return known if known == definition else definition


def definition_paths(
    root: GraphDef[Any],
) -> Iterator[tuple[tuple[Any, ...], GraphDef[Any] | StaticAttribute]]:
    """Lists everything in a definition with its path, parents first, in key order.

    Args:
        root: The definition.

    Yields:
        A path with a `NodeDef`, `NodeRef`, `VariableDef` or `StaticAttribute`.

    Example:
        >>> import graphcore as gc
        >>> graphdef = gc.graphdef(gc.Dict(a=gc.Param(0), b=1))
        >>> [path for path, _ in definition_paths(graphdef)]
        [(), ('a',), ('b',)]
    """
    pending: list[tuple[tuple[Any, ...], Any]] = [((), root)]
    while pending:
        path, item = pending.pop()
        yield path, item
        if isinstance(item, NodeDef):
            pending += [
                ((*path, key), child) for key, child in reversed([*item.children()])
            ]


@jax.tree_util.register_static
@dataclass(frozen=True)
class Static(Generic[A]):
    """A static value in a pytree: a node without children.

    Args:
        value: Anything hashable.

    Example:
        >>> import jax
        >>> jax.tree.leaves(Static('name'))
        []
    """

    value: A

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        # As items of tuples: NaN is the same value as itself.
        return (self.value,) == (other.value,)
