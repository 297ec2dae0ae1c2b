"""Settings as another library writes them, where ours are due.

What such a library calls `StateAxes` or `Carry` is its own class. Its adapter says what
that is here; the transforms take their settings through `own_settings`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from graphcore import is_graph_node, is_node_type
from graphcore.authors import map_settings

# What makes ours of a setting, by its type; and ours for a setting that is a class.
_by_type: dict[type[Any], Callable[[Any], Any]] = {}
_classes: dict[type[Any], Any] = {}


def add_setting_type(kind: type[Any], convert: Callable[[Any], Any]) -> None:
    """Has settings of a type understood.

    Args:
        kind: The type.
        convert: Makes one of ours.
    """
    _by_type[kind] = convert


def add_setting_class(theirs: type[Any], ours: Any) -> None:
    """Has a class understood that is itself a setting.

    Args:
        theirs: The class.
        ours: What it stands for.
    """
    _classes[theirs] = ours


def own_settings(prefix: Any) -> Any:
    """Replaces the settings of other libraries in a tree prefix.

    Args:
        prefix: A tree prefix as the user gave it.

    Returns:
        The prefix with settings of our own.

    Raises:
        ValueError: If an object stands where a setting is due.

    Example:
        >>> own_settings((0, None))
        (0, None)
    """
    if any(map(is_graph_node, jax.tree.leaves(prefix, is_leaf=is_graph_node))):
        raise ValueError(
            f"Graph nodes are not allowed as prefixes, but {prefix!r} is or holds one. "
            "Give an axis, a sharding or an argument number; for the variables of an "
            "object `StateAxes`, `StateSharding` or `DiffState`."
        )
    return map_settings(_own, prefix)


def _own(x: Any) -> Any:
    is_class = isinstance(x, type)
    # Whoever asks about a type has the adapters of its library loaded.
    is_node_type(x if is_class else type(x))
    if is_class:
        return _classes.get(x, x)
    convert = _by_type.get(type(x))
    return x if convert is None else convert(x)
