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
from collections.abc import Callable, Sequence
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
            holder = node._container_of(path[0])
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

    def way(self) -> list[Any]:
        """What stands between the holder and the array, the outermost first."""
        passed = [self.holder]
        for key in self.path[:-1]:
            passed.append(_children(passed[-1])[key])
        return passed[1:]

    def renew(self, depth: int, undo: list[Callable[[], Any]]) -> None:
        """Puts a copy in the place of a plain container on the way to the array.

        Args:
            depth: Which one, as the number of keys from the holder.
            undo: The steps of `undoing`.
        """
        container = self.way()[depth - 1]
        if type(container) in (dict, list):
            put = functools.partial(_with, self.holder, self.path[:depth])
            undo.append(functools.partial(put, container))
            put(container.copy())

    def set(self, value: Any) -> None:
        """Puts another array there.

        Containers that can't be changed are made anew, up to one that can. So is what
        stands in a pytree of an immutable type: others may hold that pytree as well.

        Args:
            value: The array.

        Raises:
            ValueError: If nothing on the way can be changed.
        """
        if _with(self.holder, self.path, value) is not self.holder:
            raise ValueError(
                f"Cannot write the array at {self.path!r} of a "
                f"{type(self.holder).__name__}, which can't be changed in place: put "
                "it into an object, or return the new one."
            )


def _children(node: Any) -> Any:
    if type(node) in _PLAIN:
        return node
    return dict(get_node_impl(node).flatten(node)[0])


def is_frozen(x: Any) -> bool:
    """Tells whether an object is of a type in `frozen`, or of a subclass."""
    return not frozen.isdisjoint(type(x).__mro__)


def _with(node: Any, path: tuple[Any, ...], value: Any, anew: bool = False) -> Any:
    """A node with another array in it: the same one, if it can be changed."""
    key, *rest = path
    child = _children(node)[key]
    if rest:
        value = _with(child, tuple(rest), value, anew or is_frozen(node))
    if value is child:
        return node
    if type(node) in (dict, list):
        node = node.copy() if anew else node
        node[key] = value
        return node
    impl = get_node_impl(node)
    if isinstance(impl, GraphNodeImpl):
        impl.set_key(node, key, value)
        return node
    pairs, metadata = impl.flatten(node)
    return impl.unflatten([(k, value if k == key else c) for k, c in pairs], metadata)


BARE = VariableImpl(
    get_value=BareArray.get,
    set_value=BareArray.set,
    get_metadata=lambda place: EMPTY,
    # What stands at the place is the array.
    create=lambda kind, value, metadata: value,
)
add_variable_impl(BareArray, BARE)
