"""Modules: dataclasses whose methods own variables."""

from .base import Module
from .decorators import compact, nowrap
from .functional import merge_param

# What the layers are made of.
__all__ = ["Module", "compact", "merge_param", "nowrap"]
