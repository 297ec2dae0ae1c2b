"""Lifted transforms of scope functions.

Each takes a function whose first argument is a scope (or a pytree of scopes) and
treats its variables and random streams as arguments and results of the underlying JAX
transform. All are built on `pack`.
"""

from .autodiff import custom_vjp, grad, jvp, value_and_grad, vjp
from .axes import In, Out, broadcast
from .batching import vmap
from .compilation import checkpoint, jit, named_call, remat, remat_scan
from .control_flow import cond, switch, while_loop
from .pack import pack
from .scanning import scan
from .variables import add_metadata_axis, fold_rngs, map_variables, swap_collection

__all__ = [
    "In",
    "Out",
    "add_metadata_axis",
    "broadcast",
    "checkpoint",
    "cond",
    "custom_vjp",
    "fold_rngs",
    "grad",
    "jit",
    "jvp",
    "map_variables",
    "named_call",
    "pack",
    "remat",
    "remat_scan",
    "scan",
    "swap_collection",
    "switch",
    "value_and_grad",
    "vjp",
    "vmap",
    "while_loop",
]
