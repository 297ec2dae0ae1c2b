"""Attention without parameters: weights by dot products, and sums by weights."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from .dtypes import at_least_float32, promote_dtype

__all__ = ["dot_product_attention", "dot_product_attention_weights"]

Einsum = Callable[..., jax.Array]


def dot_product_attention_weights(
    query: Any,
    key: Any,
    bias: Any = None,
    mask: Any = None,
    broadcast_dropout: bool = True,
    dropout_rng: Any = None,
    dropout_rate: float = 0.0,
    deterministic: bool = False,
    dtype: Any = None,
    precision: Any = None,
    module: Any = None,
    force_fp32_for_softmax: bool = False,
    einsum_dot_general: Callable[..., Any] | None = None,
    einsum: Einsum | None = None,
) -> jax.Array:
    """How much each query attends to each key.

    Scaled dot products, normalized by a softmax over the keys (Vaswani et al., 2017).

    Args:
        query: an array of shape `(*batch, queries, heads, depth)`.
        key: an array of shape `(*batch, keys, heads, depth)`.
        bias: added to the products; broadcasts to `(*batch, heads, queries, keys)`.
        mask: false where a query must not attend to a key; broadcasts like `bias`.
        broadcast_dropout: whether the batch and the heads share one decision.
        dropout_rng: a key, needed for dropout.
        dropout_rate: the probability that a weight is set to zero.
        deterministic: whether there is no dropout.
        dtype: the type to compute in; None for that of query and key.
        precision: see `jax.lax.Precision`.
        module: a module whose collection `intermediates` gets the weights before
            dropout, if it is mutable, as `attention_weights`.
        force_fp32_for_softmax: whether the softmax is computed with 32 bits at least.
        einsum_dot_general: used in place of `jax.lax.dot_general`.
        einsum: used in place of `jax.numpy.einsum`.

    Returns:
        An array of shape `(*batch, heads, queries, keys)`.

    Raises:
        ValueError: if shapes do not fit, or `einsum` is given together with
            `precision` or `einsum_dot_general`, which it would not see.

    Example:
        >>> import linen_lift as nn, jax.numpy as jnp
        >>> x, mask = jnp.ones((2, 1, 4)), nn.make_causal_mask(jnp.ones(2))
        >>> nn.dot_product_attention_weights(x, x, mask=mask).tolist()
        [[[1.0, 0.0], [0.5, 0.5]]]
    """
    einsum = _einsum(einsum, precision, einsum_dot_general)
    query, key = promote_dtype(query, key, dtype=dtype)
    _check_shapes(query, key)
    dtype = query.dtype
    products = einsum(
        "...qhd,...khd->...hqk", query / jnp.sqrt(query.shape[-1]).astype(dtype), key
    )
    if bias is not None:
        products = products + bias
    if mask is not None:
        lowest = float(jnp.finfo(dtype).min)  # type: ignore[no-untyped-call]
        products = jnp.where(mask, products, lowest)
    if force_fp32_for_softmax:
        products = products.astype(at_least_float32(dtype))
    weights = jax.nn.softmax(products)
    if not (force_fp32_for_softmax and dtype != jnp.float32):
        weights = weights.astype(dtype)
    if module is not None:
        module.sow("intermediates", "attention_weights", weights)
    if deterministic or dropout_rate == 0.0:
        return weights
    shape = weights.shape
    if broadcast_dropout:
        shape = (1,) * (weights.ndim - 2) + shape[-2:]
    if dropout_rng is None:
        raise ValueError(
            f"Dropout of attention weights (dropout_rate={dropout_rate}) needs a key: "
            "pass dropout_rng, or deterministic=True."
        )
    keep = 1.0 - dropout_rate
    kept = jax.random.bernoulli(dropout_rng, keep, shape).astype(dtype)
    return weights * (kept / jnp.asarray(keep, dtype))


def dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    bias: Any = None,
    mask: Any = None,
    broadcast_dropout: bool = True,
    dropout_rng: Any = None,
    dropout_rate: float = 0.0,
    deterministic: bool = False,
    dtype: Any = None,
    precision: Any = None,
    module: Any = None,
    force_fp32_for_softmax: bool = False,
    einsum_dot_general: Callable[..., Any] | None = None,
    qk_attn_weights_einsum: Einsum | None = None,
    attn_weights_value_einsum: Einsum | None = None,
) -> jax.Array:
    """For each query the mean of the values, weighted by how it attends to their keys.

    Args:
        query: an array of shape `(*batch, queries, heads, depth)`.
        key: an array of shape `(*batch, keys, heads, depth)`.
        value: an array of shape `(*batch, keys, heads, value_depth)`.
        bias: see `dot_product_attention_weights`.
        mask: see `dot_product_attention_weights`.
        broadcast_dropout: see `dot_product_attention_weights`.
        dropout_rng: see `dot_product_attention_weights`.
        dropout_rate: see `dot_product_attention_weights`.
        deterministic: see `dot_product_attention_weights`.
        dtype: see `dot_product_attention_weights`.
        precision: see `dot_product_attention_weights`.
        module: see `dot_product_attention_weights`.
        force_fp32_for_softmax: see `dot_product_attention_weights`.
        einsum_dot_general: see `dot_product_attention_weights`.
        qk_attn_weights_einsum: used in place of `jax.numpy.einsum` for the weights.
        attn_weights_value_einsum: the same for the mean; give both or neither.

    Returns:
        An array of shape `(*batch, queries, heads, value_depth)`.

    Raises:
        ValueError: if shapes do not fit, only one of the last two options is given, or
            they are given together with `precision` or `einsum_dot_general`.

    Example:
        >>> import linen_lift as nn, jax.numpy as jnp
        >>> x, values = jnp.ones((2, 1, 4)), jnp.arange(8.0).reshape(2, 1, 4)
        >>> nn.dot_product_attention(x, x, values).tolist()
        [[[2.0, 3.0, 4.0, 5.0]], [[2.0, 3.0, 4.0, 5.0]]]
    """
    if (qk_attn_weights_einsum is None) != (attn_weights_value_einsum is None):
        raise ValueError(
            "qk_attn_weights_einsum and attn_weights_value_einsum belong together; "
            "found one of them."
        )
    mean = _einsum(attn_weights_value_einsum, precision, einsum_dot_general)
    query, key, value = promote_dtype(query, key, value, dtype=dtype)
    _check_shapes(query, key, value)
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
        force_fp32_for_softmax,
        einsum_dot_general,
        qk_attn_weights_einsum,
    )
    with jax.numpy_dtype_promotion("standard"):  # the weights may be of more bits
        return mean("...hqk,...khd->...qhd", weights, value)


def _einsum(einsum: Einsum | None, precision: Any, dot_general: Any) -> Einsum:
    if einsum is None:
        product = dot_general or jax.lax.dot_general
        return functools.partial(jnp.einsum, precision=precision, _dot_general=product)
    if precision is not None or dot_general is not None:
        raise ValueError(
            "precision and einsum_dot_general are options of jax.numpy.einsum; they "
            "cannot be given together with a function to use in its place."
        )
    return einsum


def _check_shapes(query: jax.Array, key: jax.Array, *value: jax.Array) -> None:
    arrays = (query, key, *value)
    shapes = [x.shape for x in arrays]
    fit = (
        min(x.ndim for x in arrays) >= 3
        and len({x.shape[:-3] for x in arrays}) == 1
        and len({x.shape[-2] for x in arrays}) == 1
        and query.shape[-1] == key.shape[-1]
        and all(x.shape[-3] == key.shape[-3] for x in value)
    )
    if not fit:
        raise ValueError(
            "Attention needs a query of shape (*batch, queries, heads, depth), a key "
            "of shape (*batch, keys, heads, depth) and a value of shape (*batch, "
            f"keys, heads, value_depth); found {', '.join(map(str, shapes))}."
        )
