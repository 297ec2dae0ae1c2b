"""What a function did to its objects: the static half of what crosses the boundary.

Where JAX runs a function, values of variables come out as arrays, and everything else,
what became of the structure, as a `Change`: static, so it is returned as part of a
pytree's structure, and kept by JAX with the trace that it belongs to.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import is_
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from graphcore.boundary.places import Places, key_path
from graphcore.cache.plans import Plan, check_writes
from graphcore.content import values_equal
from graphcore.divided.divided import changed, divided, joined
from graphcore.graphdef.build import Builder
from graphcore.graphdef.definition import GraphDef, NodeRef
from graphcore.graphdef.joint import Joint
from graphcore.graphdef.layouts import Layout, layout_of
from graphcore.graphdef.walk import Visit, walk
from graphcore.trails import Path, path_text
from graphcore.undo import overwrite_all, set_values, undoing
from graphcore.variables.bare_arrays import BareArray, are_known_arrays
from graphcore.variables.impl import VariableImpl
from graphcore.variables.variable import set_raw_value

__all__ = ["Change", "Left", "Written"]

# What JAX may return for constants, beside literals.
_CONSTANTS = (bool, int, float, complex, np.ndarray, np.generic)


@dataclass(frozen=True)
class Change:
    """What a function did to the structure of its objects, and what it returned.

    Args:
        positions: The number among the inputs' variables of each written value, None
            for a new variable.
        indices: The index of each written value's variable in the new definitions.
        mapping: From the index of an old object in these to that among the inputs.
        places: Where the returned objects are in the output.
        definitions: Those of the roots afterwards; None if nothing changed.
        detached: Those of the objects that no root reaches any more.
        returned: Those of the returned objects that no root reaches, or references.
        has_divided: Whether a value, or part of the output, comes as a `Divided`.
        renewed: Plain containers in the place of which the function put others: who
            else holds them sees nothing of what is written. Each by its depth, the
            outer ones first, and the number of an array in it.
        numbers: The indices of the written values that were no arrays of JAX.

    Attributes:
        only_writes: Whether it did nothing but write values, and returned no object.
        is_in_place: Whether these, besides, are arrays.
        is_in_order: Whether it wrote the first so many variables, in order.

    Example:
        >>> import graphcore as gc
        >>> from graphcore.authors import enter
        >>> def count(n): n.value += 1; n.unit = 's'
        >>> entry = enter(count, (gc.Variable(1),))
        >>> *_, change = entry.body(*entry.values)
        >>> change.positions, change.is_in_place, change.definitions[0].metadata
        ((0,), False, HashableMapping({'unit': 's'}))
    """

    positions: tuple[int | None, ...]
    indices: tuple[int, ...]
    mapping: tuple[tuple[int, int], ...]
    places: Places
    definitions: tuple[GraphDef[Any], ...] | None = None
    detached: tuple[GraphDef[Any], ...] = ()
    returned: tuple[GraphDef[Any], ...] = ()
    has_divided: bool = False
    renewed: tuple[tuple[int, int], ...] = ()
    numbers: tuple[int, ...] = ()
    # Computed once, because every call asks for them.
    only_writes: bool = field(init=False, compare=False)
    is_in_place: bool = field(init=False, compare=False)
    is_in_order: bool = field(init=False, compare=False)

    def __post_init__(self) -> None:
        more = self.definitions or self.returned or self.renewed
        only_writes = not (more or self.places.has_divided)
        object.__setattr__(self, "only_writes", only_writes)
        object.__setattr__(self, "is_in_place", only_writes and not self.has_divided)
        in_order = tuple(range(len(self.positions)))
        object.__setattr__(self, "is_in_order", self.positions == in_order)

    @functools.cached_property
    def structure(self) -> Any:
        """What two runs agree on if they left and returned the same objects."""
        new = [
            index
            for index, position in zip(self.indices, self.positions, strict=True)
            if position is None
        ]
        return (
            *(self.definitions, self.detached, self.returned),
            *(frozenset(self.mapping), self.places, tuple(new)),
        )

    @functools.cached_property
    def layouts(self) -> list[Layout]:
        """Those of the definitions afterwards, of what is returned, and of the rest."""
        return [*map(layout_of, (self.definitions or (), self.returned, self.detached))]

    @functools.cached_property
    def referred(self) -> frozenset[int]:
        """The indices of what the returned objects consist of, but for new objects."""
        _, layout, _ = self.layouts
        outside = {reference.index for reference in layout.outside.values()}
        return frozenset(outside.union(layout.indices).intersection(dict(self.mapping)))

    def without_literals(self, values: Sequence[Any]) -> Sequence[Any]:
        """The written values with arrays in the place of literals of JAX's own.

        A transformation that runs a trace outside of `jax.jit`, such as
        `jax.checkpoint`, returns a constant of the function as a number. As the child
        of a node that would be static.

        Args:
            values: One for each position, as JAX returned them.

        Returns:
            As many values. What the function wrote as a number, and JAX did not trace,
            is one.
        """
        if are_known_arrays(values):  # the usual case, decided by types
            return values
        numbers = self.numbers
        return [
            x
            if isinstance(x, jax.Array)
            else jax.tree.map(_from_number if i in numbers else _from_constant, x)
            for x, i in zip(values, self.indices, strict=True)
        ]

    def joined(self, values: Sequence[Any], now: Sequence[Any]) -> list[Any]:
        """The written values as variables hold them.

        Args:
            values: One for each position.
            now: The values of all variables of the inputs, as JAX took them.

        Returns:
            As many values.
        """
        return [
            joined(value, None if position is None else now[position])
            for value, position in zip(values, self.positions, strict=True)
        ]

    def write(
        self, variables: Sequence[Any], values: Sequence[Any], layout: Layout
    ) -> None:
        """Gives variables of the inputs what was written: all of them, or none.

        Args:
            variables: All variables of the inputs, which may be written.
            values: What those at `positions`, all of them old ones, are to hold.
            layout: What the variables are.

        Raises:
            ValueError: If a foreign type refuses.
        """
        if layout.bare and not layout.bare_numbers.isdisjoint(self.positions):
            with undoing() as undo:
                self.overwrite(variables, values, layout, undo)
            return
        if not self.is_in_order:
            variables = [variables[p] for p in self.positions]  # type: ignore[index]
        if layout.all_owned:
            # One call into C, as no setter returns anything: a signal can't be
            # handled halfway through.
            any(map(set_raw_value, variables, values))
        else:
            set_values(variables, values, layout.impl)

    def overwrite(
        self,
        variables: Sequence[Any],
        values: Sequence[Any],
        layout: Layout,
        undo: list[Callable[[], Any]],
        *,
        only_bare: bool = False,
    ) -> None:
        """As `write`, having noted what was there.

        What stands in the place of the `renewed` containers is a copy then.

        Args:
            variables: All variables of the inputs.
            values: What those at `positions` are to hold.
            layout: What the variables are.
            undo: The steps of `undoing`.
            only_bare: Whether to write bare arrays alone.
        """
        new = {
            position: value
            for position, value in zip(self.positions, values, strict=True)
            if position is not None
            and not (only_bare and type(variables[position]) is not BareArray)
        }
        for branch in layout.branches:
            branch.write(variables, new, self.renewed, undo)
        renewed = [(variables[p], depth) for depth, p in self.renewed if p in new]
        overwrite_all(undo, [variables[p] for p in new], [*new.values()], renewed)

    def select(self, order: Sequence[int]) -> Change:
        """The same change with the written values in another order.

        Args:
            order: For each value in the new order its place in the old one; values
                may be left out if their variables exist already.

        Returns:
            A new change.
        """
        return replace(
            self,
            positions=tuple([self.positions[i] for i in order]),
            indices=tuple([self.indices[i] for i in order]),
        )


jax.tree_util.register_static(Change)


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
        setting: Its setting.
        before: The value that it had; None if that is to be written as a whole.

    Example:
        >>> import graphcore as gc
        >>> from graphcore.authors import enter
        >>> def count(m): m.n.value += 1
        >>> body = enter(count, (gc.Dict(n=gc.Variable(1)),)).body
        >>> (written,) = body.run([1], (None,), {}).written
        >>> written.position, written.path, written.value
        (0, (0, 'n'), 2)
    """

    position: int | None
    index: int
    variable: Any
    impl: VariableImpl
    path: Path
    setting: Any
    before: Any = None

    @property
    def value(self) -> Any:
        """The raw value, as JAX takes it."""
        return divided(self.impl.get_value(self.variable))

    @property
    def changed(self) -> Any:
        """The value as JAX takes it; of a pytree of many arrays, those that are new."""
        value = self.impl.get_value(self.variable)
        return changed(value, self.before)


@dataclass(slots=True)
class Left:
    """What a function left behind.

    Args:
        written: The variables that it wrote or made.
        out: The output with None in the place of objects.
        change: The static rest.

    Example:
        >>> import graphcore as gc
        >>> from graphcore.authors import enter
        >>> def count(n): n.value += 1; return -n.value
        >>> left = enter(count, (gc.Variable(1),)).body.run([1], (None,), {})
        >>> left.values(), left.out
        ([2], -2)
    """

    written: list[Written]
    out: Any
    change: Change

    def values(self) -> list[Any]:
        """The raw values of the written variables."""
        return [w.value for w in self.written]

    def all_values(self, given: Sequence[Any]) -> list[Any]:
        """The raw values of all variables of the inputs.

        Args:
            given: What they had before, by position. What stands where nothing is any
                more, as an array whose attribute was removed, is as it was.
        """
        values = [*given]
        for w in self.written:
            if w.position is not None:
                values[w.position] = w.value
        return values

    def overwritten(self, values: Sequence[Any]) -> frozenset[int]:
        """Which of the values that a function was given it replaced.

        Args:
            values: What the variables had before, by position.

        Returns:
            The positions of the variables that hold other arrays now.
        """
        return frozenset(
            w.position
            for w in self.written
            if w.position is not None and not same_value(w.value, values[w.position])
        )

    def check_output(self, name: str, called: str = "output") -> None:
        """Raises an error if JAX refuses part of the output, with its path.

        Args:
            name: The name of the function.
            called: What the output is called.

        Raises:
            TypeError: With the path.
        """
        if are_known_arrays(jax.tree.leaves(self.out)):
            return  # the usual case, decided by types
        pairs = jax.tree_util.tree_flatten_with_path(self.out)[0]
        for number, leaf, error in refused([leaf for _, leaf in pairs]):
            place = path_text((called, *key_path(pairs[number][0])))
            raise TypeError(
                f"{name!r} returned a value of type {type(leaf).__name__} at "
                f"{place!r}, which JAX does not accept: {leaf!r}. Return arrays; an "
                "attribute of an object may be anything."
            ) from error


def _from_constant(x: Any) -> Any:
    is_constant = isinstance(x, _CONSTANTS) or _is_literal(x)
    return jnp.asarray(x) if is_constant else x


def _from_number(x: Any) -> Any:
    return jnp.asarray(x) if _is_literal(x) else x


def _is_literal(x: Any) -> bool:
    """Whether it is of a type that JAX has for constants; these have no public name."""
    parts = type(x).__module__.split(".")
    return (parts[0], parts[-1]) == ("jax", "literals")


def refused(values: Iterable[Any]) -> Iterator[tuple[int, Any, TypeError]]:
    """Finds values with a leaf that JAX refuses: number of value, leaf, error."""
    for number, value in enumerate(values):
        for leaf in jax.tree.leaves(value):
            try:
                jax.typeof(leaf)
            except TypeError as error:
                yield number, leaf, error


def publish(
    roots: Sequence[Any],
    variables: Sequence[Any],
    joint: Joint,
    plans: Sequence[Plan],
    change: Change,
    values: Sequence[Any],
    out: Any,
    *,
    write: bool = True,
    now: Sequence[Any] = (),
) -> Any:
    """Brings what a function did to the caller's objects: all of it, or nothing.

    Args:
        roots: The objects.
        variables: Their variables, in order of index.
        joint: Their description.
        plans: Their plans.
        change: What the function did to the structure.
        values: One for each of the change's positions.
        out: The output with None in the place of objects.
        write: Whether to touch the caller's objects. If not, only the output is put
            together.
        now: The values of all variables, as JAX took them.

    Returns:
        The output with objects: the caller's own where it had them.

    Raises:
        ValueError: If a foreign type refuses.
    """
    if change.has_divided:
        values = change.joined(values, now)
    if change.definitions is None:
        returned = _known(change, roots, variables, joint)
        if returned is not None:
            if values and write:
                chosen = [variables[p] for p in change.positions]  # type: ignore[index]
                check_writes(plans, chosen)
                change.write(variables, values, joint.layout)
            refilled = returned or change.has_divided
            return change.places.fill(out, returned) if refilled else out
    outer = _by_index(roots, variables, joint)
    existing = {new: outer[old] for new, old in change.mapping if old in outer}
    if change.definitions is not None or not change.referred <= existing.keys():
        visit = Visit()
        for root in roots:
            walk(root, visit)
        outer = {index: x for x, index in visit.refs.items()}
        existing = {new: outer[old] for new, old in change.mapping}
    leaves = {
        index: (value, None)
        for index, value in zip(change.indices, values, strict=True)
    }
    builder = Builder(leaves, {}, existing, copied=True)
    if change.definitions is None:
        known = [index for index in leaves if index in existing]
        if write:
            check_writes(plans, [existing[i] for i in known])
        builder.variable_writes += [(existing[i], *leaves[i]) for i in known]
    with undoing() as undo:
        if write:
            # First, while the containers of the caller are still in their places:
            # what the rest leaves alone keeps the container that others hold as well.
            change.overwrite(variables, values, joint.layout, undo, only_bare=True)
        # In the order in which they were found: later ones refer to earlier ones.
        _, returned, _ = map(builder.build_all, change.layouts)
        if write:
            builder.commit(undo)
    return change.places.fill(out, returned)


def _known(
    change: Change, roots: Sequence[Any], variables: Sequence[Any], joint: Joint
) -> list[Any] | None:
    """The returned objects, if all of them are roots or variables of the caller.

    These are found without a walk; None if another one is among them.
    """
    if not change.returned:
        return []
    outer = _by_index(roots, variables, joint)
    old = dict(change.mapping)
    found = [
        outer.get(old.get(d.index, -1)) if isinstance(d, NodeRef) else None
        for d in change.returned
    ]
    return None if any(x is None for x in found) else found


def _by_index(
    roots: Sequence[Any], variables: Sequence[Any], joint: Joint
) -> dict[int, Any]:
    """The objects of the caller that are found without a walk, by index."""
    definitions: list[Any] = [*joint.definitions, *joint.variable_definitions]
    objects = [*roots, *variables]
    return {d.index: x for d, x in zip(definitions, objects, strict=True)}


def same_value(a: Any, b: Any) -> bool:
    """Whether two raw values are the very same arrays."""
    return values_equal(a, b, is_)
