# ruff: noqa: F403
"""Layers to write real models with."""

import inspect
import typing

from nnx_transforms.layers import initializers as initializers
from nnx_transforms.layers.activations import *
from nnx_transforms.layers.attention import *
from nnx_transforms.layers.attention_functions import *
from nnx_transforms.layers.cells import *
from nnx_transforms.layers.convolution import *
from nnx_transforms.layers.dtypes import *
from nnx_transforms.layers.initializers import ones_init as ones_init
from nnx_transforms.layers.initializers import zeros_init as zeros_init
from nnx_transforms.layers.linear import *
from nnx_transforms.layers.lora import *
from nnx_transforms.layers.masks import *
from nnx_transforms.layers.normalization import *
from nnx_transforms.layers.options import *
from nnx_transforms.layers.pooling import *
from nnx_transforms.layers.recurrent import *
from nnx_transforms.layers.rotary import *
from nnx_transforms.layers.sequential import *
from nnx_transforms.layers.stochastic import *
from nnx_transforms.layers.weight_normalization import *

if not typing.TYPE_CHECKING:  # Type checkers follow the imports.
    __all__ = ["initializers"]
    __all__ += [
        name
        for name, value in vars().items()
        if not (name.startswith("_") or inspect.ismodule(value))
    ]
