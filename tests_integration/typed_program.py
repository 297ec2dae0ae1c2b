# ruff: noqa: F403, F405
"""A program as users write it, for type checkers: they see every public name."""

from typing import assert_type

import jax

import graphcore as gc
import nnx_transforms as nnx
from linen_lift import *


class Model(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.linear = nnx.Linear(2, 3, rngs=rngs)
        self.calls = nnx.Variable(0)


@nnx.jit
def forward(model: Model, x: jax.Array) -> jax.Array:
    return model.linear(x)


@nnx.jit(static_argnums=1, donate_state=True)
@nnx.remat(static_argnums=1)
def count(model: Model, by: int) -> None:
    model.calls.value += by


@nnx.vmap(in_axes=(None, 0))
def each(model: Model, x: jax.Array) -> jax.Array:
    return model.linear(x)


class Block(Module):
    features: int

    @compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return assert_type(Dense(self.features)(x), jax.Array)


class Trainer(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.model = Model(rngs)

    @nnx.jit(donate_state=True)
    def step(self, x: jax.Array) -> jax.Array:
        return forward(self.model, x)


def transformed(model: Model, x: jax.Array) -> None:
    assert_type(forward(model, x), jax.Array)
    assert_type(each(model, x), jax.Array)
    assert_type(count(model, 2), None)
    assert_type(Trainer(nnx.Rngs(0)).step(x), jax.Array)
    assert_type(nnx.vmap(Model, out_axes=0)(nnx.Rngs(0)), Model)
    assert_type(nnx.eval_shape(Model, nnx.Rngs(0)), Model)
    assert_type(nnx.fori_loop(0, 3, lambda i, model: model, model), Model)
    forward.lower(model, x).compile()
    forward(model)  # type: ignore[call-arg]
    nnx.vmap(forward, 0, out_axis=0)  # an option of another JAX


def parameters(model: Model) -> int:
    assert_type(model.linear, nnx.Linear)
    assert_type(model.linear.kernel, nnx.Param[jax.Array])
    assert_type(model.linear.kernel.value, jax.Array)
    graphdef, state = gc.split(model)
    assert gc.merge(graphdef, state) is not model
    return len(jax.tree.leaves(state))
