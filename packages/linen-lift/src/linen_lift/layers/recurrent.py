# ruff: noqa: F403, F405
"""Recurrent layers: `RNN` and `Bidirectional`, which loop cells over time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from ..filters import CollectionFilter, StreamFilter
from ..frozen_dict import FrozenDict
from ..lift.axes import AxisSpec
from ..module import Module
from ..transforms import scan
from .cells import *

__all__ = ["RNN", "Bidirectional"]


class RNN(Module):
    """Runs a cell over a sequence, with `scan`.

    Args:
        cell: the cell.
        time_major: whether time is the first axis of inputs and outputs; otherwise it
            comes after the batch.
        return_carry: whether to return the last state, too.
        reverse: whether to go from the end to the beginning, and return outputs in this
            order.
        keep_order: whether outputs are in the order of inputs where `reverse` is set.
        unroll: see `scan`.
        variable_axes: see `scan`.
        variable_broadcast: see `scan`.
        variable_carry: see `scan`.
        split_rngs: see `scan`.

    Example:
        >>> import linen_lift as nn, jax, jax.numpy as jnp
        >>> model = nn.RNN(nn.LSTMCell(4), return_carry=True)
        >>> ((c, h), out), _ = model.init_with_output(
        ...     jax.random.key(0), jnp.ones((2, 5, 3)))
        >>> out.shape, h.shape
        ((2, 5, 4), (2, 4))
    """

    cell: RNNCellBase
    time_major: bool = False
    return_carry: bool = False
    reverse: bool = False
    keep_order: bool = False
    unroll: int = 1
    variable_axes: Mapping[CollectionFilter, AxisSpec] = FrozenDict()
    variable_broadcast: CollectionFilter = "params"
    variable_carry: CollectionFilter = False
    split_rngs: Mapping[StreamFilter, bool] = FrozenDict({"params": False})

    def __call__(
        self,
        inputs: jax.Array,
        *,
        initial_carry: Any = None,
        init_key: jax.Array | None = None,
        seq_lengths: jax.Array | None = None,
        return_carry: bool | None = None,
        time_major: bool | None = None,
        reverse: bool | None = None,
        keep_order: bool | None = None,
    ) -> Any:
        """Runs the cell.

        Args:
            inputs: an array of shape `(*batch, time, *features)`, or with time first.
            initial_carry: the first state; that of `cell.initialize_carry` if it is not
                given.
            init_key: the key for that, which few cells use.
            seq_lengths: integers of shape `batch`, at least 1: how much of each example
                is not padding. Outputs for padding mean nothing; the last state is the
                one before it.
            return_carry: replaces the option of the layer.
            time_major: replaces the option of the layer.
            reverse: replaces the option of the layer; padding stays at the end.
            keep_order: replaces the option of the layer.

        Returns:
            Outputs of shape `(*batch, time, *out)`, or with time first; or the last
            state and outputs.
        """
        return_carry = self.return_carry if return_carry is None else return_carry
        time_major = self.time_major if time_major is None else time_major
        reverse = self.reverse if reverse is None else reverse
        keep_order = self.keep_order if keep_order is None else keep_order

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
            shape = (*inputs.shape[:time], *inputs.shape[time + 1 :])
            key = jax.random.key(0) if init_key is None else init_key
            carry = self.cell.initialize_carry(key, shape)
        # All states are kept only where the last one differs between examples.
        all_states = seq_lengths is not None and return_carry

        def step(cell: Any, carry: Any, x: Any) -> tuple[Any, Any]:
            carry, y = cell(carry, x)
            return carry, (carry, y) if all_states else y

        loop = scan(
            step,
            in_axes=time,
            out_axes=(0, time) if all_states else time,
            unroll=self.unroll,
            variable_axes=self.variable_axes,
            variable_broadcast=self.variable_broadcast,
            variable_carry=self.variable_carry,
            split_rngs=self.split_rngs,
        )
        carry, outputs = loop(self.cell, carry, inputs)
        if all_states:
            states, outputs = outputs
            carry = jax.tree.map(lambda x: _at(x, jnp.asarray(seq_lengths) - 1), states)
        if reverse and keep_order:
            outputs = flipped(outputs)
        return (carry, outputs) if return_carry else outputs


def _at(x: jax.Array, index: jax.Array) -> jax.Array:
    """The element of the first axis that each example asks for."""
    index = index.reshape((1, *index.shape, *(1,) * (x.ndim - 1 - index.ndim)))
    return jnp.take_along_axis(x, index, 0)[0]


def flip_sequences(
    inputs: jax.Array,
    seq_lengths: jax.Array | None,
    num_batch_dims: int,
    time_major: bool,
) -> jax.Array:
    """Reverses sequences in time and leaves padding at the end.

    Args:
        inputs: an array of shape `(*batch, time, ...)`, or with time first.
        seq_lengths: integers of shape `batch`: how much of each example is not padding;
            None for all of it.
        num_batch_dims: the number of axes of the batch.
        time_major: whether time is the first axis.

    Returns:
        An array of the shape of `inputs`.

    Example:
        >>> import linen_lift as nn, jax.numpy as jnp
        >>> x = jnp.array([[1, 2, 3], [4, 5, 0]])
        >>> nn.recurrent.flip_sequences(x, jnp.array([3, 2]), 1, False).tolist()
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
        forward_rnn: a layer with the arguments of `RNN`.
        backward_rnn: another one; if it is the same, they share parameters.
        merge_fn: makes one output of the two of a step; joins their last axes by
            default.
        time_major: whether time is the first axis of inputs and outputs.
        return_carry: whether to return both last states, too.

    Example:
        >>> import linen_lift as nn, jax, jax.numpy as jnp
        >>> model = nn.Bidirectional(nn.RNN(nn.GRUCell(4)), nn.RNN(nn.GRUCell(4)))
        >>> model.init_with_output(jax.random.key(0), jnp.ones((2, 5, 3)))[0].shape
        (2, 5, 8)
    """

    forward_rnn: Callable[..., Any]
    backward_rnn: Callable[..., Any]
    merge_fn: Callable[[jax.Array, jax.Array], jax.Array] = _concatenated
    time_major: bool = False
    return_carry: bool = False

    def __call__(
        self,
        inputs: jax.Array,
        *,
        initial_carry: Any = None,
        init_key: jax.Array | None = None,
        seq_lengths: jax.Array | None = None,
        return_carry: bool | None = None,
        time_major: bool | None = None,
        reverse: bool | None = None,
        keep_order: bool | None = None,
    ) -> Any:
        """Runs both.

        Args:
            inputs: see `RNN`.
            initial_carry: a pair of first states.
            init_key: a key for both.
            seq_lengths: see `RNN`.
            return_carry: replaces the option of the layer.
            time_major: replaces the option of the layer.
            reverse: has no meaning here; for code that passes it to any `RNN`.
            keep_order: has no meaning here.

        Returns:
            Merged outputs, in the order of inputs; or the pair of last states and
            outputs.
        """
        keys = (None, None) if init_key is None else jax.random.split(init_key)
        carries = (None, None) if initial_carry is None else initial_carry
        common = {
            "seq_lengths": seq_lengths,
            "return_carry": True,
            "keep_order": True,
            "time_major": self.time_major if time_major is None else time_major,
        }
        layers, ways = (self.forward_rnn, self.backward_rnn), (False, True)
        (first, forward), (second, backward) = (
            layer(inputs, initial_carry=carry, init_key=key, reverse=way, **common)
            for layer, carry, key, way in zip(layers, carries, keys, ways, strict=True)
        )
        outputs = jax.tree.map(self.merge_fn, forward, backward)
        if self.return_carry if return_carry is None else return_carry:
            return (first, second), outputs
        return outputs
