"""Sharding constraints from the metadata of variables."""

from __future__ import annotations

from typing import Any

from graphcore.authors import variable_impl
from nnx_transforms.sharding.eager_sharding import placed_by


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
    value = impl.get_value(variable)
    placed = placed_by(impl.metadata(variable), value, path)
    if placed is not value:
        impl.set_value(variable, placed)
