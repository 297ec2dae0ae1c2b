"""Arrays on their way to and from files: what orbax takes, and where it puts things."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.dtypes import canonicalize_dtype
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec, Sharding

from graphcore import VariableState
from graphcore.authors import path_text
from nnx_transforms.prefixes import StateSharding
from nnx_transforms.saving.contents import Leaf, key_impl, without_keys
from nnx_transforms.saving.names import Path
from nnx_transforms.sharding.shardings import mesh_in_force, sharding_of

Placement: TypeAlias = Sharding | None
"""Where an array is to lie; None for JAX's default device, as after `jnp.asarray`."""


class Request(NamedTuple):
    """An array to be read.

    Args:
        leaf: What the file has.
        placement: Where to put it.
        like: What the graph has there.
    """

    leaf: Leaf
    placement: Placement
    like: Any


def to_write(value: Any) -> Any:
    """What orbax is given for an array.

    Args:
        value: An array of JAX or NumPy.

    Returns:
        The array. With several processes, one that each of them has for itself is taken
        to be the same in all; the first one's is written.
    """
    if not isinstance(value, jax.Array):
        return np.array(value)  # Its owner may change it while it is being written.
    if jax.process_count() == 1 or not value.is_fully_addressable:
        return value
    return np.asarray(without_keys(value))


def placement_of(
    path: Path, variable: Any, value: Any, leaf: Leaf, sharding: Any
) -> Placement:
    """Where an array of a graph is to lie.

    Args:
        path: Where its variable is.
        variable: The variable, or the array alone.
        value: The array, a stand-in for one, or another value.
        leaf: What the file has.
        sharding: What was asked for, as `restore` takes it.

    Returns:
        That; without it, where the array was put on purpose, and for a stand-in what it
        says, or the variable.

    Raises:
        TypeError: If the array is traced, and nothing was asked for.
        ValueError: If the array can't lie there, or what was asked for needs a mesh.
    """
    if isinstance(sharding, StateSharding):
        sharding = sharding.map_prefix(path, variable)
    asked = sharding
    if sharding is None and isinstance(value, jax.core.Tracer):
        raise TypeError(
            f"The array at {path_text(path)!r} is traced, as inside of `jit`, and lies "
            "nowhere yet. Restore the object outside, and give it to the function: "
            "inside, the file would be read once, for a constant of what is compiled."
        )
    if sharding is None and isinstance(value, jax.Array):
        return value.sharding if value.committed else None
    if sharding is None and isinstance(value, jax.ShapeDtypeStruct):
        sharding = _on_devices(value.sharding)
        if sharding is None and isinstance(variable, VariableState):
            sharding = sharding_of(variable.get_metadata(), path=path_text(path))
    found = _on_devices(sharding)
    if found is None and asked is not None:
        raise ValueError(
            f"The array at {path_text(path)!r} is to be laid out as {asked}, but no "
            "mesh is in force: restore it under `jax.set_mesh(mesh)`, or give a "
            "`NamedSharding`."
        )
    try:
        if found is not None and leaf.form != "numpy":
            found.shard_shape(leaf.shape)
    except (ValueError, IndexError) as error:  # the latter for too many axes
        raise ValueError(
            f"The array at {path_text(path)!r}, of shape {leaf.shape}, can't be laid "
            f"out as {found}: give one that fits as `sharding=`, such as "
            "`PartitionSpec()`, or mend the metadata of the variable."
        ) from error
    return found


def _on_devices(sharding: Sharding | PartitionSpec | None) -> Placement:
    """The sharding; one over an abstract mesh, or a spec, is for the mesh in force."""
    if isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, AbstractMesh):
        sharding = sharding.spec
    if not isinstance(sharding, PartitionSpec):
        return sharding
    mesh = mesh_in_force()
    return None if mesh is None else NamedSharding(mesh, sharding)


def restore_args(request: Request) -> Any:
    """What orbax is asked for.

    Of an array of many devices, each process reads its part. Others are read as they
    are in the file, and put in place here: orbax would commit them to a device, and
    what is committed to one device meets no arrays of many.
    """
    import orbax.checkpoint as ocp

    leaf, placement, _ = request
    if placement is not None and leaf.form == "array":
        if len(placement.device_set) > 1 or not placement.is_fully_addressable:
            return ocp.ArrayRestoreArgs(sharding=placement)
    return ocp.RestoreArgs(restore_type=np.ndarray)


def placed(request: Request, found: Any) -> Any:
    """Turns what was read back into what was saved.

    Args:
        request: What it was, and where to put it.
        found: The array as NumPy's, keys as their data, or as JAX's, in place already;
            None for one without elements, which orbax cannot store.

    Returns:
        The array.
    """
    leaf, placement, like = request
    if isinstance(found, jax.Array):
        return found
    if found is None:
        dtype = like.dtype if leaf.is_key else jnp.dtype(leaf.dtype)
        form = jax.ShapeDtypeStruct(leaf.shape, dtype)
        data = jax.eval_shape(without_keys, form)
        found = np.zeros(data.shape, data.dtype)
    if leaf.form == "numpy" or found.dtype != canonicalize_dtype(found.dtype):
        # JAX would cut 64 bits down to 32. NumPy's numbers were read as arrays without
        # axes, which format otherwise.
        return np.array(found) if isinstance(like, np.ndarray) else found[()]
    if leaf.is_key:
        found = jax.random.wrap_key_data(jnp.array(found), impl=key_impl(like))
    elif leaf.form == "weak":
        # JAX has no way to make an array of a weak type but from a Python number.
        zero = jnp.asarray(found.dtype.type(0).item())
        found = jnp.broadcast_to(zero, found.shape).at[...].set(found)
    else:
        found = jnp.array(found)  # A copy: `found` may be the caller's.
    return jax.device_put(found, placement)
