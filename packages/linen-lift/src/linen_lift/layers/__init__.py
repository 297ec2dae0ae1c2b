"""Layers to write real models with."""

from .combinators import Sequential
from .linear import Conv, Dense, Embed
from .normalization import BatchNorm, LayerNorm
from .recurrent import GRUCell, LSTMCell
from .stochastic import Dropout

__all__ = [
    "BatchNorm",
    "Conv",
    "Dense",
    "Dropout",
    "Embed",
    "GRUCell",
    "LSTMCell",
    "LayerNorm",
    "Sequential",
]
