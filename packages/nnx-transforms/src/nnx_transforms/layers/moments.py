"""What the layers that normalize have in common.

Mean and variance are computed at least in float32. The variance is the difference of
the mean of squares and the squared mean, for which one pass is enough. That loses all
digits where the mean is large; `use_fast_variance=False` takes a second pass instead.

The order of the operations is a part of the behaviour: models that were trained
elsewhere give the very same bits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from graphcore import Param
from nnx_transforms.layers.dtypes import canonicalize_dtype, cast, with_rank
from nnx_transforms.layers.layer import Layer
from nnx_transforms.layers.options import as_tuple
from nnx_transforms.layers.types import Axes


class Norm(Layer):
    """A layer with a scale and a bias for what it normalized.

    Example:
        >>> Norm().scale is Norm().bias is None
        True
    """

    scale: Param[jax.Array] | None = None
    bias: Param[jax.Array] | None = None
    epsilon: float = 1e-6
    use_bias: bool = True
    use_scale: bool = True
    axis_name: Any = None
    axis_index_groups: Any = None
    use_fast_variance: bool = True

    def _set_up(self, arguments: Mapping[str, Any]) -> None:
        """Keeps the options, and makes a scale, a bias, both or neither."""
        self.keep(arguments)
        size = (arguments["num_features"],)
        self._draw(
            arguments,
            scale=size if arguments["use_scale"] else None,
            bias=size if arguments.get("use_bias") else None,
        )
        if self.scale is None and self.bias is None:
            self._num_features: int = arguments["num_features"]

    @property
    def num_features(self) -> int:
        """The number of features, which the parameters tell if there are any."""
        told_by = self.bias if self.scale is None else self.scale
        return self._num_features if told_by is None else int(told_by.value.shape[-1])

    def _check_features(self, x: jax.Array, axes: tuple[int, ...]) -> None:
        if (
            all(-x.ndim <= axis < x.ndim for axis in axes)
            and math.prod(x.shape[axis] for axis in axes) == self.num_features
        ):
            return
        at = f"axis {axes[0]}" if len(axes) == 1 else f"axes {axes}"
        raise ValueError(
            f"{type(self).__name__} expected {self.num_features} features at {at}, got "
            f"an input of shape {x.shape}."
        )

    def _mean(self, x: jax.Array, axes: tuple[int, ...], mask: Any) -> jax.Array:
        mean = jnp.mean(x, axes, keepdims=True, where=mask)
        if self.axis_name is not None:
            groups = self.axis_index_groups
            mean = lax.pmean(mean, self.axis_name, axis_index_groups=groups)
        return mean

    def _mean_square(self, x: jax.Array, axes: tuple[int, ...], mask: Any) -> jax.Array:
        return self._mean(squared(x), axes, mask)

    def _statistics(
        self, x: jax.Array, axes: tuple[int, ...], mask: Any
    ) -> tuple[jax.Array, jax.Array]:
        """Mean and variance, which keep the axes with size 1."""
        x = at_least_float32(x)
        squares = squared(x) if self.use_fast_variance else None
        mean = self._mean(x, axes, mask)
        if squares is None:
            return mean, self._mean_square(x - mean, axes, mask)
        var = self._mean(squares, axes, mask) - squared(mean)
        return mean, jnp.maximum(0.0, var)

    def _scaled(
        self,
        x: jax.Array,
        mean: jax.Array | None,
        var: jax.Array,
        scale: jax.Array | None,
        bias: jax.Array | None,
        axes: tuple[int, ...],
    ) -> jax.Array:
        """Takes off the mean, divides by the deviation, applies scale and bias."""
        dtype = self.dtype
        if dtype is None:
            dtype = canonicalize_dtype(x, scale, bias)
        # Of several dtypes on purpose, which a program can forbid.
        with jax.numpy_dtype_promotion("standard"):
            factor = lax.rsqrt(var + self.epsilon)
            if scale is not None:
                factor = factor * along(scale, x, axes)
            y = at_least_float32(x)
            y = (y if mean is None else y - mean) * factor
            if bias is not None:
                y = y + along(bias, x, axes)
            return cast(y, dtype)


def at_least_float32(x: jax.Array) -> jax.Array:
    """Casts an array to the dtype that statistics are computed in.

    Args:
        x: An array of an inexact dtype.

    Returns:
        An array of a dtype of 32 bits or more.

    Example:
        >>> import jax.numpy as jnp
        >>> at_least_float32(jnp.ones(1, jnp.bfloat16)).dtype.name
        'float32'
    """
    with jax.numpy_dtype_promotion("standard"):
        return cast(x, jnp.promote_types(x.dtype, jnp.float32))


def squared(x: jax.Array) -> jax.Array:
    """The square of the absolute value of each element.

    Args:
        x: An array, which may be complex.

    Returns:
        A real array of the same shape.

    Example:
        >>> import jax.numpy as jnp
        >>> squared(jnp.array([3 + 4j])).tolist()
        [25.0]
    """
    if jnp.iscomplexobj(x):
        return lax.square(x.real) + lax.square(x.imag)
    return lax.square(x)


def canonical_axes(axes: Axes, ndim: int) -> tuple[int, ...]:
    """Axes in ascending order, counted from the first.

    Args:
        axes: One axis or several.
        ndim: The number of axes of the array.

    Returns:
        The axes.

    Example:
        >>> canonical_axes((-1, 0), 3)
        (0, 2)
    """
    counted = {axis % ndim if axis >= -ndim else axis for axis in as_tuple(axes)}
    return tuple(sorted(counted))


def along(vector: jax.Array, x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """A vector in a shape that broadcasts along axes.

    Args:
        vector: An array with as many elements as `x` has along the axes.
        x: An array.
        axes: Axes of it, counted from the first.

    Returns:
        An array that broadcasts to the shape of `x`.

    Example:
        >>> import jax.numpy as jnp
        >>> along(jnp.ones(3), jnp.ones((2, 3, 4)), (1,)).shape
        (1, 3, 1)
    """
    if axes == (x.ndim - 1,):
        return with_rank(vector, x.ndim)
    return vector.reshape([n if i in axes else 1 for i, n in enumerate(x.shape)])
