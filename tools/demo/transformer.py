"""A small transformer over bytes, and where its variables lie on a mesh of devices.

The mesh has two axes. Over `data`, an explicit one, each batch is divided: the types of
arrays say so, and JAX checks them. Over `model`, an automatic one, the parameters are
divided, and the compiler finds out the communication; except in the feed-forward part,
where `shard_map` spells it out.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

import nnx_transforms as nnx

VOCABULARY = 256
"""Bytes."""
OF_ONE_AXIS = {nnx.PARTITION_NAME: None}
"""The axis of layers, which is not divided, in the sharding metadata."""

# Where the variables of one layer lie, all in one place. What one layer divides by
# columns the next one divides by rows, so that a sum is needed only after every second.
COLUMNS, ROWS = P(None, "model"), P("model", None)
LAYER = {
    nnx.All(nnx.PathContains("out"), nnx.PathContains("kernel")): ROWS,
    nnx.All(nnx.PathContains("down"), nnx.PathContains("kernel")): ROWS,
    nnx.PathContains("kernel"): COLUMNS,
    nnx.All(nnx.PathContains("up"), nnx.PathContains("bias")): P("model"),
    ...: P(),
}
OUTSIDE = {
    nnx.PathContains("layers"): None,  # as its metadata says
    nnx.PathContains("head"): COLUMNS,
    nnx.PathContains("embedding"): COLUMNS,
    ...: P(),
}


def make_mesh(data: int, model: int) -> Mesh:
    """Arranges all devices, of all processes."""
    kinds = AxisType.Explicit, AxisType.Auto
    return jax.make_mesh((data, model), ("data", "model"), axis_types=kinds)


class Attention(nnx.Module):
    """Causal self-attention; over `model`, each device has some of the heads."""

    def __init__(self, width: int, heads: int, rngs: nnx.Rngs) -> None:
        self.heads = heads
        self.query = nnx.Linear(width, width, use_bias=False, rngs=rngs)
        self.key = nnx.Linear(width, width, use_bias=False, rngs=rngs)
        self.value = nnx.Linear(width, width, use_bias=False, rngs=rngs)
        self.out = nnx.Linear(width, width, use_bias=False, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        batch, length, _ = x.shape
        by_head = batch, length, self.heads, -1
        layers = self.query, self.key, self.value
        q, k, v = (layer(x).reshape(by_head) for layer in layers)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
        causal = jnp.tri(length, dtype=bool)
        weights = jax.nn.softmax(jnp.where(causal, scores, -jnp.inf))
        mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, v)
        return self.out(mixed.reshape(x.shape))


class FeedForward(nnx.Module):
    """Two dense layers; over `model`, each device has some of the hidden units."""

    def __init__(self, width: int, rngs: nnx.Rngs) -> None:
        self.up = nnx.Linear(width, 4 * width, rngs=rngs)
        self.down = nnx.Linear(4 * width, width, use_bias=False, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        def on_one_device(self: FeedForward, x: jax.Array) -> jax.Array:
            part = self.down(jax.nn.gelu(self.up(x)))
            return jax.lax.psum(part, "model")

        return nnx.shard_map(
            on_one_device,
            in_specs=(nnx.StateSharding(nnx.get_partition_spec(self)), P("data")),
            out_specs=P("data"),
        )(self, x)


class Layer(nnx.Module):
    """Attention and feed-forward, around each of which the input is added."""

    def __init__(self, width: int, heads: int, rngs: nnx.Rngs) -> None:
        self.attention = Attention(width, heads, rngs)
        self.feed_forward = FeedForward(width, rngs)
        self.norms = nnx.List([nnx.LayerNorm(width, rngs=rngs) for _ in range(2)])
        nnx.shard(self, LAYER)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.attention(self.norms[0](x))
        return x + self.feed_forward(self.norms[1](x))


class Transformer(nnx.Module):
    """Predicts the next byte of a text."""

    def __init__(
        self, width: int, heads: int, depth: int, length: int, rngs: nnx.Rngs
    ) -> None:
        # Made in a loop, so that there is memory for the random bits of one layer.
        @nnx.scan(in_axes=0, out_axes=0, transform_metadata=OF_ONE_AXIS)
        def make_layers(key: jax.Array) -> Layer:
            return Layer(width, heads, nnx.Rngs(key))

        self.embedding = nnx.Embed(VOCABULARY, width, rngs=rngs)
        self.position = nnx.Param(jnp.zeros((length, width)))
        self.layers = make_layers(jax.random.split(rngs.params(), depth))
        self.norm = nnx.LayerNorm(width, rngs=rngs)
        self.head = nnx.Linear(width, VOCABULARY, use_bias=False, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = self.embedding(tokens) + self.position.value

        # One layer is compiled for all; what it computes is computed again on the way
        # back, instead of kept.
        @nnx.scan(
            in_axes=(0, nnx.Carry), out_axes=nnx.Carry, transform_metadata=OF_ONE_AXIS
        )
        @nnx.remat
        def run(layer: Layer, x: jax.Array) -> jax.Array:
            return layer(x)

        return self.head(self.norm(run(self.layers, x)))


@nnx.create_sharded(shardings=OUTSIDE)
def create(rngs: nnx.Rngs) -> tuple[Transformer, nnx.Optimizer[Transformer]]:
    """Makes a model and its optimizer, each variable in shards from the beginning."""
    model = Transformer(width=64, heads=4, depth=4, length=64, rngs=rngs)
    return model, nnx.Optimizer(model, optax.adam(3e-3))


@nnx.jit(donate_state=True, constrain_state=True)
def train_step(
    model: Transformer, optimizer: nnx.Optimizer[Transformer], text: jax.Array
) -> jax.Array:
    """Trains on a batch of texts; what it overwrites, it overwrites in place."""

    def mean_loss(model: Transformer) -> jax.Array:
        logits = model(text[:, :-1])
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, text[:, 1:])
        return losses.mean()

    loss, grads = nnx.value_and_grad(mean_loss)(model)
    optimizer.update(grads)
    return loss
