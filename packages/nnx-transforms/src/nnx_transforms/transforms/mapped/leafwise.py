"""Axes of single leaves: functions from a leaf to its axis, and trees in modules.

JAX wants to know the axes of the output before it runs a function. Where each leaf has
its own, they are known only afterwards. So the leaves leave in two lists: those that
are mapped, over the first axis, and those that are the same for all indices. The axis
of each is put in its place when they are put together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from graphcore import Static
from graphcore.authors import (
    Divided,
    Inside,
    Left,
    has_objects,
    is_object,
    key_path,
    map_settings,
    path_text,
    prefix_leaves,
    settings_of_leaves,
    settings_within,
)
from nnx_transforms.arguments import positions_of
from nnx_transforms.prefixes import Carry
from nnx_transforms.transforms.mapped.mapping import (
    MappedBody,
    axes_of_arguments,
    is_axis,
)


def is_rule(axis: Any) -> bool:
    """Whether a setting is a function from a leaf to its axis."""
    return callable(axis)


def has_rules(axes: Any) -> bool:
    """Whether there is a function among the axes."""
    return any(map(is_rule, prefix_leaves(axes)))


def without_rules(axes: Any) -> Any:
    """The axes with None in the place of each function."""
    return map_settings(lambda axis: None if is_rule(axis) else axis, axes)


def is_leafwise(axes: Any) -> bool:
    """Whether there are functions among the axes, or axes inside of a module."""
    return has_rules(axes) or Divided.within(axes)[1]


def apply_rules(axes: Any, tree: Any, name: str) -> Any:
    """Asks the functions among the axes about the leaves of a pytree.

    Args:
        axes: A tree prefix of the pytree.
        tree: The pytree, objects counting as leaves.
        name: What it is called, for messages.

    Returns:
        The prefix with trees of axes in the place of functions.

    Raises:
        TypeError: If an object stands where a function is to be asked, with its path.
        ValueError: If the one is no prefix of the other.
    """
    _refuse_objects(axes, tree, name)

    def ask(axis: Any, part: Any) -> Any:
        return jax.tree.map(axis, part) if is_rule(axis) else axis

    return map_settings(ask, axes, tree)


def arguments_with_axes(
    name: str,
    f: Callable[..., Any],
    in_axes: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    by_jax: bool = True,
) -> tuple[tuple[Any, ...], dict[str, Any], tuple[Any, ...]]:
    """The arguments of a mapped function, and the axes of the positional ones.

    Keyword arguments that have a position get the axes of it; so do arguments that the
    call leaves out, if there are axes for them.

    Args:
        name: The name of the transformation.
        f: The function.
        in_axes: Axes of the positional arguments.
        args: The positional arguments of the call.
        kwargs: Its keyword arguments.
        by_jax: Whether JAX maps the call. Then functions among the axes are asked; if
            there are none, as for `axes_of_arguments`.

    Returns:
        Both kinds of arguments, after the move, and as many tree prefixes as there are
        positional ones.

    Raises:
        ValueError: If there are not as many axes as arguments.
        TypeError: As for `apply_rules`.
    """
    count = len(in_axes) if isinstance(in_axes, tuple) else None
    due = count or 0
    # Without objects, a call that JAX itself understands means what it means to JAX.
    if due > len(args) or (kwargs and has_objects((*args, *kwargs.values()))):
        positions, rest = positions_of(f, args, kwargs, due)
        if count is None or len(positions) <= count:
            args, kwargs = positions, rest
    asks = by_jax and has_rules(in_axes)
    axes = axes_of_arguments(name, in_axes, args, by_jax and not asks)
    return args, kwargs, apply_rules(axes, args, "in_axes") if asks else axes


def _refuse_objects(axes: Any, tree: Any, name: str) -> None:
    per_leaf = settings_of_leaves(axes, tree)
    pairs = jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_object)
    for (path, leaf), axis in zip(pairs, per_leaf, strict=True):
        if axis is Carry:
            what = type(leaf).__name__ if is_object(leaf) else "value"
            raise TypeError(
                f"{name} has `Carry` for a {what} at "
                f"{path_text(key_path(path))!r}, but only `scan` threads anything "
                "through. Give an integer, None or a `StateAxes` of these."
            )
        if is_object(leaf) and is_rule(axis):
            raise TypeError(
                f"{name} has the function {axis!r} for a {type(leaf).__name__} at "
                f"{path_text(key_path(path))!r}, but a function gives the axes of "
                "arrays. Give an object an axis of its own, or a `StateAxes`."
            )


def put_together(mapped: Sequence[Any], whole: Sequence[Any], how: Static[Any]) -> Any:
    """Puts an output together that left in two lists; see `LeafwiseBody`.

    Args:
        mapped: The leaves that are mapped, over their first axis.
        whole: The others.
        how: The structure without objects, and the axis of each leaf.

    Returns:
        The output, with the mapped axes in their places.
    """
    structure, axes = how.value
    stacked, same = iter(mapped), iter(whole)
    return structure.unflatten(
        next(same) if axis is None else jnp.moveaxis(next(stacked), 0, axis)
        for axis in axes
    )


class LeafwiseBody(MappedBody):
    """The function of one index whose output has axes of its own for single leaves.

    Its axes of the output may be functions.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        # A function is for no variable.
        self.groups = tuple(without_rules([*self.groups]))

    def axes_of(self, out: Any) -> Any:
        return apply_rules(self.structure.settings.out, out, "out_axes")

    def leave_named(self, inside: Inside, out: Any) -> Left:
        axes = self.axes_of(out)
        left = super().leave_named(inside, out)
        self.check_left(left)  # before its places change
        per_leaf = settings_of_leaves(settings_within(axes, left.out), left.out)
        leaves, structure = jax.tree.flatten(left.out)
        for axis in per_leaf:
            if not (axis is None or is_axis(axis)):
                raise TypeError(
                    "out_axes must give an integer or None for each array of the "
                    f"output, but there is {axis!r}."
                )
        pairs = [*zip(leaves, per_leaf, strict=True)]
        mapped = [leaf for leaf, axis in pairs if axis is not None]
        whole = [leaf for leaf, axis in pairs if axis is None]
        left.out = mapped, whole, Static((structure, tuple(per_leaf)))
        return left

    def outputs(self, left: Left) -> Iterator[tuple[Any, Any, Any]]:
        return iter(())  # They leave in lists, over their first axis.
