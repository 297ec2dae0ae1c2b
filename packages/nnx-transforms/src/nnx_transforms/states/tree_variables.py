"""The variables of all objects in a pytree."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax

from graphcore import RefMap, is_variable, variables
from graphcore.authors import is_object, key_path


def tree_variables(tree: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Lists the variables of the objects in a pytree, each once, at its first path.

    Args:
        tree: A graph node, a variable, or a pytree with some among its leaves.

    Yields:
        `(path, variable)`; for an array in an object that has no variable around it,
        the array.

    Example:
        >>> import graphcore as gc
        >>> node = gc.Dict(w=gc.Param(1))
        >>> [path for path, _ in tree_variables((node, 2.0, gc.Cache(3), node))]
        [(0, 'w'), (2,)]
    """
    seen: RefMap[Any, None] = RefMap()
    for place, x in jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_object):
        found: Any = ()
        if is_variable(x):
            found = [((), x)]
        elif is_object(x):
            found = variables(x).flat_state()
        for path, variable in found:
            if variable not in seen:
                seen[variable] = None
                yield (*key_path(place), *path), variable
