# ruff: noqa: F401, F403
"""Modules: dataclasses whose methods own variables."""

from .base import Module as Module
from .calling import wrap_method as wrap_method_once
from .context import *
from .decorators import *
from .functional import *
