"""Values placed on the devices of a mesh, as the metadata of their variable say.

A variable whose sharding is given as `out_sharding`, as `with_partitioning` does, is
placed when it is made, if its mesh is known: the metadata `mesh`, or the mesh in force.
So a large model is never on one device. As `sharding`, it is only described.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Self

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from graphcore import register_creation_hook
from graphcore.authors import Bodies
from nnx_transforms.sharding.shardings import (
    ANYWHERE,
    axis_names,
    entries,
    names_in,
    rules_in_force,
    settled,
    sharding_of,
)
from nnx_transforms.states.values import map_value

__all__ = ["use_eager_sharding", "using_eager_sharding"]


class use_eager_sharding:  # noqa: N801  a function that is a context manager too
    """Sets whether variables with `out_sharding` are placed when they are made.

    Args:
        value: Whether they are. That holds from now on; until the end of the block, if
            it is entered as a context manager.

    Example:
        >>> with use_eager_sharding(False):
        ...     print(using_eager_sharding())
        False
        >>> using_eager_sharding()
        True
    """

    def __init__(self, value: bool) -> None:
        self._before = _is_eager.get()
        _is_eager.set(value)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        _is_eager.set(self._before)


def using_eager_sharding() -> bool:
    """Whether variables with `out_sharding` are placed when they are made.

    Returns:
        What `use_eager_sharding` set, True at first.

    Example:
        >>> using_eager_sharding()
        True
    """
    return _is_eager.get()


_is_eager: ContextVar[bool] = ContextVar("_is_eager", default=True)


def _place_new(variable: Any, value: Any) -> Any:
    metadata = variable.get_metadata()
    if not metadata.get("eager_sharding", using_eager_sharding()):
        return value
    return placed_by(metadata, value)


register_creation_hook("out_sharding", _place_new)
Bodies.contexts += (using_eager_sharding, rules_in_force)


def placed_by(metadata: Mapping[str, Any], value: Any, path: str = "") -> Any:
    """Places a value as the metadata of its variable say.

    Args:
        metadata: The metadata: `sharding`, `sharding_rules` and `mesh`.
        value: An array, inside a traced function or outside.
        path: Where the variable stands, for messages.

    Returns:
        The value with that sharding; itself, where no sharding or no mesh is known.

    Raises:
        ValueError: If the sharding is of an unknown kind, with the path.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> mesh = jax.make_mesh((1,), ('data',))
        >>> metadata = {'sharding': ('data',), 'mesh': mesh}
        >>> tuple(placed_by(metadata, jnp.ones(2)).sharding.spec)
        ('data',)
    """
    sharding = sharding_of(metadata, None, path)
    if sharding is None or isinstance(value, jax.ShapeDtypeStruct):
        return value
    if isinstance(sharding, PartitionSpec) and not _mesh_in_force():
        return value
    try:
        return constrained(value, sharding)
    except Exception as error:
        what = f"The variable at {path!r}" if path else "A new variable"
        others = "" if path else " Or make it under `use_eager_sharding(False)`."
        error.add_note(
            f"{what} was to be laid out by {sharding!r}, as its metadata say. Write it "
            "for this mesh, with the names of its axes, or say in `sharding_rules` "
            f"which axes are meant.{others}"
        )
        raise


def constrained(value: Any, sharding: Any) -> Any:
    """Says where a traced value lies.

    Args:
        value: The value of a variable: a pytree of arrays, with static leaves or not.
        sharding: A `PartitionSpec` on the mesh in force, or a `Sharding`.

    Returns:
        The same pytree, constrained; over explicit axes, of another type.
    """
    of_array = functools.partial(_constrained, sharding=sharding)
    return map_value(functools.partial(jax.tree.map, of_array), value)


def _constrained(value: Any, sharding: Any) -> Any:
    named = isinstance(sharding, NamedSharding)
    spec = sharding.spec if named else sharding
    in_force = jax.sharding.get_abstract_mesh()
    mesh = sharding.mesh if named else in_force
    kinds = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    explicit = [name for name, kind in kinds.items() if kind is AxisType.Explicit]
    traced = isinstance(value, jax.core.Tracer)
    has_types = explicit or AxisType.Explicit in in_force.axis_types
    if isinstance(mesh, Mesh) and not traced and has_types:  # not an abstract one
        return jax.device_put(value, sharding.update(spec=settled(spec)))
    if not explicit or not isinstance(spec, PartitionSpec):
        return jax.lax.with_sharding_constraint(value, sharding)

    # Where a value may lie anyhow over explicit axes, it lies as its type says.
    given = entries(spec)
    lies = [*entries(jax.typeof(value).sharding.spec), *(None for _ in given)]
    typed = [
        [n for n in axis_names(now) if n not in names_in(spec)] if x is ANYWHERE else x
        for x, now in zip(given, lies, strict=False)
    ]

    def part(places: Iterable[Any], is_explicit: bool) -> Any:
        """What the sharding says about the axes of one kind."""
        names = (_of_kind(entry, explicit, is_explicit) for entry in places)
        return NamedSharding(mesh, PartitionSpec(*names))

    # What is no axis at all is refused with the hint.
    hint = part(given, False) if {*kinds, *names_in(spec)} - {*explicit} else None
    # A trace has nothing but the resharding in it, as by hand.
    by_type = traced and hint is None
    return (_laid_out if by_type else _compiled)(value, part(typed, True), hint)


def _of_kind(entry: Any, explicit: Sequence[Any], is_explicit: bool) -> Any:
    """What is left of an entry of a spec, of the mesh axes of one kind."""
    if entry is ANYWHERE:
        return entry
    return tuple(n for n in axis_names(entry) if (n in explicit) is is_explicit)


def _laid_out(value: Any, explicit: Any, automatic: Any) -> Any:
    # Over an explicit axis a sharding is a type, over an automatic one a hint: JAX has
    # a function for each, which takes no names of the other kind.
    value = jax.sharding.reshard(value, explicit)
    if automatic is not None:
        value = jax.lax.with_sharding_constraint(value, automatic)
    return value


# Outside of compiled code, JAX takes explicit axes off the type with a hint, and does
# not know the devices of the mesh in force.
_compiled = jax.jit(_laid_out, static_argnums=(1, 2))


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
    except (RuntimeError, ValueError):  # ValueError where a program has patched JAX
        return False
    return True
