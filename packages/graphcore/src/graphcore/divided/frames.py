"""Frames: what pytrees are apart from their arrays.

A module of a functional library is a pytree, among whose leaves are functions, strings
and numbers that decide what is computed. These and the structure are its frame.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import is_
from typing import Any, TypeAlias

import jax
import numpy as np

from graphcore.cache.static_contents import StaticContents
from graphcore.content import StrictTreeDef, is_immutable, static_key
from graphcore.content_key import UnhashableContent
from graphcore.divided.filtered_types import is_filtered
from graphcore.known_types import ATOMS
from graphcore.nodes.registry import is_graph_node
from graphcore.trails import path_text
from graphcore.variables.bare_arrays import are_arrays, is_array, is_frozen
from graphcore.variables.impl import is_variable

_Editor: TypeAlias = Callable[[Any, Sequence[Any]], Any]


@dataclass(slots=True, weakref_slot=True, eq=False, repr=False)
class Frame:
    """What a pytree is apart from its arrays; equal for equal structures.

    Args:
        structure: Of the pytree with all leaves.
        given: The numbers of the leaves that are apart.
        statics: The static ones, by number. A leaf may be neither: it is not there.
        is_filtered: Whether the pytree is, or has in it, one of a filtered type.
        is_fixed: Whether no part of the pytree can be replaced in place.
        has_objects: Whether there are any in the pytree; None if nobody looked.
        changeable: What is static in it and hashable, but may be changed in place.
        places: Where in `given` each of its numbers is.
    """

    structure: Any
    given: tuple[int, ...]
    statics: dict[int, Any]
    is_filtered: bool = False
    is_fixed: bool = False
    has_objects: bool | None = None
    changeable: Sequence[Any] = ()
    places: dict[int, int] = field(init=False)
    _contents: StaticContents | None = field(init=False)
    _key: Any = field(init=False)
    _hash: int | None = field(default=None, init=False)
    _edited: _Editor | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        keys = tuple([(i, static_key(x)) for i, x in self.statics.items()])
        try:
            contents = StaticContents(self.changeable) if self.changeable else None
        except UnhashableContent as error:
            self._refuse()
            raise TypeError(
                "What is static in a pytree decides what is compiled, and there is a "
                f"{type(error.value).__name__}, which can be neither hashed nor "
                "compared by its content. Give that type a `__hash__`, or declare that "
                "its instances never change: `register_immutable_type`."
            ) from None
        self._contents = contents
        self._key = StrictTreeDef(self.structure), self.given, keys, contents
        self.places = {leaf: place for place, leaf in enumerate(self.given)}

    def __eq__(self, other: object) -> bool:
        try:
            return self is other or (
                isinstance(other, Frame) and self._key == other._key
            )
        except Exception:  # static arrays of a module, and what else has no equality
            return False

    def __hash__(self) -> int:
        if self._hash is None:
            try:
                self._hash = hash(self._key[:-1])
            except TypeError:
                self._refuse()
                raise
        return self._hash

    def _refuse(self) -> None:
        whole = self.structure.unflatten(range(self.structure.num_leaves))
        for number, x in self.statics.items():
            try:
                hash(x)
            except TypeError as error:
                raise TypeError(
                    f"What stands at {_place(whole, number)!r} of a pytree "
                    f"with static leaves is a {type(x).__name__}, which can't be "
                    "hashed: leaves that are no arrays decide what is compiled. Use a "
                    "hashable value."
                ) from error

    def __repr__(self) -> str:
        return f"Frame({self.structure}, {self.statics})"

    def edited(self, tree: Any, arrays: Sequence[Any]) -> Any:
        """A pytree with other arrays at the places of `given`.

        What has none of these in it is the same object as before.

        Args:
            tree: A pytree of the structure.
            arrays: The arrays.
        """
        if self._edited is None:
            self._edited = _editor(tree, 0, self.places)
        return self._edited(tree, arrays)

    def is_current(self) -> bool:
        """Whether nothing in it was changed in place since it was made."""
        return self._contents is None or self._contents.hold()

    def has_statics_of(self, structure: Any) -> bool:
        """Whether a structure has the very objects that may be changed in this one.

        It may have others that are equal by now, of which this frame will not tell.
        """
        return not self.changeable or all(
            map(_same_objects, self._key[0].held, StrictTreeDef(structure).held)
        )

    def fits(self, leaves: Sequence[Any], structure: Any) -> bool:
        """Whether these leaves of a pytree of the structure surely have this frame."""
        return self._has_leaves(leaves) and self._key[0].is_of(structure)

    def is_of(self, tree: Any) -> bool:
        """Whether a pytree surely has this frame.

        JAX looks into it no further than the structure goes: where an array was there
        may be an object of another library by now, which may refer to itself.
        """
        try:
            leaves = self.structure.flatten_up_to(tree)
        except ValueError:
            return False
        strict = self._key[0]
        return self._has_leaves(leaves) and (
            strict.has_names_alone or strict.is_of(jax.tree.structure(tree))
        )

    def _has_leaves(self, leaves: Sequence[Any]) -> bool:
        statics = self.statics
        pairs = [*map(leaves.__getitem__, statics)], statics.values()
        return (
            (all(map(is_, *pairs)) or all(map(_are_one, *pairs)))
            and are_arrays([*map(leaves.__getitem__, self.given)])
            and self.is_current()
        )

    def is_like(self, other: Frame) -> bool:
        """Whether two have one structure, what is static in it included."""
        return bool(self._key[0] == other._key[0])


def _are_one(x: Any, y: Any) -> bool:
    """Whether two static leaves are the same for every purpose."""
    return x is y or (type(x) in ATOMS and bool(static_key(x) == static_key(y)))


def _same_objects(a: Any, b: Any) -> bool:
    if a is b:
        return True
    is_tuple = type(a) is type(b) and isinstance(a, tuple)
    return is_tuple and len(a) == len(b) and all(map(_same_objects, a, b))


def _editor(tree: Any, first: int, places: dict[int, int]) -> _Editor:
    """How leaves in a node of a pytree are replaced.

    Args:
        tree: The node.
        first: The number of its first leaf in the whole pytree.
        places: For each leaf that is replaced the place of what replaces it.
    """
    level = jax.tree.structure(tree, is_leaf=lambda x: x is not tree)
    edits: list[tuple[int, int | _Editor]] = []
    for number, child in enumerate(level.flatten_up_to(tree)):
        last = first + jax.tree.structure(child).num_leaves
        if any(first <= leaf < last for leaf in places):
            is_leaf = jax.tree_util.all_leaves((child,))
            how = places[first] if is_leaf else _editor(child, first, places)
            edits.append((number, how))
        first = last

    def edited(tree: Any, arrays: Sequence[Any]) -> Any:
        children = level.flatten_up_to(tree)
        for number, how in edits:
            child = children[number]
            new = arrays[how] if isinstance(how, int) else how(child, arrays)
            children[number] = new
        return level.unflatten(children)

    return edited


# The frame that a structure had last; an entry lives as long as somebody holds it.
_last: weakref.WeakValueDictionary[Any, Frame] = weakref.WeakValueDictionary()
# Of equal frames the first one: that is the one that JAX holds with what it compiled.
_first: weakref.WeakKeyDictionary[Frame, weakref.ref[Frame]] = (
    weakref.WeakKeyDictionary()
)


def frame_of(tree: Any, leaves: Sequence[Any], structure: Any) -> Frame:
    """The frame of a pytree; the one that an equal pytree had before, if there is one.

    Args:
        tree: The pytree.
        leaves: Its leaves.
        structure: Its structure.

    Raises:
        TypeError: If a static leaf can't be hashed, or is an object; with its path.
    """
    try:
        frame = _last.get(structure)
        if frame is None or not frame.fits(leaves, structure):
            frame = _made(tree, leaves, structure)
            first = _first.setdefault(frame, weakref.ref(frame))()
            if first is not None and first.fits(leaves, structure):
                frame = first
            _last[structure] = frame
    except ValueError:  # as in `Frame.__eq__`
        frame = _made(tree, leaves, structure)
    return frame


def _made(tree: Any, leaves: Sequence[Any], structure: Any) -> Frame:
    _refuse_objects(tree, leaves)
    outer = jax.tree.leaves(tree, is_leaf=is_filtered)
    has_filtered = any(map(is_filtered, outer))
    chosen: list[bool] = []
    for x in outer:
        if is_filtered(x):
            inner = jax.tree.leaves(x)
            chosen += [is_array(y) or isinstance(y, np.generic) for y in inner]
        else:
            chosen.append(_is_taken(x))
    given = tuple(i for i, yes in enumerate(chosen) if yes)
    statics = {i: leaves[i] for i, yes in enumerate(chosen) if not yes}
    held = [*statics.values(), *StrictTreeDef(structure).held]
    changeable = [x for x in held if not is_immutable(x)]
    about = has_filtered, _is_fixed(tree)
    frame = Frame(structure, given, statics, *about, changeable=changeable)
    hash(frame)  # What has no hash is refused here, with its path.
    return frame


def _refuse_objects(tree: Any, leaves: Sequence[Any]) -> None:
    """Raises an error if a leaf is an object: static, it would be a constant."""
    for number, x in enumerate(leaves):
        if not is_array(x) and (is_variable(x) or is_graph_node(x)):
            where = _place(tree, number)
            raise TypeError(
                f"What stands at {where!r} of a pytree with static leaves is a "
                f"{type(x).__name__}, which can change, and is no pytree itself: what "
                "a compiled function reads of it would be a constant. Make it an "
                "attribute of a node, or pass it as an argument."
            )


def _place(tree: Any, number: int) -> str:
    """The path of a leaf, for messages."""
    path = jax.tree_util.tree_leaves_with_path(tree)[number][0]
    return path_text((jax.tree_util.keystr(path, simple=True, separator="/"),))


def _is_taken(x: Any) -> bool:
    """Whether JAX takes a leaf for an argument."""
    # Of a number, JAX may say that it is too large.
    if is_array(x) or isinstance(x, (bool, int, float, complex)):
        return True
    try:
        return jax.typeof(x) is not None
    except TypeError:
        return False


def _is_fixed(tree: Any) -> bool:
    """Whether a pytree, and all in it that is one, is of an immutable type."""

    def may_change(x: Any) -> bool:
        return not (isinstance(x, tuple | None) or is_frozen(x))

    return is_frozen(tree) and jax.tree_util.all_leaves(
        jax.tree.leaves(tree, is_leaf=may_change)
    )
