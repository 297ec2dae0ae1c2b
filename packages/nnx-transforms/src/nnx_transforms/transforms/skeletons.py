"""Pytrees with objects among their leaves, and where the objects are in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax

from graphcore import is_variable
from graphcore.registry import is_graph_node

Path: TypeAlias = tuple[Any, ...]
# Types whose instances surely are objects, or surely are not. A type that is unknown
# now may be registered later, so a "no" is kept only for the types listed here.
_known: dict[type[Any], bool] = dict.fromkeys(
    (bool, int, float, complex, str, tuple, list, dict, type(None), jax.Array), False
)
# The types of arrays and tracers that were seen.
_arrays: set[type[Any]] = set()


def is_object(x: Any) -> bool:
    """Tells whether a leaf of a pytree is a graph node or variable."""
    kind = type(x)
    known = _known.get(kind)
    if known is not None:
        return known
    found = is_graph_node(x) or is_variable(x)
    if found or isinstance(x, jax.Array):
        _known[kind] = found
        if not found:
            _arrays.add(kind)
    return found


def key_path(path: Any) -> Path:
    """The plain keys of a JAX key path."""
    return tuple(
        getattr(entry, "key", getattr(entry, "idx", getattr(entry, "name", entry)))
        for entry in path
    )


@dataclass(frozen=True)
class Skeleton:
    """Where the objects are in a pytree.

    Args:
        structure: The structure of the pytree, objects counting as leaves.
        spots: For each object in it, the number of the leaf and of the object.
    """

    structure: Any
    spots: tuple[tuple[int, int], ...]

    def fill(self, plain: Any, objects: Sequence[Any]) -> Any:
        """Puts objects into a pytree from which they were taken.

        Args:
            plain: The pytree with None in the place of each object.
            objects: The objects by number.

        Returns:
            The pytree with objects.
        """
        if not self.spots:
            return plain
        leaves = jax.tree.leaves(plain, is_leaf=is_object)
        for position, number in self.spots:
            leaves.insert(position, objects[number])
        return jax.tree.unflatten(self.structure, leaves)


OF_A_LEAF = Skeleton(jax.tree.structure(0), ())
"""That of an output that is one array."""


def remove_objects(tree: Any) -> tuple[Any, Skeleton, list[Any]]:
    """Takes the objects out of a pytree.

    Args:
        tree: Any pytree.

    Returns:
        The pytree with None in their places; where they were; and the distinct
        objects in order.
    """
    if type(tree) in _arrays:
        return tree, OF_A_LEAF, []
    leaves, structure = jax.tree.flatten(tree, is_leaf=is_object)
    found = [place for place, leaf in enumerate(leaves) if is_object(leaf)]
    if not found:
        return tree, Skeleton(structure, ()), []
    objects = [leaves[place] for place in found]
    distinct = dict(zip(map(id, objects), objects, strict=True))
    numbers: Iterable[int] = range(len(objects))
    if len(distinct) < len(objects):
        number_of = {key: number for number, key in enumerate(distinct)}
        numbers = [number_of[id(x)] for x in objects]
    for place in found:
        leaves[place] = None
    plain = jax.tree.unflatten(structure, leaves)
    spots = tuple(zip(found, numbers, strict=True))
    return plain, Skeleton(structure, spots), list(distinct.values())


def spot_paths(tree: Any, skeleton: Skeleton) -> list[Path]:
    """The path of each spot of a skeleton.

    Args:
        tree: The pytree with objects.
        skeleton: Where they are.

    Returns:
        As many paths as spots.
    """
    if not skeleton.spots:
        return []
    pairs = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_object)[0]
    return [key_path(pairs[position][0]) for position, _ in skeleton.spots]


def remove_prefixes(prefix: Any, is_prefix: Callable[[Any], bool]) -> Any:
    """Replaces what only objects understand in a prefix by None.

    Args:
        prefix: A tree prefix as the user gave it.
        is_prefix: Tells what JAX would not understand.

    Returns:
        A tree prefix for the pytree without objects.
    """
    return jax.tree.map(
        lambda p: None if is_prefix(p) else p,
        prefix,
        is_leaf=lambda p: p is None or is_prefix(p),
    )
