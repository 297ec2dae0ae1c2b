"""What programs do to a graph: small edits that are the same on both kinds of objects.

An action says what to do, and with which objects by numbers, so that it means the same
in any graph. Where there is nothing that it could be done with, it does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from tools.soak.kits import FIXED, KINDS, NODES, Kit, Net, form, leaves, mapped, mod

__all__ = ["ANYWHERE", "BEHIND", "STRUCTURE", "Action", "Survey", "act", "digest"]


class Action(NamedTuple):
    """One edit.

    Args:
        name: Which one; a function of this module.
        i: Which object, counted modulo the number of those there are.
        j: Another number.
        k: Another one.
    """

    name: str
    i: int
    j: int
    k: int


class Survey:
    """All that can be reached from some roots, each object once, in order of keys.

    Args:
        kit: The kind of the objects.
        roots: Nodes.
    """

    def __init__(self, kit: Kit, roots: Sequence[Any]) -> None:
        self.kit = kit
        self.nodes: list[Any] = []
        self.variables: list[Any] = []
        # Each place where a variable is: the holder, and the variable.
        self.places: list[tuple[Any, Any]] = []
        # Places of what has no identity: the holder, the key, and the child.
        self.statics: list[tuple[Any, Any, Any]] = []
        self.arrays: list[tuple[Any, Any, Any]] = []
        self.containers: list[Any] = []  # plain lists and dicts
        self._seen: set[int] = set()
        for root in roots:
            self._visit(None, None, root)

    def _visit(self, holder: Any, key: Any, x: Any) -> None:
        kit = self.kit
        if kit.is_variable(x) or kit.is_node(x):
            if kit.is_variable(x):
                self.places.append((holder, x))
            if id(x) in self._seen:
                return
            self._seen.add(id(x))
            (self.variables if kit.is_variable(x) else self.nodes).append(x)
        elif kit.is_array(x):
            self.arrays.append((holder, key, x))
        elif type(x) in (list, dict):
            self.containers.append(x)
        elif type(x) not in FIXED:
            self.statics.append((holder, key, x))
        for name, child in kit.children(x) or ():
            self._visit(x, name, child)

    def of_kind(self, *kinds: str) -> list[Any]:
        """The variables of some types."""
        return [v for v in self.variables if self.kit.kind(v) in kinds]


def pick(sequence: Sequence[Any], number: int) -> Any:
    return sequence[number % len(sequence)]


def act(
    kit: Kit, roots: Sequence[Any], x: Any, action: Action, in_map: bool = False
) -> None:
    """Performs an action.

    Args:
        kit: The kind of the objects.
        roots: Where they are reached from.
        x: A number that the function was given.
        action: What to do.
        in_map: Whether a map over an axis surrounds the function. Then what isn't
            mapped over must become the same for each index.
    """
    _DO[action.name](Survey(kit, roots), x, action, in_map)


def digest(kit: Kit, roots: Sequence[Any], x: Any) -> Any:
    """A number that depends on all values."""
    total = x
    for number, variable in enumerate(Survey(kit, roots).variables):
        total = total + (number + 1) * _sum(variable.value, np.float32)
    return mod(total)


def _sum(value: Any, dtype: Any) -> Any:
    return sum(x.sum(dtype=x.dtype).astype(dtype) for x in leaves(value))


# Values


def add(found: Survey, x: Any, action: Action, in_map: bool) -> None:
    if found.variables:
        v = pick(found.variables, action.i)
        v.value = mapped(lambda a: mod(a + (action.j % 5 + 1)), v.value)


def mix(found: Survey, x: Any, action: Action, in_map: bool) -> None:
    if found.variables:
        v, other = (pick(found.variables, n) for n in (action.i, action.j))
        kind = found.kit.kind
        if in_map and kind(v) != "Stacked" and kind(other) == "Stacked":
            return
        values = other.value
        v.value = mapped(lambda a: mod(a + _sum(values, a.dtype)), v.value)


def scale(found: Survey, x: Any, action: Action, in_map: bool) -> None:
    if found.variables:
        v = pick(found.variables, action.i)
        v.value = mapped(lambda a: mod(a * (action.j % 3 + 2)), v.value)


def take_input(found: Survey, x: Any, action: Action, in_map: bool) -> None:
    candidates = found.of_kind("Stacked") if in_map else found.variables
    if candidates:
        v = pick(candidates, action.i)
        v.value = mapped(lambda a: mod(a + x.astype(a.dtype)), v.value)


def exchange_values(found: Survey, x: Any, action: Action, in_map: bool) -> None:
    if found.variables:
        v = pick(found.variables, action.i)
        stacked = found.kit.kind(v) == "Stacked"
        alike = [
            w
            for w in found.variables
            if form(w.value) == form(v.value)
            and (found.kit.kind(w) == "Stacked") == stacked
        ]
        w = pick(alike, action.j)
        v.value, w.value = w.value, v.value


def write_bare(found: Survey, x: Any, action: Action, in_map: bool) -> None:
    places = [p for p in found.arrays if type(p[0]) not in FIXED]
    if places:
        holder, key, array = pick(places, action.i)
        found.kit.put(holder, key, mod(array + (action.j % 5 + 1)))


# Structure


def attach(found: Survey, x: Any, action: Action, in_map: bool) -> None:
    holder = pick(found.nodes, action.i)
    found.kit.put(holder, _key(found.kit, holder, action.j), _child(found, action))


def attach_inside(found: Survey, x: Any, action: Action, in_map: bool) -> None:
    """Puts something into a plain container: no other one, which could form a cycle."""
    if found.containers:
        holder = pick(found.containers, action.i)
        key = (
            pick("pq", action.j)
            if type(holder) is dict
            else action.j % (min(len(holder), 3) + 1)
        )
        child = _child(found, action)
        if not _plain_inside(child):
            found.kit.put(holder, key, child)


def detach(found: Survey, x: Any, action: Action, in_map: bool) -> None:
    holders = [n for n in found.nodes + found.containers if found.kit.children(n)]
    if holders:
        holder = pick(holders, action.i)
        found.kit.drop(holder, pick(found.kit.children(holder) or (), action.j)[0])


def exchange(found: Survey, x: Any, action: Action, in_map: bool) -> None:
    holders = [n for n in found.nodes if found.kit.children(n)]
    if holders:
        one, two = (pick(holders, n) for n in (action.i, action.j))
        children = found.kit.children
        (a, first), (b, second) = (
            pick(children(n) or (), action.k) for n in (one, two)
        )
        if not _plain_inside(first) and not _plain_inside(second):
            found.kit.put(one, a, second)
            found.kit.put(two, b, first)


def _plain_inside(x: Any) -> bool:
    """What has no identity and can change in place must not stand in two places."""
    return type(x) in (list, dict, set, *FIXED)


def note(found: Survey, x: Any, action: Action, in_map: bool) -> None:
    if found.variables:
        v = pick(found.variables, action.i)
        notes = found.kit.notes(v)
        if action.j % 3:
            notes["unit"] = pick(["m", 1, True, 1.0, ("s", None)], action.k)
        else:
            notes.pop("unit", None)
        found.kit.note(v, notes)


def reshape(found: Survey, x: Any, action: Action, in_map: bool) -> None:
    plain = found.of_kind("Param", "BatchStat", "Count", "Stacked")
    if plain:
        v = pick(plain, action.i)
        xp = np if isinstance(v.value, np.ndarray | np.generic) else jnp
        shape = {(): (2,), (2,): (2, 3), (2, 3): ()}[v.value.shape]
        if found.kit.kind(v) == "Stacked" and shape == ():
            shape = (2,)
        first = v.value.ravel()[0]
        v.value = xp.broadcast_to(first, shape) + xp.zeros(shape, v.value.dtype)


def retype(found: Survey, x: Any, action: Action, in_map: bool) -> None:
    """Another variable of another type takes the place of one."""
    kit = found.kit
    places = [
        (n, key)
        for n in found.nodes
        for key, child in kit.children(n) or ()
        if kit.is_variable(child) and kit.kind(child) in ("Param", "BatchStat")
    ]
    if places:
        holder, key = pick(places, action.i)
        old = dict(kit.children(holder) or ())[key]
        kind = {"Param": "BatchStat", "BatchStat": "Param"}[kit.kind(old)]
        kit.put(holder, key, kit.variable(kind, old.value, kit.notes(old)))


# Behind the back of the library


def put_behind(found: Survey, x: Any, action: Action, in_map: bool) -> None:
    nodes = [n for n in found.nodes if found.kit.kind(n) in ("Node", "Other", "Dict")]
    if nodes:
        holder = pick(nodes, action.i)
        vars(holder)[_key(found.kit, holder, action.j)] = _child(found, action)


def become(found: Survey, x: Any, action: Action, in_map: bool) -> None:
    swap = {"Node": "Other", "Other": "Node", "Param": "BatchStat"}
    swap["BatchStat"] = "Param"
    kind = found.kit.kind
    objects = [o for o in found.nodes + found.variables if kind(o) in swap]
    if objects:
        chosen = pick(objects, action.i)
        found.kit.become(chosen, swap[kind(chosen)])


def stir(found: Survey, x: Any, action: Action, in_map: bool) -> None:
    """Changes a static value in place."""
    sets = [child for *_, child in found.statics if type(child) is set]
    if sets:
        pick(sets, action.i).symmetric_difference_update({action.j % 3})


def _key(kit: Kit, holder: Any, number: int) -> Any:
    if kit.kind(holder) == "List":
        return number % (min(len(holder), 3) + 1)
    return pick("abcde", number)


def _child(found: Survey, action: Action) -> Any:
    kit, number = found.kit, action.j + action.k
    known = found.nodes + found.variables
    small = kit.array(np.asarray(number % 7, np.float32))
    makers: list[Callable[[], Any]] = [
        lambda: pick(known, number),  # shared, or a cycle
        lambda: pick(known, number + 1),
        lambda: pick([0, 1, True, 1.0, "s", (1, "t"), None, abs], number),
        lambda: {number % 3},
        lambda: kit.node(pick(NODES, number)),
        lambda: kit.node(pick(NODES, number)),
        lambda: _variable(kit, pick(KINDS, number), number),
        lambda: _variable(kit, pick(KINDS, number), number),
        lambda: small,
        lambda: [pick(known, number), 1, small],
        lambda: {"p": pick(known, number), "q": "s"},
        lambda: (pick(known, number), small),
        lambda: Net(pick(_ACTS, number), small),
    ]
    return pick(makers, action.k)()


def _variable(kit: Kit, kind: str, number: int) -> Any:
    shape = {"Param": (), "BatchStat": (2,), "Count": (), "Stacked": (2,)}.get(kind, ())
    dtype = np.int32 if kind == "Count" else np.float32
    value: Any = kit.array(np.full(shape, number % 11, dtype))
    if kind == "Parts":
        value = {"re": value, "im": (kit.array(np.full((2,), number % 5, dtype)),)}
    elif kind == "Whole":
        value = Net(pick(_ACTS, number), value)
    return kit.variable(kind, value, {"unit": "m"} if number % 2 else {})


_ACTS = (abs, round)


def _named(*functions: Callable[..., None]) -> dict[str, Callable[..., None]]:
    return {f.__name__: f for f in functions}


_VALUES = _named(add, mix, scale, take_input, exchange_values, write_bare)
_STRUCTURE = _named(attach, attach_inside, detach, exchange, note, reshape, retype)
_BEHIND = _named(put_behind, become, stir)
_DO = {**_VALUES, **_STRUCTURE, **_BEHIND}
ANYWHERE = (*_VALUES,)
"""The names of actions that change values alone."""
STRUCTURE = (*_STRUCTURE,)
"""Those of actions that change the structure, inside of some transforms as well."""
BEHIND = (*_BEHIND,)
"""Those of actions that no method of the library sees; outside of transforms."""
