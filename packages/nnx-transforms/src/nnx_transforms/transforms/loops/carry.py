"""What is carried from one iteration of a scan to the next, and what must stay so.

A carried object is the same object in every iteration. Inside, one trace of the
function stands for all iterations, so a change of its structure would be made once and
not once an iteration: it is refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, TypeAlias

import jax

from graphcore import RefMap, Variable, VariableState, diff
from graphcore.authors import (
    Body,
    Change,
    Entry,
    Inside,
    enter,
    is_mapping,
    is_object,
    is_variable_type,
    key_path,
    path_text,
    prefix_leaves,
)
from nnx_transforms.prefixes import Carry, StateAxes
from nnx_transforms.transforms.loops.agreement import combined, defined
from nnx_transforms.transforms.mapped.mapping import axes_given, is_axis, settings_in

Path: TypeAlias = tuple[Any, ...]
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


def scan_axes(in_axes: Any, out_axes: Any) -> tuple[Any, Any, CarryPlace, CarryPlace]:
    """The axes of a scan, after a check as far as that is possible without arguments.

    Args:
        in_axes: As given.
        out_axes: As given.

    Returns:
        Both with settings of our own, and the places of the carry in both.

    Raises:
        ValueError: If only one has a carry, there is more than one, or something is
            to leave that has no axis.
        TypeError: If a setting is no axis.
    """
    takes = "integers, None, Carry, or a StateAxes"
    in_axes, out_axes = axes_given(
        "scan", in_axes, out_axes, takes=takes, is_known=_may_be_scanned
    )
    places = carry_place(in_axes, "in_axes"), carry_place(out_axes, "out_axes")
    if (places[0] is None) != (places[1] is None):
        raise ValueError(
            "If one of in_axes or out_axes has Carry, the other must also have Carry. "
            f"Got in_axes={in_axes!r} and out_axes={out_axes!r}."
        )
    for leaf in prefix_leaves(out_axes):
        settings = settings_in(leaf)
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
    return in_axes, out_axes, *places


def _may_be_scanned(leaf: Any, setting: Any) -> bool:
    is_known = setting is None or setting is Carry or is_axis(setting)
    return is_known and (isinstance(leaf, StateAxes) or not is_mapping(leaf))


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


class CarriedAnew(ValueError):
    """All variables of another library that are carried came back as others."""


def is_foreign_variable(x: Any) -> bool:
    """Whether it is a variable of another library."""
    return is_variable_type(type(x)) and not isinstance(x, Variable)


def _are_made_anew(before: dict[Path, Any], after: dict[Path, Any]) -> bool:
    """Whether all such variables, and nothing else, came back as others like them."""
    if before.keys() != after.keys():
        return False
    pairs = [(old, after[path]) for path, old in before.items()]
    kinds = [
        [VariableState.from_variable(x)._kind for x in pair if is_foreign_variable(x)]
        for pair in pairs
    ]
    return any(kinds) and all(
        (old is not new and kind[:1] == kind[1:]) if kind else old is new
        for kind, (old, new) in zip(kinds, pairs, strict=True)
    )


def check_carried_objects(before: dict[Path, Any], came_back: Any) -> None:
    """Makes sure that carried objects come back where they were.

    Args:
        before: The objects in the carry that the function got, by path. They are found
            before it runs: a pytree may be of no use any more once it has.
        came_back: The carry that it returned.

    Raises:
        ValueError: If a place has another object, or none; with the path. It is a
            `CarriedAnew` where that is so of all variables of another library.
    """
    after = objects_by_path(came_back)
    for path in (*before, *after):
        old, new = before.get(path), after.get(path)
        if old is not new:
            kind = CarriedAnew if _are_made_anew(before, after) else ValueError
            raise kind(
                "Carry references must be the same between iterations: at "
                f"{path_text(('carry', *path))!r} the function got {_what(old)} and "
                f"returned {_what(new, old)}. Update the object that was given, and "
                "return it in the same place."
            )


def objects_by_path(tree: Any) -> dict[Path, Any]:
    """The objects in a pytree by their paths."""
    pairs = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_object)[0]
    return {key_path(path): leaf for path, leaf in pairs if is_object(leaf)}


def _what(x: Any, other: Any = None) -> str:
    if x is None:
        return "no object"
    name = type(x).__name__
    return f"another {name}" if type(x) is type(other) else f"a {name}"


def check_carried(body: Body, change: Change) -> None:
    """Makes sure that what is carried is where it was.

    Where something is scanned, or may be made with an axis, each iteration has nodes of
    its own, and only the carried variables must stay where they are.

    Args:
        body: The function of one iteration.
        change: What it did.

    Raises:
        ValueError: If the structure changed, with the path.
    """
    if change.definitions is None:
        return
    joint, settings = body.structure.joint, body.structure.settings
    whole = {
        number
        for number, each in enumerate(map(settings_in, settings.roots))
        if Carry in each and not any(map(is_axis, each))
    }
    before = combined(enumerate(joint.definitions))
    after = combined(enumerate(change.definitions))

    def changed(path: Path, how: str) -> ValueError:
        return ValueError(
            "Carry references must be the same between iterations: "
            f"{body.place(path)!r} is carried, but the function changed the "
            f"structure there: {how}. Make the change before the scan, or give the "
            "object an axis."
        )

    for found in diff(before, after):
        # What is static may be set, each time to the same: see `check_settled`.
        if found.path[0] in whole and found.kind != "static":
            raise changed(found.path, str(found).partition(": ")[2])
    pairs = zip(joint.variable_definitions, settings.variables, strict=True)
    carried = {definition.index for definition, setting in pairs if setting is Carry}
    # An array without a variable is carried as it was where it is gone.
    carried -= {joint.variable_definitions[i].index for i, *_ in joint.layout.bare}
    old_index = dict(change.mapping)
    now = {old_index.get(item.index): path for path, item in defined(after)}
    for path, item in defined(before):
        stays, found_at = path[0] in whole or item.index in carried, now.get(item.index)
        if stays and found_at != path:
            at = "gone" if found_at is None else f"at {body.place(found_at)!r}"
            raise changed(path, f"the {item.type.__name__} is {at}")


def check_settled(
    body: Body,
    inside: Inside,
    changed: Sequence[Any],
    given: tuple[Sequence[Any], dict[str, Any]],
) -> None:
    """Makes sure that objects of all iterations stay as the first one leaves them.

    A function may set an attribute, each time to the same. What it counts there is
    another number after each iteration, and what it does as long as it is not set, the
    first one does alone; but one trace stands for all.

    Args:
        body: The function of one iteration.
        inside: The objects that it has run on.
        changed: Their definitions, which it has changed.
        given: Its arguments and keyword arguments, None in the place of objects.

    Raises:
        ValueError: If another iteration would change a structure again, or compute
            something else; with the path.
    """
    structure = body.structure
    shared = RefMap(
        (inside.roots[number], number)
        for number, setting in enumerate(structure.settings.roots)
        if not any(map(is_axis, settings_in(setting)))
        and changed[number] != structure.joint.definitions[number]
    )
    if not shared:
        return
    before = Inside(structure.joint, inside.values)
    first, _, _ = _traced_again(body, before, given)
    second, entry, change = _traced_again(body, inside, given)
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
    if first != second:
        number = min(shared.values())
        found = diff(structure.joint.definitions[number], changed[number])[0]
        raise ValueError(
            f"{body.place((number, *found.path))!r} is one for all iterations, and the "
            f"function sets it ({str(found).partition(': ')[2]}), but computes "
            "something else where it is set already. Set it before the scan, or make "
            "it a variable and use `cond`."
        )


def _traced_again(
    body: Body, inside: Inside, given: tuple[Sequence[Any], dict[str, Any]]
) -> tuple[str, Entry, Change]:
    """What one more iteration computes, the call of it, and what it changes."""
    given = jax.tree.map(lambda x: x, given)  # the function may use them up
    args, kwargs = body.fill(inside, *given)
    bound = [inside.roots[number] for number in body.structure.bound]
    entry = enter(body.__wrapped__, (*bound, *args), kwargs)
    numbers = RefMap((x, number) for number, x in enumerate(inside.variables))
    # Of the first iteration: others may be of strong types where these are weak.
    raw = zip(entry.variables, entry.raw, strict=True)
    entry.raw = [inside.values[numbers[v]] if v in numbers else x for v, x in raw]
    changes: list[Change] = []

    def iteration() -> Any:
        groups, out, change = entry.body(*entry.values)
        changes.append(change)
        # In an order that does not depend on where the variables stand by now.
        written = {
            len(numbers) + i if p is None else numbers[entry.variables[p]]: x
            for i, (p, x) in enumerate(zip(change.positions, *groups, strict=True))
        }
        return written, out

    jaxpr = jax.make_jaxpr(iteration)()
    return _ADDRESS.sub("", str(jaxpr)), entry, changes[0]


_ADDRESS = re.compile("0x[0-9a-f]+")
