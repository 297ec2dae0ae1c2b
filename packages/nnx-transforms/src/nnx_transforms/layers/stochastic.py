"""Layers that draw random numbers."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from nnx_transforms.layers.dtypes import Array
from nnx_transforms.module import Module
from nnx_transforms.rngs import Rngs, RngStream


class Dropout(Module):
    """Zeroes elements at random and scales up the others, while training.

    See Srivastava et al., "Dropout: A Simple Way to Prevent Neural Networks from
    Overfitting", https://jmlr.org/papers/v15/srivastava14a.html.

    Args:
        rate: The probability that an element is zeroed, from 0 to 1.
        broadcast_dims: Axes along which elements are zeroed together.
        deterministic: Whether the input is passed through. `train()` and `eval()`
            switch it.
        rng_collection: The name of the stream that keys are drawn from.
        rngs: Streams, kept and shared with whoever else holds them; None if they are
            given with each call.

    Raises:
        ValueError: If the rate is not a probability.

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
        deterministic: bool = False,
        rng_collection: str = "dropout",
        rngs: Rngs | None = None,
    ) -> None:
        if not 0 <= rate <= 1:
            raise ValueError(f"The rate of Dropout must be from 0 to 1, got {rate}.")
        self.rate = rate
        self.broadcast_dims = tuple(broadcast_dims)
        self.deterministic = deterministic
        self.rng_collection = rng_collection
        self.rngs = rngs

    def __call__(
        self,
        x: Array,
        *,
        deterministic: bool | None = None,
        rngs: Rngs | RngStream | jax.Array | None = None,
    ) -> jax.Array:
        """Drops elements out.

        Args:
            x: An array of any shape.
            deterministic: Takes the place of the attribute, for this call.
            rngs: Streams, a stream or a key, in place of the layer's own streams.

        Returns:
            An array of the same shape.

        Raises:
            ValueError: If a key is needed and there is nothing to draw it from.

        Example:
            >>> import jax, jax.numpy as jnp
            >>> Dropout(0.5)(jnp.ones(3), rngs=jax.random.key(0)).shape
            (3,)
        """
        if deterministic is None:
            deterministic = self.deterministic
        values: jax.Array = jnp.asarray(x)
        if deterministic or self.rate == 0:
            return values
        if self.rate == 1:
            return jnp.zeros_like(values)
        shape = list(values.shape)
        for axis in self.broadcast_dims:
            shape[axis] = 1
        kept = 1 - self.rate
        mask = jax.random.bernoulli(self._key(rngs), kept, tuple(shape))
        return jnp.where(mask, values / kept, 0)

    def _key(self, rngs: Rngs | RngStream | jax.Array | None) -> jax.Array:
        source = self.rngs if rngs is None else rngs
        if source is None:
            raise ValueError(
                "Dropout has no random streams: give it some when it is made, "
                "`Dropout(rate, rngs=rngs)`, or with the call, or set "
                "`deterministic=True`."
            )
        if isinstance(source, Rngs):
            return source[self.rng_collection]()
        return source() if isinstance(source, RngStream) else source
