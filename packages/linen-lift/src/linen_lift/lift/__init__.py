# ruff: noqa: F403
"""Lifted transforms of scope functions.

Each takes a function whose first argument is a scope (or a pytree of scopes) and
treats its variables and random streams as arguments and results of the underlying JAX
transform. All are built on `pack`.
"""

import inspect
import typing

from .autodiff import *
from .axes import *
from .batching import *
from .compilation import *
from .control_flow import *
from .pack import *
from .scanning import *
from .variables import *

# Names are listed where they are defined. Type checkers follow the imports.
if not typing.TYPE_CHECKING:
    __all__ = [
        name
        for name, value in vars().items()
        if not (name.startswith("_") or inspect.ismodule(value))
    ]
