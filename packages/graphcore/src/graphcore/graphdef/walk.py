"""One visit of a graph: its definition, its variables, and what both depend on.

Everything that takes a graph apart goes through `walk`. It visits depth first in
sorted order of keys, gives graph nodes and variables consecutive indices in order of
first visit, and keeps an explicit stack, so graphs can be of any depth.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from graphcore.content import is_immutable
from graphcore.graphdef.definition import (
    Attribute,
    GraphDef,
    LeafAttribute,
    NodeDef,
    NodeRef,
    StaticAttribute,
    SubGraphAttribute,
    VariableDef,
)
from graphcore.hashable_mapping import as_kept
from graphcore.known_types import ATOMS, sometimes
from graphcore.nodes.owned import OwnedNode
from graphcore.nodes.registry import (
    GraphNodeImpl,
    NodeImpl,
    UnsortableKeys,
    containers_of,
    find_impl,
    trace_of,
)
from graphcore.refmap import RefMap
from graphcore.trails import Path, Trail, path_of, path_text
from graphcore.variables.bare_arrays import BARE, BareArray, is_array
from graphcore.variables.impl import VariableImpl
from graphcore.variables.state import VariableState
from graphcore.variables.variable import metadata_epoch


@dataclass(slots=True)
class Leaf:
    """A variable where it was first visited."""

    trail: Trail
    variable: Any
    impl: VariableImpl
    definition: VariableDef[Any]

    @property
    def path(self) -> Path:
        """The keys from the root to it."""
        return path_of(self.trail)

    def state(self) -> Any:
        """The state of the variable; of a bare array, the array."""
        value = self.impl.get_value(self.variable)
        return VariableState.of(self.definition.kind, value)


@dataclass(slots=True)
class Visit:
    """What a walk saw, in order.

    Args:
        leaves: The variables that were not known before.
        nodes: The graph nodes that were not known before, with their trails.
        unwatched: Nodes that must be flattened anew to see whether they changed:
            foreign graph nodes, and pytree nodes that only JAX knows.
        foreign: Other nodes of registered types, whose containers are declared.
        containers: The dicts and lists that hold the children of all other nodes.
        contents: Copies of these, if a plan is made of the visit, from before they were
            read: what another thread or a signal handler writes during a walk differs.
        mark: What `metadata_epoch.mark` was at the start.
        mutable_statics: Static values that might change in place.
        changeable: The attributes that hold such a value, by its id and their keys.
        strangers: Static values of types that are not built in: the type of the value
            can change, or become that of a node or variable.
        refs: The indices of all graph nodes and variables that are known.
        open_pytrees: The pytree nodes that are being visited, by id, with the number of
            graph nodes that were known when each was opened.
    """

    leaves: list[Leaf] = field(default_factory=list)
    nodes: list[tuple[Trail, Any]] = field(default_factory=list)
    unwatched: list[tuple[Any, NodeImpl, Any, Any]] = field(default_factory=list)
    foreign: list[tuple[Any, NodeImpl]] = field(default_factory=list)
    containers: list[Any] = field(default_factory=list)
    contents: list[Any] | None = None
    mark: object = field(default_factory=lambda: metadata_epoch.mark)
    mutable_statics: list[Any] = field(default_factory=list)
    changeable: dict[Any, StaticAttribute] = field(default_factory=dict)
    strangers: list[Any] = field(default_factory=list)
    refs: RefMap[Any, int] = field(default_factory=RefMap)
    open_pytrees: set[Any] = field(default_factory=set)

    def watch(self, containers: Sequence[Any]) -> None:
        """Takes note of containers that are about to be read, for a plan."""
        if self.contents is not None:
            self.containers += containers
            self.contents += [container.copy() for container in containers]

    def traces(self) -> Iterator[tuple[Trail, Any, Any]]:
        """The trail, the object and the trace of everything that tells its trace."""
        for trail, node in self.nodes:
            trace = trace_of(node)
            if trace is not None:
                yield trail, node, trace
        for leaf in self.leaves:
            if leaf.impl.get_trace is not None:
                yield leaf.trail, leaf.variable, leaf.impl.get_trace(leaf.variable)


@dataclass(slots=True)
class _Frame:
    """A node whose children are being visited.

    Args:
        mark: For a pytree node, what stands for it in `open_pytrees`.
        owner: The graph node that it is, or is part of; the root if there is none.
        below: The keys from there.
    """

    node: Any
    key: Any
    trail: Trail
    index: int
    pending: Iterator[tuple[Any, Any]]
    metadata: Any
    mark: tuple[int, int] | None
    owner: Any
    below: Path = ()
    attributes: list[Attribute] = field(default_factory=list)


_BUILT_IN = (list, dict, tuple, type(None))
# What CPython sets in `__flags__` of types that are not built in.
_HEAP_TYPE = 1 << 9


def is_stranger(value: Any) -> bool:
    """Whether a static value is of a type that may yet be registered for nodes."""
    # Classes are common as static values; their metaclass is no node type.
    return bool(type(value).__flags__ & _HEAP_TYPE) and not isinstance(value, type)


def walk(root: Any, visit: Visit) -> GraphDef[Any]:
    """Visits everything that can be reached from a node or variable.

    Args:
        root: The node or variable.
        visit: What was visited before; extended in place by what is new. After an error
            it holds what was reached.

    Returns:
        The definition: a `NodeRef` if the root itself was visited before.

    Raises:
        ValueError: If the root is neither a node nor a variable, plain containers form
            a cycle, a plain dict can't be sorted, or two children have the same key;
            with the path.
        TypeError: If a registered `flatten` returns something else than is due.
    """
    impl = find_impl(root)
    if isinstance(impl, VariableImpl):
        return _visit_variable(root, impl, None, visit)
    if impl is None:
        raise ValueError(
            f"Cannot flatten an object of type {type(root).__name__}: it is neither a "
            "graph node nor a pytree node. Subclass `Object`, or register its type "
            "with `register_graph_node_type`."
        )
    refs = visit.refs
    if isinstance(impl, GraphNodeImpl) and root in refs:
        return NodeRef(type(root), refs[root])

    stack = [_open(root, impl, None, None, visit)]
    while True:
        frame = stack[-1]
        for key, value in frame.pending:
            kind = type(value)
            if kind in ATOMS:
                frame.attributes.append(StaticAttribute(key, value))
                continue
            trail = frame.trail, key
            impl = find_impl(value)
            if impl is None and is_array(value):
                value, impl = BareArray.at(frame.owner, (*frame.below, key)), BARE
            if isinstance(impl, VariableImpl):
                leaf = _visit_variable(value, impl, trail, visit)
                frame.attributes.append(LeafAttribute(key, leaf))
                continue
            if impl is None:
                frame.attributes.append(_static(key, value, visit))
                continue
            if isinstance(impl, GraphNodeImpl):
                index = refs.get(value)
                if index is not None:
                    reference: NodeRef[Any] = NodeRef(kind, index)
                    frame.attributes.append(SubGraphAttribute(key, reference))
                    continue
            opened = _open(value, impl, key, trail, visit)
            if opened.index == -1:
                opened.owner, opened.below = frame.owner, (*frame.below, key)
            stack.append(opened)
            break
        else:
            stack.pop()
            visit.open_pytrees.discard(frame.mark)
            kind, found = type(frame.node), tuple(frame.attributes)
            definition: NodeDef[Any] = NodeDef(kind, frame.index, found, frame.metadata)
            if not stack:
                return definition
            stack[-1].attributes.append(SubGraphAttribute(frame.key, definition))


def _open(node: Any, impl: NodeImpl, key: Any, trail: Trail, visit: Visit) -> _Frame:
    kind = type(node)
    is_known = kind in _BUILT_IN or kind in sometimes
    is_registered = not (is_known or isinstance(node, OwnedNode))
    containers = containers_of(node, impl)
    if is_registered and containers is not None:
        visit.foreign.append((node, impl))
    visit.watch(containers or ())
    try:
        found: Any = impl.flatten(node)
    except UnsortableKeys as error:
        raise error.at(path_of(trail)) from None
    if not isinstance(found, tuple | list) or len(found) != 2:
        raise _unlike_pairs(found, type(node), trail)
    pairs, metadata = found
    index, mark = -1, None
    if isinstance(impl, GraphNodeImpl):
        index = visit.refs[node] = len(visit.refs)
        visit.nodes.append((trail, node))
    else:
        # A cycle of pytree nodes without a graph node in between would have no end.
        mark = id(node), len(visit.nodes)
        if mark in visit.open_pytrees:
            where = path_text(path_of(trail))
            raise ValueError(
                f"The {type(node).__name__} at {where!r} contains itself. Plain "
                "containers have no identity, so they can't be part of a cycle: use a "
                "`List` or `Dict`, or go through an `Object`."
            )
        visit.open_pytrees.add(mark)
    if is_registered:
        pairs = _checked(pairs, found, kind, trail)
        is_named_tuple = isinstance(node, tuple) and hasattr(kind, "_fields")
        if containers is None and not is_named_tuple:
            visit.unwatched.append((node, impl, pairs, metadata))
    return _Frame(node, key, trail, index, iter(pairs), metadata, mark, node)


def _checked(
    pairs: Any, returned: Any, kind: type[Any], trail: Trail
) -> Sequence[tuple[Any, Any]]:
    """What a registered `flatten` gives, if its children can be told apart."""
    try:
        found = pairs if isinstance(pairs, list | tuple) else [*pairs]
        keys = [key for key, _ in found]
        different = {*keys}
    except (TypeError, ValueError) as error:
        raise _unlike_pairs(returned, kind, trail) from error
    if len(different) < len(keys):
        twice = next(key for i, key in enumerate(keys) if key in keys[:i])
        raise ValueError(
            f"The `flatten` that {kind.__name__} is registered with gives two children "
            f"with the key {twice!r} for the object at {path_text(path_of(trail))!r}: "
            "each child has a key of its own."
        )
    return found


def _unlike_pairs(found: Any, kind: type[Any], trail: Trail) -> TypeError:
    shown = textwrap.shorten(repr(found), 200)
    return TypeError(
        f"The `flatten` that {kind.__name__} is registered with returned {shown} for "
        f"the object at {path_text(path_of(trail))!r}, expected a tuple of two: pairs "
        "of a hashable key and a child, and the metadata."
    )


def _visit_variable(
    variable: Any, impl: VariableImpl, trail: Trail, visit: Visit
) -> VariableDef[Any] | NodeRef[Any]:
    refs = visit.refs
    index = refs.get(variable)
    if index is not None:
        return NodeRef(type(variable), index)
    if impl.refuse is not None:
        reason = impl.refuse(variable)
        if reason is not None:
            kind = type(variable).__name__
            raise ValueError(f"The {kind} at {path_text(path_of(trail))!r} {reason}")
    index = refs[variable] = len(refs)
    metadata = impl.metadata(variable)
    kept = as_kept(metadata)
    if kept is not metadata:
        visit.mutable_statics += [x for x in metadata.values() if not is_immutable(x)]
    definition: VariableDef[Any] = VariableDef(type(variable), index, kept)
    visit.leaves.append(Leaf(trail, variable, impl, definition))
    return definition


def _static(key: Any, value: Any, visit: Visit) -> StaticAttribute:
    if is_stranger(value):
        visit.strangers.append(value)
    if is_immutable(value):
        return StaticAttribute(key, value)
    # A configuration stands in many modules, and takes time to be copied and compared.
    known = visit.changeable.get((id(value), type(key), key))
    if known is None:
        visit.mutable_statics.append(value)
        known = StaticAttribute(key, value)
        visit.changeable[id(value), type(key), key] = known
    return known
