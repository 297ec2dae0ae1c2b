"""States as pytrees: what JAX sees of them, and how it puts them together again.

The nodes of a state's pytree are the state and below it plain dicts, which JAX visits
without calling Python. Only a dict whose keys JAX sorts otherwise, or can't sort, is a
state there as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax

from graphcore.state.nesting import key_order, nested_from_flat
from graphcore.state.state import MAX_DEPTH, FlatState, State
from graphcore.trails import Path


class _Paths(tuple[Path, ...]):
    """Stands for the keys of a state whose children are all leaves below it."""

    __slots__ = ()


def _in_order(keys: Iterable[Any]) -> tuple[Any, ...]:
    """Sorts keys as `key_order` says."""
    try:
        "".join(keys)  # quick check that all are strings
    except TypeError:
        return tuple(sorted(keys, key=key_order))
    return tuple(sorted(keys))


def _shown(nested: dict[Any, Any], depth: int) -> Any:
    """What stands for a nested state where JAX visits the state that holds it.

    That is the dict itself, which JAX visits without calling Python, unless JAX does
    not sort its keys as a state does, or it is nested too deeply.
    """
    if depth > MAX_DEPTH:
        return State._view(nested, depth)
    try:
        "".join(nested)  # as above
    except TypeError:
        if not all(type(key) is int for key in nested):
            return State._view(nested, depth)
    if dict not in map(type, nested.values()):
        return nested
    others = {}
    for key, child in nested.items():
        if type(child) is dict:
            shown = _shown(child, depth + 1)
            if shown is not child:
                others[key] = shown
    return {**nested, **others} if others else nested


def _hidden(child: Any) -> Any:
    """Undoes `_shown`: the plain dict, where no state stands for one."""
    if type(child) is State:
        return child.raw_mapping
    if type(child) is not dict:
        return child
    others = {}
    for key, below in child.items():
        if type(below) is dict or type(below) is State:
            hidden = _hidden(below)
            if hidden is not below:
                others[key] = hidden
    # What JAX puts into a tree may belong to the user: it is not changed.
    return {**child, **others} if others else child


def _state_flatten(state: State[Any, Any]) -> tuple[Sequence[Any], tuple[Any, ...]]:
    nested = state._nested if state._unmade is None else state.raw_mapping
    below = state._depth + 1
    if below > MAX_DEPTH:
        flat = state.flat_state()
        return flat.leaves, _Paths(flat.paths)
    keys = _in_order(nested)
    children = [nested[key] for key in keys]
    for place, child in enumerate(children):
        if type(child) is dict:
            children[place] = _shown(child, below)
    return children, keys


def _state_flatten_with_keys(
    state: State[Any, Any],
) -> tuple[tuple[tuple[Any, Any], ...], tuple[Any, ...]]:
    children, keys = _state_flatten(state)
    return tuple(zip(map(jax.tree_util.DictKey, keys), children, strict=True)), keys


def _state_unflatten(keys: tuple[Any, ...], children: Iterable[Any]) -> State[Any, Any]:
    if type(keys) is _Paths:
        return State._view(nested_from_flat(zip(keys, children, strict=True)))
    # The children may be anything JAX passes around inside a tree operation.
    return State._view(dict(zip(keys, map(_hidden, children), strict=True)))


jax.tree_util.register_pytree_with_keys(
    State, _state_flatten_with_keys, _state_unflatten, _state_flatten
)
jax.tree_util.register_pytree_with_keys(
    FlatState,
    lambda flat: (
        tuple((jax.tree_util.DictKey(path), leaf) for path, leaf in flat),
        flat.paths,
    ),
    lambda paths, leaves: FlatState(zip(paths, leaves, strict=True), sort=False),
    lambda flat: (flat.leaves, flat.paths),
)
