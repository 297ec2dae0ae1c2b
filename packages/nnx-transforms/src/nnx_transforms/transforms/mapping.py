"""What mapping transformations share: values in groups, one a setting.

A mapped function leaves variables with different settings: axes for `vmap` and `scan`,
partition specs for `shard_map`. JAX wants to know them before it runs the function,
which variables it leaves is known only afterwards. The settings that can occur are
known beforehand, though, so values leave in one list a setting.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import jax
import numpy as np

from graphcore import PrefixMapping, broadcast_prefix
from graphcore.errors import path_text
from nnx_transforms.metadata_axes import PARTITION_NAME, add_axis, remove_axis
from nnx_transforms.transforms.lifting import (
    Callee,
    Inputs,
    Inside,
    Left,
    Outcome,
    Path,
    is_object,
    remove_prefixes,
)

__all__ = [
    "MappedBody",
    "Note",
    "Static",
    "check_plain_prefix",
    "is_axis",
    "is_mapping",
    "place_text",
    "plain_prefix",
    "prefix_leaves",
    "without_objects",
]


def is_mapping(prefix: Any) -> bool:
    """Whether a prefix answers for each variable."""
    return isinstance(prefix, PrefixMapping)


def is_axis(setting: Any) -> bool:
    """Whether a setting is a mapped axis."""
    return isinstance(setting, int) and not isinstance(setting, bool)


def prefix_leaves(prefix: Any, is_leaf: Callable[[Any], bool] = is_mapping) -> Any:
    """The settings in a tree prefix, None and those of mappings among them."""
    found: list[Any] = []
    for leaf in jax.tree.leaves(prefix, is_leaf=lambda p: p is None or is_leaf(p)):
        found += leaf.settings if is_mapping(leaf) else [leaf]
    return found


def plain_prefix(prefix: Any) -> Any:
    """A tree prefix for the pytree without objects."""
    return remove_prefixes(prefix, is_mapping)


def check_plain_prefix(prefix: Any, tree: Any, name: str) -> None:
    """Makes sure that mappings from filters stand for objects only.

    Args:
        prefix: A tree prefix.
        tree: The pytree with objects.
        name: What the pytree is called.

    Raises:
        ValueError: If a mapping stands for an array, with the path.
    """
    leaves = jax.tree.leaves(prefix, is_leaf=lambda p: p is None or is_mapping(p))
    if not any(is_mapping(leaf) for leaf in leaves):
        return
    per_leaf = broadcast_prefix(
        prefix,
        tree,
        prefix_is_leaf=lambda p: p is None or is_mapping(p),
        tree_is_leaf=is_object,
    )
    pairs = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_object)[0]
    for (path, leaf), found in zip(pairs, per_leaf, strict=True):
        if is_mapping(found) and not is_object(leaf):
            raise ValueError(
                f"{found!r} says what happens to the variables of an object, but what "
                f"stands at {name}{jax.tree_util.keystr(path)} is a "
                f"{type(leaf).__name__}: give it a setting of its own."
            )


def place_text(inputs: Inputs, path: Path) -> str:
    """Where a variable is, for messages.

    Args:
        inputs: The arguments of the call.
        path: As in `Written`.

    Returns:
        The path from the arguments or the output.
    """
    number, *rest = path
    if number < 0:
        return path_text(("output" if number == -1 else "detached", *rest))
    for (place, _, _), (_, spot) in zip(
        inputs.spots, inputs.skeleton.spots, strict=True
    ):
        if spot == number:
            return path_text((*place, *rest))
    return path_text(("self", *rest))


def without_objects(inputs: Inputs) -> Inputs:
    """What is known of arguments, without the arguments themselves."""
    return dataclasses.replace(
        inputs,
        plain=None,
        roots=[],
        plans=[],
        spots=[(path, None, prefix) for path, _, prefix in inputs.spots],
    )


@dataclass(frozen=True)
class Static:
    """An argument that is part of the structure of the arguments.

    Args:
        value: Anything hashable.
    """

    value: Any


jax.tree_util.register_static(Static)


@dataclass(frozen=True)
class Note:
    """What is remembered of a written variable after its trace has ended.

    Args:
        path: Where it is, as in `Written`.
        prefix: Its setting.
        rank: The least number of axes of an array in its value.
        varying: The mesh axes over which its value varies, where JAX tells.
    """

    path: Path
    prefix: Any
    rank: int
    varying: frozenset[Any]


class MappedBody:
    """The user's function between the objects' values on the way in and out.

    Args:
        callee: The function.
        inputs: Its arguments; only their structure is used.
        out_prefix: The prefix of its output.
        transform_metadata: What to tell variables about a mapped axis.
        keep: Variables that count as written in any case.

    Attributes:
        settings: The distinct settings with which values can leave.
        notes: What the function wrote when it last returned; None before.
        returns_objects: Whether objects were in the output then.
    """

    def __init__(
        self,
        callee: Callee,
        inputs: Inputs,
        out_prefix: Any,
        transform_metadata: Mapping[str, Any],
        keep: Collection[int] = (),
    ) -> None:
        self._callee = callee
        self.inputs = inputs
        self._out_prefix = out_prefix
        self._metadata = transform_metadata
        self._keep = keep
        given = chain.from_iterable(
            prefix.settings if is_mapping(prefix) else [prefix]
            for prefix in inputs.root_prefixes
        )
        found = [*given, *inputs.prefixes, *prefix_leaves(out_prefix)]
        self.settings = tuple(dict.fromkeys(map(self.setting, found)))
        self.notes: list[Note] | None = None
        self.returns_objects = False

    def run(self, values: Sequence[Any], plain: Any) -> Left:
        """Runs the function, where JAX calls it.

        Args:
            values: A raw value for each variable of the inputs.
            plain: The positional arguments, and a dict of the others behind them.

        Returns:
            What it left behind.
        """
        self.notes = None
        inputs = self.inputs
        inside, function, (*args, kwargs) = inputs.enter(self._callee, values, plain)
        args = [x.value if isinstance(x, Static) else x for x in args]
        tells = PARTITION_NAME in self._metadata
        if tells:
            for variable, prefix, path in zip(
                inside.variables, inputs.prefixes, inputs.joint.paths, strict=True
            ):
                if is_axis(prefix):
                    remove_axis(variable, prefix, self._metadata, path[1:])
        seen = self.entered(inside)
        out = function(*args, **kwargs)
        self.returned(seen, args, out)
        check_plain_prefix(self._out_prefix, out, "output")
        prefixes = inputs.root_prefixes, inputs.prefixes, self._out_prefix
        if tells:
            # Variables that were left alone get back the axis that was removed.
            everything = inside.leave(out, *prefixes, keep=range(len(values)))
            for w in everything.written:
                if is_axis(w.prefix):
                    add_axis(w.variable, w.prefix, self._metadata, w.path[1:])
        left = inside.leave(out, *prefixes, keep=self._keep)
        # No value may be kept here: that would leak tracers.
        self.notes = [
            Note(w.path, w.prefix, _least_rank(w.value), _varying(w.value))
            for w in left.written
        ]
        self.returns_objects = bool(left.outcome.returned)
        return left

    def entered(self, inside: Inside) -> Any:
        """Called before the function runs, to remember what `returned` checks."""

    def returned(self, seen: Any, args: Sequence[Any], out: Any) -> None:
        """Called when the function has run, before what it left is taken apart.

        Args:
            seen: What `entered` returned.
            args: The positional arguments, with inner objects.
            out: The output, with inner objects.
        """

    @staticmethod
    def setting(prefix: Any) -> Any:
        """What a prefix of a variable says to JAX."""
        return prefix

    def divide(self, left: Left) -> tuple[list[list[Any]], Outcome]:
        """Divides what the function wrote by setting.

        Args:
            left: What it left behind.

        Returns:
            The values, one list a setting; and the outcome in the order of these.
        """
        numbers: list[list[int]] = [[] for _ in self.settings]
        for number, written in enumerate(left.written):
            group = self.settings.index(self.setting(written.prefix))
            numbers[group].append(number)
        values = left.values()
        outcome = left.outcome.select(list(chain.from_iterable(numbers)))
        return [[values[i] for i in group] for group in numbers], outcome

    def place(self, path: Path) -> str:
        """Where a variable is, for messages."""
        return place_text(self.inputs, path)

    def blame_values(self, values: Sequence[Any], error: BaseException) -> None:
        """Says which variable holds what JAX does not accept.

        Raises:
            TypeError: If a mapped variable does, with the path.
        """
        for path, prefix, value in zip(
            self.inputs.joint.paths, self.inputs.prefixes, values, strict=True
        ):
            for leaf in jax.tree.leaves(value if prefix is not None else None):
                try:
                    jax.typeof(leaf)
                except TypeError:
                    raise TypeError(
                        f"The variable at {self.place(path)!r} holds a value of type "
                        f"{type(leaf).__name__}, which JAX cannot map: {leaf!r}. Keep "
                        "it as a static attribute, or give the variable the axis None."
                    ) from error


def _least_rank(value: Any) -> int:
    return min((np.ndim(leaf) for leaf in jax.tree.leaves(value)), default=0)


def _varying(value: Any) -> frozenset[Any]:
    found: set[Any] = set()
    for leaf in jax.tree.leaves(value):
        try:
            kind = jax.typeof(leaf)
        except TypeError:
            continue
        manual = getattr(kind, "manual_axis_type", None)
        # The attribute of older versions of JAX is deprecated in newer ones.
        found |= getattr(kind, "vma", frozenset()) if manual is None else manual.varying
    return frozenset(found)
