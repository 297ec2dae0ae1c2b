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

# For each root, by its id, the plan of the graph below it; a weak reference to it where
# the definition keeps it.
_kept: dict[int, tuple[weakref.ref[Any], Any]] = {}


class _Limit:
    """How many plans there may be before those are dropped that hold no longer."""

    least = 64
    at = least


def kept_beside(root: Any) -> Any:
    """The plan that is kept for a root, None if there is none."""
    found = _kept.get(id(root))
    if found is None or found[0]() is not root:
        return None
    plan = found[1]
    return plan() if type(plan) is weakref.ref else plan


def keep_beside(root: Any, plan: Any, statics: Iterable[Any]) -> None:
    """Keeps a plan as long as its root lives, unless it would keep the root alive.

    A plan holds what is below the root. If something there leads back to the root, the
    garbage collector can't see that nothing else does. The caller knows of nodes that
    do. If static values do, so does the definition, and the plan is kept with that one:
    as long as there are functions that were compiled for it, and no other way to
    prolong the life of what both hold. A plan with static values that might is not
    kept.

    Args:
        root: The root, a node of a registered type.
        plan: The plan.
        statics: The static values in the graph.
    """
    forget(root)
    # A function that holds a node of another graph might hold the root through that.
    nodes = [x for x in reached(statics, held_by) if is_graph_node(x)]
    is_held = any(x is root for x in nodes)
    if not is_held and not all(map(plan.contains, nodes)):
        return
    number = id(root)
    try:
        plan.root = weakref.ref(root)
        alive = weakref.ref(root, functools.partial(_kept.pop, number))
    except TypeError:  # no weak reference to it can be made
        return
    if len(_kept) >= _Limit.at:
        # Plans of roots that changed might keep other roots alive that they held once.
        # By a copy, as that makes nothing for which the garbage collector might start.
        for key, (reference, _) in _kept.copy().items():
            known = reference()
            old = kept_beside(known)
            if old is None:
                _kept.pop(key, None)
            elif not old.holds(known):
                forget(known)
        _Limit.at = max(_Limit.least, 2 * len(_kept))
    if is_held:
        plan.layout.plan = plan
        plan = weakref.ref(plan)
    _kept[number] = alive, plan


def forget(root: Any) -> None:
    """Lets go of the plan of a root, wherever it is kept."""
    plan = kept_beside(root)
    if plan is not None:
        _kept.pop(id(root), None)
        if plan.layout.plan is plan:
            plan.layout.plan = None
