"""Layers: enough to write real models."""

from nnx_transforms.layers.linear import Conv, Embed, Linear
from nnx_transforms.layers.normalization import BatchNorm, LayerNorm
from nnx_transforms.layers.sequential import Sequential
from nnx_transforms.layers.stochastic import Dropout

__all__ = [
    "BatchNorm",
    "Conv",
    "Dropout",
    "Embed",
    "LayerNorm",
    "Linear",
    "Sequential",
]
