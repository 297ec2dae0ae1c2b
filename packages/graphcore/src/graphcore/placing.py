"""Where arrays lie on the devices of a mesh."""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

__all__ = ["axis_names", "constrained"]


def axis_names(entry: Any) -> tuple[Any, ...]:
    """The names in one entry of a spec.

    Args:
        entry: A name, a tuple of names, or None.

    Returns:
        The names.

    Example:
        >>> from graphcore.authors import axis_names
        >>> axis_names('data'), axis_names(('data', 'model')), axis_names(None)
        (('data',), ('data', 'model'), ())
    """
    if entry is None:
        return ()
    return tuple(entry) if isinstance(entry, tuple | list) else (entry,)


def constrained(value: Any, sharding: Any) -> Any:
    """Says where an array lies, over axes of a mesh of any kinds.

    Args:
        value: An array, traced or not.
        sharding: A `PartitionSpec` on the mesh in force, or a `Sharding`.

    Returns:
        The array, constrained; over explicit axes, of another type.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from graphcore.authors import constrained
        >>> mesh = jax.make_mesh((1,), ('data',))
        >>> place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec('data'))
        >>> constrained(jnp.ones(2), place).sharding == place
        True
    """
    named = isinstance(sharding, NamedSharding)
    spec = sharding.spec if named else sharding
    mesh = sharding.mesh if named else jax.sharding.get_abstract_mesh()
    kinds = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    explicit = [name for name, kind in kinds.items() if kind is AxisType.Explicit]
    traced = isinstance(value, jax.core.Tracer)
    if named and explicit and not traced:
        return jax.device_put(value, sharding)
    if not isinstance(spec, PartitionSpec) or (named and not explicit):
        return jax.lax.with_sharding_constraint(value, sharding)

    def part(is_explicit: bool) -> Any:
        """What the sharding says about the axes of one kind."""
        names = (
            tuple(n for n in axis_names(entry) if (n in explicit) is is_explicit)
            for entry in spec
        )
        found = PartitionSpec(*(x[0] if len(x) == 1 else x or None for x in names))
        return NamedSharding(mesh, found) if named else found

    parts = (
        part(True) if explicit else None,
        part(False) if len(explicit) < len(kinds) or not kinds else None,
    )
    return (_laid_out if traced else _compiled)(value, *parts)


def _laid_out(value: Any, explicit: Any, automatic: Any) -> Any:
    # Over an explicit axis a sharding is a type, over an automatic one a hint: JAX has
    # a function for each, which takes no names of the other kind.
    if explicit is not None:
        value = jax.sharding.reshard(value, explicit)
    if automatic is not None:
        value = jax.lax.with_sharding_constraint(value, automatic)
    return value


# The devices of the mesh in force are known to compiled code only.
_compiled = jax.jit(_laid_out, static_argnums=(1, 2))
