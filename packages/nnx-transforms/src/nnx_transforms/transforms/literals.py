"""Constants that JAX returns as literals of its own, where arrays are due."""

from __future__ import annotations

from typing import Any, TypeVar

import jax
import jax.numpy as jnp

T = TypeVar("T")


def as_arrays(tree: T) -> T:
    """A pytree with arrays in the place of literals.

    A transformation that runs a trace outside of `jax.jit` returns a scalar constant of
    the traced function as a number, which would be static as an attribute.

    Args:
        tree: The values of variables and attributes that JAX returned.
    """
    return jax.tree.map(_as_array, tree)  # type: ignore[no-any-return]


def _as_array(x: Any) -> jax.Array:
    return x if isinstance(x, jax.Array) else jnp.asarray(x)
