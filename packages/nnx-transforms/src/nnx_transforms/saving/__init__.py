"""Checkpoints of live objects; needs the extra `nnx-transforms[saving]`."""

from nnx_transforms.saving.errors import (
    DamagedCheckpointError,
    Difference,
    DifferentGraphError,
)
from nnx_transforms.saving.files import Saving, restore, save, save_async
from nnx_transforms.saving.manager import Manager
from nnx_transforms.saving.other_formats import export_safetensors, load, read_values

__all__ = [
    "DamagedCheckpointError",
    "Difference",
    "DifferentGraphError",
    "Manager",
    "Saving",
    "export_safetensors",
    "load",
    "read_values",
    "restore",
    "save",
    "save_async",
]
