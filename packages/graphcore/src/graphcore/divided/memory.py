"""What pytrees of types that never change were divided into, as long as they live.

Such a pytree comes again at each call, and is not taken apart again. It may have lists
and dicts in it, which can change: after a few calls, these are watched.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import repeat
from operator import call, is_
from typing import Any, TypeAlias

import jax

from graphcore.divided.frames import Frame
from graphcore.variables.bare_arrays import is_frozen

# A weak reference to what holds a list or dict, its name there, its type, and weak
# references to what is in it.
_Watched: TypeAlias = Sequence[tuple[Any, str, type[Any], Sequence[Any]]]

# By the id of a pytree a weak reference to it, its arrays and frame, and the lists and
# dicts in it. The frame is held weakly: what is static in it might refer to the pytree.
_kept: dict[int, tuple[Any, Sequence[Any], Any, _Watched]] = {}
_NOT_KEPT: tuple[Any, Sequence[Any], Any, _Watched] = (lambda: _kept, (), None, ())
# How often those came that have lists or dicts in them, likewise by id.
_came: dict[int, tuple[Any, int]] = {}
# Most pytrees come for one call, which may divide them a few times.
_OFTEN = 8


def recall(tree: Any) -> tuple[Sequence[Any], Frame] | None:
    """The arrays and the frame of a pytree, if they are known.

    Args:
        tree: Any object.
    """
    reference, arrays, frame_of, watched = _kept.get(id(tree), _NOT_KEPT)
    frame = frame_of() if reference() is tree else None
    if frame is None or not (frame.is_current() and all(map(_is_as_before, watched))):
        return None
    return arrays, frame


def keep(
    tree: Any, arrays: Sequence[Any], frame: Frame, watched: _Watched = ()
) -> None:
    """Remembers what a pytree that does not change was divided into.

    Args:
        tree: The pytree.
        arrays: Its arrays.
        frame: Its frame.
        watched: The lists and dicts in it.
    """
    _note(_kept, tree, arrays, weakref.ref(frame), watched)


def watch(tree: Any, arrays: Sequence[Any], frame: Frame) -> None:
    """Remembers it of one that has lists or dicts in it, once it has come often.

    Args:
        tree: The pytree.
        arrays: Its arrays.
        frame: Its frame.
    """
    reference, before = _came.get(id(tree), (_NOT_KEPT[0], 0))
    has_changed = _kept.pop(id(tree), None) is not None
    times = 1 if has_changed or reference() is not tree else before + 1
    if times <= _OFTEN:
        _note(_came, tree, times)
    if times == _OFTEN and not is_open(tree):
        with suppress(TypeError):
            keep(tree, arrays, frame, _containers_of(tree))


def is_open(tree: Any) -> bool:
    """Whether a pytree of an immutable type is still being made, in its `__init__`.

    Args:
        tree: The pytree.
    """
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


def _note(notes: dict[int, Any], tree: Any, *about: Any) -> None:
    number = id(tree)
    try:
        alive = weakref.ref(tree, functools.partial(notes.pop, number))
    except TypeError:  # No weak reference to it can be made.
        return
    notes[number] = alive, *about


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
