"""Loops of recurrent cells over time, forward and backward."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from graphcore import All, Filter, Predicate, to_predicate, variables
from nnx_transforms.layers.cells import RNNCellBase
from nnx_transforms.layers.layer import chosen, own_stream, stream_of
from nnx_transforms.layers.types import Array
from nnx_transforms.modules.module import Module
from nnx_transforms.prefixes import Carry, StateAxes
from nnx_transforms.randomness.random_splits import split_rngs
from nnx_transforms.randomness.rngs import RngCount, Rngs, RngStream
from nnx_transforms.transforms.scan import scan

__all__ = ["RNN", "Bidirectional", "flip_sequences"]

# One object for all steps: what a step writes the next one sees.
_SHARED = StateAxes({...: None})


class RNN(Module):
    """Runs a cell over a sequence, with `scan`.

    Args:
        cell: The cell.
        time_major: Whether time is the first axis of inputs and outputs; otherwise it
            comes after the batch.
        return_carry: Whether to return the last state, too.
        reverse: Whether to go from the end to the beginning, and return outputs in this
            order.
        keep_order: Whether outputs are in the order of inputs where `reverse` is set.
        unroll: As for `scan`.
        state_axes: From filters over the cell's variables to their axes, as for `scan`.
            By default all steps share all variables, and what one writes the next one
            sees.
        broadcast_rngs: Selects random streams of the cell that give all steps of a call
            the same keys, such as for dropout that drops the same features at all
            times.
        rngs: Streams, from which a stream of the layer's own begins, for first states;
            True for one with the seed 0, False for none.

    Raises:
        TypeError: If `rngs` is something else.

    Example:
        >>> import nnx_transforms as nnx, jax.numpy as jnp
        >>> model = nnx.RNN(nnx.LSTMCell(3, 4, rngs=nnx.Rngs(0)), return_carry=True)
        >>> (memory, last), outputs = model(jnp.ones((2, 5, 3)))
        >>> outputs.shape, bool((outputs[:, -1] == last).all())
        ((2, 5, 4), True)
    """

    def __init__(
        self,
        cell: RNNCellBase,
        *,
        time_major: bool = False,
        return_carry: bool = False,
        reverse: bool = False,
        keep_order: bool = False,
        unroll: int = 1,
        state_axes: Mapping[Any, Any] | None = None,
        broadcast_rngs: Filter = None,
        rngs: Rngs | RngStream | bool = True,
    ) -> None:
        self.cell = cell
        self.time_major = time_major
        self.return_carry = return_carry
        self.reverse = reverse
        self.keep_order = keep_order
        self.unroll = unroll
        self.rngs = _carry_stream(rngs)
        self.state_axes = _SHARED if state_axes is None else StateAxes(state_axes)
        self.broadcast_rngs = broadcast_rngs

    def __call__(
        self,
        inputs: Array,
        *,
        initial_carry: Any = None,
        seq_lengths: Array | None = None,
        return_carry: bool | None = None,
        time_major: bool | None = None,
        reverse: bool | None = None,
        keep_order: bool | None = None,
        rngs: Rngs | RngStream | None = None,
    ) -> Any:
        """Runs the cell.

        Args:
            inputs: An array of shape (*batch, time, *features), or with time first.
            initial_carry: The first state; that of `cell.initialize_carry` by default.
            seq_lengths: Integers of the shape of the batch, at least 1: how much of
                each example is no padding. Outputs for padding mean nothing; the last
                state is the one before it.
            return_carry: Takes the place of the attribute, for this call.
            time_major: Takes the place of the attribute.
            reverse: Takes the place of the attribute; padding stays at the end.
            keep_order: Takes the place of the attribute.
            rngs: Streams or a stream for the first state, in place of the layer's own.

        Returns:
            Outputs of shape (*batch, time, *out), or with time first; or the last state
            and outputs.

        Example:
            >>> import nnx_transforms as nnx, jax.numpy as jnp
            >>> model = nnx.RNN(nnx.GRUCell(3, 4, rngs=nnx.Rngs(0)))
            >>> model(jnp.ones((5, 2, 3)), time_major=True).shape
            (5, 2, 4)
        """
        return_carry = chosen(self, "return_carry", return_carry)
        time_major = chosen(self, "time_major", time_major)
        reverse = chosen(self, "reverse", reverse)
        inputs = jnp.asarray(inputs)
        batch = inputs.ndim - 1 - self.cell.num_feature_axes
        time = 0 if time_major else batch

        def flipped(x: Any) -> Any:
            return jax.tree.map(
                lambda x: flip_sequences(x, seq_lengths, batch, time_major), x
            )

        if reverse:
            inputs = flipped(inputs)
        carry = initial_carry
        if carry is None:
            stream = self.rngs if rngs is None else rngs
            if isinstance(stream, Rngs):
                stream = own_stream(stream, "carry")
            shape = (*inputs.shape[:time], *inputs.shape[time + 1 :])
            carry = self.cell.initialize_carry(shape, stream)
        # All states are kept only where the last one differs between examples.
        all_states = seq_lengths is not None and return_carry

        only = to_predicate(self.broadcast_rngs)
        loop = _loop(only, self.state_axes, time, self.unroll, all_states)
        # Each call draws other keys, which all of its steps share.
        with split_rngs(self.cell, splits=1, only=self.broadcast_rngs, squeeze=True):
            carry, outputs = loop(self.cell, carry, inputs)
        if all_states:
            states, outputs = outputs
            last = jnp.asarray(seq_lengths) - 1
            carry = jax.tree.map(lambda x: _at(x, last), states)
        if reverse and chosen(self, "keep_order", keep_order):
            outputs = flipped(outputs)
        return (carry, outputs) if return_carry else outputs


# The same loop of another call has been traced. Typed, as unrolling by True is by all.
@functools.lru_cache(maxsize=64, typed=True)
def _loop(
    broadcast_rngs: Predicate,
    state_axes: StateAxes,
    time: int,
    unroll: int,
    all_states: bool,
) -> Callable[..., Any]:
    def step(cell: RNNCellBase, carry: Any, x: Any) -> tuple[Any, Any]:
        counts = variables(cell, All(RngCount, broadcast_rngs))
        for _, count in counts.flat_state():
            count.value = jnp.zeros_like(count.value)
        carry, y = cell(carry, x)
        return carry, (carry, y) if all_states else y

    return scan(
        step,
        in_axes=(state_axes, Carry, time),
        out_axes=(Carry, (0, time) if all_states else time),
        unroll=unroll,
    )


def _carry_stream(rngs: Rngs | RngStream | bool) -> RngStream | None:
    if isinstance(rngs, bool):
        return RngStream(0, tag="carry") if rngs else None
    return own_stream(rngs, "carry")


def _at(x: jax.Array, index: jax.Array) -> jax.Array:
    """The element of the first axis that each example asks for."""
    index = index.reshape((1, *index.shape, *(1,) * (x.ndim - 1 - index.ndim)))
    return jnp.take_along_axis(x, index, 0)[0]


def flip_sequences(
    inputs: Array, seq_lengths: Array | None, num_batch_dims: int, time_major: bool
) -> jax.Array:
    """Reverses sequences in time and leaves padding at the end.

    Args:
        inputs: An array of shape (*batch, time, ...), or with time first.
        seq_lengths: Integers of the shape of the batch: how much of each example is no
            padding; None for all of it.
        num_batch_dims: The number of axes of the batch.
        time_major: Whether time is the first axis.

    Returns:
        An array of the same shape.

    Example:
        >>> import nnx_transforms as nnx, jax.numpy as jnp
        >>> x = jnp.array([[1, 2, 3], [4, 5, 0]])
        >>> nnx.flip_sequences(x, jnp.array([3, 2]), 1, False).tolist()
        [[3, 2, 1], [5, 4, 0]]
    """
    time = 0 if time_major else num_batch_dims
    if seq_lengths is None:
        return jnp.flip(inputs, time)
    steps = inputs.shape[time]
    shape = [1] * inputs.ndim
    shape[time] = steps
    lengths = jnp.expand_dims(jnp.asarray(seq_lengths), time)
    lengths = lengths.reshape((*lengths.shape, *(1,) * (inputs.ndim - lengths.ndim)))
    index = (jnp.arange(steps)[::-1].reshape(shape) + lengths) % steps
    return jnp.take_along_axis(inputs, index, time)


def _concatenated(forward: jax.Array, backward: jax.Array) -> jax.Array:
    return jnp.concatenate([forward, backward], -1)


class Bidirectional(Module):
    """Runs one `RNN` forward and another one backward over a sequence.

    Args:
        forward_rnn: A layer with the arguments of `RNN`.
        backward_rnn: Another one; if it is the same, they share parameters.
        merge_fn: Makes one output of the two of a step; joins their last axes by
            default.
        time_major: Whether time is the first axis of inputs and outputs.
        return_carry: Whether to return both last states, too.
        rngs: As for `RNN`; both first states are made from this stream.

    Raises:
        TypeError: If `rngs` is something else.

    Example:
        >>> import nnx_transforms as nnx, jax.numpy as jnp
        >>> forward, backward = (
        ...     nnx.RNN(nnx.GRUCell(3, 4, rngs=nnx.Rngs(i))) for i in range(2))
        >>> nnx.Bidirectional(forward, backward)(jnp.ones((2, 5, 3))).shape
        (2, 5, 8)
    """

    def __init__(
        self,
        forward_rnn: Callable[..., Any],
        backward_rnn: Callable[..., Any],
        *,
        merge_fn: Callable[[jax.Array, jax.Array], jax.Array] = _concatenated,
        time_major: bool = False,
        return_carry: bool = False,
        rngs: Rngs | RngStream | bool = True,
    ) -> None:
        self.forward_rnn = forward_rnn
        self.backward_rnn = backward_rnn
        self.merge_fn = merge_fn
        self.time_major = time_major
        self.return_carry = return_carry
        # Of `Rngs` a stream is forked; one that is given by itself is shared.
        self.rngs = rngs if isinstance(rngs, RngStream) else _carry_stream(rngs)

    def __call__(
        self,
        inputs: Array,
        *,
        initial_carry: tuple[Any, Any] | None = None,
        rngs: Rngs | RngStream | None = None,
        seq_lengths: Array | None = None,
        return_carry: bool | None = None,
        time_major: bool | None = None,
        reverse: bool | None = None,
        keep_order: bool | None = None,
    ) -> Any:
        """Runs both.

        Args:
            inputs: See `RNN`.
            initial_carry: A pair of first states.
            rngs: See `RNN`.
            seq_lengths: See `RNN`.
            return_carry: Takes the place of the attribute, for this call.
            time_major: Takes the place of the attribute.
            reverse: Has no meaning here; for code that passes it to any `RNN`.
            keep_order: Has no meaning here.

        Returns:
            Merged outputs, in the order of inputs; or the pair of last states and
            outputs.

        Example:
            >>> import nnx_transforms as nnx, jax.numpy as jnp
            >>> both = [nnx.RNN(nnx.GRUCell(3, 4, rngs=nnx.Rngs(0)))] * 2
            >>> layer = nnx.Bidirectional(*both, merge_fn=jnp.add)
            >>> layer(jnp.ones((2, 5, 3))).shape
            (2, 5, 4)
        """
        carries = (None, None) if initial_carry is None else initial_carry
        common = {
            "rngs": stream_of(self.rngs if rngs is None else rngs, "carry"),
            "seq_lengths": seq_lengths,
            "return_carry": True,
            "time_major": chosen(self, "time_major", time_major),
        }
        first, forward = self.forward_rnn(
            inputs, initial_carry=carries[0], reverse=False, **common
        )
        second, backward = self.backward_rnn(
            inputs, initial_carry=carries[1], reverse=True, keep_order=True, **common
        )
        outputs = jax.tree.map(self.merge_fn, forward, backward)
        if chosen(self, "return_carry", return_carry):
            return (first, second), outputs
        return outputs
