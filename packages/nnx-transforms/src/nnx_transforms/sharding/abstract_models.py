"""Models without arrays, whose shapes and shardings are known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax

from graphcore import GraphDef, State, VariableState, merge, split
from nnx_transforms.sharding.shardings import get_named_sharding, sharding_of
from nnx_transforms.transforms.eval_shape import eval_shape
from nnx_transforms.transforms.graph_mode import accepts_graph_mode

__all__ = ["as_abstract", "get_abstract_model"]

_A = TypeVar("_A")


@accepts_graph_mode
def get_abstract_model(
    init_fn: Callable[[], _A], mesh: Any
) -> tuple[GraphDef[_A], State[Any, Any]]:
    """Finds out what a model is like, without making its arrays.

    Args:
        init_fn: Makes the model.
        mesh: The mesh that the shardings of its variables name the axes of.

    Returns:
        The definition, and a state with a `jax.ShapeDtypeStruct` for each value, with
        the sharding that the metadata name: what to restore a checkpoint into.

    Example:
        >>> import jax, jax.numpy as jnp, graphcore as gc
        >>> mesh = jax.make_mesh((1,), ('data',))
        >>> make = lambda: gc.Dict(w=gc.Param(jnp.ones(4), out_sharding=('data',)))
        >>> graphdef, state = get_abstract_model(make, mesh)
        >>> state.w.value.shape, tuple(state.w.value.sharding.spec)
        ((4,), ('data',))
    """
    with jax.set_mesh(mesh):
        graphdef, state = split(eval_shape(init_fn))
        shardings = get_named_sharding(state, mesh)
    return graphdef, jax.tree.map(_sharded, shardings, state)


@accepts_graph_mode
def as_abstract(tree: _A) -> _A:
    """Adds shardings to the values of a model that `eval_shape` made.

    Args:
        tree: A graph node, whose values are `jax.ShapeDtypeStruct`s.

    Returns:
        A copy. Where metadata name a sharding and the value has none, it gets that, on
        the metadata `mesh` or the mesh in force.

    Example:
        >>> import jax, jax.numpy as jnp, graphcore as gc
        >>> node = gc.Dict(w=gc.Param(jax.ShapeDtypeStruct((4,), 'float32'),
        ...                           out_sharding=('data',)))
        >>> with jax.set_mesh(jax.make_mesh((1,), ('data',))):
        ...     node = as_abstract(node)
        >>> tuple(node.w.value.sharding.spec)
        ('data',)
    """
    mesh = jax.sharding.get_abstract_mesh()

    def add(path: Any, leaf: Any) -> Any:
        if isinstance(leaf, VariableState):
            sharding = sharding_of(leaf.get_metadata(), mesh)
            known = [getattr(x, "sharding", None) for x in jax.tree.leaves(leaf.value)]
            if all(place is None for place in known):
                return leaf.replace(_sharded(sharding, leaf.value))
        return leaf

    graphdef, state = split(tree)
    twin: _A = merge(graphdef, state.map(add))
    return twin


def _sharded(sharding: Any, value: Any) -> Any:
    """The value of a variable with a sharding, where it is abstract."""

    def sharded(x: Any) -> Any:
        is_abstract = isinstance(x, jax.ShapeDtypeStruct)
        return x.update(sharding=sharding) if is_abstract else x

    return jax.tree.map(sharded, value)
