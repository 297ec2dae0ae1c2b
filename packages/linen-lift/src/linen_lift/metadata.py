"""Boxes that say what the axes of a variable mean.

A box is a pytree node around a value. `param` and `variable` store the box and hand
out the value, so a model need not know about it; lifted `vmap` and `scan` tell every
box when they stack a new axis onto its value or take it off again. `Partitioned`, the
one ready-made box, names the mesh axes that an array is split over.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable, Mapping
from types import GenericAlias
from typing import Any, ClassVar, TypeVar, dataclass_transform

import jax
import numpy as np

from .errors import PartitioningUnspecifiedError

__all__ = [
    "PARTITION_NAME",
    "AxisMetadata",
    "Partitioned",
    "add_axis",
    "get_partition_spec",
    "get_sharding",
    "map_axis_meta",
    "remove_axis",
    "replace_boxed",
    "unbox",
    "with_partitioning",
]

PARTITION_NAME = "partition_name"
"""The key of `metadata_params` under which `Partitioned` finds the new axis' name.

Example:
    >>> import jax.numpy as jnp
    >>> box = Partitioned(jnp.ones((2, 3)), names=('model',))
    >>> box.add_axis(0, {PARTITION_NAME: 'layers'}).names
    ('layers', 'model')
"""

B = TypeVar("B", bound="AxisMetadata")
P = TypeVar("P", bound="Partitioned")


class AxisMetadata(abc.ABC):
    """The contract of a box: a pytree node that follows its value's axes.

    A class that has the four methods is a box without being a subclass, as those of
    Flax Linen are.

    Example:
        >>> import linen_lift as nn
        >>> box = nn.Partitioned(1.0, ('rows', None))
        >>> box.add_axis(0, {nn.PARTITION_NAME: 'layers'}).names
        ('layers', 'rows', None)
    """

    # `AxisMetadata[jax.Array]` says in an annotation what is in the box.
    __class_getitem__: ClassVar[Any] = classmethod(GenericAlias)

    @classmethod
    def __subclasshook__(cls, other: type[Any], /) -> Any:
        is_like = cls is AxisMetadata and all(
            callable(getattr(other, name, None)) for name in cls.__abstractmethods__
        )
        return is_like or NotImplemented

    @abc.abstractmethod
    def unbox(self) -> Any:
        """The value in the box."""

    @abc.abstractmethod
    def replace_boxed(self: B, value: Any) -> B:
        """A box with the same metadata around `value`."""

    @abc.abstractmethod
    def add_axis(self: B, index: int, params: Mapping[Any, Any]) -> B:
        """The box after an axis was inserted into its value at `index`.

        Args:
            index: the position of the axis in the value that has it; negative counts
                from the end.
            params: the `metadata_params` of the lifted transform.
        """

    @abc.abstractmethod
    def remove_axis(self: B, index: int, params: Mapping[Any, Any]) -> B:
        """The box after the axis at `index` was taken out of its value.

        Args:
            index: the position of the axis in the value that still has it; negative
                counts from the end.
            params: the `metadata_params` of the lifted transform.
        """


def constrained(
    value: Any,
    spec: jax.sharding.PartitionSpec,
    mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh | None = None,
) -> Any:
    """A value, laid out over a mesh.

    Args:
        value: an array, or a leaf of another kind, which has no layout.
        spec: the mesh axes that it is split over.
        mesh: the mesh; the one of `jax.set_mesh` if it is not given.

    Returns:
        The value with that sharding, or as it is where there is no mesh.
    """
    where: Any = mesh
    if where is None:
        where = jax.sharding.get_abstract_mesh()
        if where.empty:
            return value
    if not isinstance(value, jax.Array | np.ndarray):
        return value
    sharding = spec if mesh is None else jax.sharding.NamedSharding(where, spec)
    explicit = jax.sharding.AxisType.Explicit
    if all(kind == explicit for kind in where.axis_types):
        return jax.sharding.reshard(value, sharding)
    is_traced = isinstance(value, jax.core.Tracer)
    if mesh is None and (not is_traced or explicit in where.axis_types):
        # The devices of `jax.set_mesh` are known to compiled code only. And outside of
        # it, JAX 0.12.0 takes explicit axes off the type of a traced value.
        return _constrained_by_jit(value, sharding)
    return jax.lax.with_sharding_constraint(value, sharding)


_constrained_by_jit = jax.jit(jax.lax.with_sharding_constraint, static_argnums=1)


def _is_static(field: dataclasses.Field[Any]) -> bool:
    """Whether a field is marked as metadata, in JAX's way or that of `flax.struct`."""
    marks = field.metadata
    return bool(marks.get("static")) or marks.get("pytree_node") is False


_STATIC = {"static": True}


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Partitioned(AxisMetadata):
    """A value with the mesh axis that each of its dimensions is split over.

    Args:
        value: an array.
        names: one entry per dimension: the name of a mesh axis, a tuple of names, or
            None for a dimension that is not split.
        mesh: the value is constrained to this sharding over it whenever it is taken
            out of the box; the mesh of `jax.set_mesh` if it is not given.

    A subclass is a dataclass and a pytree node by itself. Its further fields are
    children of the node, unless `dataclasses.field(metadata={'static': True})` (or
    `flax.struct.field(pytree_node=False)`) marks them as metadata.

    Example:
        >>> import linen_lift as nn, jax, jax.numpy as jnp
        >>> spec = nn.Partitioned(jnp.ones((4, 2)), ('rows', None)).get_partition_spec()
        >>> spec == jax.sharding.PartitionSpec('rows', None)
        True
    """

    value: Any
    names: tuple[Any, ...] = dataclasses.field(metadata=_STATIC)
    mesh: jax.sharding.Mesh | None = dataclasses.field(default=None, metadata=_STATIC)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        dataclasses.dataclass(frozen=True)(cls)
        fields = {f.name: _is_static(f) for f in dataclasses.fields(cls) if f.init}
        jax.tree_util.register_dataclass(
            cls,
            [name for name, static in fields.items() if not static],
            [name for name, static in fields.items() if static],
        )

    def unbox(self, apply_constraint: bool = True) -> Any:
        """The value, constrained to its sharding where there is a mesh.

        Args:
            apply_constraint: whether to constrain it.
        """
        if not apply_constraint:
            return self.value
        return constrained(self.value, self._mesh_spec(), self.mesh)

    def _mesh_spec(self) -> jax.sharding.PartitionSpec:
        return self.get_partition_spec()

    def replace(self: P, **updates: Any) -> P:
        """A box with other values for some fields.

        Args:
            **updates: the values.
        """
        return dataclasses.replace(self, **updates)

    def replace_boxed(self: P, value: Any) -> P:
        """A box with the same names around `value`."""
        return dataclasses.replace(self, value=value)

    def _axis_name(self, params: Mapping[Any, Any]) -> Any:
        if PARTITION_NAME not in params:
            raise PartitioningUnspecifiedError(self)
        return params[PARTITION_NAME]

    def _position(self, index: int, named: int) -> int:
        """Where an axis is, counted from the front."""
        # Names may be fewer than dimensions; the rest are not split.
        dimensions = max(named, getattr(self.value, "ndim", 0))
        return index + dimensions if index < 0 else index

    def add_axis(self: P, index: int, params: Mapping[Any, Any]) -> P:
        """The box with one more name.

        Args:
            index: where the new dimension is.
            params: its name, under `PARTITION_NAME`.

        Raises:
            PartitioningUnspecifiedError: if `params` does not have the name.
        """
        name, names = self._axis_name(params), list(self.names)
        index = self._position(index, len(names) + 1)
        names += [None] * (index - len(names))
        names.insert(index, name)
        return dataclasses.replace(self, names=tuple(names))

    def remove_axis(self: P, index: int, params: Mapping[Any, Any]) -> P:
        """The box with one name less.

        Args:
            index: where the dimension is.
            params: its name, under `PARTITION_NAME`.

        Raises:
            PartitioningUnspecifiedError: if `params` does not have the name.
            ValueError: if another name is at that place.
        """
        name, names = self._axis_name(params), list(self.names)
        index = self._position(index, len(names))
        found = names[index] if 0 <= index < len(names) else None
        if found != name:
            raise ValueError(
                f"Cannot remove axis {name!r} at position {index} of the names "
                f"{self.names}: found {found!r} there. Was the variable made with "
                "the same variable_axes and metadata_params?"
            )
        if 0 <= index < len(names):
            del names[index]
        return dataclasses.replace(self, names=tuple(names))

    def get_partition_spec(self) -> jax.sharding.PartitionSpec:
        """The names as a `jax.sharding.PartitionSpec`."""
        return jax.sharding.PartitionSpec(*self.names)

    def get_sharding(self, mesh: jax.sharding.Mesh) -> jax.sharding.NamedSharding:
        """The names as a sharding over `mesh`.

        Args:
            mesh: a mesh that has the named axes.
        """
        return jax.sharding.NamedSharding(mesh, self._mesh_spec())


def with_partitioning(
    fn: Callable[..., Any],
    names: tuple[Any, ...],
    mesh: jax.sharding.Mesh | None = None,
) -> Callable[..., Partitioned]:
    """Makes an initializer put its result into a `Partitioned` box.

    Args:
        fn: an initializer.
        names: a mesh axis per dimension of what it makes.
        mesh: see `Partitioned`.

    Returns:
        An initializer with the same arguments.

    Example:
        >>> import linen_lift as nn, jax
        >>> init = nn.with_partitioning(nn.initializers.ones, ('rows', None))
        >>> init(jax.random.key(0), (4, 2)).names
        ('rows', None)
    """
    return boxed(Partitioned, fn, names, mesh)


def boxed(box: type[P], fn: Callable[..., Any], *about: Any) -> Callable[..., P]:
    """Makes an initializer put its result into a box."""

    @functools.wraps(fn)
    def boxed_init(*args: Any, **kwargs: Any) -> P:
        return box(fn(*args, **kwargs), *about)

    return boxed_init


def _is_box(x: Any) -> bool:
    return isinstance(x, AxisMetadata)


def map_axis_meta(fn: Callable[[Any], Any], tree: Any) -> Any:
    """Applies `fn` to every box in a tree and leaves everything else alone.

    Args:
        fn: takes a box.
        tree: a pytree.

    Returns:
        The tree with each box replaced by what `fn` returned.

    Example:
        >>> import linen_lift as nn
        >>> tree = {'a': nn.Partitioned(1, ('x',)), 'b': 2}
        >>> nn.map_axis_meta(lambda box: box.names, tree)
        {'a': ('x',), 'b': 2}
    """
    return jax.tree.map(
        lambda x: fn(x) if isinstance(x, AxisMetadata) else x, tree, is_leaf=_is_box
    )


def unbox(tree: Any) -> Any:
    """Takes every value out of its box, nested boxes included.

    Args:
        tree: a pytree.

    Returns:
        The tree without boxes.

    Example:
        >>> import linen_lift as nn
        >>> nn.unbox({'a': nn.Partitioned(1, ('x',)), 'b': 2})
        {'a': 1, 'b': 2}
    """
    return map_axis_meta(lambda box: unbox(box.unbox()), tree)


def replace_boxed(tree: Any, updates: Any) -> Any:
    """Puts new values into the boxes of a tree.

    Args:
        tree: a pytree with boxes.
        updates: the same tree without boxes (`unbox(tree)`), with new values.

    Returns:
        `updates`, with the boxes of `tree` around its values.

    Example:
        >>> import linen_lift as nn
        >>> nn.replace_boxed({'a': nn.Partitioned(1, ('x',))}, {'a': 2})
        {'a': Partitioned(value=2, names=('x',), mesh=None)}
    """

    def replace(old: Any, new: Any) -> Any:
        if isinstance(old, AxisMetadata):
            return old.replace_boxed(replace_boxed(old.unbox(), new))
        return new

    return jax.tree.map(replace, tree, updates, is_leaf=_is_box)


def add_axis(tree: Any, index: int, params: Mapping[Any, Any]) -> Any:
    """Tells every box in a tree that its value has a new axis.

    Args:
        tree: a pytree.
        index: the position of the axis; negative counts from the end.
        params: the `metadata_params` of the lifted transform.

    Returns:
        The tree with changed boxes.

    Raises:
        PartitioningUnspecifiedError: if a box needs a name that `params` lacks.

    Example:
        >>> import linen_lift as nn
        >>> box = nn.Partitioned(1, ('in', 'out'))
        >>> nn.meta.add_axis(box, 0, {nn.PARTITION_NAME: 'layer'}).names
        ('layer', 'in', 'out')
    """
    return _with_change("add_axis", tree, index, params)


def remove_axis(tree: Any, index: int, params: Mapping[Any, Any]) -> Any:
    """The inverse of `add_axis`.

    Args:
        tree: a pytree.
        index: the position of the axis; negative counts from the end.
        params: the `metadata_params` of the lifted transform.

    Returns:
        The tree with changed boxes.

    Raises:
        PartitioningUnspecifiedError: if a box needs a name that `params` lacks.

    Example:
        >>> import linen_lift as nn
        >>> box = nn.Partitioned(1, ('layer', 'in', 'out'))
        >>> nn.meta.remove_axis(box, 0, {nn.PARTITION_NAME: 'layer'}).names
        ('in', 'out')
    """
    return _with_change("remove_axis", tree, index, params)


def _with_change(method: str, tree: Any, *how: Any) -> Any:
    def change(box: AxisMetadata) -> Any:
        # Looking for inner boxes must not trigger the constraint that `unbox` applies.
        inner = getattr(box, "value", None)
        box = getattr(box, method)(*how)
        if isinstance(inner, AxisMetadata):
            return box.replace_boxed(_with_change(method, inner, *how))
        return box

    return map_axis_meta(change, tree)


def get_partition_spec(tree: Any) -> Any:
    """The partition spec of every array in a tree.

    Args:
        tree: a pytree of arrays, or of their shapes, some in boxes.

    Returns:
        The tree with a `PartitionSpec` in the place of each box and array; an array
        without a box is not split. Leaves that are no arrays become None.

    Example:
        >>> import linen_lift as nn, jax, jax.numpy as jnp
        >>> specs = nn.get_partition_spec({'w': nn.Partitioned(jnp.ones(2), ('x',))})
        >>> specs['w'] == jax.sharding.PartitionSpec('x')
        True
    """

    def spec(x: Any) -> Any:
        if hasattr(x, "get_partition_spec"):
            return x.get_partition_spec()
        has_axes = isinstance(x, AxisMetadata) or hasattr(x, "shape")
        return jax.sharding.PartitionSpec() if has_axes else None

    return jax.tree.map(spec, tree, is_leaf=_is_box)


def get_sharding(tree: Any, mesh: jax.sharding.Mesh) -> Any:
    """The sharding over a mesh of every array in a tree.

    Args:
        tree: a pytree of arrays, or of their shapes, some in boxes.
        mesh: the mesh that the boxes name axes of.

    Returns:
        The tree with a `NamedSharding` in the place of each box and array.

    Example:
        >>> import linen_lift as nn, jax, numpy as np
        >>> mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ('x',))
        >>> nn.get_sharding({'w': np.ones(2)}, mesh)['w'].mesh == mesh
        True
    """

    def sharding(x: Any) -> Any:
        if hasattr(x, "get_sharding"):
            return x.get_sharding(mesh)
        spec = get_partition_spec(x)
        return None if spec is None else jax.sharding.NamedSharding(mesh, spec)

    return jax.tree.map(sharding, tree, is_leaf=_is_box)
