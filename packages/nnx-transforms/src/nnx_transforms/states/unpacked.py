"""States that know the definition of the graph that they are of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, overload

import jax

import graphcore
from graphcore import GraphDef, State
from nnx_transforms.transforms.graph_mode import split

__all__ = ["GraphState", "merge", "unpack"]

A = TypeVar("A")


@jax.tree_util.register_dataclass
@dataclass(slots=True, eq=False, repr=False)
class GraphState(MutableMapping[Any, Any], Generic[A]):
    """A state with the definition of its graph; a pytree, and a mapping as the state.

    Args:
        graphdef: The definition.
        state: The state, or a part of it.

    Example:
        >>> import jax, jax.numpy as jnp, nnx_transforms as nnx
        >>> state = nnx.unpack(nnx.Dict(a=nnx.Param(jnp.ones(2))))
        >>> nnx.merge(jax.tree.map(lambda x: 2 * x, state)).a.value.tolist()
        [2.0, 2.0]
    """

    graphdef: GraphDef[A] = field(metadata={"static": True})
    state: State[Any, Any]

    def __getattr__(self, name: str) -> Any:
        if name in ("graphdef", "state"):  # empty, while it is copied
            raise AttributeError(name)
        return getattr(self.state, name)

    def __getitem__(self, key: Any) -> Any:
        return self.state[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self.state[key] = value

    def __delitem__(self, key: Any) -> None:
        del self.state[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.state)

    def __len__(self) -> int:
        return len(self.state)

    def __repr__(self) -> str:
        return f"GraphState({type(self.graphdef).__name__}, {self.state!r})"


@overload
def unpack(node: A, only: Any = ..., /, **mode: Any) -> GraphState[A]: ...
@overload
def unpack(node: A, /, *filters: Any, **mode: Any) -> tuple[GraphState[A], ...]: ...
def unpack(node: Any, /, *filters: Any, **mode: Any) -> Any:
    """Takes a graph apart, into states that know its definition.

    Args:
        node: A graph node or pytree node.
        *filters: As for `split`.
        **mode: `graph=True` is accepted.

    Returns:
        A `GraphState`; for several filters a tuple of one each.

    Example:
        >>> import nnx_transforms as nnx
        >>> node = nnx.Dict(a=nnx.Param(1), b=nnx.Cache(2))
        >>> params, rest = nnx.unpack(node, nnx.Param, ...)
        >>> list(params), nnx.merge(params, rest).b.value
        (['a'], 2)
    """
    graphdef, *states = split(node, *filters, **mode)
    known = tuple(GraphState(graphdef, state) for state in states)
    return known if len(known) > 1 else known[0]


def merge(
    graphdef: GraphDef[A] | GraphState[A],
    /,
    *states: Mapping[Any, Any] | list[Any],
    copy: bool = True,
) -> A:
    """Puts a graph together, as `graphcore.merge` does.

    Args:
        graphdef: The definition; or a state that knows it, the first of all.
        *states: The states, at least one.
        copy: As for `graphcore.merge`.

    Returns:
        A new node.

    Raises:
        ValueError: If definition and states don't fit.

    Example:
        >>> import nnx_transforms as nnx
        >>> graphdef, state = nnx.split(nnx.Dict(a=nnx.Param(1)))
        >>> nnx.merge(graphdef, state).a.value
        1
    """
    first: Any = graphdef
    if isinstance(first, GraphState):
        first, states = first.graphdef, (first.state, *states)
    node: A = graphcore.merge(first, *states, copy=copy)  # type: ignore[arg-type]
    return node
