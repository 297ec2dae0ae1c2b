"""Normalization over a batch, over features, or over groups of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.nn import initializers

from graphcore import BatchStat
from nnx_transforms.layers.dtypes import keep_dtype, promote_dtype
from nnx_transforms.layers.layer import chosen
from nnx_transforms.layers.moments import Norm, along, at_least_float32, canonical_axes
from nnx_transforms.layers.options import as_tuple
from nnx_transforms.layers.types import Array, Axes, DType, Initializer, Promotion
from nnx_transforms.randomness.rngs import Rngs

__all__ = ["BatchNorm", "GroupNorm", "InstanceNorm", "LayerNorm", "RMSNorm"]


class BatchNorm(Norm):
    """Normalizes each feature over the batch, and tracks its mean and variance.

    See Ioffe and Szegedy, "Batch Normalization: Accelerating Deep Network Training by
    Reducing Internal Covariate Shift", https://arxiv.org/abs/1502.03167.

    Args:
        num_features: The size of the feature axis.
        use_running_average: Whether the tracked statistics are used, instead of those
            of the batch. `train()` and `eval()` switch it; None if each call says it.
        axis: The feature axis, or axes; all others are normalized over.
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

    axis: Axes = -1
    momentum: float = 0.99
    epsilon: float = 1e-5

    def __init__(
        self,
        num_features: int,
        *,
        use_running_average: bool | None = False,
        axis: Axes = -1,
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
        bias_metadata: Mapping[str, Any] = {},
        scale_metadata: Mapping[str, Any] = {},
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
        use_running_average = chosen(self, "use_running_average", use_running_average)
        tracked = (self.mean, self.var)
        x, *_, scale, bias = self._promoted(x, *tracked, self.scale, self.bias)
        self._check_features(x, as_tuple(self.axis))
        axes = canonical_axes(self.axis, x.ndim)
        others = tuple(i for i in range(x.ndim) if i not in axes)
        if use_running_average:
            mean, var = (along(variable.value, x, axes) for variable in tracked)
        else:
            mean, var = self._statistics(x, others, mask)
            new = 1 - self.momentum
            for variable, found in zip(tracked, (mean, var), strict=True):
                found = found.reshape(variable.value.shape)
                keep_dtype(variable, self.momentum * variable.value + new * found)
        return self._scaled(x, mean, var, scale, bias, axes)

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
        bias_metadata: Mapping[str, Any] = {},
        scale_metadata: Mapping[str, Any] = {},
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
        x, scale, bias = self._promoted(x, self.scale, self.bias)
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
        scale_metadata: Mapping[str, Any] = {},
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
        x, scale = self._promoted(x, self.scale)
        axes = canonical_axes(self.feature_axes, x.ndim)
        if scale is not None:
            self._check_features(x, axes)
        reduced = canonical_axes(self.reduction_axes, x.ndim)
        squares = self._mean_square(at_least_float32(x), reduced, mask)
        return self._scaled(x, None, squares, scale, None, axes)


class GroupNorm(Norm):
    """Normalizes over groups of features, and all axes but the first and the last.

    See Wu and He, "Group Normalization", https://arxiv.org/abs/1803.08494.

    Args:
        num_features: The size of the last axis.
        num_groups: Into how many groups the features are divided.
        group_size: How large each group is; in place of `num_groups`, which is None
            then.
        epsilon: Added to the variance.
        dtype: The dtype of the result; None for what input and parameters promote to.
        param_dtype: The dtype of the parameters.
        use_bias: Whether a bias is added.
        use_scale: Whether a scale is multiplied with.
        bias_init: Makes the bias, of shape (num_features,).
        scale_init: Makes the scale, of shape (num_features,).
        reduction_axes: The axes that are normalized over, with the last one; None for
            all but the first.
        axis_name: A mapped axis, or several, over which these are spread.
        axis_index_groups: As for `jax.lax.pmean`.
        use_fast_variance: See `BatchNorm`.
        promote_dtype: `promote_dtype((inputs, scale, bias), dtype=dtype)` casts them.
        rngs: Streams; keys are drawn from `params`.
        bias_metadata: Metadata of the bias.
        scale_metadata: Metadata of the scale.

    Raises:
        ValueError: If the groups are not of equal size, or not exactly one of
            `num_groups` and `group_size` is given.

    Example:
        >>> import jax.numpy as jnp
        >>> norm = GroupNorm(4, num_groups=2, rngs=Rngs(0))
        >>> norm(jnp.array([[1.0, 3.0, 10.0, 30.0]])).round(3).tolist()
        [[-1.0, 1.0, -1.0, 1.0]]
    """

    reduction_axes: Axes | None = None
    feature_axis: int = -1

    def __init__(
        self,
        num_features: int,
        num_groups: int | None = 32,
        group_size: int | None = None,
        *,
        epsilon: float = 1e-6,
        dtype: DType | None = None,
        param_dtype: DType = jnp.float32,
        use_bias: bool = True,
        use_scale: bool = True,
        bias_init: Initializer = initializers.zeros,
        scale_init: Initializer = initializers.ones,
        reduction_axes: Axes | None = None,
        axis_name: Any = None,
        axis_index_groups: Any = None,
        use_fast_variance: bool = True,
        promote_dtype: Promotion = promote_dtype,
        rngs: Rngs,
        bias_metadata: Mapping[str, Any] = {},
        scale_metadata: Mapping[str, Any] = {},
    ) -> None:
        if (num_groups is None) == (group_size is None):
            raise ValueError(
                f"GroupNorm got num_groups={num_groups} and group_size={group_size}: "
                "expected one of them, and None for the other."
            )
        parts = num_groups or group_size or 0
        if parts <= 0 or num_features % parts:
            name = "num_groups" if group_size is None else "group_size"
            raise ValueError(
                f"GroupNorm cannot divide {num_features} features into groups of equal "
                f"size with {name}={parts}."
            )
        self.num_groups = num_groups or num_features // parts
        super()._set_up(locals())

    @property
    def group_size(self) -> int:
        """How many features each group has."""
        return self.num_features // self.num_groups

    def __call__(self, x: Array, *, mask: Array | None = None) -> jax.Array:
        """Normalizes.

        Args:
            x: An array of shape (batch, ..., num_features).
            mask: Whether an element counts in the statistics; broadcasts to the input.

        Returns:
            An array of the same shape.

        Raises:
            ValueError: If the last axis has another size.

        Example:
            >>> import jax.numpy as jnp
            >>> GroupNorm(4, 2, rngs=Rngs(0))(jnp.ones((1, 5, 4))).shape
            (1, 5, 4)
        """
        x, scale, bias = self._promoted(x, self.scale, self.bias)
        self._check_features(x, (-1,))
        axes = range(1, x.ndim) if self.reduction_axes is None else self.reduction_axes
        # Within a group, and over the same axes of the input as without groups.
        reduced = {*canonical_axes(axes, x.ndim), x.ndim} - {x.ndim - 1}
        groups = (self.num_groups, self.group_size)
        grouped = x.reshape((*x.shape[:-1], *groups))
        if mask is not None:
            mask = jnp.asarray(mask)
            whole = groups if mask.shape[-1] != 1 else (1, 1)
            mask = mask.reshape((*mask.shape[:-1], *whole))
        mean, var = (
            jnp.repeat(of_group[..., 0], self.group_size, -1)
            for of_group in self._statistics(grouped, tuple(sorted(reduced)), mask)
        )
        return self._scaled(x, mean, var, scale, bias, (x.ndim - 1,))


class InstanceNorm(Norm):
    """Normalizes each feature of each example over all other axes.

    See Ulyanov, Vedaldi and Lempitsky, "Instance Normalization: The Missing Ingredient
    for Fast Stylization", https://arxiv.org/abs/1607.08022.

    Args:
        num_features: The size of the feature axis.
        epsilon: Added to the variance.
        dtype: The dtype of the result; None for what input and parameters promote to.
        param_dtype: The dtype of the parameters.
        use_bias: Whether a bias is added.
        use_scale: Whether a scale is multiplied with.
        bias_init: Makes the bias, of shape (num_features,).
        scale_init: Makes the scale, of shape (num_features,).
        feature_axes: The axes that scale and bias belong to; the first axis is the
            batch.
        axis_name: A mapped axis, or several, over which the others are spread.
        axis_index_groups: As for `jax.lax.pmean`.
        use_fast_variance: See `BatchNorm`.
        promote_dtype: `promote_dtype((inputs, scale, bias), dtype=dtype)` casts them.
        rngs: Streams; keys are drawn from `params`.
        bias_metadata: Metadata of the bias.
        scale_metadata: Metadata of the scale.

    Example:
        >>> import jax.numpy as jnp
        >>> norm = InstanceNorm(1, rngs=Rngs(0))
        >>> norm(jnp.array([[[1.0], [3.0]]])).round(3).tolist()
        [[[-1.0], [1.0]]]
    """

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
        feature_axes: Axes = -1,
        axis_name: Any = None,
        axis_index_groups: Any = None,
        use_fast_variance: bool = True,
        promote_dtype: Promotion = promote_dtype,
        rngs: Rngs,
        bias_metadata: Mapping[str, Any] = {},
        scale_metadata: Mapping[str, Any] = {},
    ) -> None:
        super()._set_up(locals())

    def __call__(self, x: Array, *, mask: Array | None = None) -> jax.Array:
        """Normalizes.

        Args:
            x: An array of shape (batch, ...), with the features at the feature axes.
            mask: Whether an element counts in the statistics; broadcasts to the input.

        Returns:
            An array of the same shape.

        Raises:
            ValueError: If there are more or fewer features, or the first axis is among
                the feature axes.

        Example:
            >>> import jax.numpy as jnp
            >>> InstanceNorm(4, rngs=Rngs(0))(jnp.ones((1, 5, 4))).shape
            (1, 5, 4)
        """
        x, scale, bias = self._promoted(x, self.scale, self.bias)
        axes = canonical_axes(self.feature_axes, x.ndim)
        if 0 in axes:
            raise ValueError(
                f"InstanceNorm got feature_axes={self.feature_axes} for an input of "
                f"shape {x.shape}, whose first axis is the batch: move the features."
            )
        if scale is not None or bias is not None:
            self._check_features(x, axes)
        others = tuple(i for i in range(1, x.ndim) if i not in axes)
        mean, var = self._statistics(x, others, mask)
        return self._scaled(x, mean, var, scale, bias, axes)
