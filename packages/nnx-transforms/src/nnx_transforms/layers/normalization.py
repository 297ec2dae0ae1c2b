"""Normalization over a batch or over features."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.nn import initializers

from graphcore import BatchStat
from nnx_transforms.layers.dtypes import (
    Array,
    DType,
    Initializer,
    Promotion,
    keep_dtype,
    promote_dtype,
)
from nnx_transforms.layers.layer import chosen
from nnx_transforms.layers.linear import NO_METADATA
from nnx_transforms.layers.moments import (
    Axes,
    Norm,
    along,
    at_least_float32,
    canonical_axes,
    squared,
)
from nnx_transforms.randomness.rngs import Rngs

__all__ = ["BatchNorm", "LayerNorm", "RMSNorm"]


class BatchNorm(Norm):
    """Normalizes each feature over the batch, and tracks its mean and variance.

    See Ioffe and Szegedy, "Batch Normalization: Accelerating Deep Network Training by
    Reducing Internal Covariate Shift", https://arxiv.org/abs/1502.03167.

    Args:
        num_features: The size of the feature axis.
        use_running_average: Whether the tracked statistics are used, instead of those
            of the batch. `train()` and `eval()` switch it; None if each call says it.
        axis: The feature axis; all others are normalized over.
        momentum: The weight of the past in the tracked statistics.
        epsilon: Added to the variance.
        dtype: The dtype of the result; None for what input, parameters and statistics
            promote to.
        param_dtype: The dtype of the parameters; statistics are float32, and the
            mean complex where the input is.
        use_bias: Whether a bias is added.
        use_scale: Whether a scale is multiplied with.
        bias_init: Makes the bias, of shape (num_features,).
        scale_init: Makes the scale, of shape (num_features,).
        axis_name: A mapped axis, or several, over which the batch is spread.
        axis_index_groups: As for `jax.lax.pmean`.
        use_fast_variance: Whether the variance is the difference of the mean of squares
            and the squared mean, which reads the input once, but loses the digits that
            a mean much larger than the deviation has. False takes two passes.
        promote_dtype: `promote_dtype((inputs, mean, var, scale, bias), dtype=dtype)`
            casts them.
        rngs: Streams; keys are drawn from `params`.
        bias_metadata: Metadata of the bias.
        scale_metadata: Metadata of the scale.

    Example:
        >>> import jax.numpy as jnp
        >>> norm = BatchNorm(2, momentum=0.9, rngs=Rngs(0))
        >>> x = jnp.array([[1.0, 10.0], [3.0, 30.0]])
        >>> norm(x).round(3).tolist(), norm.mean.value.round(3)
        ([[-1.0, -1.0], [1.0, 1.0]], Array([0.2, 2. ], dtype=float32))
    """

    mean: BatchStat[jax.Array]
    var: BatchStat[jax.Array]
    axis: int = -1
    momentum: float = 0.99
    epsilon: float = 1e-5

    def __init__(
        self,
        num_features: int,
        *,
        use_running_average: bool | None = False,
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
        axis_index_groups: Any = None,
        use_fast_variance: bool = True,
        promote_dtype: Promotion = promote_dtype,
        rngs: Rngs,
        bias_metadata: Mapping[str, Any] = NO_METADATA,
        scale_metadata: Mapping[str, Any] = NO_METADATA,
    ) -> None:
        self.mean = BatchStat(jnp.zeros((num_features,), jnp.float32))
        self.var = BatchStat(jnp.ones((num_features,), jnp.float32))
        self.use_running_average = use_running_average
        super()._set_up(locals())

    @property
    def num_features(self) -> int:
        """The size of the feature axis, which the statistics tell."""
        return int(self.mean.value.shape[-1])

    def __call__(
        self,
        x: Array,
        use_running_average: bool | None = None,
        *,
        mask: Array | None = None,
    ) -> jax.Array:
        """Normalizes, and updates the tracked statistics unless they are used.

        Args:
            x: An array with `num_features` features at the feature axis.
            use_running_average: Takes the place of the attribute, for this call.
            mask: Whether an element counts in the statistics; broadcasts to the input.

        Returns:
            An array of the same shape.

        Raises:
            ValueError: If the feature axis has another size, or nothing says whether
                the tracked statistics are used.

        Example:
            >>> import jax.numpy as jnp
            >>> norm = BatchNorm(2, rngs=Rngs(0))
            >>> norm(jnp.ones((4, 2)), use_running_average=True).shape
            (4, 2)
        """
        use_running_average = chosen(
            self, "use_running_average", use_running_average, self.use_running_average
        )
        mean, var = self.mean.value, self.var.value
        x, scale, bias = self._promoted(x, mean, var)
        self._check_features(x, (self.axis,))
        axes = canonical_axes(self.axis, x.ndim)
        others = tuple(i for i in range(x.ndim) if i not in axes)
        if use_running_average:
            mean, var = along(mean, x, axes), along(var, x, axes)
            return self._scaled(x, mean, var, scale, bias, axes)
        of_batch = self._statistics(x, others, mask)
        new = 1 - self.momentum
        for tracked, found in zip((self.mean, self.var), of_batch, strict=True):
            found = found.reshape(tracked.value.shape)
            keep_dtype(tracked, self.momentum * tracked.value + new * found)
        return self._scaled(x, *of_batch, scale, bias, axes)

    def set_view(self, use_running_average: bool | None = None) -> None:
        """Switches the mode of this layer, for a view of a model.

        Args:
            use_running_average: Whether to use the running statistics; None to leave
                it.

        Example:
            >>> norm = BatchNorm(2, rngs=Rngs(0)); norm.set_view(True)
            >>> norm.use_running_average
            True
        """
        if use_running_average is not None:
            self.use_running_average = use_running_average


class LayerNorm(Norm):
    """Normalizes over the features of each example, the last axis or others.

    See Ba, Kiros and Hinton, "Layer Normalization", https://arxiv.org/abs/1607.06450.

    Args:
        num_features: The size of the feature axis.
        epsilon: Added to the variance.
        dtype: The dtype of the result; None for what input and parameters promote to.
        param_dtype: The dtype of the parameters.
        use_bias: Whether a bias is added.
        use_scale: Whether a scale is multiplied with.
        bias_init: Makes the bias, of shape (num_features,).
        scale_init: Makes the scale, of shape (num_features,).
        reduction_axes: The axes that are normalized over.
        feature_axes: The axes that scale and bias belong to.
        axis_name: A mapped axis, or several, over which the features are spread.
        axis_index_groups: As for `jax.lax.pmean`.
        use_fast_variance: See `BatchNorm`.
        promote_dtype: `promote_dtype((inputs, scale, bias), dtype=dtype)` casts them.
        rngs: Streams; keys are drawn from `params`.
        bias_metadata: Metadata of the bias.
        scale_metadata: Metadata of the scale.

    Example:
        >>> import jax.numpy as jnp
        >>> norm = LayerNorm(2, rngs=Rngs(0))
        >>> norm(jnp.array([[1.0, 3.0], [10.0, 30.0]])).round(3).tolist()
        [[-1.0, 1.0], [-1.0, 1.0]]
    """

    reduction_axes: Axes = -1
    feature_axes: Axes = -1

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
        reduction_axes: Axes = -1,
        feature_axes: Axes = -1,
        axis_name: Any = None,
        axis_index_groups: Any = None,
        use_fast_variance: bool = True,
        promote_dtype: Promotion = promote_dtype,
        rngs: Rngs,
        bias_metadata: Mapping[str, Any] = NO_METADATA,
        scale_metadata: Mapping[str, Any] = NO_METADATA,
    ) -> None:
        super()._set_up(locals())

    def __call__(self, x: Array, *, mask: Array | None = None) -> jax.Array:
        """Normalizes.

        Args:
            x: An array with `num_features` features at the feature axes.
            mask: Whether an element counts in the statistics; broadcasts to the input.

        Returns:
            An array of the same shape.

        Raises:
            ValueError: If there are more or fewer features.

        Example:
            >>> import jax.numpy as jnp
            >>> LayerNorm(3, rngs=Rngs(0))(jnp.ones((2, 3))).tolist()
            [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
        """
        x, scale, bias = self._promoted(x)
        axes = canonical_axes(self.feature_axes, x.ndim)
        if scale is not None or bias is not None:
            self._check_features(x, axes)
        reduced = canonical_axes(self.reduction_axes, x.ndim)
        mean, var = self._statistics(x, reduced, mask)
        return self._scaled(x, mean, var, scale, bias, axes)


class RMSNorm(Norm):
    """Divides the features of each example by the root of the mean of their squares.

    See Zhang and Sennrich, "Root Mean Square Layer Normalization",
    https://arxiv.org/abs/1910.07467.

    Args:
        num_features: The size of the feature axis.
        epsilon: Added to the mean of squares.
        dtype: The dtype of the result; None for what input and scale promote to.
        param_dtype: The dtype of the scale.
        use_scale: Whether a scale is multiplied with.
        scale_init: Makes the scale, of shape (num_features,).
        reduction_axes: The axes that are normalized over.
        feature_axes: The axes that the scale belongs to.
        axis_name: A mapped axis, or several, over which the features are spread.
        axis_index_groups: As for `jax.lax.pmean`.
        use_fast_variance: Makes no difference here.
        promote_dtype: `promote_dtype((inputs, scale), dtype=dtype)` casts them.
        rngs: Streams; keys are drawn from `params`.
        scale_metadata: Metadata of the scale.

    Example:
        >>> import jax.numpy as jnp
        >>> RMSNorm(2, rngs=Rngs(0))(jnp.array([2.0, -2.0])).round(3).tolist()
        [1.0, -1.0]
    """

    reduction_axes: Axes = -1
    feature_axes: Axes = -1

    def __init__(
        self,
        num_features: int,
        *,
        epsilon: float = 1e-6,
        dtype: DType | None = None,
        param_dtype: DType = jnp.float32,
        use_scale: bool = True,
        scale_init: Initializer = initializers.ones,
        reduction_axes: Axes = -1,
        feature_axes: Axes = -1,
        axis_name: Any = None,
        axis_index_groups: Any = None,
        use_fast_variance: bool = True,
        promote_dtype: Promotion = promote_dtype,
        rngs: Rngs,
        scale_metadata: Mapping[str, Any] = NO_METADATA,
    ) -> None:
        super()._set_up(locals())

    def __call__(self, x: Array, mask: Array | None = None) -> jax.Array:
        """Normalizes.

        Args:
            x: An array with `num_features` features at the feature axes.
            mask: Whether an element counts in the mean; broadcasts to the input.

        Returns:
            An array of the same shape.

        Raises:
            ValueError: If there are more or fewer features.

        Example:
            >>> import jax.numpy as jnp
            >>> RMSNorm(3, rngs=Rngs(0))(2 * jnp.ones((1, 3))).round(3).tolist()
            [[1.0, 1.0, 1.0]]
        """
        scale = None if self.scale is None else self.scale.value
        x, scale = self.promote_dtype((x, scale), dtype=self.dtype)
        axes = canonical_axes(self.feature_axes, x.ndim)
        if scale is not None:
            self._check_features(x, axes)
        wide = at_least_float32(x)
        squares = self._mean(
            squared(wide), canonical_axes(self.reduction_axes, x.ndim), mask
        )
        return self._scaled(x, None, squares, scale, None, axes)
