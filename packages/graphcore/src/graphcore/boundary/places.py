"""Where the objects are among the arguments and results of a function.

A transformation passes arrays to JAX, so objects are taken out of the pytrees they
stand in, and put back, or others that stand for them. In most calls the objects are
arguments themselves and all other arguments are arrays or containers of arrays. Which
of them are what depends on their types alone, so it is found out once for each
combination of types. What a list, tuple or dict holds is told by the types in it, and
what another pytree does by its treedef and the types of its leaves.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import chain
from types import FunctionType
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np
from jax.tree_util import tree_flatten

from graphcore.adapters.loading import may_have_nodes, registrations
from graphcore.content import StrictTreeDef
from graphcore.divided.divided import Divided, divide, remembered
from graphcore.divided.filtered_types import is_filtered
from graphcore.known_types import inherited_impl, known_impl
from graphcore.nodes.registry import GraphNodeImpl
from graphcore.probing import probing
from graphcore.trails import Path, key_of
from graphcore.variables.impl import VariableImpl

__all__ = ["Places", "has_objects", "is_object", "key_path", "take_objects"]

Place: TypeAlias = int | str
"""The position of an argument, or its name."""

_NUMBERS = (bool, int, float, complex)
# Types whose instances surely are objects, or surely are not. A type that is unknown
# now may be registered later, so a "no" is kept only for the types listed here, and
# for arrays and tracers.
_NO_OBJECTS = (str, tuple, list, dict, type(None), FunctionType, jax.Array, np.ndarray)
_known: dict[type[Any], bool] = dict.fromkeys((*_NUMBERS, *_NO_OBJECTS), False)
_arrays: set[type[Any]] = {*_NUMBERS}
_ARRAYS = (jax.Array, np.ndarray, np.generic, *_NUMBERS)


def is_object(x: Any) -> bool:
    """Tells whether a leaf of a pytree is a graph node or variable.

    Args:
        x: Anything.

    Returns:
        Whether a transformation treats it as a live object.

    Example:
        >>> import graphcore as gc
        >>> is_object(gc.Param(1)), is_object(gc.Dict()), is_object([gc.Param(1)])
        (True, True, False)
    """
    kind = type(x)
    known = _known.get(kind)
    if known is not None:
        return known
    impl = known_impl(kind) or inherited_impl(kind)
    found = isinstance(impl, (GraphNodeImpl, VariableImpl))
    if found or isinstance(x, jax.Array):
        _known[kind] = found
        if not found:
            _arrays.add(kind)
    return found


def has_objects(tree: Any) -> bool:
    """Tells whether a graph node or variable is among the leaves of a pytree.

    Args:
        tree: Any pytree.

    Returns:
        Whether there is one.

    Example:
        >>> import graphcore as gc
        >>> has_objects({'a': [gc.Param(1)]}), has_objects({'a': [1]})
        (True, False)
    """
    return type(tree) not in _arrays and contents(tree) == OBJECTS


OBJECTS, FILTERED = 1, 2


def contents(tree: Any) -> int:
    """What a transformation must take out of a pytree before JAX gets it.

    Args:
        tree: Any pytree.

    Returns:
        `OBJECTS` if there are any; else `FILTERED` if there are pytrees of such a type,
        to be divided; else 0.
    """
    # Objects are left out, because foreign ones may be cyclic.
    tree = _other_parts(tree if type(tree) in (list, tuple) else [tree])
    if not tree:
        return 0  # the usual case; no need to flatten it
    if _have_object(tree) or (may_have_nodes() and _have_object_below(tree)):
        return OBJECTS
    probing.active, probing.found = True, False
    try:
        leaves, structure = jax.tree.flatten(tree)
    finally:
        probing.active = False
    if probing.found or (
        not _arrays.issuperset(map(type, leaves)) and _have_object(leaves)
    ):
        return OBJECTS
    # A type may be a graph node here and a pytree for JAX; it may be registered later.
    key: Any = (structure, registrations.count)
    try:
        known = _structures.get(key)
    except Exception:  # What is static in a foreign node or module can't be compared.
        key = known = None
    if known is None:
        if any(map(is_object, jax.tree.leaves(tree, is_leaf=is_object))):
            return OBJECTS  # not cached: the structure has static values of theirs
        leaves = jax.tree.leaves(tree, is_leaf=is_filtered)
        known = FILTERED * any(map(is_filtered, leaves))
        if key is not None:
            _keep(_structures, key, known)
    return known


def _have_object(parts: Collection[Any]) -> bool:
    return any(map(is_object, {type(x): x for x in parts}.values()))


def _have_object_below(parts: Collection[Any]) -> bool:
    """Whether objects are in pytrees: by level, since JAX finds no end of some."""
    seen: dict[int, Any] = {}  # A pytree that holds itself is for JAX to refuse.
    while parts := [x for x in parts if id(x) not in seen]:
        seen.update((id(x), x) for x in parts)
        parts = _other_parts([*chain.from_iterable(map(_children, parts))])
        if _have_object(parts):
            return True
    return False


def _children(part: Any) -> Sequence[Any]:
    return jax.tree.leaves(part, is_leaf=lambda x: x is not part)


def _other_parts(parts: Collection[Any]) -> list[Any]:
    """What is no array, container or None, among parts and in containers there."""
    others: list[Any] = []
    if _arrays.issuperset(map(type, parts)):
        return others
    for part in parts:
        kind = type(part)
        if kind is dict:
            part = part.values()
        elif kind is not list and kind is not tuple:
            if kind not in _arrays and part is not None:
                others.append(part)
            continue
        if not _arrays.issuperset(map(type, part)):
            others += _other_parts(part)
    return others


# Pytrees of these structures hold no objects but, maybe, among their leaves.
_structures: dict[Any, int] = {}
# Pytrees of these structures with objects at these spots have nothing to be divided.
_places: dict[Any, Places] = {}
_MAX_KNOWN = 4096


def _keep(known: dict[Any, Any], key: Any, found: Any) -> None:
    if len(known) >= _MAX_KNOWN:
        known.clear()
    known[key] = found


def key_path(path: Any) -> Path:
    """The plain keys of a JAX key path.

    Args:
        path: As `jax.tree_util.tree_flatten_with_path` gives it.

    Returns:
        Keys, positions and names.

    Example:
        >>> import jax
        >>> key_path(jax.tree_util.tree_leaves_with_path({'a': [1]})[0][0])
        ('a', 0)
    """
    return tuple(map(key_of, path))


@dataclass(frozen=True)
class Places:
    """Where the objects are in a pytree.

    Args:
        structure: The structure of the pytree, objects counting as leaves.
        spots: For each object in it, the number of the leaf and of the object.
        has_divided: Whether a part of the pytree without objects is a `Divided`.

    Example:
        >>> import graphcore as gc
        >>> from graphcore.authors import take_objects
        >>> _, places, _ = take_objects([gc.Dict(), 2])
        >>> places.spots, places.fill([None, 3], ['here'])
        (((0, 0),), ['here', 3])
    """

    structure: Any = field(compare=False)
    spots: tuple[tuple[int, int], ...]
    has_divided: bool = False
    compared: StrictTreeDef = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "compared", StrictTreeDef(self.structure))

    def fill(self, plain: Any, objects: Sequence[Any]) -> Any:
        """Puts objects into a pytree from which they were taken.

        Args:
            plain: The pytree with None in the place of each object.
            objects: The objects by number.

        Returns:
            The pytree with objects, and with what is divided joined.
        """
        if self.has_divided:
            plain = Divided.map(Divided.join, plain)
        if not self.spots:
            return plain
        leaves = jax.tree.leaves(plain, is_leaf=is_object)
        for position, number in self.spots:
            leaves.insert(position, objects[number])
        return jax.tree.unflatten(self.structure, leaves)

    def paths(self, tree: Any) -> list[tuple[Path, int]]:
        """The path of each place in the pytree, and the number of the object."""
        if not self.spots:
            return []
        pairs = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_object)[0]
        return [(key_path(pairs[position][0]), n) for position, n in self.spots]


OF_A_LEAF = Places(jax.tree.structure(0), ())
"""Those of an output that is one array."""


class Direct(NamedTuple):
    """The places of objects that are arguments themselves.

    Args:
        places: Where they are.
        numbers: For each place the number of the object.
        has_divided: Whether there is a `Divided` among the other arguments.
    """

    places: tuple[Place, ...]
    numbers: tuple[int, ...]
    has_divided: bool = False

    def fill(self, plain: Any, objects: Sequence[Any]) -> Any:
        """Puts objects into the arguments of a call, as `Places.fill` does."""
        if self.has_divided:
            plain = Divided.map(Divided.join, plain)
        args, kwargs = [*plain[0]], dict(plain[1])
        for place, number in zip(self.places, self.numbers, strict=True):
            if isinstance(place, str):
                kwargs[place] = objects[number]
            else:
                args[place] = objects[number]
        return tuple(args), kwargs

    def paths(self, tree: Any) -> list[tuple[Path, int]]:
        """The path of each place in `(args, kwargs)`, and the number of the object."""
        pairs = zip(self.places, self.numbers, strict=True)
        return [((isinstance(place, str), place), n) for place, n in pairs]


def take_objects(tree: Any) -> tuple[Any, Places, list[Any]]:
    """Takes the objects out of a pytree.

    Args:
        tree: Any pytree.

    Returns:
        The pytree with None in their places; where they were; and the distinct
        objects in order.

    Example:
        >>> import graphcore as gc
        >>> node = gc.Dict(a=1)
        >>> plain, places, found = take_objects((node, [2, node]))
        >>> plain, len(found), places.fill(plain, found) == (node, [2, node])
        ((None, [2, None]), 1, True)
    """
    if type(tree) in _arrays:
        return tree, OF_A_LEAF, []
    leaves, structure = tree_flatten(tree, is_object)
    found = [i for i, x in enumerate(leaves) if type(x) not in _arrays and is_object(x)]
    objects, numbers = _numbered([leaves[i] for i in found])
    if found:
        for i in found:
            leaves[i] = None
        tree = structure.unflatten(leaves)
    spots = tuple(zip(found, numbers, strict=True))
    key: Any = (structure, spots, registrations.count)
    try:
        known = _places.get(key)
        if known is not None and not known.compared.is_of(structure):
            known = None
    except Exception:  # As in `contents`.
        key = known = None
    if known is not None:
        return tree, known, objects
    plain, has_divided = Divided.within(tree)
    places = Places(structure, spots, has_divided)
    if not has_divided and key is not None:
        _keep(_places, key, places)
    return plain, places, objects


def _numbered(objects: list[Any]) -> tuple[list[Any], Sequence[int]]:
    """The distinct ones among objects, and for each object the number of it there."""
    if len(objects) == 1:
        return objects, range(1)
    distinct = dict(zip(map(id, objects), objects, strict=True))
    if len(distinct) == len(objects):
        return objects, range(len(objects))
    number_of = {key: number for number, key in enumerate(distinct)}
    return list(distinct.values()), [number_of[id(x)] for x in objects]


class _Spots(NamedTuple):
    # Where arguments of certain types have objects: those of `direct` are objects (as a
    # rule all different), those of `containers` might contain some.
    direct: Direct
    containers: tuple[Place, ...]
    # The places where one of those is.
    joining: Direct


# By the types of the arguments; if some go by keyword, the number of the others and the
# keywords come first.
_spots: dict[tuple[Any, ...], _Spots] = {}


def separate(
    args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[Sequence[Any], dict[str, Any], Direct | Places, list[Any]]:
    """Takes the objects out of the arguments of a call.

    Args:
        args: The positional arguments: any pytrees.
        kwargs: The others.

    Returns:
        Both with None in the place of each object, and a `Divided` in that of each
        pytree of a filtered type; where the objects were; and the distinct objects.

    Example:
        >>> import graphcore as gc
        >>> node = gc.Dict(a=1)
        >>> _, _, places, found = separate((node, 2), {'x': node})
        >>> places.fill(((None, 2), {'x': None}), found) == ((node, 2), {'x': node})
        True
    """
    direct, containers, joining = spots_of(args, kwargs)
    given, given_kwargs = args, kwargs
    has_divided = False
    for place in containers:
        arg = kwargs[place] if isinstance(place, str) else args[place]
        if is_filtered(arg):
            # First, since JAX finds no end of some objects.
            if may_have_nodes() and not remembered(arg) and _have_object_below([arg]):
                return _take_all(given, given_kwargs)
            try:
                divided = divide(arg)
            except (TypeError, ValueError):
                # An object in it may be no tree, or can't be hashed.
                if any(map(is_object, jax.tree.leaves(arg, is_leaf=is_object))):
                    return _take_all(given, given_kwargs)
                raise
            if divided.frame.has_objects is None:
                divided.frame.has_objects = has_objects(arg)
            if divided.frame.has_objects:
                return _take_all(given, given_kwargs)
        else:
            if type(arg) in _arrays or not (found_in := contents(arg)):
                continue
            if found_in == OBJECTS:
                return _take_all(given, given_kwargs)
            divided = Divided.within(arg)[0]
        if type(place) is str:
            kwargs = {**kwargs, place: divided}
        else:
            args = [*args]
            args[place] = divided  # type: ignore[index]
        has_divided = True
    (plain, kwargs), _, roots = take_from(direct, args, kwargs)
    if len(roots) > 1 and len(set(map(id, roots))) < len(roots):
        roots, numbers = _numbered(roots)
        direct = Direct(direct.places, tuple(numbers))
        joining = direct._replace(has_divided=True)
    return plain, kwargs, joining if has_divided else direct, roots


def _take_all(
    args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[Sequence[Any], dict[str, Any], Direct | Places, list[Any]]:
    plain, places, objects = take_objects((tuple(args), kwargs))
    return plain[0], plain[1], places, objects


def with_names(types: tuple[type[Any], ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """What tells calls apart of which some arguments go by keyword."""
    return len(types), *types, *kwargs, *map(type, kwargs.values())


def types_of(args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """What tells the types of arguments."""
    types = tuple([type(x) for x in args])
    return with_names(types, kwargs) if kwargs else types


def take_from(
    places: Direct | Places, args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[tuple[Sequence[Any], dict[str, Any]], Direct | Places, list[Any]]:
    """Takes objects out of arguments, where they are by their types, or may be."""
    if isinstance(places, Places):
        return take_objects((tuple(args), kwargs))
    plain, roots = [*args], []
    for place in places.places:
        if type(place) is int:
            roots.append(plain[place])
            plain[place] = None
        else:
            roots.append(kwargs[place])  # type: ignore[index]
            kwargs = {**kwargs, place: None}  # type: ignore[dict-item]
    return (plain, kwargs), places, roots


def spots_of(args: Sequence[Any], kwargs: dict[str, Any]) -> _Spots:
    """Where the objects may be in calls like one."""
    key = types_of(args, kwargs)
    known = _spots.get(key)
    if known is not None:
        return known
    objects: list[Place] = []
    containers: list[Place] = []
    # In the order in which JAX flattens arguments.
    places: list[tuple[Place, Any]] = [*enumerate(args), *sorted(kwargs.items())]
    for place, arg in places:
        if is_object(arg):
            objects.append(place)
        elif arg is not None and not issubclass(type(arg), _ARRAYS):
            containers.append(place)
    direct = Direct(tuple(objects), tuple(range(len(objects))))
    joining = direct._replace(has_divided=True)
    found = _Spots(direct, tuple(containers), joining)
    _keep(_spots, key, found)
    return found
