# ruff: noqa: F403
"""Lifted transforms of modules."""

from .autodiff import *
from .batching import *
from .compilation import *
from .control_flow import *
from .lift_transform import *
from .variables import *
