"""Lifted transforms of modules."""

from .batching import scan, vmap
from .variables import map_variables

# What layers are made of.
__all__ = ["map_variables", "scan", "vmap"]
