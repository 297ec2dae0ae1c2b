"""Where the values of variables are placed, read from their metadata.

`sharding` is a `PartitionSpec`, a tuple of mesh axis names (a name, None, or a tuple of
names for each axis of the value), or a `Sharding`. `mesh` is the mesh that the names
belong to; without it, the mesh is given by whoever asks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from graphcore import VariableState, is_graph_node, is_variable, state
from graphcore.authors import variable_impl


def get_partition_spec(state: Any, /) -> Any:
    """Replaces each value in a state by the `PartitionSpec` that its metadata names.

    Args:
        state: A `State`, or any pytree with `VariableState`s or variables among its
            leaves; or a graph node, which stands for its state.

    Returns:
        The same tree with a `PartitionSpec` for each value; `PartitionSpec()` where no
        sharding is named.

    Raises:
        ValueError: If a sharding has no partition spec, or is of an unknown kind; with
            the path.

    Example:
        >>> import graphcore as gc, jax.numpy as jnp
        >>> node = gc.Dict(a=gc.Param(jnp.ones(2), sharding=('data',)), b=gc.Cache(0))
        >>> specs = get_partition_spec(gc.state(node))
        >>> specs.a.value == PartitionSpec('data'), specs.b.value == PartitionSpec()
        (True, True)
    """

    def spec(path: str, metadata: Mapping[str, Any]) -> PartitionSpec:
        return _spec(path, metadata.get("sharding"))

    return _map_values(spec, state)


def get_named_sharding(state: Any, mesh: Any) -> Any:
    """Replaces each value in a state by the sharding that its metadata names.

    Args:
        state: A `State`, or any pytree with `VariableState`s or variables among its
            leaves; or a graph node, which stands for its state.
        mesh: A `Mesh` for the variables that have no `mesh` metadata.

    Returns:
        The same tree with a `Sharding` for each value. A variable without `sharding`
        metadata is replicated over the mesh; a `Sharding` is taken as it is.

    Raises:
        ValueError: If a sharding is of an unknown kind, with the path.

    Example:
        >>> import graphcore as gc, jax, jax.numpy as jnp
        >>> mesh = jax.make_mesh((1,), ('data',))
        >>> node = gc.Dict(a=gc.Param(jnp.ones(2), sharding=('data',)))
        >>> shardings = get_named_sharding(gc.state(node), mesh)
        >>> placed = jax.device_put(gc.state(node), shardings)
        >>> placed.a.value.sharding.spec == PartitionSpec('data')
        True
    """

    def sharding(path: str, metadata: Mapping[str, Any]) -> Any:
        found = sharding_of(metadata, mesh, path)
        return found or NamedSharding(metadata.get("mesh") or mesh, PartitionSpec())

    return _map_values(sharding, state)


def sharding_of(
    metadata: Mapping[str, Any], mesh: Any = None, path: str = ""
) -> Sharding | PartitionSpec | None:
    """The placement that the metadata of one variable names.

    Args:
        metadata: The metadata.
        mesh: The mesh for names, if the metadata has no `mesh`.
        path: Where the variable stands, for messages.

    Returns:
        None without `sharding` metadata, a `Sharding` where a mesh is known, else a
        `PartitionSpec`, which JAX reads on the mesh in force.

    Raises:
        ValueError: If the sharding is of an unknown kind, with the path.

    Example:
        >>> sharding_of({'sharding': ('data', None)}) == PartitionSpec('data', None)
        True
        >>> sharding_of({}) is None
        True
    """
    found = metadata.get("sharding")
    if found is None or isinstance(found, Sharding):
        return found
    spec = _spec(path, found)
    mesh = metadata.get("mesh") or mesh
    return spec if mesh is None else NamedSharding(mesh, spec)


def _spec(path: str, sharding: Any) -> PartitionSpec:
    if sharding is None:
        return PartitionSpec()
    if isinstance(sharding, NamedSharding):
        return sharding.spec
    if isinstance(sharding, PartitionSpec):
        return sharding
    if isinstance(sharding, tuple | list):
        return PartitionSpec(*sharding)
    raise ValueError(
        f"The sharding metadata of the variable at {path!r} is {sharding!r} of type "
        f"{type(sharding).__name__}, which names no mesh axes: expected a "
        "PartitionSpec, a tuple of axis names, or a NamedSharding."
    )


def _map_values(function: Any, tree: Any) -> Any:
    if is_graph_node(tree):
        tree = state(tree)

    def leaf(path: tuple[Any, ...], found: Any) -> Any:
        where = jax.tree_util.keystr(path, simple=True, separator="/") or "<root>"
        if isinstance(found, VariableState):
            return found.replace(function(where, found.get_metadata()))
        if is_variable(found):
            metadata = variable_impl(type(found)).metadata(found)
            placed = function(where, metadata)
            return VariableState.of((type(found), metadata), placed)
        return function(where, {})

    return jax.tree_util.tree_map_with_path(
        leaf, tree, is_leaf=lambda x: isinstance(x, VariableState) or is_variable(x)
    )
