"""Settings as another library writes them, where ours are due.

What such a library calls `StateAxes` or `Carry` is its own class. Its adapter says what
that is here; the transforms take their settings through `own_settings`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax

from graphcore import State, is_graph_node, is_node_type, is_variable
from graphcore.authors import is_variable_type, key_path
from nnx_transforms.prefixes import StateAxes, StateSharding

# Converts a setting of another library; the key is its type, or, where the setting is
# a class, that class.
_by_type: dict[type[Any], Callable[[Any], Any]] = {}


def add_setting_type(kind: type[Any], convert: Callable[[Any], Any]) -> None:
    """Has settings of a type understood, or a class that is itself a setting.

    Args:
        kind: The type, or the class.
        convert: Makes one of ours.
    """
    _by_type[kind] = convert


def own_settings(prefix: Any) -> Any:
    """Replaces the settings of other libraries in a tree prefix.

    Args:
        prefix: A tree prefix as the user gave it.

    Returns:
        The prefix with settings of our own.

    Raises:
        ValueError: If an object with variables or arrays stands where a setting is due,
            or a dict whose keys are filters.

    Example:
        >>> own_settings((0, None))
        (0, None)
    """
    return jax.tree.map(_own, prefix, is_leaf=_is_setting)


def _is_kind(key: Any) -> bool:
    return isinstance(key, type) and is_variable_type(key)


def _is_setting(x: Any) -> bool:
    if type(x) is dict and any(key is ... or _is_kind(key) for key in x):
        raise ValueError(
            f"{x!r} is a dict of filters: write `StateAxes({{filter: axis}})` "
            "for axes, `StateSharding` for shardings."
        )
    # Called for its side effect: it loads the adapters of the library of the type.
    is_node_type(x if isinstance(x, type) else type(x))
    return is_graph_node(x) or type(x) in _by_type


def _own(x: Any) -> Any:
    if is_graph_node(x):
        return _by_place(x)
    convert = _by_type.get(x if isinstance(x, type) else type(x))
    return x if convert is None else convert(x)


def _by_place(x: Any) -> StateAxes | StateSharding:
    """The settings that stand in a node in the places of variables."""
    found = jax.tree_util.tree_leaves_with_path(x, is_leaf=_is_place)
    if not found or any(
        is_variable(leaf) or hasattr(leaf, "dtype") for _, leaf in found
    ):
        raise ValueError(
            f"Graph nodes are not allowed as prefixes, but {x!r} is one. Give an axis, "
            "a sharding or an argument number; for the variables of an object "
            "`StateAxes`, `StateSharding` or `DiffState`."
        )
    return by_path((key_path(path), setting) for path, setting in found)


def _is_place(x: Any) -> bool:
    return x is None or is_variable(x)


def by_path(settings: Iterable[tuple[Any, Any]]) -> StateAxes | StateSharding:
    """The settings of the variables of an object.

    Args:
        settings: Pairs of a path and an axis, a sharding, or a `PartitionSpec`.

    Returns:
        Ours.
    """
    state: State[Any, Any] = State.from_flat_path(settings)
    is_axis = all(x is None or isinstance(x, int) for _, x in state.flat_state())
    return StateAxes(state) if is_axis else StateSharding(state)
