"""JAX transformations with reference semantics.

Functions take and mutate live objects, and the caller sees the mutation. The names of
`graphcore` are exported here as well, so that one import is enough.
"""

from jax.nn import initializers as initializers

import graphcore as _graphcore
from graphcore import *  # noqa: F403
from graphcore.authors import add_adapter as _add_adapter
from nnx_transforms.arguments import resolve_kwargs
from nnx_transforms.layers import (
    BatchNorm,
    Conv,
    Dropout,
    Embed,
    LayerNorm,
    Linear,
    Sequential,
)
from nnx_transforms.legacy.constructors import Grad, Jit, Pmap, Remat, Scan, Vmap
from nnx_transforms.metadata_axes import PARTITION_NAME
from nnx_transforms.module import Module
from nnx_transforms.optimizer import Optimizer, OptState
from nnx_transforms.prefixes import Carry, DiffState, StateAxes, StateSharding
from nnx_transforms.random_splits import (
    ForkStates,
    fork,
    reseed,
    restore_rngs,
    split_rngs,
)
from nnx_transforms.rngs import RngCount, RngKey, Rngs, RngState, RngStream
from nnx_transforms.shardings import get_named_sharding, get_partition_spec
from nnx_transforms.transforms.ahead_of_time import Compiled, Lowered, Traced
from nnx_transforms.transforms.checkify import checkify
from nnx_transforms.transforms.checkpoint import checkpoint, remat
from nnx_transforms.transforms.closure_convert import closure_convert
from nnx_transforms.transforms.cond import cond, switch
from nnx_transforms.transforms.custom_gradient import custom_gradient
from nnx_transforms.transforms.custom_jvp import custom_jvp
from nnx_transforms.transforms.custom_vjp import custom_vjp
from nnx_transforms.transforms.eval_shape import eval_shape
from nnx_transforms.transforms.grad import grad, value_and_grad
from nnx_transforms.transforms.jacobian import hessian, jacfwd, jacrev
from nnx_transforms.transforms.jit import Jitted, explain_recompile, jit
from nnx_transforms.transforms.jvp import jvp, linearize
from nnx_transforms.transforms.linear_call import linear_call
from nnx_transforms.transforms.map import map as map  # noqa: A004  JAX's own name
from nnx_transforms.transforms.pmap import pmap
from nnx_transforms.transforms.scan import scan
from nnx_transforms.transforms.shard_map import shard_map
from nnx_transforms.transforms.split_inputs import merge_inputs, split_inputs
from nnx_transforms.transforms.vjp import vjp
from nnx_transforms.transforms.vmap import vmap
from nnx_transforms.transforms.while_loop import fori_loop, while_loop

_add_adapter("flax.nnx", "nnx_transforms.adapters.flax")

__version__ = "1.0.0"

__all__ = [
    *_graphcore.__all__,
    # Modules and random streams
    "Module",
    "Rngs",
    "RngStream",
    "RngState",
    "RngKey",
    "RngCount",
    "split_rngs",
    "restore_rngs",
    "reseed",
    "fork",
    "ForkStates",
    # Layers and training
    "Linear",
    "Conv",
    "Embed",
    "BatchNorm",
    "LayerNorm",
    "Dropout",
    "Sequential",
    "initializers",
    "Optimizer",
    "OptState",
    # Prefixes and metadata
    "Carry",
    "DiffState",
    "StateAxes",
    "StateSharding",
    "PARTITION_NAME",
    "get_named_sharding",
    "get_partition_spec",
    # Compilation
    "jit",
    "Jitted",
    "explain_recompile",
    "Traced",
    "Lowered",
    "Compiled",
    "eval_shape",
    "checkify",
    # Derivatives
    "grad",
    "value_and_grad",
    "vjp",
    "jvp",
    "linearize",
    "jacfwd",
    "jacrev",
    "hessian",
    "custom_vjp",
    "custom_jvp",
    "custom_gradient",
    "closure_convert",
    "linear_call",
    "remat",
    "checkpoint",
    # Mapping and loops
    "vmap",
    "pmap",
    "shard_map",
    "scan",
    "cond",
    "switch",
    "while_loop",
    "fori_loop",
    # Modules with transformed methods
    "Remat",
    "Scan",
    "Vmap",
    "Jit",
    "Grad",
    "Pmap",
    # Lifting by hand
    "split_inputs",
    "merge_inputs",
    "resolve_kwargs",
]
