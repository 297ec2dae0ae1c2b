"""What transformations share that map a function over an axis.

A mapped function leaves variables with different settings: axes for `vmap` and `scan`,
partition specs for `shard_map`. JAX wants to know them before it runs the function,
which variables it leaves is known only afterwards. The settings that can occur are
known beforehand, though, so values leave in one list a setting.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import Any, TypeAlias

import jax

from graphcore import VariableState
from graphcore.authors import (
    Body,
    Divided,
    Inside,
    Left,
    has_objects,
    is_mapping,
    is_object,
    key_path,
    plain_settings,
    prefix_leaves,
    settings_of_leaves,
    settings_within,
)
from nnx_transforms.adapters.settings import own_settings
from nnx_transforms.prefixes import StateAxes
from nnx_transforms.transforms.mapped.metadata_axes import add_axis, remove_axis

Path: TypeAlias = tuple[Any, ...]

NO_METADATA: Mapping[str, Any] = MappingProxyType({})


def is_axis(setting: Any) -> bool:
    """Whether a setting is a mapped axis."""
    return isinstance(setting, int) and not isinstance(setting, bool)


def metadata_key(transform_metadata: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a transformation tells variables, in a form that bodies are found by."""
    if not isinstance(transform_metadata, Mapping):
        raise TypeError(
            "transform_metadata is a dict, such as {nnx.PARTITION_NAME: 'layers'}, but "
            f"got {transform_metadata!r}."
        )
    return tuple(sorted(transform_metadata.items()))


class _Progress(threading.local):
    """How far the last run of a body came, in this thread.

    Attributes:
        entered: Whether the function was called.
        has_run: Whether it has returned, and what it left could be taken apart.
        returns_objects: Whether there were objects in what it returned.
        changed: What of a carry it changed, for messages.
    """

    entered = has_run = returns_objects = False
    changed: Sequence[str] = ()

    def reset(self) -> None:
        """Forgets how an earlier run ended."""
        vars(self).clear()


class MappedBody(Body):
    """The function of one index.

    Its first option, if it has any, is what `metadata_key` makes of the metadata.
    """

    settings_called = ("in_axes", "out_axes")
    # Whether errors about outputs are always ours. If not, JAX reports those of calls
    # without objects.
    always_explains = False

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._metadata = dict(*self.options[:1])
        self.progress = _Progress()

    def run(
        self, values: Sequence[Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Left:
        progress = self.progress
        progress.entered, progress.has_run = True, False
        left = super().run(values, args, kwargs)
        # No value may be kept here: that would leak tracers.
        progress.has_run = True
        progress.returns_objects = bool(left.change.returned)
        return left

    def leaving(self, left: Left) -> Iterator[tuple[str, Any, Any]]:
        """What leaves the function: what it is, for messages, its setting and value.

        Args:
            left: What the function left behind.
        """
        for w in left.written:
            yield f"The variable at {self.place(w.path)!r}", w.setting, w.value
        for path, setting, leaf in self.outputs(left):
            yield f"The output at {self.place((-1, *key_path(path)))!r}", setting, leaf

    def outputs(self, left: Left) -> Iterator[tuple[Any, Any, Any]]:
        """Path, setting and value of each array that the function returned."""
        settings = plain_settings(self.structure.settings.out)
        settings = settings_within(settings, left.out)
        return with_settings(left.out, settings_of_leaves(settings, left.out))

    def axes_of(self, out: Any) -> Any:
        """The axes of what the function returned, as a tree prefix."""
        return self.structure.settings.out

    def call(self, inside: Inside, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        settings, paths = self.structure.settings.variables, self.structure.joint.paths
        for key, name in self._metadata.items():
            for each in zip(inside.variables, settings, paths, strict=True):
                variable, setting, path = each
                if is_axis(setting):
                    remove_axis(variable, setting, name, path[1:], key)
        return super().call(inside, args, kwargs)

    def leave(self, inside: Inside, out: Any) -> Left:
        if self._metadata:
            called = self.settings_called[1], "what the function returned"
            axes = self.axes_of(out)
            out = _states_edited(add_axis, self._metadata, axes, out, called)
        return self.leave_named(inside, out)

    def leave_named(self, inside: Inside, out: Any) -> Left:
        """`leave`, for an output whose states have the mapped axis by its name."""
        if (
            self.always_explains
            or inside.roots
            or self.structure.places.has_divided
            or has_objects(out)
        ):
            called = self.settings_called[1], "what the function returned"
            settings_of_leaves(self.structure.settings.out, out, called)
        if self._metadata:
            # Variables that were left alone get back the axis that was removed.
            everything = range(len(inside.variables))
            left = inside.leave(out, self.structure.settings, everything)
            for key, name in self._metadata.items():
                for w in left.written:
                    if is_axis(w.setting):
                        add_axis(w.variable, w.setting, name, w.path[1:], key)
        return super().leave(inside, out)


# Axes in the metadata of states


def states_inside(
    metadata: tuple[Any, ...],
    axes: tuple[Any, ...],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments with states as the function of one index sees them.

    Args:
        metadata: What `metadata_key` made of the metadata.
        axes: A tree prefix for each positional argument.
        args: The positional arguments.
        kwargs: Those by name, which are mapped over their first axis.

    Returns:
        Both; the metadata of their states don't have the mapped axes, as those of
        variables don't.

    Raises:
        ValueError: If a sharding has another entry at a mapped axis, with the path.
    """
    if not metadata:
        return args, kwargs
    called = "in_axes", "the arguments"
    edit = functools.partial(_states_edited, remove_axis, dict(metadata))
    return edit(axes, args, called), edit(0, kwargs, called)


def _states_edited(
    edit: Callable[..., None],
    metadata: Mapping[str, Any],
    axes: Any,
    tree: Any,
    called: tuple[str, str],
) -> Any:
    def is_leaf(x: Any) -> bool:
        return isinstance(x, VariableState) or is_object(x)

    pairs, structure = jax.tree_util.tree_flatten_with_path(tree, is_leaf)
    if not any(isinstance(leaf, VariableState) for _, leaf in pairs):
        return tree
    settings = iter(settings_of_leaves(axes, tree, called))
    leaves = []
    for path, leaf in pairs:
        # A state may hold any pytree, all of which has one setting, or none.
        mapped = [*islice(settings, len(jax.tree.leaves(leaf, is_leaf=is_object)))]
        if isinstance(leaf, VariableState) and mapped and is_axis(mapped[0]):
            variable = leaf.to_variable()
            for key, name in metadata.items():
                edit(variable, mapped[0], name, key_path(path), key)
            leaf = VariableState.from_variable(variable)
        leaves.append(leaf)
    return structure.unflatten(leaves)


# Arguments and their axes


def with_settings(
    plain: Any, per_leaf: Sequence[Any]
) -> Iterator[tuple[Any, Any, Any]]:
    """Path, setting and value of each leaf of arguments or of an output.

    Args:
        plain: The pytree without objects.
        per_leaf: The setting of each leaf.
    """
    # As the user knows it, with the same arrays in the same order.
    bare = Divided.map(Divided.bare, plain)
    pairs = jax.tree_util.tree_flatten_with_path(bare)[0]
    for (path, leaf), setting in zip(pairs, per_leaf, strict=True):
        yield path, setting, leaf


def settings_in(leaf: Any) -> Sequence[Any]:
    """The settings that one leaf of a tree prefix stands for."""
    return leaf.settings if is_mapping(leaf) else (leaf,)


def _is_axis_or_none(leaf: Any, setting: Any) -> bool:
    # Of a bare setting JAX says whether it is one.
    is_known = setting is None or is_axis(setting)
    return not is_mapping(leaf) or (isinstance(leaf, StateAxes) and is_known)


def axes_given(
    name: str,
    in_axes: Any,
    out_axes: Any,
    called: str = "axes",
    takes: str = "integers, None, or a StateAxes",
    is_known: Callable[[Any, Any], bool] = _is_axis_or_none,
) -> tuple[Any, Any]:
    """The axes that a transformation was given, after a check.

    Args:
        name: What it is called.
        in_axes: Those of the arguments.
        out_axes: Those of the output.
        called: What they are called, behind `in_` and `out_`.
        takes: What the transformation takes, for messages.
        is_known: Whether it knows a setting in a leaf of the prefix.

    Returns:
        Both with settings of our own.

    Raises:
        TypeError: If there are settings that it does not know.
        ValueError: If an object stands where an axis is due.
    """
    in_axes, out_axes = own_settings(in_axes), own_settings(out_axes)
    for which, prefix in (("in", in_axes), ("out", out_axes)):
        for leaf in prefix_leaves(prefix):
            unknown = [x for x in settings_in(leaf) if not is_known(leaf, x)]
            if unknown:
                place = f" in {leaf!r}" if is_mapping(leaf) else ""
                raise TypeError(
                    f"{name}'s {which}_{called} takes {takes} of these, but got "
                    f"{unknown[0]!r}{place}."
                )
    return tuple(in_axes) if isinstance(in_axes, list) else in_axes, out_axes


def axes_of_arguments(
    name: str,
    in_axes: Any,
    args: Sequence[Any],
    by_jax: bool = False,
    what: str = "in_axes",
) -> tuple[Any, ...]:
    """The axes of each positional argument.

    Args:
        name: The name of the transformation.
        in_axes: As given.
        args: The positional arguments.
        by_jax: Whether JAX itself says what is wrong with a call without objects.
        what: What the transformation calls them.

    Returns:
        As many tree prefixes as arguments.

    Raises:
        ValueError: If there are not as many axes as arguments.
    """
    if not isinstance(in_axes, tuple | list):
        return (in_axes,) * len(args)
    if len(in_axes) != len(args) and not (by_jax and not has_objects(args)):
        raise ValueError(
            f"{name}'s {what} has {len(in_axes)} entries, {in_axes}, but the function "
            f"got {len(args)} arguments: give one entry for each, or one setting "
            "for all."
        )
    return tuple(in_axes)
