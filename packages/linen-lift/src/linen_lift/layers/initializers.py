# ruff: noqa: F403, F405
"""The initializers of `jax.nn`, and the two that model code calls to get a constant."""

from jax.nn.initializers import *


def zeros_init() -> Initializer:
    """An initializer that makes zeros, written like those that take options.

    Returns:
        `jax.nn.initializers.zeros`.

    Example:
        >>> import linen_lift as nn, jax
        >>> nn.zeros_init()(jax.random.key(0), (2,)).tolist()
        [0.0, 0.0]
    """
    return zeros


def ones_init() -> Initializer:
    """An initializer that makes ones, written like those that take options.

    Returns:
        `jax.nn.initializers.ones`.

    Example:
        >>> import linen_lift as nn, jax
        >>> nn.ones_init()(jax.random.key(0), (2,)).tolist()
        [1.0, 1.0]
    """
    return ones
