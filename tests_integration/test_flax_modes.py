"""Flax's modes without updates of graphs: its transforms and ours on its objects."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnx_transforms as ours

flax = pytest.importorskip("flax.nnx")
if not hasattr(flax, "prefix"):
    pytest.skip(
        "a Flax without these modes, or the whole of them", allow_module_level=True
    )

MODES = [
    {"graph": True, "graph_updates": False},
    {"graph": False, "graph_updates": False},
]


class Block(flax.Module):
    def __init__(self, rngs):
        self.linear = flax.Linear(3, 3, rngs=rngs)
        self.norm = flax.BatchNorm(3, rngs=rngs)
        self.scale = flax.Param(jnp.ones(3))

    def __call__(self, x):
        return jnp.tanh(self.norm(self.linear(x))) * self.scale


def block():
    return Block(flax.Rngs(0))


X = jax.random.normal(jax.random.key(1), (4, 3))


def loss(model, x):
    return jnp.mean(model(x) ** 2)


def gradient(nnx, **mode):
    model = block()
    return model, nnx.grad(loss, **mode)(model, X)


def values_and_gradients(nnx, **mode):
    model = block()
    compute = nnx.value_and_grad(loss, argnums=(0, 1), **mode)
    return model, nnx.jit(compute, **mode)(model, X)


def reverse(nnx, **mode):
    model = block()
    out, pull = nnx.vjp(lambda model, x: model(x), model, X, **mode)
    return model, out, pull(jnp.ones_like(out))


def forward(nnx, **mode):
    model = block()
    tangent = jax.tree.map(jnp.ones_like, model)
    how = (model, X), (tangent, jnp.ones_like(X))
    return model, nnx.jvp(lambda model, x: model(x), *how, **mode)


def decorated(nnx, **mode):
    model = block()

    @nnx.vjp(**mode)
    def apply(model, x):
        return model(x).sum()

    out, pull = apply(model, X)
    return model, out, pull(1.0 + 0 * out)


def rule(nnx, **mode):
    model = block()
    apply = nnx.custom_vjp(loss, **mode)

    def bwd(residuals, g):
        model, x = residuals
        model_g = flax.clone(model)
        model_g.scale[...] = model.scale[...] * g
        return model_g, -x

    apply.defvjp(lambda model, x: (apply(model, x), (model, x)), bwd)
    return model, nnx.grad(apply, argnums=(0, 1), **mode)(model, X)


def stacked(nnx, **mode):
    make = nnx.vmap(block_of, in_axes=0, out_axes=0, **mode)
    blocks = make(jax.random.split(jax.random.key(0), 2))
    axes = flax.prefix(blocks, {flax.BatchStat: 0, ...: 0}, graph=mode["graph"])
    apply = nnx.vmap(lambda model, x: model(x), in_axes=(axes, None), **mode)
    row = flax.prefix(blocks.scale, {flax.Param: 1}, graph=mode["graph"])
    turn = nnx.vmap(lambda scale: 2 * scale, in_axes=(row,), **mode)
    return blocks, apply(blocks, X), turn(blocks.scale)


def stacked_in_part(nnx, **mode):
    blocks = nnx.vmap(block_of, **mode)(jax.random.split(jax.random.key(0), 2))
    blocks.norm = flax.Variable(jnp.arange(3.0))
    axes = flax.prefix(blocks, {flax.Param: 0, ...: None}, graph=mode["graph"])
    apply = lambda model, x: model.linear(x) * model.norm[...]
    return blocks, nnx.vmap(apply, in_axes=(axes, None), **mode)(blocks, X)


def block_of(key):
    return Block(flax.Rngs(key))


def split_streams(nnx, **mode):
    rngs = flax.Rngs(params=0, dropout=1)
    copy = nnx.split_rngs(rngs, splits=3, only="params", **mode)
    one = nnx.split_rngs(rngs, splits=1, squeeze=True, **mode)
    fork = nnx.fork_rngs(rngs, **mode)
    how = {"split": {"params": (2, 2)}, "broadcast": {"dropout": 3}}
    other = nnx.with_rngs(rngs, **how, **mode)

    @nnx.split_rngs(splits=2, **mode)
    @nnx.vmap(in_axes=0, **mode)
    def draw(rngs):
        return rngs.params.uniform(), rngs.dropout.uniform()

    trees = rngs, copy, one, fork, other, draw(rngs)
    return jax.tree.map(lambda x: x if x.dtype == jnp.float32 else data(x), trees)


def data(x):
    return jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x


def rematerialized(nnx, **mode):
    model = block()
    return model, nnx.remat(lambda model, x: model(x), **mode)(model, X)


def branches(nnx, **mode):
    model = block()
    apply = lambda model, x: model(x)
    skip = lambda model, x: x
    one = nnx.cond(True, apply, skip, model, X, **mode)
    return model, one, nnx.switch(1, [apply, skip], model, X, **mode)


def loops(nnx, **mode):
    model, total = block(), flax.Variable(jnp.zeros(3))

    def add(total, x):
        total[...] += x
        return total, total[...]

    _, sums = nnx.scan(add, **mode)(total, X)
    x = nnx.fori_loop(
        0, 3, lambda i, state: (state[0], state[0](state[1])), (model, X), **mode
    )
    return model, total, sums, x


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "program",
    [
        *(gradient, values_and_gradients, reverse, forward, decorated, rule),
        *(stacked, stacked_in_part, split_streams, rematerialized, branches, loops),
    ],
)
def test_values_and_forms_are_those_of_flax(program, mode):
    due, found = program(flax, **mode), program(ours, **mode)
    assert jax.tree.structure(found) == jax.tree.structure(due)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(due), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)
