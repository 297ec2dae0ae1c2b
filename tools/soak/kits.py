"""The two kinds of objects that a program runs on, behind one interface.

Programs find their way through a graph with `children`, and change it with the other
methods. `Live` does that with the objects of the packages, `Plain` with objects that
know nothing of JAX. What has no identity is the same in both: plain containers, and a
`Net`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import flax.nnx
import jax
import jax.numpy as jnp
import numpy as np

import graphcore as gc
import nnx_transforms as nnx

__all__ = [
    "FIXED",
    "FUSE",
    "KINDS",
    "NODES",
    "Kit",
    "Live",
    "Net",
    "Plain",
    "Planned",
    "form",
    "leaves",
    "mapped",
    "mod",
]

KINDS = ("Param", "BatchStat", "Count", "Stacked", "Parts", "Whole", "FlaxState")
"""Types of variables. A `Count` holds whole numbers, a `Stacked` has a first axis of
length 2 that transforms map over, a `Parts` holds a pytree of arrays, a `Whole` a
module of Equinox, and a `FlaxState` is a variable of Flax's."""
NODES = ("Node", "Other", "List", "Dict", "Bag", "Loose", "Record", "FlaxNode")
"""Types of nodes. A `Bag` and a `Loose` are registered classes, the first of which says
where its children are; a `Record` is a dataclass, and a `FlaxNode` a module of Flax's.
"""


class Planned(Exception):
    """The error that programs raise in the middle."""


class Fuse(threading.local):
    """Has what users wrote for their types raise while the library calls it."""

    left = 0

    @contextlib.contextmanager
    def lit(self, left: int) -> Iterator[None]:
        """While a block runs, the call of this number raises; none for 0."""
        self.left = left
        try:
            yield
        finally:
            self.left = 0

    def burn(self) -> None:
        """Counts a call."""
        self.left -= 1
        if self.left == 0:
            raise Planned


FUSE = Fuse()


class Net(eqx.Module):
    """A module of Equinox: arrays, and a function that is static."""

    act: Callable[..., Any]
    weight: Any


FIXED = (tuple, Net)
"""Containers that can't be changed."""


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
        if not self.is_node(x) and type(x) is not Net:
            return None
        # Flax keeps something of its own beside the attributes.
        return sorted(item for item in vars(x).items() if "__" not in item[0])

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
        return _is_array(x)


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


class Whole(nnx.Variable[Any]):
    """A live variable whose value is a module of Equinox."""


class FlaxState(flax.nnx.Variable[Any]):
    """A live variable of Flax's."""

    value = property(
        lambda self: self.get_value(), lambda self, value: self.set_value(value)
    )


class FlaxNode(flax.nnx.Module, pytree=False):
    """A live node of Flax's; no pytree, so it holds whatever it is given."""


class Bag:
    """A live node of a registered class that says where its children are."""


class Loose:
    """A live node of a registered class that does not say that."""


@gc.register_dataclass
@dataclasses.dataclass
class Record:
    """A live node that is a dataclass, without values at first."""

    a: Any = dataclasses.field(init=False)
    b: Any = dataclasses.field(init=False)


def _clear(bag: Any) -> None:
    FUSE.burn()
    vars(bag).clear()


def _init(bag: Any, pairs: Any) -> None:
    for key, child in pairs:
        _set(bag, key, child)


def _set(bag: Any, key: Any, child: Any) -> None:
    FUSE.burn()
    setattr(bag, key, child)


def _pop(bag: Any, key: Any) -> Any:
    FUSE.burn()
    return vars(bag).pop(key)


def _register(kind: type[Any], *containers: str) -> None:
    gc.register_graph_node_type(
        kind,
        flatten=lambda bag: (sorted(vars(bag).items()), None),
        set_key=_set,
        pop_key=_pop,
        create_empty=lambda metadata: kind(),
        clear=_clear,
        init=_init,
        containers=containers,
    )


_register(Bag, "__dict__")
_register(Loose)
_NODES = dict(
    zip(
        NODES,
        (Node, Other, nnx.List, nnx.Dict, Bag, Loose, Record, FlaxNode),
        strict=True,
    )
)
_VARIABLES: dict[str, Any] = dict(
    zip(
        KINDS,
        (nnx.Param, nnx.BatchStat, Count, Stacked, Parts, Whole, FlaxState),
        strict=True,
    )
)


# What Flax notes of each variable.
_FLAX_NOTES = tuple(FlaxState(0).get_metadata())


class Live(Kit):
    """Objects of the packages."""

    def is_variable(self, x: Any) -> bool:
        return gc.is_variable(x)

    def is_node(self, x: Any) -> bool:
        return gc.is_graph_node(x)

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
        found = dict(variable.get_metadata())
        for name in _FLAX_NOTES if isinstance(variable, FlaxState) else ():
            del found[name]
        return found

    def note(self, variable: Any, notes: dict[str, Any]) -> None:
        if isinstance(variable, FlaxState):
            metadata = variable.get_metadata()
            notes = {**{name: metadata[name] for name in _FLAX_NOTES}, **notes}
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
    return [x for x in jax.tree.leaves(value) if _is_array(x)]


def mapped(f: Callable[[Any], Any], value: Any) -> Any:
    """Applies a function to the arrays in the value of a variable."""
    return jax.tree.map(lambda x: f(x) if _is_array(x) else x, value)


def form(value: Any) -> Any:
    """All of a value but the numbers in its arrays."""
    flat, structure = jax.tree.flatten(value)
    return structure, *((x.shape, str(x.dtype)) if _is_array(x) else x for x in flat)


def _is_array(x: Any) -> bool:
    return isinstance(x, jax.Array | np.ndarray | np.generic)


def mod(x: Any) -> Any:
    """Brings numbers back into a small range, in which floats are exact."""
    if isinstance(x, np.ndarray | np.generic):
        return np.asarray(np.mod(x, 13))
    return jnp.mod(x, 13)
