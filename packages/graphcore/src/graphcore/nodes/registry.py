"""Which types are nodes, and how nodes are taken apart and put together.

A *graph node* has identity and can be changed in place; a *pytree node* has none.
Types are registered as either. Whatever JAX knows as a pytree is a pytree node without
further notice.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax

from graphcore.errors import path_text
from graphcore.variables.impl import find_variable_impl

__all__ = [
    "GraphNodeImpl",
    "NodeImpl",
    "PytreeNodeImpl",
    "get_node_impl",
    "get_node_impl_for_type",
    "is_graph_node",
    "is_node",
    "is_node_type",
    "is_pytree_node",
    "register_graph_node_type",
    "register_pytree_node_type",
]

Pairs: TypeAlias = Sequence[tuple[Any, Any]]


@dataclass(frozen=True)
class GraphNodeImpl:
    """How graph nodes of a type are handled.

    Args:
        type: The node type.
        flatten: `flatten(node) -> (pairs of key and child, metadata)`.
        set_key: `set_key(node, key, child)`.
        pop_key: `pop_key(node, key) -> child`.
        create_empty: `create_empty(metadata) -> node`.
        clear: `clear(node)`, removes all children.
        init: `init(node, pairs)`, gives children to a node without any.

    Example:
        >>> import graphcore as gc
        >>> gc.get_node_impl(gc.Dict(a=1)).flatten(gc.Dict(a=1))[0]
        [('a', 1)]
    """

    type: type[Any]
    flatten: Callable[[Any], tuple[Pairs, Any]]
    set_key: Callable[[Any, Any, Any], None]
    pop_key: Callable[[Any, Any], Any]
    create_empty: Callable[[Any], Any]
    clear: Callable[[Any], None]
    init: Callable[[Any, Iterable[tuple[Any, Any]]], None]


@dataclass(frozen=True)
class PytreeNodeImpl:
    """How pytree nodes of a type are handled.

    Args:
        type: The node type.
        flatten: `flatten(node) -> (pairs of key and child, metadata)`.
        unflatten: `unflatten(pairs, metadata) -> node`.

    Example:
        >>> import graphcore as gc
        >>> gc.get_node_impl([1, 2]).flatten([1, 2])[0]
        [(0, 1), (1, 2)]
    """

    type: type[Any]
    flatten: Callable[[Any], tuple[Pairs, Any]]
    unflatten: Callable[[Pairs, Any], Any]


NodeImpl: TypeAlias = GraphNodeImpl | PytreeNodeImpl
_impls: dict[type[Any], NodeImpl] = {}


def _add(kind: type[Any], impl: NodeImpl) -> None:
    if kind in _impls:
        raise ValueError(f"{kind.__name__} is registered as a node type already.")
    if find_variable_impl(kind) is not None:
        raise ValueError(
            f"{kind.__name__} is a variable type; it can't be a node type as well."
        )
    _impls[kind] = impl


def register_graph_node_type(
    type: type[Any],
    flatten: Callable[[Any], tuple[Pairs, Any]],
    set_key: Callable[[Any, Any, Any], None],
    pop_key: Callable[[Any, Any], Any],
    create_empty: Callable[[Any], Any],
    clear: Callable[[Any], None],
    init: Callable[[Any, Iterable[tuple[Any, Any]]], None],
) -> None:
    """Registers a type whose instances have identity and can change in place.

    Args:
        type: The class; subclasses are registered on their own.
        flatten: `flatten(node) -> (sequence of (key, child), metadata)`; the metadata
            is static.
        set_key: `set_key(node, key, child)` sets or adds one child.
        pop_key: `pop_key(node, key)` removes one child and returns it.
        create_empty: `create_empty(metadata)` makes a node without children.
        clear: `clear(node)` removes all children.
        init: `init(node, pairs)` gives children to an empty node.

    Raises:
        ValueError: If the type is registered already.

    Example:
        >>> import graphcore as gc
        >>> class Bag:
        ...     def __init__(self): self.items = {}
        >>> gc.register_graph_node_type(
        ...     Bag,
        ...     flatten=lambda bag: (sorted(bag.items.items()), None),
        ...     set_key=lambda bag, key, child: bag.items.__setitem__(key, child),
        ...     pop_key=lambda bag, key: bag.items.pop(key),
        ...     create_empty=lambda metadata: Bag(),
        ...     clear=lambda bag: bag.items.clear(),
        ...     init=lambda bag, pairs: bag.items.update(pairs),
        ... )
        >>> bag = Bag(); bag.items['w'] = gc.Param(1)
        >>> gc.state(bag).flat_state().paths
        (('w',),)
    """
    _add(
        type,
        GraphNodeImpl(type, flatten, set_key, pop_key, create_empty, clear, init),
    )


def register_pytree_node_type(
    type: type[Any],
    flatten: Callable[[Any], tuple[Pairs, Any]],
    unflatten: Callable[[Pairs, Any], Any],
) -> None:
    """Registers a type whose instances are containers without identity.

    Types that JAX knows as pytrees need no registration.

    Args:
        type: The class.
        flatten: `flatten(node) -> (sequence of (key, child), metadata)`.
        unflatten: `unflatten(sequence of (key, child), metadata) -> node`.

    Raises:
        ValueError: If the type is registered already.

    Example:
        >>> import graphcore as gc
        >>> class Pair:
        ...     def __init__(self, a, b): self.a, self.b = a, b
        >>> gc.register_pytree_node_type(
        ...     Pair,
        ...     flatten=lambda p: ([('a', p.a), ('b', p.b)], None),
        ...     unflatten=lambda pairs, metadata: Pair(**dict(pairs)),
        ... )
        >>> gc.clone(Pair(gc.Param(1), 2)).b
        2
    """
    _add(type, PytreeNodeImpl(type, flatten, unflatten))


def registrations() -> int:
    """The number of node types that are known; it grows when one is registered."""
    return len(_impls)


def find_node_impl(x: Any) -> NodeImpl | None:
    """How a node is handled; None if the object is not a node."""
    kind = type(x)
    impl = _impls.get(kind)
    if impl is None and kind not in _NEVER_NODES and _is_jax_pytree(x):
        # JAX has no way to unregister a pytree type, so this holds from now on.
        impl = _impls[kind] = PytreeNodeImpl(kind, _flatten_by_jax, _unflatten_by_jax)
    return impl


_NEVER_NODES = frozenset((bool, int, float, complex, str, bytes, type, type(...)))


def _is_jax_pytree(x: Any) -> bool:
    if find_variable_impl(type(x)) is not None:
        return False
    return not jax.tree_util.all_leaves((x,))


def get_node_impl(x: Any, /) -> NodeImpl:
    """Returns how a node is handled.

    Args:
        x: A node.

    Returns:
        The implementation of its type.

    Raises:
        ValueError: If it is not a node.

    Example:
        >>> import graphcore as gc
        >>> gc.get_node_impl({}).type
        <class 'dict'>
    """
    impl = find_node_impl(x)
    if impl is None:
        raise ValueError(
            f"Expected a graph node or pytree node, got {type(x).__name__}: subclass "
            "`Object`, or register the type with `register_graph_node_type` or "
            "`register_pytree_node_type`."
        )
    return impl


def get_node_impl_for_type(t: type[Any], /) -> NodeImpl:
    """Returns how nodes of a type are handled.

    Args:
        t: A node type.

    Returns:
        The implementation.

    Raises:
        ValueError: If it is not a node type.

    Example:
        >>> import graphcore as gc
        >>> gc.get_node_impl_for_type(list).type
        <class 'list'>
    """
    impl = _find_for_type(t)
    if impl is None:
        raise ValueError(f"{t.__name__} is not registered as a node type.")
    return impl


def _find_for_type(t: type[Any]) -> NodeImpl | None:
    impl = _impls.get(t)
    if impl is not None or t in _NEVER_NODES or find_variable_impl(t) is not None:
        return impl
    # JAX answers for instances only, and looks at nothing but the type of one. So an
    # empty one is made, without running any of the class's own code.
    makers = (base.__dict__.get("__new__") for base in t.__mro__)
    make: Any = next(m for m in makers if isinstance(m, types.BuiltinFunctionType))
    try:
        return find_node_impl(make(t))
    except TypeError:  # A type implemented in C, or an abstract class.
        return None


def is_node(x: Any, /) -> bool:
    """Tells whether an object is a graph node or a pytree node.

    Args:
        x: Any object.

    Returns:
        Whether it is one.

    Example:
        >>> import graphcore as gc
        >>> gc.is_node(gc.Dict()), gc.is_node([]), gc.is_node(gc.Param(1))
        (True, True, False)
    """
    return find_node_impl(x) is not None


def is_graph_node(x: Any, /) -> bool:
    """Tells whether an object is a graph node.

    Args:
        x: Any object.

    Returns:
        Whether its type is registered as one.

    Example:
        >>> import graphcore as gc
        >>> gc.is_graph_node(gc.Dict()), gc.is_graph_node([])
        (True, False)
    """
    return isinstance(_impls.get(type(x)), GraphNodeImpl)


def is_pytree_node(x: Any, /) -> bool:
    """Tells whether an object is a pytree node.

    Args:
        x: Any object.

    Returns:
        Whether its type is registered as one, here or with JAX.

    Example:
        >>> import graphcore as gc
        >>> gc.is_pytree_node(gc.Dict()), gc.is_pytree_node([]), gc.is_pytree_node(None)
        (False, True, True)
    """
    return isinstance(find_node_impl(x), PytreeNodeImpl)


def is_node_type(t: type[Any], /) -> bool:
    """Tells whether a type is registered as a node type.

    Args:
        t: Any class.

    Returns:
        Whether it is.

    Example:
        >>> import graphcore as gc
        >>> gc.is_node_type(gc.Dict), gc.is_node_type(int)
        (True, False)
    """
    return _find_for_type(t) is not None


# The built-in pytree nodes, and those that JAX knows


def _key_of(entry: Any) -> Any:
    for name in ("key", "idx", "name"):
        if hasattr(entry, name):
            return getattr(entry, name)
    return str(entry)


def _flatten_by_jax(node: Any) -> tuple[Pairs, Any]:
    children, structure = jax.tree_util.tree_flatten_with_path(
        node, is_leaf=lambda x: x is not node
    )
    return [(_key_of(path[0]), child) for path, child in children], structure


def _unflatten_by_jax(pairs: Pairs, structure: Any) -> Any:
    return jax.tree.unflatten(structure, [child for _, child in pairs])


def _flatten_dict(node: dict[Any, Any]) -> tuple[Pairs, Any]:
    try:
        keys = sorted(node)
    except TypeError:
        raise UnsortableKeys(
            f"a plain dict with the keys {list(node)!r}, which can't be sorted"
        ) from None
    return [(key, node[key]) for key in keys], None


class UnsortableKeys(TypeError):
    """A node whose keys can't be sorted; caught where the path is known."""

    def at(self, path: tuple[Any, ...]) -> ValueError:
        """The error for users."""
        return ValueError(
            f"At {path_text(path)!r} there is {self}: children are visited in sorted "
            "order. Use keys of one type; a `Dict` takes strings and integers together."
        )


for _impl in (
    PytreeNodeImpl(
        list,
        flatten=lambda node: (list(enumerate(node)), None),
        unflatten=lambda pairs, metadata: [child for _, child in pairs],
    ),
    PytreeNodeImpl(
        tuple,
        flatten=lambda node: (list(enumerate(node)), None),
        unflatten=lambda pairs, metadata: tuple(child for _, child in pairs),
    ),
    PytreeNodeImpl(
        dict,
        flatten=_flatten_dict,
        unflatten=lambda pairs, metadata: dict(pairs),
    ),
    PytreeNodeImpl(
        type(None),
        flatten=lambda node: ((), None),
        unflatten=lambda pairs, metadata: None,
    ),
):
    _add(_impl.type, _impl)
