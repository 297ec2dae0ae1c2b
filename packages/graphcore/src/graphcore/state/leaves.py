"""The values of variables in a state, found by where a definition has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from graphcore.errors import path_text
from graphcore.graphdef.build import Shared
from graphcore.graphdef.definition import (
    GraphDef,
    LeafAttribute,
    NodeDef,
    NodeRef,
    StaticAttribute,
    VariableDef,
)
from graphcore.graphdef.layouts import Layout, layout_of
from graphcore.hashable_mapping import HashableMapping
from graphcore.state.filters import Predicate, grouped, looks_at_no_value
from graphcore.state.nesting import nested_from_flat
from graphcore.state.state import State
from graphcore.trails import Path
from graphcore.variables.impl import is_variable
from graphcore.variables.state import VariableState

# Value and metadata by index; None stands for metadata that did not come along.
Leaves: TypeAlias = dict[int, tuple[Any, HashableMapping[str, Any] | None]]

_MISSING = object()
_MAX_SELECTIONS = 16


@dataclass(slots=True, eq=False)
class UnmadeState:
    """The leaves of a state that nobody has looked at: makes the nested dict.

    Args:
        definition: Of the graph.
        values: The raw values.
        places: Which of its variables they belong to, by number.
    """

    definition: GraphDef[Any]
    values: Sequence[Any]
    places: Sequence[int]

    @property
    def layout(self) -> Layout:
        """That of the definition."""
        return layout_of((self.definition,))

    @classmethod
    def whole(cls, definition: GraphDef[Any], values: Sequence[Any]) -> UnmadeState:
        """That of all variables of a graph."""
        return cls(definition, values, range(len(values)))

    @property
    def is_whole(self) -> bool:
        """Whether the values are those of all variables, in order."""
        return type(self.places) is range

    def __call__(self) -> dict[Any, Any]:
        if not self.is_whole:
            return nested_from_flat(self._leaves())
        layout = self.layout
        return layout.nesting.nest(VariableState.of_many(layout.kinds, self.values))

    def _leaves(self) -> Iterator[tuple[Path, VariableState[Any]]]:
        paths, kinds = self.layout.paths, self.layout.kinds
        for place, value in zip(self.places, self.values, strict=True):
            yield paths[place], VariableState.of(kinds[place], value)

    def select(
        self, predicates: tuple[Predicate, ...]
    ) -> tuple[list[State[Any, Any]], list[Path]]:
        """Divides the leaves among predicates, as `State.split` does.

        Args:
            predicates: Each leaf goes to the first that selects it.

        Returns:
            One state a predicate, and the paths of leaves that none selects.
        """
        # Positions among the values here.
        known = self.layout.selections
        # Of a bare array, filters see nothing but the value.
        lasting = (
            self.is_whole
            and not self.layout.bare
            and all(map(looks_at_no_value, predicates))
        )
        found = known.get(predicates) if lasting else None
        if found is None:
            leaves = ((*leaf, i) for i, leaf in enumerate(self._leaves()))
            found = grouped(predicates, leaves)
            if lasting:
                if len(known) >= _MAX_SELECTIONS:
                    known.clear()
                known[predicates] = found
        groups, rest = found
        states: list[State[Any, Any]] = []
        for group in groups:
            values = list(map(self.values.__getitem__, group))
            places = list(map(self.places.__getitem__, group))
            states.append(State.lazily(UnmadeState(self.definition, values, places)))
        paths = [path for path, _ in self._leaves()] if rest else []
        return states, [paths[i] for i in rest]


def merged(states: Sequence[Mapping[Any, Any]]) -> Mapping[Any, Any]:
    """Unites states; where two have the same path, the later leaf counts.

    Args:
        states: At least one.

    Returns:
        A state; the only one as it is.
    """
    return states[0] if len(states) == 1 else State.merge(*states)


def raw(state: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """The plain mapping below a state."""
    return state.raw_mapping if isinstance(state, State) else state


def placed(definition: GraphDef[Any], states: Sequence[Any]) -> dict[int, Any] | None:
    """Finds which variables of a definition states give which values.

    Args:
        definition: The definition of a node.
        states: The states; where two have the same path, the later leaf counts.

    Returns:
        Values by the number of the variable; None if there is more to the states than
        values: another kind of leaf, or a key that there is no variable for.
    """
    layout = layout_of((definition,))
    found: dict[int, Any] = {}
    for state in states:
        unmade = state._unmade if isinstance(state, State) else None
        if isinstance(unmade, UnmadeState) and unmade.definition is definition:
            found.update(zip(unmade.places, unmade.values, strict=True))
            continue
        if not isinstance(state, Mapping):
            return None
        pending: list[tuple[Any, Mapping[Any, Any]]] = [
            (layout.nesting.places, raw(state))
        ]
        while pending:
            places, items = pending.pop()
            for key, item in items.items():
                place = places.get(key)
                if type(place) is int:
                    if type(item) is not VariableState:
                        return None
                    if item._kind != layout.kinds[place]:
                        return None
                    found[place] = item.value
                elif type(place) is dict and isinstance(item, Mapping):
                    pending.append((place, raw(item)))
                else:
                    return None
    return found


def values_for(
    definition: NodeDef[Any], states: Sequence[Any]
) -> tuple[Sequence[Any], Sequence[HashableMapping[str, Any]] | None]:
    """Finds what to make a graph of in its states.

    Args:
        definition: The definition.
        states: The states.

    Returns:
        Values in order of index, and metadata, None for that of the definition.

    Raises:
        ValueError: As `leaves_for` does.
    """
    definitions = layout_of((definition,)).definitions
    found = placed(definition, states)
    if found is not None and len(found) == len(definitions):
        return list(map(found.__getitem__, range(len(found)))), None
    leaves = leaves_for(definition, merged(states))
    ordered = [leaves[d.index] for d in definitions]
    return [value for value, _ in ordered], [
        d.metadata if metadata is None else metadata
        for d, (_, metadata) in zip(definitions, ordered, strict=True)
    ]


def leaves_for(definition: GraphDef[Any], given: Any, *, share: bool = False) -> Leaves:
    """Finds the value of each variable of a definition in its state.

    Args:
        definition: Of a node, or of a variable whose state is then a leaf.
        given: The state.
        share: Whether live variables in it become part of the graph themselves.

    Returns:
        Value and metadata by index.

    Raises:
        ValueError: If a key is missing or unknown, or a leaf stands where a subgraph
            is due or the reverse, with the path.
    """
    if isinstance(definition, VariableDef):
        return {definition.index: leaf_of(definition.type, given, (), share)}
    if isinstance(definition, NodeRef):
        return {}
    if not isinstance(definition, NodeDef):
        raise ValueError(f"Expected a GraphDef, got {type(definition).__name__}.")
    if not isinstance(given, Mapping):
        raise ValueError(
            f"Expected a state of the {definition.type.__name__}, a nested mapping; "
            f"got {type(given).__name__}."
        )
    # In a `State` a nested mapping is always a part of the state; in plain dicts it
    # can also be the value of a variable.
    is_state = isinstance(given, State)
    found: Leaves = {}
    pending: list[tuple[Path, NodeDef[Any], Mapping[Any, Any]]] = [
        ((), definition, raw(given))
    ]
    while pending:
        path, node, items = pending.pop()
        used = 0
        for attribute in node.attributes:
            if isinstance(attribute, StaticAttribute):
                continue
            child: Any = attribute.value
            if isinstance(child, NodeRef):
                continue
            key = attribute.key
            item = items.get(key, _MISSING)
            if isinstance(attribute, LeafAttribute):
                if item is _MISSING:
                    raise _missing(path, key, child, items)
                used += 1
                # First what is nearly always there.
                if type(item) is VariableState and item.type is child.type:
                    found[child.index] = item.value, item._kind[1]
                elif is_state and isinstance(item, Mapping):
                    raise nested_instead_of_leaf(item, (*path, key), child.type)
                else:
                    found[child.index] = leaf_of(child.type, item, (*path, key), share)
            elif item is _MISSING:
                # A subgraph without variables may be left out.
                pending.append(((*path, key), child, {}))
            elif isinstance(item, Mapping):
                used += 1
                pending.append(((*path, key), child, raw(item)))
            else:
                raise leaf_instead_of_nested(item, (*path, key), child.type)
        if used != len(items):
            raise _unknown(path, node, items)
    return found


def _missing(
    path: Path, key: Any, child: VariableDef[Any], items: Mapping[Any, Any]
) -> ValueError:
    return ValueError(
        f"Expected key {key!r} in the state at {path_text(path)!r}, for a "
        f"{child.type.__name__}; found the keys {list(items)}. Pass all states that "
        "the graph was split into."
    )


def _unknown(path: Path, node: NodeDef[Any], items: Mapping[Any, Any]) -> ValueError:
    attributes = {attribute.key: attribute for attribute in node.attributes}
    for key in items:
        if isinstance(attributes.get(key), StaticAttribute):
            return ValueError(
                f"Got state for the static attribute {path_text((*path, key))!r} of "
                f"{node.type.__name__}: static values are in the definition, so leave "
                "it out of the state."
            )
    due = [
        key
        for key, attribute in attributes.items()
        if isinstance(getattr(attribute, "value", None), NodeDef | VariableDef)
    ]
    unknown = [key for key in items if key not in due]
    return ValueError(
        f"Unknown keys in the state at {path_text(path)!r}: {unknown}; the "
        f"{node.type.__name__} there has {due}. What is reached in several ways is in "
        "the state at its first path only."
    )


def nested_instead_of_leaf(item: Any, path: Path, kind: type[Any]) -> ValueError:
    """The error for a nested state in the place of a variable's."""
    return ValueError(
        f"Got a nested state with the keys {list(item)} at {path_text(path)!r}, where "
        f"there is a variable ({kind.__name__}): expected a leaf."
    )


def leaf_instead_of_nested(item: Any, path: Path, kind: type[Any]) -> ValueError:
    """The error for a leaf in the place of a node's state."""
    return ValueError(
        f"Got a leaf of type {type(item).__name__} at {path_text(path)!r}, where there "
        f"is a subgraph ({kind.__name__}): expected a nested state."
    )


def leaf_of(
    kind: type[Any], leaf: Any, path: Path, share: bool = False
) -> tuple[Any, HashableMapping[str, Any] | None]:
    """The value and metadata that a leaf of a state gives to a variable.

    Raises:
        ValueError: If the leaf is of another variable type, or a nested state.
    """
    if is_variable(leaf):
        if share and type(leaf) is kind:
            return Shared(leaf), None
        leaf = VariableState.from_variable(leaf)
    if isinstance(leaf, VariableState):
        if leaf.type is not kind:
            raise ValueError(
                f"The state at {path_text(path)!r} is of a {leaf.type.__name__}, but "
                f"there is a {kind.__name__}: expected the same variable type."
            )
        return leaf.value, leaf._kind[1]
    if isinstance(leaf, State) or (isinstance(leaf, Mapping) and _has_states(leaf)):
        raise nested_instead_of_leaf(leaf, path, kind)
    return leaf, None


def _has_states(mapping: Mapping[Any, Any]) -> bool:
    pending: list[Mapping[Any, Any]] = [mapping]
    while pending:
        for item in pending.pop().values():
            if isinstance(item, VariableState | State) or is_variable(item):
                return True
            if isinstance(item, Mapping):
                pending.append(item)
    return False
