"""`Dropout`."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from ..module import Module, merge_param

__all__ = ["Dropout"]


class Dropout(Module):
    """Sets random elements to zero and scales the others up.

    Args:
        rate: the probability of zero.
        broadcast_dims: axes along which all elements share one decision.
        deterministic: whether to return the input as it is; given here or in the
            call.
        rng_collection: the stream that keys come from.

    Example:
        >>> import linen_lift as nn, jax, jax.numpy as jnp
        >>> drop, x = nn.Dropout(0.5, deterministic=False), jnp.ones(1000)
        >>> out = drop.apply({}, x, rngs={'dropout': jax.random.key(0)})
        >>> sorted(set(out.tolist()))
        [0.0, 2.0]
    """

    rate: float
    broadcast_dims: Sequence[int] = ()
    deterministic: bool | None = None
    rng_collection: str = "dropout"

    def __call__(
        self,
        inputs: jax.Array,
        deterministic: bool | None = None,
        rng: jax.Array | None = None,
    ) -> jax.Array:
        """Drops elements.

        Args:
            inputs: an array.
            deterministic: whether to return it as it is.
            rng: a key; drawn from the stream if it is not given.

        Returns:
            An array of the shape of `inputs`.
        """
        still = merge_param("deterministic", self.deterministic, deterministic)
        if self.rate == 0.0 or still:
            return inputs
        if self.rate == 1.0:
            return jnp.zeros_like(inputs)
        if rng is None:
            rng = self.make_rng(self.rng_collection)
        inputs = jnp.asarray(inputs)
        shape = list(inputs.shape)
        for axis in self.broadcast_dims:
            shape[axis] = 1
        keep = 1.0 - self.rate
        mask = jax.random.bernoulli(rng, keep, shape)
        return jnp.where(mask, inputs / keep, jnp.zeros_like(inputs))
