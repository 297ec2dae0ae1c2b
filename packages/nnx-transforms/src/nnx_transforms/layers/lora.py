"""Low-rank adaptation: a product of two thin matrices beside a fixed layer.

See Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models",
https://arxiv.org/abs/2106.09685.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.nn import initializers

from graphcore import Param, Variable
from nnx_transforms.layers.dtypes import promote_dtype
from nnx_transforms.layers.layer import Layer
from nnx_transforms.layers.linear import Linear
from nnx_transforms.layers.types import Array, DType, Initializer, Promotion
from nnx_transforms.randomness.rngs import Rngs

__all__ = ["LoRA", "LoRALinear", "LoRAParam"]

A = TypeVar("A")
default_a_initializer = initializers.he_uniform()
default_b_initializer = initializers.zeros


class LoRAParam(Param[A]):
    """A parameter of low-rank adaptation, to select what is trained.

    Example:
        >>> import nnx_transforms as nnx
        >>> layer = nnx.LoRALinear(3, 4, lora_rank=2, rngs=nnx.Rngs(0))
        >>> nnx.state(layer, nnx.LoRAParam).flat_state().paths
        (('lora', 'lora_a'), ('lora', 'lora_b'))
    """

    __slots__ = ()


class LoRA(Layer):
    """Adds a product of two thin matrices to what another layer gives.

    Args:
        in_features: The size of the input's last axis.
        lora_rank: The size between the two matrices.
        out_features: The size of the output's last axis.
        base_module: The other layer; None for the product alone.
        dtype: The dtype to compute in; None for what input and parameters promote to.
        param_dtype: The dtype of the parameters.
        a_initializer: Makes the first matrix, of shape (in_features, lora_rank).
        b_initializer: Makes the second one, of shape (lora_rank, out_features).
        lora_param_type: The type of the parameters.
        promote_dtype: `promote_dtype((inputs, lora_a, lora_b), dtype=dtype)` casts
            them.
        rngs: Streams; keys are drawn from `params`.
        a_metadata: Metadata of the first matrix.
        b_metadata: Metadata of the second one.

    Example:
        >>> import nnx_transforms as nnx, jax.numpy as jnp
        >>> linear = nnx.Linear(3, 4, rngs=nnx.Rngs(0))
        >>> adapted = nnx.LoRA(3, 2, 4, base_module=linear, rngs=nnx.Rngs(1))
        >>> x = jnp.ones((5, 3))
        >>> bool((adapted(x) == linear(x)).all()), adapted.lora_a.value.shape
        (True, (3, 2))
    """

    lora_param_type: type[Variable[Any]] = LoRAParam
    base_module: Callable[..., Any] | None = None

    def __init__(
        self,
        in_features: int,
        lora_rank: int,
        out_features: int,
        *,
        base_module: Callable[..., Any] | None = None,
        dtype: DType | None = None,
        param_dtype: DType = jnp.float32,
        a_initializer: Initializer = default_a_initializer,
        b_initializer: Initializer = default_b_initializer,
        lora_param_type: type[Variable[Any]] = LoRAParam,
        promote_dtype: Promotion = promote_dtype,
        rngs: Rngs,
        a_metadata: Mapping[str, Any] = {},
        b_metadata: Mapping[str, Any] = {},
    ) -> None:
        super().keep(locals())
        self.in_features = in_features
        self.out_features = out_features
        a = a_initializer(rngs.params(), (in_features, lora_rank), param_dtype)
        b = b_initializer(rngs.params(), (lora_rank, out_features), param_dtype)
        self.lora_a: Variable[jax.Array] = lora_param_type(a, **a_metadata)
        self.lora_b: Variable[jax.Array] = lora_param_type(b, **b_metadata)

    def __call__(self, x: Array, **kwargs: Any) -> jax.Array:
        """Applies both.

        Args:
            x: An array of shape (..., in_features).
            **kwargs: For the other layer.

        Returns:
            An array of shape (..., out_features).

        Example:
            >>> import jax.numpy as jnp
            >>> LoRA(3, 2, 4, rngs=Rngs(0))(jnp.ones(3)).shape
            (4,)
        """
        x, a, b = self._promoted(x, self.lora_a, self.lora_b)
        out: jax.Array = x @ a @ b
        return out if self.base_module is None else out + self.base_module(x, **kwargs)


class LoRALinear(Linear):
    """A dense layer with a product of two thin matrices beside its kernel.

    Its own parameters are where those of `Linear` are; those of the product are below
    `lora`.

    Args:
        in_features: The size of the input's last axis.
        out_features: The size of the output's last axis.
        lora_rank: The size between the two matrices.
        lora_dtype: The dtype that the product is computed in; see `LoRA`.
        lora_param_dtype: The dtype of the two matrices.
        a_initializer: See `LoRA`.
        b_initializer: See `LoRA`.
        lora_param_type: See `LoRA`.
        lora_promote_dtype: The `promote_dtype` of the product.
        rngs: Streams; keys are drawn from `params`.
        a_metadata: Metadata of the first matrix.
        b_metadata: Metadata of the second one.
        **kwargs: Further options of `Linear`.

    Example:
        >>> import nnx_transforms as nnx, jax.numpy as jnp
        >>> layer = nnx.LoRALinear(3, 4, lora_rank=2, rngs=nnx.Rngs(0))
        >>> layer(jnp.ones((5, 3))).shape, layer.lora.lora_b.value.shape
        ((5, 4), (2, 4))
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        lora_rank: int,
        lora_dtype: DType | None = None,
        lora_param_dtype: DType = jnp.float32,
        a_initializer: Initializer = default_a_initializer,
        b_initializer: Initializer = default_b_initializer,
        lora_param_type: type[Variable[Any]] = LoRAParam,
        lora_promote_dtype: Promotion = promote_dtype,
        rngs: Rngs,
        a_metadata: Mapping[str, Any] = {},
        b_metadata: Mapping[str, Any] = {},
        **kwargs: Any,
    ) -> None:
        super().__init__(in_features, out_features, rngs=rngs, **kwargs)
        self.lora = LoRA(
            in_features,
            lora_rank,
            out_features,
            dtype=lora_dtype,
            param_dtype=lora_param_dtype,
            a_initializer=a_initializer,
            b_initializer=b_initializer,
            lora_param_type=lora_param_type,
            promote_dtype=lora_promote_dtype,
            rngs=rngs,
            a_metadata=a_metadata,
            b_metadata=b_metadata,
        )

    def __call__(self, x: Array, out_sharding: Any = None) -> jax.Array:
        """Applies the layer and adds the product.

        Args:
            x: An array of shape (..., in_features).
            out_sharding: As for `jax.lax.dot_general`.

        Returns:
            An array of shape (..., out_features).

        Example:
            >>> import jax.numpy as jnp
            >>> LoRALinear(3, 4, lora_rank=2, rngs=Rngs(0))(jnp.ones(3)).shape
            (4,)
        """
        return super().__call__(x, out_sharding) + self.lora(x)
