"""What is carried from one iteration of a scan to the next, and what must stay so.

A carried object is the same object in every iteration. Inside, one trace of the
function stands for all iterations, so a change of its structure would be made once and
not once an iteration: it is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import jax

from graphcore import RefMap, diff, graphdef, iter_graph
from graphcore.authors import (
    Body,
    Inside,
    enter,
    is_mapping,
    is_object,
    key_path,
    path_text,
    prefix_leaves,
)
from nnx_transforms.prefixes import Carry, StateAxes
from nnx_transforms.transforms.mapped.mapping import is_axis

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
            known = [s is None or s is Carry or is_axis(s) for s in _settings(leaf)]
            if not all(known) or (is_mapping(leaf) and not isinstance(leaf, StateAxes)):
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

    Where something is scanned, or may be made with an axis, each iteration has nodes of
    its own, and only the carried variables must stay where they are.

    Args:
        body: The function of one iteration.
        inside: The objects that it runs on.
    """

    def __init__(self, body: Body, inside: Inside) -> None:
        self._body = body
        settings = body.structure.settings
        by_root = list(map(_settings, settings.roots))
        self._roots = {
            n: inside.roots[n] for n, each in enumerate(by_root) if Carry in each
        }
        self._whole = {
            n: root
            for n, root in self._roots.items()
            if not any(map(is_axis, by_root[n]))
        }
        self._definition = graphdef(self._whole)
        by_variable = RefMap(zip(inside.variables, settings.variables, strict=True))
        self._stay = [
            (x, path)
            for x, path in _paths(self._roots).items()
            if path[0] in self._whole or by_variable.get(x) is Carry
        ]

    def check(self) -> None:
        """Makes sure that what is carried is where it was.

        Raises:
            ValueError: If the structure changed, with the path.
        """
        definition = graphdef(self._whole)
        if definition != self._definition:
            (change, *_) = diff(self._definition, definition)
            raise self._changed(change.path, str(change).partition(": ")[2])
        now = _paths(self._roots)
        for x, path in self._stay:
            found = now.get(x)
            if found != path:
                at = "gone" if found is None else f"at {self._body.place(found)!r}"
                raise self._changed(path, f"the {type(x).__name__} is {at}")

    def _changed(self, path: tuple[Any, ...], how: str) -> ValueError:
        return ValueError(
            "Carry references must be the same between iterations: "
            f"{self._body.place(path)!r} is carried, but the function changed the "
            f"structure there: {how}. Make the change before the scan, or give the "
            "object an axis."
        )


def check_settled(
    body: Body,
    inside: Inside,
    changed: Sequence[Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
) -> None:
    """Makes sure that objects of all iterations stay as the first one leaves them.

    A function may set an attribute, each time to the same. What it counts there is
    another number after each iteration, but one trace stands for all.

    Args:
        body: The function of one iteration.
        inside: The objects that it has run on.
        changed: Their definitions, which it has changed.
        args: Its arguments.
        kwargs: Likewise.

    Raises:
        ValueError: If another iteration would change a structure again; with the path.
    """
    structure = body.structure
    shared = RefMap(
        (inside.roots[number], number)
        for number, setting in enumerate(structure.settings.roots)
        if not any(map(is_axis, _settings(setting)))
        and changed[number] != structure.joint.definitions[number]
    )
    if not shared:
        return
    bound = [inside.roots[number] for number in structure.bound]
    entry = enter(body.__wrapped__, (*bound, *args), kwargs)
    *_, change = jax.eval_shape(entry.body, *entry.values)
    definitions = entry.joint.definitions
    for root, old, new in zip(
        entry.roots, definitions, change.definitions or definitions, strict=True
    ):
        if root in shared and old != new:
            found = diff(old, new)[0]
            raise ValueError(
                f"{body.place((shared[root], *found.path))!r} is one for all "
                "iterations, but the function changes it in each: "
                f"{str(found).partition(': ')[2]} in the second. Count in a variable, "
                "or give the object an axis."
            )


def _paths(roots: dict[int, Any]) -> RefMap[Any, tuple[Any, ...]]:
    """The first path of each graph node and variable, in the order of a visit."""
    return RefMap((x, path) for path, x in iter_graph(roots) if is_object(x))
