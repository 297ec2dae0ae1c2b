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
from graphcore.graphdef.definition import GraphDef
from graphcore.graphdef.layouts import Layout, layout_of
from graphcore.nodes.owned import attributes_of, make_owned
from graphcore.nodes.registry import get_node_impl_for_type
from graphcore.variables.bare_arrays import BareArray
from graphcore.variables.variable import facts_of, set_facts, set_raw_value


class Recipe:
    """Makes new graphs of definitions in one index space.

    Args:
        layout: A layout without things outside.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._types = [d.type for d in layout.definitions]
        self._metadata = [d.metadata for d in layout.definitions]
        different = {id(metadata): metadata for metadata in self._metadata}
        self._different_metadata = list(different.values())
        numbers = {key: number for number, key in enumerate(different)}
        self._facts = getter([numbers[id(metadata)] for metadata in self._metadata])
        nodes = {node.thing: node for node in layout.nodes}
        plain = [nodes[thing] for thing in layout.plain]
        self._plain_types = [node.kind for node in plain]
        # All attributes of those: in which dict, under which key, which child.
        self._holders = getter([i for i, node in enumerate(plain) for _ in node.keys])
        self._keys = [key for node in plain for key in node.keys]
        self._children = getter([child for node in plain for child in node.children])
        self._others: list[tuple[Any, ...]] = []
        self._trees: list[tuple[Any, ...]] = []
        for thing in sorted(nodes.keys() - set(layout.plain)):
            _, kind, metadata, keys, children, _ = nodes[thing]
            steps = self._trees if thing >= layout.first_static else self._others
            impl = get_node_impl_for_type(kind)
            steps.append((impl, kind, metadata, thing, keys, getter(children)))
        self._indices = getter([*layout.indices.values()])
        self._roots = getter(layout.roots)

    def make(self, values: Sequence[Any]) -> Any:
        """Makes a graph of a single definition.

        Args:
            values: The raw values of the variables, in order of index.

        Returns:
            The root.
        """
        return self._make(values)[self._layout.roots[0]]

    def build(self, values: Sequence[Any]) -> tuple[Sequence[Any], ...]:
        """Makes the graphs.

        Args:
            values: The raw values of the variables, in order of index.

        Returns:
            The objects of all indices, the roots, and the variables.
        """
        things = self._make(values)
        for thing, owner, path in self._layout.bare:
            things[thing] = BareArray.at(things[owner], path)
        # Variables come first.
        return self._indices(things), self._roots(things), things[: len(values)]

    def _make(self, values: Sequence[Any]) -> list[Any]:
        layout = self._layout
        trace = current_trace()
        if layout.all_owned:
            different = [facts_of(m, trace) for m in self._different_metadata]
            things = list(map(object.__new__, self._types))
            consume(map(set_raw_value, things, values))
            consume(map(set_facts, things, self._facts(different)))
        else:
            things = [
                impl.create(kind, value, data)
                for impl, kind, value, data in zip(
                    layout.impls, self._types, values, self._metadata, strict=True
                )
            ]
        nodes = make_owned(self._plain_types, trace)
        things += nodes
        things += [impl.make(kind, data) for impl, kind, data, *_ in self._others]
        things += layout.statics_as_made()
        for impl, _, data, _, keys, children in self._trees:
            pairs = list(zip(keys, children(things), strict=True))
            things.append(impl.unflatten(pairs, data))
        # Filled one by one: the dict that Python makes for an instance shares its keys
        # with those of other instances, until it is given another's.
        attributes = list(map(attributes_of, nodes))
        children = self._children(things)
        consume(map(setitem, self._holders(attributes), self._keys, children))
        for impl, _, _, thing, keys, children_of in self._others:
            impl.init(things[thing], list(zip(keys, children_of(things), strict=True)))
        return things


def recipe_of(*definitions: GraphDef[Any]) -> Recipe | None:
    """The recipe of definitions in one index space.

    Args:
        *definitions: The definitions; their layout keeps the recipe.

    Returns:
        The recipe, or None if they refer to something outside of themselves.
    """
    layout = layout_of(definitions)
    if layout.recipe is None and not layout.outside:
        layout.recipe = Recipe(layout)
    return layout.recipe  # type: ignore[no-any-return]
