"""Lifting: how a transformation of pure functions becomes one of live objects.

Every transformation here is the same sandwich, and this is the one place where it is
written:

1. *outside*, `take` replaces the objects among the arguments by the raw values of
   their variables, and remembers how the objects are built;
2. *inside*, where JAX calls the function, `Inside` builds objects of the same structure
   around the values that JAX passes in, and the user's function runs on those;
3. *inside*, `Inside.leave` compares what the function left behind with what it was
   given. What was written are values to return; what became of the structure is an
   `Outcome`: static, so it can be returned as part of a pytree's structure;
4. *outside*, `Inputs.publish` writes the returned values into the caller's own objects
   and, if the structure changed, rebuilds it around them.

Nothing of the caller's is touched before step 4, so an error anywhere leaves it as it
was. A transformation only has to say how values enter and leave: all alike (`jit`), in
groups by axis (`vmap`, `scan`), or divided by a filter (`grad`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from operator import is_
from typing import Any

import jax

from graphcore import (
    GraphDef,
    PrefixMapping,
    RefMap,
    broadcast_prefix,
)
from graphcore._jax import current_trace
from graphcore.build import Builder, set_values
from graphcore.graphdef import NodeDef, VariableDef
from graphcore.joint import Joint, joint_of
from graphcore.owned import OwnedNode
from graphcore.plans import Plan, check_traces, different_trace
from graphcore.prefixes import AliasCheck
from graphcore.recipes import recipe_of
from graphcore.trails import path_of
from graphcore.variable_impl import (
    VariableImpl,
)
from graphcore.walk import Visit, walk
from nnx_transforms.transforms.callees import Callee, lifted
from nnx_transforms.transforms.skeletons import (
    OF_A_LEAF,
    Path,
    Skeleton,
    is_object,
    key_path,
    remove_objects,
    remove_prefixes,
    spot_paths,
)

__all__ = [
    "Callee",
    "Inputs",
    "Inside",
    "Left",
    "NoPrefix",
    "Outcome",
    "Path",
    "Skeleton",
    "Written",
    "is_object",
    "key_path",
    "lifted",
    "prefix_of",
    "publish",
    "remove_objects",
    "remove_prefixes",
    "same_value",
    "spot_paths",
    "take",
]


class NoPrefix:
    """The prefix of everything where a transformation has none."""


def prefix_of(prefix: Any, path: Path, variable: Any) -> Any:
    """The prefix of one variable of an object.

    Args:
        prefix: The prefix of the object.
        path: The path of the variable in the object.
        variable: The variable, or its state.

    Returns:
        What a `PrefixMapping` answers; any other prefix is that of all variables.
    """
    if isinstance(prefix, PrefixMapping):
        return prefix.map_prefix(path, variable)
    return prefix


@dataclass(frozen=True)
class Outcome:
    """What a function did to the structure of its objects, and what it returned.

    Args:
        positions: The number among the inputs' variables of each written value, None
            for a new variable.
        indices: The index of each written value's variable in the new definitions.
        definitions: Those of the roots afterwards; None if nothing changed.
        detached: Those of the objects that no root reaches any more.
        returned: Those of the returned objects that no root reaches, or references.
        mapping: From the index of an old object in these to that among the inputs.
        skeleton: Where the returned objects are in the output.
    """

    positions: tuple[int | None, ...]
    indices: tuple[int, ...]
    definitions: tuple[GraphDef[Any], ...] | None
    detached: tuple[GraphDef[Any], ...]
    returned: tuple[GraphDef[Any], ...]
    mapping: tuple[tuple[int, int], ...]
    skeleton: Skeleton

    @functools.cached_property
    def is_in_place(self) -> bool:
        """Whether it did nothing but write values, and returned no object."""
        return self.definitions is None and not self.returned

    @functools.cached_property
    def is_in_order(self) -> bool:
        """Whether it wrote the first so many variables, in order."""
        return self.positions == tuple(range(len(self.positions)))

    def select(self, order: Sequence[int]) -> Outcome:
        """The same outcome with the written values in another order.

        Args:
            order: For each value in the new order its place in the old one; values
                may be left out if their variables exist already.

        Returns:
            A new outcome.
        """
        return Outcome(
            tuple(self.positions[i] for i in order),
            tuple(self.indices[i] for i in order),
            self.definitions,
            self.detached,
            self.returned,
            self.mapping,
            self.skeleton,
        )


jax.tree_util.register_static(Outcome)


@dataclass(slots=True)
class Written:
    """A variable that a function wrote, or made.

    Args:
        position: Its number among the inputs' variables; None if it is new.
        index: Its index in the definitions afterwards.
        variable: The inner variable.
        impl: How it is handled.
        path: Where it was first found: the number of the root, -1 for the output, -2
            for what no root reaches any more; then the path from there.
        prefix: Its prefix.
    """

    position: int | None
    index: int
    variable: Any
    impl: VariableImpl
    path: Path
    prefix: Any

    @property
    def value(self) -> Any:
        """The raw value."""
        return self.impl.get_value(self.variable)


@dataclass(slots=True)
class Left:
    """What a function left behind.

    Args:
        written: The variables that it wrote or made.
        tree: The output with None in the place of objects.
        outcome: The static rest.
    """

    written: list[Written]
    tree: Any
    outcome: Outcome

    def values(self) -> list[Any]:
        """The raw values of the written variables."""
        return [w.impl.get_value(w.variable) for w in self.written]


@dataclass(slots=True)
class Inputs:
    """The arguments of a call, taken apart.

    Args:
        plain: The arguments with None in the place of objects.
        skeleton: Where the objects were.
        roots: The distinct objects.
        joint: Their description in one index space.
        plans: Their plans.
        prefixes: The prefix of each variable, in order of index.
        root_prefixes: The prefix of each root.
        spots: Path, object and prefix of each place where an object stood.
        bound: The numbers of the roots that the function is bound to.
    """

    plain: Any
    skeleton: Skeleton
    roots: list[Any]
    joint: Joint
    plans: list[Plan]
    prefixes: list[Any]
    root_prefixes: list[Any]
    spots: list[tuple[Path, Any, Any]]
    bound: tuple[int, ...]

    def enter(
        self, callee: Callee, values: Sequence[Any], plain: Any
    ) -> tuple[Inside, Callable[..., Any], Any]:
        """Builds the inner objects: step 2.

        Args:
            callee: The user's function.
            values: A raw value for each variable, in order of index.
            plain: The arguments with None in the place of objects.

        Returns:
            The inner objects; the function, bound to those that it was bound to; and
            the arguments with inner objects.
        """
        inside = Inside(self.joint, values)
        function = callee.on([inside.roots[n] for n in self.bound])
        return inside, function, self.skeleton.fill(plain, inside.roots)

    @property
    def variables(self) -> list[Any]:
        """The caller's variables in order of index."""
        return self.joint.variables(self.plans)

    def values(self) -> list[Any]:
        """Their raw values."""
        return self.joint.values(self.plans)

    def variable_path(self, position: int) -> Path:
        """The path of a variable from the arguments.

        Args:
            position: The number of the variable.

        Returns:
            The path of its root, where that stood first, and from there.
        """
        number, *rest = self.joint.paths[position]
        root = self.roots[number]
        first = next((path for path, x, _ in self.spots if x is root), ("self",))
        return (*first, *rest)

    def publish(self, outcome: Outcome, values: Sequence[Any], plain_out: Any) -> Any:
        """Brings what a function did to the caller's objects: all of it, or nothing.

        Args:
            outcome: What it did to the structure.
            values: One for each of the outcome's positions.
            plain_out: The output with None in the place of objects.

        Returns:
            The output with objects: the caller's own where it had them.

        Raises:
            ValueError: If a foreign type refuses.
        """
        return publish(self.roots, self.joint, self.plans, outcome, values, plain_out)

    def discard(self, outcome: Outcome, values: Sequence[Any], plain_out: Any) -> Any:
        """Puts the output together without touching the caller's objects.

        Args:
            outcome: What the function did to the structure.
            values: One for each of the outcome's positions.
            plain_out: The output with None in the place of objects.

        Returns:
            The output with objects: the caller's own, as they are, where it had them.
        """
        return publish(
            self.roots, self.joint, self.plans, outcome, values, plain_out, write=False
        )


def publish(
    roots: Sequence[Any],
    joint: Joint,
    plans: Sequence[Plan],
    outcome: Outcome,
    values: Sequence[Any],
    plain_out: Any,
    *,
    write: bool = True,
) -> Any:
    """See `Inputs.publish`, and `Inputs.discard` if nothing is to be written."""
    returned = outcome.returned
    if outcome.definitions is None and not returned:
        if values and write:
            variables = joint.variables(plans)
            chosen = [variables[p] for p in outcome.positions]  # type: ignore[index]
            set_values(chosen, values, joint.all_owned(plans))
        return plain_out
    refs: RefMap[Any, int] = RefMap()
    visit = Visit()
    for root in roots:
        walk(root, refs, visit)
    outer = {index: x for x, index in refs.items()}
    existing = {new: outer[old] for new, old in outcome.mapping}
    leaves = {
        index: (value, None)
        for index, value in zip(outcome.indices, values, strict=True)
    }
    objects: dict[int, Any] = {}
    builder = Builder(leaves, objects, existing)
    if outcome.definitions is None:
        for index, value in leaves.items():
            if index in existing:
                builder.write_value(existing[index], value[0])
    else:
        for definition in (*outcome.definitions, *outcome.detached):
            builder.build(definition)
    out_objects = [builder.build(definition) for definition in returned]
    if write:
        builder.commit()
    return outcome.skeleton.fill(plain_out, out_objects)


def take(tree: Any, prefix: Any = NoPrefix, bound: Sequence[Any] = ()) -> Inputs:
    """Takes the objects out of the arguments of a call.

    Args:
        tree: The arguments: any pytree.
        prefix: A tree prefix with a setting for each object.
        bound: Objects that the function is bound to; see `Callee`.

    Returns:
        The arguments, taken apart.

    Raises:
        ValueError: If an object can't be flattened, belongs to another trace, or is
            reached under different prefixes.
    """
    plain, skeleton, found = remove_objects(tree)
    paths = spot_paths(tree, skeleton)
    for x in bound:
        if not any(x is known for known in found):
            found.append(x)
    joint, plans = joint_of(found)
    check_traces(plans)
    spots: list[tuple[Path, Any, Any]] = []
    prefixes: list[Any] = [NoPrefix] * len(joint.paths)
    # What a function is bound to is treated as what it closes over: not mapped.
    root_prefixes: list[Any] = [NoPrefix if prefix is NoPrefix else None] * len(found)
    if prefix is NoPrefix:
        spots = [
            (path, found[number], NoPrefix)
            for path, (_, number) in zip(paths, skeleton.spots, strict=True)
        ]
    elif found:
        per_leaf = broadcast_prefix(
            prefix,
            tree,
            prefix_is_leaf=lambda p: p is None or isinstance(p, PrefixMapping),
            tree_is_leaf=is_object,
        )
        aliases = AliasCheck()
        for path, (position, number) in zip(paths, skeleton.spots, strict=True):
            root_prefix = per_leaf[position]
            aliases.add(path, found[number], root_prefix)
            spots.append((path, found[number], root_prefix))
            root_prefixes[number] = root_prefix
        for x in bound:
            aliases.add(("self",), x, None)
        prefixes = [
            prefix_of(root_prefixes[number], tuple(path), variable)
            for (number, *path), variable in zip(
                joint.paths, joint.variables(plans), strict=True
            )
        ]
    numbers = tuple(next(n for n, x in enumerate(found) if x is b) for b in bound)
    return Inputs(
        plain, skeleton, found, joint, plans, prefixes, root_prefixes, spots, numbers
    )


class Inside:
    """The objects that a function runs on, built around values.

    Args:
        joint: The description of the objects.
        values: A raw value for each variable, in order of index.

    Attributes:
        roots: The inner objects that stand for the caller's.
        variables: Their variables, in order of index.
    """

    __slots__ = ("_joint", "_objects", "_values", "roots", "variables")

    def __init__(self, joint: Joint, values: Sequence[Any]) -> None:
        definitions = joint.variable_definitions
        self._joint = joint
        self._values = values
        self._objects: dict[int, Any] = {}
        first = joint.definitions[0] if joint.definitions else None
        recipe = recipe_of(first) if isinstance(first, NodeDef) else None
        if recipe is not None and len(joint.definitions) == 1:
            self._objects = dict(enumerate(recipe.make_all(values)))
            self.roots = [self._objects[0]]
        else:
            leaves = {
                d.index: (value, None)
                for d, value in zip(definitions, values, strict=True)
            }
            builder = Builder(leaves, self._objects, {})
            self.roots = [builder.build(d) for d in joint.definitions]
        self.variables = [self._objects[d.index] for d in definitions]

    def leave(
        self,
        out: Any,
        root_prefixes: Sequence[Any] = (),
        prefixes: Sequence[Any] = (),
        out_prefix: Any = NoPrefix,
        keep: Collection[int] = (),
    ) -> Left:
        """Takes apart what a function left behind.

        Args:
            out: What it returned: any pytree.
            root_prefixes: The prefix of each root, for variables that are new in it.
            prefixes: The prefix of each variable of the inputs.
            out_prefix: A tree prefix of the output.
            keep: Variables of the inputs that count as written in any case.

        Returns:
            The written values, the output without objects, and the outcome.

        Raises:
            ValueError: If an object can't be flattened, belongs to another trace, or
                is reached under different prefixes.
        """
        tree, skeleton, returned = remove_objects(out)
        if not returned and self._is_unchanged():
            return self._only_written(tree, skeleton, prefixes, keep)
        paths = spot_paths(out, skeleton)
        per_spot: list[Any] = [NoPrefix] * len(returned)
        if returned and out_prefix is not NoPrefix:
            per_spot = self._out_prefixes(
                out, out_prefix, root_prefixes, skeleton, returned, paths
            )
        refs: RefMap[Any, int] = RefMap()
        visit = Visit()
        owners: list[tuple[Path, Any]] = []

        def visited(root: Any, place: Path, prefix: Any) -> GraphDef[Any]:
            definition = walk(root, refs, visit)
            new = len(visit.leaves) - len(owners)
            owners.extend([(place, prefix)] * new)
            return definition

        given = list(root_prefixes) or [NoPrefix] * len(self.roots)
        definitions = tuple(
            visited(root, (number,), given[number])
            for number, root in enumerate(self.roots)
        )
        # The first place of each returned object counts.
        places: dict[int, Path] = {}
        for path, (_, number) in zip(paths, skeleton.spots, strict=True):
            places.setdefault(number, (-1, *path))
        out_definitions = tuple(
            visited(x, places[number], per_spot[number])
            for number, x in enumerate(returned)
        )
        detached = tuple(
            visited(x, (-2,), self._root_prefix(index, given))
            for index, x in self._objects.items()
            if x not in refs
        )
        self._check_traces(visit)

        old_index = RefMap((x, index) for index, x in self._objects.items())
        old_position = RefMap((v, i) for i, v in enumerate(self.variables))
        written: list[Written] = []
        for leaf, (place, prefix) in zip(visit.leaves, owners, strict=True):
            position = old_position.get(leaf.variable)
            if position is None:
                prefix = prefix_of(prefix, leaf.path, leaf.variable)
            else:
                value = leaf.impl.get_value(leaf.variable)
                if position not in keep and same_value(value, self._values[position]):
                    continue
                prefix = prefixes[position] if prefixes else NoPrefix
            path = (*place, *leaf.path)
            index = leaf.definition.index
            written.append(
                Written(position, index, leaf.variable, leaf.impl, path, prefix)
            )
        unchanged = not detached and definitions == self._joint.definitions
        outcome = Outcome(
            positions=tuple(w.position for w in written),
            indices=tuple(w.index for w in written),
            definitions=None if unchanged and self._in_place(refs) else definitions,
            detached=detached,
            returned=out_definitions,
            mapping=tuple(
                (index, old_index[x]) for x, index in refs.items() if x in old_index
            ),
            skeleton=skeleton,
        )
        return Left(written, tree, outcome)

    def _is_unchanged(self) -> bool:
        """Whether the objects surely are as they were built."""
        pattern = self._joint.pattern
        if pattern is None:
            return False
        built = [self._objects[index] for index in range(pattern.count)]
        return pattern.is_made_of(self.roots, built)

    def _only_written(
        self,
        tree: Any,
        skeleton: Skeleton,
        prefixes: Sequence[Any],
        keep: Collection[int],
    ) -> Left:
        """What a function left that has at most written values, as most do."""
        joint, variables, old = self._joint, self.variables, self._values
        now = [
            impl.get_value(variable)
            for impl, variable in zip(joint.impls, variables, strict=True)
        ]
        written: list[Written] = []
        if keep or not all(map(is_, now, old)):
            for position, variable in enumerate(variables):
                if position in keep or not same_value(now[position], old[position]):
                    index = joint.variable_definitions[position].index
                    impl, path = joint.impls[position], joint.paths[position]
                    prefix = prefixes[position] if prefixes else NoPrefix
                    written.append(
                        Written(position, index, variable, impl, path, prefix)
                    )
        positions = tuple([w.position for w in written])
        # The same structure with every array that is returned: it is made once.
        outcome: Outcome | None = None
        if skeleton is OF_A_LEAF:
            outcome = joint.notes.get(("outcome", positions))
        if outcome is None:
            outcome = Outcome(
                positions=positions,
                indices=tuple([w.index for w in written]),
                definitions=None,
                detached=(),
                returned=(),
                mapping=joint.identity,
                skeleton=skeleton,
            )
            if skeleton is OF_A_LEAF:
                joint.notes["outcome", positions] = outcome
        return Left(written, tree, outcome)

    def _root_prefix(self, index: int, prefixes: Sequence[Any]) -> Any:
        """The prefix of the root through which an input object was first reached."""
        found: Any = NoPrefix
        for definition, prefix in zip(self._joint.definitions, prefixes, strict=True):
            # Indices are in order of first visit; what is a reference added none.
            if isinstance(definition, NodeDef | VariableDef):
                if definition.index <= index:
                    found = prefix
        return found

    def _in_place(self, refs: RefMap[Any, int]) -> bool:
        """Whether the same objects stand where they stood before."""
        return all(refs.get(x) == index for index, x in self._objects.items())

    def _out_prefixes(
        self,
        out: Any,
        out_prefix: Any,
        root_prefixes: Sequence[Any],
        skeleton: Skeleton,
        returned: list[Any],
        paths: list[Path],
    ) -> list[Any]:
        per_leaf = broadcast_prefix(
            out_prefix,
            out,
            prefix_is_leaf=lambda p: p is None or isinstance(p, PrefixMapping),
            tree_is_leaf=is_object,
        )
        aliases = AliasCheck()
        for number, (root, prefix) in enumerate(
            zip(self.roots, root_prefixes, strict=True)
        ):
            if prefix is not NoPrefix:
                aliases.add(("arguments", number), root, prefix)
        per_object: list[Any] = [NoPrefix] * len(returned)
        for path, (position, number) in zip(paths, skeleton.spots, strict=True):
            if per_leaf[position] is not NoPrefix:
                aliases.add(("output", *path), returned[number], per_leaf[position])
            per_object[number] = per_leaf[position]
        return per_object

    @staticmethod
    def _check_traces(visit: Visit) -> None:
        here = current_trace()
        for trail, node in visit.nodes:
            if isinstance(node, OwnedNode) and node._trace != here:
                raise different_trace(path_of(trail), type(node))
        for leaf in visit.leaves:
            get_trace = leaf.impl.get_trace
            if get_trace is not None and get_trace(leaf.variable) != here:
                raise different_trace(leaf.path, type(leaf.variable))


def same_value(a: Any, b: Any) -> bool:
    """Whether two raw values are the very same arrays."""
    if a is b:
        return True
    a_leaves, a_structure = jax.tree.flatten(a)
    b_leaves, b_structure = jax.tree.flatten(b)
    return a_structure == b_structure and all(
        x is y for x, y in zip(a_leaves, b_leaves, strict=True)
    )
