"""Graphs changed in place: new values from states, and variables taken out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphcore._jax import current_trace
from graphcore.cache.plans import check_writes, kept_plan, plan_of
from graphcore.errors import path_text
from graphcore.functional import variables
from graphcore.graphdef.build import set_values
from graphcore.hashable_mapping import HashableMapping
from graphcore.nodes.objects import Dict
from graphcore.nodes.owned import OwnedNode
from graphcore.nodes.registry import GraphNodeImpl, find_node_impl, get_node_impl
from graphcore.nodes.traversal import edges
from graphcore.state.filters import Filter
from graphcore.state.foreign_states import taken_state
from graphcore.state.leaves import (
    leaf_instead_of_nested,
    leaf_of,
    merged,
    nested_instead_of_leaf,
    placed,
    raw,
)
from graphcore.state.nesting import key_order
from graphcore.state.state import State
from graphcore.trails import Path
from graphcore.undo import overwrite, restorer, undoing
from graphcore.variables.bare_arrays import BareArray, is_array
from graphcore.variables.impl import find_variable_impl, is_variable, variable_impl
from graphcore.variables.state import VariableState
from graphcore.variables.variable import Variable

__all__ = ["pop", "update"]


def update(node: Any, state: Mapping[Any, Any], /, *states: Mapping[Any, Any]) -> None:
    """Updates a graph in place from states or nested dicts.

    Values and metadata of variables are replaced; a raw value leaves the metadata as
    it is. A key that a graph node does not have is added to it; that needs leaves that
    say what to make: `VariableState`s, variables or arrays.

    Args:
        node: A graph node or pytree node; or a `State`, whose leaves are replaced.
        state: The state; it may be partial.
        *states: More of them; where two have the same path, the later one counts.

    Raises:
        ValueError: If a leaf stands where a subgraph is due or the reverse, the path
            is that of a static attribute, the type of a variable differs, or a key
            would be added to a pytree node; nothing is changed then.

    Example:
        >>> import graphcore as gc
        >>> node = gc.Dict(a=gc.Param(1))
        >>> gc.update(node, {'a': 2}); node.a.value
        2
    """
    plan = kept_plan(node) if isinstance(node, OwnedNode) else None
    if plan is not None and plan.all_owned and plan_of(node) is plan:
        found = placed(plan.definition, (state, *states))
        if found is not None:
            live = list(map(plan.variables.__getitem__, found))
            plan.check_trace(current_trace())
            check_writes([plan], live)
            set_values(live, [*found.values()], plan.layout.impl)
            return
    given = merged((state, *states))
    if not isinstance(given, Mapping):
        raise ValueError(
            f"Expected a state or a nested mapping, got {type(given).__name__}."
        )
    if isinstance(node, State):
        node.replace_by_pure_dict(given, _leaf_of)
    else:
        _Update(given).run(node)


def _leaf_of(old: Any, new: Any) -> Any:
    """What a leaf of a state becomes, given another leaf or a value."""
    is_value = isinstance(old, VariableState) and not isinstance(new, VariableState)
    return old.replace(new) if is_value else new


class _Update:
    """What an update is going to write, found before anything is written."""

    def __init__(self, given: Mapping[Any, Any]) -> None:
        self._given = given
        # In a `State` a nested mapping is always a part of the state; in plain dicts
        # it can also be the value of a variable.
        self._is_state = isinstance(given, State)
        self._values: list[tuple[Any, Any, HashableMapping[str, Any] | None]] = []
        self._added: list[tuple[Path, Any, GraphNodeImpl, Any]] = []

    def run(self, node: Any) -> None:
        # With the graph node that each is part of, and how far below it that is: the
        # trace of that node decides about arrays in plain containers.
        pending: list[tuple[Path, Any, Mapping[Any, Any], Any, int]] = [
            ((), node, raw(self._given), node, 0)
        ]
        while pending:
            path, target, items, owner, depth = pending.pop()
            impl = get_node_impl(target)
            if isinstance(impl, GraphNodeImpl):
                owner, depth = target, len(path)
            children = dict(impl.flatten(target)[0])
            for key in sorted(items, key=key_order):
                item = items[key]
                where = (*path, key)
                if key not in children:
                    self._add(where, target, impl, item)
                    continue
                child = children[key]
                if find_variable_impl(type(child)) is not None:
                    self._set(where, child, item)
                elif is_array(child):
                    if isinstance(owner, OwnedNode):
                        owner._check_writable()
                    self._set(where, BareArray.at(owner, where[depth:]), item)
                elif find_node_impl(child) is None:
                    raise ValueError(
                        f"Got state for the static attribute {path_text(where)!r} of "
                        f"{type(target).__name__}, which is {child!r}: set it on the "
                        "object."
                    )
                elif isinstance(item, Mapping):
                    pending.append((where, child, raw(item), owner, depth))
                else:
                    raise leaf_instead_of_nested(item, where, type(child))
        self._write()

    def _add(self, path: Path, node: Any, impl: Any, item: Any) -> None:
        if not isinstance(impl, GraphNodeImpl):
            raise ValueError(
                f"Cannot add the key {path_text(path)!r} to a pytree node "
                f"({impl.type.__name__}): only graph nodes can get new keys."
            )
        self._added.append((path, node, impl, _new_child(item, path)))

    def _set(self, path: Path, variable: Any, item: Any) -> None:
        impl = variable_impl(type(variable))
        if isinstance(item, Mapping) and (
            self._is_state or not isinstance(impl.get_value(variable), Mapping)
        ):
            raise nested_instead_of_leaf(item, path, type(variable))
        self._values.append((variable, *leaf_of(type(variable), item, path)))

    def _write(self) -> None:
        with undoing() as undo:
            for variable, value, metadata in self._values:
                if isinstance(variable, Variable):
                    variable._check_writable()
                overwrite(undo, variable, value, metadata)
            for path, node, node_impl, child in self._added:
                undo.append(restorer(node, node_impl))
                try:
                    node_impl.set_key(node, path[-1], child)
                except Exception as error:
                    error.add_note(f"While adding {path_text(path)!r}.")
                    raise


def _new_child(item: Any, path: Path) -> Any:
    if is_variable(item) or is_array(item):
        return item
    if isinstance(item, VariableState):
        return item.to_variable()
    if isinstance(item, Mapping):
        return Dict(
            {key: _new_child(child, (*path, key)) for key, child in item.items()}
        )
    raise ValueError(
        f"Cannot add {path_text(path)!r}: a new key needs a `VariableState`, variable "
        f"or array, which say what to make, got {type(item).__name__}."
    )


def pop(node: Any, /, *filters: Filter) -> Any:
    """Removes variables from a graph and returns their state.

    Args:
        node: A graph node or pytree node.
        *filters: At least one; a variable goes to the first that selects it. All
            references to a selected variable are removed.

    Returns:
        A state for a single filter, else a tuple with one state a filter.

    Raises:
        ValueError: If there is no filter, or a selected variable is held by a pytree
            node, from which nothing can be removed; nothing is changed then.

    Example:
        >>> import graphcore as gc
        >>> node = gc.Dict(w=gc.Param(1), seen=gc.Intermediate(2))
        >>> gc.pop(node, gc.Intermediate).seen.value, hasattr(node, 'seen')
        (2, False)
    """
    if not filters:
        raise ValueError("pop needs at least one filter; `...` removes all variables.")
    live = variables(node, *filters)
    groups = live if isinstance(live, tuple) else (live,)
    selected = dict(pair for group in groups for pair in group.flat_state())
    # The graph keeps them alive meanwhile. One array at two places is two leaves.
    ids = {id(x) for x in selected.values() if is_variable(x)}
    removals: list[tuple[Any, GraphNodeImpl, Any]] = []
    for path, holder, key, child in edges(node):
        if id(child) not in ids and path not in selected:
            continue
        impl = get_node_impl(holder)
        if not isinstance(impl, GraphNodeImpl):
            raise ValueError(
                f"Cannot remove {path_text(path)!r} from a pytree node "
                f"({impl.type.__name__}): variables that are to be popped must be held "
                "by graph nodes."
            )
        removals.append((holder, impl, key))
    states = tuple(group.map(lambda path, x: taken_state(x)) for group in groups)
    with undoing() as undo:
        noted: set[int] = set()
        # Backwards, so that positions in a sequence stay right.
        for holder, impl, key in reversed(removals):
            if id(holder) not in noted:
                noted.add(id(holder))
                undo.append(restorer(holder, impl))
            impl.pop_key(holder, key)
    return states[0] if len(states) == 1 else states
