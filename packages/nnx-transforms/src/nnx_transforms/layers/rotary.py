"""Rotary position embedding, which turns queries and keys by an angle a place."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from graphcore import Variable
from nnx_transforms.layers.attention_functions import dot_product_attention
from nnx_transforms.layers.dtypes import with_rank
from nnx_transforms.layers.types import Array
from nnx_transforms.modules.module import Module

__all__ = ["RoPE", "dot_product_attention_with_rope"]


class RoPE(Module):
    """Rotary position embedding.

    See Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding",
    https://arxiv.org/abs/2104.09864.

    Args:
        theta: The base of the frequencies.
        embedding_size: The size of each vector, an even number. Given with
            `max_seq_len`, sines and cosines are computed once and kept as variables.
        max_seq_len: The number of places.

    Raises:
        ValueError: If only one of the two is given, or the size is odd.

    Example:
        >>> import nnx_transforms as nnx, jax.numpy as jnp
        >>> turned = nnx.RoPE()(jnp.ones((3, 2)))
        >>> turned[0].tolist(), jnp.linalg.norm(turned, axis=1).round(4)
        ([1.0, 1.0], Array([1.4142, 1.4142, 1.4142], dtype=float32))
    """

    cached_sin: Variable[jax.Array] | None = None
    cached_cos: Variable[jax.Array] | None = None

    def __init__(
        self,
        theta: float = 10000.0,
        embedding_size: int | None = None,
        max_seq_len: int | None = None,
    ) -> None:
        if (embedding_size is None) != (max_seq_len is None):
            raise ValueError(
                f"RoPE got embedding_size={embedding_size} and max_seq_len="
                f"{max_seq_len}: expected both, to keep a table, or neither."
            )
        self.theta = theta
        if embedding_size is not None and max_seq_len is not None:
            sin, cos = self._angles(embedding_size, jnp.arange(float(max_seq_len)))
            self.cached_sin, self.cached_cos = Variable(sin), Variable(cos)

    def _angles(self, size: int, positions: jax.Array) -> tuple[jax.Array, jax.Array]:
        if size <= 0 or size % 2:
            raise ValueError(f"RoPE turns vectors of an even size, got {size}.")
        frequencies = 1.0 / self.theta ** (jnp.arange(0.0, size, 2) / size)
        angles = positions[..., None] * with_rank(frequencies, positions.ndim + 1)
        return jnp.sin(angles), jnp.cos(angles)

    def __call__(self, x: Array, input_positions: Array | None = None) -> jax.Array:
        """Turns vectors.

        Args:
            x: An array of shape (..., length, size).
            input_positions: The places, of shape (..., length) with as many axes before
                the length as `x` has, or fewer; 0, 1, 2, ... by default.

        Returns:
            An array of the same shape.

        Raises:
            ValueError: If there are more or fewer places than vectors.

        Example:
            >>> import jax.numpy as jnp
            >>> RoPE()(jnp.ones((1, 2)), jnp.array([0])).tolist()
            [[1.0, 1.0]]
        """
        x = jnp.asarray(x)
        length, size = x.shape[-2:]
        if input_positions is None and self.cached_sin is not None:
            assert self.cached_cos is not None
            sin, cos = self.cached_sin.value[:length], self.cached_cos.value[:length]
        else:
            if input_positions is None:
                input_positions = jnp.arange(float(length))
            if jnp.shape(input_positions)[-1:] != (length,):
                raise ValueError(
                    f"RoPE got places of shape {jnp.shape(input_positions)} for "
                    f"vectors of shape {x.shape}: expected {length} of them."
                )
            sin, cos = self._angles(size, jnp.asarray(input_positions))
        rank = max(x.ndim, sin.ndim)
        sin, cos = (with_rank(table, rank) for table in (sin, cos))
        first, second = jnp.split(x, 2, axis=-1)
        return jnp.concatenate(
            [first * cos - second * sin, second * cos + first * sin], axis=-1
        )


def dot_product_attention_with_rope(
    query: Array,
    key: Array,
    value: Array,
    *,
    rope: RoPE,
    input_positions: Array | None = None,
    **kwargs: Any,
) -> jax.Array:
    """Attention whose queries and keys are turned by their places before.

    For `MultiHeadAttention`, fix the embedding:
    `attention_fn=functools.partial(dot_product_attention_with_rope, rope=rope)`.

    Args:
        query: An array of shape (*batch, queries, heads, depth).
        key: An array of shape (*batch, keys, heads, depth).
        value: An array of shape (*batch, keys, heads, value depth).
        rope: The embedding.
        input_positions: The places of queries and keys, of shape (*batch, length);
            0, 1, 2, ... by default.
        **kwargs: Further arguments of `dot_product_attention`.

    Returns:
        An array of shape (*batch, queries, heads, value depth).

    Raises:
        ValueError: If shapes do not fit.

    Example:
        >>> import nnx_transforms as nnx, jax.numpy as jnp
        >>> x = jnp.ones((3, 1, 4))
        >>> nnx.dot_product_attention_with_rope(x, x, x, rope=nnx.RoPE()).shape
        (3, 1, 4)
    """

    def turned(x: Array) -> jax.Array:
        positions = input_positions
        if positions is not None:  # the same for all heads
            positions = jnp.expand_dims(jnp.asarray(positions), -2)
        return jnp.swapaxes(rope(jnp.swapaxes(x, -2, -3), positions), -2, -3)

    return dot_product_attention(turned(query), turned(key), value, **kwargs)
