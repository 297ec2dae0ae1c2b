"""Modules of another library whose attributes are shardings or specs, one an array."""

from __future__ import annotations

from typing import Any

import jax

from graphcore.authors import Divided

_SHARDINGS = (jax.sharding.Sharding, jax.sharding.PartitionSpec)


def shardings_apart(prefix: Any) -> Any:
    """A tree prefix whose modules of shardings are divided, as modules of arrays are.

    Args:
        prefix: A tree prefix without settings by filter.

    Returns:
        One that fits what enters and leaves a function whose modules are divided.
    """
    divided, _ = Divided.within(prefix)
    return Divided.map(lambda part: part.of_settings(_SHARDINGS), divided)


def shardings_alone(prefix: Any) -> Any:
    """A tree prefix with None for all but the shardings in modules of shardings."""
    return Divided.map(Divided.bare, shardings_apart(prefix))
