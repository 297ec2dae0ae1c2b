"""Graph definitions: the static half of an object graph.

A definition is a tree of `NodeDef`s. A graph node or variable that is reached again
appears there as a `NodeRef` to the index it got at the first visit, so sharing and
cycles are part of the definition. Definitions are hashable and compare by value; two
graphs with equal definitions have the same structure, static values and metadata.

Definitions can be as deep as the graph they describe, so everything here that visits
one works with an explicit stack.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, Self, TypeAlias, TypeVar

import jax

from graphcore.content import is_immutable, static_key, unusual_keys
from graphcore.content_key import (
    UnhashableContent,
    content_key,
    copied,
    same_content,
    snapshot,
)
from graphcore.display.printing import (
    Parts,
    call_parts,
    leaf_text,
    mapping_parts,
    one_line,
    text,
)
from graphcore.hashable_mapping import HashableMapping
from graphcore.trails import Path, Trail, path_of, path_text

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
# The static part of a variable: its type and its metadata.
Kind: TypeAlias = tuple[type[Any], HashableMapping[str, Any]]


class GraphDef(Generic[A]):
    """The static half of a graph of objects.

    This is the base class of `NodeDef`, `NodeRef` and `VariableDef`.

    Example:
        >>> import graphcore as gc
        >>> isinstance(gc.graphdef(gc.Dict(a=gc.Param(1))), gc.GraphDef)
        True
    """

    # For nodes' definitions, which caches hold weakly. `dataclass(weakref_slot=True)`
    # makes no such slot on Python 3.12.3: it takes Generic to have one.
    # https://github.com/python/cpython/issues/118033
    __slots__ = ("__weakref__",)

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

    def with_index_mapping(
        self, index_mapping: HashableMapping[int, int] | None
    ) -> Self:
        """Returns the same definition, of a node or variable, with another mapping.

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
        made = replace(self, index_mapping=index_mapping)  # type: ignore[type-var]
        if isinstance(self, NodeDef):  # What the metadata were, not what they are now.
            object.__setattr__(made, "changeable", self.changeable)
        return made

    __repr__ = text


@jax.tree_util.register_static
@dataclass(frozen=True, slots=True, repr=False)
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

    def __parts__(self) -> Parts:
        return call_parts(self, [self.type], {"index": self.index})


@jax.tree_util.register_static
@dataclass(frozen=True, slots=True, repr=False)
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
    # Always the same tuple, which all states of the variable share.
    kind: Kind = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", (self.type, self.metadata))

    def __parts__(self) -> Parts:
        return call_parts(self, [self.type], {"index": self.index, **self.metadata})


class _Attribute:
    """The key and the value of a child."""

    __slots__ = ()
    key: Any
    value: Any

    __repr__ = text

    def __parts__(self) -> Parts:
        return call_parts(self, [self.key, self.value], {})


@jax.tree_util.register_static
@dataclass(frozen=True, slots=True, repr=False)
class SubGraphAttribute(_Attribute):
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


@jax.tree_util.register_static
@dataclass(frozen=True, slots=True, repr=False)
class StaticAttribute(_Attribute):
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
    # A copy, if the value may change in place.
    _kept: Any = field(init=False)

    def __post_init__(self) -> None:
        value, kept = self.value, None
        if is_immutable(value):
            compared = content_key(value)
        else:
            kept = (snapshot(value),)
            try:
                compared = content_key(value, keep=True)
            except UnhashableContent:  # raised later, if the hash is asked for
                compared, kept = static_key(kept[0]), None
        object.__setattr__(self, "compared", compared)
        object.__setattr__(self, "_kept", kept)

    @property
    def can_change(self) -> bool:
        """Whether the value may be changed in place."""
        return self._kept is not None

    def as_made(self, memo: dict[int, Any] | None = None) -> Any:
        """The value; if that was changed in place since, a copy of what it was.

        Args:
            memo: As for `copy.deepcopy`: a copy is made in any case, if one can be
                made, and what was copied before is not copied again.
        """
        if self._kept is None:
            return self.value
        (kept,), found = self._kept, self.value
        try:
            if memo is not None and kept is not found:
                found = copied(found, memo)
            # Asked last: another thread may be changing the model that the value is of.
            if content_key(found) == self.compared:
                return found
        except Exception:  # it holds something new, or changed while it was copied
            pass
        return snapshot(kept)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StaticAttribute):
            return NotImplemented
        try:
            return bool(self.key == other.key and self.compared == other.compared)
        except Exception as error:
            error.add_note(
                f"Raised by `==` of the static attribute {self.key!r} of type "
                f"{type(self.value).__name__}: it says whether graphs are equal, and "
                "must give True or False."
            )
            raise

    def __hash__(self) -> int:
        return hash((self.key, self.compared))

    def __reduce__(self) -> tuple[Any, ...]:
        return StaticAttribute, (self.key, self.as_made())


@jax.tree_util.register_static
@dataclass(frozen=True, slots=True, repr=False)
class LeafAttribute(_Attribute):
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


Attribute: TypeAlias = SubGraphAttribute | StaticAttribute | LeafAttribute


@jax.tree_util.register_static
@dataclass(frozen=True, slots=True, repr=False)
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
    # The metadata once more, if it may change in place.
    changeable: StaticAttribute | None = field(default=None, init=False)
    _hash: int | None = field(default=None, init=False)
    # A cache; see `layouts`.
    _layout: Any = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.metadata is not None and not is_immutable(self.metadata):
            metadata = StaticAttribute("metadata", self.metadata)
            if metadata.can_change:
                object.__setattr__(self, "changeable", metadata)

    @property
    def metadata_as_made(self) -> Any:
        """The metadata as it was when this was made."""
        found = self.changeable
        return self.metadata if found is None else found.as_made()

    def children(self) -> Iterator[tuple[Any, Any]]:
        """The keys with what stands there: a definition or a static attribute."""
        for each in self.attributes:
            yield each.key, each if type(each) is StaticAttribute else each.value

    def __hash__(self) -> int:
        if self._hash is None:
            for trail, node in reversed([*_nodes(self)]):
                if node._hash is None:
                    object.__setattr__(node, "_hash", node._own_hash(trail))
        return self._hash  # type: ignore[return-value]

    def _own_hash(self, trail: Trail) -> int:
        parts: list[Any] = [self.type, self.index, self.index_mapping]
        try:
            parts.append(hash(self.changeable or content_key(self.metadata)))
        except TypeError:
            what = f"metadata of the {self.type.__name__}"
            raise _not_hashable(what, path_of(trail), self.metadata) from None
        for attribute in self.attributes:
            try:
                parts.append(hash(attribute))
            except (TypeError, ValueError):
                what, value = "static attribute", attribute.value
                if isinstance(value, VariableDef):
                    what, value = "metadata of the variable", dict(value.metadata)
                path = (*path_of(trail), attribute.key)
                raise _not_hashable(what, path, value) from None
        return hash(tuple(parts))

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, NodeDef):
            return NotImplemented
        if None not in (self._hash, other._hash) and self._hash != other._hash:
            return False
        # As long as nodes are equal, those that come next stand at the same place.
        return all(
            a is b
            or (
                a.type is b.type
                and a.index == b.index
                and a._marked() == b._marked()
                and a._unusual_keys() == b._unusual_keys()
                and a.index_mapping == b.index_mapping
                and a.changeable == b.changeable
                and (a.changeable or same_content(a.metadata, b.metadata))
            )
            for (_, a), (_, b) in zip(_nodes(self), _nodes(other), strict=False)
        )

    def _unusual_keys(self) -> list[Any]:
        return unusual_keys([attribute.key for attribute in self.attributes])

    def _marked(
        self, mark: Callable[[NodeDef[Any]], Any] = lambda node: None
    ) -> tuple[Any, ...]:
        """The attributes, with a pair of key and mark for each that holds a node."""
        return tuple(
            [
                (each.key, mark(each.value))
                if type(each) is SubGraphAttribute and type(each.value) is NodeDef
                else each
                for each in self.attributes
            ]
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # A flat list of nodes, children first: pickle itself recurses.
        position: dict[int, int] = {}
        entries: list[tuple[Any, ...]] = []
        for _, node in reversed([*_nodes(self)]):
            attributes = node._marked(lambda below: position[id(below)])
            position[id(node)] = len(entries)
            metadata = node.metadata_as_made
            entries.append(
                (node.type, node.index, attributes, metadata, node.index_mapping)
            )
        return _from_entries, (entries,)

    def __deepcopy__(self, memo: dict[int, Any]) -> NodeDef[A]:
        return self

    def __parts__(self) -> Parts:
        head = f"({leaf_text(self.type)}, index={self.index}"
        for name in ("metadata", "index_mapping"):
            value = getattr(self, name)
            if value is not None:
                head += f", {name}={one_line(value)}"
        pairs = [(each.key, each.value) for each in self.attributes]
        return mapping_parts("NodeDef", pairs, (f"{head}, {{", "})"))


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


def definition_trails(root: GraphDef[Any]) -> Iterator[tuple[Trail, Any]]:
    """Lists everything in a definition as `definition_paths` does, with trails."""
    pending: list[tuple[Trail, Any]] = [(None, root)]
    while pending:
        trail, item = pending.pop()
        yield trail, item
        if isinstance(item, NodeDef):
            pending += [((trail, key), x) for key, x in reversed([*item.children()])]


def _nodes(root: NodeDef[Any]) -> Iterator[tuple[Trail, NodeDef[Any]]]:
    pending: list[tuple[Trail, NodeDef[Any]]] = [(None, root)]
    while pending:
        trail, node = pending.pop()
        yield trail, node
        pending += [
            ((trail, each.key), each.value)
            for each in reversed(node.attributes)
            if type(each) is SubGraphAttribute and type(each.value) is NodeDef
        ]


def _not_hashable(what: str, path: Path, value: Any) -> TypeError:
    try:
        content_key(value)
        why = "what it held when it was compared was not"
    except UnhashableContent as error:
        why = str(error)
    way_out = (
        "Give that type a `__hash__`, hold it in a dataclass, list, dict or array, or "
        "declare that its instances never change: `register_immutable_type`."
    )
    if type(value) in weakref.ProxyTypes:
        way_out = "Hold the object itself: graphs may have cycles."
    return TypeError(
        f"The {what} at {path_text(path)!r} is not hashable: {leaf_text(value)} of "
        f"type {type(value).__name__}; {why}. Definitions key compiled functions. "
        f"{way_out}"
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

    Returns:
        Pairs of a path and a `NodeDef`, `NodeRef`, `VariableDef` or `StaticAttribute`.

    Example:
        >>> import graphcore as gc
        >>> graphdef = gc.graphdef(gc.Dict(a=gc.Param(0), b=1))
        >>> [path for path, _ in definition_paths(graphdef)]
        [(), ('a',), ('b',)]
    """
    return ((path_of(trail), item) for trail, item in definition_trails(root))


@jax.tree_util.register_static
@dataclass(frozen=True)
class Static(Generic[A]):
    """A static value in a pytree: a node without children.

    Args:
        value: Anything hashable. It is compared with its type, as `1` and `True` are.

    Example:
        >>> import jax
        >>> jax.tree.leaves(Static('name'))
        []
    """

    value: A

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return bool(static_key(self.value) == static_key(other.value))

    def __parts__(self) -> Parts:
        return call_parts(self, [self.value], {})
