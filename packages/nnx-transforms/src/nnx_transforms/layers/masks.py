"""Masks that tell which keys a query attends to."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

__all__ = ["combine_masks", "make_attention_mask", "make_causal_mask"]


def make_attention_mask(
    query_input: Any,
    key_input: Any,
    pairwise_fn: Callable[..., Any] = jnp.multiply,
    extra_batch_dims: int = 0,
    dtype: Any = jnp.float32,
) -> jax.Array:
    """A mask with an entry for each pair of a query and a key.

    Args:
        query_input: An array of shape `(*batch, queries)`, for example 1 where there is
            a token and 0 where there is padding.
        key_input: An array of shape `(*batch, keys)`.
        pairwise_fn: Makes an entry of one of each; broadcasts.
        extra_batch_dims: How many axes of size 1 to put in front.
        dtype: The type of the mask.

    Returns:
        An array of shape `(*extra, *batch, 1, queries, keys)`, whose third axis from
        the end is for the heads.

    Example:
        >>> import nnx_transforms as nnx, jax.numpy as jnp
        >>> tokens = jnp.array([1, 1, 0])
        >>> nnx.make_attention_mask(tokens[:2], tokens, dtype=bool).tolist()
        [[[True, True, False], [True, True, False]]]
    """
    query_input, key_input = jnp.asarray(query_input), jnp.asarray(key_input)
    pairs = pairwise_fn(query_input[..., :, None], key_input[..., None, :])
    mask: jax.Array = jnp.expand_dims(pairs, (*range(extra_batch_dims), -3))
    return mask.astype(dtype)


def make_causal_mask(
    x: Any, extra_batch_dims: int = 0, dtype: Any = jnp.float32
) -> jax.Array:
    """A mask that lets each position see itself and those before it.

    Args:
        x: An array of shape `(*batch, length)`; its values do not matter.
        extra_batch_dims: How many axes of size 1 to put in front.
        dtype: The type of the mask.

    Returns:
        An array of shape `(*extra, *batch, 1, length, length)`.

    Example:
        >>> import nnx_transforms as nnx, jax.numpy as jnp
        >>> nnx.make_causal_mask(jnp.ones(3), dtype=int).tolist()
        [[[1, 0, 0], [1, 1, 0], [1, 1, 1]]]
    """
    shape = jnp.shape(x)
    positions = jnp.broadcast_to(jnp.arange(shape[-1], dtype=jnp.int32), shape)
    return make_attention_mask(
        positions, positions, jnp.greater_equal, extra_batch_dims, dtype
    )


def combine_masks(*masks: Any, dtype: Any = jnp.float32) -> jax.Array | None:
    """A mask that lets through what all of the masks let through.

    Args:
        *masks: Arrays of the same number of axes that broadcast to each other; None
            lets everything through.
        dtype: The type of the result.

    Returns:
        The mask; None if there is none among `masks`.

    Raises:
        ValueError: If the numbers of axes differ.

    Example:
        >>> import nnx_transforms as nnx, jax.numpy as jnp
        >>> causal = nnx.make_causal_mask(jnp.ones(2))
        >>> padding = nnx.make_attention_mask(jnp.ones(2), jnp.array([0, 1]))
        >>> nnx.combine_masks(causal, None, padding, dtype=int).tolist()
        [[[0, 0], [0, 1]]]
    """
    given = [jnp.asarray(mask) for mask in masks if mask is not None]
    if not given:
        return None
    if len({mask.ndim for mask in given}) > 1:
        raise ValueError(
            "Masks need the same number of axes to be combined; found shapes "
            f"{[mask.shape for mask in given]}."
        )
    return functools.reduce(jnp.logical_and, given).astype(dtype)
