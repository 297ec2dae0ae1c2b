"""Normalization over groups of features, or over each feature of each example."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.nn import initializers

from nnx_transforms.layers.dtypes import (
    Array,
    DType,
    Initializer,
    Promotion,
    promote_dtype,
)
from nnx_transforms.layers.linear import NO_METADATA
from nnx_transforms.layers.moments import (
    Axes,
    Norm,
    canonical_axes,
)
from nnx_transforms.randomness.rngs import Rngs

__all__ = ["GroupNorm", "InstanceNorm"]


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
        bias_metadata: Mapping[str, Any] = NO_METADATA,
        scale_metadata: Mapping[str, Any] = NO_METADATA,
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
        x, scale, bias = self._promoted(x)
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
        bias_metadata: Mapping[str, Any] = NO_METADATA,
        scale_metadata: Mapping[str, Any] = NO_METADATA,
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
        x, scale, bias = self._promoted(x)
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
