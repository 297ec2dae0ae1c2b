"""Lifted transforms of modules."""

from .autodiff import custom_vjp, grad, jvp, value_and_grad, vjp
from .batching import scan, vmap
from .compilation import checkpoint, jit, named_call, remat, remat_scan
from .control_flow import cond, switch, while_loop
from .variables import add_metadata_axis, fold_rngs, map_variables

__all__ = [
    "add_metadata_axis",
    "checkpoint",
    "cond",
    "custom_vjp",
    "fold_rngs",
    "grad",
    "jit",
    "jvp",
    "map_variables",
    "named_call",
    "remat",
    "remat_scan",
    "scan",
    "switch",
    "value_and_grad",
    "vjp",
    "vmap",
    "while_loop",
]
