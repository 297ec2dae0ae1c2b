"""Layers that multiply with a kernel: `Dense`, `Conv`, `Embed`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.nn import initializers

from ..module import Module, compact
from .dtypes import promoted

__all__ = ["Conv", "Dense", "Embed"]

Initializer = Callable[..., Any]

_default_kernel_init = initializers.lecun_normal()
_default_embed_init = initializers.variance_scaling(1.0, "fan_in", "normal", out_axis=0)


class Dense(Module):
    """A linear map of the last axis.

    Args:
        features: the size of the output.
        use_bias: whether to add a bias.
        dtype: the type to compute in; None for that of input and parameters.
        param_dtype: the type of the parameters.
        precision: see `jax.lax.Precision`.
        kernel_init: makes the kernel, of shape `(in, features)`.
        bias_init: makes the bias, of shape `(features,)`.

    Example:
        >>> import linen_lift as nn, jax, jax.numpy as jnp
        >>> out, _ = nn.Dense(5).init_with_output(jax.random.key(0), jnp.ones((2, 3)))
        >>> out.shape
        (2, 5)
    """

    features: int
    use_bias: bool = True
    dtype: Any = None
    param_dtype: Any = jnp.float32
    precision: Any = None
    kernel_init: Initializer = _default_kernel_init
    bias_init: Initializer = initializers.zeros

    @compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Maps the last axis.

        Args:
            inputs: an array of shape `(..., in)`.

        Returns:
            An array of shape `(..., features)`.
        """
        inputs = jnp.asarray(inputs)
        shape = (inputs.shape[-1], self.features)
        kernel = self.param("kernel", self.kernel_init, shape, self.param_dtype)
        bias = None
        if self.use_bias:
            bias = self.param(
                "bias", self.bias_init, (self.features,), self.param_dtype
            )
        inputs, kernel, bias = promoted(inputs, kernel, bias, dtype=self.dtype)
        dimensions = (((inputs.ndim - 1,), (0,)), ((), ()))
        out = lax.dot_general(
            inputs,
            kernel,
            dimensions,
            precision=self.precision,
            preferred_element_type=inputs.dtype,  # as in `inputs @ kernel`
        )
        return out if bias is None else out + bias


def _per_axis(value: Any, count: int, name: str) -> tuple[int, ...]:
    if value is None:
        value = 1
    if isinstance(value, int):
        return (value,) * count
    if len(value) != count:
        raise ValueError(
            f"Conv needs one {name} per axis of kernel_size ({count}); found {value!r}."
        )
    return tuple(value)


class Conv(Module):
    """A convolution over the axes before the last one.

    Args:
        features: the number of output channels.
        kernel_size: the size of the kernel along each spatial axis.
        strides: an integer, or one per spatial axis.
        padding: 'SAME', 'VALID', 'CIRCULAR' (wraps around), 'CAUSAL' (one axis, looks
            back only), an integer, or an integer or a pair of them per axis.
        input_dilation: see `jax.lax.conv_general_dilated`.
        kernel_dilation: see `jax.lax.conv_general_dilated`.
        feature_group_count: see `jax.lax.conv_general_dilated`.
        use_bias: whether to add a bias.
        mask: multiplied with the kernel, if given.
        dtype: the type to compute in; None for that of input and parameters.
        param_dtype: the type of the parameters.
        precision: see `jax.lax.Precision`.
        kernel_init: makes the kernel, of shape `(*kernel_size, in / groups, features)`.
        bias_init: makes the bias, of shape `(features,)`.

    Example:
        >>> import linen_lift as nn, jax, jax.numpy as jnp
        >>> image, conv = jnp.ones((1, 8, 8, 3)), nn.Conv(16, (3, 3), strides=2)
        >>> conv.init_with_output(jax.random.key(0), image)[0].shape
        (1, 4, 4, 16)
    """

    features: int
    kernel_size: Sequence[int]
    strides: int | Sequence[int] | None = 1
    padding: Any = "SAME"
    input_dilation: int | Sequence[int] | None = 1
    kernel_dilation: int | Sequence[int] | None = 1
    feature_group_count: int = 1
    use_bias: bool = True
    mask: Any = None
    dtype: Any = None
    param_dtype: Any = jnp.float32
    precision: Any = None
    kernel_init: Initializer = _default_kernel_init
    bias_init: Initializer = initializers.zeros

    @compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Convolves.

        Args:
            inputs: an array of shape `(*batch, *spatial, in)`, with any number of
                batch axes, none included.

        Returns:
            An array of shape `(*batch, *spatial, features)`.
        """
        if isinstance(self.kernel_size, int):
            raise TypeError(
                "kernel_size needs one integer per spatial axis, such as (3, 3); found "
                f"{self.kernel_size!r}."
            )
        inputs = jnp.asarray(inputs)
        size = tuple(self.kernel_size)
        rank = len(size)
        strides = _per_axis(self.strides, rank, "stride")
        input_dilation = _per_axis(self.input_dilation, rank, "input_dilation")
        kernel_dilation = _per_axis(self.kernel_dilation, rank, "kernel_dilation")
        channels = inputs.shape[-1]
        if channels % self.feature_group_count:
            raise ValueError(
                f"The {channels} input channels cannot be split into "
                f"feature_group_count={self.feature_group_count} groups."
            )
        shape = (*size, channels // self.feature_group_count, self.features)
        kernel = self.param("kernel", self.kernel_init, shape, self.param_dtype)
        if self.mask is not None:
            if self.mask.shape != shape:
                raise ValueError(
                    f"The mask must have the kernel's shape {shape}; found "
                    f"{self.mask.shape}."
                )
            kernel = kernel * self.mask
        bias = None
        if self.use_bias:
            bias = self.param(
                "bias", self.bias_init, (self.features,), self.param_dtype
            )

        batch = inputs.shape[: inputs.ndim - rank - 1]
        flat = inputs
        if len(batch) != 1:
            count = 1
            for n in batch:
                count *= n
            flat = inputs.reshape((count, *inputs.shape[len(batch) :]))
        flat, padding = self._padded(flat, size, kernel_dilation)
        flat, kernel, bias = promoted(flat, kernel, bias, dtype=self.dtype)
        axes = tuple(range(1, rank + 1))
        out = lax.conv_general_dilated(
            flat,
            kernel,
            strides,
            padding,
            lhs_dilation=input_dilation,
            rhs_dilation=kernel_dilation,
            dimension_numbers=lax.ConvDimensionNumbers(
                (0, rank + 1, *axes),
                (rank + 1, rank, *range(rank)),
                (0, rank + 1, *axes),
            ),
            feature_group_count=self.feature_group_count,
            precision=self.precision,
        )
        if bias is not None:
            out = out + bias
        return out if len(batch) == 1 else out.reshape((*batch, *out.shape[1:]))

    def _padded(
        self, flat: jax.Array, size: tuple[int, ...], dilation: tuple[int, ...]
    ) -> tuple[jax.Array, Any]:
        padding = self.padding
        if padding in ("CIRCULAR", "CAUSAL"):
            reach = [d * (k - 1) for k, d in zip(size, dilation, strict=True)]
            if padding == "CIRCULAR":
                widths = [(r // 2, r - r // 2) for r in reach]
                return jnp.pad(flat, [(0, 0), *widths, (0, 0)], mode="wrap"), "VALID"
            if len(size) != 1:
                raise ValueError(
                    f"CAUSAL padding is for one spatial axis; found kernel_size={size}."
                )
            return jnp.pad(flat, [(0, 0), (reach[0], 0), (0, 0)]), "VALID"
        if isinstance(padding, str):
            return flat, padding
        if isinstance(padding, int):
            padding = (padding,) * len(size)
        pairs = [(p, p) if isinstance(p, int) else tuple(p) for p in padding]
        if len(pairs) != len(size):
            raise ValueError(
                f"padding needs one entry per axis of kernel_size={size}; found "
                f"{self.padding!r}."
            )
        return flat, pairs


class Embed(Module):
    """A table of vectors, looked up by integers.

    Args:
        num_embeddings: the number of vectors.
        features: the size of each.
        dtype: the type of the result; None for that of the table.
        param_dtype: the type of the table.
        embedding_init: makes the table, of shape `(num_embeddings, features)`.

    Example:
        >>> import linen_lift as nn, jax, jax.numpy as jnp
        >>> ids = jnp.array([[0, 4]])
        >>> out, _ = nn.Embed(10, 3).init_with_output(jax.random.key(0), ids)
        >>> out.shape
        (1, 2, 3)
    """

    num_embeddings: int
    features: int
    dtype: Any = None
    param_dtype: Any = jnp.float32
    embedding_init: Initializer = _default_embed_init

    def setup(self) -> None:
        self.embedding = self.param(
            "embedding",
            self.embedding_init,
            (self.num_embeddings, self.features),
            self.param_dtype,
        )

    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Looks vectors up.

        Args:
            inputs: an array of integers.

        Returns:
            An array of shape `(*inputs.shape, features)`.

        Raises:
            TypeError: if `inputs` are no integers.
        """
        inputs = jnp.asarray(inputs)
        if not jnp.issubdtype(inputs.dtype, jnp.integer):
            raise TypeError(
                f"Embed looks vectors up by integers; found dtype {inputs.dtype}."
            )
        (table,) = promoted(self.embedding, dtype=self.dtype)
        found: jax.Array = jnp.take(table, inputs, axis=0)
        return found

    def attend(self, query: jax.Array) -> jax.Array:
        """The inner product of a query with each vector.

        Args:
            query: an array of shape `(..., features)`.

        Returns:
            An array of shape `(..., num_embeddings)`.
        """
        query, table = promoted(jnp.asarray(query), self.embedding, dtype=self.dtype)
        return jnp.dot(query, table.T)
