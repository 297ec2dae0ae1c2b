"""Tangents of objects: which variables have one, and how it is written.

JAX differentiates arrays in pytrees. An object takes part in that through some of its
variables, its *differentiated part*; towards JAX it is a `Part`, which holds their
values, and towards the user the tangent, cotangent or gradient of the object is a
`State` over the same variables.

JAX gives back what it computed in the shape of what it was given: the gradient of a
`Part` is a `Part`, its Jacobian one that holds `Part`s. So a `Part` knows the paths of
its variables, and becomes a `State` without anything else being known of the object.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import numpy as np

from graphcore import RefMap, State, VariableDef, VariableState, is_variable
from graphcore.errors import path_text
from graphcore.plans import plan_of
from graphcore.state import nested_from_flat
from nnx_transforms.transforms.lifting import is_object, key_path

Path: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True, eq=False, slots=True)
class PartLayout:
    """Which variables of one object are differentiated.

    Args:
        paths: Their paths in the object.
        definitions: Their definitions.
        of_variable: Whether the object is a variable itself.
    """

    paths: tuple[Path, ...]
    definitions: tuple[VariableDef[Any], ...]
    of_variable: bool

    def state(self, values: Sequence[Any]) -> Any:
        """Writes values of the variables as users see them.

        Args:
            values: One for each variable.

        Returns:
            A `State`; a `VariableState` if the object is a variable.
        """
        if self.of_variable and self.paths:
            (definition,), (value,) = self.definitions, values
            return VariableState.of(definition.kind, value)
        return State.lazily(
            lambda: nested_from_flat(
                (path, VariableState.of(d.kind, value))
                for path, d, value in zip(
                    self.paths, self.definitions, values, strict=True
                )
            )
        )


class Part:
    """The differentiated part of an object; a pytree.

    Args:
        layout: Which variables it has.
        values: Their raw values, or their tangents or derivatives.
    """

    __slots__ = ("layout", "values")

    def __init__(self, layout: PartLayout, values: list[Any]) -> None:
        self.layout = layout
        self.values = values

    def __repr__(self) -> str:
        return f"Part({[path_text(path) for path in self.layout.paths]})"


jax.tree_util.register_pytree_node(
    Part,
    lambda part: (part.values, part.layout),
    lambda layout, values: Part(layout, list(values)),
)


def is_part(x: Any) -> bool:
    """Tells whether a leaf of a pytree stands for an object."""
    return type(x) is Part


def has_parts(tree: Any) -> bool:
    """Tells whether there are parts in a pytree."""
    return any(map(is_part, jax.tree.leaves(tree, is_leaf=is_part)))


def to_states(tree: Any) -> Any:
    """Replaces all parts in a pytree by states.

    Args:
        tree: A pytree that JAX computed; parts may hold parts.

    Returns:
        The pytree with states.
    """
    return jax.tree.map(
        lambda x: x.layout.state(to_states(x.values)) if type(x) is Part else x,
        tree,
        is_leaf=is_part,
    )


def without_parts(tree: Any) -> Any:
    """Replaces all parts in a pytree by None."""
    return jax.tree.map(lambda x: None if type(x) is Part else x, tree, is_leaf=is_part)


def parts_of_outputs(out: Any) -> Any:
    """Replaces the objects that a function returned by their inexact variables.

    Args:
        out: What it returned.

    Returns:
        The pytree with a part for each object. A variable that was reached before has
        no second place.
    """
    known: RefMap[Any, None] = RefMap()

    def part_of(x: Any) -> Any:
        if not is_object(x):
            return x
        plan = plan_of(x)
        chosen = []
        for i, (variable, value) in enumerate(
            zip(plan.variables, plan.values(), strict=True)
        ):
            if variable not in known and any(map(_is_inexact, jax.tree.leaves(value))):
                chosen.append((i, value))
            known[variable] = None
        layout = PartLayout(
            tuple(plan.layout.paths[i] for i, _ in chosen),
            tuple(plan.layout.definitions[i] for i, _ in chosen),
            is_variable(x),
        )
        return Part(layout, [value for _, value in chosen])

    return jax.tree.map(part_of, out, is_leaf=is_object)


def _is_inexact(x: Any) -> bool:
    try:
        return bool(jax.dtypes.issubdtype(jax.typeof(x).dtype, np.inexact))
    except (TypeError, AttributeError):  # not a JAX type, or one without a dtype
        return False


def from_states(tree: Any, like: Any, what: str) -> Any:
    """Replaces the states that a user gave by parts, and checks them.

    Args:
        tree: The tangents: a pytree with states in the place of objects.
        like: What they are tangents of: the same pytree with parts, arrays or abstract
            values in them.
        what: What they are, for messages: "tangent".

    Returns:
        The pytree with parts.

    Raises:
        TypeError: If there is no state where one is due, or the tangent of a variable
            has another structure or dtype.
        ValueError: If a state lacks variables or has too many, or the tangent of a
            variable has another shape; with the paths.
    """
    due, structure = jax.tree.flatten(like, is_leaf=is_part)
    if not any(map(is_part, due)):
        return tree
    try:
        given = structure.flatten_up_to(tree)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"The {what}s must have the structure of the values, with a State in the "
            f"place of each object: {error}"
        ) from None
    pairs = jax.tree_util.tree_flatten_with_path(like, is_leaf=is_part)[0]
    replaced = [
        Part(x.layout, _values_of(y, x, key_path(path), what)) if is_part(x) else y
        for (path, x), y in zip(pairs, given, strict=True)
    ]
    return jax.tree.unflatten(structure, replaced)


def _values_of(given: Any, part: Part, place: Path, what: str) -> list[Any]:
    """The tangents of the variables of one object."""
    paths = part.layout.paths
    if part.layout.of_variable and paths:
        due: type[Any] = VariableState
        found = {(): given}
    else:
        due = State
        found = dict(given.flat_state()) if isinstance(given, State) else {}
    if not isinstance(given, due):
        raise TypeError(
            f"The {what} of the object at {path_text(place)!r} must be a "
            f"{due.__name__} over its differentiated variables, but it is a "
            f"{type(given).__name__}."
        )
    missing = [path for path in paths if path not in found]
    unknown = [path for path in found if path not in set(paths)]
    if missing or unknown:
        lines = [f"  {path_text((*place, *path))}: missing" for path in missing]
        lines += [
            f"  {path_text((*place, *path))}: not differentiated" for path in unknown
        ]
        raise ValueError(
            f"The {what} of the object at {path_text(place)!r} must have exactly its "
            "differentiated variables:\n" + "\n".join(lines)
        )
    tangents = []
    for path, value in zip(paths, part.values, strict=True):
        leaf = found[path]
        tangent = leaf.value if isinstance(leaf, VariableState) else leaf
        _check_tangent(tangent, value, (*place, *path), what)
        tangents.append(tangent)
    return tangents


def _check_tangent(tangent: Any, value: Any, path: Path, what: str) -> None:
    leaves, structure = jax.tree.flatten(tangent)
    due_leaves, due_structure = jax.tree.flatten(value)
    start = f"The {what} of the variable at {path_text(path)!r} must have the "
    if structure != due_structure:
        raise TypeError(f"{start}structure {due_structure}, but has {structure}.")
    for leaf, due in zip(leaves, due_leaves, strict=True):
        shape, dtype = np.shape(due), _dtype(due)
        if not jax.dtypes.issubdtype(dtype, np.inexact):
            dtype = jax.dtypes.float0
        if np.shape(leaf) != shape:
            raise ValueError(f"{start}shape {shape}, but has {np.shape(leaf)}.")
        if _dtype(leaf) != dtype:
            raise TypeError(f"{start}dtype {np.dtype(dtype)}, but has {_dtype(leaf)}.")


def _dtype(x: Any) -> Any:
    found = getattr(x, "dtype", None)
    return jax.typeof(x).dtype if found is None else found
