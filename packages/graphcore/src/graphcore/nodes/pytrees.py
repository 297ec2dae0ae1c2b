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
from collections.abc import Iterator
from operator import is_
from typing import Any

import jax

from graphcore.boundary.places import is_object
from graphcore.cache.plans import Plan, plan_of
from graphcore.content import is_immutable
from graphcore.content_key import UnhashableContent, content_key
from graphcore.graphdef.definition import NodeRef, StaticAttribute, definition_paths
from graphcore.graphdef.walk import Visit, walk
from graphcore.known_types import ATOMS
from graphcore.nodes.owned import OwnedNode, get_open_children, set_open_children
from graphcore.nodes.owned import set_trace as _set_trace
from graphcore.nodes.registry import PytreeNodeImpl, find_impl
from graphcore.probing import probing
from graphcore.rebuilt import ByValue, Origin, origin, trace_of_rebuilt
from graphcore.trails import Path, path_text
from graphcore.variables.bare_arrays import is_array
from graphcore.variables.variable import (
    Variable,
    facts_of,
    set_facts,
    set_variable_plan,
)

__all__ = ["by_value"]


class _Entered(threading.local):
    # Whether this thread is flattening an object whose whole graph was checked already.
    from_above = False

    def __init__(self) -> None:
        # The same where JAX flattens with key paths and has all children at once: the
        # objects of the checked graph that it has not reached yet.
        self.pending: dict[int, weakref.ref[Any]] = {}


_entered = _Entered()


class _Rest:
    """The static half of an object as a pytree: what it holds beside its children.

    Args:
        children: The keys of the children.
        keys: Those of the static values.
        values: The static values.
        where: Where it was flattened.
    """

    __slots__ = ("_compared", "children", "keys", "values", "where")

    def __init__(
        self, children: Path, keys: Path, values: tuple[Any, ...], where: Origin
    ) -> None:
        self.children, self.keys, self.values = children, keys, values
        self.where = where
        self._compared: Any = None
        if not all(map(is_immutable, values)):
            self._compared = tuple(map(_content, keys, values))

    @property
    def _key(self) -> Any:
        return self._compared or tuple(map(content_key, self.values))

    def __eq__(self, other: object) -> bool:
        if type(other) is not _Rest:
            return NotImplemented
        if self.children != other.children or self.keys != other.keys:
            return False
        if self._compared is None and all(map(is_, self.values, other.values)):
            return True
        return bool(self._key == other._key)

    def __hash__(self) -> int:
        return hash((self.children, self.keys, self._key))

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
    return is_array(x) or is_object(x)


def _is_static(x: Any) -> bool:
    return type(x) is StaticAttribute


def _flatten(node: Any) -> tuple[Any, _Rest | None]:
    if probing.active:
        probing.found = True
        return (), None
    if _entered.from_above:
        return _taken_apart(node)
    _refuse_sharing(node)
    children, rest = _taken_apart(node)
    return _below(children), rest


def _taken_apart(node: Any) -> tuple[list[Any], _Rest]:
    still_open = get_open_children(node)
    children: list[Any] = []
    names: list[Any] = []
    keys: list[Any] = []
    values: list[Any] = []
    for key, value in node._flatten_node()[0]:
        kind = type(value)
        if key not in still_open:
            if kind in ATOMS:
                keys.append(key)
                values.append(value)
                continue
            if not _is_child(value):
                if not isinstance(find_impl(value), PytreeNodeImpl):
                    keys.append(key)
                    values.append(value)
                    continue
                value = _with_statics(value)
        names.append(key)
        children.append(value)
    return children, _Rest(tuple(names), tuple(keys), tuple(values), origin())


def _below(children: list[Any]) -> Iterator[Any]:
    # JAX visits each child before it asks for the next one.
    _entered.from_above = True
    try:
        yield from children
    finally:
        _entered.from_above = False


def _with_statics(container: Any) -> Any:
    """A container with its static leaves wrapped, so that JAX sees only children."""
    leaves, structure = jax.tree.flatten(container, is_leaf=is_object)
    if all(map(_is_child, leaves)):
        return container
    shown = [x if _is_child(x) else StaticAttribute("", x) for x in leaves]
    return jax.tree.unflatten(structure, shown)


def _flatten_with_keys(node: Any) -> tuple[Any, _Rest]:
    known = _entered.pending.pop(id(node), None)
    if known is None or known() is not node:
        inner = _refuse_sharing(node).nodes
        _entered.pending = {id(x): weakref.ref(x) for x in inner}
    children, rest = _taken_apart(node)
    entries = [_entry(node, key) for key in rest.children]
    return tuple(zip(entries, children, strict=True)), rest


def _entry(node: Any, key: Any) -> Any:
    if isinstance(key, int):
        return jax.tree_util.SequenceKey(key)
    # What holds its children as items is shown so.
    named = jax.tree_util.DictKey if hasattr(node, "keys") else jax.tree_util.GetAttrKey
    return named(key)


def _unflatten(kind: type[Any], rest: _Rest, children: Any) -> Any:
    node = kind._create_empty(None)
    _set_trace(node, trace_of_rebuilt(rest.where))
    pairs = list(zip(rest.keys, rest.values, strict=True))
    still_open = []
    for key, child in zip(rest.children, children, strict=True):
        if not _is_child(child) and child is not None:
            leaves, structure = jax.tree.flatten(
                child, is_leaf=lambda x: _is_static(x) or is_object(x)
            )
            if all(_is_static(x) or _is_child(x) for x in leaves):
                values = [x.value if _is_static(x) else x for x in leaves]
                child = jax.tree.unflatten(structure, values)
            else:
                still_open.append(key)
        pairs.append((key, child))
    if still_open:
        set_open_children(node, frozenset(still_open))
    # In the order of the graph, as it is where a graph is merged.
    order = sorted(pairs, key=lambda pair: (not isinstance(pair[0], int), pair[0]))
    node._init_node(order)
    return node


def _refuse_sharing(node: Any) -> Plan:
    """Raises if something below a node is reached twice; returns the plan."""
    plan = plan_of(node)
    notes = plan.layout.notes
    if "shared" not in notes:
        notes["shared"] = _shared_paths(plan.definition)
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
    return plan


def _shared_paths(definition: Any) -> tuple[Path, Path, type[Any]] | None:
    first: dict[int, Path] = {}
    for path, found in definition_paths(definition):
        if isinstance(found, NodeRef):
            # A reference comes after what it refers to.
            return first[found.index], path, found.type
        first[getattr(found, "index", -1)] = path
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
        if isinstance(node, OwnedNode) and type(node._trace) is ByValue:
            node._structure_changed()
            _set_trace(node, node._trace.trace)
    for leaf in visit.leaves:
        variable = leaf.variable
        if isinstance(variable, Variable):
            metadata, trace = variable._facts.metadata, variable._facts.trace
            if type(trace) is ByValue:
                set_variable_plan(variable, None)
                set_facts(variable, facts_of(metadata, trace.trace))
    return x
