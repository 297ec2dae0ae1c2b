"""Pytrees that contain graph nodes, turned into pytrees of states and back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import jax

from graphcore._jax import current_trace
from graphcore.boundary.places import is_object, key_path
from graphcore.cache.plans import plan_of
from graphcore.context import (
    MergeContext,
    SplitContext,
    Stacks,
    merge_context,
    split_context,
)
from graphcore.display.printing import Parts, call_parts, text
from graphcore.graphdef.definition import GraphDef
from graphcore.prefixes import AliasCheck, broadcast_prefix
from graphcore.unset import UNSET

__all__ = [
    "NodeStates",
    "broadcast_state",
    "clear_non_graph_nodes",
    "from_tree",
    "get_broadcast_state",
    "to_tree",
]

S = TypeVar("S")


@jax.tree_util.register_dataclass
@dataclass(slots=True, eq=False, repr=False)
class NodeStates(Generic[S]):
    """A graph node taken apart, as a pytree node whose children are its states.

    Made by the class methods. Definition and metadata are static.

    Example:
        >>> import graphcore as gc
        >>> graphdef, state = gc.split(gc.Dict(a=gc.Param(1)))
        >>> gc.NodeStates.from_split(graphdef, state).state.a.value
        1
    """

    # For JAX a child without leaves, not a part of the treedef, so that node states
    # without a definition can be a prefix of those with one.
    _graphdef: GraphDef[Any] | None
    states: tuple[S, ...]
    metadata: Any = field(metadata={"static": True})

    @classmethod
    def from_split(
        cls, graphdef: GraphDef[Any], state: S, /, *states: S, metadata: Any = None
    ) -> NodeStates[S]:
        """Holds what `split` returned.

        Args:
            graphdef: The definition.
            state: The state, or the first of several.
            *states: The others.
            metadata: Anything hashable.

        Returns:
            The node states.

        Example:
            >>> import graphcore as gc
            >>> gc.NodeStates.from_split(*gc.split(gc.Dict(a=1))).graphdef.type.__name__
            'Dict'
        """
        return cls(graphdef, (state, *states), metadata)

    @classmethod
    def from_states(cls, state: S, /, *states: S) -> NodeStates[S]:
        """Holds states without a definition.

        Args:
            state: The state, or the first of several.
            *states: The others.

        Returns:
            The node states.

        Example:
            >>> import graphcore as gc
            >>> len(gc.NodeStates.from_states(gc.State({}), gc.State({})).states)
            2
        """
        return cls(None, (state, *states), None)

    @classmethod
    def from_prefixes(
        cls, prefixes: Any, /, *, metadata: Any = None
    ) -> NodeStates[Any]:
        """Holds one prefix a state, as a tree prefix of node states.

        Args:
            prefixes: An iterable of prefixes.
            metadata: As in the node states that it is a prefix of.

        Returns:
            The node states.

        Example:
            >>> import graphcore as gc
            >>> gc.NodeStates.from_prefixes([0, None]).states
            (0, None)
        """
        return cls(None, tuple(prefixes), metadata)

    @property
    def graphdef(self) -> GraphDef[Any]:
        """The definition.

        Raises:
            ValueError: If there is none.
        """
        if self._graphdef is None:
            raise ValueError("These node states were made without a definition.")
        return self._graphdef

    @property
    def state(self) -> S:
        """The only state.

        Raises:
            ValueError: If there is not exactly one.
        """
        if len(self.states) != 1:
            raise ValueError(
                f"Expected exactly one state, there are {len(self.states)}: use "
                "`.states`."
            )
        return self.states[0]

    __repr__ = text

    def __parts__(self) -> Parts:
        states: Any = self.states  # JAX may put anything there on its way
        is_one = isinstance(states, tuple) and len(states) == 1
        shown = {"state": states[0]} if is_one else {"states": states}
        if self._graphdef is not None:
            shown = {"graphdef": self._graphdef, **shown}
        if self.metadata is not None:
            shown["metadata"] = self.metadata
        return call_parts(self, (), shown)


def _split(ctx: SplitContext, path: Any, prefix: Any, leaf: Any) -> Any:
    return NodeStates.from_split(*ctx.split(leaf)) if is_object(leaf) else leaf


def _merge(ctx: MergeContext, path: Any, prefix: Any, leaf: Any) -> Any:
    if isinstance(leaf, NodeStates):
        return ctx.merge(leaf.graphdef, *leaf.states)
    return leaf


def _is_node_states(x: Any) -> bool:
    return isinstance(x, NodeStates)


def _leaves(
    tree: Any, prefix: Any, is_leaf: Callable[[Any], bool]
) -> tuple[list[tuple[Any, Any, Any]], Any]:
    """The path, the prefix and the leaf of each leaf of a pytree, and its structure."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_leaf)
    prefixes = [None] * len(leaves)
    if prefix is not UNSET:
        prefixes = broadcast_prefix(
            prefix,
            tree,
            prefix_is_leaf=lambda x: x is None or _is_node_states(x),
            tree_is_leaf=is_leaf,
        )
    pairs = zip(leaves, prefixes, strict=True)
    return [(path, of_leaf, leaf) for (path, leaf), of_leaf in pairs], structure


def to_tree(
    tree: Any,
    /,
    *,
    prefix: Any = UNSET,
    split_fn: Callable[[SplitContext, Any, Any, Any], Any] = _split,
    map_non_graph_nodes: bool = False,
    ctxtag: Any = None,
    check_aliasing: bool = True,
) -> Any:
    """Replaces the graph nodes and variables in a pytree by pytrees of their states.

    All of them share one index space, so what is reached twice is there once.

    Args:
        tree: A pytree with graph nodes and variables among its leaves.
        prefix: A tree prefix with a setting for each node.
        split_fn: Called as `split_fn(ctx, path, prefix, node)` for each node; what it
            returns takes the node's place. `NodeStates` by default.
        map_non_graph_nodes: Whether to call it for all other leaves as well.
        ctxtag: The tag of an open update context, for which this is step 1 or 3.
        check_aliasing: Whether to check that nothing is reached under two prefixes.

    Returns:
        A pytree that JAX can handle.

    Raises:
        ValueError: If a node or variable is reached under different prefixes, or
            belongs to a different trace level.

    Example:
        >>> import graphcore as gc
        >>> node = gc.Dict(a=gc.Param(1))
        >>> first, second = gc.to_tree((node, node))
        >>> gc.from_tree((first, second))[1].a.value
        1
    """
    leaves, structure = _leaves(tree, prefix, is_object)
    aliases = AliasCheck()
    for path, leaf_prefix, leaf in leaves:
        if is_object(leaf):
            plan_of(leaf).check_trace(current_trace())
            if check_aliasing and prefix is not UNSET:
                aliases.add(key_path(path), leaf, leaf_prefix)
    aliases.check()
    with split_context(ctxtag) as ctx:
        out = [
            split_fn(ctx, *each)
            if map_non_graph_nodes or is_object(each[-1])
            else each[-1]
            for each in leaves
        ]
    return jax.tree.unflatten(structure, out)


def from_tree(
    tree: Any,
    /,
    *,
    prefix: Any = UNSET,
    merge_fn: Callable[[MergeContext, Any, Any, Any], Any] = _merge,
    is_node_leaf: Callable[[Any], bool] = _is_node_states,
    is_leaf: Callable[[Any], bool] = _is_node_states,
    map_non_graph_nodes: bool = False,
    ctxtag: Any = None,
) -> Any:
    """Replaces what `to_tree` put in the place of graph nodes by graph nodes.

    Args:
        tree: A pytree as `to_tree` returns it.
        prefix: A tree prefix with a setting for each node.
        merge_fn: Called as `merge_fn(ctx, path, prefix, leaf)` for each leaf that
            stands for a node; returns the node.
        is_node_leaf: Tells whether a leaf stands for a node.
        is_leaf: Tells what is a leaf.
        map_non_graph_nodes: Whether to call `merge_fn` for all other leaves as well.
        ctxtag: The tag of an open update context, for which this is step 2 or 4.

    Returns:
        A pytree with graph nodes among its leaves.

    Raises:
        ValueError: If definitions and states don't fit.

    Example:
        >>> import graphcore as gc
        >>> gc.from_tree(gc.to_tree([gc.Dict(a=gc.Param(1))]))[0].a.value
        1
    """
    leaves, structure = _leaves(tree, prefix, is_leaf)
    with merge_context(ctxtag) as ctx:
        out = [
            merge_fn(ctx, *each)
            if map_non_graph_nodes or is_node_leaf(each[-1])
            else each[-1]
            for each in leaves
        ]
    return jax.tree.unflatten(structure, out)


def clear_non_graph_nodes(tree: Any, /) -> Any:
    """Replaces all leaves that are no graph nodes or variables by None.

    Args:
        tree: A pytree with graph nodes among its leaves.

    Returns:
        The pytree with its graph nodes and variables only.

    Example:
        >>> import graphcore as gc
        >>> gc.clear_non_graph_nodes((1, gc.Dict(), [2]))[2]
        [None]
    """
    return jax.tree.map(lambda x: x if is_object(x) else None, tree, is_leaf=is_object)


_broadcasts = Stacks()


@contextlib.contextmanager
def broadcast_state(tag: Any, value: Any) -> Iterator[None]:
    """Makes a value known under a tag to whatever runs inside, in this thread.

    For values that a transformation's inner function needs but that must not pass
    through the transformation.

    Args:
        tag: Any hashable name.
        value: The value.

    Example:
        >>> import graphcore as gc
        >>> with gc.broadcast_state('depth', 3):
        ...     gc.get_broadcast_state('depth')
        3
    """
    _broadcasts.push(tag, value)
    try:
        yield
    finally:
        _broadcasts.pop(tag)


def get_broadcast_state(tag: Any) -> Any:
    """Returns the innermost value that is known under a tag in this thread.

    Args:
        tag: The name.

    Returns:
        The value.

    Raises:
        ValueError: If there is none.

    Example:
        >>> import graphcore as gc
        >>> with gc.broadcast_state('depth', 3):
        ...     gc.get_broadcast_state('depth')
        3
    """
    stack = _broadcasts.of_tag.get(tag)
    if not stack:
        raise ValueError(f"There is no broadcast state with the tag {tag!r}.")
    return stack[-1]
