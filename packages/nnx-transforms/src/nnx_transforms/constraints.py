"""Sharding constraints from the metadata of variables."""

from __future__ import annotations

from typing import Any

import jax

from graphcore.variable_impl import variable_impl

__all__ = ["constrain"]


def constrain(variable: Any) -> None:
    """Constrains a variable's value to be sharded as its metadata says.

    The metadata `sharding` is a `jax.sharding.Sharding`, a `PartitionSpec` or a tuple
    of axis names; the latter two need a mesh: the metadata `mesh`, or else the one in
    force. Without sharding or mesh nothing happens.

    Args:
        variable: The variable, inside a traced function.
    """
    impl = variable_impl(type(variable))
    metadata = impl.metadata(variable)
    sharding = metadata.get("sharding")
    if sharding is None:
        return
    if not isinstance(sharding, jax.sharding.Sharding):
        spec = sharding
        if not isinstance(spec, jax.sharding.PartitionSpec):
            spec = jax.sharding.PartitionSpec(*spec)
        mesh = metadata.get("mesh")
        if mesh is not None:
            sharding = jax.sharding.NamedSharding(mesh, spec)
        elif _mesh_in_force():
            sharding = spec
        else:
            return
    value = jax.lax.with_sharding_constraint(impl.get_value(variable), sharding)
    impl.set_value(variable, value)


def _mesh_in_force() -> bool:
    if not jax.sharding.get_abstract_mesh().empty:
        return True
    # `with mesh:`, the older way, is not seen by `get_abstract_mesh`; a constraint
    # to no particular sharding tells whether there is one.
    try:
        jax.eval_shape(
            lambda x: jax.lax.with_sharding_constraint(x, jax.sharding.PartitionSpec()),
            jax.ShapeDtypeStruct((), "float32"),
        )
    except RuntimeError:
        return False
    return True
