"""Recurrent cells: one step of a recurrence. `RNN` loops over time."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.nn import initializers

from ..module import Module, compact, nowrap
from .convolution import Conv
from .dtypes import promote_dtype, with_rank
from .linear import Dense, Initializer, default_kernel_init, kernel_and_bias

__all__ = [
    "ConvLSTMCell",
    "GRUCell",
    "LSTMCell",
    "MGUCell",
    "OptimizedLSTMCell",
    "RNNCellBase",
    "SimpleCell",
]

Pair = tuple[jax.Array, jax.Array]

_default_recurrent_init = initializers.orthogonal()


class RNNCellBase(Module):
    """The base of cells, with what `RNN` must know of one.

    A cell is called with its state and the input of one step, and returns the new state
    and the output of the step. It defines `initialize_carry`, and `num_feature_axes`
    where that is not 1.

    Example:
        >>> import linen_lift as nn, jax, jax.numpy as jnp
        >>> class Sum(nn.RNNCellBase):
        ...     def __call__(self, carry, inputs):
        ...         return carry + inputs, carry + inputs
        ...     @nn.nowrap
        ...     def initialize_carry(self, rng, input_shape):
        ...         return jnp.zeros(input_shape)
        >>> nn.RNN(Sum()).apply({}, jnp.ones((3, 1))).tolist()
        [[1.0], [2.0], [3.0]]
    """

    @nowrap
    def initialize_carry(self, rng: jax.Array, input_shape: tuple[int, ...]) -> Any:
        """The first state.

        Args:
            rng: a key.
            input_shape: the shape of the input of one step.

        Returns:
            The state, a pytree of arrays.

        Raises:
            TypeError: if the class of the cell does not define it.
        """
        raise TypeError(
            f"{type(self).__name__} must define initialize_carry(self, rng, "
            "input_shape), which makes the first state."
        )

    @property
    def num_feature_axes(self) -> int:
        """How many of the last axes of an input belong to one step and one example."""
        return 1


def _linear(
    cell: Any,
    name: str,
    features: int,
    bias_init: Any = None,
    layer: type[Dense] = Dense,
) -> Any:
    """A linear map of the input or, if its name begins with `h`, of the state.

    Without `bias_init` it has no bias.
    """
    recurrent = name.startswith("h")
    return layer(
        features,
        use_bias=bias_init is not None,
        dtype=cell.dtype,
        param_dtype=cell.param_dtype,
        kernel_init=cell.recurrent_kernel_init if recurrent else cell.kernel_init,
        bias_init=bias_init,
        name=name,
    )


class _Cell(RNNCellBase):
    """A cell that is `features` wide, whose state is one array."""

    features: int

    @nowrap
    def initialize_carry(self, rng: jax.Array, input_shape: tuple[int, ...]) -> Any:
        cell: Any = self
        shape = (*input_shape[:-1], self.features)
        return cell.carry_init(rng, shape, cell.param_dtype)

    @nowrap
    def _mixed(
        self, h: jax.Array, inputs: jax.Array, keep: jax.Array, reset: Any, bias: Any
    ) -> Pair:
        """The state after a step: `keep` of the old one, the rest of a candidate."""
        cell: Any = self
        size = h.shape[-1]
        # Inside of the reset a bias is not the same as outside.
        inner = None if reset is None else bias
        kept = _linear(self, "hn", size, inner)(h)
        if reset is not None:
            kept = reset * kept
        n = cell.activation_fn(_linear(self, "in", size, bias)(inputs) + kept)
        new_h = (1.0 - keep) * n + keep * h
        return new_h, new_h

    @nowrap
    def _total(
        self, gate: str, inputs: jax.Array, h: jax.Array, bias_init: Any
    ) -> jax.Array:
        """What a gate is the activation of: one bias is enough for the sum."""
        of_input = _linear(self, f"i{gate}", h.shape[-1], bias_init)(inputs)
        total: jax.Array = of_input + _linear(self, f"h{gate}", h.shape[-1])(h)
        return total


class _PairCell(_Cell):
    """A cell whose state is the pair `(c, h)`."""

    @nowrap
    def initialize_carry(self, rng: jax.Array, input_shape: tuple[int, ...]) -> Pair:
        make = super().initialize_carry
        c_key, h_key = jax.random.split(rng)
        return make(c_key, input_shape), make(h_key, input_shape)


class _PlainCell(_Cell):
    """The options that most cells have in common."""

    activation_fn: Callable[..., Any] = jnp.tanh
    kernel_init: Initializer = default_kernel_init
    recurrent_kernel_init: Initializer = _default_recurrent_init
    bias_init: Initializer = initializers.zeros
    dtype: Any = None
    param_dtype: Any = jnp.float32
    carry_init: Initializer = initializers.zeros


class _Gate(_Cell):
    """The activation of gates."""

    gate_fn: Callable[..., Any] = jax.nn.sigmoid


class LSTMCell(_PairCell, _PlainCell, _Gate):
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

    @compact
    def __call__(self, carry: Pair, inputs: jax.Array) -> tuple[Pair, jax.Array]:
        """One step.

        Args:
            carry: the state `(c, h)`, each of shape `(*batch, features)`.
            inputs: an array of shape `(*batch, in)`.

        Returns:
            The new state, and its `h`.
        """
        c, h = carry
        i, f, g, o = self._gates(h, inputs)
        new_c = self.gate_fn(f) * c + self.gate_fn(i) * self.activation_fn(g)
        new_h = self.gate_fn(o) * self.activation_fn(new_c)
        return (new_c, new_h), new_h

    @nowrap
    def _gates(self, h: jax.Array, inputs: jax.Array) -> list[jax.Array]:
        """What gates and candidate are the activations of: `i`, `f`, `g`, `o`."""
        size = h.shape[-1]
        return [
            _linear(self, f"i{gate}", size)(inputs)
            # One bias is enough for the sum.
            + _linear(self, f"h{gate}", size, self.bias_init)(h)
            for gate in "ifgo"
        ]


class _Parameters(Dense):
    """The parameters of a `Dense` layer, under the same names."""

    @compact
    def __call__(self, size: Any) -> Any:
        return kernel_and_bias(self, (size, self.features), (self.features,))


class OptimizedLSTMCell(LSTMCell):
    """`LSTMCell` with two large products in a step, in place of eight small ones.

    Options, parameters and results are the same. It is often the faster one for states
    of up to about two thousand features.

    Example:
        >>> import linen_lift as nn, jax, jax.numpy as jnp
        >>> x, key = jnp.ones((2, 3)), jax.random.key(0)
        >>> cell, other = nn.OptimizedLSTMCell(4), nn.LSTMCell(4)
        >>> carry = cell.initialize_carry(key, x.shape)
        >>> variables = cell.init(key, carry, x)
        >>> _, a = cell.apply(variables, carry, x)
        >>> _, b = other.apply(variables, carry, x)
        >>> bool(jnp.allclose(a, b))
        True
    """

    @nowrap
    def _gates(self, h: jax.Array, inputs: jax.Array) -> list[jax.Array]:
        size = h.shape[-1]

        def product(x: jax.Array, side: str, bias_init: Any = None) -> jax.Array:
            layers = (
                _linear(self, side + gate, size, bias_init, _Parameters)
                for gate in "ifgo"
            )
            declared = [layer(x.shape[-1]) for layer in layers]
            kernels, biases = zip(*declared, strict=True)
            kernel = jnp.concatenate(kernels, -1)
            bias = None if bias_init is None else jnp.concatenate(biases, -1)
            x, kernel, bias = promote_dtype(x, kernel, bias, dtype=self.dtype)
            out = jnp.dot(x, kernel)
            return out if bias is None else out + with_rank(bias, out.ndim)

        total = product(inputs, "i") + product(h, "h", self.bias_init)
        return jnp.split(total, 4, -1)


class SimpleCell(_PlainCell):
    """The plain recurrence `h' = tanh(W x + U h + b)`.

    Args:
        features: the size of the state.
        activation_fn: the activation.
        kernel_init: makes the kernel for the input.
        recurrent_kernel_init: makes the kernel for the state.
        bias_init: makes the bias.
        dtype: the type to compute in; None for that of input and parameters.
        param_dtype: the type of the parameters.
        carry_init: makes the first state.
        residual: whether the state is added before the activation (Gao and Glowacka,
            2016).

    Example:
        >>> import linen_lift as nn, jax, jax.numpy as jnp
        >>> cell, x = nn.SimpleCell(4), jnp.ones((2, 3))
        >>> carry = cell.initialize_carry(jax.random.key(0), x.shape)
        >>> (carry, out), _ = cell.init_with_output(jax.random.key(1), carry, x)
        >>> out.shape
        (2, 4)
    """

    residual: bool = False

    @compact
    def __call__(self, carry: jax.Array, inputs: jax.Array) -> Pair:
        """One step.

        Args:
            carry: the state, of shape `(*batch, features)`.
            inputs: an array of shape `(*batch, in)`.

        Returns:
            The new state, twice.
        """
        total = self._total("", inputs, carry, self.bias_init)
        if self.residual:
            total = total + carry
        state = self.activation_fn(total)
        return state, state


class GRUCell(_PlainCell, _Gate):
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

    @compact
    def __call__(self, carry: jax.Array, inputs: jax.Array) -> Pair:
        """One step.

        Args:
            carry: the state `h`, of shape `(*batch, features)`.
            inputs: an array of shape `(*batch, in)`.

        Returns:
            The new state, twice.
        """
        h, bias = carry, self.bias_init
        r, z = (self.gate_fn(self._total(gate, inputs, h, bias)) for gate in "rz")
        return self._mixed(h, inputs, z, r, bias)


class MGUCell(_Cell):
    """A minimal gated unit (Zhou et al., 2016).

    With one gate `f`: `n = tanh(W x + f (U h))` and `h' = (1 - f) n + f h`.

    Args:
        features: the size of the state.
        gate_fn: the activation of the gate.
        activation_fn: the activation of the candidate.
        kernel_init: makes the kernels for the input.
        recurrent_kernel_init: makes the kernels for the state.
        forget_bias_init: makes the bias of the gate; ones keep gradients from
            vanishing (Jozefowicz et al., 2015).
        activation_bias_init: makes the biases of the candidate.
        dtype: the type to compute in; None for that of input and parameters.
        param_dtype: the type of the parameters.
        carry_init: makes the first state.
        reset_gate: whether the candidate sees the state through the gate.

    Example:
        >>> import linen_lift as nn, jax, jax.numpy as jnp
        >>> cell, x = nn.MGUCell(4), jnp.ones((2, 3))
        >>> carry = cell.initialize_carry(jax.random.key(0), x.shape)
        >>> (carry, out), _ = cell.init_with_output(jax.random.key(1), carry, x)
        >>> out.shape
        (2, 4)
    """

    gate_fn: Callable[..., Any] = jax.nn.sigmoid
    activation_fn: Callable[..., Any] = jnp.tanh
    kernel_init: Initializer = default_kernel_init
    recurrent_kernel_init: Initializer = _default_recurrent_init
    forget_bias_init: Initializer = initializers.ones
    activation_bias_init: Initializer = initializers.zeros
    dtype: Any = None
    param_dtype: Any = jnp.float32
    carry_init: Initializer = initializers.zeros
    reset_gate: bool = True

    @compact
    def __call__(self, carry: jax.Array, inputs: jax.Array) -> Pair:
        """One step.

        Args:
            carry: the state `h`, of shape `(*batch, features)`.
            inputs: an array of shape `(*batch, in)`.

        Returns:
            The new state, twice.
        """
        f = self.gate_fn(self._total("f", inputs, carry, self.forget_bias_init))
        reset = f if self.reset_gate else None
        return self._mixed(carry, inputs, f, reset, self.activation_bias_init)


class ConvLSTMCell(_PairCell):
    """A long short-term memory cell with convolutions for products (Shi et al., 2015).

    The forget gate is that of its bias plus one, so that little is forgotten at first
    (Jozefowicz et al., 2015).

    Args:
        features: the number of channels of the state.
        kernel_size: the size of the kernels along each spatial axis.
        strides: see `Conv`; the state has the size of the input, so both convolutions
            must keep it.
        padding: see `Conv`.
        use_bias: whether the convolutions have a bias.
        dtype: the type to compute in; None for that of input and parameters.
        param_dtype: the type of the parameters.
        carry_init: makes the first state.

    Example:
        >>> import linen_lift as nn, jax, jax.numpy as jnp
        >>> cell, x = nn.ConvLSTMCell(4, (3, 3)), jnp.ones((2, 8, 8, 3))
        >>> carry = cell.initialize_carry(jax.random.key(0), x.shape)
        >>> (carry, out), _ = cell.init_with_output(jax.random.key(1), carry, x)
        >>> out.shape
        (2, 8, 8, 4)
    """

    kernel_size: Sequence[int]
    strides: Sequence[int] | None = None
    padding: Any = "SAME"
    use_bias: bool = True
    dtype: Any = None
    param_dtype: Any = jnp.float32
    carry_init: Initializer = initializers.zeros

    @compact
    def __call__(self, carry: Pair, inputs: jax.Array) -> tuple[Pair, jax.Array]:
        """One step.

        Args:
            carry: the state `(c, h)`, each of shape `(*batch, *spatial, features)`.
            inputs: an array of shape `(*batch, *spatial, in)`.

        Returns:
            The new state, and its `h`.
        """
        c, h = carry
        conv = functools.partial(
            Conv,
            4 * self.features,
            self.kernel_size,
            self.strides,
            self.padding,
            use_bias=self.use_bias,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
        )
        total = conv(name="ih")(inputs) + conv(name="hh")(h)
        i, g, f, o = jnp.split(total, 4, -1)
        sigmoid = jax.nn.sigmoid
        new_c = sigmoid(f + 1) * c + sigmoid(i) * jnp.tanh(g)
        new_h = sigmoid(o) * jnp.tanh(new_c)
        return (new_c, new_h), new_h

    @property
    def num_feature_axes(self) -> int:
        return len(self.kernel_size) + 1
