"""What tells whether a graph is still as it was when it was walked.

Whether that is so is decided by comparing all that the walk depended on, mostly in C:
the same children (`is`) under the same keys in the same containers. It works for any
kind of edit, also for those that no `__setattr__` sees, because it looks at what is
there rather than waiting to be told.

Some things change without a trace in a container: metadata and type of a variable (its
owner advances `metadata_epoch`), static values changed in place (compared with a
snapshot), foreign variables and nodes (see `metadata` and `identities`; nodes that
declare no containers are flattened anew). Type and `__dict__` of a node of our own do,
too; it clears the plans that it is part of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter, getitem, is_
from typing import Any, TypeAlias

from jax.tree_util import all_leaves

from graphcore.adapters.loading import registrations
from graphcore.cache.comparing import comparing
from graphcore.cache.identities import Identities
from graphcore.cache.metadata import Metadata, has_plain_metadata
from graphcore.cache.stand_ins import ANY_ARRAY, STAND_INS, Recorded, items_of, stand_in
from graphcore.cache.static_contents import StaticContents
from graphcore.content import method_of
from graphcore.graphdef.definition import VariableDef
from graphcore.graphdef.layouts import Layout
from graphcore.graphdef.walk import Visit
from graphcore.nodes.owned import OwnedNode
from graphcore.nodes.registry import NodeImpl, containers_of, find_impl
from graphcore.variables.bare_arrays import BARE, are_arrays
from graphcore.variables.impl import VariableImpl
from graphcore.variables.variable import Variable, metadata_epoch

# A variable, its definition, and how it is handled.
_Described: TypeAlias = tuple[Any, VariableDef[Any], VariableImpl]

# What held so often is likely to be asked again and again, by a step in a loop.
_OFTEN = 8
# So many copies of all dicts, each 0.5 us a dict. For 6,001 variables two to five were
# enough to fill the gaps that compiling leaves.
_FILLING = 8
# More variables than fit into a processor's nearest caches together with their arrays.
_MANY = 1000
# What `==` is for objects that a comparison tells apart, or need not.
_BY_IDENTITY = (Variable.__eq__, OwnedNode.__eq__, *STAND_INS)


class Watch:
    """What a walk depended on.

    Args:
        root: The root; it is not kept.
        visit: What the walk saw just now.
        variables: The variables that it found, in order of index.
        layout: What else it found, as lists.
        by_structure: Whether one plain container of bare arrays is as good as another.

    Attributes:
        is_sure: Whether `holds` sees every change. Else the graph has to be walked
            each time.
    """

    def __init__(
        self,
        root: Any,
        visit: Visit,
        variables: list[Any],
        layout: Layout,
        by_structure: bool,
    ) -> None:
        self._epoch = visit.mark
        self._root_type = type(root)
        self._until_often = _OFTEN
        self._variables, self._layout = variables, layout
        self._checks: list[Callable[[Any], bool]] = []
        # Nobody is told when a variable of a registered type gets other metadata.
        plain: dict[Any, list[Any]] = {}
        foreign: list[_Described] = []
        theirs = [
            each
            for each in self._described()
            if not (each[2].is_owned or each[2] is BARE)
        ]
        for each in theirs:
            variable, _, impl = each
            if has_plain_metadata(impl, variable):
                are_flags = impl.get_metadata(variable).keys() <= impl.flags
                plain.setdefault((are_flags, impl), []).append(variable)
            else:
                foreign.append(each)
        found = [(key[0], Metadata.of(key[1], each)) for key, each in plain.items()]
        # Of a flag, 1 is as good as True: so a comparison tells everything.
        self._checks += [metadata.hold for are_flags, metadata in found if are_flags]
        others = [metadata for are_flags, metadata in found if not are_flags]
        inside: set[int] = set()
        replaced: set[int] = set()
        self._watch_contents(visit)
        if layout.bare:
            inside = self._let_arrays_change(replaced, by_structure)
        self._watch_identities(root, visit, others, replaced)
        # It may have changed between the walk and the copies.
        self.is_sure = all(map(_is_as_defined, theirs))
        unwatched = [each for each in visit.unwatched if id(each[0]) not in inside]
        self._watch_others(root, visit, foreign, unwatched)

    def _watch_contents(self, visit: Visit) -> None:
        """Records what containers hold."""
        # What every container held. Containers compare their contents without a call
        # for each, as long as both hold the same objects. By address: with thousands
        # of dicts, memory is read faster from end to end.
        pairs = [*zip(visit.containers, visit.contents or (), strict=True)]
        pairs.sort(key=lambda pair: (isinstance(pair[0], list), id(pair[0])))
        self._containers = [container for container, _ in pairs]
        self._contents = [content for _, content in pairs]

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

    def _watch_identities(
        self,
        root: Any,
        visit: Visit,
        metadata: Sequence[Metadata],
        replaced: set[int],
    ) -> None:
        """Records which objects must be the very same, where `==` does not tell.

        Args:
            root: The root.
            visit: What the walk saw just now.
            metadata: Those of foreign variables that have more than flags.
            replaced: The ids of what other objects may take the place of.
        """
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
            visit: What the walk saw just now.
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
                self.is_sure = False
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

    def holds(self, root: Any) -> bool:
        """Tells whether walking the graph again would see the same.

        Most of that is looked at in two passes, both in C: whether all containers hold
        the same or equal children under the same keys, and whether they are the same
        where equality does not say enough.
        """
        if type(root) is not self._root_type:
            return False
        try:
            if len(self._variables) > _MANY:
                # A copy asks the memory for all of them at once; a comparison waits for
                # one after the other. It is some 3 % of a call with 6,000.
                self._variables.copy()
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
        layout = self._layout
        return zip(self._variables, layout.definitions, layout.impls, strict=True)


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
