"""Where the objects of a call are, told by the types of its arguments.

In most calls the objects are arguments themselves and all other arguments are arrays
or containers of arrays. Which of them are what depends on their types alone, so it is
found out once for each combination of types.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np

from graphcore import is_node_type
from graphcore.registry import GraphNodeImpl, get_node_impl_for_type
from graphcore.variable_impl import is_variable_type
from nnx_transforms.transforms.skeletons import Skeleton, is_object, remove_objects

Place: TypeAlias = int | str
"""The position of an argument, or its name."""


class Direct(NamedTuple):
    """Objects that are arguments themselves.

    Args:
        places: Where they are.
        numbers: For each place the number of the object.
    """

    places: tuple[Place, ...]
    numbers: tuple[int, ...]

    def fill(self, plain: Any, objects: Sequence[Any]) -> Any:
        """Puts objects into the arguments of a call, as `Skeleton.fill` does."""
        args, kwargs = [*plain[0]], dict(plain[1])
        for place, number in zip(self.places, self.numbers, strict=True):
            if isinstance(place, str):
                kwargs[place] = objects[number]
            else:
                args[place] = objects[number]
        return tuple(args), kwargs


class _Spots(NamedTuple):
    # What arguments of some types are: those at the first places are objects (each
    # another one, as a rule), and those at the others might contain some.
    direct: Direct
    containers: tuple[Place, ...]
    # The position of the only object, if there is nothing else to look at.
    only: int | None


# What was found for the types of arguments, preceded by the number of positional ones
# and the names of the others if there are others.
_known: dict[tuple[Any, ...], _Spots] = {}
_MAX_KNOWN = 4096
_ARRAYS = (jax.Array, np.ndarray, np.generic, bool, int, float, complex)


def separate(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Sequence[Any], dict[str, Any], Direct | Skeleton, list[Any]]:
    """Takes the objects out of the arguments of a call.

    Args:
        args: The positional arguments: any pytrees.
        kwargs: The others.

    Returns:
        Both with None in the place of each object; where the objects were; and the
        distinct objects.

    Example:
        >>> import graphcore as gc
        >>> node = gc.Dict(a=1)
        >>> _, _, where, found = separate((node, 2), {'x': node})
        >>> where.fill(((None, 2), {'x': None}), found) == ((node, 2), {'x': node})
        True
    """
    key: tuple[Any, ...] = tuple([type(x) for x in args])
    if kwargs:
        key = len(args), *key, *kwargs, *map(type, kwargs.values())
    direct, containers, only = _known.get(key) or _find(key, args, kwargs)
    if only is not None:
        plain = [*args]
        plain[only] = None
        return plain, kwargs, direct, [args[only]]
    for place in containers:
        container = kwargs[place] if isinstance(place, str) else args[place]
        if any(map(is_object, jax.tree.leaves(container, is_leaf=is_object))):
            (args, kwargs), skeleton, found = remove_objects((args, kwargs))
            return args, kwargs, skeleton, found
    plain, roots = [*args], []
    for place in direct.places:
        if type(place) is int:
            roots.append(plain[place])
            plain[place] = None
        else:
            roots.append(kwargs[place])  # type: ignore[index]
            kwargs = {**kwargs, place: None}  # type: ignore[dict-item]
    if len(roots) > 1 and len(set(map(id, roots))) < len(roots):
        return plain, kwargs, *_shared(direct, roots)
    return plain, kwargs, direct, roots


def _find(
    key: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> _Spots:
    """Finds where the objects of a call are, and keeps it for calls like it."""
    objects: list[Place] = []
    containers: list[Place] = []
    # In the order in which JAX flattens arguments.
    places: list[tuple[Place, Any]] = [*enumerate(args), *sorted(kwargs.items())]
    for place, arg in places:
        kind = type(arg)
        if _is_object_type(kind):
            objects.append(place)
        elif not issubclass(kind, _ARRAYS):
            containers.append(place)
    direct = Direct(tuple(objects), tuple(range(len(objects))))
    only: int | None = None
    if len(objects) == 1 and not containers and isinstance(objects[0], int):
        only = objects[0]
    found = _Spots(direct, tuple(containers), only)
    if len(_known) >= _MAX_KNOWN:
        _known.clear()
    _known[key] = found
    return found


def _shared(direct: Direct, objects: list[Any]) -> tuple[Direct, list[Any]]:
    """The same with each object once."""
    numbers: dict[int, int] = {}
    distinct: list[Any] = []
    for x in objects:
        if id(x) not in numbers:
            numbers[id(x)] = len(distinct)
            distinct.append(x)
    return Direct(direct.places, tuple(numbers[id(x)] for x in objects)), distinct


def _is_object_type(kind: type[Any]) -> bool:
    return is_variable_type(kind) or (
        is_node_type(kind) and isinstance(get_node_impl_for_type(kind), GraphNodeImpl)
    )
