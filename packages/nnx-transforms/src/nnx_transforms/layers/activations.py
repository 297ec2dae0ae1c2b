"""The activations of `jax.nn`, and those that have parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.nn import celu as celu
from jax.nn import elu as elu
from jax.nn import gelu as gelu
from jax.nn import glu as glu
from jax.nn import hard_sigmoid as hard_sigmoid
from jax.nn import hard_silu as hard_silu
from jax.nn import hard_swish as hard_swish
from jax.nn import hard_tanh as hard_tanh
from jax.nn import identity as identity
from jax.nn import leaky_relu as leaky_relu
from jax.nn import log1mexp as log1mexp
from jax.nn import log_sigmoid as log_sigmoid
from jax.nn import log_softmax as log_softmax
from jax.nn import logmeanexp as logmeanexp
from jax.nn import logsumexp as logsumexp
from jax.nn import mish as mish
from jax.nn import one_hot as one_hot
from jax.nn import relu as relu
from jax.nn import relu6 as relu6
from jax.nn import selu as selu
from jax.nn import sigmoid as sigmoid
from jax.nn import silu as silu
from jax.nn import soft_sign as soft_sign
from jax.nn import softmax as softmax
from jax.nn import softplus as softplus
from jax.nn import sparse_plus as sparse_plus
from jax.nn import sparse_sigmoid as sparse_sigmoid
from jax.nn import squareplus as squareplus
from jax.nn import standardize as standardize
from jax.nn import swish as swish
from jax.nn import tanh as tanh

from graphcore import Param
from nnx_transforms.layers.dtypes import cast, promote_dtype
from nnx_transforms.layers.layer import Layer
from nnx_transforms.layers.types import Array, DType, Promotion


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


if not TYPE_CHECKING:
    __all__ = [
        name
        for name, value in vars().items()
        if getattr(value, "__module__", None) == __name__
        or callable(getattr(jax.nn, name, None))
    ]
