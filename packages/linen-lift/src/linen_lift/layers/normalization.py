"""`BatchNorm` and `LayerNorm`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.nn import initializers

from ..module import Module, compact, merge_param

__all__ = ["BatchNorm", "LayerNorm"]

Initializer = Callable[..., Any]
Axes = int | Sequence[int]


def _canonical(axes: Axes, ndim: int) -> tuple[int, ...]:
    given = (axes,) if isinstance(axes, int) else tuple(axes)
    return tuple(sorted(a % ndim for a in given))


def _moments(
    x: jax.Array,
    axes: tuple[int, ...],
    axis_name: Any,
    axis_index_groups: Any,
    mask: Any,
    fast: bool,
) -> tuple[jax.Array, jax.Array]:
    """Mean and variance over `axes` (kept with size 1), and over a named axis."""

    def over_devices(*values: jax.Array) -> Any:
        if axis_name is None:
            return values
        # One collective for all of them.
        stacked = jnp.stack(values)
        summed = lax.pmean(stacked, axis_name, axis_index_groups=axis_index_groups)
        return tuple(summed)

    mean = jnp.mean(x, axes, keepdims=True, where=mask)
    if fast:
        mean, square = over_devices(
            mean, jnp.mean(_square(x), axes, keepdims=True, where=mask)
        )
        # Rounding can make the difference negative, which a square root would not bear.
        return mean, jnp.maximum(0.0, square - _square(mean))
    (mean,) = over_devices(mean)
    var = jnp.mean(_square(x - mean), axes, keepdims=True, where=mask)
    (var,) = over_devices(var)
    return mean, var


def _square(x: jax.Array) -> jax.Array:
    return lax.real(x) ** 2 + lax.imag(x) ** 2 if jnp.iscomplexobj(x) else lax.square(x)


def _scaled(
    layer: Any,
    x: jax.Array,
    mean: jax.Array,
    var: jax.Array,
    feature_axes: tuple[int, ...],
) -> jax.Array:
    """Normalizes, then scales and shifts with the parameters of a layer."""
    shape = tuple(x.shape[a] for a in feature_axes)
    spread = tuple(x.shape[a] if a in feature_axes else 1 for a in range(x.ndim))
    # Parameters of the last axes broadcast by themselves.
    trailing = spread[x.ndim - len(shape) :] == shape
    multiplier = lax.rsqrt(var + layer.epsilon)
    dtypes = [x.dtype]
    if layer.use_scale:
        scale = layer.param("scale", layer.scale_init, shape, layer.param_dtype)
        dtypes.append(scale.dtype)
        multiplier = multiplier * (scale if trailing else scale.reshape(spread))
    y = (x - mean) * multiplier
    if layer.use_bias:
        bias = layer.param("bias", layer.bias_init, shape, layer.param_dtype)
        dtypes.append(bias.dtype)
        y = y + (bias if trailing else bias.reshape(spread))
    dtype = layer.dtype
    if dtype is None:
        dtype = dtypes[0] if len(set(dtypes)) == 1 else jnp.result_type(*dtypes)
    return y if y.dtype == dtype else y.astype(dtype)


def _for_statistics(x: jax.Array, force_float32: bool) -> jax.Array:
    if not force_float32:
        return x
    dtype = jnp.promote_types(x.dtype, jnp.float32)
    return x if x.dtype == dtype else x.astype(dtype)


class LayerNorm(Module):
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

    epsilon: float = 1e-6
    dtype: Any = None
    param_dtype: Any = jnp.float32
    use_bias: bool = True
    use_scale: bool = True
    bias_init: Initializer = initializers.zeros
    scale_init: Initializer = initializers.ones
    reduction_axes: Axes = -1
    feature_axes: Axes = -1
    axis_name: Any = None
    axis_index_groups: Any = None
    use_fast_variance: bool = True
    force_float32_reductions: bool = True

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
        axes = _canonical(self.reduction_axes, x.ndim)
        mean, var = _moments(
            _for_statistics(x, self.force_float32_reductions),
            axes,
            self.axis_name,
            self.axis_index_groups,
            mask,
            self.use_fast_variance,
        )
        features = _canonical(self.feature_axes, x.ndim)
        return _scaled(self, x, mean, var, features)


class BatchNorm(Module):
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

    use_running_average: bool | None = None
    axis: Axes = -1
    momentum: float = 0.99
    epsilon: float = 1e-5
    dtype: Any = None
    param_dtype: Any = jnp.float32
    use_bias: bool = True
    use_scale: bool = True
    bias_init: Initializer = initializers.zeros
    scale_init: Initializer = initializers.ones
    axis_name: Any = None
    axis_index_groups: Any = None
    use_fast_variance: bool = True
    force_float32_reductions: bool = True

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
        features = _canonical(self.axis, x.ndim)
        axes = tuple(a for a in range(x.ndim) if a not in features)
        shape = tuple(x.shape[a] for a in features)
        spread = tuple(x.shape[a] if a in features else 1 for a in range(x.ndim))
        dtype = jnp.promote_types(self.param_dtype, jnp.float32)
        ra_mean = self.variable("batch_stats", "mean", jnp.zeros, shape, dtype)
        ra_var = self.variable("batch_stats", "var", jnp.ones, shape, dtype)
        if averaged:
            mean, var = ra_mean.value.reshape(spread), ra_var.value.reshape(spread)
        else:
            mean, var = _moments(
                _for_statistics(x, self.force_float32_reductions),
                axes,
                # While initializing, the named axis need not exist.
                None if self.is_initializing() else self.axis_name,
                self.axis_index_groups,
                mask,
                self.use_fast_variance,
            )
            if not self.is_initializing():
                keep = self.momentum
                for average, new in ((ra_mean, mean), (ra_var, var)):
                    value = keep * average.value + (1 - keep) * new.reshape(shape)
                    average.value = value
        return _scaled(self, x, mean, var, features)
