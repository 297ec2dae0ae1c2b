"""Layers that draw random numbers."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from nnx_transforms.layers.layer import chosen, dropout_key, own_stream
from nnx_transforms.layers.types import Array
from nnx_transforms.modules.module import Module
from nnx_transforms.randomness.rngs import Rngs, RngStream

__all__ = ["Dropout"]


class Dropout(Module):
    """Zeroes elements at random and scales up the others, while training.

    See Srivastava et al., "Dropout: A Simple Way to Prevent Neural Networks from
    Overfitting", https://jmlr.org/papers/v15/srivastava14a.html.

    Args:
        rate: The probability that an element is zeroed, from 0 to 1.
        broadcast_dims: Axes along which elements are zeroed together.
        deterministic: Whether the input is passed through. `train()` and `eval()`
            switch it; None if each call says it.
        rng_collection: The name of the stream that keys are drawn from.
        rngs: Streams or a stream. One key is drawn, with which a stream of the layer's
            own begins; None if they are given with each call.

    Raises:
        ValueError: If the rate is not a probability.
        TypeError: If `rngs` is something else.

    Example:
        >>> import jax.numpy as jnp
        >>> dropout = Dropout(0.5, rngs=Rngs(dropout=0))
        >>> sorted(set(dropout(jnp.ones(100)).tolist()))
        [0.0, 2.0]
        >>> dropout.eval(); set(dropout(jnp.ones(100)).tolist())
        {1.0}
    """

    def __init__(
        self,
        rate: float,
        *,
        broadcast_dims: Sequence[int] = (),
        deterministic: bool | None = False,
        rng_collection: str = "dropout",
        rngs: Rngs | RngStream | None = None,
    ) -> None:
        if not 0 <= rate <= 1:
            raise ValueError(f"The rate of Dropout must be from 0 to 1, got {rate}.")
        self.rate = rate
        self.broadcast_dims = tuple(broadcast_dims)
        self.deterministic = deterministic
        self.rng_collection = rng_collection
        self.rngs = own_stream(rngs, rng_collection)

    def __call__(
        self,
        inputs: Array,
        *,
        deterministic: bool | None = None,
        rngs: Rngs | RngStream | jax.Array | None = None,
    ) -> jax.Array:
        """Drops elements out.

        Args:
            inputs: An array of any shape.
            deterministic: Takes the place of the attribute, for this call.
            rngs: Streams, a stream or a key, in place of the layer's own stream.

        Returns:
            An array of the same shape.

        Raises:
            ValueError: If a key is needed and there is nothing to draw it from, or
                nothing says whether one is needed.

        Example:
            >>> import jax, jax.numpy as jnp
            >>> Dropout(0.5)(jnp.ones(3), rngs=jax.random.key(0)).shape
            (3,)
        """
        values: jax.Array = jnp.asarray(inputs)
        if chosen(self, "deterministic", deterministic) or self.rate == 0:
            return values
        if self.rate == 1:
            return jnp.zeros_like(values)
        shape = list(values.shape)
        for axis in self.broadcast_dims:
            shape[axis] = 1
        kept = 1 - self.rate
        if not isinstance(rngs, jax.Array):
            rngs = dropout_key(self, rngs, self.rng_collection)
        mask = jax.random.bernoulli(rngs, kept, tuple(shape))
        return jnp.where(mask, values / kept, 0)

    def set_view(self, deterministic: bool | None = None) -> None:
        """Switches the mode of this layer, for a view of a model.

        Args:
            deterministic: Whether to draw nothing; None to leave it.

        Example:
            >>> dropout = Dropout(0.5); dropout.set_view(True); dropout.deterministic
            True
        """
        if deterministic is not None:
            self.deterministic = deterministic
