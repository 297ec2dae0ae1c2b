"""The values of variables in a state, found by where a definition has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from graphcore.errors import apart
from graphcore.graphdef.definition import (
    GraphDef,
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
from graphcore.trails import Path, path_text
from graphcore.variables.impl import counterparts_of, is_variable, variable_impl
from graphcore.variables.state import VariableState

# Value and metadata by index; None stands for metadata that did not come along.
Leaves: TypeAlias = dict[int, tuple[Any, HashableMapping[str, Any] | None]]

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
        return layout.nest([*map(VariableState.of, layout.kinds, self.values)])

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
            if not self.is_whole:
                group = list(map(self.places.__getitem__, group))
            states.append(State.lazily(UnmadeState(self.definition, values, group)))
        paths = self.layout.paths
        return states, [paths[self.places[i]] for i in rest]


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


@dataclass(slots=True, eq=False)
class Given:
    """What states give to the variables of a definition; see `given_to`.

    Attributes:
        values: The raw values, by the number of the variable.
        metadata: The metadata, where it came along and is not that of the definition.
        others: What there is no variable for, with its path.
    """

    values: dict[int, Any] = field(default_factory=dict)
    metadata: dict[int, HashableMapping[str, Any]] = field(default_factory=dict)
    others: list[tuple[Path, Any]] = field(default_factory=list)


def given_to(
    definition: Any,
    states: Sequence[Any],
    *,
    variables: Sequence[Any] | None = None,
    share: bool = False,
) -> Given:
    """Finds out which variables of a definition are given what by states.

    Args:
        definition: The definition of a node.
        states: The states; where two have the same path, the later leaf counts.
        variables: The variables of a graph that is there. Each may be given something
            at any of its paths then, else at the first one.
        share: Whether live variables in the states become part of the graph.

    Returns:
        What is given.

    Raises:
        ValueError: If a state is no mapping, something nested stands for a variable,
            or the state of a variable of another type.
    """
    layout = layout_of((definition,))
    numbers = layout.numbers if variables is None else layout.all_numbers
    kinds = layout.kinds
    given = Given()
    values = given.values
    pending: list[tuple[Path, dict[Any, Any], Mapping[Any, Any]]] = []
    for state in states:
        unmade = state._unmade if isinstance(state, State) else None
        if isinstance(unmade, UnmadeState) and unmade.definition is definition:
            values.update(zip(unmade.places, unmade.values, strict=True))
        elif isinstance(state, Mapping):
            pending.append(((), numbers, raw(state)))
        else:
            raise ValueError(
                f"Expected a state of the {definition.type.__name__}, a nested "
                f"mapping; got {type(state).__name__}."
            )
        while pending:
            path, numbers_here, items = pending.pop()
            number_of = numbers_here.get
            for key, item in items.items():
                number = number_of(key)
                if type(number) is int:
                    # The usual case first.
                    if type(item) is VariableState and item._kind == kinds[number]:
                        values[number] = item.value
                        continue
                    kind, usual = kinds[number]
                    # In a `State` a nested mapping is always a part of the state; in
                    # plain dicts it can also be the value of a variable.
                    if isinstance(item, Mapping) and (
                        isinstance(state, State)
                        or not (variables is None or _has_mapping(variables[number]))
                    ):
                        raise nested_instead_of_leaf(item, (*path, key), kind)
                    value, metadata = leaf_of(kind, item, (*path, key), share)
                    values[number] = value
                    if metadata not in (None, usual):
                        given.metadata[number] = metadata
                elif type(number) is dict and isinstance(item, Mapping):
                    pending.append(((*path, key), number, raw(item)))
                else:
                    given.others.append(((*path, key), item))
    if len(states) > 1 and (given.others or given.metadata):
        return given_to(definition, [merged(states)], variables=variables, share=share)
    return given


def _has_mapping(variable: Any) -> bool:
    return isinstance(variable_impl(type(variable)).get_value(variable), Mapping)


def all_given(
    definition: NodeDef[Any], states: Sequence[Any], *, share: bool = False
) -> Given:
    """As `given_to`, where each variable must be given something, and nothing else.

    Args:
        definition: The definition.
        states: The states.
        share: Whether live variables in the states become part of the graph.

    Returns:
        What is given.

    Raises:
        ValueError: If a key is missing or unknown, or a leaf stands where a subgraph
            is due or the reverse, with the path.
    """
    given = given_to(definition, states, share=share)
    if given.others or len(given.values) < len(layout_of((definition,)).definitions):
        raise _unfit(definition, given, merged(states))
    return given


def values_for(definition: NodeDef[Any], states: Sequence[Any]) -> Sequence[Any] | None:
    """Finds the values of the variables of a definition, without their metadata.

    Args:
        definition: The definition.
        states: The states.

    Returns:
        The values in order of index; None if some metadata is not the definition's.

    Raises:
        ValueError: As `all_given` does.
    """
    layout = layout_of((definition,))
    if len(states) == 1 and isinstance(states[0], State):
        # The quick way, for a state that has all leaves of the graph.
        unmade = states[0]._unmade
        if not isinstance(unmade, UnmadeState):
            leaves = layout.find(states[0].raw_mapping)
            if leaves is not None and set(map(type, leaves)) <= {VariableState}:
                if [leaf._kind for leaf in leaves] == layout.kinds:
                    return [leaf.value for leaf in leaves]
        elif unmade.is_whole and unmade.definition is definition:
            return unmade.values
    given = all_given(definition, states)
    numbers = range(len(given.values))
    return None if given.metadata else list(map(given.values.__getitem__, numbers))


def leaves_for(
    definition: GraphDef[Any], states: Sequence[Any], *, share: bool = False
) -> Leaves:
    """Finds the value of each variable of a definition in its states.

    Args:
        definition: Of a node, or of a variable whose state is then a leaf.
        states: The states.
        share: As for `all_given`.

    Returns:
        Value and metadata by index.

    Raises:
        ValueError: As `all_given` does.
    """
    if isinstance(definition, VariableDef):
        return {definition.index: leaf_of(definition.type, merged(states), (), share)}
    if isinstance(definition, NodeRef):
        return {}
    if not isinstance(definition, NodeDef):
        due, found = apart(GraphDef, type(definition))
        raise ValueError(f"Expected a {due}, got a {found}.")
    given = all_given(definition, states, share=share)
    return {
        d.index: (given.values[number], given.metadata.get(number))
        for number, d in enumerate(layout_of((definition,)).definitions)
    }


def _unfit(definition: NodeDef[Any], given: Given, state: Any) -> ValueError:
    """The error for states that don't give each variable something, and no more."""
    layout = layout_of((definition,))
    for path, item in given.others:
        node, _ = _part_at(definition, state, path[:-1])
        child = dict(node.children()).get(path[-1])
        if isinstance(child, NodeDef):
            return leaf_instead_of_nested(item, path, child.type)
    for number, (*above, key) in enumerate(layout.paths):
        if number in given.values:
            continue
        _, items = _part_at(definition, state, above)
        return ValueError(
            f"Expected key {key!r} in the state at {path_text(above)!r}, for a "
            f"{layout.kinds[number][0].__name__}; found the keys {list(items)}. Pass "
            "all states that the graph was split into."
        )
    path, _ = given.others[0]
    node, items = _part_at(definition, state, path[:-1])
    children = dict(node.children())
    for key in items:
        if isinstance(children.get(key), StaticAttribute):
            return ValueError(
                f"Got state for the static attribute "
                f"{path_text((*path[:-1], key))!r} of {node.type.__name__}: static "
                "values are in the definition, so leave it out of the state."
            )
    due = [k for k, child in children.items() if type(child) in (NodeDef, VariableDef)]
    unknown = [key for key in items if key not in due]
    return ValueError(
        f"Unknown keys in the state at {path_text(path[:-1])!r}: {unknown}; the "
        f"{node.type.__name__} there has {due}. What is reached in several ways is in "
        "the state at its first path only."
    )


def _part_at(definition: Any, state: Any, path: Sequence[Any]) -> tuple[Any, Any]:
    """The definition of a node at a path, and the part of a state there."""
    for key in path:
        definition = dict(definition.children())[key]
        state = raw(state).get(key, {})
    return definition, state


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
            return leaf, None
        leaf = VariableState.from_variable(leaf)
    if isinstance(leaf, VariableState):
        if leaf.type is kind:
            return leaf.value, leaf._kind[1]
        if leaf.type in counterparts_of(kind):
            return leaf.value, None  # the metadata of each library stay its own
        found, there = apart(leaf.type, kind)
        raise ValueError(
            f"The state at {path_text(path)!r} is of a {found}, but there is a "
            f"{there}: expected the same variable type."
        )
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
