"""Plans: what is known of a graph, and a quick way to tell that it still holds.

Walking a graph takes time for every attribute; a training step must not pay it. So the
result of a walk is kept as a *plan* with the root, together with everything that it
depends on: a `Watch` tells whether the plan holds, in a fraction of the time of a walk.

A plan must not keep anything alive that its root would not. It holds no strong
reference to the root; and a write to any node in it through the node's own methods
clears it, so that what was replaced can be collected at once.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from itertools import repeat
from operator import is_
from typing import Any

from graphcore._jax import OUTSIDE, TraceState
from graphcore.cache.kept_beside import forget, keep_beside, kept_beside
from graphcore.cache.patterns import known_patterns, learn
from graphcore.cache.watching import Watch
from graphcore.errors import TraceContextError
from graphcore.graphdef.definition import GraphDef, NodeDef, interned
from graphcore.graphdef.layouts import layout_of
from graphcore.graphdef.walk import Visit, walk
from graphcore.nodes.owned import OwnedNode, get_plan, set_plan
from graphcore.nodes.registry import trace_of
from graphcore.rebuilt import ByValue, belongs, wrong_trace
from graphcore.trails import Path, path_of, path_text
from graphcore.variables.bare_arrays import BareArray
from graphcore.variables.variable import Variable, set_variable_plan

_numbers = itertools.count()


class Plan:
    """The definition and variables of the graph below one root, while they hold.

    Attributes:
        definition: The definition; that of all graphs that are equal.
        own: The same with the static values of this one, where these may change.
        layout: The definition as lists; with paths and definitions of the variables.
        variables: The variables, in order of index.
        all_owned: Whether all of them are `Variable`s.
        nodes: The inner nodes.
        trace: The trace that all members belong to, None if none of them tells.
        number: A number that no other plan has.
        holds: Tells of a root whether walking the graph below it now would give this
            plan again.
        can_be_kept: Whether that sees every change.
    """

    def __init__(
        self,
        root: Any,
        definition: GraphDef[Any],
        variables: list[Any],
        nodes: list[Any],
        trace: Any,
    ) -> None:
        self.number = next(_numbers)
        self.definition = self.own = definition
        self.layout = layout_of((definition,))
        self.all_owned = self.layout.all_owned
        self.variables = variables
        self.trace = trace
        # What is known of this plan alone or together with those of other roots, in
        # one index space; see `joint`.
        self.combined: dict[Any, Any] = {}
        # What JAX sees of the nodes as pytrees, by their ids, once it was asked.
        self.parts: dict[int, Any] | None = None
        # The root itself must not be kept. Who keeps the plan with it says which it is.
        self.root: Callable[[], Any] = _nothing
        self.nodes = [n for n in nodes if n is not root]
        # Until it is told what to watch, it holds for nothing.
        self.holds: Callable[[Any], bool] = _never
        self._kind = type(root)
        self.can_be_kept = False

    def watch(self, root: Any, visit: Visit) -> None:
        """Records what tells whether the plan still holds.

        Args:
            root: The root.
            visit: What a walk saw just now.
        """
        last = kept_plan(root) if self.layout.bare else None
        # Once it did not hold, and nothing but the objects differed: then a function is
        # likely to make containers anew at every call.
        by_structure = last is not None and last.definition is self.definition
        watch = Watch(root, visit, self.variables, self.layout, by_structure)
        self.holds, self.can_be_kept = watch.holds, watch.is_sure

    def clear(self) -> None:
        """Makes the plan hold no longer; the root lets go of it, and of all objects.

        It stays what it is: another thread may have asked it a moment ago.
        """
        self.holds = _never
        root = self.root()
        if root is not None and kept_plan(root) is self:
            if isinstance(root, OwnedNode):
                set_plan(root, None)
            else:
                forget(root)

    def contains(self, node: Any) -> bool:
        """Tells whether a node is one of the inner nodes of the graph."""
        return any(node is inner for inner in self.nodes)

    def values(self) -> list[Any]:
        """The raw values of the variables."""
        return self.layout.values(self.variables)

    def check_trace(self, here: TraceState) -> None:
        """Checks that the graph may be used and changed from the running trace.

        Args:
            here: The token of the running trace.

        Raises:
            TraceContextError: If it belongs to another trace, with a path.
        """
        found = self.trace
        if found is None:
            return
        if type(found) is list:
            # At most one of two can be the running trace.
            for trail, kind, trace in found:
                if not belongs(trace, here):
                    raise different_trace(path_of(trail), kind)
        elif not belongs(found, here):
            raise different_trace((), self._kind)


def _never(root: Any) -> bool:
    """In the place of a watch, where there is none."""
    return False


def _nothing() -> None:
    """In the place of a reference to the root, where there is none."""


def check_writes(plans: Sequence[Plan], variables: Sequence[Any]) -> None:
    """Checks that somebody will see what is written to variables.

    Args:
        plans: Those of the graphs that the variables are part of.
        variables: The variables that are to be written.

    Raises:
        TraceContextError: If JAX put one together for the function it is tracing.
    """
    for plan in plans:
        known = plan.trace
        traces = [t for *_, t in known] if type(known) is list else [known]
        by_value = [trace for trace in traces if type(trace) is ByValue]
        for variable in variables if by_value else ():
            trace = trace_of(variable)
            if type(variable) is BareArray and any(
                variable is place for place in plan.variables
            ):  # It knows no trace; that of its node is among these.
                trace = by_value[0]
            if type(trace) is ByValue:
                raise wrong_trace(trace, type(variable))


def different_trace(path: Path, kind: type[Any]) -> TraceContextError:
    """The error for an object that belongs to another trace."""
    return TraceContextError(
        f"The {kind.__name__} at {path_text(path)!r} belongs to a different trace "
        "level: it was made outside the JAX transformation that is running, or inside "
        "one that has ended. Pass it as an argument to the transformed function, and "
        "to those around that, and return what they make."
    )


def _common_trace(visit: Visit) -> Any:
    """The token that all members share; or a list, of the first and all others."""
    members = [(trail, type(x), trace) for trail, x, trace in visit.traces()]
    if not members:
        return None
    first = members[0][2]
    others = [m for m in members if m[2] is not first and m[2] != first]
    return [members[0], *others] if others else first


def make_plan(root: Any) -> Plan:
    """Describes a graph and returns its plan, whether it can be kept or not.

    Raises:
        ValueError: As `walk` does.
    """
    plan = _matched_plan(root)
    if plan is not None:
        return plan
    visit = Visit(contents=[])
    described = walk(root, visit)
    definition = interned(described)
    plan = Plan(
        root,
        definition,
        [leaf.variable for leaf in visit.leaves],
        [n for _, n in visit.nodes],
        _common_trace(visit),
    )
    if plan.layout.can_change:
        plan.own = described
    if any(x is root for x in plan.variables[:1]) and not isinstance(root, Variable):
        # The plan of a foreign variable holds that variable, so it can't be kept beside
        # it: nothing to watch.
        return plan
    plan.watch(root, visit)
    if isinstance(definition, NodeDef) and isinstance(root, OwnedNode):
        if plan.can_be_kept:
            learn(definition)
    return plan


def _matched_plan(root: Any) -> Plan | None:
    """The plan of a graph whose structure is known, and which is of one trace."""
    if not isinstance(root, OwnedNode):
        return None
    for pattern, definition in known_patterns(type(root)):
        objects = pattern.match((root,))
        if objects is None:
            continue
        variables, nodes = pattern.members(objects)
        trace = root._node__trace
        traces = [node._node__trace for node in nodes]
        traces += [variable._facts.trace for variable in variables]
        if not all(map(is_, traces, repeat(trace))) and any(t != trace for t in traces):
            return None
        plan = Plan(root, definition, variables, nodes, trace)
        if trace == OUTSIDE:
            visit = pattern.visit(objects)
            again = pattern.match((root,))
            if again is None or not all(map(is_, again, objects)):
                return None  # Another thread changes it.
            plan.watch(root, visit)
        # Otherwise it is not kept: the objects that are made for a trace are gone
        # soon, and it takes longer to prepare for another use than to match again.
        return plan
    return None


def kept_plan(root: Any) -> Plan | None:
    """The plan that is kept with a root, whether it holds or not."""
    if isinstance(root, OwnedNode):
        try:
            return get_plan(root)  # type: ignore[no-any-return]
        except AttributeError:
            return None
    if isinstance(root, Variable):
        return getattr(root, "_plan", None)
    return kept_beside(root)  # type: ignore[no-any-return]


def plan_of(root: Any) -> Plan:
    """Returns the plan of the graph below a root: the one it has, if that holds.

    Args:
        root: A node or variable.

    Returns:
        A plan that holds now.

    Raises:
        ValueError: As `walk` does.

    Example:
        >>> import graphcore as gc
        >>> node = gc.Dict(a=gc.Param(1))
        >>> plan_of(node) is plan_of(node)
        True
    """
    plan = kept_plan(root)
    if plan is not None and plan.holds(root):
        return plan
    return renewed_plan(root)


def renewed_plan(root: Any) -> Plan:
    """Makes the plan of a root that has none which holds, and keeps it.

    Raises:
        ValueError: As `walk` does.
    """
    plan = make_plan(root)
    if not plan.can_be_kept:
        return plan
    if isinstance(root, Variable):
        set_variable_plan(root, plan)
        return plan
    if isinstance(root, OwnedNode):
        plan.root = weakref.ref(root)
        set_plan(root, plan)
    elif _may_be_kept_beside(root, plan):
        statics = [*plan.layout.statics]
        for definition in plan.layout.definitions:
            statics += definition.metadata.values()
        keep_beside(root, plan, statics)
    reference = weakref.ref(plan)
    for node in (root, *plan.nodes):
        if isinstance(node, OwnedNode):
            node._node__join_plan(reference)
    return plan


def _may_be_kept_beside(root: Any, plan: Plan) -> bool:
    """Whether a plan outlives a trace, and holds nothing that refers to the root."""
    layout = plan.layout
    return (
        (plan.trace is None or plan.trace == OUTSIDE)
        and all(thing != layout.roots[0] for _, thing in layout.references)
        and not any(type(x) is BareArray and x.holder is root for x in plan.variables)
    )
