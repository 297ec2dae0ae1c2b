"""JAX transformations with reference semantics.

Functions take and mutate live objects, and the caller sees the mutation. The names of
`graphcore` are exported here as well, so that one import is enough.
"""

import graphcore as _graphcore
from graphcore import *  # noqa: F403
from nnx_transforms.abstract import eval_shape
from nnx_transforms.ahead_of_time import Compiled, Lowered, Traced
from nnx_transforms.compilation import explain_recompile, jit
from nnx_transforms.metadata_axes import PARTITION_NAME
from nnx_transforms.module import Module
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
    # Prefixes
    "Carry",
    "DiffState",
    "StateAxes",
    "StateSharding",
    "PARTITION_NAME",
    "get_named_sharding",
    "get_partition_spec",
    # Compilation
    "jit",
    "explain_recompile",
    "Traced",
    "Lowered",
    "Compiled",
    "eval_shape",
]
