"""Putting graphs together from definitions, into new objects or into existing ones.

Building has two phases. The first makes new objects and works out what every node
will hold; nothing that existed before is touched, so any error leaves it as it was.
The second writes. If it is interrupted, what it wrote is taken back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from graphcore._jax import current_trace
from graphcore.content import static_key
from graphcore.errors import path_text
from graphcore.graphdef import (
    GraphDef,
    NodeDef,
    NodeRef,
    StaticAttribute,
    VariableDef,
)
from graphcore.hashable_mapping import HashableMapping
from graphcore.owned import OwnedNode
from graphcore.plans import different_trace
from graphcore.registry import (
    GraphNodeImpl,
    NodeImpl,
    PytreeNodeImpl,
    find_node_impl,
    get_node_impl_for_type,
)
from graphcore.trails import Path
from graphcore.undo import restorer, undoing
from graphcore.variable_impl import is_variable, variable_impl
from graphcore.variables import OWN, new_variable, set_raw_value

__all__ = ["Builder", "set_values"]

_MISSING = object()


@dataclass(slots=True)
class _Write:
    """What an existing graph node is going to hold."""

    node: Any
    impl: GraphNodeImpl
    pairs: list[tuple[Any, Any]]


class _Frame:
    __slots__ = ("definition", "impl", "key", "node", "pairs", "path", "pending")

    def __init__(self, definition: NodeDef[Any], key: Any, path: Path, node: Any):
        self.definition = definition
        self.impl: NodeImpl = get_node_impl_for_type(definition.type)
        self.key = key
        self.path = path
        self.node = node
        self.pending = iter(definition.attributes)
        self.pairs: list[tuple[Any, Any]] = []


class Builder:
    """Builds the graphs of several definitions that share one index space.

    Args:
        leaves: For the index of a variable, its value and its metadata (None: as in
            the definition). A variable without an entry must be in `objects` or
            `existing`; it keeps its value.
        objects: The objects of indices that were built before; extended in place.
        existing: Objects to reuse for an index: graph nodes are emptied and filled
            again, variables get the new value.
    """

    def __init__(
        self,
        leaves: Mapping[int, tuple[Any, HashableMapping[str, Any] | None]],
        objects: dict[int, Any],
        existing: Mapping[int, Any],
    ) -> None:
        self._leaves = leaves
        self._objects = objects
        self._existing = existing
        self._trace = current_trace()
        self._node_writes: list[_Write] = []
        self._variable_writes: list[tuple[Any, Any, HashableMapping[str, Any]]] = []

    def build(self, root: GraphDef[Any]) -> Any:
        """Makes the object of a definition; existing ones are not written yet.

        Args:
            root: The definition.

        Returns:
            The node or variable.

        Raises:
            ValueError: If an existing object is of another type than the definition
                says, belongs to another trace, or a reference leads nowhere.
        """
        if isinstance(root, NodeRef):
            return self._referred(root, ())
        if isinstance(root, VariableDef):
            return self._variable(root, ())
        if not isinstance(root, NodeDef):
            raise ValueError(f"Expected a GraphDef, got {type(root).__name__}.")
        stack = [self._open(root, None, ())]
        while True:
            frame = stack[-1]
            for attribute in frame.pending:
                key = attribute.key
                if isinstance(attribute, StaticAttribute):
                    frame.pairs.append((key, attribute.value))
                    continue
                child = attribute.value
                if isinstance(child, VariableDef):
                    frame.pairs.append((key, self._variable(child, (*frame.path, key))))
                elif isinstance(child, NodeRef):
                    frame.pairs.append((key, self._referred(child, (*frame.path, key))))
                else:
                    stack.append(self._open(child, key, (*frame.path, key)))
                    break
            else:
                stack.pop()
                node = self._close(frame)
                if not stack:
                    return node
                stack[-1].pairs.append((frame.key, node))

    def _open(self, definition: NodeDef[Any], key: Any, path: Path) -> _Frame:
        frame = _Frame(definition, key, path, None)
        if not isinstance(frame.impl, GraphNodeImpl):
            return frame
        index = definition.index
        node = self._existing.get(index, _MISSING)
        if node is _MISSING:
            node = frame.impl.create_empty(definition.metadata)
        else:
            self._check(node, definition, path)
        self._objects[index] = frame.node = node
        return frame

    def _check(self, existing: Any, definition: Any, path: Path) -> None:
        if type(existing) is not definition.type:
            raise ValueError(
                f"The existing object for {path_text(path)!r} is a "
                f"{type(existing).__name__}, but the definition says "
                f"{definition.type.__name__}."
            )
        if isinstance(existing, OwnedNode):
            trace = existing._trace
        else:
            impl = OWN if isinstance(definition, VariableDef) else None
            if impl is None or variable_impl(type(existing)) is not OWN:
                return
            trace = existing._facts.trace
        if trace is not self._trace and trace != self._trace:
            raise different_trace(path, type(existing))

    def _close(self, frame: _Frame) -> Any:
        impl = frame.impl
        if not isinstance(impl, GraphNodeImpl):
            return impl.unflatten(frame.pairs, frame.definition.metadata)
        if frame.definition.index in self._existing:
            if not isinstance(frame.node, OwnedNode):
                self._check_metadata(frame, impl)
            self._node_writes.append(_Write(frame.node, impl, frame.pairs))
        else:
            impl.init(frame.node, frame.pairs)
        return frame.node

    @staticmethod
    def _check_metadata(frame: _Frame, impl: GraphNodeImpl) -> None:
        found = impl.flatten(frame.node)[1]
        wanted = frame.definition.metadata
        if static_key(found) != static_key(wanted):
            raise ValueError(
                f"The metadata of the {impl.type.__name__} at "
                f"{path_text(frame.path)!r} would change from {found!r} to {wanted!r}, "
                "but an existing node of a registered type has no way to change it: "
                "keep what changes in a child."
            )

    def _variable(self, definition: VariableDef[Any], path: Path) -> Any:
        index = definition.index
        leaf = self._leaves.get(index)
        existing = self._existing.get(index, _MISSING)
        if existing is not _MISSING:
            self._check(existing, definition, path)
            self._objects[index] = existing
            if leaf is None:
                impl = variable_impl(type(existing))
                if impl.metadata(existing) == definition.metadata:
                    return existing
                leaf = impl.get_value(existing), None
            value, metadata = leaf
            if metadata is None:
                metadata = definition.metadata
            self._variable_writes.append((existing, value, metadata))
            return existing
        if leaf is None:
            raise ValueError(f"There is no value for the variable {path_text(path)!r}.")
        value, metadata = leaf
        if metadata is None:
            metadata = definition.metadata
        impl = variable_impl(definition.type)
        if impl is OWN:
            variable = new_variable(definition.type, value, metadata, self._trace)
        else:
            variable = impl.create(definition.type, value, metadata)
        self._objects[index] = variable
        return variable

    def _referred(self, reference: NodeRef[Any], path: Path) -> Any:
        found = self._objects.get(reference.index, _MISSING)
        if found is _MISSING:
            found = self._existing.get(reference.index, _MISSING)
        if found is _MISSING:
            raise ValueError(
                f"{path_text(path)!r} refers to the object with index "
                f"{reference.index} ({reference.type.__name__}), which is not part of "
                "this definition: pass what was merged before it as well."
            )
        return found

    def write_value(self, variable: Any, value: Any) -> None:
        """Has an existing variable get a value on `commit`.

        Args:
            variable: The variable; it keeps its metadata.
            value: The raw value.
        """
        metadata = variable_impl(type(variable)).metadata(variable)
        self._variable_writes.append((variable, value, metadata))

    def commit(self) -> None:
        """Writes to the existing objects: all of it, or nothing."""
        with undoing() as undo:
            for write in self._node_writes:
                node, impl = write.node, write.impl
                old, _ = impl.flatten(node)
                known = dict(old)
                new = [
                    (key, _keep_container(known.get(key), child))
                    for key, child in write.pairs
                ]
                if len(new) == len(old) and all(
                    k1 == k2 and c1 is c2
                    for (k1, c1), (k2, c2) in zip(old, new, strict=True)
                ):
                    continue
                if isinstance(node, OwnedNode):
                    # What was there keeps its place in the order of insertion.
                    place = {key: i for i, key in enumerate(vars(node))}
                    new.sort(key=lambda pair: place.get(pair[0], len(place)))
                undo.append(restorer(node, impl))
                impl.clear(node)
                impl.init(node, new)
            for variable, value, metadata in self._variable_writes:
                how = variable_impl(type(variable))
                before = how.get_value(variable), how.metadata(variable)
                undo.append(partial(how.overwrite, variable, *before))
                how.overwrite(variable, value, metadata)


def _keep_container(old: Any, new: Any) -> Any:
    """Prefers an old plain container to a new one with the same contents.

    Pytree nodes are made anew when a graph is rebuilt. Where nothing changed, the
    object that its owner knows should stay.
    """
    if old is new or type(old) is not type(new) or is_variable(old):
        return new
    impl = find_node_impl(old)
    if not isinstance(impl, PytreeNodeImpl):
        return new
    (before, metadata), (after, new_metadata) = impl.flatten(old), impl.flatten(new)
    if len(before) != len(after) or static_key(metadata) != static_key(new_metadata):
        return new
    same = all(
        k1 == k2 and _keep_container(c1, c2) is c1
        for (k1, c1), (k2, c2) in zip(before, after, strict=True)
    )
    return old if same else new


def set_values(
    variables: Sequence[Any], values: Sequence[Any], all_owned: bool
) -> None:
    """Writes the raw values of variables that may be written: all, or none.

    Args:
        variables: The variables; there may be more of them than values.
        values: The raw values of the first so many.
        all_owned: Whether all of them are `Variable`s.
    """
    if all_owned:
        if len(values) == 1:
            set_raw_value(variables[0], values[0])
            return
        # One call into C, as no setter returns anything: a signal can't be handled
        # halfway through.
        any(map(set_raw_value, variables, values))
        return
    with undoing() as undo:
        for variable, value in zip(variables[: len(values)], values, strict=True):
            impl = variable_impl(type(variable))
            undo.append(partial(impl.set_value, variable, impl.get_value(variable)))
            impl.set_value(variable, value)
