"""Pytrees with leaves that JAX does not take: their arrays, and a static frame.

A module of a functional library is a pytree, among whose leaves are functions, strings
and numbers that decide what is computed. JAX takes none of these for an argument. So
where such a pytree crosses a boundary, it is a `Divided`: a pytree whose children are
the arrays, and whose static part is the `Frame` around them.

What comes back need not be whole. Where a function changed one array of many, that one
comes back, and the others are those that went in.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import repeat
from operator import call, is_
from typing import Any, TypeAlias

import jax
import numpy as np

from graphcore.adapters.loading import load_adapters, registrations
from graphcore.cache.static_contents import StaticContents
from graphcore.content import StrictTreeDef, is_immutable, static_key
from graphcore.errors import check_class
from graphcore.known_types import ATOMS
from graphcore.trails import path_text
from graphcore.variables.bare_arrays import (
    are_arrays,
    are_known_arrays,
    frozen,
    is_array,
    is_frozen,
)

__all__ = ["register_filtered_type"]

_Editor: TypeAlias = Callable[[Any, Sequence[Any]], Any]
# A weak reference to what holds a list or dict, its name there, its type, and weak
# references to what is in it.
_Watched: TypeAlias = Sequence[tuple[Any, str, type[Any], Sequence[Any]]]
_filtered: set[type[Any]] = set()
_known: dict[type[Any], bool] = {}


def register_filtered_type(type: type[Any], /, *, immutable: bool = False) -> None:
    """Declares a type of pytrees whose leaves may be anything.

    Where an instance of it, or of a subclass, is or is part of an argument, an output
    or the value of a variable, its arrays are traced and all else in it is static,
    numbers of Python's included. The type must be known to JAX as a pytree.

    Args:
        type: The class.
        immutable: Whether no instance changes what it holds. Then one that comes again
            is not taken apart again.

    Example:
        >>> import graphcore as gc, jax, jax.numpy as jnp
        >>> @jax.tree_util.register_pytree_node_class
        ... class Layer:
        ...     def __init__(self, w, f): self.w, self.f = w, f
        ...     def tree_flatten(self): return (self.w, self.f), None
        ...     @classmethod
        ...     def tree_unflatten(cls, _, children): return cls(*children)
        >>> gc.register_filtered_type(Layer)
        >>> divided = divide(Layer(jnp.ones(2), jnp.sin))
        >>> len(jax.tree.leaves(divided)), divided.join().f is jnp.sin
        (1, True)
    """
    check_class(type, "register_filtered_type")
    _filtered.add(type)
    if immutable:
        frozen.add(type)
    _known.clear()
    registrations.count += 1


def is_filtered(x: Any) -> bool:
    """Tells whether an object is of a type that `register_filtered_type` declared."""
    kind = type(x)
    known = _known.get(kind)
    if known is None:
        load_adapters(kind)
        known = not _filtered.isdisjoint(kind.__mro__)
        _known[kind] = known
    return known


def _is_taken(x: Any) -> bool:
    """Whether JAX takes a leaf for an argument."""
    # Of a number, JAX may say that it is too large.
    if is_array(x) or isinstance(x, (bool, int, float, complex)):
        return True
    try:
        return jax.typeof(x) is not None
    except TypeError:
        return False


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
        contents = StaticContents(self.changeable) if self.changeable else None
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
        for path, number in jax.tree_util.tree_leaves_with_path(whole):
            try:
                hash(self.statics.get(number))
            except TypeError as error:
                where = jax.tree_util.keystr(path, simple=True, separator="/")
                raise TypeError(
                    f"What stands at {path_text((where,))!r} of a pytree with static "
                    f"leaves is a {type(self.statics[number]).__name__}, which can't "
                    "be hashed: leaves that are no arrays decide what is compiled. "
                    "Use a hashable value."
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
            _keep(tree, self)  # The next call will want it.
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


def _are_one(x: Any, y: Any) -> bool:
    """Whether two static leaves are the same for every purpose."""
    return x is y or (type(x) in ATOMS and bool(static_key(x) == static_key(y)))


# The frame that a structure had last; an entry lives as long as somebody holds it.
_frames: weakref.WeakValueDictionary[Any, Frame] = weakref.WeakValueDictionary()
# Of equal frames the first one: that is the one that JAX holds with what it compiled.
_first: weakref.WeakKeyDictionary[Frame, weakref.ref[Frame]] = (
    weakref.WeakKeyDictionary()
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
        TypeError: If a static leaf can't be hashed, with its path.
    """
    found = remembered(tree)
    if found is not None:
        return found
    leaves, structure = jax.tree.flatten(tree)
    try:
        frame = _frames.get(structure)
        if frame is None or not frame.fits(leaves, structure):
            frame = _frame_of(tree, leaves, structure)
            first = _first.setdefault(frame, weakref.ref(frame))()
            if first is not None and first.fits(leaves, structure):
                frame = first
            _frames[structure] = frame
    except ValueError:  # as in `Frame.__eq__`
        frame = _frame_of(tree, leaves, structure)
    arrays = [*map(leaves.__getitem__, frame.given)]
    found = Divided(arrays, frame)
    if not frame.has_statics_of(structure):
        return found  # It would be remembered with what another pytree holds.
    if frame.is_fixed and not _is_open(tree):
        found.tree = tree
        _keep(tree, found)
    elif is_frozen(tree):
        _watch(tree, found)
    return found


def _same_objects(a: Any, b: Any) -> bool:
    if a is b:
        return True
    is_tuple = type(a) is type(b) and isinstance(a, tuple)
    return is_tuple and len(a) == len(b) and all(map(_same_objects, a, b))


def _is_open(tree: Any) -> bool:
    """Whether a pytree of an immutable type is still being made, in its `__init__`."""
    set_attribute: Any = type(tree).__setattr__
    if set_attribute is object.__setattr__:
        return False  # It never refuses: that it does not change was declared.
    try:
        for name, value in vars(tree).items():
            setattr(tree, name, value)
            break
    except (AttributeError, TypeError):  # it is frozen
        return False
    return True


# What pytrees of immutable types were divided into, as long as these live, by their
# id; and the lists and dicts in them. The frame is held weakly: what is static in it
# might refer to the pytree.
_kept: dict[int, tuple[Any, Sequence[Any], Any, _Watched]] = {}
_NOT_KEPT: tuple[Any, Sequence[Any], Any, _Watched] = (lambda: _kept, (), None, ())
# How often those came that have lists or dicts in them, likewise.
_came: dict[int, tuple[Any, int]] = {}
# Most pytrees come for one call, which may divide them a few times.
_OFTEN = 8


def remembered(tree: Any) -> Divided | None:
    """What a pytree is divided into, if that is known."""
    reference, arrays, frame_of, watched = _kept.get(id(tree), _NOT_KEPT)
    frame = frame_of() if reference() is tree else None
    if frame is None or not (frame.is_current() and all(map(_is_as_before, watched))):
        return None
    return Divided(arrays, frame, tree if frame.is_fixed else None)


def _note(notes: dict[int, Any], tree: Any, *about: Any) -> None:
    number = id(tree)
    try:
        alive = weakref.ref(tree, functools.partial(notes.pop, number))
    except TypeError:  # No weak reference to it can be made.
        return
    notes[number] = alive, *about


def _keep(tree: Any, whole: Divided, watched: _Watched = ()) -> None:
    """Remembers what a pytree is divided into."""
    _note(_kept, tree, whole.arrays, weakref.ref(whole.frame), watched)


def _watch(tree: Any, whole: Divided) -> None:
    """Remembers it of one that comes often and has lists or dicts in it."""
    reference, before = _came.get(id(tree), (_NOT_KEPT[0], 0))
    has_changed = _kept.pop(id(tree), None) is not None
    times = 1 if has_changed or reference() is not tree else before + 1
    if times <= _OFTEN:
        _note(_came, tree, times)
    if times == _OFTEN and not _is_open(tree):
        with suppress(TypeError):
            _keep(tree, whole, _containers_of(tree))


def _containers_of(tree: Any) -> _Watched:
    """The lists and dicts in a pytree.

    Raises:
        TypeError: If they are not all held by attributes, if anything else may change,
            or if no weak reference to something in them can be made.
    """
    there: set[int] = set()

    def is_leaf(x: Any) -> bool:
        if type(x) in (list, dict):
            there.add(id(x))
            return False
        return not (isinstance(x, tuple | None) or is_frozen(x))

    is_all = jax.tree_util.all_leaves(jax.tree.leaves(tree, is_leaf=is_leaf))
    by_attributes: set[int] = set()
    watched, pending = [], [tree]
    for node in pending:  # grows during the loop
        if isinstance(node, tuple):
            pending += node
        elif is_frozen(node):
            for name, x in vars(node).items():
                pending.append(x)
                if id(x) in there:
                    held = [*map(_reference, _items(x))]
                    watched.append((weakref.ref(node), name, type(x), held))
                    pending += _items(x)
                    by_attributes.add(id(x))
    if not is_all or there != by_attributes:
        raise TypeError
    return watched


def _items(container: Any) -> Sequence[Any]:
    return container if type(container) is list else [*container, *container.values()]


def _reference(x: Any) -> Callable[[], Any]:
    """A weak reference: what is static in a container may refer to what has it."""
    return (lambda: x) if isinstance(x, str | int | float) else weakref.ref(x)


def _is_as_before(watched: tuple[Any, str, type[Any], Sequence[Any]]) -> bool:
    holder_of, name, kind, held = watched
    holder = holder_of()
    if holder is None or type(vars(holder)[name]) is not kind:
        return False
    items = _items(vars(holder)[name])
    # A reference to what is gone gives None, which is in no container that is watched.
    return (
        len(items) == len(held)
        and all(map(is_, items, map(call, held)))
        and not any(map(is_, items, repeat(None)))
    )


def _frame_of(tree: Any, leaves: Sequence[Any], structure: Any) -> Frame:
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


def _is_fixed(tree: Any) -> bool:
    """Whether a pytree, and all in it that is one, is of an immutable type."""

    def may_change(x: Any) -> bool:
        return not (isinstance(x, tuple | None) or is_frozen(x))

    return is_frozen(tree) and jax.tree_util.all_leaves(
        jax.tree.leaves(tree, is_leaf=may_change)
    )


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
    _keep(tree, whole)
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
