"""Logical partitioning: axes that say what they are, and rules for where they lie.

One program runs on many devices, and each array is split over some axes of their mesh.
A model need not know the mesh: it gives the axes of its arrays *logical* names such as
`'batch'` or `'heads'`, and *rules*, pairs of a logical name and mesh axes, say where
each lies. `with_logical_partitioning` names the axes of a variable,
`with_logical_constraint` those of an intermediate value, and `logical_axis_rules` sets
the rules.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from graphcore.authors import axis_rules

from .metadata import Partitioned, boxed, constrained

__all__ = [
    "LogicalRules",
    "LogicallyPartitioned",
    "RulesFallback",
    "get_logical_axis_rules",
    "logical_axis_rules",
    "logical_to_mesh",
    "logical_to_mesh_axes",
    "logical_to_mesh_sharding",
    "set_logical_axis_rules",
    "with_logical_constraint",
    "with_logical_partitioning",
]

LogicalRules = Sequence[tuple[str, Any]]
"""Pairs of a logical name and a mesh axis, several of them, or None, by priority.

Example:
    >>> import linen_lift as nn
    >>> rules: nn.LogicalRules = [('batch', ('data', 'fsdp')), ('embed', None)]
    >>> tuple(nn.logical_to_mesh_axes(('batch', 'embed'), rules))
    (('data', 'fsdp'), None)
"""


class RulesFallback(enum.Enum):
    """What becomes of an axis that no rule gives a place.

    Example:
        >>> from linen_lift.spmd import RulesFallback
        >>> RulesFallback('raise_error').name
        'RAISE_ERROR'
    """

    AXIS_IS_UNSHARDED = "axis_is_unsharded"
    RAISE_ERROR = "raise_error"
    NO_CONSTRAINT = "no_constraint"


# --- rules --------------------------------------------------------------------------


def get_logical_axis_rules() -> LogicalRules:
    """The rules in force in this thread.

    Returns:
        The rules; empty if none were set.

    Example:
        >>> import linen_lift as nn
        >>> with nn.logical_axis_rules([('batch', 'data')]):
        ...     nn.get_logical_axis_rules()
        [('batch', 'data')]
    """
    return axis_rules.get()


def set_logical_axis_rules(rules: LogicalRules) -> None:
    """Sets the rules of this thread, until they are set again.

    Args:
        rules: pairs of a logical name and a mesh axis, several of them, or None.

    Example:
        >>> import linen_lift as nn
        >>> nn.set_logical_axis_rules([('batch', 'data')])
        >>> nn.set_logical_axis_rules(())
    """
    axis_rules.set(rules)


@contextlib.contextmanager
def logical_axis_rules(rules: LogicalRules) -> Iterator[None]:
    """Sets the rules of this thread for the time of a `with` block.

    They are in force for live objects of nnx-transforms as well.

    Args:
        rules: pairs of a logical name and a mesh axis, several of them, or None.

    Example:
        >>> import linen_lift as nn
        >>> with nn.logical_axis_rules([('batch', 'data')]):
        ...     spec = nn.logical_to_mesh_axes(('batch', 'features'))
        >>> tuple(spec)
        ('data', None)
    """
    token = axis_rules.set(rules)
    try:
        yield
    finally:
        axis_rules.reset(token)


# --- from logical names to mesh axes ------------------------------------------------


def _mesh_axes(place: Any) -> set[Any]:
    """The axes of a mesh that an entry of a partition spec takes."""
    given = place if isinstance(place, tuple | list) else (place,)
    return {axis for axis in given if isinstance(axis, str)}


def _placed(
    names: Sequence[Any], rules: LogicalRules | None
) -> tuple[PartitionSpec, list[str]]:
    """Where the dimensions lie, and the names of those that no rule gives a place."""
    rules = axis_rules.get() if rules is None else rules
    if not isinstance(rules, tuple | list):
        raise ValueError(
            "Rules are a list or tuple of pairs (logical name, mesh axes); found "
            f"{rules!r}."
        )
    logical = [name for name in names if isinstance(name, str)]
    if repeated := sorted({name for name in logical if logical.count(name) > 1}):
        raise ValueError(
            f"A logical name can stand for one dimension of an array only; found "
            f"{', '.join(repeated)} more than once in {tuple(names)}."
        )
    # None and UNCONSTRAINED are no names: they stand for themselves.
    places = {i: name for i, name in enumerate(names) if not isinstance(name, str)}
    taken = set().union(*map(_mesh_axes, places.values()))
    for name, place in rules:
        if name not in logical:
            continue
        dimension = list(names).index(name)
        if dimension not in places and not taken & _mesh_axes(place):
            places[dimension] = place
            taken |= _mesh_axes(place)
    spec = PartitionSpec(*map(places.get, range(len(names))))
    return spec, [name for i, name in enumerate(names) if i not in places]


def logical_to_mesh_axes(
    array_dim_names: Sequence[Any] | None, rules: LogicalRules | None = None
) -> PartitionSpec | None:
    """Where the dimensions of an array lie.

    Rules are tried in order. One is used if its name is that of a dimension that has no
    place yet, and no other dimension of the array lies on its mesh axes. A later rule
    for the same name is therefore a second choice.

    Args:
        array_dim_names: a logical name per dimension; None for one that is not split.
            Or None in place of all.
        rules: the rules; those in force if they are not given.

    Returns:
        The partition spec, with None for dimensions without a place; None if there are
        no names.

    Raises:
        ValueError: if a name is there twice, or the rules are no list or tuple.

    Example:
        >>> import linen_lift as nn
        >>> rules = [('batch', 'x'), ('features', 'x'), ('heads', 'y'), ('batch', 'z')]
        >>> names = ('batch', 'length', 'heads', 'features')
        >>> tuple(nn.logical_to_mesh_axes(names, rules))
        ('x', None, 'y', None)
    """
    return None if array_dim_names is None else _placed(array_dim_names, rules)[0]


def _is_spec(x: Any) -> bool:
    return isinstance(x, PartitionSpec)


def logical_to_mesh(tree: Any, rules: LogicalRules | None = None) -> Any:
    """Where all arrays of a tree lie, see `logical_to_mesh_axes`.

    Args:
        tree: a pytree of partition specs of logical names, as `get_partition_spec`
            makes it.
        rules: the rules; those in force if they are not given.

    Returns:
        The tree with partition specs of mesh axes.

    Example:
        >>> import linen_lift as nn
        >>> spec = nn.LogicallyPartitioned(1.0, ('heads',)).get_partition_spec()
        >>> tuple(nn.logical_to_mesh({'w': spec}, [('heads', 'model')])['w'])
        ('model',)
    """
    return jax.tree.map(
        lambda spec: logical_to_mesh_axes(spec, rules), tree, is_leaf=_is_spec
    )


def logical_to_mesh_sharding(
    tree: Any, mesh: Mesh, rules: LogicalRules | None = None
) -> Any:
    """The sharding of all arrays of a tree over a mesh.

    Args:
        tree: a pytree of partition specs of logical names, as `get_partition_spec`
            makes it.
        mesh: the mesh that the rules name axes of.
        rules: the rules; those in force if they are not given.

    Returns:
        The tree with a `jax.sharding.NamedSharding` in the place of each spec.

    Example:
        >>> import linen_lift as nn, jax, numpy as np
        >>> mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ('model',))
        >>> spec = jax.sharding.PartitionSpec('heads')
        >>> sharding = nn.logical_to_mesh_sharding(spec, mesh, [('heads', 'model')])
        >>> tuple(sharding.spec)
        ('model',)
    """
    return jax.tree.map(
        lambda spec: NamedSharding(mesh, spec),
        logical_to_mesh(tree, rules),
        is_leaf=_is_spec,
    )


# --- constraints and boxes ----------------------------------------------------------


def is_logical(x: Any) -> bool:
    """Whether this is the names of one array, rather than a tree of them."""
    return x is None or (
        isinstance(x, tuple | PartitionSpec)
        and all(
            name is None or isinstance(name, str) or name is PartitionSpec.UNCONSTRAINED
            for name in x
        )
    )


def with_logical_constraint(
    x: Any,
    logical_axis_resources: Any,
    rules: LogicalRules | None = None,
    mesh: Mesh | None = None,
    fallback: RulesFallback = RulesFallback.AXIS_IS_UNSHARDED,
) -> Any:
    """Lays arrays out as rules say for the logical names of their axes.

    Without rules, or without a mesh, this does nothing, so that the same model runs on
    one device.

    Args:
        x: a pytree of arrays.
        logical_axis_resources: for each array a tuple with a logical name per axis, or
            None in place of a name, of all names of an array, or of everything.
        rules: the rules; those in force if they are not given.
        mesh: the mesh; the one of `jax.set_mesh` if it is not given.
        fallback: what becomes of an axis that no rule gives a place: it is not split,
            it is an error, or the array is left as it is.

    Returns:
        The arrays, see `jax.lax.with_sharding_constraint`.

    Raises:
        ValueError: if no rule gives an axis a place and `fallback` says so.

    Example:
        >>> import linen_lift as nn, jax, jax.numpy as jnp, numpy as np
        >>> mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ('data',))
        >>> rules, names = [('batch', 'data')], ('batch', 'features')
        >>> x = nn.with_logical_constraint(jnp.ones((2, 3)), names, rules, mesh)
        >>> tuple(x.sharding.spec)[0]
        'data'
    """
    rules = axis_rules.get() if rules is None else rules
    if not rules:
        return x

    def constrain(names: Any, value: Any) -> Any:
        if names is None:
            return value
        spec, unplaced = _placed(names, rules)
        if unplaced and fallback is RulesFallback.RAISE_ERROR:
            raise ValueError(
                f"No rule gives {', '.join(unplaced)} of the names {tuple(names)} a "
                f"place; found the rules {tuple(rules)}."
            )
        if unplaced and fallback is RulesFallback.NO_CONSTRAINT:
            return value
        return constrained(value, spec, mesh)

    return jax.tree.map(constrain, logical_axis_resources, x, is_leaf=is_logical)


class LogicallyPartitioned(Partitioned):
    """A value with a logical name for each of its dimensions.

    Args:
        value: an array.
        names: one entry per dimension: a logical name, or None for a dimension that is
            not split.
        mesh: the value is laid out over it whenever it is taken out of the box; the
            mesh of `jax.set_mesh` if it is not given.
        rules: the rules for that; those in force if they are not given.

    Example:
        >>> import linen_lift as nn, jax.numpy as jnp
        >>> box = nn.LogicallyPartitioned(jnp.ones((4, 2)), ('embed', None))
        >>> tuple(box.get_partition_spec())
        ('embed', None)
    """

    rules: LogicalRules | None = dataclasses.field(
        default=None, metadata={"static": True}
    )

    def unbox(self, apply_constraint: bool = True) -> Any:
        """The value, laid out as the rules say where there is a mesh.

        Args:
            apply_constraint: whether to lay it out.
        """
        rules = get_logical_axis_rules() if self.rules is None else self.rules
        named = self.names is not None
        return super().unbox(apply_constraint and named and bool(rules))

    def _mesh_spec(self) -> PartitionSpec:
        return logical_to_mesh_axes(self.names, self.rules) or PartitionSpec()


def with_logical_partitioning(
    fn: Callable[..., Any],
    names: tuple[Any, ...],
    mesh: Mesh | None = None,
    rules: LogicalRules | None = None,
) -> Callable[..., LogicallyPartitioned]:
    """Makes an initializer put its result into a `LogicallyPartitioned` box.

    Args:
        fn: an initializer.
        names: a logical name per dimension of what it makes.
        mesh: see `LogicallyPartitioned`.
        rules: see `LogicallyPartitioned`.

    Returns:
        An initializer with the same arguments.

    Example:
        >>> import linen_lift as nn, jax
        >>> init = nn.with_logical_partitioning(nn.initializers.ones, ('embed', None))
        >>> init(jax.random.key(0), (4, 2)).names
        ('embed', None)
    """
    if rules is not None:  # as metadata of a pytree they are hashed
        rules = tuple((name, place) for name, place in rules)
    return boxed(LogicallyPartitioned, fn, names, mesh, rules)
