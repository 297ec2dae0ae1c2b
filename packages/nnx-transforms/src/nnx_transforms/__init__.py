# ruff: noqa: F403, F405
"""JAX transformations with reference semantics.

Functions take and mutate live objects, and the caller sees the mutation. The names of
`graphcore` are exported here as well, so that one import is enough.
"""

import importlib
import inspect
import sys
import typing

from jax.nn.initializers import Initializer as Initializer

import graphcore as _graphcore

if typing.TYPE_CHECKING:
    from nnx_transforms import experimental as experimental
    from nnx_transforms import saving as saving

    # Of two things by one name, mypy takes the first.
    from nnx_transforms.modules.containers import *
    from nnx_transforms.states.unpacked import *
    from nnx_transforms.transforms.graph_mode import *

from graphcore import *  # type: ignore[assignment]
from graphcore.authors import leave_out_of_locations as _leave_out
from nnx_transforms import filterlib as filterlib
from nnx_transforms import graph as graph
from nnx_transforms import layers as layers
from nnx_transforms import statelib as statelib
from nnx_transforms import traversals as traversals
from nnx_transforms.arguments import *
from nnx_transforms.graph import iter_children as iter_children
from nnx_transforms.graph import recursive_map as recursive_map
from nnx_transforms.layers import *
from nnx_transforms.legacy.constructors import *
from nnx_transforms.modules.attributes import *
from nnx_transforms.modules.capturing import capture as capture
from nnx_transforms.modules.containers import *
from nnx_transforms.modules.module import *
from nnx_transforms.modules.summary import *
from nnx_transforms.modules.views import *
from nnx_transforms.prefixes import *
from nnx_transforms.randomness.random_splits import *
from nnx_transforms.randomness.rngs import *
from nnx_transforms.sharding.abstract_models import *
from nnx_transforms.sharding.eager_sharding import *
from nnx_transforms.sharding.placement_table import *
from nnx_transforms.sharding.sharded import *
from nnx_transforms.sharding.shardings import *
from nnx_transforms.statelib import *
from nnx_transforms.states.unpacked import *
from nnx_transforms.states.variable_tools import *
from nnx_transforms.training import ema as ema
from nnx_transforms.training import metrics as metrics
from nnx_transforms.training import optimizer as optimizer
from nnx_transforms.training.ema import EMA as EMA
from nnx_transforms.training.metrics import Metric as Metric
from nnx_transforms.training.metrics import MetricState as MetricState
from nnx_transforms.training.metrics import MultiMetric as MultiMetric
from nnx_transforms.training.optimizer import *
from nnx_transforms.training.train_state import TrainState as TrainState
from nnx_transforms.transforms.checkify import checkify as checkify
from nnx_transforms.transforms.checkpoint import *
from nnx_transforms.transforms.closure_convert import *
from nnx_transforms.transforms.compiled.ahead_of_time import *
from nnx_transforms.transforms.cond import *
from nnx_transforms.transforms.custom_gradient import *
from nnx_transforms.transforms.custom_jvp import custom_jvp as custom_jvp
from nnx_transforms.transforms.custom_vjp import custom_vjp as custom_vjp
from nnx_transforms.transforms.eval_shape import *
from nnx_transforms.transforms.grad import *
from nnx_transforms.transforms.graph_mode import *
from nnx_transforms.transforms.jacobian import *
from nnx_transforms.transforms.jit import *
from nnx_transforms.transforms.jvp import jvp as jvp
from nnx_transforms.transforms.jvp import linearize as linearize
from nnx_transforms.transforms.linear_call import linear_call as linear_call
from nnx_transforms.transforms.map import map as map  # noqa: A004  JAX's own name
from nnx_transforms.transforms.mapped.metadata_axes import *
from nnx_transforms.transforms.partials import *
from nnx_transforms.transforms.pmap import pmap as pmap
from nnx_transforms.transforms.scan import *
from nnx_transforms.transforms.shard_map import shard_map as shard_map
from nnx_transforms.transforms.split_inputs import *
from nnx_transforms.transforms.transform_metadata import *
from nnx_transforms.transforms.vjp import vjp as vjp
from nnx_transforms.transforms.vmap import *
from nnx_transforms.transforms.while_loop import *

_graphcore.register_adapter("flax.nnx", "nnx_transforms.adapters.flax")
# Layers and optimizers are shown: their lines tell more than that of the call.
_leave_out(__file__, "legacy/", "modules/", "randomness/", "transforms/")

__version__ = "1.0.0"

A = typing.TypeVar("A")
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

if not typing.TYPE_CHECKING:  # Type checkers follow the imports.
    __all__ = ["filterlib", "graph", "metrics", "statelib", "traversals"]
    __all__ += ["initializers"]
    # Not for `import *`: `map` would hide Python's own.
    __all__ += [
        name
        for name, value in vars().items()
        if not (name.startswith("_") or inspect.ismodule(value) or name == "map")
    ]
    # Modules of Flax by name, `nnx.graphlib.split`: what they hold is all here.
    graphlib = rnglib = variablelib = spmd = helpers = compat = sys.modules[__name__]
    nn = layers

    # Imported when they are asked for: they need more, or few do.
    _ON_DEMAND = ("bridge", "experimental", "saving")

    def __getattr__(name):
        if name not in _ON_DEMAND:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return importlib.import_module(f"{__name__}.{name}")

    def __dir__():
        return [*globals(), *_ON_DEMAND]
