"""A quick answer for functions that leave the structure of their objects alone.

Most functions do nothing to it but write values. To see that takes a comparison of
the objects with the definitions that they were built from, which is much cheaper than
describing them anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from graphcore import GraphDef, NodeDef, StaticAttribute, VariableDef
from graphcore.content import is_immutable
from graphcore.hashable_mapping import as_kept
from graphcore.registry import UnsortableKeys, find_node_impl
from graphcore.variable_impl import find_variable_impl

__all__ = ["is_unchanged"]

# What CPython sets in `__flags__` of types that are not built in.
_HEAP_TYPE = 1 << 9


def is_unchanged(
    definitions: Sequence[GraphDef[Any]], objects: Mapping[int, Any]
) -> bool:
    """Tells whether objects surely are as they were built.

    Args:
        definitions: The definitions that they were built from.
        objects: The object that was built for each index.

    Returns:
        True if walking the objects would give the same definitions, and the same
        object for each index. False if not, or if there is no quick way to tell.

    Example:
        >>> import graphcore as gc
        >>> node = gc.Dict(a=gc.Param(1))
        >>> built, graphdef = {0: node, 1: node.a}, gc.graphdef(node)
        >>> is_unchanged([graphdef], built)
        True
        >>> node.a = gc.Param(1)
        >>> is_unchanged([graphdef], built)
        False
    """
    pending: list[tuple[NodeDef[Any], Any]] = []
    for root in definitions:
        if isinstance(root, NodeDef):
            pending.append((root, objects[root.index]))
        elif isinstance(root, VariableDef):
            if not _same_variable(root, objects[root.index]):
                return False
    while pending:
        definition, node = pending.pop()
        impl = find_node_impl(node)
        if type(node) is not definition.type or impl is None:
            return False
        try:
            pairs, metadata = impl.flatten(node)
        except UnsortableKeys:
            return False
        attributes = definition.attributes
        if metadata is not definition.metadata or len(pairs) != len(attributes):
            return False
        for (key, value), attribute in zip(pairs, attributes, strict=True):
            if key != attribute.key:
                return False
            if isinstance(attribute, StaticAttribute):
                if value is not attribute.value or not _is_fixed(value):
                    return False
                continue
            inner = attribute.value
            if inner.index != -1 and value is not objects[inner.index]:
                return False
            if isinstance(inner, VariableDef):
                if not _same_variable(inner, value):
                    return False
            elif isinstance(inner, NodeDef):
                pending.append((inner, value))
    return True


def _same_variable(definition: VariableDef[Any], variable: Any) -> bool:
    kind = type(variable)
    impl = find_variable_impl(kind)
    if kind is not definition.type or impl is None:
        return False
    metadata = impl.metadata(variable)
    return metadata is definition.metadata and as_kept(metadata) is metadata


def _is_fixed(value: Any) -> bool:
    """Whether a static value can neither change in place nor become a node."""
    return not type(value).__flags__ & _HEAP_TYPE and is_immutable(value)
