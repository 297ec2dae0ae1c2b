"""Equinox modules: their arrays are traced, and the rest of them is static."""

from __future__ import annotations

import equinox as eqx

from graphcore.boundary.divided import register_filtered_type

register_filtered_type(eqx.Module)
