"""Transformations with the arguments of an earlier generation.

`vmap` and `scan` take the axes of all objects as `state_axes` and split random streams
themselves. The others are the same as in `nnx_transforms`.
"""

from nnx_transforms.autodiff import grad, value_and_grad
from nnx_transforms.compilation import jit
from nnx_transforms.constructors import Remat, Scan, Vmap
from nnx_transforms.rematerialization import remat
from nnx_transforms.state_axes import scan, vmap

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
