"""Sharding constraints from the metadata of variables."""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from graphcore.authors import variable_impl
from nnx_transforms.shardings import sharding_of


def constrain(variable: Any, path: str) -> None:
    """Constrains a variable's value to be sharded as its metadata says.

    The metadata `sharding` is a `jax.sharding.Sharding`, a `PartitionSpec` or a tuple
    of axis names; the latter two need a mesh: the metadata `mesh`, or else the one in
    force. Without sharding or mesh nothing happens.

    Args:
        variable: The variable, inside a traced function.
        path: Where it stands, for messages.

    Raises:
        ValueError: If the sharding is of an unknown kind, with the path.
    """
    impl = variable_impl(type(variable))
    sharding = sharding_of(impl.metadata(variable), None, path)
    if sharding is None or not (
        isinstance(sharding, jax.sharding.Sharding) or _mesh_in_force()
    ):
        return
    value = impl.get_value(variable)
    if _has_explicit_axes(sharding):
        value = jax.sharding.reshard(value, sharding)
    else:
        value = jax.lax.with_sharding_constraint(value, sharding)
    impl.set_value(variable, value)


def _has_explicit_axes(sharding: Any) -> bool:
    """Whether the mesh has axes on which a constraint is not a hint but a type."""
    if isinstance(sharding, PartitionSpec):
        mesh: Any = jax.sharding.get_abstract_mesh()
    elif isinstance(sharding, NamedSharding):
        mesh = sharding.mesh
    else:
        return False
    return AxisType.Explicit in mesh.axis_types


def _mesh_in_force() -> bool:
    if not jax.sharding.get_abstract_mesh().empty:
        return True
    # `with mesh:`, the older way, is not seen by `get_abstract_mesh`; a constraint
    # to no particular sharding tells whether there is one.
    try:
        jax.eval_shape(
            lambda x: jax.lax.with_sharding_constraint(x, PartitionSpec()),
            jax.ShapeDtypeStruct((), "float32"),
        )
    except RuntimeError:
        return False
    return True
