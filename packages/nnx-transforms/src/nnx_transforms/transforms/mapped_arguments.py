"""How the arguments of a mapped function meet their axes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax

from nnx_transforms.arguments import positions_of
from nnx_transforms.prefixes import StateAxes
from nnx_transforms.transforms.lifting import is_object
from nnx_transforms.transforms.mapping import (
    check_plain_prefix,
    is_axis,
    is_mapping,
    prefix_leaves,
)

__all__ = [
    "NO_METADATA",
    "axes_of_arguments",
    "check_axes",
    "check_plain_call",
    "has_objects",
    "updated_by",
    "with_positions",
]

NO_METADATA: Mapping[str, Any] = MappingProxyType({})


def updated_by(f: Any) -> tuple[str, ...]:
    """What `functools.wraps` shall copy: not the attributes of an object."""
    return () if is_object(f) else functools.WRAPPER_UPDATES


def has_objects(tree: Any) -> bool:
    """Whether a graph node or variable is among the leaves of a pytree."""
    return any(is_object(leaf) for leaf in jax.tree.leaves(tree, is_leaf=is_object))


def check_axes(name: str, in_axes: Any, out_axes: Any) -> None:
    """Makes sure that what is given for objects are axes.

    Args:
        name: The name of the transformation.
        in_axes: As given.
        out_axes: As given.

    Raises:
        TypeError: If a setting of a `StateAxes` is no axis.
    """
    for which, axes in (("in_axes", in_axes), ("out_axes", out_axes)):
        for leaf in jax.tree.leaves(axes, is_leaf=is_mapping):
            if not is_mapping(leaf):
                continue
            for setting in prefix_leaves(leaf):
                if not isinstance(leaf, StateAxes) or not (
                    setting is None or is_axis(setting)
                ):
                    raise TypeError(
                        f"{name}'s {which} takes integers, None, or a StateAxes of "
                        f"these, but got {setting!r} in {leaf!r}."
                    )


def with_positions(
    f: Callable[..., Any], in_axes: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Gives keyword arguments the axes of their positions, where they have one.

    Args:
        f: The function.
        in_axes: Axes of the positional arguments.
        args: The positional arguments of the call.
        kwargs: Its keyword arguments.

    Returns:
        Both, after the move.
    """
    if not kwargs:
        return args, kwargs
    count = len(in_axes) if isinstance(in_axes, tuple) else None
    # Without objects, where JAX has a meaning for the call, that is it.
    if not (count is not None and count > len(args)) and not has_objects(
        (args, kwargs)
    ):
        return args, kwargs
    positions, rest = positions_of(f, args, kwargs)
    if count is not None and len(positions) > count:
        return args, kwargs
    return positions, rest


def check_plain_call(
    name: str, in_axes: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Makes sure that no `StateAxes` stands for what is no object.

    Args:
        name: The name of the transformation.
        in_axes: As given.
        args: The positional arguments, without objects.
        kwargs: The others.

    Raises:
        ValueError: If one does, with the path.
    """
    if any(map(is_mapping, jax.tree.leaves(in_axes, is_leaf=is_mapping))):
        axes = axes_of_arguments(name, in_axes, args)
        check_plain_prefix(axes, (*args, kwargs), "argument ")


def axes_of_arguments(name: str, in_axes: Any, args: Sequence[Any]) -> tuple[Any, ...]:
    """The axes of each positional argument, and of the dict of the others.

    Args:
        name: The name of the transformation.
        in_axes: As given.
        args: The positional arguments.

    Returns:
        A tree prefix for `(*args, kwargs)`.

    Raises:
        ValueError: If there are not as many axes as arguments.
    """
    if not isinstance(in_axes, tuple):
        return (*[in_axes] * len(args), 0)
    if len(in_axes) != len(args):
        raise ValueError(
            f"{name}'s in_axes has {len(in_axes)} entries, {in_axes}, but the function "
            f"got {len(args)} arguments: give one entry for each, or one setting "
            "for all."
        )
    return (*in_axes, 0)
