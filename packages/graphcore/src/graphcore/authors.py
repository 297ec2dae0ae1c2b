"""What graphcore offers to those who write transformations."""

from graphcore._jax import OUTSIDE, current_trace
from graphcore.boundary.body import Body, Structure
from graphcore.boundary.callees import Callee, lifted, mark_lifted
from graphcore.boundary.captures import captured_objects
from graphcore.boundary.change import Change, Left, Written
from graphcore.boundary.divided import Divided
from graphcore.boundary.entry import Bodies, Entry, enter
from graphcore.boundary.inside import Inside
from graphcore.boundary.places import (
    Joining,
    Places,
    has_objects,
    is_object,
    key_path,
    take_objects,
)
from graphcore.boundary.settings import (
    UNSET,
    check_mappings,
    is_mapping,
    map_settings,
    plain_settings,
    prefix_leaves,
    setting_of,
    settings_of_leaves,
)
from graphcore.errors import path_text
from graphcore.graphdef.definition import definition_paths
from graphcore.named_axes import psum_cotangents
from graphcore.state.filters import looks_at_no_value
from graphcore.state.foreign_states import given_state, taken_state
from graphcore.state.state import raw_value_of
from graphcore.variables.impl import is_variable_type, variable_impl

__all__ = [
    "OUTSIDE",
    "UNSET",
    "Bodies",
    "Body",
    "Callee",
    "Change",
    "Divided",
    "Entry",
    "Inside",
    "Joining",
    "Left",
    "Places",
    "Structure",
    "Written",
    "captured_objects",
    "check_mappings",
    "current_trace",
    "definition_paths",
    "enter",
    "given_state",
    "has_objects",
    "is_mapping",
    "is_object",
    "is_variable_type",
    "key_path",
    "lifted",
    "looks_at_no_value",
    "map_settings",
    "mark_lifted",
    "path_text",
    "plain_settings",
    "prefix_leaves",
    "psum_cotangents",
    "raw_value_of",
    "setting_of",
    "settings_of_leaves",
    "take_objects",
    "taken_state",
    "variable_impl",
]
