"""Choosing the type to compute in."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

__all__ = ["promoted"]


def promoted(*arrays: Any, dtype: Any = None) -> tuple[Any, ...]:
    """Arrays of one floating or complex type.

    Args:
        *arrays: arrays, or None.
        dtype: the type; None for the one that the arrays promote to.

    Returns:
        The arrays in that type; an array that has it already is returned as it is.
    """
    if dtype is None:
        types = {x.dtype for x in arrays if x is not None}
        dtype = types.pop() if len(types) == 1 else jnp.result_type(*types)
        if not jnp.issubdtype(dtype, jnp.inexact):
            dtype = jnp.promote_types(dtype, jnp.float32)
    else:
        dtype = jnp.dtype(dtype)
    return tuple(
        x if x is None or x.dtype == dtype else x.astype(dtype) for x in arrays
    )
