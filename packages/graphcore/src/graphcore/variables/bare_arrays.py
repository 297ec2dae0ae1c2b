"""Arrays that stand in a graph by themselves, without a variable around them.

`self.scale = jnp.ones(3)` makes an array a child of a node. An array has no identity
that could last, since writing to it gives another one; so its place has it: the node,
and the path from there through plain containers. A `BareArray` is such a place. What
handles variables handles it as one.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from operator import setitem
from typing import Any, ClassVar

import jax
import numpy as np

from graphcore.hashable_mapping import EMPTY
from graphcore.nodes.owned import OwnedNode
from graphcore.nodes.registry import GraphNodeImpl, containers_of, get_node_impl
from graphcore.variables.impl import VariableImpl, add_variable_impl

_PLAIN = (dict, list, tuple)
_DTYPES = (np.number, np.bool_)
# Types all instances of which are arrays that JAX takes.
_array_types: set[type[Any]] = set()
# So few arrays in plain containers are quicker read and compared one by one.
FEW = 8
# Types of pytrees no instance of which changes what it holds.
frozen: set[type[Any]] = set()


def is_array(x: Any) -> bool:
    """Tells whether an object is an array that JAX takes, or the shape of one.

    Args:
        x: Any object.

    Returns:
        True for arrays of JAX, tracers, `jax.Ref` and `jax.ShapeDtypeStruct`, and for
        arrays of NumPy of a dtype that JAX has.

    Example:
        >>> import numpy as np
        >>> is_array(np.ones(2)), is_array(np.array(['text'])), is_array(1.0)
        (True, False, False)
    """
    kind = type(x)
    if kind in _array_types:
        return True
    if isinstance(x, jax.Array | jax.ShapeDtypeStruct | jax.Ref):
        _array_types.add(kind)
        return True
    return isinstance(x, np.ndarray) and (
        any(jax.dtypes.issubdtype(x.dtype, kind) for kind in _DTYPES)
        # What JAX gives for the derivatives of integers.
        or x.dtype == jax.dtypes.float0
    )


def are_known_arrays(values: Sequence[Any]) -> bool:
    """Tells whether all of some objects are of types that are known for arrays."""
    return _array_types.issuperset(map(type, values))


def are_arrays(values: Sequence[Any]) -> bool:
    """Tells whether all of some objects are arrays; mostly in C.

    Args:
        values: Any objects.
    """
    return are_known_arrays(values) or all(map(is_array, values))


class BareArray:
    """The place of an array in a graph; made by `at`, one object a place.

    Args:
        holder: What holds the children of the graph node: a dict or list, or a foreign
            node itself. It is not the node, so that who keeps a place keeps no node.
        path: The keys from there to the array.

    Example:
        >>> import graphcore as gc, jax.numpy as jnp
        >>> node = gc.Dict(a=[jnp.ones(2)])
        >>> place = BareArray.at(node, ('a', 0))
        >>> place is BareArray.at(node, ('a', 0)), place.get().shape
        (True, (2,))
        >>> place.set(jnp.ones(3)); node.a[0].shape
        (3,)
    """

    __slots__ = ("__weakref__", "holder", "path")

    holder: Any
    path: tuple[Any, ...]
    # A place keeps its holder, so no other one gets that one's id while it is here.
    _all: ClassVar[weakref.WeakValueDictionary[Any, BareArray]] = (
        weakref.WeakValueDictionary()
    )
    _lock: ClassVar[Any] = threading.RLock()

    @classmethod
    def at(cls, node: Any, path: tuple[Any, ...]) -> BareArray:
        """The place in a node.

        Args:
            node: A graph node, or a pytree that is a root.
            path: The keys from there.

        Returns:
            The same object as long as anybody keeps it.
        """
        holder = node
        if isinstance(node, OwnedNode):
            holder = node._node__container_of(path[0])
        elif type(node) not in _PLAIN:
            for container in containers_of(node, get_node_impl(node)) or ():
                if type(container) is dict and path[0] in container:
                    holder = container
        place = cls()
        place.holder, place.path = holder, path
        with cls._lock:  # What `setdefault` finds and what it sets are two steps.
            return cls._all.setdefault((id(holder), *path), place)

    def get(self) -> Any:
        """The array that stands there now."""
        found = self.holder
        for key in self.path:
            found = _children(found)[key]
        return found

    def branch(self) -> Any:
        """The child of the graph node that the array stands in, or is."""
        return _children(self.holder)[self.path[0]]

    def way(self) -> list[Any]:
        """What stands between the holder and the array, the outermost first."""
        passed = [self.holder]
        for key in self.path[:-1]:
            passed.append(_children(passed[-1])[key])
        return passed[1:]

    def set(self, value: Any) -> None:
        """Puts another array there.

        Containers that can't be changed are made anew, up to one that can. So is what
        stands in a pytree of an immutable type: others may hold that pytree as well.

        Args:
            value: The array.

        Raises:
            ValueError: If nothing on the way can be changed.
        """
        write_places([self], [value], [])


def write_places(
    places: Sequence[BareArray],
    values: Sequence[Any],
    undo: list[Callable[[], Any]],
    renewed: Iterable[tuple[BareArray, int]] = (),
) -> None:
    """Puts arrays in the places of others; what is on the way is gone through once.

    Args:
        places: The places.
        values: The array for each.
        undo: The steps of `undoing`.
        renewed: Plain containers to put copies in the places of, which is where the
            arrays go: each by one of the places in it, and the number of keys from the
            holder.

    Raises:
        ValueError: If nothing on the way to an array can be changed.
    """
    by_holder: dict[int, tuple[BareArray, _Edits]] = {}
    for place, value in zip(places, values, strict=True):
        edits = by_holder.setdefault(id(place.holder), (place, _Edits()))[1]
        *keys, last = place.path
        for key in keys:
            edits = edits[key] if key in edits else edits.setdefault(key, _Edits())
        edits[last] = value
    for place, depth in renewed:
        edits = by_holder[id(place.holder)][1]
        for key in place.path[:depth]:
            edits = edits[key]
        edits.is_renewed = True
    for place, edits in by_holder.values():
        if _edited(place.holder, edits, undo) is not place.holder:
            raise ValueError(
                f"Cannot write the array at {place.path!r} of a "
                f"{type(place.holder).__name__}, which can't be changed in place: put "
                "it into an object, or return the new one."
            )


class _Edits(dict[Any, Any]):
    """What becomes of some children of a node, by key: arrays, or edits of these.

    Attributes:
        is_renewed: Whether the node, if it is a plain container, is to be a copy.
    """

    is_renewed = False


def _children(node: Any) -> Any:
    if type(node) in _PLAIN:
        return node
    return dict(get_node_impl(node).flatten(node)[0])


def is_frozen(x: Any) -> bool:
    """Tells whether an object is of a type in `frozen`, or of a subclass."""
    return not frozen.isdisjoint(type(x).__mro__)


def _edited(
    node: Any, edits: _Edits, undo: list[Callable[[], Any]], anew: bool = False
) -> Any:
    """A node with other arrays in it: the same one, if it can be changed."""
    kind = type(node)
    impl = None if kind in _PLAIN else get_node_impl(node)
    pairs, metadata = (node, None) if impl is None else impl.flatten(node)
    children = node if impl is None else dict(pairs)
    changed: dict[Any, Any] = {}
    is_copied = anew or is_frozen(node)
    for key, value in edits.items():
        child = children[key]
        if type(value) is _Edits:
            value = _edited(child, value, undo, is_copied)
        if value is not child:
            changed[key] = value
    if kind in (dict, list):
        if edits.is_renewed or (anew and changed):
            node = node.copy()
        for key, value in changed.items():
            undo.append(functools.partial(setitem, node, key, node[key]))
            node[key] = value
    elif isinstance(impl, GraphNodeImpl):
        for key, value in changed.items():
            undo.append(functools.partial(impl.set_key, node, key, children[key]))
            impl.set_key(node, key, value)
    elif kind is tuple and changed:
        return tuple([changed.get(key, child) for key, child in enumerate(node)])
    elif changed:
        pairs = [(key, changed.get(key, child)) for key, child in pairs]
        return impl.unflatten(pairs, metadata)  # type: ignore[union-attr]
    return node


BARE = VariableImpl(
    get_value=BareArray.get,
    set_value=BareArray.set,
    get_metadata=lambda place: EMPTY,
    # What stands at the place is the array.
    create=lambda kind, value, metadata: value,
)
add_variable_impl(BareArray, BARE)
