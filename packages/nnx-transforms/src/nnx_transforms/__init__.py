"""JAX transformations with reference semantics.

Functions take and mutate live objects, and the caller sees the mutation. The names of
`graphcore` are exported here as well, so that one import is enough.
"""

import sys
from typing import TYPE_CHECKING, TypeVar

from jax.nn.initializers import Initializer

import graphcore as _graphcore
from graphcore import *  # noqa: F403
from nnx_transforms import layers as layers
from nnx_transforms.arguments import resolve_kwargs
from nnx_transforms.attributes import (
    Data,
    Pytree,
    data,
    dataclass,
    is_data,
    register_data_type,
    static,
)
from nnx_transforms.eager_sharding import use_eager_sharding, using_eager_sharding
from nnx_transforms.graph_mode import *  # noqa: F403
from nnx_transforms.lazy import lazily
from nnx_transforms.metadata_axes import PARTITION_NAME
from nnx_transforms.module import Module
from nnx_transforms.optimizer import ModelAndOptimizer, Optimizer, OptState
from nnx_transforms.prefixes import Carry, DiffState, StateAxes, StateSharding, prefix
from nnx_transforms.rngs import RngCount, RngKey, Rngs, RngState, RngStream
from nnx_transforms.shardings import (
    get_named_sharding,
    get_partition_spec,
    logical_axis_rules,
    with_partitioning,
)
from nnx_transforms.transforms.ahead_of_time import Compiled, Lowered, Traced
from nnx_transforms.transforms.checkpoint import checkpoint, remat
from nnx_transforms.transforms.eval_shape import eval_shape
from nnx_transforms.transforms.grad import grad, value_and_grad
from nnx_transforms.transforms.jit import Jitted, explain_recompile, jit
from nnx_transforms.transforms.scan import scan
from nnx_transforms.transforms.vmap import vmap

_graphcore.register_adapter("flax.nnx", "nnx_transforms.adapters.flax")

__version__ = "1.0.0"

__all__ = [
    *_graphcore.__all__,
    # Modules and random streams
    "Module",
    "Pytree",
    "data",
    "Data",
    "static",
    "is_data",
    "register_data_type",
    "dataclass",
    "Rngs",
    "RngStream",
    "RngState",
    "RngKey",
    "RngCount",
    # Training
    "Optimizer",
    "ModelAndOptimizer",
    "OptState",
    # Prefixes and metadata
    "Carry",
    "DiffState",
    "StateAxes",
    "StateSharding",
    "prefix",
    "PARTITION_NAME",
    "get_named_sharding",
    "get_partition_spec",
    "with_partitioning",
    "logical_axis_rules",
    "use_eager_sharding",
    "using_eager_sharding",
    # Transforms
    "jit",
    "Jitted",
    "explain_recompile",
    "Traced",
    "Lowered",
    "Compiled",
    "eval_shape",
    "grad",
    "value_and_grad",
    "remat",
    "checkpoint",
    "vmap",
    "scan",
    "resolve_kwargs",
    # For annotations
    "A",
    "Initializer",
]

# What is imported when it is first used.
_LAZY = {
    layers.__name__: " ".join(layers.__all__),  # type: ignore[attr-defined]
    "nnx_transforms.abstract_models": "as_abstract get_abstract_model",
    "nnx_transforms.capturing": "capture",
    "nnx_transforms.ema": "EMA",
    "nnx_transforms.filterlib": "filterlib",
    "nnx_transforms.graph": "graph iter_children recursive_map",
    "nnx_transforms.graph_mode": "set_graph_mode set_graph_updates",
    "nnx_transforms.legacy.constructors": "Grad Jit Pmap Remat Scan Vmap",
    "nnx_transforms.metrics": "Metric MetricState MultiMetric metrics",
    "nnx_transforms.partials": "cached_partial jit_partial make_jaxpr",
    "nnx_transforms.placement_table": "Placed Placement placement",
    "nnx_transforms.random_splits": "ForkStates backup_keys fork fork_rngs reseed "
    "restore_rngs split_rngs with_rngs",
    "nnx_transforms.sharded": "create_sharded shard",
    "nnx_transforms.statelib": "filter_state from_flat_state map_state merge_state "
    "replace_by_pure_dict restore_int_paths split_state statelib "
    "to_flat_state to_pure_dict",
    "nnx_transforms.train_state": "TrainState",
    "nnx_transforms.transforms.checkify": "checkify",
    "nnx_transforms.transforms.closure_convert": "closure_convert",
    "nnx_transforms.transforms.cond": "cond switch",
    "nnx_transforms.transforms.custom_gradient": "custom_gradient",
    "nnx_transforms.transforms.custom_jvp": "custom_jvp",
    "nnx_transforms.transforms.custom_vjp": "custom_vjp",
    "nnx_transforms.transforms.jacobian": "hessian jacfwd jacrev",
    "nnx_transforms.transforms.jvp": "jvp linearize",
    "nnx_transforms.transforms.linear_call": "linear_call",
    "nnx_transforms.transforms.pmap": "pmap",
    "nnx_transforms.transforms.shard_map": "shard_map",
    "nnx_transforms.transforms.split_inputs": "merge_inputs split_inputs",
    "nnx_transforms.transforms.vjp": "vjp",
    "nnx_transforms.transforms.while_loop": "fori_loop while_loop",
    "nnx_transforms.traversals": "traversals",
    "nnx_transforms.variable_tools": "as_pure register_variable_name set_metadata "
    "var_defaults vars_as with_vars",
    "nnx_transforms.views": "iter_module_children iter_modules view view_info "
    "with_attributes",
}
__all__ += [name for names in _LAZY.values() for name in names.split()]
# For those who ask by name: one would hide Python's own, the other needs linen-lift.
_LAZY |= {"nnx_transforms.transforms.map": "map", "nnx_transforms.bridge": "bridge"}
if TYPE_CHECKING:
    from nnx_transforms import filterlib as filterlib
    from nnx_transforms import graph as graph
    from nnx_transforms import metrics as metrics
    from nnx_transforms import statelib as statelib
    from nnx_transforms import traversals as traversals
    from nnx_transforms.abstract_models import *  # noqa: F403
    from nnx_transforms.capturing import *  # noqa: F403
    from nnx_transforms.ema import *  # noqa: F403
    from nnx_transforms.graph import *  # noqa: F403
    from nnx_transforms.layers import *  # noqa: F403
    from nnx_transforms.legacy.constructors import *  # noqa: F403
    from nnx_transforms.metrics import Metric as Metric
    from nnx_transforms.metrics import MetricState as MetricState
    from nnx_transforms.metrics import MultiMetric as MultiMetric
    from nnx_transforms.partials import *  # noqa: F403
    from nnx_transforms.placement_table import *  # noqa: F403
    from nnx_transforms.random_splits import *  # noqa: F403
    from nnx_transforms.sharded import *  # noqa: F403
    from nnx_transforms.statelib import *  # type: ignore[assignment]  # noqa: F403
    from nnx_transforms.train_state import *  # noqa: F403
    from nnx_transforms.transforms.checkify import *  # noqa: F403
    from nnx_transforms.transforms.closure_convert import *  # noqa: F403
    from nnx_transforms.transforms.cond import *  # noqa: F403
    from nnx_transforms.transforms.custom_gradient import *  # noqa: F403
    from nnx_transforms.transforms.custom_jvp import *  # noqa: F403
    from nnx_transforms.transforms.custom_vjp import *  # noqa: F403
    from nnx_transforms.transforms.jacobian import *  # noqa: F403
    from nnx_transforms.transforms.jvp import *  # noqa: F403
    from nnx_transforms.transforms.linear_call import *  # noqa: F403
    from nnx_transforms.transforms.map import map as map  # noqa: A004  JAX's own name
    from nnx_transforms.transforms.pmap import *  # noqa: F403
    from nnx_transforms.transforms.shard_map import *  # noqa: F403
    from nnx_transforms.transforms.split_inputs import *  # noqa: F403
    from nnx_transforms.transforms.vjp import *  # noqa: F403
    from nnx_transforms.transforms.while_loop import *  # noqa: F403
    from nnx_transforms.variable_tools import *  # noqa: F403
    from nnx_transforms.views import *  # noqa: F403
else:
    __getattr__, __dir__ = lazily(__name__, _LAZY)
    # Where Flax has its names in modules: they are all here.
    graphlib = rnglib = variablelib = spmd = helpers = compat = sys.modules[__name__]
    nn = layers

A = TypeVar("A")
"""Any type, for annotations of generic modules.

Example:
    >>> import nnx_transforms as nnx
    >>> from typing import Generic
    >>> class Box(nnx.Module, Generic[nnx.A]):
    ...     def __init__(self, content: nnx.A):
    ...         self.content = content
    >>> Box[int](3).content
    3
"""
