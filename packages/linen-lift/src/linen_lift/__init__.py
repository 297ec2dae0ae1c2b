# ruff: noqa: F403
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
import typing

from jax.nn.initializers import ones as ones
from jax.nn.initializers import zeros as zeros

from graphcore.authors import leave_out_of_locations as _leave_out

from . import errors as errors
from . import lift as lift
from . import metadata as metadata
from . import module as module
from . import partitioning as partitioning
from . import scope as scope
from . import spmd as spmd
from . import transforms as transforms
from . import types as types
from .adapters.flax import FlaxModule as FlaxModule
from .errors import LinenLiftError as LinenLiftError
from .filters import DenyList as DenyList
from .frozen_dict import *
from .layers import *
from .layers import activations as _activations
from .layers import attention as attention
from .layers import combinators as combinators
from .layers import dtypes as dtypes
from .layers import initializers as initializers
from .layers import linear as linear
from .layers import normalization as normalization
from .layers import pooling as pooling
from .layers import recurrent as recurrent
from .layers import stochastic as stochastic
from .lift.axes import *
from .metadata import *
from .module.base import Module as Module
from .module.context import *
from .module.decorators import *
from .module.functional import *
from .scope import Scope as Scope
from .scope import Variable as Variable
from .spmd import *
from .transforms.autodiff import *
from .transforms.batching import *
from .transforms.compilation import *
from .transforms.control_flow import *
from .transforms.lift_transform import *
from .transforms.variables import *

__version__ = "1.0.0"

# Layers are shown: their lines tell more than that of the call.
_leave_out(
    __file__,
    "dataflow.py",
    "leaves.py",
    "lift/",
    "module/",
    "rng.py",
    "scope",
    "transforms/",
)

# Code for Flax Linen also writes `nn.linear.default_kernel_init`, `nn.meta.unbox` and
# the like. So the modules of layers are there, and two by other names.
activation, meta = _activations, metadata

# Names are listed where they are defined; those of modules are listed here. Type
# checkers follow the imports.
if not typing.TYPE_CHECKING:
    _modules = "errors initializers lift metadata partitioning scope spmd types"
    __all__ = [
        name
        for name, value in vars().items()
        if not (name.startswith("_") or inspect.ismodule(value))
    ]
    __all__ += _modules.split()
