"""Compiles a program of each kind of transform; several processes run it.

The order of sets and the addresses of objects differ from one process to the next. No
program may depend on them.
"""

import functools
import random

import jax
import jax.numpy as jnp
import optax
from small_models import Net, data

import linen_lift as nn
import nnx_transforms as nnx


class Seen(nnx.Variable):
    """What a layer counts."""


class Layer(nnx.Module):
    def __init__(self, rngs):
        self.linear = nnx.Linear(3, 3, rngs=rngs)
        self.seen = Seen(jnp.zeros(()))
        self.mean = nnx.BatchStat(jnp.ones(3))
        self.tags = {"relu", "tanh", "gelu", "silu"}
        self.kinds = frozenset([Seen, nnx.Param, nnx.BatchStat])

    def __call__(self, x):
        self.seen.value += 1
        self.mean.value = self.mean.value * x.mean(axis=0)
        for tag in sorted(self.tags):
            x = getattr(jax.nn, tag)(x)
        return self.linear(x)


@functools.partial(nnx.custom_vjp, nondiff_argnums=(nnx.DiffState(0, nnx.Param),))
def halved(layer, x):
    return layer(x)


def halved_fwd(layer, x):
    return nnx.vjp(lambda layer, x: layer(x), layer, x)


def halved_bwd(pullback, g):
    _, out_g = g
    return pullback(out_g / 2)


halved.defvjp(halved_fwd, halved_bwd)


@nnx.jit(donate_state=True)
def training_step(model, optimizer, x, y):
    def loss(model):
        return jnp.mean((model(x) - y) ** 2)

    value, grads = nnx.value_and_grad(loss)(model)
    optimizer.update(model, grads)
    return value


@nnx.jit
def loops(stack, layer, x):
    axes = nnx.StateAxes({(nnx.Param, nnx.BatchStat): 0, Seen: 0, ...: None})
    scan = nnx.scan(in_axes=(axes, nnx.Carry), out_axes=nnx.Carry)
    x = nnx.remat(lambda layer, x: layer(x))(layer, scan(Layer.__call__)(stack, x))
    nnx.cond(x.sum() > 0, lambda layer: layer(x), lambda layer: 2 * x, layer)
    nnx.while_loop(
        lambda carry: carry[0].seen.value < 9,
        lambda carry: (carry[0], carry[0](carry[1])),
        (layer, x),
    )
    layer.last = nnx.Variable(x)
    return nnx.vmap(lambda layer, x: layer.linear(x), in_axes=(None, 0))(layer, x)


def main():
    count = random.SystemRandom().randrange(5000)
    elsewhere = [{number: []} for number in range(count)]  # so that addresses differ
    model = Net()
    optimizer = nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)
    for _ in range(2):
        training_step(model, optimizer, *data())

    x = jnp.ones((4, 3))
    layer = Layer(nnx.Rngs(1))
    loops(nnx.vmap(Layer)(nnx.Rngs(0).fork(split=3)), layer, x)
    loops(nnx.vmap(Layer)(nnx.Rngs(0).fork(split=3)), layer, x)  # it has one more
    nnx.jit(nnx.grad(lambda layer, x: halved(layer, x).sum()))(layer, x)

    axes, split = {"params": 0, "state": None}, {"params": True, "dropout": False}
    stacked = nn.vmap(nn.Dense, variable_axes=axes, split_rngs=split)
    jax.jit(lambda key: stacked(3).init(key, x))(jax.random.key(0))
    return elsewhere


if __name__ == "__main__":
    main()
