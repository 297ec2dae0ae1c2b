"""States as users of another library's types know them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from graphcore.nodes.registry import (
    PytreeNodeImpl,
    find_impl,
    get_node_impl_for_type,
)
from graphcore.state.state import State
from graphcore.variables.impl import find_variable_impl, is_variable
from graphcore.variables.state import VariableState

__all__ = ["given_state", "taken_state"]


def given_state(kind: type[Any], state: Any) -> Any:
    """What users of an object are given as its state, or as its gradient.

    Args:
        kind: The type of the object, a graph node or variable.
        state: A `State`, or a `VariableState`. Of a variable whose state stands
            elsewhere, an empty `State`.

    Returns:
        What the type was registered with makes of it; the state itself for a type
        that says nothing.

    Example:
        >>> import graphcore as gc
        >>> from graphcore.authors import given_state
        >>> state = gc.State({'w': gc.Param.state(1)})
        >>> given_state(gc.Dict, state) is state
        True
    """
    impl = find_variable_impl(kind) or get_node_impl_for_type(kind)
    give_state = getattr(impl, "give_state", None)  # a pytree node has none
    return state if give_state is None else give_state(state)


def taken_state(given: Any) -> Any:
    """Undoes `given_state`.

    Args:
        given: What a user gave as the state of an object.

    Returns:
        A `State` for a registered mapping, a `VariableState` for a variable; anything
        else as it is.

    Example:
        >>> import graphcore as gc
        >>> from graphcore.authors import taken_state
        >>> taken_state(gc.Param(1)) == gc.Param.state(1)
        True
    """
    if is_variable(given):
        return VariableState.from_variable(given)
    if isinstance(given, State) or not isinstance(given, Mapping):
        return given
    impl = find_impl(given)
    if not isinstance(impl, PytreeNodeImpl) or not impl.containers:
        return given
    return State(_nested(impl.flatten(given)[0]))


def _nested(pairs: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    return {
        key: _nested(x.items()) if isinstance(x, Mapping) else taken_state(x)
        for key, x in pairs
    }
