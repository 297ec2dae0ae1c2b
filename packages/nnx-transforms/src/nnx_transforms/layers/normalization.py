"""Normalization over a batch or over features.

Mean and variance are computed in two passes and at least in float32: the difference
of a mean of squares and a squared mean loses all digits where the mean is large.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.nn import initializers

from graphcore import BatchStat, Param
from nnx_transforms.layers.dtypes import (
    Array,
    DType,
    Initializer,
    cast,
    promoted_dtype,
)
from nnx_transforms.module import Module
from nnx_transforms.rngs import Rngs


class BatchNorm(Module):
    """Normalizes each feature over the batch, and tracks its mean and variance.

    See Ioffe and Szegedy, "Batch Normalization: Accelerating Deep Network Training by
    Reducing Internal Covariate Shift", https://arxiv.org/abs/1502.03167.

    Args:
        num_features: The size of the feature axis.
        use_running_average: Whether the tracked statistics are used, instead of those
            of the batch. `train()` and `eval()` switch it.
        axis: The feature axis; all others are normalized over.
        momentum: The weight of the past in the tracked statistics.
        epsilon: Added to the variance.
        dtype: The dtype of the result; None for what input and parameters promote to.
        param_dtype: The dtype of the parameters.
        use_bias: Whether a bias is added.
        use_scale: Whether a scale is multiplied with.
        bias_init: Makes the bias, of shape (num_features,).
        scale_init: Makes the scale, of shape (num_features,).
        axis_name: A mapped axis, or several, over which the batch is spread.
        rngs: Streams; keys are drawn from `params`.

    Example:
        >>> import jax.numpy as jnp
        >>> norm = BatchNorm(2, momentum=0.9, rngs=Rngs(0))
        >>> x = jnp.array([[1.0, 10.0], [3.0, 30.0]])
        >>> norm(x).round(3).tolist(), norm.mean.value.round(3)
        ([[-1.0, -1.0], [1.0, 1.0]], Array([0.2, 2. ], dtype=float32))
    """

    mean: BatchStat[jax.Array]
    var: BatchStat[jax.Array]
    scale: Param[jax.Array] | None
    bias: Param[jax.Array] | None
    # Rarely set, and so no attributes of each instance: what an instance holds is
    # compared at every compiled call.
    axis: int = -1
    momentum: float = 0.99
    epsilon: float = 1e-5
    dtype: Any = None
    axis_name: Any = None

    def __init__(
        self,
        num_features: int,
        *,
        use_running_average: bool = False,
        axis: int = -1,
        momentum: float = 0.99,
        epsilon: float = 1e-5,
        dtype: DType | None = None,
        param_dtype: DType = jnp.float32,
        use_bias: bool = True,
        use_scale: bool = True,
        bias_init: Initializer = initializers.zeros,
        scale_init: Initializer = initializers.ones,
        axis_name: Any = None,
        rngs: Rngs,
    ) -> None:
        shape = (num_features,)
        self.mean = BatchStat(jnp.zeros(shape, jnp.float32))
        self.var = BatchStat(jnp.ones(shape, jnp.float32))
        self.scale = self.bias = None
        if use_scale:
            self.scale = Param(scale_init(rngs.params(), shape, param_dtype))
        if use_bias:
            self.bias = Param(bias_init(rngs.params(), shape, param_dtype))
        self.use_running_average = use_running_average
        if axis != self.axis:
            self.axis = axis
        if momentum != self.momentum:
            self.momentum = momentum
        if epsilon != self.epsilon:
            self.epsilon = epsilon
        if dtype is not None:
            self.dtype = dtype
        if axis_name is not None:
            self.axis_name = axis_name

    @property
    def num_features(self) -> int:
        """The size of the feature axis, which the statistics tell."""
        return int(self.mean.value.shape[-1])

    def __call__(
        self, x: Array, *, use_running_average: bool | None = None
    ) -> jax.Array:
        """Normalizes, and updates the tracked statistics unless they are used.

        Args:
            x: An array with `num_features` features at the feature axis.
            use_running_average: Takes the place of the attribute, for this call.

        Returns:
            An array of the same shape.

        Raises:
            ValueError: If the feature axis has another size.

        Example:
            >>> import jax.numpy as jnp
            >>> norm = BatchNorm(2, rngs=Rngs(0))
            >>> norm(jnp.ones((4, 2)), use_running_average=True).shape
            (4, 2)
        """
        if use_running_average is None:
            use_running_average = self.use_running_average
        x = jnp.asarray(x)
        axis = self.axis % x.ndim if -x.ndim <= self.axis < x.ndim else None
        if axis is None or x.shape[axis] != self.num_features:
            raise ValueError(
                f"BatchNorm expected {self.num_features} features at axis {self.axis}, "
                f"got an input of shape {x.shape}."
            )
        others = tuple(i for i in range(x.ndim) if i != axis)
        wide = _at_least_float32(x)
        if use_running_average:
            mean, var = self.mean.value, self.var.value
            centered = wide - _along(mean, axis, x.ndim)
        else:
            mean = self._averaged(jnp.mean(wide, others))
            centered = wide - _along(mean, axis, x.ndim)
            var = self._averaged(jnp.mean(lax.square(centered), others))
            new = 1 - self.momentum
            self.mean.value = self.momentum * self.mean.value + new * mean
            self.var.value = self.momentum * self.var.value + new * var
        return _scaled(self, x, centered, var, axis)

    def _averaged(self, statistic: jax.Array) -> jax.Array:
        if self.axis_name is None:
            return statistic
        averaged: jax.Array = lax.pmean(statistic, self.axis_name)
        return averaged


class LayerNorm(Module):
    """Normalizes over the features of each example, the last axis.

    See Ba, Kiros and Hinton, "Layer Normalization", https://arxiv.org/abs/1607.06450.

    Args:
        num_features: The size of the last axis.
        epsilon: Added to the variance.
        dtype: The dtype of the result; None for what input and parameters promote to.
        param_dtype: The dtype of the parameters.
        use_bias: Whether a bias is added.
        use_scale: Whether a scale is multiplied with.
        bias_init: Makes the bias, of shape (num_features,).
        scale_init: Makes the scale, of shape (num_features,).
        rngs: Streams; keys are drawn from `params`.

    Example:
        >>> import jax.numpy as jnp
        >>> norm = LayerNorm(2, rngs=Rngs(0))
        >>> norm(jnp.array([[1.0, 3.0], [10.0, 30.0]])).round(3).tolist()
        [[-1.0, 1.0], [-1.0, 1.0]]
    """

    scale: Param[jax.Array] | None
    bias: Param[jax.Array] | None
    # Rarely set, and so no attributes of each instance: what an instance holds is
    # compared at every compiled call.
    epsilon: float = 1e-6
    dtype: Any = None
    _num_features: int

    def __init__(
        self,
        num_features: int,
        *,
        epsilon: float = 1e-6,
        dtype: DType | None = None,
        param_dtype: DType = jnp.float32,
        use_bias: bool = True,
        use_scale: bool = True,
        bias_init: Initializer = initializers.zeros,
        scale_init: Initializer = initializers.ones,
        rngs: Rngs,
    ) -> None:
        shape = (num_features,)
        self.scale = self.bias = None
        if use_scale:
            self.scale = Param(scale_init(rngs.params(), shape, param_dtype))
        if use_bias:
            self.bias = Param(bias_init(rngs.params(), shape, param_dtype))
        if self.scale is None and self.bias is None:
            self._num_features = num_features
        if epsilon != self.epsilon:
            self.epsilon = epsilon
        if dtype is not None:
            self.dtype = dtype

    @property
    def num_features(self) -> int:
        """The size of the last axis, which the parameters tell if there are any."""
        told_by = self.bias if self.scale is None else self.scale
        return self._num_features if told_by is None else int(told_by.value.shape[-1])

    def __call__(self, x: Array) -> jax.Array:
        """Normalizes.

        Args:
            x: An array of shape (..., num_features).

        Returns:
            An array of the same shape.

        Raises:
            ValueError: If the last axis has another size.

        Example:
            >>> import jax.numpy as jnp
            >>> LayerNorm(3, rngs=Rngs(0))(jnp.ones((2, 3))).tolist()
            [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
        """
        x = jnp.asarray(x)
        if not x.ndim or x.shape[-1] != self.num_features:
            raise ValueError(
                f"LayerNorm expected {self.num_features} features at the last axis, "
                f"got an input of shape {x.shape}."
            )
        wide = _at_least_float32(x)
        centered = wide - jnp.mean(wide, -1, keepdims=True)
        var = jnp.mean(lax.square(centered), -1, keepdims=True)
        return _scaled(self, x, centered, var, None)


def _at_least_float32(x: jax.Array) -> jax.Array:
    if x.dtype == jnp.float32:
        return x
    return cast(x, jnp.promote_types(x.dtype, jnp.float32))


def _along(vector: jax.Array, axis: int, ndim: int) -> jax.Array:
    """A vector in a shape that broadcasts along an axis."""
    if axis == ndim - 1:
        return vector
    return vector.reshape([-1 if i == axis else 1 for i in range(ndim)])


def _scaled(
    layer: BatchNorm | LayerNorm,
    x: jax.Array,
    centered: jax.Array,
    var: jax.Array,
    axis: int | None,
) -> jax.Array:
    """Divides by the deviation, and applies scale and bias.

    A given axis is where features are, in the variance, too.
    """
    last = axis is None or axis == x.ndim - 1
    scale = None if layer.scale is None else layer.scale.value
    bias = None if layer.bias is None else layer.bias.value
    dtype = layer.dtype
    if dtype is None:
        dtype = promoted_dtype([a for a in (x, scale, bias) if a is not None])
    factor = lax.rsqrt(var + layer.epsilon)
    if scale is not None:
        factor = factor * scale
    y = centered * (factor if last else _along(factor, axis or 0, x.ndim))
    if bias is not None:
        y = y + (bias if last else _along(bias, axis or 0, x.ndim))
    return cast(y, dtype)
