"""Objects as pytrees: what JAX sees of one, by value, and how it makes another.

The children are the attributes that hold arrays, variables or objects, alone or in
containers; everything else is part of the structure. What `jax.tree.map` makes of an
object may hold anything in their places: it remembers that they are children.

A tree has no place for an object that is reached twice: JAX would make two of it, and
give each a part of the gradient. That is looked for once, where JAX enters from above;
the objects below are known to be part of a tree then.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Iterator, Sequence
from operator import is_
from typing import Any, NamedTuple, TypeAlias

import jax

from graphcore._jax import OUTSIDE
from graphcore.boundary.places import is_object
from graphcore.cache.patterns import known_patterns
from graphcore.cache.plans import Plan, plan_of
from graphcore.content import is_immutable
from graphcore.content_key import UnhashableContent, content_key
from graphcore.getters import getter
from graphcore.graphdef.definition import (
    GraphDef,
    NodeDef,
    NodeRef,
    StaticAttribute,
)
from graphcore.graphdef.layouts import Layout, layout_of
from graphcore.graphdef.walk import Visit, walk
from graphcore.known_types import ATOMS, sometimes
from graphcore.nodes.callables import (
    Detached,
    attached,
    detached,
    holds_objects,
)
from graphcore.nodes.owned import (
    OwnedNode,
    get_open_children,
    plans_of,
    set_open_children,
    set_plans,
)
from graphcore.nodes.owned import set_trace as _set_trace
from graphcore.nodes.registry import PytreeNodeImpl, find_impl, trace_of
from graphcore.probing import probing
from graphcore.rebuilt import (
    OF_OUTSIDE,
    ByValue,
    Origin,
    as_before,
    origin,
    running_trace,
    trace_of_rebuilt,
)
from graphcore.state.nesting import key_order
from graphcore.trails import Path, Trail, path_of, path_text
from graphcore.variables.bare_arrays import is_array
from graphcore.variables.variable import (
    Variable,
    facts_of,
    set_facts,
    set_variable_plan,
)

__all__ = ["by_value"]


class _Entered(threading.local):
    # While this thread flattens an object whose whole graph was checked already.
    below: _Below | None = None

    def __init__(self) -> None:
        # Where JAX has all children of an object before it goes on to the first one,
        # which is so with key paths and along a structure: the objects of the checked
        # graph that it has not reached yet, and the plans that an edit would take away.
        self.pending: dict[int, tuple[weakref.ref[Any], Any]] = {}

    def expect(self, nodes: list[Any]) -> None:
        """Takes note that some nodes are part of a checked graph."""
        owned = [node for node in nodes if isinstance(node, OwnedNode)]
        for node in owned:
            if plans_of(node) is None:  # So that an edit shows.
                set_plans(node, ())
        self.pending = {id(x): (weakref.ref(x), plans_of(x)) for x in owned}

    def was_checked(self, node: Any) -> bool:
        """Tells whether a node is expected, and is what it was since."""
        expected = self.pending.pop(id(node), None)
        if expected is None:
            return False
        reference, plans = expected
        return plans_of(node) is plans and reference() is node


_entered = _Entered()


class _Below:
    """The objects of a checked graph that JAX is about to ask for.

    Args:
        parts: What is known of them, by their ids; see `_known_parts`.
        nodes: All of them.
    """

    __slots__ = ("_ids", "has_met_one", "nodes", "parts")

    def __init__(self, parts: dict[int, _Parts], nodes: list[Any]) -> None:
        self.parts, self.nodes = parts, nodes
        self._ids: set[int] | None = None
        self.has_met_one = False

    def holds(self, node: Any) -> bool:
        """Tells whether a node is one of them: `is_leaf` may flatten any other."""
        if self._ids is None:
            self._ids = {*map(id, self.nodes)}
        return id(node) in self._ids


_Parts: TypeAlias = "tuple[Sequence[Any], _Rest]"


class _Rest:
    """The static half of an object as a pytree: what it holds beside its children.

    Args:
        children: The keys of the children.
        keys: Those of the static values.
        values: The static values.
        where: Where it was flattened.
    """

    __slots__ = ("_compared", "_hash", "_order", "children", "keys", "values", "where")

    def __init__(
        self, children: Path, keys: Path, values: tuple[Any, ...], where: Origin
    ) -> None:
        self.children, self.keys, self.values = children, keys, values
        self.where = where
        self._compared: Any = None
        self._hash: int | None = None
        self._order: list[tuple[Any, int]] | None = None
        if not all(map(is_immutable, values)):
            self._compared = tuple(map(_content, keys, values))

    def at(self, where: Origin) -> _Rest:
        """The same, flattened elsewhere."""
        if where is self.where:
            return self
        twin = _Rest.__new__(_Rest)
        twin.children, twin.keys, twin.values = self.children, self.keys, self.values
        twin.where, twin._compared = where, self._compared
        twin._hash, twin._order = self._hash, self._order
        return twin

    @property
    def _key(self) -> Any:
        return self._compared or tuple(map(content_key, self.values))

    @property
    def order(self) -> list[tuple[Any, int]]:
        """All keys in the order of the graph, with their positions among the values.

        The children come first there, then the static values.
        """
        if self._order is None:
            keys = (*self.children, *self.keys)
            pairs = zip(keys, range(len(keys)), strict=True)
            self._order = sorted(pairs, key=lambda pair: key_order(pair[0]))
        return self._order

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(other) is not _Rest:
            return NotImplemented
        if self.children != other.children or self.keys != other.keys:
            return False
        if self._compared is None and all(map(is_, self.values, other.values)):
            return True
        return bool(self._key == other._key)

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash((self.children, self.keys, self._key))
        return self._hash

    def __repr__(self) -> str:
        pairs = zip(self.keys, self.values, strict=True)
        return ", ".join(f"{key}={value!r}" for key, value in pairs)


def _content(key: Any, value: Any) -> Any:
    try:
        return content_key(value, keep=True)
    except UnhashableContent as error:
        raise TypeError(
            f"The static attribute {key!r} can't be part of the structure of a "
            f"pytree, which is compared: {error}. Hold it in a dataclass, list, dict "
            "or array, or declare its type to be immutable: `register_immutable_type`."
        ) from None


def _is_child(x: Any) -> bool:
    return is_object(x) or is_array(x)


def _is_static(x: Any) -> bool:
    return type(x) is StaticAttribute


def _flatten(node: Any) -> tuple[Any, _Rest | None]:
    if probing.active:
        probing.found = True
        return (), None
    below = _entered.below
    if below is not None:
        known = below.parts.get(id(node))
        if known is not None or below.holds(node):
            below.has_met_one = True
            return known or _taken_apart(node)
    if _entered.was_checked(node):
        return _taken_apart(node)
    checked = _refuse_sharing(node)
    parts = _known_parts(node, checked)
    children, rest = parts.get(id(node)) or _taken_apart(node)
    return _in_turn(children, _Below(parts, checked.nodes)), rest


class _Checked(NamedTuple):
    # A graph in which nothing is reached twice: the inner nodes, the definition, and
    # the plan; or, where the graph was recognized, what it consists of.
    nodes: list[Any]
    definition: GraphDef[Any]
    plan: Plan | None
    things: Sequence[Any] = ()


# The parts of a graph that was flattened once: many are not flattened again.
_UNKNOWN: dict[int, _Parts] = {}


def _known_parts(node: Any, checked: _Checked) -> dict[int, _Parts]:
    """The nodes of a graph taken apart, by their ids, as long as nothing changes.

    Left out are those with arrays, which may be replaced while a plan holds, and with
    containers of which JAX is shown a copy, as they hold static values, too.
    """
    plan = checked.plan
    if plan is None:
        return _parts_alike(layout_of((checked.definition,)), checked.things)
    if not plan.can_be_kept or running_trace() != OUTSIDE:
        return _UNKNOWN
    if plan.parts is None:
        plan.parts = _UNKNOWN
    elif plan.parts is _UNKNOWN:
        owned = [x for x in (node, *plan.nodes) if isinstance(x, OwnedNode)]
        parts = [(id(x), _taken_apart(x)) for x in owned]
        plan.parts = {key: each for key, each in parts if _holds_objects(each[0])}
    return plan.parts


def _parts_alike(layout: Layout, things: Sequence[Any]) -> dict[int, _Parts]:
    """The same of a graph of a known structure, by what is known of that."""
    known = layout.notes.get("parts")
    if known is None:
        known = layout.notes["parts"] = []
        for node in layout.nodes:
            holder = things[node.thing]
            if isinstance(holder, OwnedNode) and not get_open_children(holder):
                children, rest = _taken_apart(holder)
                number_of = dict(zip(node.keys, node.children, strict=True))
                children_of = getter([number_of[key] for key in rest.children])
                # A copy of a container is not among the things.
                if all(map(is_, children, children_of(things))):
                    known.append((node.thing, children_of, rest.at(OF_OUTSIDE)))
    return {
        id(things[number]): (children_of(things), rest.at(_origin(things[number])))
        for number, children_of, rest in known
        if not get_open_children(things[number])
    }


def _holds_objects(children: Sequence[Any]) -> bool:
    return all(map(is_object, jax.tree.leaves(children, is_leaf=is_object)))


def _taken_apart(node: Any) -> tuple[list[Any], _Rest]:
    still_open = get_open_children(node)
    children: list[Any] = []
    names: list[Any] = []
    keys: list[Any] = []
    values: list[Any] = []
    for key, value in node._node__flatten()[0]:
        kind = type(value)
        if key not in still_open:
            if kind in ATOMS:
                keys.append(key)
                values.append(value)
                continue
            if not _is_child(value):
                if kind in sometimes:
                    value = _without(node, key, value)
                if not isinstance(find_impl(value), PytreeNodeImpl):
                    keys.append(key)
                    values.append(value)
                    continue
                value = _with_statics(node, key, value)
        names.append(key)
        children.append(value)
    return children, _Rest(tuple(names), tuple(keys), tuple(values), _origin(node))


def _origin(node: Any) -> Origin:
    return origin(node, node._node__trace)


def _in_turn(children: Sequence[Any], below: _Below) -> Iterator[Any]:
    # JAX visits each child before it asks for the next one, mostly.
    outer, _entered.below = _entered.below, below
    try:
        yield from children
    finally:
        _entered.below = outer
    if below.nodes and not below.has_met_one:
        _entered.expect(below.nodes)


def _with_statics(node: Any, key: Any, container: Any) -> Any:
    """A container with its static leaves wrapped, so that JAX sees only children."""
    leaves, structure = jax.tree.flatten(container, is_leaf=is_object)
    if all(map(_is_child, leaves)):
        return container
    shown = [
        x if _is_child(x) else StaticAttribute("", _without(node, key, x))
        for x in leaves
    ]
    return jax.tree.unflatten(structure, shown)


def _without(node: Any, key: Any, value: Any) -> Any:
    """A static value of an object, which does not hold the object itself."""
    if type(value) not in sometimes:
        return value
    value = detached(value, node)
    if holds_objects(value):
        raise ValueError(
            f"The {type(value).__name__} at {key!r} of {type(node).__name__} holds an "
            "object, and a pytree has no place for one in a callable. Use a "
            "transformation of live objects (`jit`, `grad`, `vmap`, ... of "
            "nnx_transforms instead of JAX's), take the object apart with `split`, or "
            "look the method up where it is called."
        )
    return value


def _flatten_with_keys(node: Any) -> tuple[Any, _Rest]:
    if not _entered.was_checked(node):
        _entered.expect(_refuse_sharing(node).nodes)
    children, rest = _taken_apart(node)
    # What holds its children as items is shown so.
    named = jax.tree_util.DictKey if hasattr(node, "keys") else jax.tree_util.GetAttrKey
    entries = [
        jax.tree_util.SequenceKey(key) if isinstance(key, int) else named(key)
        for key in rest.children
    ]
    return tuple(zip(entries, children, strict=True)), rest


def _unflatten(kind: type[Any], rest: _Rest, children: Any) -> Any:
    node = kind._node__create_empty(None)
    values = []
    still_open = []
    for key, child in zip(rest.children, children, strict=True):
        if not _is_child(child) and child is not None:
            leaves, structure = jax.tree.flatten(
                child, is_leaf=lambda x: _is_static(x) or is_object(x)
            )
            if all(_is_static(x) or _is_child(x) for x in leaves):
                inside = [
                    attached(x.value, node) if _is_static(x) else x for x in leaves
                ]
                child = jax.tree.unflatten(structure, inside)
            else:
                still_open.append(key)
        values.append(child)
    if still_open:
        set_open_children(node, frozenset(still_open))
    trace = trace_of_rebuilt(
        rest.where, lambda old: not still_open and _is_copy(old, rest.children, values)
    )
    _set_trace(node, trace)
    values += [attached(x, node) if type(x) is Detached else x for x in rest.values]
    # In the order of the graph, as it is where a graph is merged.
    node._node__init([(key, values[position]) for key, position in rest.order])
    return node


def _is_copy(source: Any, keys: Path, values: list[Any]) -> bool:
    """Whether an object that may not be written is put together of what it was."""
    held = dict(source._node__flatten()[0])
    before, now = _leaves([held.get(key) for key in keys]), _leaves(values)
    return 0 < len(now) == len(before) and all(
        type(trace_of(new)) is ByValue if _is_ours(new) else as_before(old, new)
        for old, new in zip(before, now, strict=True)
    )


def _leaves(tree: Any) -> list[Any]:
    return jax.tree.leaves(tree, is_leaf=lambda x: x is None or _is_ours(x))


def _is_ours(x: Any) -> bool:
    return isinstance(x, OwnedNode | Variable)


def _refuse_sharing(node: Any) -> _Checked:
    """Raises if something below a node is reached twice; returns what it looked at."""
    checked = _recognized(node)
    if checked is None:
        plan = plan_of(node)
        checked = _Checked(plan.nodes, plan.definition, plan)
    notes = layout_of((checked.definition,)).notes
    if "shared" not in notes:
        notes["shared"] = _shared_paths(checked.definition)
    if notes["shared"] is not None:
        first, second, kind = notes["shared"]
        raise ValueError(
            f"The {kind.__name__} at {path_text(first)!r} of {type(node).__name__} is "
            f"also at {path_text(second)!r}, and a pytree has no place for what is "
            "reached twice: JAX would make two of it. Use a transformation of live "
            "objects, which keeps sharing (`jit`, `grad`, `vmap`, ... of "
            "nnx_transforms instead of JAX's), or take the object apart with `split` "
            "and pass the state."
        )
    return checked


def _recognized(node: Any) -> _Checked | None:
    """Looks at an object for the first time, which is made anew in many a loop.

    To make a plan is worth it for what is flattened again, outside of a trace.
    """
    plans = plans_of(node)
    if plans or (plans is not None and running_trace() == OUTSIDE):
        return None
    set_plans(node, ())
    for pattern, definition in known_patterns(type(node)):
        things = pattern.match((node,))
        if things is not None:
            inner = [x for x in pattern.members(things)[1] if x is not node]
            return _Checked(inner, definition, None, things)
    return None


def _shared_paths(definition: Any) -> tuple[Path, Path, type[Any]] | None:
    first: dict[int, Trail] = {}
    # The graph node around each, and whether there is a callable in between.
    pending: list[tuple[Trail, Any, int, bool]] = [(None, definition, -1, False)]
    while pending:
        trail, found, owner, is_called = pending.pop()
        if isinstance(found, NodeRef):
            if is_called and found.index == owner:
                continue  # a method of its own, which the new one has as well
            # A reference comes after what it refers to.
            return path_of(first[found.index]), path_of(trail), found.type
        index = getattr(found, "index", -1)
        first[index] = trail
        if isinstance(found, NodeDef):
            if index >= 0:
                owner, is_called = index, False
            is_called = is_called or found.type in sometimes
            pending += [
                ((trail, key), x, owner, is_called)
                for key, x in reversed([*found.children()])
            ]
    return None


def register_as_pytree(kind: type[Any]) -> None:
    """Makes a type of objects a pytree for JAX.

    Args:
        kind: A subclass of `Object`.

    Raises:
        ValueError: If JAX knows it as one already.
    """
    jax.tree_util.register_pytree_with_keys(
        kind, _flatten_with_keys, functools.partial(_unflatten, kind), _flatten
    )


def by_value(x: Any, /) -> Any:
    """Permits writes to objects that JAX put together, since they will be returned.

    A function that `jax.jit` or another transformation of JAX traces gets objects that
    nobody outside knows. A write to one is refused, as it would be lost. It is not
    lost if the function returns the object, and says so.

    Args:
        x: A pytree of objects that the function got as arguments.

    Returns:
        The same, with everything below writable.

    Example:
        >>> import graphcore as gc, jax
        >>> @jax.jit
        ... def counted(n):
        ...     n = gc.by_value(n)
        ...     n.value += 1
        ...     return n
        >>> n = gc.Variable(1); int(counted(n).value), n.value
        (2, 1)
    """
    visit = Visit()
    for found in jax.tree.leaves(x, is_leaf=is_object):
        if is_object(found):
            walk(found, visit)
    for _, node in visit.nodes:
        if isinstance(node, OwnedNode) and type(node._node__trace) is ByValue:
            node._node__structure_changed()
            _set_trace(node, node._node__trace.trace)
    for leaf in visit.leaves:
        variable = leaf.variable
        if isinstance(variable, Variable):
            metadata, trace = variable._facts.metadata, variable._facts.trace
            if type(trace) is ByValue:
                set_variable_plan(variable, None)
                set_facts(variable, facts_of(metadata, trace.trace))
    return x
