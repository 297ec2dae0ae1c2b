"""Attention without parameters: weights by dot products, and sums by weights."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from graphcore import Intermediate
from nnx_transforms.layers.dtypes import promote_dtype
from nnx_transforms.layers.types import Array, DType, Promotion
from nnx_transforms.modules.module import Module

__all__ = ["dot_product_attention", "dot_product_attention_weights"]


def dot_product_attention_weights(
    query: Array,
    key: Array,
    bias: Array | None = None,
    mask: Array | None = None,
    broadcast_dropout: bool = True,
    dropout_rng: jax.Array | None = None,
    dropout_rate: float = 0.0,
    deterministic: bool = False,
    dtype: DType | None = None,
    precision: Any = None,
    module: Module | None = None,
    promote_dtype: Promotion = promote_dtype,
    is_causal: bool = False,
) -> jax.Array:
    """How much each query attends to each key.

    Scaled dot products, normalized by a softmax over the keys; see Vaswani et al.,
    "Attention Is All You Need", https://arxiv.org/abs/1706.03762.

    Args:
        query: An array of shape (*batch, queries, heads, depth).
        key: An array of shape (*batch, keys, key heads, depth). A multiple of heads
            shares each key head, one after the other.
        bias: Added to the products; broadcasts to (*batch, heads, queries, keys).
        mask: False where a query must not attend to a key; broadcasts like `bias`.
        broadcast_dropout: Whether the batch and the heads share one decision.
        dropout_rng: A key, needed for dropout.
        dropout_rate: The probability that a weight is set to zero, below 1.
        deterministic: Whether there is no dropout.
        dtype: The dtype to compute in; None for that of query and key.
        precision: As for `jax.numpy.einsum`.
        module: A module that records the weights before dropout, as
            `attention_weights` of type `Intermediate`.
        promote_dtype: `promote_dtype((query, key), dtype=dtype)` casts them.
        is_causal: Whether each query attends only to keys at its place and before.

    Returns:
        An array of shape (*batch, heads, queries, keys).

    Raises:
        ValueError: If shapes do not fit, the rate is none, or there is no key for
            dropout.

    Example:
        >>> import nnx_transforms as nnx, jax.numpy as jnp
        >>> x = jnp.ones((2, 1, 4))
        >>> nnx.dot_product_attention_weights(x, x, is_causal=True).tolist()
        [[[1.0, 0.0], [0.5, 0.5]]]
    """
    query, key = promote_dtype((query, key), dtype=dtype)
    _check_shapes(query, key)
    if not 0 <= dropout_rate < 1:
        raise ValueError(f"dropout_rate must be at least 0 and below 1: {dropout_rate}")
    dtype = query.dtype
    *_, heads, depth = query.shape
    scaled = query / jnp.sqrt(depth).astype(dtype)
    products = _by_heads("...qgrd,...kgd->...grqk", scaled, key, 2, precision)
    products = products.reshape((*key.shape[:-3], heads, *products.shape[-2:]))
    if bias is not None:
        products = products + bias
    if is_causal:
        causal = jnp.tril(jnp.ones(products.shape[-2:], bool))
        mask = causal if mask is None else jnp.logical_and(mask, causal)
    if mask is not None:
        lowest = float(jnp.finfo(dtype).min)  # type: ignore[no-untyped-call]
        products = jnp.where(mask, products, lowest)
    weights = jax.nn.softmax(products).astype(dtype)
    if module is not None:
        module.sow(Intermediate, "attention_weights", weights)
    if deterministic or dropout_rate == 0.0:
        return weights
    if dropout_rng is None:
        raise ValueError(
            f"Dropout of attention weights, dropout_rate={dropout_rate}, needs a key: "
            "pass `dropout_rng`, or `deterministic=True`."
        )
    shape = weights.shape
    if broadcast_dropout:
        shape = (1,) * (weights.ndim - 2) + shape[-2:]
    kept = 1.0 - dropout_rate
    mask = jax.random.bernoulli(dropout_rng, kept, shape).astype(dtype)
    return weights * (mask / jnp.asarray(kept, dtype))


def dot_product_attention(
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None = None,
    mask: Array | None = None,
    broadcast_dropout: bool = True,
    dropout_rng: jax.Array | None = None,
    dropout_rate: float = 0.0,
    deterministic: bool = False,
    dtype: DType | None = None,
    precision: Any = None,
    module: Module | None = None,
    promote_dtype: Promotion = promote_dtype,
    is_causal: bool = False,
) -> jax.Array:
    """For each query the mean of the values, weighted by how it attends to their keys.

    `jax.nn.dot_product_attention` does the work, unless a dropout rate or `module` asks
    for the weights themselves.

    Args:
        query: An array of shape (*batch, queries, heads, depth).
        key: An array of shape (*batch, keys, key heads, depth); see
            `dot_product_attention_weights`.
        value: An array of shape (*batch, keys, key heads, value depth).
        bias: See `dot_product_attention_weights`.
        mask: See `dot_product_attention_weights`.
        broadcast_dropout: See `dot_product_attention_weights`.
        dropout_rng: See `dot_product_attention_weights`.
        dropout_rate: See `dot_product_attention_weights`.
        deterministic: See `dot_product_attention_weights`.
        dtype: See `dot_product_attention_weights`.
        precision: See `dot_product_attention_weights`.
        module: See `dot_product_attention_weights`.
        promote_dtype: `promote_dtype((query, key, value), dtype=dtype)` casts them.
        is_causal: See `dot_product_attention_weights`.

    Returns:
        An array of shape (*batch, queries, heads, value depth).

    Raises:
        ValueError: If shapes do not fit, the rate is none, or there is no key for
            dropout.

    Example:
        >>> import nnx_transforms as nnx, jax.numpy as jnp
        >>> x, values = jnp.ones((2, 1, 4)), jnp.arange(8.0).reshape(2, 1, 4)
        >>> nnx.dot_product_attention(x, x, values).tolist()
        [[[2.0, 3.0, 4.0, 5.0]], [[2.0, 3.0, 4.0, 5.0]]]
    """
    query, key, value = promote_dtype((query, key, value), dtype=dtype)
    _check_shapes(query, key, value)
    # JAX's function computes in at most 32 bits and at the default precision, and its
    # values have the depth of its keys. Whether there is a rate decides, not whether
    # it counts: what a layer computes while it is evaluated is rounded as in training.
    if (
        query.dtype in (jnp.float32, jnp.bfloat16, jnp.float16)
        and dropout_rate == 0.0
        and module is None
        and precision is None
        and key.shape == value.shape
        and _adds_no_axes(query, bias, mask)
    ):
        return _by_jax(query, key, value, bias, mask, is_causal)
    weights = dot_product_attention_weights(
        query,
        key,
        bias,
        mask,
        broadcast_dropout,
        dropout_rng,
        dropout_rate,
        deterministic,
        query.dtype,
        precision,
        module,
        promote_dtype,
        is_causal,
    )
    out = _by_heads("...grqk,...kgd->...qgrd", weights, value, 3, precision)
    return out.reshape((*query.shape[:-1], out.shape[-1]))


def _by_heads(
    equation: str, x: jax.Array, y: jax.Array, axis: int, precision: Any
) -> jax.Array:
    """A sum of products in which a group of heads of `x` shares each head of `y`.

    Args:
        equation: With the two axes that the axis of heads of `x` becomes.
        x: The first operand.
        y: The second one, whose axis of heads is the last but one.
        axis: The axis of heads of `x`, counted from the end.
        precision: As for `jax.numpy.einsum`.

    Returns:
        The sum.
    """
    axis, groups = x.ndim - axis, y.shape[-2]
    if groups == x.shape[axis]:  # one each
        return jnp.einsum(equation.replace("r", ""), x, y, precision=precision)
    heads = (groups, x.shape[axis] // groups)  # no -1, for empty batches
    x = x.reshape((*x.shape[:axis], *heads, *x.shape[axis + 1 :]))
    return jnp.einsum(equation, x, y, precision=precision)


def _by_jax(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: Array | None,
    mask: Array | None,
    is_causal: bool,
) -> jax.Array:
    """`jax.nn.dot_product_attention` for any number of batch axes."""
    batch = query.shape[:-3]
    count = math.prod(batch)

    def flat(x: jax.Array) -> jax.Array:
        return x.reshape((count, *x.shape[-3:]))

    def pairs(x: Array | None) -> jax.Array | None:
        """A bias or mask with one batch axis."""
        if x is None:
            return None
        x = jnp.asarray(x)
        x = x.reshape((1,) * (3 - x.ndim) + x.shape)
        if any(n != 1 for n in x.shape[:-3]):
            x = jnp.broadcast_to(x, (*batch, *x.shape[-3:]))
        return x.reshape((-1, *x.shape[-3:]))

    out = jax.nn.dot_product_attention(
        flat(query),
        flat(key),
        flat(value),
        pairs(bias),
        pairs(None if mask is None else jnp.asarray(mask).astype(bool)),
        is_causal=is_causal,
    )
    return out.reshape((*batch, *out.shape[1:]))


def _adds_no_axes(query: jax.Array, *pairs: Array | None) -> bool:
    """Whether a bias or mask broadcasts to the batch of the query as it is."""
    batch = query.shape[:-3]
    shapes = [jnp.shape(x)[:-3] for x in pairs if x is not None]
    try:
        return all(jnp.broadcast_shapes(shape, batch) == batch for shape in shapes)
    except ValueError:
        return False  # The sum will report that it does not fit at all.


def _check_shapes(query: jax.Array, key: jax.Array, *value: jax.Array) -> None:
    arrays = (query, key, *value)
    fit = (
        len({x.ndim for x in arrays}) == 1
        and query.ndim >= 3
        and len({x.shape[:-3] for x in arrays}) == 1
        and query.shape[-1] == key.shape[-1]
        and all(query.shape[-2] % x.shape[-2] == 0 for x in arrays[1:])
        and all(x.shape[-3] == key.shape[-3] for x in value)
    )
    if not fit:
        raise ValueError(
            "Attention needs a query of shape (*batch, queries, heads, depth), a key "
            "of shape (*batch, keys, heads, depth) and a value of shape (*batch, "
            "keys, heads, value depth), where the query may have a multiple of heads; "
            f"got {', '.join(str(x.shape) for x in arrays)}."
        )
