"""Choosing the type to compute in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

__all__ = ["canonicalize_dtype", "promote_dtype"]

Promotion = Callable[..., Any]


def canonicalize_dtype(*args: Any, dtype: Any = None, inexact: bool = True) -> Any:
    """The type that a layer computes in, given its arrays.

    Args:
        *args: arrays or numbers; None is left out.
        dtype: the type, if it is chosen already; None for the one that `args` promote
            to.
        inexact: whether it must be a floating or complex type: one that is found is
            promoted with float32, one that is given must be.

    Returns:
        The type.

    Raises:
        ValueError: if `dtype` is given and not inexact, although it must be.

    Example:
        >>> import linen_lift as nn, jax.numpy as jnp
        >>> nn.canonicalize_dtype(jnp.ones(3, int)).name
        'float32'
    """
    if dtype is None:
        # Types alone would forget which of them are weak.
        arrays = [_array(x) for x in args if x is not None]
        types = {x.dtype for x in arrays}
        # Almost always all have one type, which is then found without asking JAX.
        found = types.pop() if len(types) == 1 else jnp.result_type(*arrays)
        if inexact and not jnp.issubdtype(found, jnp.inexact):
            found = jnp.promote_types(found, jnp.float32)
        return found
    if inexact and not jnp.issubdtype(dtype, jnp.inexact):
        raise ValueError(
            f"The type to compute in must be floating or complex; found {dtype}."
        )
    return jnp.dtype(dtype)


def at_least_float32(dtype: Any) -> Any:
    """What a type promotes to with float32, also where a program forbids promotion.

    Args:
        dtype: the type.

    Returns:
        The type to compute statistics in.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> with jax.numpy_dtype_promotion("strict"):
        ...     at_least_float32(jnp.bfloat16).name
        'float32'
    """
    with jax.numpy_dtype_promotion("standard"):
        return jnp.promote_types(dtype, jnp.float32)


def promote_dtype(*args: Any, dtype: Any = None, inexact: bool = True) -> list[Any]:
    """Arrays of one type.

    Args:
        *args: arrays or numbers, or None, which stays None.
        dtype: the type; None for the one that `args` promote to.
        inexact: whether it must be a floating or complex type.

    Returns:
        The arrays in that type; an array that has it already is returned as it is.

    Raises:
        ValueError: if `dtype` is given and not inexact, although it must be.

    Example:
        >>> import linen_lift as nn, jax.numpy as jnp
        >>> x, bias = nn.promote_dtype(jnp.ones(3, jnp.bfloat16), jnp.ones(3))
        >>> x.dtype.name, bias.dtype.name
        ('float32', 'float32')
    """
    arrays = [None if x is None else _array(x) for x in args]
    dtype = canonicalize_dtype(*arrays, dtype=dtype, inexact=inexact)
    return [x if x is None or x.dtype == dtype else x.astype(dtype) for x in arrays]


def _array(x: Any) -> jax.Array:
    return x if isinstance(x, jax.Array) else jnp.asarray(x)


def with_rank(array: jax.Array, rank: int) -> jax.Array:
    """Gives an array axes of size 1 in front, where JAX is told not to do it itself.

    Args:
        array: an array.
        rank: of what it is combined with, no less than its own.

    Returns:
        The array, as `jax.numpy` takes it under `jax_numpy_rank_promotion="raise"`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> with jax.numpy_rank_promotion("raise"):
        ...     with_rank(jnp.ones(3), 2).shape
        (1, 3)
    """
    if jax.config.jax_numpy_rank_promotion == "allow":
        return array
    return lax.broadcast_to_rank(array, rank)
