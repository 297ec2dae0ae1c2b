"""What a plan records in the place of arrays, so that it holds for others as well.

A step that writes a bare array puts another object where the plan saw one. That is no
change of structure, so the plan compares with something that equals any array.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from graphcore.content import static_key
from graphcore.content_key import snapshot
from graphcore.nodes.registry import NodeImpl, Pairs, PytreeNodeImpl, find_impl
from graphcore.variables.bare_arrays import is_array


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

    __slots__ = ("impl", "kind", "metadata", "pairs")

    def __init__(self, node: Any, impl: NodeImpl, pairs: Pairs, metadata: Any) -> None:
        self.kind, self.impl = type(node), impl
        self.metadata = static_key(snapshot(metadata))
        self.pairs = [(key, child) for key, child in pairs]

    def __eq__(self, other: object) -> bool:
        if type(other) is not self.kind:
            return False
        pairs, metadata = self.impl.flatten(other)
        return (
            len(pairs) == len(self.pairs)
            and self.metadata == static_key(metadata)
            and all(
                key == due and _stands_for(recorded, child)
                for (key, child), (due, recorded) in zip(pairs, self.pairs, strict=True)
            )
        )

    __hash__ = None  # type: ignore[assignment]


def _stands_for(recorded: Any, child: Any) -> bool:
    if recorded is ANY_ARRAY:
        return is_array(child)
    if type(recorded) is Recorded:
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
    if kind is str or (kind in (dict, list) and not by_structure):
        return child
    impl = find_impl(child)
    if not isinstance(impl, PytreeNodeImpl):
        return child
    pairs, metadata = impl.flatten(child)
    stand_ins = [(key, stand_in(x, inside, by_structure)) for key, x in pairs]
    if all(new is old for (_, new), (_, old) in zip(stand_ins, pairs, strict=True)):
        return child
    inside.add(id(child))
    return Recorded(child, impl, stand_ins, metadata)


# The `__eq__` of these, by which they are recognized.
STAND_INS = _AnyArray.__eq__, Recorded.__eq__


def items_of(container: Any) -> Iterable[tuple[Any, Any]]:
    """The children of a dict or list with their keys."""
    if isinstance(container, dict):
        return container.items()
    return enumerate(container)
