"""The linear form of definitions: what graphs consist of, and where it stands.

A definition is a tree, good to read and to compare. Who makes graphs, recognizes them
or looks for their variables in a state wants lists, to go through them without a
decision for each entry. There are two. *Things* are what a graph consists of, each
once. *Places* are where they stand: first the roots, then the children of each node,
parents before their children. Some things stand at several places.

To make a graph is to make its things and to put them at their places (`recipes`); to
recognize one is to look at its places and to see the same things there (`patterns`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from operator import call, getitem, setitem
from typing import Any, NamedTuple

from graphcore.getters import Getter, consume, getter
from graphcore.graphdef.branches import Branch, branches_of
from graphcore.graphdef.definition import (
    GraphDef,
    NodeDef,
    NodeRef,
    StaticAttribute,
    VariableDef,
)
from graphcore.trails import Path, Trail, path_of, path_text
from graphcore.variables.bare_arrays import BARE
from graphcore.variables.impl import VariableImpl, variable_impl
from graphcore.variables.variable import OWN

_together: weakref.WeakValueDictionary[tuple[GraphDef[Any], ...], Layout] = (
    weakref.WeakValueDictionary()
)


class Node(NamedTuple):
    """A graph node or pytree node.

    Args:
        thing: Its number among the things.
        kind: Its type.
        metadata: What the node type's `flatten` returned beside the children.
        changeable: That once more, if it may be changed in place.
        keys: The keys of its children.
        children: The things that stand there.
        place: Where the first of them stands.
    """

    thing: int
    kind: type[Any]
    metadata: Any
    changeable: StaticAttribute | None
    keys: tuple[Any, ...]
    children: tuple[int, ...]
    place: int

    def metadata_as_made(self, memo: dict[int, Any] | None) -> Any:
        """The metadata for a new node; see `Layout.statics_as_made`."""
        found = self.changeable
        return self.metadata if found is None else found.as_made(memo)


class Layout:
    """Definitions in one index space as lists of things and places.

    It refers to no object of a graph but for those that static values hold, and not to
    the definitions, which keep it.

    Args:
        definitions: The definitions.

    Attributes:
        definitions: Those of the variables, the first things, in order of index.
        kinds: Type and metadata of each variable.
        impls: How each is handled.
        all_owned: Whether all of them are `Variable`s.
        impl: How all are handled, if there is one way for all; else None.
        bare: Those that are bare arrays: the variable, the graph node that it is part
            of, and the keys from there.
        plain: The numbers of the next things, graph nodes without any state but their
            attributes; other graph nodes follow.
        statics: The static values, which come next, and None where it stands.
        first_static: The number of the first of them.
        changeable: Those that may be changed in place: number among them, attribute.
        can_change: Whether any may, or the metadata of a node.
        outside: References to things that are no part of the definitions, by the
            numbers of these, which come next. The last things are the pytree nodes,
            what they hold before them.
        nodes: All graph nodes and pytree nodes, parents first.
        roots: The things at the first places.
        places: Where each thing is defined, or referred to first.
        references: Where there are references, with the things that these mean.
        indices: The things that have an index, by it and in its order.
        selections: Which variables filters select; see `leaves`.
        notes: What others keep with it; nothing that holds an object.
        plan: That of a root that a static value holds; see `kept_beside`.
    """

    def __init__(self, definitions: Sequence[GraphDef[Any]]) -> None:
        variables: list[int] = []
        plain: list[int] = []
        others: list[int] = []
        statics: list[int] = []
        trees: list[int] = []
        references: list[int] = []
        opened: list[tuple[int, int]] = []
        items: list[Any] = [*definitions]
        for place, item in enumerate(items):  # grows during the loop
            if isinstance(item, StaticAttribute) or item.type is type(None):
                statics.append(place)
            elif isinstance(item, NodeRef):
                references.append(place)
            elif isinstance(item, VariableDef):
                variables.append(place)
            else:
                if item.index == -1:
                    trees.append(place)
                elif getattr(item.type, "_node__has_only_attributes", False):
                    plain.append(place)
                else:
                    others.append(place)
                opened.append((place, len(items)))
                items += [child for _, child in item.children()]
        variables.sort(key=lambda place: items[place].index)
        defined = {items[p].index: p for p in (*variables, *plain, *others)}
        place_of = {**defined}
        outside = [p for p in references if place_of.setdefault(items[p].index, p) == p]
        self.places = [
            *(*variables, *plain, *others, *statics, *outside, *reversed(trees))
        ]
        at = [-1] * len(items)
        for thing, place in enumerate(self.places):
            at[place] = thing
        for place in references:
            at[place] = at[place_of[items[place].index]]
        self.indices = {index: at[place] for index, place in sorted(defined.items())}
        self.outside: dict[int, NodeRef[Any]] = {at[p]: items[p] for p in outside}
        self.references = [(place, at[place]) for place in references]
        self.definitions: tuple[VariableDef[Any], ...] = tuple(
            [items[place] for place in variables]
        )
        self.plain = range(len(variables), len(variables) + len(plain))
        self.first_static = self.plain.stop + len(others)
        self.statics = [getattr(items[place], "value", None) for place in statics]
        self.changeable = [
            (number, items[place])
            for number, place in enumerate(statics)
            if getattr(items[place], "can_change", False)
        ]
        self.nodes: list[Node] = []
        for place, first in opened:
            item = items[place]
            keys = tuple([attribute.key for attribute in item.attributes])
            children = tuple(at[first : first + len(keys)])
            about = item.metadata, item.changeable
            node = Node(at[place], item.type, *about, keys, children, first)
            self.nodes.append(node)
        self.can_change = bool(
            self.changeable or any(node.changeable for node in self.nodes)
        )
        self.roots = tuple(at[: len(definitions)])
        self.kinds = [d.kind for d in self.definitions]
        self.impls: list[VariableImpl] = [
            variable_impl(d.type) for d in self.definitions
        ]
        self.all_owned = all(impl is OWN for impl in self.impls)
        distinct = {*self.impls}
        self.impl = distinct.pop() if len(distinct) == 1 else None
        self.bare = self._bare_arrays() if BARE in self.impls else []
        self.selections: dict[Any, Any] = {}
        self.notes: dict[Any, Any] = {}
        self.plan: Any = None
        # Caches; see `recipes` and `patterns`.
        self.recipe: Any = None
        self.pattern: Any = None

    def _bare_arrays(self) -> list[tuple[int, int, Path]]:
        where: dict[int, tuple[int, Path]] = {root: (root, ()) for root in self.roots}
        found: list[tuple[int, int, Path]] = []
        for node in self.nodes:
            owner, below = where[node.thing]
            for key, child in self.defined_in(node):
                path = (*below, key)
                if child < len(self.impls):
                    if self.impls[child] is BARE:
                        found.append((child, owner, path))
                elif child < self.first_static:
                    where[child] = child, ()
                else:
                    where[child] = owner, path
        return found

    def defined_in(self, node: Node) -> list[tuple[Any, int]]:
        """The children of a node whose place is there, with keys."""
        places = self.places
        pairs = zip(node.keys, node.children, strict=True)
        return [
            pair
            for place, pair in enumerate(pairs, node.place)
            if places[pair[1]] == place
        ]

    def trails(self) -> dict[int, Trail]:
        """Where each thing stands first; the number of the root comes first."""
        found: dict[int, Trail] = {}
        for number, thing in enumerate(self.roots):
            if self.places[thing] == number:
                found[thing] = None, number
        for node in self.nodes:
            above = found[node.thing]
            for key, child in self.defined_in(node):
                found[child] = above, key
        return found

    def values(self, variables: Sequence[Any]) -> list[Any]:
        """The raw values of the variables of a graph, as many as are defined here."""
        how = self.impl
        if how is not None and how.get_values is not None:
            return how.get_values(variables)
        getters, branches = self._readers
        values = [*map(call, getters, variables)]
        known = [branch for branch in branches if branch.read(variables, values)]
        if len(known) < len(branches):
            self._readers = self._readers_with(known)
        return values

    @cached_property
    def _readers(self) -> tuple[list[Callable[[Any], Any]], list[Branch]]:
        """What reads each variable, and what reads several together after that."""
        return self._readers_with(branches_of(self.bare))

    def _readers_with(
        self, branches: list[Branch]
    ) -> tuple[list[Callable[[Any], Any]], list[Branch]]:
        together = {number for branch in branches for number in branch.numbers}
        getters = [
            id if number in together else impl.get_value
            for number, impl in enumerate(self.impls)
        ]
        return getters, branches

    @property
    def branches(self) -> list[Branch]:
        """The bare arrays of which many stand in one pytree."""
        return self._readers[1]

    @cached_property
    def bare_numbers(self) -> frozenset[int]:
        """The numbers of the bare arrays."""
        return frozenset([number for number, *_ in self.bare])

    def statics_as_made(self, memo: dict[int, Any] | None) -> list[Any]:
        """The static values, as they were when the definitions were made.

        Args:
            memo: If what may be changed in place is to be copied, since what is done to
                it in one graph of the definitions must not be seen in others: what was
                copied before, as what is one object in several values is one in their
                copies. Extended.
        """
        if not self.changeable:
            return self.statics
        values = [*self.statics]
        made: dict[int, Any] = {}
        for number, attribute in self.changeable:
            if id(attribute) not in made:
                made[id(attribute)] = attribute.as_made(memo)
            values[number] = made[id(attribute)]
        return values

    def path(self, thing: int) -> Path:
        """Where a thing stands first, from its root."""
        return path_of(self.trails()[thing])[1:]

    def create(self, thing: int, value: Any, metadata: Any) -> Any:
        """Makes a variable as its type was registered; of a bare array, the array.

        Args:
            thing: Its number.
            value: Its raw value.
            metadata: Its metadata.

        Raises:
            TypeError: If what was registered returns something else.
        """
        impl, kind = self.impls[thing], self.definitions[thing].type
        made = impl.create(kind, value, metadata)
        if type(made) is not kind and impl is not BARE:
            raise TypeError(
                f"The `create` that {kind.__name__} is registered with returned a "
                f"{type(made).__name__} for the variable at "
                f"{path_text(self.path(thing))!r}."
            )
        return made

    @cached_property
    def root_paths(self) -> tuple[Path, ...]:
        """The path of each variable, with the number of its root before it."""
        trails = self.trails()
        return tuple([path_of(trails[thing]) for thing in range(len(self.definitions))])

    @cached_property
    def paths(self) -> tuple[Path, ...]:
        """The path of each variable from its root."""
        return tuple([path[1:] for path in self.root_paths])

    @cached_property
    def numbers(self) -> dict[Any, Any]:
        """The number of each variable, nested as what is defined is, of one root."""
        return self._nested(self.defined_in)

    @cached_property
    def all_numbers(self) -> dict[Any, Any]:
        """As `numbers`, at all places of each variable: what is shared is one dict."""
        return self._nested(lambda node: zip(node.keys, node.children, strict=True))

    def _nested(
        self,
        children_of: Callable[[Node], Iterable[tuple[Any, int]]],
        prune: bool = False,
    ) -> dict[Any, Any]:
        found: dict[int, Any] = {node.thing: {} for node in self.nodes}
        found.update(enumerate(range(len(self.definitions))))
        for thing, value in enumerate(self.statics, self.first_static):
            if value is None:  # a node without children
                found[thing] = {}
        for node in reversed(self.nodes):  # children first
            for key, child in children_of(node):
                if child in found and not (prune and found[child] == {}):
                    found[node.thing][key] = found[child]
        nested: dict[Any, Any] = found[self.roots[0]]
        return nested

    @cached_property
    def _places(self) -> tuple[list[Any], list[int], list[Any], Getter, list[Any]]:
        """Where things are in the nested dicts of a state.

        The dicts with the number of each variable in its place, those that are empty
        left out; for each dict but the first, the number of the one that it is in, and
        its key there; and likewise where the leaves are, in order of index.
        """
        parents, parent_keys = [], []
        dicts = [self._nested(self.defined_in, prune=True)]
        leaves: dict[int, tuple[int, Any]] = {}
        for owner, numbers in enumerate(dicts):  # grows during the loop
            for key, number in numbers.items():
                if type(number) is int:
                    leaves[number] = owner, key
                else:
                    parents.append(owner)
                    parent_keys.append(key)
                    dicts.append(number)
        ordered = [leaves[number] for number in range(len(leaves))]
        owners = getter([owner for owner, _ in ordered])
        return dicts, parents, parent_keys, owners, [key for _, key in ordered]

    def nest(self, leaves: Sequence[Any]) -> dict[Any, Any]:
        """Puts leaves, in order of index, into nested dicts as a state has them."""
        like, parents, parent_keys, owners, keys = self._places
        dicts: list[dict[Any, Any]] = list(map(dict.fromkeys, like))  # with that order
        outer = map(dicts.__getitem__, parents)
        consume(map(setitem, outer, parent_keys, dicts[1:]))
        consume(map(setitem, owners(dicts), keys, leaves))
        return dicts[0]

    def find(self, nested: Any) -> list[Any] | None:
        """Finds the leaves in the nested dicts of a state, in C.

        Args:
            nested: The nested dicts.

        Returns:
            The leaves in order of index; None if there is anything else in the dicts.
        """
        _, parents, parent_keys, owners, keys = self._places
        dicts: list[Any] = [nested]
        try:
            # Lazy: each dict is appended before its own entries are looked up.
            outer = map(dicts.__getitem__, parents)
            consume(map(dicts.append, map(getitem, outer, parent_keys)))
            # If there are as many entries as are looked up, there are no others.
            if sum(map(len, dicts)) != len(parents) + len(keys):
                return None
            return list(map(getitem, owners(dicts), keys))
        except (KeyError, TypeError):
            return None


def layout_of(definitions: Sequence[GraphDef[Any]]) -> Layout:
    """The linear form of definitions in one index space.

    A definition keeps its own. That of several is kept by those who use it: a
    definition may be there for good, and must not hold others.

    Args:
        definitions: The definitions.

    Returns:
        The layout.

    Example:
        >>> import graphcore as gc
        >>> graphdef = gc.graphdef(gc.Dict(a=gc.Param(1), b=2))
        >>> layout_of([graphdef]).paths
        (('a',),)
    """
    only = definitions[0] if len(definitions) == 1 else None
    if isinstance(only, NodeDef):
        if only._layout is None:
            object.__setattr__(only, "_layout", Layout(definitions))
        kept: Layout = only._layout
        return kept
    key = tuple(definitions)
    try:
        found = _together.get(key)
        if found is None:
            found = _together[key] = Layout(key)
    except TypeError:  # something in them is not hashable
        return Layout(key)
    return found
