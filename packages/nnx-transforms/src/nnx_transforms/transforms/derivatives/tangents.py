"""Tangents of objects: which variables have one, and how it is written.

JAX differentiates arrays in pytrees. An object takes part in that through some of its
variables; towards JAX it is a `Part`, which holds their values, and towards the user
its tangent, cotangent or gradient is a `State` over the same variables. A variable is
shown where it stands first; an object that reaches it again has a part without it.

JAX gives back what it computed in the shape of what it was given: the gradient of a
`Part` is a `Part`, its Jacobian one that holds `Part`s. So a `Part` knows the paths of
its variables, and becomes a `State` without anything else being known of the object.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import jax
from jax.custom_derivatives import SymbolicZero

from graphcore import (
    NodeRef,
    RefMap,
    State,
    VariableState,
    broadcast_prefix,
    flatten,
    state,
    unflatten,
)
from graphcore.authors import (
    Divided,
    Entry,
    definition_paths,
    given_state,
    is_object,
    is_variable_type,
    key_path,
    path_text,
    taken_state,
)
from nnx_transforms.transforms.derivatives.zeros import (
    instantiate,
    is_inexact,
    zero_of,
)
from nnx_transforms.transforms.loops.agreement import has_type

Path: TypeAlias = tuple[Any, ...]


Shown: TypeAlias = tuple[Path, Any, int]
"""A variable that is shown: its path in its object, its type and metadata, and its
number among all variables of a call."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The variables of one object that are shown, without any of its arrays.

    It is the static part of a `Part`: two are equal if they show the same.

    Args:
        type: The type of the object.
        shown: The variables.
        others: The paths of its variables that are not shown.
        form: The definition of the object, if it is to be given back as an object.
    """

    type: type[Any]
    shown: tuple[Shown, ...] = field(default=(), hash=False)
    others: tuple[Path, ...] = field(default=(), compare=False)
    form: Any = None

    @property
    def paths(self) -> tuple[Path, ...]:
        """The paths of the variables."""
        return tuple([path for path, _, _ in self.shown])

    @property
    def numbers(self) -> list[int]:
        """Their numbers."""
        return [number for _, _, number in self.shown]

    def only(self, chosen: Collection[int]) -> Layout:
        """Leaves out variables.

        Args:
            chosen: The numbers of those that stay.

        Returns:
            The layout of these.
        """
        kept = tuple([x for x in self.shown if x[2] in chosen])
        if len(kept) == len(self.shown):
            return self
        left_out = [path for path, _, number in self.shown if number not in chosen]
        return replace(self, shown=kept, others=(*self.others, *left_out))

    @property
    def order(self) -> tuple[bool, int]:
        """Sorts objects so that what is shared is made before what refers to it."""
        return type(self.form) is NodeRef, getattr(self.form, "index", 0)

    def state(self, values: Sequence[Any], made: dict[int, Any] | None = None) -> Any:
        """Writes values of the variables as users see them.

        Args:
            values: One for each variable.
            made: With a `form`, the objects that were made before; extended.

        Returns:
            A `State`; a `VariableState` if the object is a variable; what stands for
            either with objects of another library. With a `form`, an object.

        Raises:
            ValueError: If an object is due, and some of its variables are not shown.
        """
        made = {} if made is None else made
        if self.form is not None and self.form.index in made:
            return made[self.form.index]
        values = Divided.map(_shown, [*values])
        if self._is_variable:
            tangents: Any = VariableState.of(self.shown[0][1], values[0])
        else:
            kinds = [kind for _, kind, _ in self.shown]
            states = [*map(VariableState.of, kinds, values)]
            tangents = State.from_flat_path(zip(self.paths, states, strict=True))
        if self.form is None:
            return given_state(self.type, tangents)
        try:
            return unflatten(self.form, tangents, index_ref=made)
        except ValueError as error:
            raise ValueError(
                f"The derivative of a {self.type.__name__} can't be one itself: "
                f"{error} Everything in it must be differentiated, what it shares with "
                "other arguments as well. Without `as_objects`, or with True for "
                "`graph` and `graph_updates`, the derivative is a `State`."
            ) from error

    @property
    def _is_variable(self) -> bool:
        return bool(self.shown) and is_variable_type(self.type)

    def take(
        self, given: Any, where: str, at: Path, checks: Checks, seen: Given
    ) -> list[Any]:
        """Takes the state of the object apart.

        Args:
            given: What the user gave.
            where: What it was given for, as for `from_states`.
            at: The path of the object.
            checks: How strict to be.
            seen: The objects that were given before; extended.

        Returns:
            A value for each variable, None for one that is not there.

        Raises:
            TypeError: If it is no state.
            ValueError: If it lacks variables, or has too many; with the paths.
        """
        exact, partial = checks is Checks.EXACT, checks is Checks.OF_AN_OUTPUT
        if given is None and partial:
            return [None] * len(self.shown)
        if type(given) is self.type:  # an object whose variables hold the tangents
            given = self._state_of(given, seen)
        name = self.type.__name__
        given = taken_state(given)
        found: dict[Path, Any]
        if isinstance(given, VariableState) and is_variable_type(self.type):
            found = {(): given}
        elif isinstance(given, State):
            found = dict(given.flat_state())
        else:
            due = "VariableState" if self._is_variable else "State"
            owner = f"{name} at {path_text(at)!r}" if at else name
            raise TypeError(
                f"{where} {_kind_of(given)}, but a {due} is due for a {owner}: the "
                f"tangent of an object must be a {due} over its differentiated "
                f"variables. Start from one that there is, or make one with `{due}`."
            )
        kinds = {path: kind for path, kind, _ in self.shown}
        for path in [path for path in found if path not in kinds]:
            if not (partial or (path in self.others and not exact)):
                shared = [x for x, _ in _references(self.form) if path[: len(x)] == x]
                note = " The tangents of what is shared are shared, too."
                raise ValueError(
                    f"{where} a State with {_names(at, [path])}, but no tangent is "
                    f"due there: what is differentiated in the {name} is "
                    f"{_names(at, self.paths)}.{note if shared else ''}"
                )
        missing = kinds.keys() - found
        if missing and not partial:
            raise ValueError(
                f"{where} a State without {_names(at, sorted(missing, key=repr))}, "
                f"which the {name} has: give a tangent for every differentiable "
                "variable, such as zeros, or leave others out with the filter of the "
                "transform (`wrt`, `DiffState`), if it takes one."
            )
        leaves = map(found.get, kinds)
        return [x.value if isinstance(x, VariableState) else x for x in leaves]

    def _state_of(self, tangent: Any, seen: Given) -> Any:
        """The state of a tangent that is an object, without what it shares likewise."""
        alone = tangent if is_variable_type(self.type) else state(tangent)
        if self.form is None:
            return alone
        seen.pending.append((self.form.index, tangent))
        paths = [()] if alone is tangent else alone.flat_state().paths
        if [*paths] == [*self.paths]:  # the usual case; to take apart anew takes time
            return alone
        for first, given in seen.pending:
            # What was given as a state, or not at all, counts in the definition.
            for number in range(len(seen.indices), first):
                seen.indices[object()] = number
            # In a list, since a variable is no node.
            outer, rest = flatten([given], ref_index=seen.indices)
        seen.pending.clear()
        form = dict(definition_paths(outer))[0,]
        if _references(form) == _references(self.form):
            return rest.get(0, rest)
        return alone


@dataclass(slots=True)
class Given:
    """The objects that were given as tangents before, for what others share with them.

    Attributes:
        indices: What they hold, by its number.
        pending: Those that have none yet, with the number that is due.
    """

    indices: RefMap[Any, int] = field(default_factory=RefMap)
    pending: list[tuple[int, Any]] = field(default_factory=list)


def _references(form: Any) -> list[tuple[Path, int]]:
    if form is None:
        return []
    return [(path, x.index) for path, x in definition_paths(form) if type(x) is NodeRef]


class Checks(enum.Enum):
    """How strictly the tangents of objects are checked.

    `EXACT`: as JAX checks tangents. `OF_A_RULE`: there may be some for variables that
    are not differentiated, and None, or one leaf, may stand for a pytree.
    `OF_AN_OUTPUT`: there may be any, and what is missing is zero.
    """

    EXACT = 0
    OF_A_RULE = 1
    OF_AN_OUTPUT = 2


@jax.tree_util.register_dataclass
@dataclass(slots=True, eq=False)
class Part:
    """What is shown of an object; a pytree.

    Args:
        layout: Which variables it has.
        values: Their raw values, or their tangents or derivatives.
    """

    layout: Layout = field(metadata={"static": True})
    values: list[Any]


def is_part(x: Any) -> bool:
    """Tells whether a leaf of a pytree stands for an object."""
    return type(x) is Part


def has_parts(tree: Any) -> bool:
    """Tells whether there are parts in a pytree."""
    return any(map(is_part, jax.tree.leaves(tree, is_leaf=is_part)))


def map_parts(function: Callable[[Part], Any], tree: Any) -> Any:
    """Replaces the parts in a pytree.

    Args:
        function: From a part to what takes its place.
        tree: The pytree.

    Returns:
        The new pytree.
    """
    return jax.tree.map(
        lambda x: function(x) if type(x) is Part else x, tree, is_leaf=is_part
    )


def layouts_of(
    entry: Entry, as_objects: bool = False, numbers: Sequence[int] | None = None
) -> list[Layout]:
    """The layout of each object that entered a call, each variable in the first.

    Args:
        entry: The call.
        as_objects: Whether derivatives are to be objects, and not states.
        numbers: The number of each variable; None for its position.

    Returns:
        One layout a root.
    """
    joint = entry.joint
    of_root: list[list[Shown]] = [[] for _ in entry.roots]
    numbers = range(len(joint.paths)) if numbers is None else numbers
    for path, definition, number in zip(
        joint.paths, joint.variable_definitions, numbers, strict=True
    ):
        of_root[path[0]].append((path[1:], definition.kind, number))
    return [
        Layout(type(root), tuple(shown), form=form if as_objects else None)
        for root, shown, form in zip(
            entry.roots, of_root, joint.definitions, strict=True
        )
    ]


def to_parts(
    tree: Any, entry: Entry, layouts: Sequence[Layout], chosen: Collection[int]
) -> Any:
    """Replaces the objects in a pytree by their parts.

    Args:
        tree: The pytree.
        entry: The call that they entered.
        layouts: Their layouts, as `layouts_of` gives them.
        chosen: The numbers of the variables to show.

    Returns:
        The pytree with parts.
    """
    if not entry.roots:
        return Divided.within(tree)[0]
    pending = {id(root): x for root, x in zip(entry.roots, layouts, strict=True)}

    def part_of(x: Any) -> Any:
        if not is_object(x):
            return x
        layout = pending[id(x)]
        again = layout.form and NodeRef(layout.type, layout.order[1])
        pending[id(x)] = Layout(layout.type, form=again)
        layout = layout.only(chosen)
        return Part(layout, [entry.raw[number] for number in layout.numbers])

    return Divided.within(jax.tree.map(part_of, tree, is_leaf=is_object))[0]


def take_parts(tree: Any) -> tuple[Any, dict[int, Any]]:
    """Takes the parts out of a pytree.

    Args:
        tree: A pytree with parts.

    Returns:
        The pytree with None in their places; and their values by number.
    """
    values: dict[int, Any] = {}

    def take(part: Part) -> None:
        values.update(zip(part.layout.numbers, part.values, strict=True))

    return map_parts(take, tree), values


def to_states(tree: Any) -> Any:
    """Replaces all parts in a pytree by states.

    Args:
        tree: A pytree that JAX computed; parts may hold parts.

    Returns:
        The pytree with states.
    """
    tree = Divided.map(lambda x: _shown(Divided(to_states(x.arrays), x.frame)), tree)
    parts = filter(is_part, jax.tree.leaves(tree, is_leaf=is_part))
    made: dict[int, Any] = {}  # What is shared is so in the derivative.
    states = {
        id(part): part.layout.state(to_states(part.values), made)
        for part in sorted(parts, key=lambda part: part.layout.order)
    }
    return map_parts(lambda part: states[id(part)], tree)


def _shown(tangent: Divided) -> Any:
    """The tangent of a pytree, with None where there is none: of what is inexact."""
    no_dtype = jax.dtypes.float0
    return tangent.only(lambda x: getattr(x, "dtype", None) != no_dtype).bare()


def from_states(
    tree: Any,
    like: Any,
    where: str,
    checks: Checks = Checks.EXACT,
    seen: Given | None = None,
) -> Any:
    """Replaces the states that a user gave by parts, and checks them.

    Args:
        tree: The tangents: a pytree with states in the place of objects.
        like: The abstract values of what they are tangents of: the same pytree with
            parts in it.
        where: What they were given for, for messages: a sentence without an end.
        checks: How strict to be.
        seen: The objects that were given with them, before; extended.

    Returns:
        The pytree with parts. Leaves outside of objects are as they were given.

    Raises:
        TypeError: If there is no state where one is due, or the tangent of a variable
            has another structure or dtype.
        ValueError: If a state lacks variables or has too many, or the tangent of a
            variable has another shape; with the paths.
    """
    pairs, structure = jax.tree_util.tree_flatten_with_path(like, is_leaf=is_whole)
    if not any(is_whole(x) for _, x in pairs):
        return tree
    try:
        given = structure.flatten_up_to(tree)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{where} a {type(tree).__name__}, but {structure} is due, with a State in "
            f"the place of each object: {error}"
        ) from None

    seen = Given() if seen is None else seen

    def found(path: Path, due: Any, value: Any) -> Any:
        if not is_part(due):
            if Divided.matches(due) and value is not None:
                value = from_states(value, due.bare(), where, checks, seen)
                if checks is Checks.EXACT and not Divided.matches(value):
                    _check_statics(due, value, where, path)
            return _like(due, value)
        layout = due.layout
        values = layout.take(value, where, path, checks, seen)
        values = [_like(aval, x) for aval, x in zip(due.values, values, strict=True)]
        for inner, x, aval in zip(layout.paths, values, due.values, strict=True):
            if checks is not Checks.OF_AN_OUTPUT:  # JAX checks it
                place = f"{where} at {path_text((*path, *inner))!r}"
                check_tangent(x, aval, place, checks)
        return Part(layout, values)

    triples = zip(pairs, given, strict=True)
    return structure.unflatten([found(key_path(p), x, y) for (p, x), y in triples])


def _like(due: Any, given: Any) -> Any:
    """Divides the tangent of what is divided; None stands for zeros."""
    if not Divided.matches(due) or given is None or Divided.matches(given):
        return given
    found = due.like(given)
    pairs = zip(found.arrays, due.arrays, strict=True)
    arrays = [instantiate(zero_of(aval)) if x is None else x for x, aval in pairs]
    return Divided(arrays, due.frame)


def _check_statics(due: Any, given: Any, where: str, at: Path) -> None:
    """Refuses the tangent of a number that is static in a pytree: it would be lost."""
    structure = due.frame.structure
    places = structure.unflatten(range(structure.num_leaves))
    paths = jax.tree_util.tree_leaves_with_path(places)
    for (path, i), leaf in zip(paths, structure.flatten_up_to(given), strict=True):
        if i not in due.frame.given and is_inexact(leaf):
            raise TypeError(
                f"{where} {_kind_of(leaf)} at {path_text((*at, *key_path(path)))!r}, "
                "where nothing is differentiated: a number of Python's is static "
                "there. Make it an array, or give None."
            )


def is_whole(x: Any) -> bool:
    """Tells whether a leaf stands for an object, or for a pytree that is divided."""
    return is_part(x) or Divided.matches(x)


def check_tangent(tangent: Any, due: Any, where: str, checks: Checks) -> None:
    """Checks a tangent.

    Args:
        tangent: A pytree of arrays.
        due: The abstract values of what it is a tangent of.
        where: What it was given for, as for `from_states`.
        checks: How strict to be.

    Raises:
        TypeError: If it has another structure than is due, or another dtype.
        ValueError: If it has another shape.
    """
    exact = checks is Checks.EXACT
    found, expected = map(jax.tree.structure, (tangent, due))
    try:
        if exact and found != expected:
            raise ValueError
        leaves = broadcast_prefix(tangent, due, lambda x: x is None)
    except ValueError:
        raise TypeError(
            f"{where} a tangent of structure {found}, but {expected} is due."
        ) from None
    for leaf, aval in zip(leaves, jax.tree.leaves(due), strict=True):
        if exact or (leaf is not None and is_inexact(aval)):
            _check_leaf(leaf, aval.to_tangent_aval(), where, exact)


def _check_leaf(leaf: Any, due: Any, where: str, exact: bool) -> None:
    try:
        found: Any = leaf.aval if type(leaf) is SymbolicZero else jax.typeof(leaf)
    except TypeError:
        raise TypeError(
            f"{where} a {type(leaf).__name__}, but an array of type {due} is due."
        ) from None
    text = f"{where} a tangent of type {found}, but one of type {due} is due: the"
    if found.shape != due.shape:
        raise ValueError(f"{text} shape differs.")
    if exact and found.dtype != due.dtype:
        raise TypeError(f"{text} dtype differs.")


def _names(at: Path, paths: Sequence[Path]) -> str:
    return ", ".join(repr(path_text((*at, *path))) for path in paths) or "nothing"


def _kind_of(x: Any) -> str:
    is_array = has_type(x)
    return f"an array of type {jax.typeof(x)}" if is_array else f"a {type(x).__name__}"
