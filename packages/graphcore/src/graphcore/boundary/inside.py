"""The objects that a function runs on, and what it leaves of them."""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from itertools import chain
from operator import is_
from typing import Any

import jax

from graphcore._jax import OUTSIDE, current_trace
from graphcore.boundary.change import Change
from graphcore.boundary.leaks import check_leaks
from graphcore.boundary.left import Left, Written, same_value
from graphcore.boundary.places import OF_A_LEAF, Places, take_objects
from graphcore.boundary.publishing import publish
from graphcore.boundary.settings import Settings, settings_of_leaves
from graphcore.cache.plans import different_trace
from graphcore.divided.divided import joined, may_be_divided
from graphcore.graphdef.definition import GraphDef, NodeDef, VariableDef
from graphcore.graphdef.joint import Joint, joint_of
from graphcore.graphdef.walk import Visit, walk
from graphcore.prefixes import AliasCheck, setting_of
from graphcore.rebuilt import belongs
from graphcore.refmap import RefMap
from graphcore.trails import Path, path_of
from graphcore.unset import UNSET
from graphcore.variables.bare_arrays import BareArray, are_arrays

__all__ = ["Inside"]


class Inside:
    """The objects that a function runs on, built around values.

    Args:
        joint: The description of the objects.
        values: A raw value for each variable, in order of index.

    Attributes:
        roots: The inner objects that stand for the caller's.
        values: What the variables held at first.
        variables: Their variables, in order of index.

    Example:
        >>> import graphcore as gc
        >>> from graphcore.authors import Inside, enter
        >>> entry = enter(len, (gc.Dict(n=gc.Variable(1)),))
        >>> inside = Inside(entry.joint, [5])
        >>> inside.roots[0]
        Dict({'n': Variable(5)})
        >>> inside.roots[0].n.value += 1
        >>> inside.leave(None).values()
        [6]
    """

    __slots__ = ("_joint", "_objects", "_ways", "roots", "values", "variables")

    def __init__(self, joint: Joint, values: Sequence[Any]) -> None:
        self._joint = joint
        copies = values
        if not are_arrays(values):
            values = [*map(joined, values)]
            # So that a change inside of a value shows as a difference.
            copies = [jax.tree.map(lambda x: x, value) for value in values]
        self.values = values
        self._objects, self.roots, self.variables = joint.build(copies)
        # The containers that hold arrays without a variable.
        places = [(thing, self.variables[thing]) for thing, *_ in joint.layout.bare]
        self._ways = {thing: place.way() for thing, place in places}

    @classmethod
    @functools.cache
    def empty(cls) -> Inside:
        """No objects: whatever a function returns is new then."""
        return cls(joint_of(())[0], ())

    def put_together(self, groups: Sequence[Any], out: Any, change: Change) -> Any:
        """Puts together what a function of no objects returned.

        Args:
            groups: The values of the objects that it made, one list a setting.
            out: The output with None in their place.
            change: What became of the structure.

        Returns:
            The output with objects.
        """
        if change.is_in_place:
            return out
        values = [*chain.from_iterable(groups)]
        return publish((), (), self._joint, (), change, values, out)

    def leave(
        self, out: Any, settings: Settings | None = None, keep: Collection[int] = ()
    ) -> Left:
        """Takes apart what a function left behind.

        Args:
            out: What it returned: any pytree.
            settings: Those of its arguments and output, if there are any.
            keep: Variables of the inputs that count as written in any case.

        Returns:
            The written values, the output without objects, and the change.

        Raises:
            ValueError: If an object can't be flattened, belongs to another trace, or
                is reached under different settings; or if a traced value is static.
        """
        if settings is None:
            unset = (UNSET,) * len(self.roots), (UNSET,) * len(self.variables)
            settings = Settings(*unset)
        tree, places, returned = take_objects(out)
        pattern = self._joint.pattern
        if not returned and pattern is not None:
            # The quick way, if the objects surely have the structure that was built.
            if pattern.is_made_of(self.roots, self._objects):
                return self._only_written(tree, places, settings.variables, keep)
        paths = places.paths(out)
        of_returned = self._settings_of_returned(out, settings, places, returned, paths)
        visit = Visit()
        refs = visit.refs
        owners: list[tuple[Path, Any]] = []

        def visited(root: Any, place: Path, setting: Any) -> GraphDef[Any]:
            definition = walk(root, visit)
            new = len(visit.leaves) - len(owners)
            owners.extend([(place, setting)] * new)
            return definition

        definitions = tuple(
            visited(root, (number,), settings.roots[number])
            for number, root in enumerate(self.roots)
        )
        # The first place of each returned object counts.
        first_place = {number: (-1, *path) for path, number in reversed(paths)}
        out_definitions = tuple(
            visited(x, first_place[number], of_returned[number])
            for number, x in enumerate(returned)
        )
        detached = tuple(
            visited(x, (-2,), self._setting_of_root_of(index, settings.roots))
            for index, x in enumerate(self._objects)
            if x not in refs and type(x) is not BareArray
        )
        here = current_trace()
        for trail, x, trace in visit.traces():
            if trace is not here and not belongs(trace, here):
                raise different_trace(path_of(trail), type(x))
        old_index = RefMap((x, index) for index, x in enumerate(self._objects))
        old_position = RefMap((v, i) for i, v in enumerate(self.variables))
        written: list[Written] = []
        for leaf, (place, setting) in zip(visit.leaves, owners, strict=True):
            position, before = old_position.get(leaf.variable), None
            if position is None:
                setting = setting_of(setting, leaf.path, leaf.variable)
            else:
                value = leaf.impl.get_value(leaf.variable)
                if position not in keep and same_value(value, self.values[position]):
                    continue
                setting = settings.variables[position]
                if position not in keep:
                    before = self.values[position]
            path = (*place, *leaf.path)
            found = position, leaf.definition.index, leaf.variable, leaf.impl
            written.append(Written(*found, path, setting, before))
        # The same objects stand where they stood before.
        in_place = all(refs.get(x) == index for index, x in enumerate(self._objects))
        unchanged = in_place and definitions == self._joint.definitions
        if here != OUTSIDE:
            left = () if unchanged else definitions
            check_leaks(self._joint.definitions, (*left, *out_definitions))
        mapping = [(index, old_index[x]) for x, index in refs.items() if x in old_index]
        change = self._change(
            written,
            places,
            mapping=tuple(mapping),
            definitions=None if unchanged else definitions,
            detached=detached,
            returned=out_definitions,
        )
        return Left(written, tree, change)

    def _change(self, written: list[Written], places: Places, **more: Any) -> Change:
        """What is known by what was written, and `more` of the structure."""
        raw = [w.impl.get_value(w.variable) for w in written]
        change = Change(
            positions=tuple([w.position for w in written]),
            indices=tuple([w.index for w in written]),
            places=places,
            has_divided=places.has_divided or any(map(may_be_divided, raw)),
            renewed=self._renewed(written),
            numbers=_numbers(written, raw),
            **more,
        )
        if places is OF_A_LEAF and change.is_in_place and not change.numbers:
            # The same structure with every array that is returned: it is made once.
            known = self._joint.layout.notes
            change = known.setdefault(change.positions, change)
        return change

    def _renewed(self, written: Sequence[Written]) -> tuple[tuple[int, int], ...]:
        """Where the function put other containers than there were."""
        found: dict[Any, tuple[int, int]] = {}
        for w in written:
            if w.position in self._ways:
                place, before = w.variable, self._ways[w.position]
                for depth, (x, y) in enumerate(
                    zip(before, place.way(), strict=True), 1
                ):
                    if x is not y:
                        key = id(place.holder), place.path[:depth]
                        found.setdefault(key, (depth, w.position))
        return tuple(sorted(found.values()))

    def _only_written(
        self,
        tree: Any,
        places: Places,
        settings: Sequence[Any],
        keep: Collection[int],
    ) -> Left:
        """What a function left that did no more than write values, as most do."""
        joint, variables, old = self._joint, self.variables, self.values
        now = joint.layout.values(variables)
        written: list[Written] = []
        if keep or not all(map(is_, now, old)):
            for position, variable in enumerate(variables):
                if position in keep or not same_value(now[position], old[position]):
                    index = joint.variable_definitions[position].index
                    found = position, index, variable, joint.layout.impls[position]
                    path, setting = joint.paths[position], settings[position]
                    before = None if position in keep else old[position]
                    written.append(Written(*found, path, setting, before))
        change = self._change(written, places, mapping=joint.identity)
        return Left(written, tree, change)

    def _setting_of_root_of(self, index: int, settings: Sequence[Any]) -> Any:
        """The setting of the root through which an input object was first reached."""
        found: Any = UNSET
        for definition, setting in zip(self._joint.definitions, settings, strict=True):
            # Indices rise from root to root; a reference adds none.
            if isinstance(definition, NodeDef | VariableDef):
                if definition.index <= index:
                    found = setting
        return found

    def _settings_of_returned(
        self,
        out: Any,
        settings: Settings,
        places: Places,
        returned: list[Any],
        paths: list[tuple[Path, int]],
    ) -> list[Any]:
        of_returned: list[Any] = [UNSET] * len(returned)
        if not returned or settings.out is UNSET:
            return of_returned
        per_leaf = settings_of_leaves(settings.out, out)
        aliases = AliasCheck()
        for number, setting in enumerate(settings.roots):
            if setting is not UNSET:
                aliases.add(("arguments", number), self.roots[number], setting)
        for (path, number), (position, _) in zip(paths, places.spots, strict=True):
            if per_leaf[position] is not UNSET:
                aliases.add(("output", *path), returned[number], per_leaf[position])
            of_returned[number] = per_leaf[position]
        aliases.check()
        return of_returned


def _numbers(written: Sequence[Written], raw: Sequence[Any]) -> tuple[int, ...]:
    """The indices of what was written that is not made of arrays of JAX alone."""
    return tuple(
        w.index
        for w, value in zip(written, raw, strict=True)
        if not all(isinstance(x, jax.Array) for x in jax.tree.leaves(value))
    )
