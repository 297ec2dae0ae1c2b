"""What every graph node type of our own has below its attributes.

An owned node knows the trace it was made in and refuses to be changed from another
one; it can hold the plan of the graph below it; and it clears the plans that depend on
it when its structure changes.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable
from itertools import repeat
from typing import Any, ClassVar, Self

from graphcore._jax import TraceState, current_trace
from graphcore.comparing import comparing
from graphcore.errors import TraceContextError

__all__ = ["OwnedNode"]


class _Attributes:
    __slots__ = ("__dict__", "__weakref__")


_attributes_of: Any = _Attributes.__dict__["__dict__"]
_class_of: Any = object.__dict__["__class__"]


def _set_attributes(node: Any, attributes: dict[str, Any]) -> None:
    node._check_writable()
    node._structure_changed()
    _attributes_of.__set__(node, attributes)


def _set_class(node: Any, kind: type[Any]) -> None:
    node._check_writable()
    node._structure_changed()
    _class_of.__set__(node, kind)


# A node can be given another type, or another dict for its attributes. Properties see
# that, also where the assignment goes past `__setattr__`, so that a plan only has to
# look into the dicts that it knows.
_Replaceable: Any = type(
    "_Replaceable",
    (_Attributes,),
    {
        "__slots__": (),
        "__class__": property(type, _set_class),
        "__dict__": property(_attributes_of.__get__, _set_attributes),
    },
)


class OwnedNode(_Replaceable):  # type: ignore[misc] # (a dynamic base)
    """Base of the graph nodes whose edits this library sees.

    The bookkeeping is in slots, so that `vars(node)` holds the attributes and nothing
    else.
    """

    __slots__ = ("_dependents", "_plan", "_trace")

    # The plan of the graph below this node, if one was made.
    _plan: Any
    # The plans that depend on this node as an inner one.
    _dependents: tuple[weakref.ref[Any], ...]
    _trace: TraceState
    # Whether a new node needs nothing but these slots, and its children are attributes.
    _has_only_attributes: ClassVar[bool] = True
    # Whether no subclass changes how nodes are copied.
    _is_copied_plainly: ClassVar[bool] = True

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        node = object.__new__(cls)
        _set_plan(node, None)
        _set_dependents(node, ())
        _set_trace(node, current_trace())
        return node

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        # A stranger that claims to equal everything is not asked by a plan.
        return False if comparing.by_identity else NotImplemented

    __hash__ = object.__hash__

    def _containers(self) -> tuple[Any, ...]:
        """The dicts and lists that hold the children; `vars(self)` is the first."""
        return (self.__dict__,)

    def _check_writable(self) -> None:
        here = current_trace()
        if self._trace is not here and self._trace != here:
            raise TraceContextError(
                f"Cannot mutate {type(self).__name__} from a different trace level: it "
                "was made outside the JAX transformation that is running (or inside "
                "one that has ended). Pass it to the transformed function as an "
                "argument."
            )

    def _structure_changed(self) -> None:
        """Clears every plan that depends on this node.

        A plan would find out by itself; this lets go of what was replaced.
        """
        if self._plan is not None:
            self._plan.clear()
            _set_plan(self, None)
        if self._dependents:
            for reference in self._dependents:
                plan = reference()
                if plan is not None:
                    plan.clear()
            _set_dependents(self, ())

    def _join_plan(self, reference: weakref.ref[Any]) -> None:
        alive = tuple(r for r in self._dependents if r() is not None)
        _set_dependents(self, (*alive, reference))


_set_plan = OwnedNode.__dict__["_plan"].__set__
_set_dependents = OwnedNode.__dict__["_dependents"].__set__
_set_trace = OwnedNode.__dict__["_trace"].__set__


def make_owned(kinds: Iterable[type[Any]], trace: TraceState) -> list[Any]:
    """Makes nodes without attributes, and without running any `__init__`.

    Args:
        kinds: Their types.
        trace: The trace that they belong to.

    Returns:
        The nodes.
    """
    nodes = list(map(object.__new__, kinds))
    for setter, value in (
        (_set_plan, None),
        (_set_dependents, ()),
        (_set_trace, trace),
    ):
        deque(map(setter, nodes, repeat(value)), maxlen=0)
    return nodes


set_plan = _set_plan
