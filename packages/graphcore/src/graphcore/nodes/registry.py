"""Which types are nodes, and how nodes are taken apart and put together.

A *graph node* has identity and can be changed in place; a *pytree node* has none.
Types are registered as either. Whatever JAX knows as a pytree is a pytree node without
further notice.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, TypeAlias

import jax

from graphcore.adapters.loading import registrations
from graphcore.errors import check_class
from graphcore.known_types import (
    ATOMS,
    add_impl,
    impls,
    inherited_impl,
    known_impl,
    said,
    sometimes,
)
from graphcore.nodes.owned import OwnedNode
from graphcore.trails import key_of, path_text
from graphcore.variables.impl import VariableImpl

__all__ = [
    "GraphNodeImpl",
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
        containers: The names of the attributes that hold all children; none if that is
            not known.
        get_trace: `get_trace(node)`, the trace in which the node was made; None if the
            type doesn't tell.
        give_state: `give_state(state)` is what a transform returns in the place of a
            `State` of a node; None for that itself.
        subclasses: Whether it holds for subclasses; `create_empty` is given the type
            then.

    Example:
        >>> import graphcore as gc
        >>> gc.get_node_impl(gc.Dict(a=1)).flatten(gc.Dict(a=1))[0]
        [('a', 1)]
    """

    type: type[Any]
    flatten: Callable[[Any], tuple[Pairs, Any]]
    set_key: Callable[[Any, Any, Any], None]
    pop_key: Callable[[Any, Any], Any]
    create_empty: Callable[..., Any]
    clear: Callable[[Any], None]
    init: Callable[[Any, Iterable[tuple[Any, Any]]], None]
    containers: tuple[str, ...] = ()
    get_trace: Callable[[Any], Any] | None = None
    give_state: Callable[[Any], Any] | None = None
    subclasses: bool = False

    def make(self, kind: Any, metadata: Any) -> Any:
        """A node of a type, without children."""
        if self.subclasses:
            made = self.create_empty(metadata, type=kind)
        else:
            made = self.create_empty(metadata)
        if type(made) is not kind:
            raise TypeError(
                f"The `create_empty` that {self.type.__name__} is registered with "
                f"returned a {type(made).__name__}, expected a {kind.__name__}."
            )
        return made


@dataclass(frozen=True)
class PytreeNodeImpl:
    """How pytree nodes of a type are handled.

    Args:
        type: The node type.
        flatten: `flatten(node) -> (pairs of key and child, metadata)`.
        unflatten: `unflatten(pairs, metadata) -> node`.
        containers: As in `GraphNodeImpl`.

    Example:
        >>> import graphcore as gc
        >>> gc.get_node_impl([1, 2]).flatten([1, 2])[0]
        [(0, 1), (1, 2)]
    """

    type: type[Any]
    flatten: Callable[[Any], tuple[Pairs, Any]]
    unflatten: Callable[[Pairs, Any], Any]
    containers: tuple[str, ...] = ()


NodeImpl: TypeAlias = GraphNodeImpl | PytreeNodeImpl


def containers_of(node: Any, impl: NodeImpl) -> Sequence[Any] | None:
    """The dicts and lists that hold all children of a node.

    Args:
        node: The node.
        impl: How it is handled.

    Returns:
        The containers, a dict or list itself; None if they are not declared, or are of
        other types.
    """
    if isinstance(node, OwnedNode):
        return node._node__containers()
    if type(node) in (dict, list):
        return (node,)
    found = [attrgetter(name)(node) for name in impl.containers]
    return found if found and {*map(type, found)} <= {dict, list} else None


def add_node_impl(
    impl: NodeImpl, of_subclass: Callable[[type[Any]], NodeImpl] | None = None
) -> None:
    """Registers how nodes of a type are handled.

    Args:
        impl: How they are.
        of_subclass: Says how those of a subclass are that is not registered itself;
            None if they are no nodes.

    Raises:
        TypeError: If it is no class.
        ValueError: If it is a type of nodes or variables already, or of static values.
    """
    kind = impl.type
    check_class(kind, "The registration of a node type")
    known = known_impl(kind) or inherited_impl(kind)
    if type(known) is VariableImpl:
        raise ValueError(
            f"{kind.__name__} is a variable type; it can't be a node type as well."
        )
    if kind in said or (known is not None and known.flatten is _flatten_by_jax):
        raise ValueError(f"{kind.__name__} is registered as a node type already.")
    add_impl(kind, impl, "node", of_subclass)


def _names(containers: Sequence[str]) -> tuple[str, ...]:
    """The names of containers, which are no single name."""
    if isinstance(containers, str):
        raise TypeError(
            f"`containers` takes the names of attributes, got the string "
            f"{containers!r}: write [{containers!r}]."
        )
    return tuple(containers)


def register_graph_node_type(
    type: type[Any],
    flatten: Callable[[Any], tuple[Pairs, Any]],
    set_key: Callable[[Any, Any, Any], None],
    pop_key: Callable[[Any, Any], Any],
    create_empty: Callable[..., Any],
    clear: Callable[[Any], None],
    init: Callable[[Any, Iterable[tuple[Any, Any]]], None],
    *,
    subclasses: bool = False,
    containers: Sequence[str] = (),
    get_trace: Callable[[Any], Any] | None = None,
    give_state: Callable[[Any], Any] | None = None,
) -> None:
    """Registers a type whose instances have identity and can change in place.

    Without `containers`, each call of a transform takes such a node apart anew to see
    whether it changed. With them, what was found out about a graph is kept, and one
    look at all dicts tells whether it still holds.

    Args:
        type: The class.
        flatten: `flatten(node) -> (sequence of (key, child), metadata)`; the metadata
            is static.
        set_key: `set_key(node, key, child)` sets or adds one child.
        pop_key: `pop_key(node, key)` removes one child and returns it.
        create_empty: `create_empty(metadata)` makes a node without children.
        clear: `clear(node)` removes all children.
        init: `init(node, pairs)` gives children to an empty node.
        subclasses: Whether it holds for all subclasses, present and future ones, that
            are not registered themselves. `create_empty(metadata)` must know the class
            then, so it is `create_empty(metadata, type=cls)`.
        containers: The names of attributes, such as `'__dict__'`, that hold a dict or
            list each, and no subclass of these. Children and metadata of a node may
            depend on nothing but what is in these, and on the class. What is kept is
            found by the root of the graph, with a weak reference: a class that has
            `__slots__` needs `__weakref__` among them.
        get_trace: `get_trace(node)` returns what `current_trace()` was where the node
            was made, so that a use in another trace is refused.
        give_state: `give_state(state)` makes what users of the type expect in the place
            of a `State`, as the gradient of a node is one.

    Raises:
        TypeError: If the type is no class, or `containers` a string.
        ValueError: If the type is registered already, or its instances are always
            static, as numbers are.

    Example:
        >>> import graphcore as gc
        >>> class Bag:
        ...     def __init__(self): self.items = {}
        >>> class Sack(Bag): pass
        >>> gc.register_graph_node_type(
        ...     Bag,
        ...     flatten=lambda bag: (sorted(bag.items.items()), None),
        ...     set_key=lambda bag, key, child: bag.items.__setitem__(key, child),
        ...     pop_key=lambda bag, key: bag.items.pop(key),
        ...     create_empty=lambda metadata, type: type(),
        ...     clear=lambda bag: bag.items.clear(),
        ...     init=lambda bag, pairs: bag.items.update(pairs),
        ...     subclasses=True,
        ...     containers=['items'],
        ... )
        >>> bag = Sack(); bag.items['w'] = gc.Param(1)
        >>> gc.state(bag).flat_state().paths, type(gc.clone(bag)).__name__
        ((('w',),), 'Sack')
    """
    impl = GraphNodeImpl(
        *(type, flatten, set_key, pop_key, create_empty, clear, init),
        *(_names(containers), get_trace, give_state, subclasses),
    )
    add_node_impl(impl, (lambda kind: impl) if subclasses else None)
    registrations.has_nodes |= not issubclass(type, OwnedNode)


def register_pytree_node_type(
    type: type[Any],
    flatten: Callable[[Any], tuple[Pairs, Any]],
    unflatten: Callable[[Pairs, Any], Any],
    *,
    containers: Sequence[str] = (),
) -> None:
    """Registers a type whose instances are containers without identity.

    Types that JAX knows as pytrees need no registration.

    Args:
        type: The class.
        flatten: `flatten(node) -> (sequence of (key, child), metadata)`.
        unflatten: `unflatten(sequence of (key, child), metadata) -> node`.
        containers: As for `register_graph_node_type`.

    Raises:
        TypeError: If the type is no class, or `containers` a string.
        ValueError: If the type is registered already, or its instances are always
            static, as numbers are.

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
    add_node_impl(PytreeNodeImpl(type, flatten, unflatten, _names(containers)))


def find_impl(x: Any) -> NodeImpl | VariableImpl | None:
    """How a node or variable is handled; None if the object is neither."""
    kind = type(x)
    impl: Any = known_impl(kind)
    if impl is None and kind not in ATOMS:
        if kind in sometimes:
            impl, is_one = sometimes[kind]
            return impl if is_one(x) else None
        impl = inherited_impl(kind)
        if impl is None and not jax.tree_util.all_leaves((x,)):
            # JAX has no way to unregister a pytree type, so this holds from now on.
            by_jax = PytreeNodeImpl(kind, _flatten_by_jax, _unflatten_by_jax)
            impl = impls[kind] = by_jax
    return impl  # type: ignore[no-any-return]


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
    impl = find_impl(x)
    if not isinstance(impl, NodeImpl):
        found = f"the class {x.__name__}" if isinstance(x, type) else type(x).__name__
        advice = (
            "subclass `Object`, or register the type with `register_dataclass`, "
            "`register_graph_node_type` or `register_pytree_node_type`"
        )
        if impl is not None:
            advice = "a variable is none; put it into a node, such as a `Dict`"
        raise ValueError(
            f"Expected a graph node or pytree node, got {found}: {advice}."
        )
    return impl


def trace_of(x: Any) -> Any:
    """The trace that a node or variable belongs to; None if it does not tell."""
    if isinstance(x, OwnedNode):
        return x._node__trace
    get_trace = getattr(find_impl(x), "get_trace", None)
    return None if get_trace is None else get_trace(x)


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
    impl = find_for_type(t)
    if impl is None:
        raise ValueError(f"{t.__name__} is not registered as a node type.")
    return impl


def find_for_type(t: type[Any]) -> NodeImpl | None:
    """How nodes of a type are handled; None if it is no node type."""
    if t in sometimes:
        return sometimes[t][0]  # type: ignore[no-any-return]
    impl: Any = known_impl(t) or inherited_impl(t)
    if impl is not None:
        return impl if isinstance(impl, NodeImpl) else None
    # JAX answers for instances only, and looks at nothing but the type of one. So an
    # empty one is made, without running any of the class's own code.
    makers = (base.__dict__.get("__new__") for base in t.__mro__)
    make: Any = next(m for m in makers if isinstance(m, types.BuiltinFunctionType))
    try:
        return find_impl(make(t))  # type: ignore[return-value]  # no variable's
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
    return isinstance(find_impl(x), NodeImpl)


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
    kind = type(x)
    return isinstance(known_impl(kind) or inherited_impl(kind), GraphNodeImpl)


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
    return isinstance(find_impl(x), PytreeNodeImpl)


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
    return find_for_type(t) is not None


# The built-in pytree nodes, and those that JAX knows


def _flatten_by_jax(node: Any) -> tuple[Pairs, Any]:
    children, structure = jax.tree_util.tree_flatten_with_path(
        node, is_leaf=lambda x: x is not node
    )
    return [(key_of(path[0]), child) for path, child in children], structure


def _unflatten_by_jax(pairs: Pairs, structure: Any) -> Any:
    return jax.tree.unflatten(structure, [child for _, child in pairs])


_BUILT_IN = (list, tuple, dict, type(None))


def nodes_as_in_jax(tree: Any) -> list[Any] | None:
    """The nodes of a pytree without objects, which JAX takes apart in the same way.

    Args:
        tree: A pytree node.

    Returns:
        None if there is anything but pytree nodes and values in it, or JAX knows other
        children, or another order of them.
    """
    nodes: list[Any] = [tree]
    for node in nodes:  # grows during the loop
        impl: Any = find_impl(node)
        if impl.flatten is not _flatten_by_jax and impl.type not in _BUILT_IN:
            return None
        for _, child in impl.flatten(node)[0]:
            below = find_impl(child)
            if isinstance(below, PytreeNodeImpl):
                nodes.append(child)
            elif below is not None:
                return None
    return nodes


def _flatten_dict(node: dict[Any, Any]) -> tuple[Pairs, Any]:
    try:
        return sorted(node.items()), None
    except TypeError:
        raise UnsortableKeys("plain dict", node) from None


class UnsortableKeys(TypeError):
    """A node whose keys can't be sorted; caught where the path is known."""

    def __init__(self, kind: str, keys: Iterable[Any]) -> None:
        super().__init__(f"a {kind} with the keys {[*keys]!r}, which can't be sorted")

    def at(self, path: tuple[Any, ...]) -> ValueError:
        """The error for users."""
        return ValueError(
            f"At {path_text(path)!r} there is {self}: children are visited in sorted "
            "order. Use keys of one type; a `Dict` takes strings and integers together."
        )


def _register_sequence(kind: type[Any]) -> None:
    register_pytree_node_type(
        kind,
        lambda node: (list(enumerate(node)), None),
        lambda pairs, _: kind([child for _, child in pairs]),
    )


_register_sequence(list)
_register_sequence(tuple)
register_pytree_node_type(dict, _flatten_dict, lambda pairs, _: dict(pairs))
register_pytree_node_type(type(None), lambda node: ((), None), lambda pairs, _: None)
