"""Layers that are linear in their input: dense, convolution, embedding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jax.nn import initializers
from jax.sharding import AxisType, PartitionSpec

from graphcore import Param
from nnx_transforms.layers.dtypes import Array, DType, Initializer, cast, promote
from nnx_transforms.module import Module
from nnx_transforms.rngs import Rngs

_kernel_init = initializers.lecun_normal()
_bias_init = initializers.zeros
_embedding_init = initializers.variance_scaling(1.0, "fan_in", "normal", out_axis=0)
Padding: TypeAlias = str | int | Sequence[int | tuple[int, int]]


class Linear(Module):
    """A dense layer: `x @ kernel + bias`.

    Args:
        in_features: The size of the input's last axis.
        out_features: The size of the output's last axis.
        use_bias: Whether a bias is added.
        dtype: The dtype to compute in; None for what input and parameters promote to.
        param_dtype: The dtype of the parameters.
        precision: As for `jax.lax.dot_general`.
        kernel_init: Makes the kernel, of shape (in_features, out_features).
        bias_init: Makes the bias, of shape (out_features,).
        rngs: Streams; keys are drawn from `params`.

    Example:
        >>> import jax.numpy as jnp
        >>> layer = Linear(3, 2, rngs=Rngs(0))
        >>> layer(jnp.ones((4, 3))).shape, layer.kernel.value.shape
        ((4, 2), (3, 2))
    """

    kernel: Param[jax.Array]
    bias: Param[jax.Array] | None
    # What is rarely set is no attribute of each instance, and neither is what follows
    # from others: what an instance holds is compared at every compiled call.
    dtype: Any = None
    precision: Any = None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        use_bias: bool = True,
        dtype: DType | None = None,
        param_dtype: DType = jnp.float32,
        precision: Any = None,
        kernel_init: Initializer = _kernel_init,
        bias_init: Initializer = _bias_init,
        rngs: Rngs,
    ) -> None:
        shape = (in_features, out_features)
        self.kernel = Param(kernel_init(rngs.params(), shape, param_dtype))
        self.bias = None
        if use_bias:
            self.bias = Param(bias_init(rngs.params(), (out_features,), param_dtype))
        if dtype is not None:
            self.dtype = dtype
        if precision is not None:
            self.precision = precision

    @property
    def in_features(self) -> int:
        """The size of the input's last axis, which the kernel tells."""
        return int(self.kernel.value.shape[-2])

    @property
    def out_features(self) -> int:
        """The size of the output's last axis, which the kernel tells."""
        return int(self.kernel.value.shape[-1])

    def __call__(self, x: Array) -> jax.Array:
        """Applies the layer.

        Args:
            x: An array of shape (..., in_features).

        Returns:
            An array of shape (..., out_features).

        Example:
            >>> import jax.numpy as jnp
            >>> Linear(3, 2, rngs=Rngs(0))(jnp.ones(3)).shape
            (2,)
        """
        bias = None if self.bias is None else self.bias.value
        x, kernel, bias = promote(self.dtype, x, self.kernel.value, bias)
        y = jnp.matmul(x, kernel, precision=self.precision)
        return y if bias is None else y + bias


class Conv(Module):
    """A convolution over the axes between the first and the last.

    Args:
        in_features: The size of the input's last axis.
        out_features: The size of the output's last axis.
        kernel_size: The size of the window, one number a spatial axis; an integer for
            one spatial axis.
        strides: How far the window moves; an integer for all axes.
        padding: `'SAME'`, `'VALID'`, `'SAME_LOWER'`; `'CIRCULAR'` or `'REFLECT'` to
            keep the size and fill the border with what is at the other end or mirrored;
            `'CAUSAL'`, for one spatial axis, to see only what is before; or how much
            zero padding, as one number, a number an axis, or a pair an axis.
        input_dilation: As `lhs_dilation` of `jax.lax.conv_general_dilated`.
        kernel_dilation: As `rhs_dilation`.
        feature_group_count: Into how many groups the features are divided.
        use_bias: Whether a bias is added.
        dtype: The dtype to compute in; None for what input and parameters promote to.
        param_dtype: The dtype of the parameters.
        precision: As for `jax.lax.conv_general_dilated`.
        kernel_init: Makes the kernel, of shape
            (*kernel_size, in_features // feature_group_count, out_features).
        bias_init: Makes the bias, of shape (out_features,).
        rngs: Streams; keys are drawn from `params`.

    Raises:
        ValueError: If a size does not fit the others, or the padding is unknown.

    Example:
        >>> import jax.numpy as jnp
        >>> layer = Conv(3, 8, kernel_size=(3, 3), strides=2, rngs=Rngs(0))
        >>> layer(jnp.ones((4, 10, 10, 3))).shape
        (4, 5, 5, 8)
    """

    kernel: Param[jax.Array]
    bias: Param[jax.Array] | None
    # Rarely set, and so no attribute of each instance: what an instance holds is
    # compared at every compiled call.
    dtype: Any = None
    precision: Any = None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] = 1,
        *,
        padding: Padding = "SAME",
        input_dilation: int | Sequence[int] = 1,
        kernel_dilation: int | Sequence[int] = 1,
        feature_group_count: int = 1,
        use_bias: bool = True,
        dtype: DType | None = None,
        param_dtype: DType = jnp.float32,
        precision: Any = None,
        kernel_init: Initializer = _kernel_init,
        bias_init: Initializer = _bias_init,
        rngs: Rngs,
    ) -> None:
        size = (kernel_size,) if isinstance(kernel_size, int) else tuple(kernel_size)
        rank = len(size)
        if in_features % feature_group_count or out_features % feature_group_count:
            raise ValueError(
                f"Cannot divide {in_features} input and {out_features} output features "
                f"into feature_group_count={feature_group_count} groups of equal size."
            )
        self.kernel_size = size
        self.strides = _per_axis("strides", strides, rank)
        self.input_dilation = _per_axis("input_dilation", input_dilation, rank)
        self.kernel_dilation = _per_axis("kernel_dilation", kernel_dilation, rank)
        self.padding, self.border = self._padding(padding)
        self.in_features = in_features
        self.out_features = out_features
        self.feature_group_count = feature_group_count
        if dtype is not None:
            self.dtype = dtype
        if precision is not None:
            self.precision = precision
        shape = (*size, in_features // feature_group_count, out_features)
        self.kernel = Param(kernel_init(rngs.params(), shape, param_dtype))
        self.bias = None
        if use_bias:
            self.bias = Param(bias_init(rngs.params(), (out_features,), param_dtype))

    def _padding(self, given: Padding) -> tuple[Any, str | None]:
        """What the convolution gets as padding, and how the border is filled before."""
        reach = tuple(
            (size - 1) * dilation
            for size, dilation in zip(
                self.kernel_size, self.kernel_dilation, strict=True
            )
        )
        if not isinstance(given, str):
            return tuple(
                (p, p) if isinstance(p, int) else (int(p[0]), int(p[1]))
                for p in _per_axis("padding", given, len(reach))
            ), None
        mode = given.upper()
        if mode in ("SAME", "VALID", "SAME_LOWER"):
            return mode, None
        if mode in ("CIRCULAR", "REFLECT"):
            pads = tuple((r // 2, r - r // 2) for r in reach)
            return pads, {"CIRCULAR": "wrap", "REFLECT": "reflect"}[mode]
        if mode == "CAUSAL":
            if len(reach) != 1:
                raise ValueError(
                    f"The padding 'CAUSAL' is for one spatial axis, but kernel_size="
                    f"{self.kernel_size} has {len(reach)}: give pairs of numbers."
                )
            return ((reach[0], 0),), None
        raise ValueError(
            f"The padding {given!r} is unknown: expected 'SAME', 'VALID', "
            "'SAME_LOWER', 'CIRCULAR', 'REFLECT', 'CAUSAL', or numbers."
        )

    def __call__(self, x: Array) -> jax.Array:
        """Applies the convolution.

        Args:
            x: An array of shape (..., *spatial, in_features), with any number of batch
                axes, or none.

        Returns:
            An array of shape (..., *spatial, out_features).

        Raises:
            ValueError: If it has fewer axes than the window needs.

        Example:
            >>> import jax.numpy as jnp
            >>> Conv(1, 2, 3, padding='VALID', rngs=Rngs(0))(jnp.ones((5, 1))).shape
            (3, 2)
        """
        bias = None if self.bias is None else self.bias.value
        x, kernel, bias = promote(self.dtype, x, self.kernel.value, bias)
        rank = len(self.kernel_size)
        if x.ndim < rank + 1:
            raise ValueError(
                f"Conv with kernel_size={self.kernel_size} expected an input of shape "
                f"(..., {rank} spatial axes, {self.in_features}), got {x.shape}."
            )
        batch = x.shape[: x.ndim - rank - 1]
        if len(batch) != 1:
            x = x.reshape((-1, *x.shape[len(batch) :]))
        padding = self.padding
        if self.border is not None:
            x = jnp.pad(x, ((0, 0), *padding, (0, 0)), mode=self.border)
            padding = "VALID"
        spatial = tuple(range(1, rank + 1))
        layout = (0, rank + 1, *spatial)
        y = lax.conv_general_dilated(
            x,
            kernel,
            self.strides,
            padding,
            lhs_dilation=self.input_dilation,
            rhs_dilation=self.kernel_dilation,
            dimension_numbers=lax.ConvDimensionNumbers(
                layout, (rank + 1, rank, *range(rank)), layout
            ),
            feature_group_count=self.feature_group_count,
            precision=self.precision,
        )
        if bias is not None:
            y = y + bias
        if len(batch) != 1:
            y = y.reshape((*batch, *y.shape[1:]))
        return y


def _per_axis(name: str, given: Any, rank: int) -> tuple[Any, ...]:
    values = (given,) * rank if isinstance(given, int) else tuple(given)
    if len(values) != rank:
        raise ValueError(
            f"Conv got {name}={given!r} for {rank} spatial axes (as many as "
            "kernel_size has numbers): expected one number, or one an axis."
        )
    return values


class Embed(Module):
    """A table of vectors, looked up by integers.

    Args:
        num_embeddings: How many vectors.
        features: The size of each.
        dtype: The dtype of the result; None for that of the table.
        param_dtype: The dtype of the table.
        embedding_init: Makes the table, of shape (num_embeddings, features).
        rngs: Streams; a key is drawn from `params`.

    Example:
        >>> import jax.numpy as jnp
        >>> embed = Embed(10, 4, rngs=Rngs(0))
        >>> vectors = embed(jnp.array([[1, 2, 3]]))
        >>> vectors.shape, embed.attend(vectors).shape
        ((1, 3, 4), (1, 3, 10))
    """

    embedding: Param[jax.Array]
    # Rarely set, and so no attribute of each instance: what an instance holds is
    # compared at every compiled call.
    dtype: Any = None

    def __init__(
        self,
        num_embeddings: int,
        features: int,
        *,
        dtype: DType | None = None,
        param_dtype: DType = jnp.float32,
        embedding_init: Initializer = _embedding_init,
        rngs: Rngs,
    ) -> None:
        shape = (num_embeddings, features)
        self.embedding = Param(embedding_init(rngs.params(), shape, param_dtype))
        self.num_embeddings = num_embeddings
        self.features = features
        if dtype is not None:
            self.dtype = dtype

    def __call__(self, indices: Array) -> jax.Array:
        """Looks vectors up.

        Args:
            indices: Integers of any shape, below `num_embeddings`. What is out of range
                gives NaN, as `jax.numpy.take` does.

        Returns:
            An array of shape (*indices.shape, features).

        Raises:
            TypeError: If they are not integers.

        Example:
            >>> Embed(10, 4, rngs=Rngs(0))(3).shape
            (4,)
        """
        indices = jnp.asarray(indices)
        if not jnp.issubdtype(indices.dtype, jnp.integer):
            raise TypeError(
                f"Embed looks integers up, got indices of dtype {indices.dtype} and "
                f"shape {indices.shape}. Cast them, or use Linear for other inputs."
            )
        vectors = _rows(self.embedding.value, indices)
        return vectors if self.dtype is None else cast(vectors, self.dtype)

    def attend(self, query: Array) -> jax.Array:
        """Multiplies a query with every vector of the table.

        This is how an output layer shares its weights with the embedding; see Press
        and Wolf, "Using the Output Embedding to Improve Language Models",
        https://arxiv.org/abs/1608.05859.

        Args:
            query: An array of shape (..., features).

        Returns:
            An array of shape (..., num_embeddings).

        Example:
            >>> import jax.numpy as jnp
            >>> Embed(10, 4, rngs=Rngs(0)).attend(jnp.ones(4)).shape
            (10,)
        """
        query, embedding = promote(self.dtype, query, self.embedding.value)
        return jnp.matmul(query, embedding.T)


def _rows(table: jax.Array, indices: jax.Array) -> jax.Array:
    if AxisType.Explicit not in jax.sharding.get_abstract_mesh().axis_types:
        return jnp.take(table, indices, axis=0)
    # Over explicit axes JAX wants to be told that the result is divided as the indices
    # are, and its rows as those of the table.
    where, rows = (jax.typeof(x).sharding.spec for x in (indices, table))
    return table.at[indices].get(
        mode="fill",
        fill_value=jnp.nan,
        out_sharding=PartitionSpec(*where, *rows[1:]),
    )
