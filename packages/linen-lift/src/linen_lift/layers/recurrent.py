"""Recurrent cells: `LSTMCell` and `GRUCell`. Loop over time with `scan`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.nn import initializers

from ..module import Module, compact, nowrap
from .linear import Dense

__all__ = ["GRUCell", "LSTMCell"]

Initializer = Callable[..., Any]

_default_kernel_init = initializers.lecun_normal()
_default_recurrent_init = initializers.orthogonal()


class LSTMCell(Module):
    """A long short-term memory cell (Hochreiter and Schmidhuber, 1997).

    With `i`, `f` and `o` gates: `c' = f c + i tanh(g)` and `h' = o tanh(c')`.

    Args:
        features: the size of the state.
        gate_fn: the activation of the gates.
        activation_fn: the activation of the state.
        kernel_init: makes the kernels for the input.
        recurrent_kernel_init: makes the kernels for the state.
        bias_init: makes the biases.
        dtype: the type to compute in; None for that of input and parameters.
        param_dtype: the type of the parameters.
        carry_init: makes the first state.

    Example:
        >>> import linen_lift as nn, jax, jax.numpy as jnp
        >>> cell, x = nn.LSTMCell(4), jnp.ones((2, 3))
        >>> carry = cell.initialize_carry(jax.random.key(0), x.shape)
        >>> (carry, out), _ = cell.init_with_output(jax.random.key(1), carry, x)
        >>> out.shape
        (2, 4)
    """

    features: int
    gate_fn: Callable[..., Any] = jax.nn.sigmoid
    activation_fn: Callable[..., Any] = jnp.tanh
    kernel_init: Initializer = _default_kernel_init
    recurrent_kernel_init: Initializer = _default_recurrent_init
    bias_init: Initializer = initializers.zeros
    dtype: Any = None
    param_dtype: Any = jnp.float32
    carry_init: Initializer = initializers.zeros

    @compact
    def __call__(
        self, carry: tuple[jax.Array, jax.Array], inputs: jax.Array
    ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        """One step.

        Args:
            carry: the state `(c, h)`, each of shape `(*batch, features)`.
            inputs: an array of shape `(*batch, in)`.

        Returns:
            The new state, and its `h`.
        """
        c, h = carry

        def gate(name: str) -> jax.Array:
            summed: jax.Array = self._linear(f"i{name}", False)(inputs) + self._linear(
                f"h{name}", True
            )(h)
            return summed

        i, f = self.gate_fn(gate("i")), self.gate_fn(gate("f"))
        g, o = self.activation_fn(gate("g")), self.gate_fn(gate("o"))
        new_c = f * c + i * g
        new_h = o * self.activation_fn(new_c)
        return (new_c, new_h), new_h

    @nowrap
    def _linear(self, name: str, recurrent: bool) -> Dense:
        return Dense(
            self.features,
            use_bias=recurrent,  # one bias is enough for the sum
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            kernel_init=self.recurrent_kernel_init if recurrent else self.kernel_init,
            bias_init=self.bias_init,
            name=name,
        )

    @nowrap
    def initialize_carry(
        self, rng: jax.Array, input_shape: tuple[int, ...]
    ) -> tuple[jax.Array, jax.Array]:
        """The first state.

        Args:
            rng: a key.
            input_shape: the shape of the input of one step.

        Returns:
            The pair `(c, h)`.
        """
        c_key, h_key = jax.random.split(rng)
        shape = (*input_shape[:-1], self.features)
        c = self.carry_init(c_key, shape, self.param_dtype)
        h = self.carry_init(h_key, shape, self.param_dtype)
        return c, h


class GRUCell(Module):
    """A gated recurrent unit (Cho et al., 2014).

    With gates `r` and `z`: `n = tanh(W x + r (U h))` and `h' = (1 - z) n + z h`.

    Args:
        features: the size of the state.
        gate_fn: the activation of the gates.
        activation_fn: the activation of the candidate.
        kernel_init: makes the kernels for the input.
        recurrent_kernel_init: makes the kernels for the state.
        bias_init: makes the biases.
        dtype: the type to compute in; None for that of input and parameters.
        param_dtype: the type of the parameters.
        carry_init: makes the first state.

    Example:
        >>> import linen_lift as nn, jax, jax.numpy as jnp
        >>> cell, x = nn.GRUCell(4), jnp.ones((2, 3))
        >>> carry = cell.initialize_carry(jax.random.key(0), x.shape)
        >>> (carry, out), _ = cell.init_with_output(jax.random.key(1), carry, x)
        >>> out.shape
        (2, 4)
    """

    features: int
    gate_fn: Callable[..., Any] = jax.nn.sigmoid
    activation_fn: Callable[..., Any] = jnp.tanh
    kernel_init: Initializer = _default_kernel_init
    recurrent_kernel_init: Initializer = _default_recurrent_init
    bias_init: Initializer = initializers.zeros
    dtype: Any = None
    param_dtype: Any = jnp.float32
    carry_init: Initializer = initializers.zeros

    @compact
    def __call__(
        self, carry: jax.Array, inputs: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """One step.

        Args:
            carry: the state `h`, of shape `(*batch, features)`.
            inputs: an array of shape `(*batch, in)`.

        Returns:
            The new state, twice.
        """
        h = carry
        linear = self._linear
        r = self.gate_fn(
            linear("ir", False, True)(inputs) + linear("hr", True, False)(h)
        )
        z = self.gate_fn(
            linear("iz", False, True)(inputs) + linear("hz", True, False)(h)
        )
        # The candidate needs a bias inside of the reset as well.
        n = self.activation_fn(
            linear("in", False, True)(inputs) + r * linear("hn", True, True)(h)
        )
        new_h = (1.0 - z) * n + z * h
        return new_h, new_h

    @nowrap
    def _linear(self, name: str, recurrent: bool, use_bias: bool) -> Dense:
        return Dense(
            self.features,
            use_bias=use_bias,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            kernel_init=self.recurrent_kernel_init if recurrent else self.kernel_init,
            bias_init=self.bias_init,
            name=name,
        )

    @nowrap
    def initialize_carry(
        self, rng: jax.Array, input_shape: tuple[int, ...]
    ) -> jax.Array:
        """The first state.

        Args:
            rng: a key.
            input_shape: the shape of the input of one step.

        Returns:
            The state.
        """
        shape = (*input_shape[:-1], self.features)
        state: jax.Array = self.carry_init(rng, shape, self.param_dtype)
        return state
