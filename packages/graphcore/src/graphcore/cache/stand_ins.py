"""What a plan records in the place of arrays, so that it holds for others as well.

A step that writes a bare array puts another object where the plan saw one. That is no
change of structure, so the plan compares with something that equals any array.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax

from graphcore.content import is_immutable, static_key
from graphcore.content_key import same_content, snapshot
from graphcore.divided.divided import divide
from graphcore.divided.frames import Frame
from graphcore.nodes.registry import (
    NodeImpl,
    Pairs,
    PytreeNodeImpl,
    find_impl,
    nodes_as_in_jax,
)
from graphcore.variables.bare_arrays import FEW, are_arrays, is_array, is_frozen


class _AnyArray:
    """Equals everything; the plan checks by itself whether it is an array."""

    # For every array at every call: `id` is written in C, and what it returns is true.
    __eq__: Any = id
    __hash__ = None  # type: ignore[assignment]


ANY_ARRAY = _AnyArray()


class Recorded:
    """Equals a node that has the same children, as far as it is flattened.

    Args:
        node: The node; it is not kept.
        impl: How it is handled.
        pairs: Its children with their keys, or what stands for them.
        metadata: What else there is to it.
    """

    __slots__ = ("_kept", "_key", "impl", "kind", "pairs")

    def __init__(self, node: Any, impl: NodeImpl, pairs: Pairs, metadata: Any) -> None:
        self.kind, self.impl = type(node), impl
        fixed = is_immutable(metadata)
        self._key = static_key(metadata) if fixed else None
        self._kept = None if fixed else snapshot(metadata)
        self.pairs = [(key, child) for key, child in pairs]

    def __eq__(self, other: object) -> bool:
        if type(other) is not self.kind:
            return False
        pairs, metadata = self.impl.flatten(other)
        return (
            len(pairs) == len(self.pairs)
            and self._has(metadata)
            and all(
                key == due and _stands_for(recorded, child)
                for (key, child), (due, recorded) in zip(pairs, self.pairs, strict=True)
            )
        )

    __hash__ = None  # type: ignore[assignment]

    def _has(self, metadata: Any) -> bool:
        if self._key is None:
            return same_content(self._kept, metadata)
        return bool(self._key == static_key(metadata))


class RecordedTree:
    """Equals a pytree that has the same structure around its arrays, as JAX sees it.

    Args:
        kind: Its type.
        frame: What there is around its arrays.
    """

    __slots__ = ("frame", "kind")

    def __init__(self, kind: type[Any], frame: Frame) -> None:
        self.kind, self.frame = kind, frame

    def __eq__(self, other: object) -> bool:
        frame = self.frame
        if type(other) is not self.kind:
            return False
        if frame.is_fixed or frame.is_filtered:  # It may be known by itself.
            found = divide(other)
            return found.frame == frame and are_arrays(found.arrays)
        return frame.is_of(other)

    __hash__ = None  # type: ignore[assignment]


def _as_jax_has_it(tree: Any, inside: set[int]) -> RecordedTree | None:
    """What stands for a pytree of arrays in which there are no objects.

    Args:
        tree: A pytree.
        inside: As for `stand_in`.

    Returns:
        None if JAX takes it apart in another way than is done here, or it holds no
        arrays, or numbers, which are none here.
    """
    nodes = nodes_as_in_jax(tree)
    if nodes is None:
        return None
    if {*map(type, nodes)} <= {dict, list} and len(jax.tree.leaves(tree)) <= FEW:
        return None  # They are compared in C.
    try:
        whole = divide(tree)
    except (TypeError, ValueError):  # what is static can't be hashed
        return None
    if not whole.arrays or not are_arrays(whole.arrays):
        return None
    if type(tree) in (dict, list):
        children = [child for _, child in items_of(tree)]
        # What can't change is known by itself: it takes no look inside.
        if any(is_frozen(x) and divide(x).frame.is_fixed for x in children):
            return None
    inside.update(map(id, nodes))
    return RecordedTree(type(tree), whole.frame)


def _stands_for(recorded: Any, child: Any) -> bool:
    if recorded is ANY_ARRAY:
        return is_array(child)
    if type(recorded) in (Recorded, RecordedTree):
        return bool(recorded == child)
    return recorded is child


def stand_in(child: Any, inside: set[int], by_structure: bool = False) -> Any:
    """What to compare the children of a container with later.

    Args:
        child: A child.
        inside: Extended by the ids of containers that need no look of their own then.
        by_structure: Whether one plain container of arrays is as good as another.

    Returns:
        The child itself, or what equals it also when arrays in it were replaced.
    """
    if is_array(child):
        return ANY_ARRAY
    kind = type(child)
    if kind is str:
        return child
    impl = find_impl(child)
    if not isinstance(impl, PytreeNodeImpl):
        return child
    recorded = _as_jax_has_it(child, inside)
    if recorded is not None:
        return recorded
    if kind in (dict, list) and not by_structure:
        return child
    pairs, metadata = impl.flatten(child)
    stand_ins = [(key, stand_in(x, inside, by_structure)) for key, x in pairs]
    if all(new is old for (_, new), (_, old) in zip(stand_ins, pairs, strict=True)):
        return child
    inside.add(id(child))
    return Recorded(child, impl, stand_ins, metadata)


# The `__eq__` of these, by which they are recognized.
STAND_INS = _AnyArray.__eq__, Recorded.__eq__, RecordedTree.__eq__


def items_of(container: Any) -> Iterable[tuple[Any, Any]]:
    """The children of a dict or list with their keys."""
    if isinstance(container, dict):
        return container.items()
    return enumerate(container)
