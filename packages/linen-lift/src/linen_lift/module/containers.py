"""Finding and replacing objects inside of fields and arguments."""

from __future__ import annotations

import functools
import operator
import types
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..frozen_dict import FrozenDict
from .module_base import ModuleBase

# Nearly every field is one of these; they are recognized without any call.
_LEAVES = {int, float, complex, bool, str, bytes, type(None), np.dtype, np.ndarray}
_LEAVES |= {type, types.FunctionType, types.BuiltinFunctionType, types.MethodType}
_LEAVES |= set(map(type, (jnp.float32, jnp.tanh, jax.nn.relu, jax.nn.sigmoid)))


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

    A container without any is returned as it is, unless it is to be frozen.

    Args:
        value: what to look through.
        wanted: the classes.
        fn: takes an instance and where it is, as `_key_index`.
        freeze: whether lists and dicts become immutable.
        suffix: where `value` is.
    """
    if type(value) in _LEAVES:
        return value
    if isinstance(value, wanted):
        return fn(value, suffix)
    if isinstance(value, (list, tuple)):
        keys = getattr(value, "_fields", range(len(value)))
        items: Any = dict(zip(keys, value, strict=True))
    elif isinstance(value, Mapping):
        # In the order in which JAX goes through a dict.
        keys, items = sorted(value, key=str), value
    elif hasattr(value, "dtype"):  # an array or a tracer
        return value
    else:
        return _replace_leaves(value, wanted, fn, suffix)
    new = {
        key: replace(items[key], wanted, fn, freeze, f"{suffix}_{key}") for key in keys
    }
    frozen = freeze and isinstance(value, (list, dict))
    if not frozen and all(new[key] is items[key] for key in new):
        return value
    if isinstance(value, Mapping):
        new = {key: new[key] for key in items}
        return FrozenDict(new) if freeze or isinstance(value, FrozenDict) else new
    if hasattr(value, "_fields"):
        return type(value)(*new.values())
    kind = list if isinstance(value, list) and not freeze else tuple
    return kind(new.values())


def _replace_leaves(
    tree: Any, wanted: tuple[type, ...], fn: Callable[[Any, str], Any], suffix: str
) -> Any:
    """`replace` in a pytree of another type."""

    def is_leaf(x: Any) -> bool:
        return isinstance(x, wanted)

    leaves, treedef = jax.tree.flatten(tree, is_leaf)
    if not any(map(is_leaf, leaves)):  # mostly; finding the paths costs more
        return tree
    places = jax.tree_util.tree_leaves_with_path(tree, is_leaf)
    new_leaves = [
        fn(leaf, f"{suffix}_{_path_name(path, i)}") if is_leaf(leaf) else leaf
        for i, (path, leaf) in enumerate(places)
    ]
    same = all(map(operator.is_, new_leaves, leaves))
    return tree if same else treedef.unflatten(new_leaves)


def _path_name(path: tuple[Any, ...], number: int) -> str:
    """Where a leaf is, in text; its number where a class tells nothing better."""
    if any(isinstance(key, jax.tree_util.FlattenedIndexKey) for key in path):
        return str(number)
    name: str = jax.tree_util.keystr(path, simple=True, separator="_")
    return name


def own_names(module: Any) -> tuple[str, ...]:
    """The attributes that a module was made with, before `setup` adds any.

    What `__post_init__` sets last counts if no module is in it: that has its place only
    in fields. Cached properties are computed anew.

    Args:
        module: a module.
    """
    state = module._module__state
    late: tuple[str, ...] | None = state.late
    if late is None:
        known = {*state.base, "_module__state", "scope"}
        late = tuple(
            name
            for name, value in module.__dict__.items()
            if name not in known
            and not isinstance(
                getattr(type(module), name, None), functools.cached_property
            )
            and not find(value, (ModuleBase,))
        )
        if module.scope is not None:
            state.late = late
    return (*state.base, *late)
