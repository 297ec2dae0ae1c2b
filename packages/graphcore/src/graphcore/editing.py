"""Graphs changed in place: new values from states, and variables taken out."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import getitem
from typing import Any, overload

from graphcore._jax import current_trace
from graphcore.cache.plans import plan_of
from graphcore.display.printing import leaf_text
from graphcore.functional import GraphState, variables
from graphcore.nodes.objects import Dict
from graphcore.nodes.owned import OwnedNode
from graphcore.nodes.registry import GraphNodeImpl, get_node_impl, is_node
from graphcore.nodes.traversal import places
from graphcore.state.filters import Filter
from graphcore.state.foreign_states import taken_state
from graphcore.state.leaves import (
    given_to,
    leaf_instead_of_nested,
    merged,
)
from graphcore.state.nesting import key_order
from graphcore.state.state import State
from graphcore.trails import Path, path_text
from graphcore.undo import overwrite, restorer, set_values, undoing
from graphcore.variables.bare_arrays import is_array
from graphcore.variables.impl import is_variable
from graphcore.variables.state import VariableState
from graphcore.variables.variable import Variable

__all__ = ["pop", "update"]


def update(node: Any, state: Any, /, *states: Any) -> None:
    """Updates a graph in place from states or nested dicts.

    Values and metadata of variables are replaced, by values of any shape; a raw value
    and one of a counterpart of another library (`register_counterparts`) leave the
    metadata as they are. A key that a graph node does not have is added to it;
    that needs leaves that say what to make: `VariableState`s, variables or arrays.

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
    if isinstance(node, State):
        node.replace_by_pure_dict(merged((state, *states)), _leaf_of)
        return
    get_node_impl(node)  # raises if it is no node
    plan = plan_of(node)
    given = given_to(plan.definition, (state, *states), variables=plan.variables)
    written = list(map(plan.variables.__getitem__, given.values))
    if not plan.trace == current_trace():  # noqa: SIM201
        for variable in written:
            if isinstance(variable, Variable):
                variable._check_writable()
        # For a bare array, the node that holds it must be writable.
        for number, _, below in plan.layout.bare:
            owner = _node_at(node, plan.layout.paths[number][: -len(below)])
            if number in given.values and isinstance(owner, OwnedNode):
                owner._node__check_writable()
    if not given.metadata and not given.others:
        set_values(written, [*given.values.values()], plan.layout.impl)
        return
    others = sorted(given.others, key=lambda pair: tuple(map(key_order, pair[0])))
    added = [_added(node, path, item) for path, item in others]
    with undoing() as undo:
        for number, value in given.values.items():
            metadata = given.metadata.get(number)
            overwrite(undo, plan.variables[number], value, metadata)
        for (path, _), (holder, impl, child) in zip(others, added, strict=True):
            undo.append(restorer(holder, impl))
            try:
                impl.set_key(holder, path[-1], child)
            except Exception as error:
                error.add_note(f"While adding {path_text(path)!r}.")
                raise


def _leaf_of(old: Any, new: Any) -> Any:
    """What a leaf of a state becomes, given another leaf or a value."""
    is_value = isinstance(old, VariableState) and not isinstance(new, VariableState)
    return old.replace(new) if is_value else new


def _node_at(node: Any, path: Path) -> Any:
    for key in path:
        node = dict(get_node_impl(node).flatten(node)[0])[key]
    return node


def _added(root: Any, path: Path, item: Any) -> tuple[Any, GraphNodeImpl, Any]:
    """The node that gets a new key, how it is handled, and what it gets."""
    node = _node_at(root, path[:-1])
    impl = get_node_impl(node)
    children = dict(impl.flatten(node)[0])
    if path[-1] in children:
        child = children[path[-1]]
        if is_node(child):
            raise leaf_instead_of_nested(item, path, type(child))
        raise ValueError(
            f"Got state for the static attribute {path_text(path)!r} of "
            f"{type(node).__name__}, which is {leaf_text(child)}: set it on the object."
        )
    if not isinstance(impl, GraphNodeImpl):
        raise ValueError(
            f"Cannot add the key {path_text(path)!r} to a pytree node "
            f"({impl.type.__name__}): only graph nodes can get new keys."
        )
    return node, impl, _new_child(item, path)


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


@overload
def pop(node: Any, only: Filter, /) -> GraphState: ...
@overload
def pop(node: Any, /, *filters: Filter) -> tuple[GraphState, ...]: ...
def pop(node: Any, /, *filters: Filter) -> Any:
    """Removes variables from a graph and returns their state.

    Args:
        node: A graph node or pytree node; or a `State`, which loses leaves.
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
    if isinstance(node, State):
        return _popped_leaves(node, filters)
    live: Any = variables(node, *filters)
    groups = live if isinstance(live, tuple) else (live,)
    selected = dict(pair for group in groups for pair in group.flat_state())
    # The graph keeps them alive meanwhile. One array at two places is two leaves.
    ids = {id(x) for x in selected.values() if is_variable(x)}
    removals: list[tuple[Any, Any]] = []
    for path, holder, x in places(node):
        if id(x) not in ids and path not in selected:
            continue
        if holder is None:
            kind = type(_node_at(node, path[:-1])).__name__
            raise ValueError(
                f"Cannot remove {path_text(path)!r} from a pytree node ({kind}): "
                "variables that are to be popped must be held by graph nodes."
            )
        removals.append((holder, path[-1]))
    states = tuple(group.map(lambda path, x: taken_state(x)) for group in groups)
    with undoing() as undo:
        noted: set[int] = set()
        # Backwards, so that positions in a sequence stay right.
        for holder, key in reversed(removals):
            impl: Any = get_node_impl(holder)
            if id(holder) not in noted:
                noted.add(id(holder))
                undo.append(restorer(holder, impl))
            impl.pop_key(holder, key)
    return states[0] if len(states) == 1 else states


def _popped_leaves(state: State[Any, Any], filters: tuple[Filter, ...]) -> Any:
    found = state.filter(*filters)
    for group in found if isinstance(found, tuple) else (found,):
        for path, _ in group.flat_state():
            del reduce(getitem, path[:-1], state)[path[-1]]
    return found
