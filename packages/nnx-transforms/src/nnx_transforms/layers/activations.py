# ruff: noqa: F403, F405
"""The activations of `jax.nn`, and those that have parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.nn import *

from graphcore import Param
from nnx_transforms.layers.dtypes import cast, promote_dtype
from nnx_transforms.layers.layer import Layer
from nnx_transforms.layers.types import Array, DType, Promotion

__all__ = ["Identity", "PReLU", "celu", "elu", "gelu", "glu", "hard_sigmoid"]
__all__ += ["hard_silu", "hard_swish", "hard_tanh", "identity", "leaky_relu"]
__all__ += ["log1mexp", "log_sigmoid", "log_softmax", "logmeanexp", "logsumexp", "mish"]
__all__ += ["one_hot", "relu", "relu6", "selu", "sigmoid", "silu", "soft_sign"]
__all__ += ["softmax", "softplus", "sparse_plus", "sparse_sigmoid", "squareplus"]
__all__ += ["standardize", "swish", "tanh"]


class Identity(Layer):
    """A layer that returns its input, for a place where another may stand.

    Example:
        >>> import nnx_transforms as nnx
        >>> nnx.Identity()(3, deterministic=True)
        3
    """

    def __call__(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """Returns the input.

        Args:
            x: Anything.
            *args: What other layers take.
            **kwargs: Likewise.

        Returns:
            `x`.

        Example:
            >>> Identity()('x')
            'x'
        """
        return x


class PReLU(Layer):
    """A rectified linear unit whose slope below zero is a parameter.

    See He, Zhang, Ren and Sun, "Delving Deep into Rectifiers",
    https://arxiv.org/abs/1502.01852.

    Args:
        negative_slope_init: The first value of the slope.
        dtype: The dtype to compute in; None for that of the input.
        param_dtype: The dtype of the slope.
        promote_dtype: Casts input and slope, where `dtype` is given; see `Linear`.
        negative_slope_metadata: Metadata of the slope.

    Example:
        >>> import nnx_transforms as nnx, jax.numpy as jnp
        >>> nnx.PReLU(0.25)(jnp.array([-2.0, 2.0])).tolist()
        [-0.5, 2.0]
    """

    def __init__(
        self,
        negative_slope_init: float = 0.01,
        *,
        dtype: DType | None = None,
        param_dtype: DType = jnp.float32,
        promote_dtype: Promotion = promote_dtype,
        negative_slope_metadata: Mapping[str, Any] = {},
    ) -> None:
        super().keep(locals())
        slope = jnp.asarray(negative_slope_init, param_dtype)
        self.negative_slope = Param(slope, **negative_slope_metadata)

    def __call__(self, inputs: Array) -> jax.Array:
        """Applies the unit.

        Args:
            inputs: An array of any shape.

        Returns:
            An array of the same shape.

        Example:
            >>> import jax.numpy as jnp
            >>> PReLU(0.5)(jnp.array([-2.0])).tolist()
            [-1.0]
        """
        inputs, slope = jnp.asarray(inputs), self.negative_slope.value
        if self.dtype is None:
            slope = cast(slope, inputs.dtype)
        else:
            inputs, slope = self.promote_dtype((inputs, slope), dtype=self.dtype)
        return jnp.where(inputs >= 0, inputs, slope * inputs)
