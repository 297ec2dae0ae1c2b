"""What a function did to its objects: the static half of what crosses the boundary.

Where JAX runs a function, values of variables come out as arrays, and everything else,
what became of the structure, as a `Change`: static, so it is returned as part of a
pytree's structure, and kept by JAX with the trace that it belongs to.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from graphcore.boundary.places import Places
from graphcore.divided.divided import joined
from graphcore.graphdef.definition import GraphDef
from graphcore.graphdef.layouts import Layout, layout_of
from graphcore.undo import overwrite_all, set_values, undoing
from graphcore.variables.bare_arrays import BareArray, are_known_arrays
from graphcore.variables.variable import set_raw_value

__all__ = ["Change"]

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
            jax.tree.map(_from_number if i in numbers else _from_constant, x)
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


def _from_constant(x: Any) -> Any:
    is_constant = isinstance(x, _CONSTANTS) or _is_literal(x)
    return jnp.asarray(x) if is_constant else x


def _from_number(x: Any) -> Any:
    return jnp.asarray(x) if _is_literal(x) else x


def _is_literal(x: Any) -> bool:
    """Whether it is of a type that JAX has for constants; these have no public name."""
    parts = type(x).__module__.split(".")
    return (parts[0], parts[-1]) == ("jax", "literals")
