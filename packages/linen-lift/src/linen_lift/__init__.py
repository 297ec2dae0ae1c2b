"""Scope lifting: JAX transforms over functional modules.

A `Module` is a dataclass whose variables live in named collections (`params`,
`batch_stats`, ...) outside of it and whose randomness comes from named streams. `init`
creates the variables and `apply` runs the module with them; both are pure. *Lifted*
transforms (`vmap`, `scan`, `remat`, `jit`, `vjp`, ...) apply JAX's transforms inside of
a module, and say for each collection and stream how it goes through.

The same for plain functions of a scope, without modules, is in `linen_lift.scope` and
`linen_lift.lift`.
"""

from jax.nn import (
    celu,
    elu,
    gelu,
    glu,
    hard_sigmoid,
    hard_silu,
    hard_swish,
    hard_tanh,
    initializers,
    leaky_relu,
    log_sigmoid,
    log_softmax,
    logsumexp,
    one_hot,
    relu,
    relu6,
    selu,
    sigmoid,
    silu,
    soft_sign,
    softmax,
    softplus,
    standardize,
    swish,
)
from jax.numpy import tanh

from . import errors, lift, metadata, scope
from .errors import LinenLiftError
from .filters import DenyList
from .frozen_dict import FrozenDict, copy, freeze, pop, pretty_repr, unfreeze
from .layers import (
    BatchNorm,
    Conv,
    Dense,
    Dropout,
    Embed,
    GRUCell,
    LayerNorm,
    LSTMCell,
    Sequential,
)
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
from .module.functional import apply, init, init_with_output, merge_param, share_scope
from .scope import Scope, Variable
from .transforms.autodiff import custom_vjp, grad, jvp, value_and_grad, vjp
from .transforms.batching import scan, vmap
from .transforms.compilation import checkpoint, jit, named_call, remat, remat_scan
from .transforms.control_flow import cond, switch, while_loop
from .transforms.variables import add_metadata_axis, fold_rngs, map_variables

__all__ = [
    "PARTITION_NAME",
    "AxisMetadata",
    "BatchNorm",
    "Conv",
    "Dense",
    "DenyList",
    "Dropout",
    "Embed",
    "FrozenDict",
    "GRUCell",
    "In",
    "InterceptorContext",
    "LSTMCell",
    "LayerNorm",
    "LinenLiftError",
    "Module",
    "Out",
    "Partitioned",
    "Scope",
    "Sequential",
    "Variable",
    "add_metadata_axis",
    "apply",
    "broadcast",
    "celu",
    "checkpoint",
    "compact",
    "compact_name_scope",
    "cond",
    "copy",
    "custom_vjp",
    "disable_named_call",
    "elu",
    "enable_named_call",
    "errors",
    "fold_rngs",
    "freeze",
    "gelu",
    "get_partition_spec",
    "get_sharding",
    "glu",
    "grad",
    "hard_sigmoid",
    "hard_silu",
    "hard_swish",
    "hard_tanh",
    "init",
    "init_with_output",
    "initializers",
    "intercept_methods",
    "jit",
    "jvp",
    "leaky_relu",
    "lift",
    "log_sigmoid",
    "log_softmax",
    "logsumexp",
    "map_axis_meta",
    "map_variables",
    "merge_param",
    "metadata",
    "named_call",
    "nowrap",
    "one_hot",
    "override_named_call",
    "pop",
    "pretty_repr",
    "relu",
    "relu6",
    "remat",
    "remat_scan",
    "replace_boxed",
    "scan",
    "scope",
    "selu",
    "share_scope",
    "sigmoid",
    "silu",
    "soft_sign",
    "softmax",
    "softplus",
    "standardize",
    "swish",
    "switch",
    "tanh",
    "unbox",
    "unfreeze",
    "value_and_grad",
    "vjp",
    "vmap",
    "while_loop",
    "with_partitioning",
]
