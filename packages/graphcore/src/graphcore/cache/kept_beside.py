"""Where the plans of graphs are kept whose root has no place for one.

A node of a registered type belongs to another library, whose pickles, copies and
treedefs of it must not show anything of ours. So its plan is kept beside it, as long as
it lives.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable
from typing import Any

from graphcore.holding import held_by, reached
from graphcore.nodes.registry import is_graph_node

# For each root, by its id, the plan of the graph below it.
_kept: dict[int, tuple[weakref.ref[Any], Any]] = {}


class _Limit:
    """How many plans there may be before those are dropped that hold no longer."""

    least = 64
    at = least


def kept_beside(root: Any) -> Any:
    """The plan that is kept for a root, None if there is none."""
    found = _kept.get(id(root))
    return found[1] if found is not None and found[0]() is root else None


def keep_beside(root: Any, plan: Any, statics: Iterable[Any]) -> None:
    """Keeps a plan as long as its root lives, unless it would keep the root alive.

    A plan holds what is below the root. If something there leads back to the root, the
    garbage collector can't see that nothing else does. The caller knows of nodes that
    do; a plan with static values that might is not kept.

    Args:
        root: The root, a node of a registered type.
        plan: The plan.
        statics: The static values in the graph.
    """
    # A function that holds a graph node might hold the root, and keep it alive.
    if any(map(is_graph_node, reached(statics, held_by))):
        return
    number = id(root)
    try:
        alive = weakref.ref(root, functools.partial(_kept.pop, number))
    except TypeError:  # no weak reference to it can be made
        return
    if len(_kept) >= _Limit.at:
        # Plans of roots that changed might keep other roots alive that they held once.
        # By a copy, as that makes nothing for which the garbage collector might start.
        for key, (reference, old) in _kept.copy().items():
            known = reference()
            if known is None or not old.holds(known):
                _kept.pop(key, None)
        _Limit.at = max(_Limit.least, 2 * len(_kept))
    _kept[number] = alive, plan
