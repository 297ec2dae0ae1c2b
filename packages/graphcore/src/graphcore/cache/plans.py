"""Plans: what is known of a graph, and a quick way to tell that it still holds.

Walking a graph takes time for every attribute; a training step must not pay it. So the
result of a walk is kept as a *plan* with the root, together with everything that it
depends on. Whether a plan holds is decided by comparing that, mostly in C: the same
children (`is`) under the same keys in the same containers. It works for any kind of
edit, also for those that no `__setattr__` sees, because it looks at what is there
rather than waiting to be told.

Some things change without a trace in a container: metadata and type of a variable (its
owner advances `metadata_epoch`), type and `__dict__` of a node (it clears its plans),
static values changed in place (compared with a snapshot), foreign variables and nodes
(see `metadata` and `identities`; nodes that declare no containers are flattened anew).

A plan must not keep anything alive that its root would not. It holds no strong
reference to the root; and a write to any node in it through the node's own methods
clears it, so that what was replaced can be collected at once.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from operator import attrgetter, getitem, is_
from typing import Any, TypeAlias

from jax.tree_util import all_leaves

from graphcore._jax import OUTSIDE, TraceState
from graphcore.adapters.loading import registrations
from graphcore.cache.comparing import comparing
from graphcore.cache.identities import Identities
from graphcore.cache.kept_beside import forget, keep_beside, kept_beside
from graphcore.cache.metadata import Metadata, has_plain_metadata
from graphcore.cache.patterns import known_patterns, learn
from graphcore.cache.stand_ins import ANY_ARRAY, STAND_INS, Recorded, items_of, stand_in
from graphcore.cache.static_contents import StaticContents
from graphcore.content import method_of
from graphcore.errors import TraceContextError
from graphcore.graphdef.definition import GraphDef, NodeDef, VariableDef, interned
from graphcore.graphdef.layouts import layout_of
from graphcore.graphdef.walk import Visit, walk
from graphcore.nodes.owned import OwnedNode, get_plan, set_plan
from graphcore.nodes.registry import NodeImpl, containers_of, find_impl, trace_of
from graphcore.rebuilt import ByValue, belongs, wrong_trace
from graphcore.trails import Path, path_of, path_text
from graphcore.variables.bare_arrays import BARE, BareArray, are_arrays
from graphcore.variables.impl import VariableImpl
from graphcore.variables.variable import Variable, metadata_epoch, set_variable_plan

# A variable, its definition, and how it is handled.
_Described: TypeAlias = tuple[Any, VariableDef[Any], VariableImpl]

_numbers = itertools.count()
# A plan that held so often is likely to be asked again and again, by a step in a loop.
_OFTEN = 8
# So many copies of all dicts, each 0.5 us a dict. For 6,001 variables two to five were
# enough to fill the gaps that compiling leaves.
_FILLING = 8
# More variables than fit into a processor's nearest caches together with their arrays.
_MANY = 1000
# What `==` is for objects that a plan's comparison tells apart, or need not.
_BY_IDENTITY = (Variable.__eq__, OwnedNode.__eq__, *STAND_INS)


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
        self._root_type: type[Any] | None = None
        self._kind = type(root)
        self.can_be_kept = False

    def watch(self, root: Any, visit: Visit) -> None:
        """Records what tells whether the plan still holds.

        Args:
            root: The root.
            visit: What a walk saw just now.
        """
        self._epoch = visit.mark
        self._root_type = type(root)
        self._until_often = _OFTEN
        self._checks: list[Callable[[Any], bool]] = []
        # Nobody is told when a variable of a registered type gets other metadata.
        plain: dict[Any, list[Any]] = {}
        foreign: list[_Described] = []
        theirs = [
            described
            for described in self._described()
            if not (described[2].is_owned or described[2] is BARE)
        ]
        for described in theirs:
            variable, _, impl = described
            if has_plain_metadata(impl, variable):
                are_flags = impl.get_metadata(variable).keys() <= impl.flags
                plain.setdefault((are_flags, impl), []).append(variable)
            else:
                foreign.append(described)
        found = [(key[0], Metadata.of(key[1], each)) for key, each in plain.items()]
        # Of a flag, 1 is as good as True: so a comparison tells everything.
        self._checks += [metadata.hold for are_flags, metadata in found if are_flags]
        others = [metadata for are_flags, metadata in found if not are_flags]
        unwatched = self._watch_containers(root, visit, others)
        # It may have changed between the walk and the copies.
        self.can_be_kept = all(map(_is_as_defined, theirs))
        self._watch_others(root, visit, foreign, unwatched)

    def _watch_others(
        self,
        root: Any,
        visit: Visit,
        foreign: Sequence[_Described],
        unwatched: Sequence[tuple[Any, NodeImpl, Any, Any]],
    ) -> None:
        """Adds checks of what does not show in the children of a container.

        Args:
            root: The root; no check may keep it.
            visit: What a walk saw just now.
            foreign: Variables of whose metadata no container tells.
            unwatched: Nodes of whose children none does.
        """
        if visit.strangers:
            strangers = _distinct(visit.strangers)
            types = [*map(type, strangers)]
            one_a_type = [*dict(zip(types, strangers, strict=True)).values()]
            known = registrations.count

            def strangers_hold(root: Any) -> bool:
                are_known = registrations.count == known
                # JAX does not tell when a type is registered.
                is_same = are_known and [*map(type, strangers)] == types
                return is_same and bool(all_leaves(one_a_type))

            self._checks.append(strangers_hold)
        if visit.mutable_statics:
            try:
                statics = StaticContents(_distinct(visit.mutable_statics))
            except TypeError:
                # An unhashable static value is refused at a compiled call; until then
                # there is no sure way to see that it changed.
                self.can_be_kept = False
                return
            self._checks.append(statics.hold)
        if foreign:
            alike: dict[VariableImpl, list[Any]] = {}
            for variable, _, impl in foreign:
                alike.setdefault(impl, []).append(variable)
            seen = [(impl, each, *_look_at(impl, each)) for impl, each in alike.items()]

            def foreign_hold(root: Any) -> bool:
                for impl, variables, types, names, found in seen:
                    now = _look_at(impl, variables)
                    # The very same things are enough: what can change in place is
                    # looked at with the static values.
                    if now[:2] != (types, names) or not all(map(is_, found, now[2])):
                        return all(map(_is_as_defined, foreign))
                return True

            self._checks.append(foreign_hold)
        if unwatched:
            # The root itself must not be kept: None stands for it.
            recorded = [
                (None if node is root else node, Recorded(node, *found))
                for node, *found in unwatched
            ]

            def unwatched_hold(root: Any) -> bool:
                for inner, due in recorded:
                    node = root if inner is None else inner
                    if find_impl(node) is not due.impl or due != node:
                        return False
                return True

            self._checks.append(unwatched_hold)

    def _watch_containers(
        self, root: Any, visit: Visit, metadata: Sequence[Metadata]
    ) -> list[tuple[Any, NodeImpl, Any, Any]]:
        """Records what containers hold.

        Args:
            root: The root.
            visit: What a walk saw just now.
            metadata: Those of foreign variables that have more than flags.

        Returns:
            The nodes whose children are in none.
        """
        # What every container held. Containers compare their contents without a call
        # for each, as long as both hold the same objects. By address: with thousands
        # of dicts, memory is read faster from end to end.
        pairs = [*zip(visit.containers, visit.contents or (), strict=True)]
        pairs.sort(key=lambda pair: (isinstance(pair[0], list), id(pair[0])))
        self._containers = [container for container, _ in pairs]
        self._contents = [content for _, content in pairs]
        unwatched = visit.unwatched
        replaced: set[int] = set()
        if self.layout.bare:
            # Once it did not hold, and nothing but the objects differed: then a
            # function is likely to make containers anew at every call.
            last = kept_plan(root)
            by_structure = last is not None and last.definition is self.definition
            inside = self._let_arrays_change(replaced, by_structure)
            unwatched = [each for each in unwatched if id(each[0]) not in inside]
        # Of our own nodes and variables, a comparison sees whether they are the same.
        # Others could be equal to what took their place.
        others = {
            id(c)
            for node, impl in visit.foreign
            for c in containers_of(node, impl) or ()
        }
        kinds = {type(x) for each in self._contents for _, x in items_of(each)}
        unsure = {k for k in kinds if method_of(k, "__eq__") not in _BY_IDENTITY}
        exactly = [
            container
            for container, content in zip(self._containers, self._contents, strict=True)
            if id(container) in others
            or not unsure.isdisjoint([type(x) for _, x in items_of(content)])
            # `1` equals `True`, in the place of a key as well.
            or (isinstance(content, dict) and not {*map(type, content)} <= {str})
        ]
        of_root = [
            (attrgetter(name), attrgetter(name)(root))
            for node, impl in visit.foreign
            if node is root
            for name in impl.containers
        ]
        if of_root:
            self._checks.append(
                lambda root: all(get(root) is container for get, container in of_root)
            )
        nodes = [(x, impl.containers) for x, impl in visit.foreign if x is not root]
        self._identities: Identities | None = None
        for each in metadata:
            exactly += each.found
            self._containers += each.found
            self._contents += each.copies
        if exactly or nodes:
            further = [each.objects for each in metadata]
            self._identities = Identities(nodes, exactly, further, replaced)
        return unwatched

    def _let_arrays_change(self, replaced: set[int], by_structure: bool) -> set[int]:
        """Records what equals any array in the place of arrays.

        Args:
            replaced: Extended by the ids of what other objects may take the place of.
            by_structure: Whether that is so for plain containers of arrays.

        Returns:
            The ids of pytrees of which nothing else needs to be watched.
        """
        inside: set[int] = set()
        for content in self._contents:
            for key, child in [*items_of(content)]:
                recorded = stand_in(child, inside, by_structure)
                if recorded is not child:
                    content[key] = recorded
                    replaced.add(id(child))
        pairs = zip(self._containers, self._contents, strict=True)
        watched = [pair for pair in pairs if id(pair[0]) not in inside]
        self._containers = [container for container, _ in watched]
        self._contents = [content for _, content in watched]
        arrays = [
            (container, key)
            for container, content in watched
            for key, recorded in items_of(content)
            if recorded is ANY_ARRAY
        ]
        if arrays:
            holders, keys = zip(*arrays, strict=True)

            def arrays_hold(root: Any) -> bool:
                return are_arrays([*map(getitem, holders, keys)])

            self._checks.append(arrays_hold)
        return inside

    def clear(self) -> None:
        """Makes the plan hold no longer; the root lets go of it, and of all objects.

        It stays what it is: another thread may have asked it a moment ago.
        """
        self._root_type = None
        root = self.root()
        if root is not None and kept_plan(root) is self:
            if isinstance(root, OwnedNode):
                set_plan(root, None)
            else:
                forget(root)

    def holds(self, root: Any) -> bool:
        """Tells whether walking the graph now would give this plan again.

        Most of that is looked at in two passes, both in C: whether all containers hold
        the same or equal children under the same keys, and whether they are the same
        where equality does not say enough.
        """
        if type(root) is not self._root_type:
            return False
        try:
            if len(self.variables) > _MANY:
                # A copy asks the memory for all of them at once; a comparison waits for
                # one after the other. It is some 3 % of a call with 6,000.
                self.variables.copy()
            # First: then no stranger is asked whether it equals something.
            if self._identities is not None and not self._identities.hold():
                return False
            comparing.by_identity = True
            try:
                # Where two are not the same object, the recorded one is to be asked:
                # each container asks its own.
                if not self._contents == self._containers:  # noqa: SIM201
                    return False
            finally:
                comparing.by_identity = False
            if self._until_often > 0:
                self._count_down()
            for check in self._checks:
                if not check(root):
                    return False
            return self._epoch is metadata_epoch.mark or self._metadata_holds()
        except Exception:  # a stranger refuses to be compared, or a thread changes it
            return False

    def _count_down(self) -> None:
        """Counts up to when copies are made that can be compared faster.

        The first ones were made before a function was traced, which is no time to look
        for a better place; nor is it worth that for a plan that is used a few times.
        """
        self._until_often -= 1
        if self._until_often > 0:
            return
        # Copies of the copies: another thread may be changing the graph right now.
        distinct = {id(content): content for content in self._contents}
        copies = copies_side_by_side([*distinct.values()])
        known = dict(zip(distinct, copies, strict=True))
        self._contents = [known[id(content)] for content in self._contents]

    def _metadata_holds(self) -> bool:
        mark = metadata_epoch.mark  # first: a change from now on must be seen later
        if not all(map(_is_as_defined, self._described())):
            return False
        self._epoch = mark
        return True

    def _described(self) -> Iterable[_Described]:
        return zip(
            self.variables, self.layout.definitions, self.layout.impls, strict=True
        )

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


def _nothing() -> None:
    """In the place of a reference to the root, where there is none."""


def copies_side_by_side(containers: Sequence[Any]) -> list[Any]:
    """Copies dicts and lists so often that the last copies lie next to each other.

    To compare thousands of dicts is mostly to wait for them, where they lie in the gaps
    that a compilation left in the heap. Nobody can tell Python where an object shall
    go; but it fills the gaps first.

    Args:
        containers: Any dicts and lists.

    Returns:
        A copy of each, in the same order.

    Example:
        >>> copies_side_by_side([{'a': 1}, {'b': 2}])
        [{'a': 1}, {'b': 2}]
    """
    # All are held until the last is made, so that the gaps stay filled.
    return [[each.copy() for each in containers] for _ in range(_FILLING)][-1]


def _distinct(objects: Sequence[Any]) -> list[Any]:
    return [*{id(x): x for x in objects}.values()]


def _look_at(
    impl: VariableImpl, variables: Sequence[Any]
) -> tuple[list[Any], list[Any], list[Any]]:
    """The types of variables, and the names and values of their metadata."""
    found = [*map(impl.get_metadata, variables)]
    values = [x for each in found for x in each.values()] if any(found) else []
    return [*map(type, variables)], [*map(tuple, found)] if values else [], values


def _is_as_defined(described: _Described) -> bool:
    variable, definition, impl = described
    if type(variable) is not definition.type:
        return False
    found = impl.metadata(variable)
    return found is definition.metadata or found == definition.metadata


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
