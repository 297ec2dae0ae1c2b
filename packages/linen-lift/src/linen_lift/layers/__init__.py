# ruff: noqa: F403
"""Layers to write real models with: each module lists in `__all__` what it offers."""

from . import initializers as initializers
from .activations import *
from .attention import *
from .attention_functions import *
from .cells import *
from .combinators import *
from .convolution import *
from .dtypes import *
from .initializers import ones_init as ones_init
from .initializers import zeros_init as zeros_init
from .linear import Dense as Dense
from .linear import DenseGeneral as DenseGeneral
from .linear import Einsum as Einsum
from .linear import Embed as Embed
from .masks import *
from .normalization import *
from .pooling import *
from .recurrent import *
from .stochastic import *
from .weight_normalization import *
