# ruff: noqa: F403, F405
"""The activations of `jax.nn`, and those that have parameters."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.nn import *
from jax.nn import standardize as normalize

from ..module import Module, compact

__all__ = [
    "PReLU",
    "celu",
    "elu",
    "gelu",
    "glu",
    "hard_sigmoid",
    "hard_silu",
    "hard_swish",
    "hard_tanh",
    "identity",
    "leaky_relu",
    "log1mexp",
    "log_sigmoid",
    "log_softmax",
    "logmeanexp",
    "logsumexp",
    "mish",
    "normalize",
    "one_hot",
    "relu",
    "relu6",
    "selu",
    "sigmoid",
    "silu",
    "soft_sign",
    "softmax",
    "softplus",
    "sparse_plus",
    "sparse_sigmoid",
    "squareplus",
    "standardize",
    "swish",
    "tanh",
]


class PReLU(Module):
    """A rectified linear unit whose slope below zero is a parameter.

    Args:
        param_dtype: the type of the slope.
        negative_slope_init: its first value.

    Example:
        >>> import linen_lift as nn, jax, jax.numpy as jnp
        >>> layer, x = nn.PReLU(negative_slope_init=0.25), jnp.array([-2.0, 2.0])
        >>> layer.init_with_output(jax.random.key(0), x)[0].tolist()
        [-0.5, 2.0]
    """

    param_dtype: Any = jnp.float32
    negative_slope_init: float = 0.01

    @compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Applies the unit.

        Args:
            inputs: an array.

        Returns:
            An array of the shape and type of `inputs`.
        """
        inputs = jnp.asarray(inputs)
        slope = self.param(
            "negative_slope",
            lambda _: jnp.asarray(self.negative_slope_init, self.param_dtype),
        )
        return jnp.where(inputs >= 0, inputs, slope.astype(inputs.dtype) * inputs)
