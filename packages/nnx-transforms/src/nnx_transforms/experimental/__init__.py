"""Transformations with the arguments of an earlier generation.

`vmap` and `scan` take the axes of all objects as `state_axes` and split random streams
themselves. The others are the same as in `nnx_transforms`.
"""

from nnx_transforms.legacy.constructors import Remat, Scan, Vmap
from nnx_transforms.legacy.state_axes import scan, vmap
from nnx_transforms.transforms.checkpoint import remat
from nnx_transforms.transforms.grad import grad, value_and_grad
from nnx_transforms.transforms.jit import jit

__all__ = [
    "Remat",
    "Scan",
    "Vmap",
    "grad",
    "jit",
    "remat",
    "scan",
    "value_and_grad",
    "vmap",
]
