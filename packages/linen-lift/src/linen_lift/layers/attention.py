# ruff: noqa: F403, F405
"""Attention with several heads: `MultiHeadDotProductAttention` and its kin."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.nn import initializers

from ..module import Module, compact, merge_param, nowrap
from .attention_functions import *
from .linear import DenseGeneral, Initializer, default_kernel_init
from .masks import *
from .normalization import LayerNorm

__all__ = ["MultiHeadAttention", "MultiHeadDotProductAttention", "SelfAttention"]


class MultiHeadDotProductAttention(Module):
    """Attention of several heads (Vaswani et al., 2017).

    Linear maps `query`, `key` and `value` make the arguments of an attention function
    for each head, and `out` maps what it gives for all of them to the output.

    Args:
        num_heads: the number of heads.
        dtype: the type to compute in; None for that of input and parameters.
        param_dtype: the type of the parameters.
        qkv_features: the sizes of query, key and value, of all heads together; that of
            the input if it is not given.
        out_features: the size of the output; that of the input if it is not given.
        broadcast_dropout: whether the batch and the heads share one decision.
        dropout_rate: the probability that an attention weight is set to zero.
        deterministic: whether there is no dropout; given here or in the call.
        precision: see `jax.lax.Precision`.
        kernel_init: makes the kernels.
        out_kernel_init: makes the kernel of `out`; `kernel_init` if it is not given.
        bias_init: makes the biases.
        out_bias_init: makes the bias of `out`; `bias_init` if it is not given.
        use_bias: whether the linear maps have a bias.
        attention_fn: a function like `dot_product_attention`; it gets those of its
            options that are among its parameters.
        decode: whether to go through a sequence one position at a time. The collection
            `cache` then has the keys and values of all positions. Make it with `init`
            on an input of the full length.
        normalize_qk: whether to normalize queries and keys with `LayerNorm`.
        force_fp32_for_softmax: whether the softmax is computed with 32 bits at least.
        qkv_dot_general: used in place of `jax.lax.dot_general` by the maps `query`,
            `key` and `value`.
        out_dot_general: the same for `out`.
        qkv_dot_general_cls: called for such a function.
        out_dot_general_cls: called for such a function.
        qk_attn_weights_einsum_cls: called for what `attention_fn` uses in place of
            `jax.numpy.einsum` to make the weights.
        attn_weights_value_einsum_cls: the same for the sum by weights.

    Example:
        >>> import linen_lift as nn, jax, jax.numpy as jnp
        >>> layer, x = nn.MultiHeadDotProductAttention(num_heads=2), jnp.ones((1, 5, 8))
        >>> mask = nn.make_causal_mask(x[..., 0])
        >>> out, variables = layer.init_with_output(jax.random.key(0), x, mask=mask)
        >>> out.shape, variables['params']['query']['kernel'].shape
        ((1, 5, 8), (8, 2, 4))
    """

    num_heads: int
    dtype: Any = None
    param_dtype: Any = jnp.float32
    qkv_features: int | None = None
    out_features: int | None = None
    broadcast_dropout: bool = True
    dropout_rate: float = 0.0
    deterministic: bool | None = None
    precision: Any = None
    kernel_init: Initializer = default_kernel_init
    out_kernel_init: Initializer | None = None
    bias_init: Initializer = initializers.zeros
    out_bias_init: Initializer | None = None
    use_bias: bool = True
    attention_fn: Callable[..., Any] = dot_product_attention
    decode: bool = False
    normalize_qk: bool = False
    force_fp32_for_softmax: bool = False
    qkv_dot_general: Callable[..., Any] | None = None
    out_dot_general: Callable[..., Any] | None = None
    qkv_dot_general_cls: Any = None
    out_dot_general_cls: Any = None
    qk_attn_weights_einsum_cls: Any = None
    attn_weights_value_einsum_cls: Any = None

    @compact
    def __call__(
        self,
        inputs_q: jax.Array,
        inputs_k: jax.Array | None = None,
        inputs_v: jax.Array | None = None,
        *,
        inputs_kv: jax.Array | None = None,
        mask: jax.Array | None = None,
        deterministic: bool | None = None,
        dropout_rng: jax.Array | None = None,
        sow_weights: bool = False,
    ) -> jax.Array:
        """Attends.

        Args:
            inputs_q: an array of shape `(*batch, queries, features)`.
            inputs_k: an array of shape `(*batch, keys, features)`; `inputs_q` if it is
                not given.
            inputs_v: an array of shape `(*batch, keys, features)`; `inputs_k` if it is
                not given.
            inputs_kv: both of them at once.
            mask: false where a query must not attend to a key; broadcasts to `(*batch,
                heads, queries, keys)`.
            deterministic: whether there is no dropout.
            dropout_rng: a key; drawn from the stream `dropout` if it is not given.
            sow_weights: whether to store the weights in the collection
                `intermediates`, as `attention_weights`.

        Returns:
            An array of shape `(*batch, queries, out_features)`.

        Raises:
            ValueError: if inputs are given twice or values without keys, the heads do
                not divide the features, or a position to decode does not fit the cache.
        """
        inputs_k, inputs_v = _keys_and_values(inputs_q, inputs_k, inputs_v, inputs_kv)
        query, key, value = self._projected(inputs_q, inputs_k, inputs_v)
        if self.decode:
            key, value, mask = self._cached(query, key, value, mask)
        still = True
        if self.dropout_rate > 0.0:
            still = merge_param("deterministic", self.deterministic, deterministic)
            if not still and dropout_rng is None:
                dropout_rng = self.make_rng("dropout")
        einsums = (self.qk_attn_weights_einsum_cls, self.attn_weights_value_einsum_cls)
        made = [None if factory is None else factory() for factory in einsums]
        options = {
            "mask": mask,
            "dropout_rng": dropout_rng,
            "dropout_rate": self.dropout_rate,
            "broadcast_dropout": self.broadcast_dropout,
            "deterministic": still,
            "dtype": self.dtype,
            "precision": self.precision,
            "force_fp32_for_softmax": self.force_fp32_for_softmax,
            "qk_attn_weights_einsum": made[0],
            "attn_weights_value_einsum": made[1],
        }
        known = inspect.signature(self.attention_fn).parameters
        options = {name: v for name, v in options.items() if name in known}
        if sow_weights:
            options["module"] = self
        out = self.attention_fn(query, key, value, **options)
        return DenseGeneral(
            self.out_features or inputs_q.shape[-1],
            axis=(-2, -1),
            kernel_init=self.out_kernel_init or self.kernel_init,
            bias_init=self.out_bias_init or self.bias_init,
            use_bias=self.use_bias,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            precision=self.precision,
            dot_general=self.out_dot_general,
            dot_general_cls=self.out_dot_general_cls,
            name="out",
        )(out)

    @nowrap
    def _projected(self, *inputs: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Query, key and value by head, of shape `(*batch, length, heads, depth)`."""
        features = self.qkv_features or inputs[0].shape[-1]
        if features % self.num_heads:
            raise ValueError(
                f"num_heads={self.num_heads} does not divide the {features} features "
                "of query, key and value. Set qkv_features to a multiple of it."
            )
        project = functools.partial(
            DenseGeneral,
            features=(self.num_heads, features // self.num_heads),
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            kernel_init=self.kernel_init,
            bias_init=self.bias_init,
            use_bias=self.use_bias,
            precision=self.precision,
            dot_general=self.qkv_dot_general,
            dot_general_cls=self.qkv_dot_general_cls,
        )
        names = ("query", "key", "value")
        query, key, value = (
            project(name=name)(x) for name, x in zip(names, inputs, strict=True)
        )
        if self.normalize_qk:
            # Without it, large models become unstable (Dehghani et al., 2023).
            norm = functools.partial(
                LayerNorm,
                use_bias=False,
                dtype=self.dtype,
                param_dtype=self.param_dtype,
            )
            query, key = norm(name="query_ln")(query), norm(name="key_ln")(key)
        return query, key, value

    @nowrap
    def _cached(
        self, query: jax.Array, key: jax.Array, value: jax.Array, mask: Any
    ) -> tuple[jax.Array, jax.Array, Any]:
        """Puts a position into the cache: keys and values so far, and their mask."""
        started = self.has_variable("cache", "cached_key")
        keys = self.variable("cache", "cached_key", jnp.zeros, key.shape, key.dtype)
        values = self.variable(
            "cache", "cached_value", jnp.zeros, value.shape, value.dtype
        )
        index = self.variable("cache", "cache_index", lambda: jnp.array(0, jnp.int32))
        if not started:  # `init`, whose input has the full length
            return key, value, mask
        *batch, length, heads, depth = keys.value.shape
        if query.shape != (*batch, 1, heads, depth):
            raise ValueError(
                "With decode=True the layer takes one position at a time: the query "
                f"must have the shape {(*batch, 1, heads, depth)}; found {query.shape}."
            )
        position = index.value
        axis = len(batch)
        key = lax.dynamic_update_slice_in_dim(keys.value, key, position, axis)
        value = lax.dynamic_update_slice_in_dim(values.value, value, position, axis)
        keys.value, values.value, index.value = key, value, position + 1
        # Later positions of the cache are still empty.
        seen = jnp.broadcast_to(jnp.arange(length) <= position, (*batch, 1, 1, length))
        return key, value, combine_masks(mask, seen)


def _keys_and_values(
    inputs_q: Any, inputs_k: Any, inputs_v: Any, inputs_kv: Any
) -> tuple[Any, Any]:
    if inputs_kv is not None:
        if inputs_k is not None or inputs_v is not None:
            raise ValueError(
                "inputs_kv stands for both inputs_k and inputs_v; found it together "
                "with one of them."
            )
        return inputs_kv, inputs_kv
    if inputs_k is None:
        if inputs_v is not None:
            raise ValueError(
                "Found inputs_v without inputs_k. Pass what is both as inputs_k."
            )
        inputs_k = inputs_q
    return inputs_k, inputs_k if inputs_v is None else inputs_v


class MultiHeadAttention(MultiHeadDotProductAttention):
    """`MultiHeadDotProductAttention` under a shorter name, also in variables.

    Example:
        >>> import linen_lift as nn, jax, jax.numpy as jnp
        >>> model = nn.Sequential([nn.MultiHeadAttention(num_heads=2)])
        >>> model.init_with_output(jax.random.key(0), jnp.ones((5, 8)))[0].shape
        (5, 8)
    """


class SelfAttention(MultiHeadDotProductAttention):
    """`MultiHeadDotProductAttention` of one input.

    Example:
        >>> import linen_lift as nn, jax, jax.numpy as jnp
        >>> layer, x = nn.SelfAttention(num_heads=2), jnp.ones((5, 8))
        >>> layer.init_with_output(jax.random.key(0), x)[0].shape
        (5, 8)
    """

    @compact
    def __call__(  # type: ignore[override]  # one input takes the place of three
        self,
        inputs_q: jax.Array,
        mask: jax.Array | None = None,
        deterministic: bool | None = None,
        dropout_rng: jax.Array | None = None,
        sow_weights: bool = False,
    ) -> jax.Array:
        """Attends.

        Args:
            inputs_q: an array of shape `(*batch, length, features)`.
            mask: false where a position must not attend to another; broadcasts to
                `(*batch, heads, length, length)`.
            deterministic: whether there is no dropout.
            dropout_rng: a key; drawn from the stream `dropout` if it is not given.
            sow_weights: whether to store the weights in the collection
                `intermediates`, as `attention_weights`.

        Returns:
            An array of shape `(*batch, length, out_features)`.
        """
        out: jax.Array = super().__call__(
            inputs_q,
            mask=mask,
            deterministic=deterministic,
            dropout_rng=dropout_rng,
            sow_weights=sow_weights,
        )
        return out
