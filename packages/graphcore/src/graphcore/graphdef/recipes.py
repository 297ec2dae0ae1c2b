"""How to make new graphs of a layout, worked out once.

Merging, cloning and tracing build the same few structures again and again. A recipe
makes the things of a layout in their order, which needs no decisions: all variables,
all graph nodes, then pytree nodes before what holds them, and last it puts the things
into the graph nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import setitem
from typing import Any

from graphcore._jax import current_trace
from graphcore.getters import consume, getter
from graphcore.graphdef.layouts import Layout
from graphcore.hashable_mapping import as_kept
from graphcore.nodes.owned import attributes_of, make_owned
from graphcore.nodes.registry import get_node_impl_for_type
from graphcore.variables.bare_arrays import BareArray
from graphcore.variables.variable import facts_of, set_facts, set_raw_value


class Recipe:
    """Makes new graphs of definitions in one index space.

    Args:
        layout: Their layout. If there are things outside, not all is made here.

    Attributes:
        nodes: For each graph node its implementation, type, what gives its metadata,
            keys, and how to get its children among the things.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._types = [d.type for d in layout.definitions]
        self._metadata = [d.metadata for d in layout.definitions]
        different = {id(metadata): metadata for metadata in self._metadata}
        self._different_metadata = list(different.values())
        self._has_changeable = any(as_kept(m) is not m for m in different.values())
        numbers = {key: number for number, key in enumerate(different)}
        self._facts = getter([numbers[id(metadata)] for metadata in self._metadata])
        nodes = sorted(layout.nodes)  # by their numbers
        steps: list[Any] = [
            (
                get_node_impl_for_type(node.kind),
                node.kind,
                node.metadata_as_made,
                node.keys,
                getter(node.children),
            )
            for node in nodes
        ]
        first_tree = layout.first_static - len(self._types)
        self.nodes, self._trees = steps[:first_tree], steps[first_tree:]
        # All attributes of plain nodes: in which dict, under which key, which child.
        plain = nodes[: len(layout.plain)]
        self._plain_types = [node.kind for node in plain]
        self._holders = getter([i for i, node in enumerate(plain) for _ in node.keys])
        self._keys = [key for node in plain for key in node.keys]
        self._children = getter([child for node in plain for child in node.children])
        self._others = self.nodes[len(plain) :]
        self._indices = getter([*layout.indices.values()])
        self._roots = getter(layout.roots)

    def make(self, values: Sequence[Any]) -> Any:
        """Makes a graph of a single definition.

        Args:
            values: The raw values of the variables, in order of index.

        Returns:
            The root.
        """
        return self._make(values, copied=False)[self._layout.roots[0]]

    def build(self, values: Sequence[Any]) -> tuple[Sequence[Any], ...]:
        """Makes the graphs, with copies of static values that may change in place.

        Args:
            values: The raw values of the variables, in order of index.

        Returns:
            The objects of all indices, the roots, and the variables.
        """
        things = self._make(values, copied=True)
        for thing, owner, path in self._layout.bare:
            things[thing] = BareArray.at(things[owner], path)
        # Variables come first.
        return self._indices(things), self._roots(things), things[: len(values)]

    def _make(self, values: Sequence[Any], *, copied: bool) -> list[Any]:
        layout = self._layout
        trace = current_trace()
        memo: dict[int, Any] | None = {} if copied else None
        if layout.all_owned:
            metadata = self._different_metadata
            if self._has_changeable:  # Such a value is one for each graph.
                metadata = [*map(as_kept, metadata)]
            different = [facts_of(each, trace) for each in metadata]
            things = list(map(object.__new__, self._types))
            consume(map(set_raw_value, things, values))
            consume(map(set_facts, things, self._facts(different)))
        else:
            pairs = zip(values, self._metadata, strict=True)
            things = [
                layout.create(thing, value, as_kept(data))
                for thing, (value, data) in enumerate(pairs)
            ]
        nodes = make_owned(self._plain_types, trace)
        others = [impl.make(kind, data(memo)) for impl, kind, data, *_ in self._others]
        things += nodes
        things += others
        self.complete(things, memo=memo)
        # Filled one by one: the dict that Python makes for an instance shares its keys
        # with those of other instances, until it is given another's.
        attributes = list(map(attributes_of, nodes))
        children = self._children(things)
        consume(map(setitem, self._holders(attributes), self._keys, children))
        for node, (impl, _, _, keys, children_of) in zip(
            others, self._others, strict=True
        ):
            impl.init(node, list(zip(keys, children_of(things), strict=True)))
        return things

    def complete(
        self,
        things: list[Any],
        outside: Sequence[Any] = (),
        *,
        memo: dict[int, Any] | None,
    ) -> None:
        """Adds what comes after variables and graph nodes.

        Args:
            things: Those; extended in place.
            outside: What the references to something outside mean.
            memo: As for `Layout.statics_as_made`.
        """
        things += self._layout.statics_as_made(memo)
        things += outside
        for impl, _, metadata, keys, children_of in self._trees:
            pairs = list(zip(keys, children_of(things), strict=True))
            things.append(impl.unflatten(pairs, metadata(memo)))


def recipe_of(layout: Layout) -> Recipe:
    """The recipe of the graphs of a layout, which keeps it.

    Args:
        layout: The layout of definitions in one index space.

    Returns:
        The recipe.
    """
    if layout.recipe is None:
        layout.recipe = Recipe(layout)
    return layout.recipe  # type: ignore[no-any-return]
