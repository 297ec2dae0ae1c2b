"""Settings: what a transformation is to do with each variable of its arguments.

A setting is whatever the transformation makes of it: an axis, a sharding, whether to
differentiate, `Carry`. Users give a tree prefix of the arguments, with a setting for
all variables of an object or a `PrefixMapping`, which answers for each variable.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from graphcore.boundary.places import is_object
from graphcore.divided.divided import Divided
from graphcore.divided.filtered_types import is_filtered
from graphcore.nodes.traversal import places
from graphcore.prefixes import (
    PrefixMapping,
    broadcast_prefix,
    described,
    setting_of,
)
from graphcore.refmap import RefMap
from graphcore.unset import UNSET
from graphcore.variables.impl import is_variable

__all__ = [
    "is_mapping",
    "map_settings",
    "plain_settings",
    "prefix_leaves",
    "settings_of_leaves",
    "settings_of_variables",
    "settings_within",
]


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one structure of arguments.

    Args:
        roots: For each root its setting, which holds for variables that are new in it.
        variables: For each variable its setting.
        out: A tree prefix of the output.
    """

    roots: tuple[Any, ...]
    variables: tuple[Any, ...]
    out: Any = UNSET

    def groups(self) -> tuple[Any, ...]:
        """The distinct settings with which values can enter and leave."""
        found: list[Any] = []
        # Usually nothing is set, and JAX need not be asked.
        of_out = [UNSET] if self.out is UNSET else prefix_leaves(self.out)
        for prefix in (*self.roots, *of_out):
            found += prefix.settings if is_mapping(prefix) else [prefix]
        return tuple(dict.fromkeys([*found, *self.variables])) or (UNSET,)


def is_mapping(prefix: Any) -> bool:
    """Whether a prefix answers for each variable.

    Args:
        prefix: A setting in a tree prefix.

    Returns:
        Whether it is a `PrefixMapping`.

    Example:
        >>> import graphcore as gc
        >>> from graphcore.authors import is_mapping
        >>> class Depth(gc.PrefixMapping):
        ...     def map_prefix(self, path, variable): return len(path)
        >>> is_mapping(Depth()), is_mapping(0)
        (True, False)
    """
    return isinstance(prefix, PrefixMapping)


def is_prefix_leaf(prefix: Any) -> bool:
    """Whether a node of a tree prefix is a setting: None is one."""
    return prefix is None or isinstance(prefix, PrefixMapping)


def prefix_leaves(prefix: Any) -> list[Any]:
    """The settings in a tree prefix, None among them.

    Args:
        prefix: A tree prefix.

    Returns:
        Settings and mappings.

    Example:
        >>> from graphcore.authors import prefix_leaves
        >>> prefix_leaves(({'a': 0}, None))
        [0, None]
    """
    return jax.tree.leaves(prefix, is_leaf=is_prefix_leaf)


def settings_of_leaves(
    prefix: Any, tree: Any, called: tuple[str, str] = ("The prefix", "the tree")
) -> list[Any]:
    """The setting of each leaf of a pytree, objects counting as leaves.

    Args:
        prefix: A tree prefix.
        tree: The pytree.
        called: What the two are called, for messages.

    Returns:
        As many settings as leaves.

    Raises:
        ValueError: If the one is no prefix of the other.

    Example:
        >>> import graphcore as gc
        >>> from graphcore.authors import settings_of_leaves
        >>> settings_of_leaves((0, None), (gc.Dict(w=gc.Param(1)), [2, 3]))
        [0, None, None]
    """
    return broadcast_prefix(
        prefix,
        tree,
        prefix_is_leaf=is_prefix_leaf,
        tree_is_leaf=is_object,
        called=called,
    )


def settings_of_variables(
    prefix: Any, tree: Any, called: tuple[str, str] = ("The prefix", "the tree")
) -> RefMap[Any, Any]:
    """The setting of each variable in a pytree, and of each array in an object.

    Args:
        prefix: A tree prefix of the pytree.
        tree: The pytree.
        called: What the two are called, for messages.

    Returns:
        The first setting that is not None; nothing for those that have `UNSET`.

    Raises:
        ValueError: If the one is no prefix of the other.

    Example:
        >>> import graphcore as gc
        >>> from graphcore.authors import settings_of_variables
        >>> shared = gc.Param(1)
        >>> settings_of_variables((None, 0), (gc.Dict(a=shared), [shared, 2]))[shared]
        0
    """
    found: RefMap[Any, Any] = RefMap()
    leaves = jax.tree.leaves(tree, is_leaf=is_object)
    per_leaf = settings_of_leaves(prefix, tree, called)
    for x, setting in zip(leaves, per_leaf, strict=True):
        if setting is not UNSET and is_object(x):
            for path, _, variable in places(x):
                if is_variable(variable) and found.get(variable) is None:
                    found[variable] = setting_of(setting, path, variable)
    return found


def prefix_key(prefix: Any) -> Any:
    """Something hashable that stands for a tree prefix; equal for equal prefixes.

    Args:
        prefix: A tree prefix.

    Returns:
        The prefix itself, if it is one setting.
    """
    if prefix is UNSET or type(prefix) in (int, type(None)):
        return prefix
    leaves, structure = jax.tree.flatten(prefix, is_leaf=is_prefix_leaf)
    return structure, *leaves


def lasts(prefix: Any) -> bool:
    """Whether a tree prefix gives the same answers for graphs of one definition.

    A filter that looks at values may give others at each call.
    """
    leaves = prefix_leaves(prefix)
    return all(x.is_static for x in leaves if isinstance(x, PrefixMapping))


def check_mappings(prefix: Any, tree: Any, name: str) -> None:
    """Makes sure that mappings from filters stand for objects only.

    Args:
        prefix: A tree prefix.
        tree: The pytree with objects.
        name: What the pytree is called, for messages.

    Raises:
        ValueError: If a mapping stands for an array, with the path.

    Example:
        >>> import graphcore as gc
        >>> class Depth(gc.PrefixMapping):
        ...     def __repr__(self): return 'Depth()'
        ...     def map_prefix(self, path, variable): return len(path)
        >>> check_mappings((Depth(), 0), (gc.Dict(), 1.0), 'argument ')
        >>> try: check_mappings((Depth(), 0), (1.0, 2.0), 'argument ')
        ... except ValueError as error: print(str(error).partition(',')[0])
        Depth() says what happens to the variables of an object
    """
    if not any(map(is_mapping, prefix_leaves(prefix))):
        return
    per_leaf = settings_of_leaves(prefix, tree)
    pairs = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_object)[0]
    for (path, leaf), found in zip(pairs, per_leaf, strict=True):
        if is_mapping(found) and not is_object(leaf):
            raise ValueError(
                f"{found!r} says what happens to the variables of an object, but what "
                f"stands at {name}{jax.tree_util.keystr(path)} is {described(leaf)}: "
                "give it a setting of its own."
            )


def plain_settings(prefix: Any) -> Any:
    """A tree prefix for the pytree without objects.

    Args:
        prefix: A tree prefix as the user gave it.

    Returns:
        The prefix that JAX is given: None in the place of mappings, which it does not
        know.

    Example:
        >>> import graphcore as gc
        >>> from graphcore.authors import plain_settings
        >>> class Depth(gc.PrefixMapping):
        ...     def map_prefix(self, path, variable): return len(path)
        >>> plain_settings((Depth(), 0))
        (None, 0)
    """
    return map_settings(lambda p: None if is_mapping(p) else p, prefix)


def map_settings(function: Callable[..., Any], prefix: Any, *trees: Any) -> Any:
    """Applies a function to every setting in a tree prefix, None among them.

    Args:
        function: From a setting, and the part of each tree at its place, to a setting.
        prefix: A tree prefix.
        *trees: What it is a prefix of, if the function is to see that.

    Returns:
        The new prefix.

    Example:
        >>> from graphcore.authors import map_settings
        >>> map_settings(lambda axis: axis or 0, (None, {'a': 1}))
        (0, {'a': 1})
    """
    return jax.tree.map(function, prefix, *trees, is_leaf=is_prefix_leaf)


def settings_within(prefix: Any, plain: Any) -> Any:
    """A tree prefix for a pytree in which parts are a `Divided`.

    Args:
        prefix: A tree prefix of the pytree as the user gave it. It may go on inside of
            a part, where it has settings for single arrays.
        plain: The pytree without objects.

    Returns:
        The prefix that JAX is given.

    Raises:
        ValueError: If the one is no prefix of the other.

    Example:
        >>> import graphcore as gc, jax, jax.numpy as jnp
        >>> from graphcore.authors import Divided, settings_within
        >>> @jax.tree_util.register_pytree_node_class
        ... class Layer:
        ...     def __init__(self, w, f): self.w, self.f = w, f
        ...     def tree_flatten(self): return (self.w, self.f), None
        ...     @classmethod
        ...     def tree_unflatten(cls, _, children): return cls(*children)
        >>> gc.register_filtered_type(Layer)
        >>> plain, _ = Divided.within([Layer(jnp.ones(2), abs)])
        >>> settings_within([Layer(1, None)], plain)[0].arrays
        [1]
    """
    inner = jax.tree.leaves(prefix, is_leaf=is_filtered)
    if not any(map(is_filtered, inner)):
        return prefix

    def within(setting: Any, tree: Any) -> Any:
        if not (is_filtered(setting) and Divided.matches(tree)):
            return setting
        per_leaf = broadcast_prefix(setting, tree.join(), is_prefix_leaf)
        return Divided([per_leaf[i] for i in tree.frame.given], tree.frame)

    return jax.tree.map(
        within, prefix, plain, is_leaf=lambda p: is_prefix_leaf(p) or is_filtered(p)
    )
