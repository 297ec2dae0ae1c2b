"""Pooling: reductions over windows of the axes before the last one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

__all__ = ["avg_pool", "max_pool", "min_pool", "pool"]


def pool(
    inputs: Any,
    init: Any,
    reduce_fn: Callable[[Any, Any], Any],
    window_shape: Sequence[int],
    strides: Sequence[int] | None,
    padding: Any,
) -> jax.Array:
    """Reduces each window with `jax.lax.reduce_window`.

    Args:
        inputs: An array of shape `(*batch, *spatial, features)`, with as many spatial
            axes as the window has.
        init: The value that a reduction starts with.
        reduce_fn: Reduces two values.
        window_shape: The size of the window along each spatial axis.
        strides: The step from one window to the next along each of them; None for 1.
        padding: 'SAME', 'VALID', or a pair of integers per spatial axis.

    Returns:
        An array of shape `(*batch, *spatial, features)`.

    Raises:
        ValueError: If `strides` or `padding` do not fit the window, or the input has
            too few axes.

    Example:
        >>> import nnx_transforms as nnx, jax, jax.numpy as jnp
        >>> x = jnp.arange(4.0).reshape(1, 4, 1)
        >>> nnx.pool(x, 1.0, jax.lax.mul, (2,), (2,), 'VALID').ravel().tolist()
        [0.0, 6.0]
    """
    inputs = jnp.asarray(inputs)
    rank = len(window_shape)
    strides = (1,) * rank if strides is None else tuple(strides)
    batch = inputs.ndim - rank - 1
    if len(strides) != rank or batch < 0:
        raise ValueError(
            f"The window {tuple(window_shape)} needs a stride per axis and an input "
            f"with one more axis at least; found strides {strides} and an input of "
            f"shape {inputs.shape}."
        )
    if not isinstance(padding, str):
        pairs = tuple(tuple(pair) for pair in padding)
        if len(pairs) != rank or any(len(pair) != 2 for pair in pairs):
            raise ValueError(
                f"padding needs a pair of integers per axis of the window "
                f"{tuple(window_shape)}; found {padding!r}."
            )
        padding = ((0, 0),) * batch + pairs + ((0, 0),)
    ones = (1,) * batch
    out: jax.Array = lax.reduce_window(
        inputs,
        init,
        reduce_fn,
        (*ones, *window_shape, 1),
        (*ones, *strides, 1),
        padding,
    )
    return out


def avg_pool(
    inputs: Any,
    window_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: Any = "VALID",
    count_include_pad: bool = True,
) -> jax.Array:
    """The mean of each window.

    Args:
        inputs: See `pool`.
        window_shape: See `pool`.
        strides: See `pool`.
        padding: See `pool`.
        count_include_pad: Whether padding counts as zeros; otherwise the mean is that
            of the elements of the input in the window.

    Returns:
        An array of shape `(*batch, *spatial, features)`.

    Example:
        >>> import nnx_transforms as nnx, jax.numpy as jnp
        >>> x = jnp.arange(4.0).reshape(1, 4, 1)
        >>> nnx.avg_pool(x, (2,), (2,)).ravel().tolist()
        [0.5, 2.5]
    """
    total = pool(inputs, 0.0, lax.add, window_shape, strides, padding)
    if count_include_pad:
        return total / math.prod(window_shape)
    rank = len(window_shape)
    batch = (1,) * (jnp.ndim(inputs) - 1 - rank)
    counted = jnp.ones((*batch, *jnp.shape(inputs)[-1 - rank : -1], 1))
    return total / pool(counted, 0.0, lax.add, window_shape, strides, padding)


def max_pool(
    inputs: Any,
    window_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: Any = "VALID",
) -> jax.Array:
    """The largest element of each window.

    Args:
        inputs: See `pool`.
        window_shape: See `pool`.
        strides: See `pool`.
        padding: See `pool`; padding is smaller than every number.

    Returns:
        An array of shape `(*batch, *spatial, features)`.

    Example:
        >>> import nnx_transforms as nnx, jax.numpy as jnp
        >>> x = jnp.arange(4.0).reshape(1, 4, 1)
        >>> nnx.max_pool(x, (2,), (2,)).ravel().tolist()
        [1.0, 3.0]
    """
    return pool(inputs, -jnp.inf, lax.max, window_shape, strides, padding)


def min_pool(
    inputs: Any,
    window_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: Any = "VALID",
) -> jax.Array:
    """The smallest element of each window.

    Args:
        inputs: See `pool`.
        window_shape: See `pool`.
        strides: See `pool`.
        padding: See `pool`; padding is larger than every number.

    Returns:
        An array of shape `(*batch, *spatial, features)`.

    Example:
        >>> import nnx_transforms as nnx, jax.numpy as jnp
        >>> x = jnp.arange(4.0).reshape(1, 4, 1)
        >>> nnx.min_pool(x, (2,), (2,)).ravel().tolist()
        [0.0, 2.0]
    """
    return pool(inputs, jnp.inf, lax.min, window_shape, strides, padding)
