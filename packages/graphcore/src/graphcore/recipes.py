"""How to build a new graph of a definition, worked out once for each definition.

Merging, cloning and tracing build the same few definitions again and again. A recipe
lists what is to be made in an order that needs no decisions: all variables, all graph
nodes, then their contents, pytree nodes before what holds them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from operator import getitem, setitem
from typing import Any, TypeAlias

from graphcore._jax import current_trace
from graphcore.getters import Getter, getter
from graphcore.graphdef import (
    NodeDef,
    NodeRef,
    StaticAttribute,
    VariableDef,
)
from graphcore.hashable_mapping import HashableMapping
from graphcore.owned import OwnedNode, attributes_of, make_owned
from graphcore.registry import (
    GraphNodeImpl,
    PytreeNodeImpl,
    get_node_impl_for_type,
)
from graphcore.variable_impl import VariableImpl, variable_impl
from graphcore.variable_state import VariableState
from graphcore.variables import OWN, Facts, facts_of, set_facts, set_raw_value

__all__ = ["Recipe", "recipe_of"]


class Recipe:
    """Makes new graphs of one definition.

    Everything that a graph consists of gets a place in one list: the variables and the
    graph nodes in order of index, the static values, then the pytree nodes in the
    order in which they are made.

    Args:
        definition: A definition that refers to nothing outside of itself.

    Attributes:
        variables: The definitions of the variables in order of index.

    Raises:
        KeyError: If it does refer to something outside.
    """

    __slots__ = (
        "_all_owned",
        "_by_index",
        "_children",
        "_create",
        "_different_metadata",
        "_facts",
        "_fill",
        "_holders",
        "_impls",
        "_keys",
        "_kinds",
        "_leaf_keys",
        "_levels",
        "_metadata",
        "_owned_kinds",
        "_owners",
        "_root",
        "_size",
        "_statics",
        "_trees",
        "_types",
        "variables",
    )

    def __init__(self, definition: NodeDef[Any]) -> None:
        self.variables: list[VariableDef[Any]] = []
        nodes: list[NodeDef[Any]] = []
        trees: list[NodeDef[Any]] = []
        statics: list[Any] = []
        # What stands at each place is known by identity of its definition, except for
        # references, which have the index.
        order = _children_first(definition)
        for item in order:
            if isinstance(item, VariableDef):
                self.variables.append(item)
            elif isinstance(item, StaticAttribute):
                statics.append(item)
            elif item.index == -1:
                trees.append(item)
            else:
                nodes.append(item)
        self.variables.sort(key=lambda d: d.index)
        # Nodes that are made alike first, to be made together.
        impls = {id(d): get_node_impl_for_type(d.type) for d in nodes}
        nodes.sort(key=lambda d: not _is_made_plainly(d.type))
        places: dict[int, int] = {}
        by_index: dict[int, int] = {}
        for place, item in enumerate([*self.variables, *nodes, *statics, *trees]):
            places[id(item)] = place
            if isinstance(item, VariableDef | NodeDef) and item.index != -1:
                by_index[item.index] = place

        def place_of(attribute: Any) -> int:
            if isinstance(attribute, StaticAttribute):
                return places[id(attribute)]
            if isinstance(attribute.value, NodeRef):
                return by_index[attribute.value.index]
            return places[id(attribute.value)]

        def children(node: NodeDef[Any]) -> tuple[tuple[Any, ...], Getter]:
            keys = tuple(attribute.key for attribute in node.attributes)
            return keys, getter([place_of(attribute) for attribute in node.attributes])

        self._kinds = [d.kind for d in self.variables]
        self._types = [d.type for d in self.variables]
        self._metadata = [d.metadata for d in self.variables]
        different = {id(metadata): metadata for metadata in self._metadata}
        self._different_metadata = list(different.values())
        numbers = {key: number for number, key in enumerate(different)}
        self._facts = getter([numbers[id(metadata)] for metadata in self._metadata])
        self._impls: list[VariableImpl] = [variable_impl(k) for k in self._types]
        self._all_owned = all(impl is OWN for impl in self._impls)
        self._owned_kinds = [d.type for d in nodes if _is_made_plainly(d.type)]
        self._create = [
            (impls[id(d)].create_empty, d.metadata)  # type: ignore[union-attr]
            for d in nodes[len(self._owned_kinds) :]
        ]
        self._statics = [attribute.value for attribute in statics]
        self._trees = [(_maker(d), *children(d)) for d in trees]
        # All attributes of the nodes that are made plainly, in the order of the
        # definition: in which dict, under which key, what.
        holders: list[int] = []
        self._keys: list[Any] = []
        filled: list[int] = []
        self._fill = []
        for number, d in enumerate(nodes):
            impl = impls[id(d)]
            if not isinstance(impl, GraphNodeImpl):
                raise KeyError(d.type)
            if _is_made_plainly(d.type):
                for attribute in d.attributes:
                    holders.append(number)
                    self._keys.append(attribute.key)
                    filled.append(place_of(attribute))
            else:
                self._fill.append((impl.init, places[id(d)], *children(d)))
        self._by_index = getter([by_index[index] for index in sorted(by_index)])
        self._holders, self._children = getter(holders), getter(filled)
        self._root = places[id(definition)]
        lookups = _lookups(definition, self.variables)
        self._levels, self._owners, self._leaf_keys, self._size = lookups

    def make(
        self,
        values: Sequence[Any],
        metadata: Sequence[HashableMapping[str, Any]] | None = None,
    ) -> Any:
        """Makes a graph.

        Args:
            values: The raw values of the variables, in order of index.
            metadata: Their metadata; as in the definition if left out.

        Returns:
            The root node.
        """
        return self._make(values, metadata)[self._root]

    def make_all(self, values: Sequence[Any]) -> Sequence[Any]:
        """Makes a graph.

        Args:
            values: The raw values of the variables, in order of index.

        Returns:
            The objects of all indices.
        """
        return self._by_index(self._make(values, None))

    def _make(
        self,
        values: Sequence[Any],
        metadata: Sequence[HashableMapping[str, Any]] | None,
    ) -> list[Any]:
        trace = current_trace()
        if self._all_owned:
            facts: Iterable[Facts]
            if metadata is None:
                different = [facts_of(m, trace) for m in self._different_metadata]
                facts = self._facts(different)
            else:
                facts = [facts_of(m, trace) for m in metadata]
            made = list(map(object.__new__, self._types))
            _run(map(set_raw_value, made, values))
            _run(map(set_facts, made, facts))
        else:
            metadata = self._metadata if metadata is None else metadata
            made = [
                impl.create(kind, value, data)
                for impl, kind, value, data in zip(
                    self._impls, self._types, values, metadata, strict=True
                )
            ]
        nodes = make_owned(self._owned_kinds, trace)
        made += nodes
        for create, data in self._create:
            made.append(create(data))
        made += self._statics
        for make, keys, children in self._trees:
            made.append(make(keys, children(made)))
        # Filled one by one: the dict that Python makes for an instance shares its keys
        # with those of other instances, until it is given another's.
        attributes = list(map(attributes_of, nodes))
        _run(map(setitem, self._holders(attributes), self._keys, self._children(made)))
        for init, place, keys, children in self._fill:
            init(made[place], list(zip(keys, children(made), strict=True)))
        return made

    def find(
        self, nested: dict[Any, Any]
    ) -> tuple[Sequence[Any], Sequence[HashableMapping[str, Any]] | None] | None:
        """Finds what to make a graph of in a state that fits just so.

        Args:
            nested: The nested dict of a state.

        Returns:
            Values in order of index, and metadata, None for that of the definition.
            None if the state is different in any other way from what taking such a
            graph apart gives, though it may still do.
        """
        dicts: list[Any] = [nested]
        try:
            for parents, keys in self._levels:
                dicts += map(getitem, parents(dicts), keys)
            # With as many entries as are looked up, there are no others.
            if set(map(type, dicts)) != {dict} or sum(map(len, dicts)) != self._size:
                return None
            leaves: list[Any] = list(map(getitem, self._owners(dicts), self._leaf_keys))
        except (KeyError, TypeError):
            return None
        if set(map(type, leaves)) - {VariableState}:
            return None
        kinds = [leaf._kind for leaf in leaves]
        values = [leaf.value for leaf in leaves]
        if kinds == self._kinds:
            return values, None
        if [kind for kind, _ in kinds] != self._types:
            return None
        return values, [metadata for _, metadata in kinds]


_Level: TypeAlias = tuple[Getter, list[Any]]


def _lookups(
    definition: NodeDef[Any], variables: Sequence[VariableDef[Any]]
) -> tuple[list[_Level], Getter, list[Any], int]:
    """Where the nested dicts of a state have the leaves of a definition.

    Returns:
        For each level of nested dicts but the first, what gets those that they are in
        and under what keys; what gets the dicts of the leaves, in the order of the
        variables, and under what keys; and how many entries all dicts have.
    """
    # Only nodes with variables below them have a dict.
    with_leaves: set[int] = set()
    for item in _children_first(definition):
        if isinstance(item, NodeDef):
            values = [
                getattr(attribute, "value", None) for attribute in item.attributes
            ]
            if any(isinstance(v, VariableDef) or id(v) in with_leaves for v in values):
                with_leaves.add(id(item))
    levels: list[_Level] = []
    where: dict[int, tuple[int, Any]] = {}
    level, first = [definition], 0
    while level:
        parents: list[int] = []
        keys: list[Any] = []
        below: list[NodeDef[Any]] = []
        for number, node in enumerate(level, first):
            for attribute in node.attributes:
                child = getattr(attribute, "value", None)
                if isinstance(attribute, StaticAttribute):
                    continue
                if isinstance(child, VariableDef):
                    where[child.index] = number, attribute.key
                elif isinstance(child, NodeDef) and id(child) in with_leaves:
                    parents.append(number)
                    keys.append(attribute.key)
                    below.append(child)
        first += len(level)
        level = below
        if below:
            levels.append((getter(parents), keys))
    owners = getter([where[d.index][0] for d in variables])
    leaf_keys = [where[d.index][1] for d in variables]
    return levels, owners, leaf_keys, first - 1 + len(variables)


def _run(calls: Any) -> None:
    deque(calls, maxlen=0)


def _is_made_plainly(kind: type[Any]) -> bool:
    return issubclass(kind, OwnedNode) and kind._has_only_attributes


def _maker(d: NodeDef[Any]) -> Callable[[tuple[Any, ...], Sequence[Any]], Any]:
    if d.type is list:
        return lambda keys, children: list(children)
    impl = get_node_impl_for_type(d.type)
    if not isinstance(impl, PytreeNodeImpl):
        raise KeyError(d.type)
    unflatten, metadata = impl.unflatten, d.metadata
    return lambda keys, children: unflatten(
        list(zip(keys, children, strict=True)), metadata
    )


def _children_first(root: NodeDef[Any]) -> list[Any]:
    found: list[Any] = []
    known: set[int] = set()
    pending: list[tuple[Any, bool]] = [(root, False)]
    while pending:
        item, visited = pending.pop()
        if id(item) in known:
            continue
        if visited or not isinstance(item, NodeDef):
            known.add(id(item))
            found.append(item)
            continue
        pending.append((item, True))
        for attribute in item.attributes:
            if isinstance(attribute, StaticAttribute):
                pending.append((attribute, False))
            elif not isinstance(attribute.value, NodeRef):
                pending.append((attribute.value, False))
    return found


def recipe_of(definition: NodeDef[Any]) -> Recipe | None:
    """The recipe of a definition, which keeps it; None if there can't be one.

    Args:
        definition: The definition.

    Returns:
        The recipe, or None if the definition refers to something outside of itself.
    """
    known = definition._recipe
    if known is None:
        try:
            known = Recipe(definition)
        except KeyError:
            known = False
        object.__setattr__(definition, "_recipe", known)
    return known or None
