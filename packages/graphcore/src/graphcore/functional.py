"""The functional API: graphs to definitions and states, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import itemgetter
from typing import Any, TypeAlias, TypeVar, overload

import jax
import numpy as np

import graphcore.state.pytree  # noqa: F401  (tells JAX what is inside of states)
from graphcore.cache.plans import Plan, plan_of
from graphcore.display.printing import leaf_text
from graphcore.graphdef.build import Builder
from graphcore.graphdef.definition import GraphDef, NodeDef, VariableDef
from graphcore.graphdef.layouts import layout_of
from graphcore.graphdef.recipes import recipe_of
from graphcore.graphdef.walk import Visit, walk
from graphcore.nodes.registry import get_node_impl
from graphcore.refmap import RefMap, forgetting
from graphcore.state.filters import Filter, filters_to_predicates, grouped
from graphcore.state.leaves import UnmadeState, leaves_for, values_for
from graphcore.state.nesting import nested_from_flat
from graphcore.state.state import FlatState, State
from graphcore.undo import undoing
from graphcore.variables.bare_arrays import BareArray
from graphcore.variables.state import VariableState, shown_to_filters

__all__ = [
    "GraphState",
    "PureState",
    "call",
    "clone",
    "flatten",
    "graphdef",
    "merge",
    "split",
    "state",
    "unflatten",
    "variables",
]

A = TypeVar("A")
GraphState: TypeAlias = State[Any, VariableState[Any]]
"""The state of a graph.

Example:
    >>> import graphcore as gc
    >>> state: gc.GraphState = gc.state(gc.Dict(w=gc.Param(1)))
    >>> state.w.value
    1
"""
PureState: TypeAlias = tuple[GraphDef[A], GraphState]
"""A definition with its state: all of a graph, as values.

Example:
    >>> import graphcore as gc
    >>> pure: gc.PureState = gc.split(gc.Dict(w=gc.Param(1)))
    >>> gc.merge(*pure).w.value
    1
"""


def flatten(
    node: A, /, ref_index: RefMap[Any, int] | None = None
) -> tuple[GraphDef[A], GraphState]:
    """Takes a graph apart into a definition and a state.

    Args:
        node: A graph node or pytree node.
        ref_index: The indices of objects that were flattened before; extended in
            place. With a shared one, several graphs get one index space, and what was
            in an earlier one appears as a reference.

    Returns:
        The hashable definition, and the state: a pytree of the raw values of all
        variables that were not in an earlier graph.

    Raises:
        ValueError: If it is not a node, or holds something that can't be flattened;
            with the path.

    Example:
        >>> import graphcore as gc
        >>> graphdef, state = gc.flatten(gc.Dict(a=gc.Param(1)))
        >>> state.a.value
        1
    """
    get_node_impl(node)  # raises if it is no node
    if ref_index is None:
        plan = plan_of(node)
        return plan.own, State.lazily(UnmadeState.whole(plan.own, plan.values()))
    with forgetting(ref_index):
        return taken_apart(node, ref_index)


def taken_apart(node: Any, refs: RefMap[Any, int]) -> tuple[GraphDef[Any], Any]:
    """Takes a graph or a variable apart; what was seen before is referred to.

    Args:
        node: A node or variable.
        refs: The indices of what was seen before; extended in place.

    Returns:
        Definition and state; that of a variable is its `VariableState`.
    """
    visit = Visit(refs=refs)
    definition = walk(node, visit)
    if isinstance(definition, VariableDef):
        return definition, visit.leaves[0].state()
    leaves = ((leaf.path, leaf.state()) for leaf in visit.leaves)
    return definition, State.from_flat_path(leaves)


# Unless each number of states has its type, mypy lets nobody unpack them.
@overload
def split(node: A, only: Filter = ..., /) -> tuple[GraphDef[A], GraphState]: ...
@overload
def split(
    node: A, first: Filter, second: Filter, /
) -> tuple[GraphDef[A], GraphState, GraphState]: ...
@overload
def split(
    node: A, first: Filter, second: Filter, third: Filter, /
) -> tuple[GraphDef[A], GraphState, GraphState, GraphState]: ...
@overload
def split(node: Any, *filters: Filter) -> tuple[Any, ...]: ...
def split(node: Any, *filters: Filter) -> Any:
    """Takes a graph apart into a definition and one state a filter.

    Args:
        node: A graph node or pytree node; or a `State`, which is its own state.
        *filters: How to divide the state; a variable goes to the first filter that
            selects it. Without filters there is one state.

    Returns:
        `(graphdef, state, ...)`.

    Raises:
        ValueError: If it is not a node, or a variable is selected by no filter.

    Example:
        >>> import graphcore as gc
        >>> node = gc.Dict(w=gc.Param(1), n=gc.BatchStat(2))
        >>> graphdef, params, rest = gc.split(node, gc.Param, ...)
        >>> list(params), list(rest)
        (['w'], ['n'])
    """
    definition, whole = flatten(node)
    if isinstance(node, State) and _is_of_states(definition):
        whole = node.filter(...)
    return with_parts(definition, whole, filters) if filters else (definition, whole)


def _is_of_states(definition: GraphDef[Any]) -> bool:
    """Whether it is of a `State` of snapshots, which are pytrees of arrays to it."""
    return (
        isinstance(definition, NodeDef)
        and issubclass(definition.type, State)
        and all(kind is BareArray for kind, _ in layout_of((definition,)).kinds)
    )


def with_parts(
    definition: GraphDef[Any], whole: State[Any, Any], filters: Sequence[Filter]
) -> tuple[Any, ...]:
    """What `split` returns with filters: the definition, and a state for each."""
    parts = whole.split(*filters)
    return (definition, parts) if len(filters) == 1 else (definition, *parts)


def graphdef(node: A, /) -> GraphDef[A]:
    """Returns the definition of a graph.

    Args:
        node: A graph node or pytree node.

    Returns:
        The definition.

    Raises:
        ValueError: If it is not a node.

    Example:
        >>> import graphcore as gc
        >>> gc.graphdef(gc.Dict(a=1)) == gc.graphdef(gc.Dict(a=1))
        True
    """
    get_node_impl(node)  # raises if it is no node
    return plan_of(node).own


@overload
def state(node: Any, only: Filter = ..., /) -> GraphState: ...
@overload
def state(
    node: Any, first: Filter, second: Filter, /
) -> tuple[GraphState, GraphState]: ...
@overload
def state(node: Any, *filters: Filter) -> Any: ...
def state(node: Any, *filters: Filter) -> Any:
    """Returns the state of a graph, or a selection of it.

    Args:
        node: A graph node or pytree node; or a `State`, which is its own state.
        *filters: What to select; variables that no filter selects are left out.

    Returns:
        All of the state without filters, one state for one filter, else a tuple.

    Raises:
        ValueError: If it is not a node.

    Example:
        >>> import graphcore as gc
        >>> node = gc.Dict(w=gc.Param(1), n=gc.BatchStat(2))
        >>> list(gc.state(node, gc.Param))
        ['w']
    """
    if isinstance(node, State):
        return node.filter(*(filters or (...,)))
    whole = flatten(node)[1]
    return whole.filter(*filters) if filters else whole


@overload
def variables(node: Any, only: Filter = ..., /) -> State[Any, Any]: ...
@overload
def variables(
    node: Any, first: Filter, second: Filter, /
) -> tuple[State[Any, Any], State[Any, Any]]: ...
@overload
def variables(node: Any, /, *filters: Filter) -> Any: ...
def variables(node: Any, /, *filters: Filter) -> Any:
    """Returns the live variables of a graph, each once, at its first path.

    Args:
        node: A graph node or pytree node.
        *filters: What to select; variables that no filter selects are left out.

    Returns:
        A `State` of the variables themselves, and of arrays that stand in the graph
        without one; several filters give a tuple.

    Raises:
        ValueError: If it is not a node.

    Example:
        >>> import graphcore as gc
        >>> node = gc.Dict(w=gc.Param(1))
        >>> gc.variables(node).w is node.w
        True
    """
    get_node_impl(node)  # raises if it is no node
    plan = plan_of(node)
    live = _live(plan)
    paths = plan.layout.paths
    if not filters:
        return State.lazily(lambda: nested_from_flat(zip(paths, live, strict=True)))
    shown = map(shown_to_filters, plan.layout.impls, plan.variables)
    groups, _ = grouped(
        filters_to_predicates(filters),
        ((path, x, (path, y)) for path, x, y in zip(paths, shown, live, strict=True)),
    )
    states: list[Any] = [State.from_flat_path(group) for group in groups]
    return states[0] if len(states) == 1 else tuple(states)


def _live(plan: Plan) -> list[Any]:
    return [x.get() if type(x) is BareArray else x for x in plan.variables]


# Building


def unflatten(
    graphdef: GraphDef[A],
    state: Mapping[Any, Any],
    /,
    *,
    index_ref: dict[int, Any] | None = None,
    index_ref_cache: Mapping[int, Any] | None = None,
) -> A:
    """Puts a graph together from its definition and state.

    Args:
        graphdef: The definition.
        state: The state; leaves may be `VariableState`s, variables or raw values.
        index_ref: The objects of indices that were built before, for definitions
            that share an index space; extended in place.
        index_ref_cache: Existing objects to reuse for an index. Nodes among them are
            emptied and filled again, variables get the new value, so whoever holds
            them sees the new graph.

    Returns:
        The root node.

    Raises:
        ValueError: If definition and state don't fit, or a cached object is of
            another type than the definition says; nothing is changed then.

    Example:
        >>> import graphcore as gc
        >>> graphdef, state = gc.flatten(gc.Dict(a=gc.Param(1)))
        >>> gc.unflatten(graphdef, state).a.value
        1
    """
    if index_ref is None and not index_ref_cache:
        return _made(graphdef, (state,))
    index_ref = {} if index_ref is None else index_ref
    built = dict(index_ref)
    builder = Builder(leaves_for(graphdef, (state,)), built, index_ref_cache or {})
    node = builder.build(graphdef)
    with undoing() as undo:
        builder.commit(undo)
    index_ref.update(built)
    return node


def merge(
    graphdef: GraphDef[A],
    state: Mapping[Any, Any] | list[Any],
    /,
    *states: Mapping[Any, Any],
    copy: bool = True,
) -> A:
    """Puts a graph together from its definition and states.

    Args:
        graphdef: The definition.
        state: The state, or the first of several; or a list of its leaves in the order
            of `jax.tree.leaves`.
        *states: The others.
        copy: Whether live variables among the leaves, as `variables` returns them, are
            copied; else they become part of the new graph themselves.

    Returns:
        A new node; nothing of the original graph is shared but static values, and the
        live variables among the leaves with `copy=False`.

    Raises:
        ValueError: If definition and states don't fit.

    Example:
        >>> import graphcore as gc
        >>> gc.merge(*gc.split(gc.Dict(a=gc.Param(1)))).a.value
        1
        >>> node = gc.Dict(a=gc.Param(1))
        >>> view = gc.merge(gc.graphdef(node), gc.variables(node), copy=False)
        >>> view is node, view.a is node.a
        (False, True)
    """
    if isinstance(state, list):
        state = _in_order(graphdef, state)
    given = state, *states
    if _is_of_states(graphdef):
        given = tuple(flatten(x)[1] if isinstance(x, State) else x for x in given)
    return _made(graphdef, given, share=not copy)


def _made(graphdef: GraphDef[A], states: Sequence[Any], *, share: bool = False) -> A:
    """Makes a new graph that refers to nothing outside."""
    if isinstance(graphdef, NodeDef) and not share:
        layout = layout_of((graphdef,))
        values = None if layout.outside else values_for(graphdef, states)
        if values is not None:
            made: A = recipe_of(layout).make(values)
            return made
    leaves = leaves_for(graphdef, states, share=share)
    return Builder(leaves, {}, {}).build(graphdef)


def _in_order(graphdef: GraphDef[Any], leaves: list[Any]) -> GraphState:
    paths = layout_of([graphdef]).paths
    if len(leaves) != len(paths):
        raise ValueError(
            f"Got a list of {len(leaves)} leaves, expected {len(paths)}: one for each "
            "variable, as in `jax.tree.leaves(state, is_leaf=is_variable)`."
        )
    order = FlatState(zip(paths, paths, strict=True)).paths
    return State.from_flat_path(zip(order, leaves, strict=True))


def clone(node: A, variables: bool = True, *, arrays: bool = False) -> A:
    """Copies a graph: same structure, own nodes and variables, same arrays.

    Args:
        node: A graph node or pytree node.
        variables: Whether variables are copied; else the copy has the same ones.
        arrays: Whether the arrays in copied variables are copies too, so that the one
            graph can be donated while the other is in use.

    Returns:
        The copy.

    Raises:
        ValueError: If it is not a node.

    Example:
        >>> import graphcore as gc
        >>> node = gc.Dict(a=gc.Param(1)); twin = gc.clone(node)
        >>> twin.a is node.a, twin.a == node.a
        (False, True)
        >>> gc.clone(node, variables=False).a is node.a
        True
    """
    get_node_impl(node)  # raises if it is no node
    plan = plan_of(node)
    if not variables:
        live = zip(plan.layout.paths, _live(plan), strict=True)
        twin: A = merge(plan.own, State.from_flat_path(live), copy=False)
        return twin
    values = plan.values()
    values = jax.tree.map(_copied, values) if arrays else values
    result: A = recipe_of(layout_of((plan.own,))).make(values)
    return result


def _copied(x: Any) -> Any:
    return x.copy() if isinstance(x, jax.Array | np.ndarray) else x


# Calls


class CallProxy:
    """Selects a method of a graph that is yet to be merged; see `call`.

    Args:
        definition: The definition.
        states: Its states.
        select: Returns what was selected of the node so far; the node, if left out.

    Example:
        >>> import graphcore as gc
        >>> proxy = gc.call(gc.split(gc.Dict(f=abs)))
        >>> proxy.f(-1)[0]
        1
    """

    __slots__ = ("_definition", "_states", "_steps")

    def __init__(
        self, definition: GraphDef[Any], states: tuple[Any, ...], *steps: Any
    ) -> None:
        self._definition = definition
        self._states = states
        # How to get from the node to what is called, one after the other.
        self._steps: tuple[Callable[[Any], Any], ...] = steps

    def __getattr__(self, name: str) -> CallProxy:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._then(lambda x: getattr(x, name))

    def __getitem__(self, key: Any) -> CallProxy:
        return self._then(itemgetter(key))

    def _then(self, step: Callable[[Any], Any]) -> CallProxy:
        return CallProxy(self._definition, self._states, *self._steps, step)

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Any, PureState[Any]]:
        node = merge(self._definition, *self._states)
        out = reduce(lambda x, step: step(x), self._steps, node)(*args, **kwargs)
        return out, flatten(node)


GraphDef._proxy = CallProxy


def call(graphdef_and_state: tuple[GraphDef[Any], Any], /) -> CallProxy:
    """Calls a method of a graph functionally.

    Args:
        graphdef_and_state: A definition and its state.

    Returns:
        A proxy. Attributes and items of it select a method; calling it merges the
        graph, calls the method, and returns `(output, (graphdef, state))` with the
        definition and state after the call.

    Raises:
        TypeError: If it is given anything else.

    Example:
        >>> import graphcore as gc
        >>> class Count(gc.Object):
        ...     def __init__(self): self.n = gc.Variable(1)
        ...     def add(self, k): self.n.value += k; return k
        >>> pure = gc.split(gc.Dict(count=Count()))
        >>> out, (graphdef, state) = gc.call(pure)['count'].add(2)
        >>> out, state['count'].n.value
        (2, 3)
    """
    given: Any = graphdef_and_state
    if not isinstance(given, tuple | list) or not given:
        raise TypeError(
            "call takes what split returns, a definition and a state: "
            f"call(split(node)).method(...). It got {leaf_text(given)}."
        )
    definition, *states = given
    return CallProxy(definition, tuple(states))
