"""Recurrent cells: one step of a loop over time, from a state to the next one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax.nn import initializers

from nnx_transforms.layers.dtypes import promote_dtype
from nnx_transforms.layers.layer import Layer, own_stream, stream_of
from nnx_transforms.layers.linear import Linear, default_bias_init, default_kernel_init
from nnx_transforms.layers.types import Array, DType, Initializer, Promotion
from nnx_transforms.randomness.rngs import Rngs, RngStream

__all__ = ["GRUCell", "LSTMCell", "OptimizedLSTMCell", "RNNCellBase", "SimpleCell"]

Product: TypeAlias = Callable[..., Linear]
"""Makes the product of a kernel with what it is for, of so many features."""
LSTMStep: TypeAlias = tuple[tuple[jax.Array, jax.Array], jax.Array]
"""Memory and output, and the output."""


def orthogonal_init(
    key: jax.Array, shape: Sequence[int], dtype: DType = jnp.float32
) -> jax.Array:
    """Makes an orthogonal matrix, in half precision as well.

    Args:
        key: A key.
        shape: The shape.
        dtype: The dtype.

    Returns:
        A matrix.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> matrix = orthogonal_init(jax.random.key(0), (2, 2), jnp.bfloat16)
        >>> (matrix.astype(float) @ matrix.T).round(1).tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """
    # Not by `promote_types`, which a program can forbid to find a dtype.
    wide: Any = jnp.float32 if jnp.dtype(dtype).itemsize < 4 else dtype
    return initializers.orthogonal()(key, shape, wide).astype(dtype)


def _rounded_orthogonal_init(
    key: jax.Array, shape: Sequence[int], dtype: DType = jnp.float32
) -> jax.Array:
    """The same in JAX's widest float, rounded: with 64 bits, another matrix."""
    return orthogonal_init(key, shape, jnp.result_type(float)).astype(dtype)


class RNNCellBase(Layer):
    """Base class of recurrent cells.

    Example:
        >>> import nnx_transforms as nnx, jax.numpy as jnp
        >>> class Sum(nnx.RNNCellBase):
        ...     num_feature_axes = 1
        ...     def initialize_carry(self, input_shape, rngs=None, carry_init=None):
        ...         return jnp.zeros(input_shape)
        ...     def __call__(self, carry, inputs):
        ...         return carry + inputs, carry + inputs
        >>> nnx.RNN(Sum())(jnp.array([[1.0], [2.0], [3.0]])).ravel().tolist()
        [1.0, 3.0, 6.0]
    """

    def initialize_carry(
        self,
        input_shape: tuple[int, ...],
        rngs: Rngs | RngStream | None = None,
        carry_init: Initializer | None = None,
    ) -> Any:
        """Makes the first state.

        Args:
            input_shape: The shape of the input of one step.
            rngs: Streams or a stream to draw keys from.
            carry_init: Makes each array of the state.

        Returns:
            A pytree of arrays.
        """
        raise NotImplementedError

    def __call__(self, carry: Any, inputs: Array) -> tuple[Any, Any]:
        """Makes one step.

        Args:
            carry: The state.
            inputs: The input of the step.

        Returns:
            The next state, and the output of the step.
        """
        raise NotImplementedError

    @property
    def num_feature_axes(self) -> int:
        """How many of the last axes of an input are no batch axes."""
        raise NotImplementedError


# The arguments that a cell passes on to its linear layers as they are.
_FOR_PRODUCTS = (
    *("bias_init", "bias_metadata"),
    *("dtype", "param_dtype", "promote_dtype", "rngs"),
)


class _Cell(RNNCellBase):
    """What the cells here have in common: by default the state is one array."""

    activation_fn: Any = staticmethod(jnp.tanh)
    gate_fn: Any = staticmethod(jax.nn.sigmoid)
    carry_init: Any = None
    rngs: RngStream | None = None
    num_feature_axes = 1
    _orthogonal_init: Any = staticmethod(orthogonal_init)

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        *,
        gate_fn: Callable[..., Any] = jax.nn.sigmoid,
        activation_fn: Callable[..., Any] = jnp.tanh,
        kernel_init: Initializer = default_kernel_init,
        recurrent_kernel_init: Initializer | None = None,
        bias_init: Initializer = default_bias_init,
        dtype: DType | None = None,
        param_dtype: DType = jnp.float32,
        carry_init: Initializer | None = None,
        promote_dtype: Promotion = promote_dtype,
        keep_rngs: bool = False,
        rngs: Rngs,
        kernel_metadata: Mapping[str, Any] = {},
        recurrent_kernel_metadata: Mapping[str, Any] = {},
        bias_metadata: Mapping[str, Any] = {},
    ) -> None:
        super().keep(locals())
        self._set_up(locals())

    def _set_up(self, arguments: Mapping[str, Any]) -> None:
        """Makes the products, and keeps a stream if that is wanted."""
        self.in_features: int = arguments["in_features"]
        self.hidden_features: int = arguments["hidden_features"]
        if arguments["keep_rngs"]:
            self.rngs = own_stream(arguments["rngs"], "carry")
        common = {name: arguments[name] for name in _FOR_PRODUCTS}
        of_input = functools.partial(
            Linear,
            self.in_features,
            kernel_init=arguments["kernel_init"],
            kernel_metadata=arguments["kernel_metadata"],
            **common,
        )
        of_last = functools.partial(
            Linear,
            self.hidden_features,
            kernel_init=arguments["recurrent_kernel_init"] or self._orthogonal_init,
            kernel_metadata=arguments["recurrent_kernel_metadata"],
            **common,
        )
        self._make_products(of_input, of_last)

    def _make_products(self, of_input: Product, of_last: Product) -> None:
        """Makes products of the input, and of the last output, each of a size."""
        raise NotImplementedError

    def initialize_carry(
        self,
        input_shape: tuple[int, ...],
        rngs: Rngs | RngStream | None = None,
        carry_init: Initializer | None = None,
    ) -> Any:
        stream = stream_of(self.rngs if rngs is None else rngs, "carry")
        if stream is None:
            raise ValueError(
                f"{type(self).__name__} draws keys for its first state: pass `rngs`, "
                "such as `Rngs(carry=0)`."
            )
        init = carry_init or self.carry_init or initializers.zeros
        shape = (*input_shape[:-1], self.hidden_features)
        return init(stream(), shape, self.param_dtype)


class LSTMCell(_Cell):
    """A cell with a memory that gates keep, write and read.

    See Hochreiter and Schmidhuber, "Long Short-Term Memory", 1997.

    Args:
        in_features: The size of the input's last axis.
        hidden_features: The size of the output's last axis, and of both arrays of the
            state, memory and output.
        gate_fn: The activation of the gates.
        activation_fn: The activation of what is written and of the output.
        kernel_init: Makes the kernels that multiply the input.
        recurrent_kernel_init: Makes those that multiply the last output; orthogonal
            matrices by default.
        bias_init: Makes the biases.
        dtype: The dtype to compute in; None for what input and parameters promote to.
        param_dtype: The dtype of the parameters and of the first state.
        carry_init: Makes the arrays of the first state; zeros by default.
        promote_dtype: See `Linear`.
        keep_rngs: Whether a stream of the cell's own, `carry`, is kept for first
            states.
        rngs: Streams; keys are drawn from `params`.
        kernel_metadata: Metadata of the kernels that multiply the input.
        recurrent_kernel_metadata: Metadata of the others.
        bias_metadata: Metadata of the biases.

    Example:
        >>> import nnx_transforms as nnx, jax.numpy as jnp
        >>> cell, x = nnx.LSTMCell(3, 4, rngs=nnx.Rngs(0)), jnp.ones((2, 3))
        >>> state = cell.initialize_carry(x.shape, nnx.Rngs(0))
        >>> (memory, output), y = cell(state, x)
        >>> memory.shape, y is output
        ((2, 4), True)
    """

    _orthogonal_init: Any = staticmethod(_rounded_orthogonal_init)

    def _make_products(self, of_input: Product, of_last: Product) -> None:
        size = self.hidden_features
        # The two products are added, so one bias is enough.
        self.ii, self.if_, self.ig, self.io = (
            of_input(size, use_bias=False) for _ in range(4)
        )
        self.hi, self.hf, self.hg, self.ho = (of_last(size) for _ in range(4))

    def __call__(self, carry: tuple[Array, Array], inputs: Array) -> LSTMStep:
        """Makes one step.

        Args:
            carry: Memory and last output, of shape (*batch, hidden_features).
            inputs: An array of shape (*batch, in_features).

        Returns:
            Memory and output, and the output.

        Example:
            >>> import jax.numpy as jnp
            >>> zero = jnp.zeros(4)
            >>> LSTMCell(3, 4, rngs=Rngs(0))((zero, zero), jnp.ones(3))[1].shape
            (4,)
        """
        memory, last = carry
        return self._step(
            memory,
            self.ii(inputs) + self.hi(last),
            self.if_(inputs) + self.hf(last),
            self.ig(inputs) + self.hg(last),
            self.io(inputs) + self.ho(last),
        )

    def _step(
        self, memory: Array, i: jax.Array, f: jax.Array, g: jax.Array, o: jax.Array
    ) -> LSTMStep:
        written = self.gate_fn(i) * self.activation_fn(g)
        memory = self.gate_fn(f) * memory + written
        output: jax.Array = self.gate_fn(o) * self.activation_fn(memory)
        return (memory, output), output

    def initialize_carry(
        self,
        input_shape: tuple[int, ...],
        rngs: Rngs | RngStream | None = None,
        carry_init: Initializer | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        make = super().initialize_carry
        memory, output = (make(input_shape, rngs, carry_init) for _ in range(2))
        return memory, output


class OptimizedLSTMCell(LSTMCell):
    """An `LSTMCell` with one product for the input and one for the last output.

    Args:
        in_features: See `LSTMCell`, as for all arguments.
        hidden_features: See there.
        gate_fn: See there.
        activation_fn: See there.
        kernel_init: Makes the kernel that multiplies the input, for all four gates.
        recurrent_kernel_init: Makes the one that multiplies the last output; an
            orthogonal matrix by default.
        bias_init: See there.
        dtype: See there.
        param_dtype: See there.
        carry_init: See there.
        promote_dtype: See there.
        keep_rngs: See there.
        rngs: See there.
        kernel_metadata: See there.
        recurrent_kernel_metadata: See there.
        bias_metadata: See there.

    Example:
        >>> import nnx_transforms as nnx
        >>> cell = nnx.OptimizedLSTMCell(3, 4, rngs=nnx.Rngs(0))
        >>> cell.dense_i.kernel.value.shape, cell.dense_h.kernel.value.shape
        ((3, 16), (4, 16))
    """

    _orthogonal_init: Any = staticmethod(orthogonal_init)

    def _make_products(self, of_input: Product, of_last: Product) -> None:
        self.dense_i = of_input(4 * self.hidden_features, use_bias=False)
        self.dense_h = of_last(4 * self.hidden_features)

    def __call__(self, carry: tuple[Array, Array], inputs: Array) -> LSTMStep:
        memory, last = carry
        gates = self.dense_i(inputs) + self.dense_h(last)
        return self._step(memory, *jnp.split(gates, 4, axis=-1))


class SimpleCell(_Cell):
    """A cell whose output is its state: an activation of two products.

    Args:
        in_features: The size of the input's last axis.
        hidden_features: The size of the output's last axis.
        dtype: The dtype to compute in; None for what input and parameters promote to.
        param_dtype: The dtype of the parameters and of the first state.
        carry_init: Makes the first state; zeros by default.
        residual: Whether the last state is added before the activation.
        activation_fn: The activation.
        kernel_init: Makes the kernel that multiplies the input.
        recurrent_kernel_init: Makes the one that multiplies the last state; an
            orthogonal matrix by default.
        bias_init: Makes the bias.
        promote_dtype: See `Linear`.
        keep_rngs: See `LSTMCell`.
        rngs: Streams; keys are drawn from `params`.
        kernel_metadata: Metadata of the kernel that multiplies the input.
        recurrent_kernel_metadata: Metadata of the other.
        bias_metadata: Metadata of the bias.

    Example:
        >>> import nnx_transforms as nnx, jax.numpy as jnp
        >>> cell = nnx.SimpleCell(3, 4, rngs=nnx.Rngs(0))
        >>> state, y = cell(jnp.zeros((2, 4)), jnp.ones((2, 3)))
        >>> y.shape, y is state
        ((2, 4), True)
    """

    dtype: Any = jnp.float32
    residual: bool = False

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        *,
        dtype: DType | None = jnp.float32,
        param_dtype: DType = jnp.float32,
        carry_init: Initializer | None = None,
        residual: bool = False,
        activation_fn: Callable[..., Any] = jnp.tanh,
        kernel_init: Initializer = default_kernel_init,
        recurrent_kernel_init: Initializer | None = None,
        bias_init: Initializer = default_bias_init,
        promote_dtype: Promotion = promote_dtype,
        keep_rngs: bool = False,
        rngs: Rngs,
        kernel_metadata: Mapping[str, Any] = {},
        recurrent_kernel_metadata: Mapping[str, Any] = {},
        bias_metadata: Mapping[str, Any] = {},
    ) -> None:
        super().keep(locals())
        self._set_up(locals())

    def _make_products(self, of_input: Product, of_last: Product) -> None:
        self.dense_h = of_last(self.hidden_features, use_bias=False)
        self.dense_i = of_input(self.hidden_features)

    def __call__(self, carry: Array, inputs: Array) -> tuple[jax.Array, jax.Array]:
        """Makes one step.

        Args:
            carry: The state, of shape (*batch, hidden_features).
            inputs: An array of shape (*batch, in_features).

        Returns:
            The next state, twice.

        Example:
            >>> import jax.numpy as jnp
            >>> SimpleCell(3, 4, rngs=Rngs(0))(jnp.zeros(4), jnp.ones(3))[1].shape
            (4,)
        """
        state = self.dense_i(inputs) + self.dense_h(carry)
        if self.residual:
            state = state + carry
        state = self.activation_fn(state)
        return state, state


class GRUCell(_Cell):
    """A cell whose output is its state, with gates that keep it and that forget.

    See Cho et al., "Learning Phrase Representations using RNN Encoder-Decoder for
    Statistical Machine Translation", https://arxiv.org/abs/1406.1078.

    Args:
        in_features: The size of the input's last axis.
        hidden_features: The size of the output's last axis.
        gate_fn: The activation of the gates.
        activation_fn: The activation of what is new.
        kernel_init: Makes the kernel that multiplies the input.
        recurrent_kernel_init: Makes the one that multiplies the last state; an
            orthogonal matrix by default.
        bias_init: Makes the bias.
        dtype: The dtype to compute in; None for what input and parameters promote to.
        param_dtype: The dtype of the parameters and of the first state.
        carry_init: Makes the first state; zeros by default.
        promote_dtype: See `Linear`.
        keep_rngs: See `LSTMCell`.
        rngs: Streams; keys are drawn from `params`.
        kernel_metadata: Metadata of the kernel that multiplies the input.
        recurrent_kernel_metadata: Metadata of the other.
        bias_metadata: Metadata of the bias.

    Example:
        >>> import nnx_transforms as nnx, jax.numpy as jnp
        >>> cell = nnx.GRUCell(3, 4, rngs=nnx.Rngs(0))
        >>> state, y = cell(jnp.zeros((2, 4)), jnp.ones((2, 3)))
        >>> y.shape, y is state
        ((2, 4), True)
    """

    def _make_products(self, of_input: Product, of_last: Product) -> None:
        self.dense_i = of_input(3 * self.hidden_features)
        self.dense_h = of_last(3 * self.hidden_features, use_bias=False)

    def __call__(self, carry: Array, inputs: Array) -> tuple[jax.Array, jax.Array]:
        """Makes one step.

        Args:
            carry: The state, of shape (*batch, hidden_features).
            inputs: An array of shape (*batch, in_features).

        Returns:
            The next state, twice.

        Example:
            >>> import jax.numpy as jnp
            >>> GRUCell(3, 4, rngs=Rngs(0))(jnp.zeros(4), jnp.ones(3))[1].shape
            (4,)
        """
        of_input = jnp.split(self.dense_i(inputs), 3, axis=-1)
        of_state = jnp.split(self.dense_h(carry), 3, axis=-1)
        forget = self.gate_fn(of_input[0] + of_state[0])
        kept = self.gate_fn(of_input[1] + of_state[1])
        new = self.activation_fn(of_input[2] + forget * of_state[2])
        state = (1.0 - kept) * new + kept * carry
        return state, state
