"""Where the objects of a call are, told by the types of its arguments.

In most calls the objects are arguments themselves and all other arguments are arrays
or containers of arrays. Which of them are what depends on their types alone, so it is
found out once for each combination of types.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

from graphcore import is_node_type
from graphcore.registry import GraphNodeImpl, get_node_impl_for_type
from graphcore.variable_impl import is_variable_type
from nnx_transforms.skeletons import is_object

__all__ = ["Spots", "find_spots", "known_spots"]


class Spots(NamedTuple):
    """Where the objects of a call are.

    Args:
        objects: The positions of arguments that are objects; empty if it takes a
            closer look at the call to tell where they are.
        containers: The positions and names of arguments that might contain objects.
    """

    objects: tuple[int, ...]
    containers: tuple[int | str, ...]

    def hold_no_more(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether the containers of a call are free of objects."""
        for place in self.containers:
            container = kwargs[place] if isinstance(place, str) else args[place]
            leaves = jax.tree.leaves(container, is_leaf=is_object)
            if any(map(is_object, leaves)):
                return False
        return True


known_spots: dict[tuple[Any, ...], Spots] = {}
"""What was found for the types of arguments, preceded by the number of positional ones
and the names of the others if there are others."""

_MAX_KNOWN = 4096
_ARRAYS = (jax.Array, np.ndarray, np.generic, bool, int, float, complex)


def find_spots(
    key: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Spots:
    """Finds where the objects of a call are, and keeps it for calls like it.

    Args:
        key: What calls like it have in common; see `known_spots`.
        args: The positional arguments.
        kwargs: The others.

    Returns:
        The spots.
    """
    objects: list[int] = []
    containers: list[int | str] = []
    places: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
    for place, arg in places:
        kind = type(arg)
        if _is_object_type(kind):
            if isinstance(place, str):
                objects, containers = [], []
                break
            objects.append(place)
        elif not issubclass(kind, _ARRAYS):
            containers.append(place)
    found = Spots(tuple(objects), tuple(containers))
    if len(known_spots) >= _MAX_KNOWN:
        known_spots.clear()
    known_spots[key] = found
    return found


def _is_object_type(kind: type[Any]) -> bool:
    return is_variable_type(kind) or (
        is_node_type(kind) and isinstance(get_node_impl_for_type(kind), GraphNodeImpl)
    )
