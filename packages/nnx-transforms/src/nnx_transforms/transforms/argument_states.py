"""The objects among the arguments of a rule, shown as states.

Where JAX gives a derivative rule a tangent for each array, users get one for each
argument: a `State` for a graph node, a `VariableState` for a variable, and any other
pytree as it is. A variable is shown where it stands first; a second argument that
reaches it has a state without it.

What is here outlives the call that it was made for, because JAX may run a rule much
later: it holds neither objects nor arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero

from graphcore import State, VariableState
from graphcore.errors import path_text
from graphcore.joint import Joint
from graphcore.variable_impl import is_variable_type
from nnx_transforms.transforms.lifting import (
    Callee,
    Inputs,
    Inside,
    Path,
    Skeleton,
    is_object,
)

Members: TypeAlias = Sequence[tuple[Path, VariableState[Any]]]
"""The variables of one object: their paths in it and their states."""


def abstract_values(value: Any, place: Callable[[], str]) -> Any:
    """Returns the abstract values of a pytree.

    Args:
        value: A pytree of arrays.
        place: Says what it is called in messages.

    Returns:
        The pytree with JAX's abstract values.

    Raises:
        TypeError: If a leaf is none that JAX takes, with the place.
    """
    try:
        return jax.tree.map(jax.typeof, value)
    except TypeError as error:
        raise TypeError(f"{place()}: {error}") from error


def is_inexact(aval: Any) -> bool:
    """Tells whether arrays of an abstract value have tangents other than zero."""
    return bool(jnp.issubdtype(getattr(aval, "dtype", np.int32), jnp.inexact))


def zero_of(aval: Any) -> Any:
    """The symbolic zero tangent of arrays of an abstract value."""
    return SymbolicZero(aval.to_tangent_aval())


def instantiate(zero: Any) -> Any:
    """The array that a symbolic zero stands for; anything else stays as it is.

    Args:
        zero: Any leaf of a tangent.

    Returns:
        An array of zeros, of dtype `float0` where the primal is not inexact.
    """
    if type(zero) is not SymbolicZero:
        return zero
    aval: Any = zero.aval
    if aval.dtype == jax.dtypes.float0:
        return np.zeros(aval.shape, aval.dtype)
    return jnp.zeros(aval.shape, aval.dtype)


def state_of(kind: type[Any], members: Members) -> Any:
    """The state of one object.

    Args:
        kind: Its type.
        members: Its variables.

    Returns:
        A `State`; for a variable its `VariableState`, or an empty `State` if it is
        shown elsewhere.
    """
    if is_variable_type(kind) and members:
        return members[0][1]
    return State.from_flat_path(members)


@dataclass(frozen=True)
class _Spot:
    """An object in an argument: the leaf, the root, and the variables shown there."""

    leaf: int
    number: int
    kind: type[Any]
    members: tuple[int, ...]


@dataclass(frozen=True)
class _Argument:
    name: str
    structure: Any
    spots: tuple[_Spot, ...]
    plain: Any  # abstract values, None in the place of objects


class Arguments:
    """The arguments of one call, without objects and arrays.

    Args:
        inputs: The arguments, taken apart: a tuple.
        args: The same, whole.
        names: What each is called in messages.

    Attributes:
        joint: The description of the objects.
        avals: For each variable the abstract values of its value.
        inexact: The positions of the variables that have tangents.
        owners: For each variable the argument in which it stands; None if in an object
            that the function is bound to.

    Raises:
        TypeError: If a variable holds what JAX does not take, with the path.
    """

    def __init__(
        self, inputs: Inputs, args: Sequence[Any], names: Sequence[str]
    ) -> None:
        self.joint: Joint = inputs.joint
        self._skeleton: Skeleton = inputs.skeleton
        self._bound = inputs.bound
        stands = [
            next((path for path, x, _ in inputs.spots if x is root), ())
            for root in inputs.roots
        ]
        self._roots = tuple(
            (path[0] if path else None, tuple(path[1:])) for path in stands
        )
        self._names = tuple(names)
        self.owners: tuple[int | None, ...] = tuple(
            self._roots[path[0]][0] for path in self.joint.paths
        )
        self.avals = tuple(
            abstract_values(value, lambda i=i: self.place(i))  # type: ignore[misc]
            for i, value in enumerate(inputs.values())
        )
        self.inexact = frozenset(
            position
            for position, aval in enumerate(self.avals)
            if any(map(is_inexact, jax.tree.leaves(aval)))
        )
        spots = iter(inputs.skeleton.spots)
        shown: set[int] = set()
        self._arguments: list[_Argument] = []
        for arg, plain, name in zip(args, inputs.plain, names, strict=True):
            leaves, structure = jax.tree.flatten(arg, is_leaf=is_object)
            found: list[_Spot] = []
            for position, leaf in enumerate(leaves):
                if not is_object(leaf):
                    continue
                number = next(spots)[1]
                members = () if number in shown else self._members(number)
                shown.add(number)
                found.append(_Spot(position, number, type(leaf), members))
            avals = abstract_values(plain, lambda: name) if inputs.roots else None
            self._arguments.append(_Argument(name, structure, tuple(found), avals))

    def place(self, position: int) -> str:
        """Where a variable stands, in words."""
        number, *path = self.joint.paths[position]
        owner, above = self._roots[number]
        name = "the bound object" if owner is None else self._names[owner]
        return f"{path_text((*above, *path))!r} of {name}"

    def _members(self, number: int) -> tuple[int, ...]:
        return tuple(i for i, path in enumerate(self.joint.paths) if path[0] == number)

    @property
    def skeleton(self) -> Skeleton:
        """Where the objects are."""
        return self._skeleton

    @property
    def count(self) -> int:
        """The number of arguments."""
        return len(self._arguments)

    def plain_avals(self, number: int) -> Any:
        """The abstract values of one argument, None in the place of objects."""
        return self._arguments[number].plain

    @property
    def has_objects(self) -> bool:
        """Whether there is any object, be it a hidden one."""
        return bool(self.joint.definitions)

    def enter(
        self, values: Sequence[Any], plain: tuple[Any, ...]
    ) -> tuple[Inside, tuple[Any, ...]]:
        """Builds inner objects around values.

        Args:
            values: A raw value for each variable.
            plain: The arguments with None in the place of objects.

        Returns:
            The inner objects, and the arguments with them.
        """
        inside = Inside(self.joint, values)
        return inside, self._skeleton.fill(plain, inside.roots)

    def enter_call(
        self,
        args: tuple[Any, ...],
        nondiff: Container[int],
        shown: Callable[[int, Any], Any] = lambda position, value: value,
    ) -> tuple[Inside, tuple[Any, ...]]:
        """Builds inner objects, and the function's own arguments with them.

        Args:
            args: All arguments of the function, None in the place of objects; and, if
                there are objects, the values of their variables.
            nondiff: The positions of those that are not differentiated.
            shown: For the position of a variable and its value the raw value inside.

        Returns:
            The inner objects, and the arguments.
        """
        values: Sequence[Any] = ()
        if self.has_objects:
            *_, values = args
            args = args[:-1]
        plain = tuple(x for i, x in enumerate(args) if i not in nondiff)
        inside, chosen = self.enter(
            [shown(i, value) for i, value in enumerate(values)], plain
        )
        rest = iter(chosen)
        return inside, tuple(
            x if i in nondiff else next(rest) for i, x in enumerate(args)
        )

    def bind(self, callee: Callee, inside: Inside, first: int = 0) -> Any:
        """The function of a callee on the inner objects that stand for its hidden ones.

        Args:
            callee: The callee.
            inside: The inner objects.
            first: The number of hidden objects that belong to callees before it.

        Returns:
            A callable.
        """
        numbers = self._bound[first : first + len(callee.bound)]
        return callee.on([inside.roots[n] for n in numbers])

    def variable_state(self, position: int, value: Any) -> VariableState[Any]:
        """A state with the type and metadata of a variable, and any value."""
        definition = self.joint.variable_definitions[position]
        return VariableState.of(definition.kind, value)

    def states(
        self,
        value: Callable[[int], Any],
        only: Container[int] | None = None,
        new: Mapping[int, Members] | None = None,
    ) -> tuple[Any, ...]:
        """Shows values of the variables as states.

        Args:
            value: For the position of a variable its value.
            only: The positions of the variables to show; all if left out.
            new: Further variables of an object, by the number of the root. One at a
                path that another has had takes its place.

        Returns:
            For each argument its state; None if there is no object in it. In a pytree
            with objects in it, None in the place of other leaves.
        """
        new = new or {}

        def of_spot(spot: _Spot) -> Any:
            members = {
                self.joint.paths[p][1:]: self.variable_state(p, value(p))
                for p in spot.members
                if only is None or p in only
            }
            if spot.members:
                members.update(new.get(spot.number, ()))
            return state_of(spot.kind, list(members.items()))

        states: list[Any] = []
        for argument in self._arguments:
            leaves: list[Any] = [None] * argument.structure.num_leaves
            for spot in argument.spots:
                leaves[spot.leaf] = of_spot(spot)
            whole = jax.tree.unflatten(argument.structure, leaves)
            states.append(whole if argument.spots else None)
        return tuple(states)

    def with_states(
        self, plain: Sequence[Any], states: Sequence[Any]
    ) -> tuple[Any, ...]:
        """Puts the states of objects in their places among the other leaves.

        Args:
            plain: The arguments with None in the place of objects.
            states: What `states` returned.

        Returns:
            For each argument a pytree with states.
        """
        whole: list[Any] = []
        for argument, rest, state in zip(self._arguments, plain, states, strict=True):
            if not argument.spots:
                whole.append(rest)
                continue
            leaves = jax.tree.leaves(rest)
            of_objects = argument.structure.flatten_up_to(state)
            for spot in argument.spots:
                leaves.insert(spot.leaf, of_objects[spot.leaf])
            whole.append(jax.tree.unflatten(argument.structure, leaves))
        return tuple(whole)

    def take_tangents(
        self,
        given: Any,
        due: Container[int],
        rule: str,
        allowed: Container[Path] = (),
    ) -> tuple[list[Any], list[Any]]:
        """Takes apart what a rule returned: a tangent for each argument.

        Args:
            given: What it returned.
            due: The positions of the variables whose tangents must be there. Those of
                others may be, and are ignored.
            rule: What the rule is called in messages.
            allowed: Paths, the number of the root first, that may be there too.

        Returns:
            The tangents of the other leaves, None in the place of objects; and one for
            each variable, None for zero.

        Raises:
            TypeError: If a tangent is of the wrong kind, with the argument.
            ValueError: If the tangent of an object has not the paths or shapes that
                are due, with the argument and the path.
        """
        names = ", ".join(argument.name for argument in self._arguments)
        if not isinstance(given, tuple | list):
            raise TypeError(
                f"{rule} must return a tuple with one tangent for each of {names}, but "
                f"returned a {type(given).__name__}."
            )
        if len(given) != len(self._arguments):
            raise TypeError(
                f"{rule} must return a tuple with one tangent for each of {names}, but "
                f"returned {len(given)} of them."
            )
        values: list[Any] = [None] * len(self.avals)
        plain = [
            self.take_tangent(number, tangent, due, rule, values, allowed)
            for number, tangent in enumerate(given)
        ]
        return plain, values

    def take_tangent(
        self,
        number: int,
        tangent: Any,
        due: Container[int],
        rule: str,
        values: list[Any],
        allowed: Container[Path] = (),
    ) -> Any:
        """Takes apart the tangent of one argument.

        Args:
            number: The number of the argument.
            tangent: Its tangent.
            due: As for `take_tangents`.
            rule: Likewise.
            values: One for each variable; those in this argument are put there.
            allowed: As for `take_tangents`.

        Returns:
            The tangent with None in the place of objects.

        Raises:
            TypeError: As `take_tangents` does.
            ValueError: As `take_tangents` does.
        """
        argument = self._arguments[number]
        where = f"{rule} returned for {argument.name}"
        if not argument.spots:
            _check_leaves(tangent, argument.plain, where)
            return tangent
        try:
            leaves = argument.structure.flatten_up_to(tangent)
        except ValueError as error:
            raise TypeError(
                f"{where} a {type(tangent).__name__} of structure "
                f"{jax.tree.structure(tangent)}, but the argument has structure "
                f"{argument.structure}, and a State is due for each object."
            ) from error
        for spot in argument.spots:
            self._take_state(leaves[spot.leaf], spot, due, allowed, where, values)
            leaves[spot.leaf] = None
        rest = jax.tree.unflatten(argument.structure, leaves)
        _check_leaves(rest, argument.plain, where)
        return rest

    def _take_state(
        self,
        given: Any,
        spot: _Spot,
        due: Container[int],
        allowed: Container[Path],
        where: str,
        values: list[Any],
    ) -> None:
        kind = spot.kind.__name__
        if is_variable_type(spot.kind) and isinstance(given, VariableState):
            pairs = {(): given}
        elif isinstance(given, State):
            pairs = dict(given.flat_state())
        else:
            due_kind = "VariableState" if is_variable_type(spot.kind) else "State"
            raise TypeError(
                f"{where} {_kind_of(given)}, but the tangent of a {kind} must be "
                f"a {due_kind}: start from the one that the rule is given, or make "
                f"one with `{due_kind}`."
            )
        positions = {self.joint.paths[p][1:]: p for p in spot.members}
        for path, leaf in pairs.items():
            position = positions.get(path)
            if position is None:
                if (spot.number, *path) in allowed:
                    continue
                raise ValueError(
                    f"{where} a State with {path_text(path)!r}, but no tangent is due "
                    f"there: the {kind} has {_paths(positions)}."
                )
            if not isinstance(leaf, VariableState):
                raise TypeError(
                    f"{where} a State with {_kind_of(leaf)} at "
                    f"{path_text(path)!r}, where a VariableState is due: set the "
                    "`.value` of the one that is there."
                )
            if position in due and position in self.inexact:
                place = f"{where} at {path_text(path)!r}"
                _check_leaves(leaf.value, self.avals[position], place)
                values[position] = leaf.value
        missing = [
            path
            for path, p in positions.items()
            if p in due and p in self.inexact and path not in pairs
        ]
        if missing:
            raise ValueError(
                f"{where} a State without {_paths(missing)}, which the {kind} has: "
                "return a tangent for every differentiable variable, or leave the "
                "others out with a `DiffState`."
            )


def _kind_of(x: Any) -> str:
    try:
        return f"an array of type {jax.typeof(x)}"
    except TypeError:
        return f"a {type(x).__name__}"


def _paths(paths: Any) -> str:
    return ", ".join(repr(path_text(path)) for path in paths) or "no further variables"


def _check_leaves(tangent: Any, avals: Any, where: str) -> None:
    """Checks a tangent against what is due; None, or one leaf, may stand for a tree."""
    pairs: list[tuple[Any, Any]] = []
    try:
        jax.tree.map(
            lambda leaf, due: pairs.append((leaf, due)),
            tangent,
            avals,
            is_leaf=lambda x: x is None,
        )
    except ValueError as error:
        raise TypeError(
            f"{where} a tangent of structure {jax.tree.structure(tangent)}, but "
            f"{jax.tree.structure(avals)} is due."
        ) from error
    for leaf, due in pairs:
        if leaf is not None:
            for aval in jax.tree.leaves(due):
                _check_leaf(leaf, aval, where)


def _check_leaf(leaf: Any, aval: Any, where: str) -> None:
    if not is_inexact(aval):
        return
    found = leaf.aval if type(leaf) is SymbolicZero else None
    if found is None:
        try:
            found = jax.typeof(leaf)
        except TypeError:
            raise TypeError(
                f"{where} a {type(leaf).__name__}, but an array of type {aval} is due."
            ) from None
    if getattr(found, "shape", None) != aval.shape:
        raise ValueError(
            f"{where} a tangent of type {found}, but one of type {aval} is due."
        )
