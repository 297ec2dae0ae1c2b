"""Flax NNX: settings of its transforms, and its random state.

What makes its modules and variables known is graphcore's adapter.
"""

from __future__ import annotations

from typing import Any

from flax import nnx
from flax.core.spmd import get_logical_axis_rules

from graphcore import register_counterparts
from nnx_transforms.adapters.settings import add_setting_type, by_path, own_settings
from nnx_transforms.modules.libraries import LIBRARIES, Library
from nnx_transforms.prefixes import Carry, DiffState, StateAxes, StateSharding
from nnx_transforms.randomness import rngs
from nnx_transforms.randomness.random_splits import add_stream_type
from nnx_transforms.sharding.shardings import add_axis_rules
from nnx_transforms.training.optimizer import OptState

for name in ("RngState", "RngKey", "RngCount"):
    register_counterparts(getattr(nnx, name), getattr(rngs, name))
register_counterparts(nnx.training.optimizer.OptState, OptState)
add_stream_type(nnx.RngStream)
add_axis_rules(get_logical_axis_rules)
# Before Flax 0.12.6, `sow` only sets attributes.
attribute = nnx.data if hasattr(nnx, "capture") else None
# Flax 0.11 has neither.
containers = tuple(getattr(nnx, x) for x in ("List", "Dict") if hasattr(nnx, x))
LIBRARIES.append(Library(nnx.Module, nnx.Variable, nnx.Rngs, containers, attribute))


def _axes(theirs: Any) -> StateAxes:
    axes = map(own_settings, theirs.axes)
    return StateAxes(list(zip(theirs.filters, axes, strict=True)))


add_setting_type(nnx.Carry, lambda _: Carry)
add_setting_type(nnx.StateAxes, _axes)
add_setting_type(
    nnx.StateSharding,
    lambda x: StateSharding(list(zip(x.filters, x.shardings, strict=True))),
)
add_setting_type(nnx.DiffState, lambda x: DiffState(x.argnum, x.filter))


def _prefix(theirs: Any) -> Any:
    found = theirs.state  # for a variable, its setting itself
    return by_path(nnx.to_flat_state(found)) if isinstance(found, nnx.State) else found


# What `flax.nnx.prefix` returns in graph mode; older versions of Flax lack it.
_Tree = getattr(nnx.extract, "TreeState", None)
if _Tree is not None:
    add_setting_type(_Tree, _prefix)
