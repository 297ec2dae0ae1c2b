"""Scope lifting: JAX transforms over functional modules.

A `Module` is a dataclass whose variables live in named collections (`params`,
`batch_stats`, ...) outside of it and whose randomness comes from named streams. `init`
creates the variables and `apply` runs the module with them; both are pure. *Lifted*
transforms (`vmap`, `scan`, `remat`, `jit`, `vjp`, ...) apply JAX's transforms inside of
a module, and say for each collection and stream how it goes through.

The same for plain functions of a scope, without modules, is in `linen_lift.scope` and
`linen_lift.lift`.
"""

import inspect

from jax.nn.initializers import ones, zeros

from . import errors, layers, lift, metadata, partitioning, scope, spmd
from .adapters.flax import FlaxModule
from .errors import LinenLiftError
from .filters import DenyList
from .frozen_dict import FrozenDict, copy, freeze, pop, pretty_repr, unfreeze
from .layers import *  # noqa: F403
from .lift.axes import In, Out, broadcast
from .metadata import (
    PARTITION_NAME,
    AxisMetadata,
    Partitioned,
    get_partition_spec,
    get_sharding,
    map_axis_meta,
    replace_boxed,
    unbox,
    with_partitioning,
)
from .module.base import Module
from .module.context import (
    InterceptorContext,
    disable_named_call,
    enable_named_call,
    intercept_methods,
    override_named_call,
)
from .module.decorators import compact, compact_name_scope, nowrap
from .module.functional import (
    apply,
    init,
    init_with_output,
    merge_param,
    share_scope,
    tabulate,
)
from .scope import Scope, Variable
from .spmd import (
    LogicallyPartitioned,
    get_logical_axis_rules,
    logical_axis_rules,
    logical_to_mesh,
    logical_to_mesh_axes,
    logical_to_mesh_sharding,
    set_logical_axis_rules,
    with_logical_constraint,
    with_logical_partitioning,
)
from .transforms.autodiff import custom_vjp, grad, jvp, value_and_grad, vjp
from .transforms.batching import scan, vmap
from .transforms.compilation import checkpoint, jit, named_call, remat, remat_scan
from .transforms.control_flow import cond, switch, while_loop
from .transforms.variables import add_metadata_axis, fold_rngs, map_variables

# Code for Flax Linen also writes `nn.linear.default_kernel_init`, `nn.meta.unbox` and
# the like: its modules of layers have these names.
attention, dtypes, linear = layers.attention, layers.dtypes, layers.linear
initializers, normalization = layers.initializers, layers.normalization
pooling, recurrent = layers.pooling, layers.recurrent
meta = metadata

__all__ = [
    "PARTITION_NAME",
    "AxisMetadata",
    "DenyList",
    "FlaxModule",
    "FrozenDict",
    "In",
    "InterceptorContext",
    "LinenLiftError",
    "LogicallyPartitioned",
    "Module",
    "Out",
    "Partitioned",
    "Scope",
    "Variable",
    "add_metadata_axis",
    "apply",
    "broadcast",
    "checkpoint",
    "compact",
    "compact_name_scope",
    "cond",
    "copy",
    "custom_vjp",
    "disable_named_call",
    "enable_named_call",
    "errors",
    "fold_rngs",
    "freeze",
    "get_logical_axis_rules",
    "get_partition_spec",
    "get_sharding",
    "grad",
    "init",
    "init_with_output",
    "initializers",
    "intercept_methods",
    "jit",
    "jvp",
    "lift",
    "logical_axis_rules",
    "logical_to_mesh",
    "logical_to_mesh_axes",
    "logical_to_mesh_sharding",
    "map_axis_meta",
    "map_variables",
    "merge_param",
    "metadata",
    "named_call",
    "nowrap",
    "ones",
    "override_named_call",
    "partitioning",
    "pop",
    "pretty_repr",
    "remat",
    "remat_scan",
    "replace_boxed",
    "scan",
    "scope",
    "set_logical_axis_rules",
    "share_scope",
    "spmd",
    "switch",
    "tabulate",
    "unbox",
    "unfreeze",
    "value_and_grad",
    "vjp",
    "vmap",
    "while_loop",
    "with_logical_constraint",
    "with_logical_partitioning",
    "with_partitioning",
    "zeros",
]
# What the layers are is listed where they are defined.
__all__ += [
    name
    for name, value in vars(layers).items()
    if not (name.startswith("_") or inspect.ismodule(value))
]
