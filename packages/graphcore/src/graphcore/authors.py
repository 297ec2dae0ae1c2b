# ruff: noqa: F403
"""What graphcore offers to those who write transformations."""

import inspect
import typing

from graphcore._jax import OUTSIDE as OUTSIDE
from graphcore._jax import current_trace as current_trace
from graphcore._jax import leave_out_of_locations as leave_out_of_locations
from graphcore.axis_rules import *
from graphcore.boundary.bodies import *
from graphcore.boundary.body import *
from graphcore.boundary.callees import *
from graphcore.boundary.captures import *
from graphcore.boundary.change import *
from graphcore.boundary.entry import *
from graphcore.boundary.inside import *
from graphcore.boundary.left import *
from graphcore.boundary.places import *
from graphcore.boundary.settings import *
from graphcore.divided.divided import Divided as Divided
from graphcore.graphdef.definition import definition_paths as definition_paths
from graphcore.named_axes import *
from graphcore.state.filters import looks_at_no_value as looks_at_no_value
from graphcore.state.foreign_states import *
from graphcore.state.state import raw_value_of as raw_value_of
from graphcore.trails import path_text as path_text
from graphcore.undo import write_raw as write_raw
from graphcore.unset import UNSET as UNSET
from graphcore.variables.impl import is_variable_type as is_variable_type
from graphcore.variables.impl import variable_impl as variable_impl

# Names are listed where they are defined. Type checkers follow the imports.
if not typing.TYPE_CHECKING:
    __all__ = [
        name
        for name, value in vars().items()
        if not (name.startswith("_") or inspect.ismodule(value))
    ]
