"""The two kinds of objects that a program runs on, behind one interface.

Programs find their way through a graph with `children`, and change it with the other
methods. `Live` does that with the objects of the packages, `Plain` with objects that
know nothing of JAX.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import nnx_transforms as nnx

__all__ = ["KINDS", "Kit", "Live", "Plain", "leaves", "mod"]

KINDS = ("Param", "BatchStat", "Count", "Stacked", "Parts")
"""Types of variables. A `Count` holds whole numbers, a `Stacked` has a first axis of
length 2 that transforms map over, a `Parts` holds a pytree of arrays."""


class Kit:
    """What programs need of objects; one implementation for each kind of these."""

    def is_variable(self, x: Any) -> bool:
        raise NotImplementedError

    def is_node(self, x: Any) -> bool:
        raise NotImplementedError

    def children(self, x: Any) -> list[tuple[Any, Any]] | None:
        """Keys and children in order of keys; None for what has none."""
        if type(x) in (list, tuple) or self._is_list(x):
            return list(enumerate(x))
        if type(x) is dict:
            return sorted(x.items())
        return sorted(vars(x).items()) if self.is_node(x) else None

    def _is_list(self, x: Any) -> bool:
        raise NotImplementedError

    def put(self, holder: Any, key: Any, child: Any) -> None:
        """Sets a child of a node or plain container; a list may grow by one."""
        if type(holder) is dict:
            holder[key] = child
        elif type(holder) is list or self._is_list(holder):
            if key == len(holder):
                holder.append(child)
            else:
                holder[key] = child
        else:
            setattr(holder, key, child)

    def drop(self, holder: Any, key: Any) -> None:
        """Removes a child."""
        if type(holder) in (list, dict) or self._is_list(holder):
            del holder[key]
        else:
            delattr(holder, key)

    def become(self, x: Any, kind: str) -> None:
        """Gives a node or a variable another type."""
        raise NotImplementedError

    def node(self, kind: str) -> Any:
        raise NotImplementedError

    def variable(self, kind: str, value: Any, notes: dict[str, Any]) -> Any:
        raise NotImplementedError

    def kind(self, x: Any) -> str:
        """The name of a type, the same for both kinds of objects."""
        raise NotImplementedError

    def notes(self, variable: Any) -> dict[str, Any]:
        """The metadata."""
        raise NotImplementedError

    def note(self, variable: Any, notes: dict[str, Any]) -> None:
        """Replaces the metadata."""
        raise NotImplementedError

    def array(self, x: Any) -> Any:
        raise NotImplementedError

    def is_array(self, x: Any) -> bool:
        return isinstance(x, jax.Array | np.ndarray | np.generic)


class Node(nnx.Module):
    """A live node."""


class Other(nnx.Module):
    """A live node of another type."""


class Count(nnx.Variable[Any]):
    """A live variable of whole numbers."""


class Stacked(nnx.Variable[Any]):
    """A live variable that transforms map over."""


class Parts(nnx.Variable[Any]):
    """A live variable whose value is a pytree."""


_NODES = {"Node": Node, "Other": Other, "List": nnx.List, "Dict": nnx.Dict}
_VARIABLES: dict[str, Any] = {
    "Param": nnx.Param,
    "BatchStat": nnx.BatchStat,
    "Count": Count,
    "Stacked": Stacked,
    "Parts": Parts,
}


class Live(Kit):
    """Objects of the packages."""

    def is_variable(self, x: Any) -> bool:
        return isinstance(x, nnx.Variable)

    def is_node(self, x: Any) -> bool:
        return isinstance(x, nnx.Object)

    def _is_list(self, x: Any) -> bool:
        return type(x) is nnx.List

    def become(self, x: Any, kind: str) -> None:
        x.__class__ = _VARIABLES[kind] if kind in _VARIABLES else _NODES[kind]

    def node(self, kind: str) -> Any:
        return _NODES[kind]()

    def variable(self, kind: str, value: Any, notes: dict[str, Any]) -> Any:
        return _VARIABLES[kind](value, **notes)

    def kind(self, x: Any) -> str:
        return type(x).__name__

    def notes(self, variable: Any) -> dict[str, Any]:
        return dict(variable.get_metadata())

    def note(self, variable: Any, notes: dict[str, Any]) -> None:
        variable.set_metadata(notes)

    def array(self, x: Any) -> Any:
        return jnp.asarray(x)


class PlainNode:
    """A plain node: attributes, and the name of a type."""

    __slots__ = ("__dict__", "kind")


class PlainList(list[Any]):
    """A plain node that is a list."""

    kind = "List"


class Box:
    """A plain variable."""

    __slots__ = ("kind", "notes", "value")


class Plain(Kit):
    """Objects that know nothing of JAX."""

    def is_variable(self, x: Any) -> bool:
        return type(x) is Box

    def is_node(self, x: Any) -> bool:
        return type(x) in (PlainNode, PlainList)

    def _is_list(self, x: Any) -> bool:
        return type(x) is PlainList

    def become(self, x: Any, kind: str) -> None:
        x.kind = kind

    def node(self, kind: str) -> Any:
        if kind == "List":
            return PlainList()
        node = PlainNode()
        node.kind = kind
        return node

    def variable(self, kind: str, value: Any, notes: dict[str, Any]) -> Any:
        box = Box()
        box.kind, box.value, box.notes = kind, value, dict(notes)
        return box

    def kind(self, x: Any) -> str:
        kind: str = x.kind
        return kind

    def notes(self, variable: Any) -> dict[str, Any]:
        return dict(variable.notes)

    def note(self, variable: Any, notes: dict[str, Any]) -> None:
        variable.notes = dict(notes)

    def array(self, x: Any) -> Any:
        return np.asarray(x)

    def content(self, x: Any) -> Any:
        """What a node or variable holds, for `restore`."""
        if type(x) is Box:
            return x.kind, x.value, dict(x.notes)
        children = self.children(x) or ()
        return x.kind, [(key, _copied(child)) for key, child in children]

    def restore(self, x: Any, content: Any) -> None:
        """Gives a node or variable back what it held."""
        if type(x) is Box:
            x.kind, x.value, x.notes = content
        elif type(x) is PlainList:
            x[:] = [child for _, child in content[1]]
        else:
            x.kind = content[0]
            x.__dict__ = dict(content[1])


def _copied(x: Any) -> Any:
    """A copy of plain containers, with the very objects in them."""
    if type(x) in (list, tuple):
        return type(x)(map(_copied, x))
    if type(x) is dict:
        return {key: _copied(child) for key, child in x.items()}
    return set(x) if type(x) is set else x


def leaves(value: Any) -> list[Any]:
    """The arrays in the value of a variable."""
    return jax.tree.leaves(value)


def mod(x: Any) -> Any:
    """Brings numbers back into a small range, in which floats are exact."""
    if isinstance(x, np.ndarray | np.generic):
        return np.asarray(np.mod(x, 13))
    return jnp.mod(x, 13)
