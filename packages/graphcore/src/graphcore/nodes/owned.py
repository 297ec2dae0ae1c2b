"""What every graph node type of our own has below its attributes.

An owned node knows the trace it was made in and refuses to be changed from another
one; it can hold the plan of the graph below it; and it clears the plans that depend on
it when its structure changes.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from itertools import repeat
from typing import TYPE_CHECKING, Any, ClassVar, Self

from graphcore._jax import TraceState, current_trace
from graphcore.cache.comparing import by_identity_too, comparing
from graphcore.getters import consume
from graphcore.rebuilt import running_trace, wrong_trace


class _Attributes:
    __slots__ = ("__dict__", "__weakref__")


_attributes_of: Any = _Attributes.__dict__["__dict__"]
_class_of: Any = object.__dict__["__class__"]


def _replacing(slot: Any) -> Callable[[Any, Any], None]:
    def replace(node: Any, new: Any) -> None:
        node._node__check_writable()
        node._node__structure_changed()
        slot.__set__(node, new)

    return replace


# A node can be given another type, or another dict for its attributes. Properties see
# that, also where the assignment goes past `__setattr__`, so that a plan only has to
# look into the dicts that it knows.
class _Replaceable(_Attributes):
    __slots__ = ()
    if not TYPE_CHECKING:
        __class__ = property(type, _replacing(_class_of))
        __dict__ = property(_attributes_of.__get__, _replacing(_attributes_of))


class OwnedNode(_Replaceable):
    """Base of the graph nodes whose edits this library sees.

    The bookkeeping is in slots, so that `vars(node)` holds the attributes and nothing
    else. Its names have two underscores inside: those that begin with one are left to
    subclasses.
    """

    __slots__ = (
        "_node__kept_plan",
        "_node__open_children",
        "_node__planned",
        "_node__trace",
    )

    # The plan of the graph below the node, once it was a root; see `plans`.
    _node__kept_plan: Any
    # The plans that depend on the node; an empty tuple says that JAX took it apart once
    # without one. A node made by a recipe has no such slot yet.
    _node__planned: tuple[weakref.ref[Any], ...] | None
    # In nodes made by `jax.tree`: the keys of children, whatever stands there now.
    _node__open_children: frozenset[Any]
    _node__trace: TraceState
    # Whether a new node needs nothing but these slots, and its children are attributes.
    _node__has_only_attributes: ClassVar[bool] = True
    # Whether no subclass changes how nodes are copied.
    _node__is_copied_plainly: ClassVar[bool] = True

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__eq__" in vars(cls):  # else `dataclass` would take it for the class's own
            by_identity_too(cls, OwnedNode)

    def __new__(cls, /, *args: Any, **kwargs: Any) -> Self:
        node = object.__new__(cls)
        _set_plans(node, None)
        _set_trace(node, running_trace())
        return node

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        # In a plan, a foreign object that claims to equal everything must not decide.
        return False if comparing.by_identity else NotImplemented

    __hash__ = object.__hash__

    def _node__containers(self) -> tuple[Any, ...]:
        """The dicts and lists that hold the children; `vars(self)` is the first."""
        return (self.__dict__,)

    def _node__container_of(self, key: Any) -> Any:
        """The one that holds the child with a key."""
        return self.__dict__

    def _node__check_writable(self) -> None:
        here = current_trace()
        if self._node__trace is not here and self._node__trace != here:
            raise wrong_trace(self._node__trace, type(self))

    def _node__structure_changed(self) -> None:
        """Clears every plan that depends on this node.

        A plan would find out by itself; this lets go of what was replaced.
        """
        plans = plans_of(self)
        if plans is None:
            return
        _set_plans(self, None)
        set_plan(self, None)
        for reference in plans:
            plan = reference()
            if plan is not None:
                plan.clear()

    def _node__join_plan(self, reference: weakref.ref[Any]) -> None:
        """Notes a plan that depends on this node."""
        alive = tuple(r for r in plans_of(self) or () if r() is not None)
        _set_plans(self, (*alive, reference))


get_plan = OwnedNode.__dict__["_node__kept_plan"].__get__
set_plan = OwnedNode.__dict__["_node__kept_plan"].__set__
set_plans = _set_plans = OwnedNode.__dict__["_node__planned"].__set__
set_trace = _set_trace = OwnedNode.__dict__["_node__trace"].__set__
set_open_children = OwnedNode.__dict__["_node__open_children"].__set__
attributes_of = _attributes_of.__get__


def _reader(name: str, default: Any) -> Callable[[OwnedNode], Any]:
    get = OwnedNode.__dict__[name].__get__

    def read(node: OwnedNode) -> Any:
        try:
            return get(node)
        except AttributeError:
            return default

    return read


plans_of = _reader("_node__planned", None)
get_open_children = _reader("_node__open_children", frozenset())


def make_owned(kinds: Iterable[type[Any]], trace: TraceState) -> list[Any]:
    """Makes nodes without attributes, and without running any `__init__`.

    Args:
        kinds: Their types.
        trace: The trace that they belong to.

    Returns:
        The nodes.
    """
    nodes = list(map(object.__new__, kinds))
    consume(map(_set_trace, nodes, repeat(trace)))
    return nodes
