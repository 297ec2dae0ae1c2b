"""The functional API: graphs to definitions and states, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias, TypeVar

from graphcore.build import Builder
from graphcore.content import values_equal
from graphcore.errors import path_text
from graphcore.filters import Filter, filters_to_predicates
from graphcore.graphdef import (
    GraphDef,
    NodeDef,
    NodeRef,
    StaticAttribute,
    VariableDef,
    definition_paths,
)
from graphcore.hashable_mapping import HashableMapping
from graphcore.plans import Layout, Plan, plan_of
from graphcore.refmap import RefMap
from graphcore.registry import (
    GraphNodeImpl,
    find_node_impl,
    get_node_impl,
)
from graphcore.state import State, nested_from_flat
from graphcore.variable_impl import find_variable_impl, is_variable, variable_impl
from graphcore.variable_state import VariableState
from graphcore.walk import Path, Visit, walk

__all__ = [
    "CallProxy",
    "GraphState",
    "PureState",
    "call",
    "clone",
    "flatten",
    "graphdef",
    "iter_graph",
    "merge",
    "pop",
    "split",
    "state",
    "unflatten",
    "update",
    "variables",
]

A = TypeVar("A")
GraphState: TypeAlias = State[Any, VariableState[Any]]
"""The state of a graph."""
_Leaves: TypeAlias = dict[int, tuple[Any, HashableMapping[str, Any] | None]]
PureState: TypeAlias = tuple[GraphDef[A], GraphState]
"""A definition with its state: all of a graph, as values."""


def _refuse_non_node(node: Any) -> None:
    if find_node_impl(node) is None:
        get_node_impl(node)


class _UnmadeState:
    """The leaves of a state that nobody has looked at: makes the nested dict."""

    __slots__ = ("layout", "values")

    def __init__(self, layout: Layout, values: list[Any]) -> None:
        self.layout = layout
        self.values = values

    def __call__(self) -> dict[Any, Any]:
        layout = self.layout
        return nested_from_flat(
            (path, VariableState.of(d.type, value, d.metadata))
            for path, d, value in zip(
                layout.paths, layout.definitions, self.values, strict=True
            )
        )

    def leaves(self) -> _Leaves:
        return {
            d.index: (value, None)
            for d, value in zip(self.layout.definitions, self.values, strict=True)
        }


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
    _refuse_non_node(node)
    if ref_index is None:
        plan = plan_of(node)
        return plan.layout.root, State.lazily(_UnmadeState(plan.layout, plan.values()))
    visit = Visit()
    definition = walk(node, ref_index, visit)
    return definition, State.from_flat_path(
        (leaf.path, leaf.state()) for leaf in visit.leaves
    )


def split(node: A, /, *filters: Filter) -> Any:
    """Takes a graph apart into a definition and one state a filter.

    Args:
        node: A graph node or pytree node.
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
    if not filters:
        return definition, whole
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
    _refuse_non_node(node)
    return plan_of(node).layout.root


def state(node: Any, /, *filters: Filter) -> Any:
    """Returns the state of a graph, or a selection of it.

    Args:
        node: A graph node or pytree node.
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
    whole = flatten(node)[1]
    return whole.filter(*filters) if filters else whole


def variables(node: Any, /, *filters: Filter) -> Any:
    """Returns the live variables of a graph, each once, at its first path.

    Args:
        node: A graph node or pytree node.
        *filters: What to select; variables that no filter selects are left out.

    Returns:
        A `State` of the variables themselves; several filters give a tuple.

    Raises:
        ValueError: If it is not a node.

    Example:
        >>> import graphcore as gc
        >>> node = gc.Dict(w=gc.Param(1))
        >>> gc.variables(node).w is node.w
        True
    """
    _refuse_non_node(node)
    plan = plan_of(node)
    pairs = list(zip(plan.layout.paths, plan.variables, strict=True))
    whole: State[Any, Any] = State.lazily(lambda: nested_from_flat(pairs))
    return whole.filter(*filters) if filters else whole


# Building


def leaves_for(definition: GraphDef[Any], given: Any) -> _Leaves:
    """Finds the value of each variable of a definition in its state.

    Args:
        definition: Of a node, or of a variable whose state is then a leaf.
        given: The state.

    Returns:
        Value and metadata by index; None stands for metadata that did not come along.

    Raises:
        ValueError: If a key is missing or unknown, or a leaf stands where a subgraph
            is due or the reverse, with the path.
    """
    unmade = given._unmade if isinstance(given, State) else None
    if isinstance(unmade, _UnmadeState) and unmade.layout.root is definition:
        return unmade.leaves()
    found: _Leaves = {}
    if isinstance(definition, VariableDef):
        return {definition.index: _leaf(definition, given, ())}
    if isinstance(definition, NodeRef):
        return found
    if not isinstance(definition, NodeDef):
        raise ValueError(f"Expected a GraphDef, got {type(definition).__name__}.")
    pending: list[tuple[Path, NodeDef[Any], Mapping[Any, Any]]] = [
        ((), definition, _raw(given))
    ]
    while pending:
        path, node, items = pending.pop()
        known = set()
        for attribute in node.attributes:
            key = attribute.key
            if isinstance(attribute, StaticAttribute):
                if key in items:
                    raise ValueError(
                        f"Got state for the static attribute {path_text((*path, key))!r}"
                        f" of {node.type.__name__}: static values are in the "
                        "definition, so leave it out of the state."
                    )
                continue
            child = attribute.value
            if isinstance(child, NodeDef):
                known.add(key)
                inner = items.get(key, {})
                if not isinstance(inner, Mapping):
                    raise ValueError(
                        f"Got a leaf of type {type(inner).__name__} at "
                        f"{path_text((*path, key))!r}, where the definition has a "
                        f"subgraph ({child.type.__name__}): expected a nested state."
                    )
                pending.append(((*path, key), child, inner))
            elif isinstance(child, VariableDef):
                known.add(key)
                if key not in items:
                    raise ValueError(
                        f"Expected key {key!r} in the state at {path_text(path)!r}, "
                        f"for a {child.type.__name__}; found the keys "
                        f"{list(items)}. Pass all states that the graph was split "
                        "into."
                    )
                found[child.index] = _leaf(child, items[key], (*path, key))
        unknown = [key for key in items if key not in known]
        if unknown:
            raise ValueError(
                f"Unknown keys in the state at {path_text(path)!r}: {unknown}; the "
                f"{node.type.__name__} there has {sorted(map(str, known))}."
            )
    return found


def _leaf(
    definition: VariableDef[Any], leaf: Any, path: Path
) -> tuple[Any, HashableMapping[str, Any] | None]:
    if is_variable(leaf):
        leaf = VariableState.from_variable(leaf)
    if isinstance(leaf, VariableState):
        if leaf.type is not definition.type:
            raise ValueError(
                f"The state at {path_text(path)!r} is of a {leaf.type.__name__}, but "
                f"the definition has a {definition.type.__name__} there."
            )
        return leaf.value, leaf._metadata
    if isinstance(leaf, State):
        raise ValueError(
            f"Got a nested state with the keys {list(leaf)} at {path_text(path)!r}, "
            f"where the definition has a variable ({definition.type.__name__}): "
            "expected a leaf."
        )
    return leaf, None


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
    if index_ref is None:
        index_ref = {}
    built = dict(index_ref)
    builder = Builder(leaves_for(graphdef, state), built, index_ref_cache or {})
    node = builder.build(graphdef)
    builder.commit()
    index_ref.update(built)
    result: A = node
    return result


def _raw(state: Mapping[Any, Any]) -> Mapping[Any, Any]:
    return state.raw_mapping if isinstance(state, State) else state


def merge(
    graphdef: GraphDef[A], state: Mapping[Any, Any], /, *states: Mapping[Any, Any]
) -> A:
    """Puts a graph together from its definition and states.

    Args:
        graphdef: The definition.
        state: The state, or the first of several.
        *states: The others.

    Returns:
        A new node; nothing of the original graph is shared but static values.

    Raises:
        ValueError: If definition and states don't fit.

    Example:
        >>> import graphcore as gc
        >>> gc.merge(*gc.split(gc.Dict(a=gc.Param(1)))).a.value
        1
    """
    return unflatten(graphdef, State.merge(state, *states) if states else state)


def clone(node: A, /) -> A:
    """Copies a graph: same structure, own nodes and variables, same arrays.

    Args:
        node: A graph node or pytree node.

    Returns:
        The copy.

    Raises:
        ValueError: If it is not a node.

    Example:
        >>> import graphcore as gc
        >>> node = gc.Dict(a=gc.Param(1)); twin = gc.clone(node)
        >>> twin.a is node.a, twin.a == node.a
        (False, True)
    """
    _refuse_non_node(node)
    plan = plan_of(node)
    leaves = _UnmadeState(plan.layout, plan.values()).leaves()
    result: A = Builder(leaves, {}, {}).build(plan.layout.root)
    return result


# In place


def update(node: Any, state: Mapping[Any, Any], /, *states: Mapping[Any, Any]) -> None:
    """Updates a graph in place from states or nested dicts.

    Values of variables are replaced. A key that a graph node does not have is added
    to it; that needs leaves with a type, so `VariableState`s or variables.

    Args:
        node: A graph node or pytree node.
        state: The state; it may be partial.
        *states: More of them; where two have the same path, the later one counts.

    Raises:
        ValueError: If a leaf stands where a subgraph is due or the reverse, the path
            is that of a static attribute, the type of a variable differs, or a key
            would be added to a pytree node; nothing is changed then.

    Example:
        >>> import graphcore as gc
        >>> node = gc.Dict(a=gc.Param(1))
        >>> gc.update(node, {'a': 2}); node.a.value
        2
    """
    _refuse_non_node(node)
    given = State.merge(state, *states) if states else state
    values: list[tuple[Any, Any, HashableMapping[str, Any]]] = []
    added: list[tuple[Any, GraphNodeImpl, Any, Any]] = []
    pending: list[tuple[Path, Any, Mapping[Any, Any]]] = [((), node, _raw(given))]
    while pending:
        path, target, items = pending.pop()
        impl = get_node_impl(target)
        children = dict(impl.flatten(target)[0])
        for key, item in items.items():
            where = (*path, key)
            if key not in children:
                if not isinstance(impl, GraphNodeImpl):
                    raise ValueError(
                        f"Cannot add the key {path_text(where)!r} to a pytree node "
                        f"({impl.type.__name__}): only graph nodes can get new keys."
                    )
                added.append((target, impl, key, _new_child(item, where)))
                continue
            child = children[key]
            variable = find_variable_impl(type(child))
            if variable is not None:
                definition: VariableDef[Any] = VariableDef(
                    type(child), -1, variable.metadata(child)
                )
                value, metadata = _leaf(definition, item, where)
                values.append((child, value, metadata or definition.metadata))
            elif find_node_impl(child) is not None:
                if not isinstance(item, Mapping):
                    raise ValueError(
                        f"Got a leaf of type {type(item).__name__} at "
                        f"{path_text(where)!r}, where there is a subgraph "
                        f"({type(child).__name__}): expected a nested state."
                    )
                pending.append((where, child, _raw(item)))
            else:
                raise ValueError(
                    f"Got state for the static attribute {path_text(where)!r} of "
                    f"{type(target).__name__}, which is {child!r}: set it on the object."
                )
    _write(values, added)


def _new_child(item: Any, path: Path) -> Any:
    if is_variable(item):
        return item
    if isinstance(item, VariableState):
        return item.to_variable()
    if isinstance(item, Mapping):
        from graphcore.objects import Dict

        return Dict(
            {key: _new_child(child, (*path, key)) for key, child in item.items()}
        )
    raise ValueError(
        f"Cannot add {path_text(path)!r}: a new key needs a `VariableState` or a "
        f"variable, which say what to make, got {type(item).__name__}."
    )


def _write(
    values: list[tuple[Any, Any, HashableMapping[str, Any]]],
    added: list[tuple[Any, GraphNodeImpl, Any, Any]],
) -> None:
    undo: list[Callable[[], Any]] = []
    try:
        for variable, value, metadata in values:
            impl = variable_impl(type(variable))
            if impl.is_owned:
                variable._check_writable()
            old = impl.get_value(variable), impl.metadata(variable)
            undo.append(lambda v=variable, i=impl, o=old: i.overwrite(v, *o))
            impl.overwrite(variable, value, metadata)
        for node, node_impl, key, child in added:
            node_impl.set_key(node, key, child)
            undo.append(lambda n=node, i=node_impl, k=key: i.pop_key(n, k))
    except BaseException:
        for step in reversed(undo):
            step()
        raise


def pop(node: Any, /, *filters: Filter) -> Any:
    """Removes variables from a graph and returns their state.

    Args:
        node: A graph node or pytree node.
        *filters: At least one; a variable goes to the first that selects it. All
            references to a selected variable are removed.

    Returns:
        A state for a single filter, else a tuple with one state a filter.

    Raises:
        ValueError: If there is no filter, or a selected variable is held by a pytree
            node, from which nothing can be removed; nothing is changed then.

    Example:
        >>> import graphcore as gc
        >>> node = gc.Dict(w=gc.Param(1), seen=gc.Intermediate(2))
        >>> gc.pop(node, gc.Intermediate).seen.value, hasattr(node, 'seen')
        (2, False)
    """
    if not filters:
        raise ValueError("pop needs at least one filter; `...` removes all variables.")
    _refuse_non_node(node)
    predicates = filters_to_predicates(filters)
    groups: list[list[tuple[Path, Any]]] = [[] for _ in predicates]
    selected: RefMap[Any, int] = RefMap()
    plan = plan_of(node)
    for path, variable in zip(plan.layout.paths, plan.variables, strict=True):
        for predicate, group in zip(predicates, groups, strict=True):
            if predicate(path, variable):
                selected[variable] = len(selected)
                group.append((path, VariableState.from_variable(variable)))
                break
    removals: list[tuple[Any, GraphNodeImpl, Any]] = []
    before: RefMap[Any, tuple[GraphNodeImpl, list[tuple[Any, Any]]]] = RefMap()
    for path, holder, key, child in edges(node):
        if child in selected:
            impl = get_node_impl(holder)
            if not isinstance(impl, GraphNodeImpl):
                raise ValueError(
                    f"Cannot remove {path_text(path)!r} from a pytree node "
                    f"({impl.type.__name__}): variables that are to be popped must be "
                    "held by graph nodes."
                )
            removals.append((holder, impl, key))
            if holder not in before:
                before[holder] = impl, list(impl.flatten(holder)[0])
    try:
        # Backwards, so that positions in a sequence stay right.
        for holder, impl, key in reversed(removals):
            impl.pop_key(holder, key)
    except BaseException:
        for holder, (impl, pairs) in before.items():
            impl.clear(holder)
            impl.init(holder, pairs)
        raise
    states = [State.from_flat_path(group) for group in groups]
    return states[0] if len(states) == 1 else tuple(states)


def edges(root: Any) -> Iterator[tuple[Path, Any, Any, Any]]:
    """Every (path, node, key, child) in a graph, each graph node visited once."""
    seen: RefMap[Any, None] = RefMap()
    pending: list[tuple[Path, Any]] = [((), root)]
    while pending:
        path, node = pending.pop()
        impl = get_node_impl(node)
        if isinstance(impl, GraphNodeImpl):
            if node in seen:
                continue
            seen[node] = None
        inner: list[tuple[Path, Any]] = []
        for key, child in impl.flatten(node)[0]:
            yield (*path, key), node, key, child
            if not is_variable(child) and find_node_impl(child) is not None:
                inner.append(((*path, key), child))
        pending += reversed(inner)


def iter_graph(node: Any, /) -> Iterator[tuple[Path, Any]]:
    """Lists every node and leaf of a graph with its path, children before parents.

    Args:
        node: A graph node or pytree node.

    Yields:
        `(path, value)` for each graph node, pytree node, variable and static value;
        graph nodes and variables once, at their first path. The root comes last.

    Example:
        >>> import graphcore as gc
        >>> node = gc.Dict(a=gc.Param(1), b=2)
        >>> [path for path, value in gc.iter_graph(node)]
        [('a',), ('b',), ()]
    """
    seen: RefMap[Any, None] = RefMap()
    stack: list[tuple[Path, Any, Iterator[tuple[Any, Any]]]] = []

    def children(value: Any) -> Iterator[tuple[Any, Any]] | None:
        if is_variable(value):
            return None
        impl = find_node_impl(value)
        return None if impl is None else iter(impl.flatten(value)[0])

    def has_identity(value: Any) -> bool:
        return is_variable(value) or isinstance(find_node_impl(value), GraphNodeImpl)

    first = children(node)
    if first is None:
        yield (), node
        return
    seen[node] = None
    stack.append(((), node, first))
    while stack:
        path, value, pending = stack[-1]
        for key, child in pending:
            if has_identity(child):
                if child in seen:
                    continue
                seen[child] = None
            inner = children(child)
            if inner is None:
                yield (*path, key), child
            else:
                stack.append(((*path, key), child, inner))
                break
        else:
            stack.pop()
            yield path, value


# Calls


class CallProxy:
    """Selects a method of a graph that is yet to be merged; see `call`.

    Args:
        definition: The definition.
        states: Its states.
        steps: The attributes and items selected so far.

    Example:
        >>> import graphcore as gc
        >>> proxy = gc.call(gc.split(gc.Dict(f=abs)))
        >>> proxy.f(-1)[0]
        1
    """

    __slots__ = ("_definition", "_states", "_steps")

    def __init__(
        self,
        definition: GraphDef[Any],
        states: tuple[Any, ...],
        steps: tuple[tuple[Callable[[Any, Any], Any], Any], ...] = (),
    ) -> None:
        self._definition = definition
        self._states = states
        self._steps = steps

    def __getattr__(self, name: str) -> CallProxy:
        if name.startswith("__"):
            raise AttributeError(name)
        steps = (*self._steps, (getattr, name))
        return CallProxy(self._definition, self._states, steps)

    def __getitem__(self, key: Any) -> CallProxy:
        steps = (*self._steps, (lambda node, k: node[k], key))
        return CallProxy(self._definition, self._states, steps)

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Any, PureState[Any]]:
        node = merge(self._definition, *self._states)
        method = node
        for access, key in self._steps:
            method = access(method, key)
        out = method(*args, **kwargs)
        return out, flatten(node)


def call(graphdef_and_state: tuple[GraphDef[Any], Any], /) -> CallProxy:
    """Calls a method of a graph functionally.

    Args:
        graphdef_and_state: A definition and its state.

    Returns:
        A proxy. Attributes and items of it select a method; calling it merges the
        graph, calls the method, and returns `(output, (graphdef, state))` with the
        definition and state after the call.

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
    definition, *states = graphdef_and_state
    return CallProxy(definition, tuple(states))
