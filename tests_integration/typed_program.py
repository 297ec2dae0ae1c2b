# ruff: noqa: F403, F405
# mypy: disallow-untyped-decorators=False
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


def parameters(model: Model) -> int:
    assert_type(model.linear, nnx.Linear)
    graphdef, state = gc.split(model)
    assert gc.merge(graphdef, state) is not model
    return len(jax.tree.leaves(state))
