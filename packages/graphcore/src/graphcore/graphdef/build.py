"""Putting graphs together from definitions, into new objects or into existing ones.

Building has two phases. The first makes new objects and works out what every node
will hold; nothing that existed before is touched, so any error leaves it as it was.
The second writes. If it is interrupted, what it wrote is taken back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from graphcore._jax import current_trace
from graphcore.content import is_immutable
from graphcore.content_key import same_content
from graphcore.display.printing import leaf_text
from graphcore.graphdef.definition import GraphDef, NodeRef, VariableDef
from graphcore.graphdef.layouts import Layout, layout_of
from graphcore.graphdef.recipes import recipe_of
from graphcore.hashable_mapping import HashableMapping, as_kept
from graphcore.nodes.owned import OwnedNode
from graphcore.nodes.registry import (
    GraphNodeImpl,
    PytreeNodeImpl,
    find_impl,
    trace_of,
)
from graphcore.rebuilt import wrong_trace
from graphcore.trails import path_text
from graphcore.undo import overwrite, restorer
from graphcore.variables.bare_arrays import BARE, BareArray, is_array
from graphcore.variables.impl import is_variable
from graphcore.variables.variable import OWN, new_variable

A = TypeVar("A")
_MISSING = object()


class Builder:
    """Builds the graphs of several definitions that share one index space.

    Args:
        leaves: For the index of a variable, its value and its metadata (None: as in
            the definition). A variable without an entry must be in `objects` or
            `existing`; it keeps its value.
        objects: The objects of indices that were built before; extended in place.
        existing: Objects to reuse for an index: graph nodes are emptied and filled
            again, variables get the new value.
        copied: Whether new static values that may change in place are copies.
    """

    def __init__(
        self,
        leaves: Mapping[int, tuple[Any, HashableMapping[str, Any] | None]],
        objects: dict[int, Any],
        existing: Mapping[int, Any],
        *,
        copied: bool = False,
    ) -> None:
        self._copied = copied
        self._memo: dict[int, Any] | None = {} if copied else None
        self._leaves = leaves
        self._objects = objects
        self._existing = existing
        self._trace = current_trace()
        # The new children of existing graph nodes, to be set at the end.
        self._node_writes: list[tuple[Any, GraphNodeImpl, list[tuple[Any, Any]]]] = []
        # What existing variables are given, as arguments of `overwrite`.
        self._variable_writes: list[tuple[Any, ...]] = []

    def build(self, root: GraphDef[A]) -> A:
        """As `build_all`, of a single definition."""
        built: A = self.build_all(layout_of((root,)))[0]
        return built

    def build_all(self, layout: Layout) -> list[Any]:
        """Makes the objects of definitions; existing ones are not written yet.

        Args:
            layout: The layout of the definitions.

        Returns:
            The nodes and variables.

        Raises:
            ValueError: If an existing object is of another type than the definition
                says, belongs to another trace, or a reference leads nowhere.
        """
        if not layout.roots:
            return []
        recipe = recipe_of(layout)
        indices = layout.indices.items()
        existing = {t: self._existing[i] for i, t in indices if i in self._existing}
        if self._copied and not existing and not layout.outside:
            # All is new, as a model that a function made: nothing to be looked up.
            values = [self._leaves[d.index][0] for d in layout.definitions]
            objects, roots, _ = recipe.build(values)
            self._objects.update(zip(layout.indices, objects, strict=True))
            return [*roots]
        things: list[Any] = [
            self._variable(definition, layout, thing, existing.get(thing))
            for thing, definition in enumerate(layout.definitions)
        ]
        for thing, how in enumerate(recipe.nodes, len(things)):
            things.append(self._node(how, layout, thing, existing.get(thing)))
        references = layout.outside.items()
        outside = [self._referred(r, layout, t) for t, r in references]
        recipe.complete(things, outside, memo=self._memo)
        for thing, (impl, _, _, keys, children_of) in enumerate(
            recipe.nodes, len(layout.definitions)
        ):
            pairs = list(zip(keys, children_of(things), strict=True))
            if thing in existing:
                self._node_writes.append((things[thing], impl, pairs))
            else:
                impl.init(things[thing], pairs)
        built = [things[root] for root in layout.roots]
        for thing, owner, path in layout.bare:
            things[thing] = BareArray.at(things[owner], path)
        self._objects.update((index, things[thing]) for index, thing in indices)
        return built

    def _node(
        self, how: tuple[Any, ...], layout: Layout, thing: int, existing: Any
    ) -> Any:
        impl, kind, metadata_as_made, *_ = how
        metadata = metadata_as_made(self._memo)
        if existing is None:
            return impl.make(kind, metadata)
        self._check(existing, kind, layout, thing)
        if not isinstance(existing, OwnedNode):
            found = impl.flatten(existing)[1]
            if not same_content(found, metadata):
                raise ValueError(
                    f"The metadata of the {impl.type.__name__} at "
                    f"{path_text(layout.path(thing))!r} would change from "
                    f"{leaf_text(found)} to {leaf_text(metadata)}, but an existing "
                    "node of a registered type has no way to change it: keep what "
                    "changes in a child."
                )
        return existing

    def _check(
        self, existing: Any, kind: type[Any], layout: Layout, thing: int
    ) -> None:
        if type(existing) is not kind:
            raise ValueError(
                f"The existing object for {path_text(layout.path(thing))!r} is a "
                f"{type(existing).__name__}, but the definition says {kind.__name__}."
            )
        trace = trace_of(existing)
        if trace is not None and trace != self._trace:
            raise wrong_trace(trace, kind, layout.path(thing))

    def _variable(
        self, definition: VariableDef[Any], layout: Layout, thing: int, existing: Any
    ) -> Any:
        impl = layout.impls[thing]
        value, metadata = self._leaves.get(definition.index, (_MISSING, None))
        if metadata is None:
            metadata = definition.metadata
        if existing is not None:
            self._check(existing, definition.type, layout, thing)
            if impl is BARE:  # It is written with the children of its node.
                return existing.get() if value is _MISSING else value
            if value is _MISSING:
                if impl.metadata(existing) == definition.metadata:
                    return existing
                value = impl.get_value(existing)
            kept = _keep_values(impl.metadata(existing), metadata)
            self._variable_writes.append((existing, value, kept))
            return existing
        if type(value) is definition.type:  # a live variable, which is no value
            return value
        metadata = as_kept(metadata)
        if impl is OWN:
            return new_variable(definition.type, value, metadata, self._trace)
        return layout.create(thing, value, metadata)

    def _referred(self, reference: NodeRef[Any], layout: Layout, thing: int) -> Any:
        for known in (self._objects, self._existing):
            if reference.index in known:
                return known[reference.index]
        raise ValueError(
            f"{path_text(layout.path(thing))!r} refers to the object with index "
            f"{reference.index} ({reference.type.__name__}), which is not part of this "
            "definition: pass what was merged before it as well."
        )

    def commit(self, undo: list[Callable[[], Any]]) -> None:
        """Writes to the existing objects.

        Args:
            undo: The steps of `undoing`, so that all of it happens, or nothing.
        """
        for node, impl, pairs in self._node_writes:
            old, _ = impl.flatten(node)
            known = dict(old)
            new = [(key, _keep(known.get(key), child)) for key, child in pairs]
            if len(new) == len(old) and all(
                k1 == k2 and c1 is c2
                for (k1, c1), (k2, c2) in zip(old, new, strict=True)
            ):
                continue
            if isinstance(node, OwnedNode) or "__dict__" in impl.containers:
                # What was there keeps its place in the order of insertion.
                place = {key: i for i, key in enumerate(vars(node))}
                new.sort(key=lambda pair: place.get(pair[0], len(place)))
            undo.append(restorer(node, impl))
            impl.clear(node)
            impl.init(node, new)
        for write in self._variable_writes:
            overwrite(undo, *write)


def _keep_values(
    old: HashableMapping[str, Any], new: HashableMapping[str, Any]
) -> HashableMapping[str, Any]:
    """Metadata, with the old object in the place of one with the same content."""
    if as_kept(new) is new:
        return new
    if old == new:
        return old
    return HashableMapping(
        {
            name: old[name] if name in old and same_content(old[name], x) else x
            for name, x in as_kept(new).items()
        }
    )


def _keep(old: Any, new: Any) -> Any:
    """Prefers an old container or static value to a new one with the same content.

    These are made anew when a graph is rebuilt. Where nothing changed, the object that
    its owner knows should stay.
    """
    if old is new or type(old) is not type(new) or is_variable(old) or is_array(old):
        return new
    impl = find_impl(old)
    if impl is None:
        return new if is_immutable(new) or not same_content(old, new) else old
    if not isinstance(impl, PytreeNodeImpl):
        return new
    (before, metadata), (after, new_metadata) = impl.flatten(old), impl.flatten(new)
    if len(before) != len(after) or not same_content(metadata, new_metadata):
        return new
    same = all(
        k1 == k2 and _keep(c1, c2) is c1
        for (k1, c1), (k2, c2) in zip(before, after, strict=True)
    )
    return old if same else new
