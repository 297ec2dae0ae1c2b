"""What is carried from one iteration of a scan to the next, and what must stay so.

A carried object is the same object in every iteration. Inside, one trace of the
function stands for all iterations, so a change of its structure would be made once and
not once an iteration: it is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, TypeAlias

import jax

from graphcore import RefMap, diff, graphdef, iter_graph
from graphcore.authors import (
    Body,
    is_mapping,
    is_object,
    key_path,
    path_text,
    prefix_leaves,
)
from nnx_transforms.prefixes import Carry, StateAxes
from nnx_transforms.transforms.mapping import is_axis

CarryPlace: TypeAlias = tuple[int, ...] | None
"""Where the carry is: `()` if it is the whole, `(k,)` for entry `k`, None without."""


def carry_place(axes: Any, name: str) -> CarryPlace:
    """Finds `Carry` in axes.

    Args:
        axes: As given, a list counting as a tuple.
        name: Which axes these are.

    Returns:
        The place.

    Raises:
        ValueError: If `Carry` is there twice, or inside of an entry.
    """
    if axes is Carry:
        return ()
    pairs = jax.tree_util.tree_flatten_with_path(axes, is_leaf=is_mapping)[0]
    paths = [key_path(path) for path, leaf in pairs if leaf is Carry]
    if not paths:
        return None
    if len(paths) > 1:
        places = " and ".join(repr(path_text(path)) for path in paths)
        raise ValueError(
            f"Found multiple Carry definitions in {name}={axes!r}, at {places}: one "
            "argument is carried; make it a tuple to carry several values."
        )
    (path,) = paths
    if not isinstance(axes, tuple) or len(path) > 1:
        raise ValueError(
            f"Carry must stand for a whole argument or output, but {name}={axes!r} has "
            f"it inside, at {path_text(path)!r}."
        )
    return path


def check_scan_axes(in_axes: Any, out_axes: Any) -> tuple[CarryPlace, CarryPlace]:
    """Checks the axes of a scan, as far as that is possible without arguments.

    Args:
        in_axes: As given.
        out_axes: As given.

    Returns:
        The places of the carry in both.

    Raises:
        ValueError: If only one has a carry, there is more than one, or something is
            to leave that has no axis.
        TypeError: If a setting is no axis.
    """
    places = carry_place(in_axes, "in_axes"), carry_place(out_axes, "out_axes")
    if (places[0] is None) != (places[1] is None):
        raise ValueError(
            "If one of in_axes or out_axes has Carry, the other must also have Carry. "
            f"Got in_axes={in_axes!r} and out_axes={out_axes!r}."
        )
    for name, axes in (("in_axes", in_axes), ("out_axes", out_axes)):
        for leaf in prefix_leaves(axes):
            for setting in _settings(leaf):
                known = setting is None or setting is Carry or is_axis(setting)
                if not known or (is_mapping(leaf) and not isinstance(leaf, StateAxes)):
                    raise TypeError(
                        f"scan's {name} takes integers, None, Carry, or a StateAxes of "
                        f"these, but got {leaf!r}."
                    )
    for leaf in prefix_leaves(out_axes):
        settings = _settings(leaf)
        if None in settings:
            raise ValueError(
                f"Cannot broadcast output state. Got {leaf!r} in out_axes, but each "
                "iteration has an output of its own. Give it an axis, or carry it."
            )
        if is_mapping(leaf) and Carry in settings:
            raise ValueError(
                f"Cannot carry output state: {leaf!r} in out_axes has Carry, but what "
                "is carried must come in first. Carry the object as a whole."
            )
    return places


def _settings(leaf: Any) -> Sequence[Any]:
    """The settings that one leaf of a tree prefix stands for."""
    return leaf.settings if is_mapping(leaf) else (leaf,)


def take_carry(tree: Any, place: CarryPlace) -> tuple[Any, Any]:
    """Divides arguments or an output into the carry and the rest.

    Args:
        tree: The pytree.
        place: The place of the carry.

    Returns:
        The carry, and the tree with None in its place.
    """
    if place is None:
        return None, tree
    if place == ():
        return tree, None
    (k,) = place
    return tree[k], (*tree[:k], None, *tree[k + 1 :])


def put_carry(tree: Any, carry: Any, place: CarryPlace) -> Any:
    """Undoes `take_carry`."""
    if place is None:
        return tree
    if place == ():
        return carry
    (k,) = place
    return (*tree[:k], carry, *tree[k + 1 :])


def check_carried_objects(given: Any, came_back: Any) -> None:
    """Makes sure that carried objects come back where they were.

    Args:
        given: The carry that the function got.
        came_back: The carry that it returned.

    Raises:
        ValueError: If a place has another object, or none; with the path.
    """
    before, after = _objects(given), _objects(came_back)
    for path in (*before, *after):
        old, new = before.get(path), after.get(path)
        if old is not new:
            raise ValueError(
                "Carry references must be the same between iterations: at "
                f"{path_text(('carry', *path))!r} the function got {_what(old)} and "
                f"returned {_what(new, old)}. Update the object that was given, and "
                "return it in the same place."
            )


def _objects(tree: Any) -> dict[Any, Any]:
    pairs = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_object)[0]
    return {key_path(path): leaf for path, leaf in pairs if is_object(leaf)}


def _what(x: Any, other: Any = None) -> str:
    if x is None:
        return "no object"
    name = type(x).__name__
    return f"another {name}" if type(x) is type(other) else f"a {name}"


class CarriedGraph:
    """The structure of the objects of which something is carried.

    Args:
        body: The function of one iteration.
        roots: The inner objects that it runs on.
    """

    def __init__(self, body: Body, roots: Sequence[Any]) -> None:
        self._body = body
        self._settings = body.structure.settings.variables
        found: list[list[Any]] = [[s] for s in body.structure.settings.roots]
        for (number, *_), setting in zip(
            body.structure.joint.paths, self._settings, strict=True
        ):
            found[number].append(setting)
        carried = [n for n, settings in enumerate(found) if Carry in settings]
        every = [chain.from_iterable(map(_settings, each)) for each in found]
        scanned = {n for n, settings in enumerate(every) if any(map(is_axis, settings))}
        # Where something is scanned, or may be made with an axis, each iteration has
        # nodes of its own, and only the carried variables must stay where they are.
        self._whole = _Part(roots, [n for n in carried if n not in scanned])
        self._mixed = _Part(roots, [n for n in carried if n in scanned])

    def check(self, variables: Sequence[Any]) -> None:
        """Makes sure that what is carried is where it was.

        Args:
            variables: The inner variables, in order of index.

        Raises:
            ValueError: If the structure changed, with the path.
        """
        part, definition = self._whole, graphdef(self._whole.roots)
        if part.definition != definition:
            (change, *_) = diff(part.definition, definition)
            raise self._changed(part, change.path, str(change).partition(": ")[2])
        paths = _paths(part.roots)
        for old, new in zip(part.paths, paths, strict=True):
            if old is not new:
                how = f"another {type(new).__name__} stands there"
                raise self._changed(part, paths[new], how)
        part, paths = self._mixed, _paths(self._mixed.roots)
        for variable, setting in zip(variables, self._settings, strict=True):
            path = part.paths.get(variable)
            if setting is Carry and path is not None:
                found = paths.get(variable)
                if found is None:
                    raise self._changed(part, path, "the variable is gone")
                if found != path:
                    how = f"the variable is at {self._place(part, found)!r}"
                    raise self._changed(part, path, how)

    def _place(self, part: _Part, path: tuple[Any, ...]) -> str:
        return self._body.place((part.numbers[path[0]], *path[1:]))

    def _changed(self, part: _Part, path: tuple[Any, ...], how: str) -> ValueError:
        return ValueError(
            "Carry references must be the same between iterations: "
            f"{self._place(part, path)!r} is carried, but the function changed the "
            f"structure there: {how}. Make the change before the scan, or give the "
            "object an axis."
        )


class _Part:
    """Some of the roots, as they were."""

    def __init__(self, roots: Sequence[Any], numbers: list[int]) -> None:
        self.numbers = numbers
        self.roots = tuple(roots[n] for n in numbers)
        self.definition = graphdef(self.roots)
        self.paths = _paths(self.roots)


def _paths(roots: tuple[Any, ...]) -> RefMap[Any, tuple[Any, ...]]:
    """The first path of each graph node and variable, in the order of a visit."""
    return RefMap((x, path) for path, x in iter_graph(roots) if is_object(x))
