"""Finding and replacing objects inside of fields and arguments."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..frozen_dict import FrozenDict

# Nearly every field is one of these; they are recognized without any call.
_LEAVES = frozenset(
    {
        int,
        float,
        complex,
        bool,
        str,
        bytes,
        type(None),
        type,
        np.dtype,
        np.ndarray,
        types.FunctionType,
        types.BuiltinFunctionType,
        types.MethodType,
        type(jnp.float32),
        type(jax.nn.relu),
        type(jax.nn.sigmoid),
        type(jnp.tanh),
    }
)


def _is_named_tuple(value: tuple[Any, ...]) -> bool:
    return hasattr(value, "_fields")


def _is_leaf(value: Any) -> bool:
    if hasattr(value, "dtype"):  # an array or a tracer
        return True
    structure = jax.tree.structure(value, is_leaf=lambda x: x is not value)
    return bool(jax.tree_util.treedef_is_leaf(structure))


def find(value: Any, wanted: tuple[type, ...]) -> list[Any]:
    """All instances of some classes in nested containers, in order.

    Lists, tuples, mappings and other pytrees are containers.

    Args:
        value: what to look through.
        wanted: the classes.
    """
    found: list[Any] = []

    def note(instance: Any, _: str) -> Any:
        found.append(instance)
        return instance

    replace(value, wanted, note)
    return found


def replace(
    value: Any,
    wanted: tuple[type, ...],
    fn: Callable[[Any, str], Any],
    freeze: bool = False,
    suffix: str = "",
) -> Any:
    """Replaces all instances of some classes in nested containers.

    A container without any is returned as it is.

    Args:
        value: what to look through.
        wanted: the classes.
        fn: takes an instance and where it is, as `_key_index`.
        freeze: whether containers that change become immutable.
        suffix: where `value` is.
    """
    if type(value) in _LEAVES:
        return value
    if isinstance(value, wanted):
        return fn(value, suffix)
    if isinstance(value, (list, tuple)):
        items = [
            replace(item, wanted, fn, freeze, f"{suffix}_{i}")
            for i, item in enumerate(value)
        ]
        if all(map(_same, items, value)) and not (freeze and find(value, wanted)):
            return value
        if isinstance(value, tuple):
            return type(value)(*items) if _is_named_tuple(value) else tuple(items)
        return tuple(items) if freeze else items
    if isinstance(value, Mapping):
        new = {
            key: replace(item, wanted, fn, freeze, f"{suffix}_{key}")
            for key, item in value.items()
        }
        same = all(map(_same, new.values(), value.values()))
        if same and not (freeze and find(value, wanted)):
            return value
        return FrozenDict(new) if freeze or isinstance(value, FrozenDict) else new
    if not _is_leaf(value):
        leaves, treedef = jax.tree.flatten(
            value, is_leaf=lambda x: isinstance(x, wanted)
        )
        if any(isinstance(leaf, wanted) for leaf in leaves):
            return treedef.unflatten(
                fn(leaf, f"{suffix}_{i}") if isinstance(leaf, wanted) else leaf
                for i, leaf in enumerate(leaves)
            )
    return value


def _same(a: Any, b: Any) -> bool:
    return a is b
