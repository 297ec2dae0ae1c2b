"""Equinox modules: their arrays are traced, and the rest of them is static."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import FrozenInstanceError
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from graphcore.adapters.checking import checked, require
from graphcore.divided.divided import divide
from graphcore.divided.filtered_types import register_filtered_type

TESTED = ("0.13.",)
"""What the releases that this was tested with begin with."""


class _Sample(eqx.Module):  # type: ignore[misc]
    weight: Any
    activation: Callable[..., Any]
    width: int
    name: str = eqx.field(static=True)


def check() -> None:
    """Makes sure that Equinox's modules are what this adapter takes them to be.

    Raises:
        AdapterError: If something does not come out as it must.
    """
    # NumPy, since the first module may appear inside a trace, where JAX makes tracers.
    ones = np.ones(2)
    sample = _Sample(ones, jnp.sin, 2, "a")
    divided = divide(sample)
    joined = divided.join()
    doubled = jax.tree.map(lambda x: 2 * x, divided).join()
    other = divide(_Sample(ones, jnp.sin, 2, "b"))
    is_frozen = True
    with suppress(FrozenInstanceError):
        sample.weight = 2 * ones
        is_frozen = False
    require(
        {
            "its arrays are not the only leaves that are traced": jax.tree.leaves(
                divided
            )
            == [ones],
            "a round trip loses something": type(joined) is _Sample
            and joined.weight is ones
            and joined.activation is jnp.sin
            and (joined.width, joined.name) == (2, "a"),
            "a write is not seen": doubled.weight[0] == 2.0 and sample.weight is ones,
            "a change of what is static is not seen": jax.tree.structure(other)
            != jax.tree.structure(divided),
            "a module can be changed in place": is_frozen,
        }
    )


register_filtered_type(eqx.Module, immutable=True)
with checked("Equinox", eqx.__version__, TESTED):
    check()
