"""Layers that normalize their input: `BatchNorm`, `LayerNorm` and their kin."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.nn import initializers

from ..lift.statics import as_tuple
from ..module import Module, compact, merge_param, nowrap
from ..types import Axes
from .dtypes import at_least_float32, canonicalize_dtype
from .linear import Initializer

__all__ = ["BatchNorm", "GroupNorm", "InstanceNorm", "LayerNorm", "RMSNorm"]


def canonical_axes(axes: Axes, ndim: int) -> tuple[int, ...]:
    """Axes as sorted numbers from 0 on, each once."""
    return tuple(sorted({a % ndim for a in as_tuple(axes)}))


def _square(x: jax.Array) -> jax.Array:
    return lax.real(x) ** 2 + lax.imag(x) ** 2 if jnp.iscomplexobj(x) else lax.square(x)


def _moments(
    layer: Any,
    x: jax.Array,
    axes: tuple[int, ...],
    mask: Any,
    centered: bool = True,
    across: bool = True,
) -> tuple[Any, jax.Array]:
    """Mean and variance over `axes` (kept with size 1), and over a named axis.

    Args:
        layer: has the options of statistics.
        x: the input.
        axes: the axes to take statistics over.
        mask: what to take statistics of, or None.
        centered: whether the mean is computed and taken off; else it is None.
        across: whether the layer's named axis is there.

    Returns:
        The mean and the variance.
    """
    dtype = x.dtype if layer.dtype is None else layer.dtype
    if layer.force_float32_reductions:
        dtype = at_least_float32(dtype)
    x = x if x.dtype == dtype else x.astype(dtype)
    mask = None if mask is None else jnp.asarray(mask, bool)

    def mean(*values: jax.Array) -> Any:
        means = [jnp.mean(v, axes, keepdims=True, where=mask) for v in values]
        if layer.axis_name is None or not across:
            return means
        groups = layer.axis_index_groups
        # One collective for all of them.
        stacked = jnp.stack(means)
        return list(lax.pmean(stacked, layer.axis_name, axis_index_groups=groups))

    if not centered:
        return None, mean(_square(x))[0]
    if layer.use_fast_variance:
        center, square = mean(x, _square(x))
        # Rounding can make the difference negative, which a square root would not bear.
        return center, jnp.maximum(0.0, square - _square(center))
    (center,) = mean(x)
    return center, mean(_square(x - center))[0]


def _scaled(
    layer: Any,
    x: jax.Array,
    mean: jax.Array | None,
    var: jax.Array,
    feature_axes: tuple[int, ...],
) -> jax.Array:
    """Normalizes, then scales and shifts with the parameters of a layer."""
    shape = tuple(x.shape[a] for a in feature_axes)
    spread = tuple(x.shape[a] if a in feature_axes else 1 for a in range(x.ndim))
    multiplier = lax.rsqrt(var + layer.epsilon)
    scale = bias = None
    if layer.use_scale:
        scale = layer.param("scale", layer.scale_init, shape, layer.param_dtype)
    if getattr(layer, "use_bias", False):
        bias = layer.param("bias", layer.bias_init, shape, layer.param_dtype)
    # Of several types on purpose, which a program can forbid.
    with jax.numpy_dtype_promotion("standard"):
        if scale is not None:
            multiplier = multiplier * scale.reshape(spread)
        y = (x if mean is None else x - mean) * multiplier
        if bias is not None:
            y = y + bias.reshape(spread)
    dtype = canonicalize_dtype(x, scale, bias, dtype=layer.dtype)
    return y if y.dtype == dtype else y.astype(dtype)


# --- options in common: the fields of the last base come first ---------------------


class _Affine(Module):
    """A scale and a bias."""

    epsilon: float = 1e-6
    dtype: Any = None
    param_dtype: Any = jnp.float32
    use_bias: bool = True
    use_scale: bool = True
    bias_init: Initializer = initializers.zeros
    scale_init: Initializer = initializers.ones


class _Scale(Module):
    """A scale alone."""

    epsilon: float = 1e-6
    dtype: Any = None
    param_dtype: Any = jnp.float32
    use_scale: bool = True
    scale_init: Initializer = initializers.ones


class _Statistics(Module):
    """How statistics are taken."""

    axis_name: Any = None
    axis_index_groups: Any = None
    use_fast_variance: bool = True
    force_float32_reductions: bool = True


class _FeatureAxes(Module):
    """The axes of the parameters."""

    feature_axes: Axes = -1


class _ReductionAxes(Module):
    """The axes to take statistics over."""

    reduction_axes: Axes | None = None


class _Groups(Module):
    """How channels are grouped."""

    num_groups: int | None = 32
    group_size: int | None = None


class _Averages(Module):
    """The use of running averages."""

    use_running_average: bool | None = None
    axis: Axes = -1
    momentum: float = 0.99


class _PerExample(_Statistics, _FeatureAxes, _ReductionAxes):
    """Normalizes each example, around its mean or not."""

    _centered = True
    reduction_axes: Axes = -1

    @compact
    def __call__(self, x: jax.Array, *, mask: jax.Array | None = None) -> jax.Array:
        """Normalizes.

        Args:
            x: an array.
            mask: an array of booleans that broadcasts to `x`: what to take statistics
                of.

        Returns:
            An array of the shape of `x`.
        """
        x = jnp.asarray(x)
        axes = canonical_axes(self.reduction_axes, x.ndim)
        mean, var = _moments(self, x, axes, mask, self._centered)
        features = canonical_axes(self.feature_axes, x.ndim)
        return _scaled(self, x, mean, var, features)


class LayerNorm(_PerExample, _Affine):
    """Normalizes each example over its last axis, or others.

    Args:
        epsilon: added to the variance.
        dtype: the type of the result; None for that of input and parameters.
        param_dtype: the type of the parameters.
        use_bias: whether to add a bias.
        use_scale: whether to multiply with a scale.
        bias_init: makes the bias.
        scale_init: makes the scale.
        reduction_axes: the axes to take statistics over.
        feature_axes: the axes of the parameters.
        axis_name: a mapped axis to take statistics over as well.
        axis_index_groups: see `jax.lax.pmean`.
        use_fast_variance: whether to take the mean of squares minus the square of the
            mean: one pass, less exact.
        force_float32_reductions: whether statistics are at least 32-bit.

    Example:
        >>> import linen_lift as nn, jax, jax.numpy as jnp
        >>> x = jnp.array([[1.0, 3.0]])
        >>> out, _ = nn.LayerNorm().init_with_output(jax.random.key(0), x)
        >>> out.round(3).tolist()
        [[-1.0, 1.0]]
    """


class RMSNorm(_PerExample, _Scale):
    """Divides each example by the root mean square of its last axis, or others.

    Like `LayerNorm` without a mean and a bias (Zhang and Sennrich, 2019).

    Args:
        epsilon: added to the mean square.
        dtype: the type of the result; None for that of input and parameters.
        param_dtype: the type of the scale.
        use_scale: whether to multiply with a scale.
        scale_init: makes the scale.
        reduction_axes: the axes to take the mean over.
        feature_axes: the axes of the scale.
        axis_name: a mapped axis to take the mean over as well.
        axis_index_groups: see `jax.lax.pmean`.
        use_fast_variance: makes no difference here; for code that sets it for any
            layer.
        force_float32_reductions: whether the mean is at least 32-bit.

    Example:
        >>> import linen_lift as nn, jax, jax.numpy as jnp
        >>> x = jnp.array([[3.0, 3.0, 0.0, 0.0]])
        >>> out, _ = nn.RMSNorm().init_with_output(jax.random.key(0), x)
        >>> out.round(3).tolist()
        [[1.4140000343322754, 1.4140000343322754, 0.0, 0.0]]
    """

    _centered = False


class GroupNorm(_Statistics, _ReductionAxes, _Affine, _Groups):
    """Normalizes each example over groups of channels and all places (Wu and He, 2018).

    Args:
        num_groups: the number of groups that the last axis is split into.
        group_size: the number of channels in a group; give it with `num_groups=None`.
        epsilon: added to the variance.
        dtype: the type of the result; None for that of input and parameters.
        param_dtype: the type of the parameters.
        use_bias: whether to add a bias.
        use_scale: whether to multiply with a scale.
        bias_init: makes the bias.
        scale_init: makes the scale.
        reduction_axes: the axes to take statistics over, the last one among them; all
            but the first if they are not given.
        axis_name: a mapped axis to take statistics over as well.
        axis_index_groups: see `jax.lax.pmean`.
        use_fast_variance: whether to take the mean of squares minus the square of the
            mean: one pass, less exact.
        force_float32_reductions: whether statistics are at least 32-bit.

    Example:
        >>> import linen_lift as nn, jax, jax.numpy as jnp
        >>> x = jnp.array([[1.0, 3.0, 10.0, 30.0]])
        >>> out, _ = nn.GroupNorm(2).init_with_output(jax.random.key(0), x)
        >>> out.round(3).tolist()
        [[-1.0, 1.0, -1.0, 1.0]]
    """

    @compact
    def __call__(self, x: jax.Array, *, mask: jax.Array | None = None) -> jax.Array:
        """Normalizes.

        Args:
            x: an array whose last axis is that of channels.
            mask: an array of booleans that broadcasts to `x`: what to take statistics
                of.

        Returns:
            An array of the shape of `x`.

        Raises:
            ValueError: if the groups do not divide the channels, or the last axis is
                not among `reduction_axes`.
        """
        x = jnp.asarray(x)
        last = x.ndim - 1
        given = self.reduction_axes
        axes = canonical_axes((*range(1, last), -1) if given is None else given, x.ndim)
        if last not in axes:
            raise ValueError(
                "reduction_axes must have the last axis, that of channels, among them; "
                f"found {given!r}."
            )
        groups = self._groups(x.shape[-1])
        size = x.shape[-1] // groups

        def grouped(x: jax.Array) -> jax.Array:
            """With the last axis in two."""
            return x.reshape((*x.shape[:-1], groups, size))

        if mask is not None:
            mask = grouped(jnp.broadcast_to(mask, x.shape))
        within = tuple(a for a in axes if a != last)
        moments = _moments(self, grouped(x), (*within, x.ndim), mask)
        mean, var = (jnp.repeat(m[..., 0], size, axis=-1) for m in moments)
        return _scaled(self, x, mean, var, (last,))

    @nowrap
    def _groups(self, channels: int) -> int:
        if (self.num_groups is None) == (self.group_size is None):
            raise ValueError(
                "GroupNorm needs one of num_groups and group_size, and None for the "
                f"other; found {self.num_groups} and {self.group_size}."
            )
        parts = self.num_groups or self.group_size or 0
        if parts <= 0 or channels % parts:
            raise ValueError(
                f"The {channels} channels cannot be split as num_groups="
                f"{self.num_groups}, group_size={self.group_size} asks."
            )
        return self.num_groups or channels // parts


class InstanceNorm(_Statistics, _FeatureAxes, _Affine):
    """Normalizes each channel of each example over its places (Ulyanov et al., 2017).

    Args:
        epsilon: added to the variance.
        dtype: the type of the result; None for that of input and parameters.
        param_dtype: the type of the parameters.
        use_bias: whether to add a bias.
        use_scale: whether to multiply with a scale.
        bias_init: makes the bias.
        scale_init: makes the scale.
        feature_axes: the axes of channels; statistics are taken over all others but
            the first.
        axis_name: a mapped axis to take statistics over as well.
        axis_index_groups: see `jax.lax.pmean`.
        use_fast_variance: whether to take the mean of squares minus the square of the
            mean: one pass, less exact.
        force_float32_reductions: whether statistics are at least 32-bit.

    Example:
        >>> import linen_lift as nn, jax, jax.numpy as jnp
        >>> x = jnp.array([[[1.0, 10.0], [3.0, 30.0]]])
        >>> out, _ = nn.InstanceNorm().init_with_output(jax.random.key(0), x)
        >>> out.round(3).tolist()
        [[[-1.0, -1.0], [1.0, 1.0]]]
    """

    @compact
    def __call__(self, x: jax.Array, *, mask: jax.Array | None = None) -> jax.Array:
        """Normalizes.

        Args:
            x: an array whose first axis is the batch.
            mask: an array of booleans that broadcasts to `x`: what to take statistics
                of.

        Returns:
            An array of the shape of `x`.

        Raises:
            ValueError: if the first axis is among `feature_axes`.
        """
        x = jnp.asarray(x)
        features = canonical_axes(self.feature_axes, x.ndim)
        if 0 in features:
            raise ValueError(
                "feature_axes cannot have the first axis among them: it is the batch; "
                f"found {self.feature_axes!r}."
            )
        axes = tuple(a for a in range(1, x.ndim) if a not in features)
        mean, var = _moments(self, x, axes, mask)
        return _scaled(self, x, mean, var, features)


class BatchNorm(_Statistics, _Affine, _Averages):
    """Normalizes each feature over the batch, or by running averages.

    The averages are the variables `mean` and `var` of the collection `batch_stats`.

    Args:
        use_running_average: whether to use the averages and leave them as they are;
            given here or in the call.
        axis: the axes of features; statistics are taken over all others.
        momentum: the weight of the past in the averages.
        epsilon: added to the variance.
        dtype: the type of the result; None for that of input and parameters.
        param_dtype: the type of the parameters.
        use_bias: whether to add a bias.
        use_scale: whether to multiply with a scale.
        bias_init: makes the bias.
        scale_init: makes the scale.
        axis_name: a mapped axis to take statistics over as well.
        axis_index_groups: see `jax.lax.pmean`.
        use_fast_variance: whether to take the mean of squares minus the square of the
            mean: one pass, less exact.
        force_float32_reductions: whether statistics are at least 32-bit.

    Example:
        >>> import linen_lift as nn, jax, jax.numpy as jnp
        >>> model, x = nn.BatchNorm(momentum=0.5), jnp.array([[2.0], [4.0]])
        >>> variables = model.init(jax.random.key(0), x, use_running_average=False)
        >>> _, updated = model.apply(variables, x, use_running_average=False,
        ...                          mutable='batch_stats')
        >>> updated['batch_stats']['mean'].tolist()
        [1.5]
    """

    epsilon: float = 1e-5

    @compact
    def __call__(
        self,
        x: jax.Array,
        use_running_average: bool | None = None,
        *,
        mask: jax.Array | None = None,
    ) -> jax.Array:
        """Normalizes, and updates the averages unless it uses them.

        Args:
            x: an array.
            use_running_average: whether to use the averages.
            mask: an array of booleans that broadcasts to `x`: what to take statistics
                of.

        Returns:
            An array of the shape of `x`.
        """
        averaged = merge_param(
            "use_running_average", self.use_running_average, use_running_average
        )
        x = jnp.asarray(x)
        features = canonical_axes(self.axis, x.ndim)
        axes = tuple(a for a in range(x.ndim) if a not in features)
        shape = tuple(x.shape[a] for a in features)
        dtype = jnp.float32 if self.force_float32_reductions else self.param_dtype
        ra_mean = self.variable("batch_stats", "mean", jnp.zeros, shape, dtype)
        ra_var = self.variable("batch_stats", "var", jnp.ones, shape, dtype)
        if averaged:
            mean = jnp.expand_dims(ra_mean.value, axes)
            var = jnp.expand_dims(ra_var.value, axes)
        else:
            # While initializing, the named axis need not exist.
            ready = not self.is_initializing()
            mean, var = _moments(self, x, axes, mask, across=ready)
            if ready:
                keep = self.momentum
                for average, new in ((ra_mean, mean), (ra_var, var)):
                    new = jnp.reshape(new, shape)
                    average.value = keep * average.value + (1 - keep) * new
        return _scaled(self, x, mean, var, features)
