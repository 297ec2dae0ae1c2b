"""Where a pytree with static leaves crosses a boundary, it is a `Divided`.

That is a pytree whose children are the arrays, and whose static part is the frame
around them. What comes back need not be whole. Where a function changed one array of
many, that one comes back, and the others are those that went in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import is_
from typing import Any

import jax

from graphcore.divided import memory
from graphcore.divided.filtered_types import is_filtered
from graphcore.divided.frames import Frame, frame_of
from graphcore.variables.bare_arrays import (
    are_arrays,
    are_known_arrays,
    is_array,
    is_frozen,
)


@dataclass(slots=True, eq=False, repr=False)
class Divided:
    """A pytree apart: its arrays, or some of them, and its frame. Itself a pytree.

    Args:
        arrays: Those of `frame.given`, or what stands for them.
        frame: The rest.
        tree: The pytree itself, where it is known and can't change in place.

    Example:
        >>> import graphcore as gc, jax, jax.numpy as jnp
        >>> from graphcore.authors import Divided
        >>> (value,) = Divided.of_values([{'w': jnp.ones(2), 'act': abs}])
        >>> len(jax.tree.leaves(value)), value.join()['act']
        (1, <built-in function abs>)
    """

    arrays: Sequence[Any]
    frame: Frame
    tree: Any = None

    def __repr__(self) -> str:
        return f"Divided({self.arrays}, {self.frame})"

    def leaves(self, with_statics: bool = True) -> list[Any]:
        """All leaves of the pytree, None where there is nothing."""
        frame = self.frame
        leaves = [None] * frame.structure.num_leaves
        pairs = zip(frame.given, self.arrays, strict=True)
        for i, leaf in (*pairs, *(frame.statics.items() if with_statics else ())):
            leaves[i] = leaf
        return leaves

    def join(self, old: Any = None) -> Any:
        """The pytree.

        Args:
            old: One of the same structure: what is missing is as it is there.
        """
        frame = self.frame
        missing = frame.structure.num_leaves - len(frame.given) - len(frame.statics)
        if missing and old is not None:
            # Into the old value, since the structure inside of a map may differ.
            leaves, structure = (
                (old.leaves(), old.frame.structure)
                if type(old) is Divided
                else jax.tree.flatten(old)
            )
            for leaf, array in zip(frame.given, self.arrays, strict=True):
                leaves[leaf] = array
            return structure.unflatten(leaves)
        tree = frame.structure.unflatten(self.leaves())
        if frame.is_fixed and are_arrays(self.arrays):
            memory.keep(tree, self.arrays, frame)  # The next call will want it.
        return tree

    def bare(self) -> Any:
        """The pytree of the arrays that are here, with None at all other places."""
        return self.frame.structure.unflatten(self.leaves(with_statics=False))

    def only(self, chosen: Callable[[Any], bool]) -> Divided:
        """Some of the arrays, without the static part."""
        pairs = zip(self.frame.given, self.arrays, strict=True)
        kept = {i: x for i, x in pairs if chosen(x)}
        structure = self.frame.structure
        return Divided([*kept.values()], Frame(structure, (*kept,), {}))

    def of_settings(self, kinds: tuple[type[Any], ...]) -> Divided:
        """The same pytree, divided so that settings take the place of arrays.

        Args:
            kinds: The types of settings.
        """
        leaves = self.frame.statics
        given = {i: x for i, x in leaves.items() if isinstance(x, kinds)}
        statics = {i: x for i, x in leaves.items() if i not in given}
        return Divided(
            [*given.values()], Frame(self.frame.structure, (*given,), statics)
        )

    def over(self, whole: Divided) -> Divided:
        """Completes these arrays with the other ones and the static part of `whole`."""
        arrays = [*whole.arrays]
        for leaf, array in zip(self.frame.given, self.arrays, strict=True):
            arrays[whole.frame.places[leaf]] = array
        return Divided(arrays, whole.frame)

    def like(self, tree: Any) -> Divided:
        """Divides a pytree that stands for this one, such as a tangent of it."""
        leaves = self.frame.structure.flatten_up_to(tree)
        return Divided([leaves[i] for i in self.frame.given], self.frame)

    @staticmethod
    def matches(x: Any) -> bool:
        """Tells whether something stands for a pytree."""
        return type(x) is Divided

    @staticmethod
    def of_values(values: list[Any]) -> list[Any]:
        """The values of variables as JAX takes them; the list itself if they were."""
        if are_known_arrays(values):
            return values
        found = [*map(divided, values)]
        return values if all(map(is_, found, values)) else found

    @staticmethod
    def within(tree: Any) -> tuple[Any, bool]:
        """Divides all pytrees of filtered types in a pytree.

        Args:
            tree: Any pytree.

        Returns:
            The pytree with a `Divided` in the place of each; and whether there is one.
        """
        leaves, structure = jax.tree.flatten(tree, is_leaf=is_filtered)
        places = [i for i, x in enumerate(leaves) if is_filtered(x)]
        for i in places:
            leaves[i] = divide(leaves[i])
        return (structure.unflatten(leaves) if places else tree), bool(places)

    @staticmethod
    def map(function: Callable[[Divided], Any], tree: Any) -> Any:
        """Replaces each `Divided` in a pytree."""
        return jax.tree.map(
            lambda x: function(x) if type(x) is Divided else x,
            tree,
            is_leaf=Divided.matches,
        )


def _flatten_with_keys(divided: Divided) -> Any:
    numbers = map(jax.tree_util.FlattenedIndexKey, divided.frame.given)
    return tuple(zip(numbers, divided.arrays, strict=True)), divided.frame


jax.tree_util.register_pytree_with_keys(
    Divided,
    _flatten_with_keys,
    lambda frame, arrays: Divided(arrays, frame),
    lambda divided: (divided.arrays, divided.frame),
)


def divide(tree: Any) -> Divided:
    """Divides a pytree into arrays and static frame.

    What is below a pytree of a filtered type is static unless it is an array; of the
    rest, what JAX does not take.

    Args:
        tree: Any pytree.

    Returns:
        It as a pytree that JAX takes.

    Raises:
        TypeError: If a static leaf can't be hashed, or is an object; with its path.
    """
    found = remembered(tree)
    if found is not None:
        return found
    leaves, structure = jax.tree.flatten(tree)
    frame = frame_of(tree, leaves, structure)
    arrays = [*map(leaves.__getitem__, frame.given)]
    found = Divided(arrays, frame)
    if not frame.has_statics_of(structure):
        return found  # It would be remembered with what another pytree holds.
    if frame.is_fixed and not memory.is_open(tree):
        found.tree = tree
        memory.keep(tree, arrays, frame)
    elif is_frozen(tree):
        memory.watch(tree, arrays, frame)
    return found


def remembered(tree: Any) -> Divided | None:
    """What a pytree is divided into, if that is known.

    Args:
        tree: Any object.
    """
    known = memory.recall(tree)
    if known is None:
        return None
    arrays, frame = known
    return Divided(arrays, frame, tree if frame.is_fixed else None)


def divided(value: Any) -> Any:
    """The value of a variable as JAX takes it.

    Args:
        value: An array, or any pytree.

    Returns:
        A `Divided` where there is something static in the value; else the value.
    """
    # First: some modules take their time to tell what they are no instance of.
    found = remembered(value)
    if found is None:
        if is_array(value) or type(value) is Divided or not may_be_divided(value):
            return value  # If it is no array either, JAX will say so.
        found = divide(value)
    return found if found.frame.statics or found.frame.is_filtered else value


# A pytree is edited in place of being rebuilt if at most one array in so many is new.
_FEW = 4


def may_be_divided(value: Any) -> bool:
    """Tells whether the value of a variable may leave a call as a `Divided`."""
    return not jax.tree_util.all_leaves((value,))


def joined(value: Any, old: Any = None) -> Any:
    """Undoes `divided`; see `Divided.join`."""
    if type(value) is not Divided:
        return value
    if type(old) is not Divided or not old.frame.is_like(value.frame):
        return value.join(old)
    whole = value.over(old) if len(value.arrays) < len(old.arrays) else value
    if old.tree is None or len(value.arrays) > len(old.arrays) // _FEW:
        return whole.join()
    tree = value.frame.edited(old.tree, value.arrays)
    memory.keep(tree, whole.arrays, whole.frame)
    return tree


def changed(value: Any, old: Any) -> Any:
    """What of the value of a variable is to be written.

    Args:
        value: What it is.
        old: What it was.

    Returns:
        The value; a `Divided` of those arrays that are new if it is a pytree of the
        same structure.
    """
    if not is_array(value) and may_be_divided(value) and may_be_divided(old):
        now, before = divide(value), divide(old)
        if now.frame == before.frame:
            arrays = zip(now.frame.given, now.arrays, before.arrays, strict=True)
            new = {i: x for i, x, y in arrays if x is not y}
            if len(new) < len(now.arrays):
                frame = Frame(now.frame.structure, (*new,), now.frame.statics)
                return Divided([*new.values()], frame)
    return divided(value)
