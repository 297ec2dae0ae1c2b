"""Random keys as plain arrays, which every version of JAX can save.

Up to 0.10.0, JAX can't save a typed key for the way back from inside one branch of a
`cond`: it makes a scalar for the other branch. A model is often saved whole, random
streams included.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp


def keys_to_data(leaves: Sequence[Any]) -> tuple[list[Any], tuple[Any, ...]]:
    """Replaces keys by their data.

    Args:
        leaves: Arrays.

    Returns:
        The arrays for `keys_from_data`; and for each the implementation of its keys,
        None if it has none.

    Example:
        >>> data, kinds = keys_to_data([jax.random.key(0)])
        >>> data[0].dtype.name, keys_from_data(data, kinds)[0].dtype
        ('uint32', key<fry>)
    """
    kinds = tuple(jax.random.key_impl(x) if is_key(x) else None for x in leaves)
    pairs = zip(leaves, kinds, strict=True)
    return [x if kind is None else jax.random.key_data(x) for x, kind in pairs], kinds


def keys_from_data(leaves: Sequence[Any], kinds: Sequence[Any]) -> list[Any]:
    """Brings back the keys.

    Args:
        leaves: What `keys_to_data` returned, or arrays like those.
        kinds: The implementations.

    Returns:
        The arrays with keys.
    """
    return [
        x if kind is None else jax.random.wrap_key_data(x, impl=kind)
        for x, kind in zip(leaves, kinds, strict=True)
    ]


def is_key(x: Any) -> bool:
    """Whether something is an array of random keys, or a stand-in for one."""
    dtype = getattr(x, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)
