"""Attention with several heads."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from graphcore import Cache
from nnx_transforms.layers.attention_functions import dot_product_attention
from nnx_transforms.layers.dtypes import promote_dtype
from nnx_transforms.layers.layer import Layer, chosen, dropout_key, own_stream
from nnx_transforms.layers.linear import (
    LinearGeneral,
    default_bias_init,
    default_kernel_init,
)
from nnx_transforms.layers.masks import combine_masks
from nnx_transforms.layers.normalization import LayerNorm
from nnx_transforms.layers.options import given
from nnx_transforms.layers.types import Array, DType, Initializer, Promotion
from nnx_transforms.randomness.rngs import Rngs, RngStream

__all__ = ["MultiHeadAttention"]


class MultiHeadAttention(Layer):
    """Attention of several heads.

    The layers `query`, `key` and `value` make the arguments of an attention function
    for each head, and `out` maps what it gives for all of them to the output. See
    Vaswani et al., "Attention Is All You Need", https://arxiv.org/abs/1706.03762.

    Args:
        num_heads: The number of heads.
        in_features: The size of the last axis of `inputs_q`.
        qkv_features: The size of the queries of all heads together; None for
            `in_features`.
        out_features: The size of the output's last axis; None for `in_features`.
        num_kv_heads: The number of heads of keys and values, each of which several
            heads share; None for `num_heads`.
        in_kv_features: The size of the last axis of `inputs_k` and `inputs_v`; None for
            `in_features`.
        dtype: The dtype to compute in; None for what input and parameters promote to.
        param_dtype: The dtype of the parameters.
        broadcast_dropout: Whether the batch and the heads share one decision.
        dropout_rate: The probability that an attention weight is set to zero.
        deterministic: Whether there is no dropout. `train()` and `eval()` switch it;
            None if each call says it.
        precision: As for `jax.lax.dot_general`.
        kernel_init: Makes the kernels.
        out_kernel_init: Makes the kernel of `out`; None for `kernel_init`.
        bias_init: Makes the biases.
        out_bias_init: Makes the bias of `out`; None for `bias_init`.
        use_bias: Whether biases are added.
        attention_fn: A function like `dot_product_attention`.
        decode: Whether to go through a sequence one place at a time, with the keys and
            values of the places before in the cache that `init_cache` makes; None if
            each call says it.
        normalize_qk: Whether queries and keys are normalized, by `LayerNorm`.
        qkv_promote_dtype: The `promote_dtype` of `query`, `key` and `value`.
        out_promote_dtype: That of `out`.
        ln_promote_dtype: That of the normalization.
        qkv_dot_general: The `dot_general` of `query`, `key` and `value`.
        out_dot_general: That of `out`.
        qkv_dot_general_cls: Called for the former.
        out_dot_general_cls: Called for the latter.
        rngs: Streams; keys are drawn from `params`, and for dropout one from `dropout`,
            with which a stream of the layer's own begins.
        keep_rngs: Whether there is such a stream.
        kernel_metadata: Metadata of the kernels.
        out_kernel_metadata: That of `out`; that of the others if it is empty.
        bias_metadata: Metadata of the biases.
        out_bias_metadata: That of `out`; that of the others if it is empty.
        query_ln_scale_metadata: Metadata of the scale of normalized queries.
        key_ln_scale_metadata: That of normalized keys.

    Raises:
        ValueError: If heads do not divide what is divided among them.

    Example:
        >>> import jax.numpy as jnp
        >>> layer = MultiHeadAttention(2, 8, decode=False, rngs=Rngs(0))
        >>> layer(jnp.ones((1, 5, 8)), is_causal=True).shape
        (1, 5, 8)
        >>> layer.query.kernel.value.shape
        (8, 2, 4)
    """

    broadcast_dropout: bool = True
    dropout_rate: float = 0.0
    precision: Any = None
    use_bias: bool = True
    attention_fn: Any = staticmethod(dot_product_attention)
    normalize_qk: bool = False
    qkv_promote_dtype: Any = staticmethod(promote_dtype)
    out_promote_dtype: Any = staticmethod(promote_dtype)
    ln_promote_dtype: Any = staticmethod(promote_dtype)
    qkv_dot_general: Any = None
    out_dot_general: Any = None
    qkv_dot_general_cls: Any = None
    out_dot_general_cls: Any = None
    query_ln: LayerNorm | None = None
    key_ln: LayerNorm | None = None
    rngs: RngStream | None = None
    cached_key: Cache[jax.Array] | None = None
    cached_value: Cache[jax.Array] | None = None
    cache_index: Cache[jax.Array] | None = None

    def __init__(
        self,
        num_heads: int,
        in_features: int,
        qkv_features: int | None = None,
        out_features: int | None = None,
        num_kv_heads: int | None = None,
        in_kv_features: int | None = None,
        *,
        dtype: DType | None = None,
        param_dtype: DType = jnp.float32,
        broadcast_dropout: bool = True,
        dropout_rate: float = 0.0,
        deterministic: bool | None = None,
        precision: Any = None,
        kernel_init: Initializer = default_kernel_init,
        out_kernel_init: Initializer | None = None,
        bias_init: Initializer = default_bias_init,
        out_bias_init: Initializer | None = None,
        use_bias: bool = True,
        attention_fn: Callable[..., Any] = dot_product_attention,
        decode: bool | None = None,
        normalize_qk: bool = False,
        qkv_promote_dtype: Promotion = promote_dtype,
        out_promote_dtype: Promotion = promote_dtype,
        ln_promote_dtype: Promotion = promote_dtype,
        qkv_dot_general: Callable[..., Any] | None = None,
        out_dot_general: Callable[..., Any] | None = None,
        qkv_dot_general_cls: Any = None,
        out_dot_general_cls: Any = None,
        rngs: Rngs,
        keep_rngs: bool = True,
        kernel_metadata: Mapping[str, Any] = {},
        out_kernel_metadata: Mapping[str, Any] = {},
        bias_metadata: Mapping[str, Any] = {},
        out_bias_metadata: Mapping[str, Any] = {},
        query_ln_scale_metadata: Mapping[str, Any] = {},
        key_ln_scale_metadata: Mapping[str, Any] = {},
    ) -> None:
        super().keep(locals())
        self.num_heads = num_heads
        self.in_features = in_features
        self.qkv_features = in_features if qkv_features is None else qkv_features
        self.out_features = in_features if out_features is None else out_features
        self.in_kv_features = in_features if in_kv_features is None else in_kv_features
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        if self.num_heads % self.num_kv_heads or self.qkv_features % num_heads:
            raise ValueError(
                f"MultiHeadAttention cannot divide qkv_features={self.qkv_features} "
                f"among num_heads={num_heads}, or these among num_kv_heads="
                f"{self.num_kv_heads}, in equal parts."
            )
        self.head_dim = self.qkv_features // num_heads
        self.deterministic = deterministic
        self.decode = decode
        common: dict[str, Any] = {
            "use_bias": use_bias,
            "dtype": dtype,
            "param_dtype": param_dtype,
            "precision": precision,
            "rngs": rngs,
        }
        projection: Callable[..., LinearGeneral] = functools.partial(
            LinearGeneral,
            kernel_init=kernel_init,
            bias_init=bias_init,
            promote_dtype=qkv_promote_dtype,
            dot_general=qkv_dot_general,
            dot_general_cls=qkv_dot_general_cls,
            kernel_metadata=kernel_metadata,
            bias_metadata=bias_metadata,
            **common,
        )
        heads, kv_heads = (num_heads, self.head_dim), (self.num_kv_heads, self.head_dim)
        of_keys = {"in_features": self.in_kv_features, "out_features": kv_heads}
        self.query = projection(in_features=in_features, out_features=heads)
        self.key = projection(**of_keys)
        self.value = projection(**of_keys)
        if normalize_qk:
            norm = functools.partial(
                LayerNorm,
                self.head_dim,
                use_bias=False,
                dtype=dtype,
                param_dtype=param_dtype,
                promote_dtype=ln_promote_dtype,
                rngs=rngs,
            )
            self.query_ln = norm(scale_metadata=query_ln_scale_metadata)
            self.key_ln = norm(scale_metadata=key_ln_scale_metadata)
        self.out = LinearGeneral(
            heads,
            self.out_features,
            axis=(-2, -1),
            kernel_init=out_kernel_init or kernel_init,
            bias_init=out_bias_init or bias_init,
            promote_dtype=out_promote_dtype,
            dot_general=out_dot_general,
            dot_general_cls=out_dot_general_cls,
            kernel_metadata=out_kernel_metadata or kernel_metadata,
            bias_metadata=out_bias_metadata or bias_metadata,
            **common,
        )
        if keep_rngs and dropout_rate > 0:
            self.rngs = own_stream(rngs, "dropout")

    def __call__(
        self,
        inputs_q: Array,
        inputs_k: Array | None = None,
        inputs_v: Array | None = None,
        *,
        mask: Array | None = None,
        deterministic: bool | None = None,
        rngs: Rngs | RngStream | None = None,
        sow_weights: bool = False,
        decode: bool | None = None,
        is_causal: bool = False,
        out_sharding: Any = None,
        qkv_sharding: Any = None,
        input_positions: Array | None = None,
    ) -> jax.Array:
        """Attends.

        Args:
            inputs_q: An array of shape (*batch, queries, in_features).
            inputs_k: An array of shape (*batch, keys, in_kv_features); None for
                `inputs_q`.
            inputs_v: Another one; None for `inputs_k`.
            mask: False where a query must not attend to a key; broadcasts to
                (*batch, heads, queries, keys).
            deterministic: Takes the place of the attribute, for this call.
            rngs: Streams or a stream, in place of the layer's own.
            sow_weights: Whether to record the weights, as `attention_weights` of type
                `Intermediate`.
            decode: Takes the place of the attribute, for this call.
            is_causal: Whether each query attends only to keys at its place and before;
                it always does while decoding.
            out_sharding: The sharding of the output; see `LinearGeneral`.
            qkv_sharding: The sharding of queries, keys and values.
            input_positions: Given to the attention function, if it is not None; see
                `dot_product_attention_with_rope`.

        Returns:
            An array of shape (*batch, queries, out_features).

        Raises:
            ValueError: If shapes do not fit, values are given without keys, there is
                no cache to decode with, or nothing says whether to decode or drop out,
                or where keys for dropout come from.

        Example:
            >>> import jax.numpy as jnp
            >>> layer = MultiHeadAttention(2, 8, decode=False, rngs=Rngs(0))
            >>> layer(jnp.ones((1, 5, 8)), jnp.ones((1, 3, 8))).shape
            (1, 5, 8)
        """
        if inputs_k is None:
            if inputs_v is not None:
                raise ValueError(
                    "MultiHeadAttention got inputs_v without inputs_k. Where both are "
                    "the same, pass inputs_k alone."
                )
            inputs_k = inputs_q
        inputs_v = inputs_k if inputs_v is None else inputs_v
        if jnp.shape(inputs_q)[-1] != self.in_features:
            raise ValueError(
                f"MultiHeadAttention expected {self.in_features} features at the last "
                f"axis of inputs_q, got the shape {jnp.shape(inputs_q)}."
            )
        query = self.query(inputs_q, out_sharding=qkv_sharding)
        key = self.key(inputs_k, out_sharding=qkv_sharding)
        value = self.value(inputs_v, out_sharding=qkv_sharding)
        if self.query_ln is not None and self.key_ln is not None:
            query, key = self.query_ln(query), self.key_ln(key)
        decode = chosen(self, "decode", decode)
        if decode:
            key, value, mask = self._remember(key, value, mask)
        dropout_rng = None
        if self.dropout_rate > 0 and not chosen(self, "deterministic", deterministic):
            dropout_rng = dropout_key(self, rngs, "dropout", "keep_rngs=True")
        attended = self.attention_fn(
            query,
            key,
            value,
            mask=mask,
            dropout_rng=dropout_rng,
            dropout_rate=self.dropout_rate,
            broadcast_dropout=self.broadcast_dropout,
            deterministic=dropout_rng is None,
            dtype=self.dtype,
            precision=self.precision,
            module=self if sow_weights else None,
            # When decoding, the cache holds only earlier positions.
            is_causal=is_causal and not decode,
            **given(input_positions=input_positions),
        )
        return self.out(attended, out_sharding=out_sharding)

    def _remember(
        self, key: jax.Array, value: jax.Array, mask: Array | None
    ) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        """Puts the place of this call into the cache; returns all of it, and a mask."""
        if (
            self.cached_key is None
            or self.cached_value is None
            or self.cache_index is None
        ):
            raise ValueError(
                "MultiHeadAttention decodes with a cache and has none: call "
                "`init_cache` first, with the shape of an input that has the length "
                "of the whole sequence."
            )
        *batch, length, heads, depth = self.cached_key.value.shape
        if key.shape != (*batch, 1, heads, depth):
            raise ValueError(
                "While decoding, MultiHeadAttention goes through the cache of shape "
                f"{self.cached_key.value.shape} one place at a time: expected keys of "
                f"shape {(*batch, 1, heads, depth)}, got {key.shape}."
            )
        index = self.cache_index.value
        for cache, new in ((self.cached_key, key), (self.cached_value, value)):
            cache.value = lax.dynamic_update_slice_in_dim(
                cache.value, new.astype(cache.value.dtype), index, axis=len(batch)
            )
        self.cache_index.value = index + 1
        filled = jnp.broadcast_to(jnp.arange(length) <= index, (*batch, 1, 1, length))
        mask = combine_masks(mask, filled)
        return self.cached_key.value, self.cached_value.value, mask

    def init_cache(
        self, input_shape: Sequence[int], dtype: DType = jnp.float32
    ) -> None:
        """Makes an empty cache for decoding.

        Args:
            input_shape: (*batch, length of the whole sequence, in_features).
            dtype: The dtype of the keys and values in the cache.

        Example:
            >>> import jax.numpy as jnp
            >>> layer = MultiHeadAttention(2, 8, decode=True, rngs=Rngs(0))
            >>> layer.init_cache((1, 5, 8))
            >>> layer(jnp.ones((1, 1, 8))).shape, int(layer.cache_index.value)
            ((1, 1, 8), 1)
        """
        shape = (*input_shape[:-1], self.num_kv_heads, self.head_dim)
        self.cached_key = Cache(jnp.zeros(shape, dtype))
        self.cached_value = Cache(jnp.zeros(shape, dtype))
        self.cache_index = Cache(jnp.array(0, jnp.int32))

    def set_view(
        self,
        deterministic: bool | None = None,
        decode: bool | None = None,
        batch_size: int | Sequence[int] | None = None,
        max_length: int | None = None,
    ) -> None:
        """Switches the mode of this layer, for a view of a model.

        Args:
            deterministic: Whether there is no dropout; None to leave it.
            decode: Whether to decode; None to leave it.
            batch_size: The shape of the batch of a cache that is made, if there is
                none.
            max_length: The length of the whole sequence in it.

        Example:
            >>> layer = MultiHeadAttention(2, 8, rngs=Rngs(0))
            >>> layer.set_view(decode=True, batch_size=1, max_length=5)
            >>> layer.cached_key.value.shape
            (1, 5, 2, 4)
        """
        if deterministic is not None:
            self.deterministic = deterministic
        if decode is not None:
            self.decode = decode
        if decode and max_length is not None and self.cached_key is None:
            batch = (batch_size,) if isinstance(batch_size, int) else batch_size or ()
            self.init_cache(
                (*batch, max_length, self.in_features), self.dtype or jnp.float32
            )
