"""Logical axis names in collections of their own, next to the variables.

The older of two ways to write logical partitioning (see `linen_lift.spmd` for the
other): `param_with_axes` stores the names of a parameter's axes in the collection
`params_axes`, and `get_axis_names` makes partition specs of it.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.sharding import PartitionSpec

from .filters import CollectionFilter, in_filter, union_filters
from .lift.axes import AxisSpec, is_shared
from .lift.axes import In as ScanIn
from .lift.axes import Out as ScanOut
from .lift.statics import as_tuple
from .metadata import PARTITION_NAME, Partitioned
from .module.context import context
from .scope import Variable
from .signatures import parameters_of
from .spmd import (
    LogicalRules,
    RulesFallback,
    is_logical,
    logical_to_mesh,
    logical_to_mesh_axes,
)
from .spmd import get_logical_axis_rules as get_axis_rules
from .spmd import logical_axis_rules as axis_rules
from .spmd import set_logical_axis_rules as set_axis_rules
from .spmd import with_logical_constraint as with_sharding_constraint
from .transforms import map_variables, scan, vmap
from .transforms.compilation import remat as lifted_remat

__all__ = [
    "AxisMetadata",
    "LogicalRules",
    "PartitionedVariable",
    "RulesFallback",
    "ScanIn",
    "ScanOut",
    "axis_rules",
    "get_axis_names",
    "get_axis_rules",
    "logical_to_mesh",
    "logical_to_mesh_axes",
    "param_with_axes",
    "remat",
    "scan_with_axes",
    "set_axis_rules",
    "variable_with_axes",
    "vmap_with_axes",
    "with_sharding_constraint",
]

_SUFFIX = "_axes"


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class AxisMetadata:
    """The names of a variable's axes, in a collection such as `params_axes`.

    Args:
        names: a logical name per axis; for a pytree of arrays a tree of these.

    Example:
        >>> from linen_lift import partitioning
        >>> partitioning.AxisMetadata(('embed', 'mlp')).names
        ('embed', 'mlp')
    """

    names: Any = dataclasses.field(metadata={"static": True})


# --- variables with named axes ------------------------------------------------------


def _running(module: Any) -> Any:
    if module is not None:
        return module
    if not context.modules:
        raise ValueError(
            "No module is running. Call this inside a method of a module, or pass it "
            "as module=."
        )
    return context.modules[-1]


def _note(module: Any, collection: str, name: str, axes: Any) -> None:
    """Stores the names of a variable's axes, if there are any."""
    if axes is None:
        return

    def agree(old: Any, new: AxisMetadata) -> AxisMetadata:
        if isinstance(old, AxisMetadata) and old != new:
            raise ValueError(
                f'The axes of "{name}" in collection "{collection}" are named twice: '
                f"{old.names} and {new.names}."
            )
        return new

    module.sow(
        collection + _SUFFIX, name + _SUFFIX, AxisMetadata(axes), reduce_fn=agree
    )


def param_with_axes(
    name: str,
    init_fn: Callable[..., Any],
    *init_args: Any,
    axes: Any = None,
    module: Any = None,
    **init_kwargs: Any,
) -> Any:
    """`Module.param`, with logical names for the axes of the parameter.

    Args:
        name: the name.
        init_fn: makes the value, given a key and `init_args`.
        *init_args: for `init_fn`.
        axes: a logical name per axis, by which the value is laid out; for a pytree of
            arrays a tree of such tuples.
        module: the module; the running one if it is not given.
        **init_kwargs: for `init_fn`.

    Returns:
        The value.

    Raises:
        ValueError: if no module is running, or other names were given before.

    Example:
        >>> import linen_lift as nn, jax, jax.numpy as jnp
        >>> class Scale(nn.Module):
        ...     @nn.compact
        ...     def __call__(self, x):
        ...         return x * nn.partitioning.param_with_axes(
        ...             'scale', nn.initializers.ones, x.shape, axes=('embed',))
        >>> variables = Scale().init(jax.random.key(0), jnp.ones(2))
        >>> variables['params_axes']['scale_axes'].names
        ('embed',)
    """
    module = _running(module)
    value = module.param(name, init_fn, *init_args, **init_kwargs)
    _note(module, "params", name, axes)
    return with_sharding_constraint(value, axes)


class PartitionedVariable(Variable[Any]):
    """A `Variable` whose value is laid out by logical names, in and out.

    Args:
        scope: where it lives.
        collection: the name of its collection.
        name: its name.
        axes: see `variable_with_axes`; None for no names.
        fallback: see `with_logical_constraint`.

    Example:
        >>> import linen_lift as nn
        >>> scope = nn.scope.bind({'state': {'n': 1}}, mutable='state')
        >>> n = nn.partitioning.PartitionedVariable(scope, 'state', 'n', ())
        >>> n.value += 1
        >>> n.value
        2
    """

    __slots__ = ("axes", "fallback")

    def __init__(
        self,
        scope: Any,
        collection: str,
        name: str,
        axes: Any = None,
        fallback: RulesFallback = RulesFallback.AXIS_IS_UNSHARDED,
    ) -> None:
        super().__init__(scope, collection, name)
        self.axes = axes
        self.fallback = fallback

    def _placed(self, value: Any) -> Any:
        return with_sharding_constraint(value, self.axes, fallback=self.fallback)

    @property
    def value(self) -> Any:
        """What is stored, laid out by the names of its axes."""
        return self._placed(super().value)

    @value.setter
    def value(self, value: Any) -> None:
        Variable.__dict__["value"].__set__(self, self._placed(value))


def variable_with_axes(
    collection: str,
    name: str,
    init_fn: Callable[..., Any],
    *init_args: Any,
    axes: Any = None,
    module: Any = None,
    fallback: RulesFallback = RulesFallback.AXIS_IS_UNSHARDED,
    **init_kwargs: Any,
) -> PartitionedVariable:
    """`Module.variable`, with logical names for the axes of the variable.

    Args:
        collection: the name of the collection.
        name: the name.
        init_fn: makes the value, given `init_args`.
        *init_args: for `init_fn`.
        axes: a logical name per axis; for a pytree of arrays a tree of such tuples.
        module: the module; the running one if it is not given.
        fallback: see `with_logical_constraint`.
        **init_kwargs: for `init_fn`.

    Returns:
        The variable.

    Raises:
        ScopeVariableNotFoundError: if it is not there and cannot be made.
        ValueError: if no module is running, or other names were given before.

    Example:
        >>> import linen_lift as nn, jax, jax.numpy as jnp
        >>> class Cache(nn.Module):
        ...     @nn.compact
        ...     def __call__(self, x):
        ...         last = nn.partitioning.variable_with_axes(
        ...             'cache', 'last', lambda: x, axes=('embed',))
        ...         return last.value
        >>> variables = Cache().init(jax.random.key(0), jnp.ones(2))
        >>> variables['cache_axes']['last_axes'].names
        ('embed',)
    """
    module = _running(module)
    made = module.variable(collection, name, init_fn, *init_args, **init_kwargs)
    _note(module, collection, name, axes)
    return PartitionedVariable(made.scope, collection, name, axes, fallback)


def get_axis_names(axes_metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The partition specs of a collection's variables, as logical names.

    Args:
        axes_metadata: the collection of names, such as `variables['params_axes']`.

    Returns:
        A tree like that of the variables, with a partition spec in the place of each.

    Example:
        >>> from linen_lift import partitioning
        >>> named = partitioning.AxisMetadata(('embed', None))
        >>> axes = {'layer': {'kernel_axes': named}}
        >>> spec = partitioning.get_axis_names(axes)['layer']['kernel']
        >>> tuple(spec)
        ('embed', None)
    """
    names: dict[str, Any] = {}
    for name, entry in axes_metadata.items():
        if isinstance(entry, AxisMetadata):
            names[name.removesuffix(_SUFFIX)] = jax.tree.map(
                lambda axes: None if axes is None else PartitionSpec(*axes),
                entry.names,
                is_leaf=is_logical,
            )
        else:
            names[name] = get_axis_names(entry)
    return names


# --- lifted transforms that keep the names right ------------------------------------


def _with_axes(target: Any, axes: Mapping[Any, Any], names: Mapping[Any, Any]) -> Any:
    """Hides stacked axes from the names inside, and adds them outside."""
    for collection, name in names.items():
        fitting = (axis for cols, axis in axes.items() if in_filter(cols, collection))
        axis = next(fitting, None)
        axis, stored = getattr(axis, "axis", axis), collection + _SUFFIX
        if not is_shared(axis):
            place = axis, {PARTITION_NAME: name}
            target = map_variables(
                target,
                stored,
                functools.partial(_renamed, Partitioned.remove_axis, place),
                functools.partial(_renamed, Partitioned.add_axis, place),
                mutable=True,
            )
    return target


def _renamed(change: Callable[..., Partitioned], place: Any, tree: Any) -> Any:
    def named(axes: Any) -> Any:
        if axes is None:
            return None
        return change(Partitioned(None, tuple(axes)), *place).names

    def leaf(x: Any) -> Any:
        if not isinstance(x, AxisMetadata):
            return x
        return AxisMetadata(jax.tree.map(named, x.names, is_leaf=is_logical))

    return jax.tree.map(leaf, tree, is_leaf=lambda x: isinstance(x, AxisMetadata))


def scan_with_axes(
    target: Any,
    variable_axes: Mapping[CollectionFilter, AxisSpec] = {},
    variable_broadcast: CollectionFilter = False,
    variable_carry: CollectionFilter = False,
    *args: Any,
    axis_name: str = "layers",
    axes_collections: tuple[str, ...] = ("params",),
    **options: Any,
) -> Any:
    """`scan`, which adds the name of the stacked axis to those of variables.

    Args:
        target: see `scan`.
        variable_axes: see `scan`.
        variable_broadcast: see `scan`.
        variable_carry: see `scan`.
        *args: the options of `scan` that come after these.
        axis_name: the logical name of the axis.
        axes_collections: the collections whose variables have names.
        **options: further options of `scan`.

    Returns:
        A class or function like `target`.

    Example:
        >>> import linen_lift as nn, jax, jax.numpy as jnp
        >>> class Layer(nn.Module):
        ...     @nn.compact
        ...     def __call__(self, x, _):
        ...         return x * nn.partitioning.param_with_axes(
        ...             'scale', nn.initializers.ones, x.shape, axes=('embed',)), None
        >>> Layers = nn.partitioning.scan_with_axes(
        ...     Layer, {'params': 0}, split_rngs={'params': True}, length=3)
        >>> variables = Layers().init(jax.random.key(0), jnp.ones(2), None)
        >>> variables['params_axes']['scale_axes'].names
        ('layers', 'embed')
    """
    names = tuple(collection + _SUFFIX for collection in axes_collections)
    shared = union_filters(variable_broadcast, names)
    lifted = scan(target, variable_axes, shared, variable_carry, *args, **options)
    whole = union_filters(variable_broadcast, variable_carry)
    stacked = [col for col in axes_collections if not in_filter(whole, col)]
    return _with_axes(lifted, variable_axes, dict.fromkeys(stacked, axis_name))


def vmap_with_axes(
    target: Any,
    variable_axes: Mapping[CollectionFilter, AxisSpec],
    *args: Any,
    partitioning_axis_names: Mapping[Any, str] = {},
    **options: Any,
) -> Any:
    """`vmap`, which adds the name of the stacked axis to those of variables.

    Args:
        target: see `vmap`.
        variable_axes: see `vmap`.
        *args: the options of `vmap` that come after these.
        partitioning_axis_names: the logical name of the axis, by collection.
        **options: further options of `vmap`.

    Returns:
        A class or function like `target`.

    Example:
        >>> import linen_lift as nn, jax, jax.numpy as jnp
        >>> class Layer(nn.Module):
        ...     @nn.compact
        ...     def __call__(self, x):
        ...         return x * nn.partitioning.param_with_axes(
        ...             'scale', nn.initializers.ones, x.shape, axes=('embed',))
        >>> Heads = nn.partitioning.vmap_with_axes(
        ...     Layer, {'params': 0}, {'params': True},
        ...     partitioning_axis_names={'params': 'heads'})
        >>> variables = Heads().init(jax.random.key(0), jnp.ones((3, 2)))
        >>> variables['params_axes']['scale_axes'].names
        ('heads', 'embed')
    """
    shared = {name + _SUFFIX: None for name in partitioning_axis_names}
    lifted = vmap(target, {**variable_axes, **shared}, *args, **options)
    return _with_axes(lifted, variable_axes, partitioning_axis_names)


@parameters_of(lifted_remat)
def remat(*_args: Any, **_options: Any) -> Any:
    """`remat`, which counts static arguments without the module.

    Args:
        target: see `linen_lift.remat`.
        variables: see `linen_lift.remat`.
        rngs: see `linen_lift.remat`.
        concrete: see `linen_lift.remat`.
        prevent_cse: see `linen_lift.remat`.
        static_argnums: positions of arguments that are not traced; 0 is the first one
            after the module.
        policy: see `linen_lift.remat`.
        methods: see `linen_lift.remat`.

    Returns:
        A class or function like `target`.

    Example:
        >>> import linen_lift as nn, jax, jax.numpy as jnp
        >>> class Block(nn.Module):
        ...     @nn.compact
        ...     def __call__(self, x, train):
        ...         return nn.Dense(3)(x) if train else x
        >>> model = nn.partitioning.remat(Block, static_argnums=(1,))()
        >>> model.init_with_output(jax.random.key(0), jnp.ones(2), True)[0].shape
        (3,)
    """
    given = inspect.signature(lifted_remat).bind(*_args, **_options)
    positions = as_tuple(given.arguments.get("static_argnums", ()))
    given.arguments["static_argnums"] = [i + 1 if i >= 0 else i for i in positions]
    return lifted_remat(*given.args, **given.kwargs)
