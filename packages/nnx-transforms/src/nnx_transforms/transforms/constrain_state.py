"""Sharding constraints from the metadata of variables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from graphcore.authors import variable_impl
from nnx_transforms.shardings import axis_names, sharding_of


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
    impl.set_value(variable, constrained(impl.get_value(variable), sharding))


def constrained(value: Any, sharding: Any) -> Any:
    """Says where a traced value lies.

    Args:
        value: A pytree of arrays.
        sharding: A `PartitionSpec` on the mesh in force, or a `Sharding`.

    Returns:
        The same pytree, constrained; over explicit axes, of another type.
    """
    explicit = _explicit_axes(sharding)
    if not explicit:
        return jax.lax.with_sharding_constraint(value, sharding)
    # Over an explicit axis a sharding is a type, over an automatic one a hint: JAX has
    # a function for each, which takes no names of the other kind.
    value = jax.sharding.reshard(value, _part(sharding, explicit.__contains__))
    if all(kind is AxisType.Explicit for kind in _mesh(sharding).axis_types):
        return value
    automatic = _part(sharding, lambda name: name not in explicit)
    return jax.lax.with_sharding_constraint(value, automatic)


def _mesh(sharding: Any) -> Any:
    if isinstance(sharding, NamedSharding):
        return sharding.mesh
    return jax.sharding.get_abstract_mesh()


def _explicit_axes(sharding: Any) -> set[Any]:
    """The axes of its mesh on which a sharding is not a hint but a type."""
    if not isinstance(sharding, PartitionSpec | NamedSharding):
        return set()
    mesh = _mesh(sharding)
    kinds = zip(mesh.axis_names, mesh.axis_types, strict=True)
    return {name for name, kind in kinds if kind is AxisType.Explicit}


def _part(sharding: Any, selects: Callable[[Any], bool]) -> Any:
    """What a sharding says about some axes of the mesh."""
    named = isinstance(sharding, NamedSharding)
    entries = sharding.spec if named else sharding
    spec = PartitionSpec(
        *(tuple(filter(selects, axis_names(e))) or None for e in entries)
    )
    return NamedSharding(sharding.mesh, spec) if named else spec


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
