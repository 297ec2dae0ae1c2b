"""Models of Flax NNX that keep methods and partials among their attributes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import graphcore as gc
import nnx_transforms as nt

nnx = pytest.importorskip("flax.nnx")

X = jax.random.normal(jax.random.key(0), (3, 4))


class Net(nnx.Module):
    """Calls what it chose when it was made."""

    def __init__(self, how, rngs):
        self.dense = nnx.Linear(4, 4, rngs=rngs)
        self.calls = nnx.BatchStat(jnp.array(0))
        self.apply = {
            "direct": None,
            "method": self.plain,
            "partial": functools.partial(self.scaled, 1.0),
            "function": functools.partial(Net.scaled, self, 1.0),
            "layer": self.dense.__call__,
        }[how]

    def plain(self, x):
        self.calls[...] += 1
        return self.dense(x)

    def scaled(self, scale, x):
        return self.plain(x) * scale

    def __call__(self, x):
        return (self.apply or self.plain)(x)


HOW = ["method", "partial", "function", "layer"]


def train(how):
    model = Net(how, nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adamw(1e-2), wrt=nnx.Param)

    @nt.jit
    def step(model, optimizer, x):
        loss, grads = nt.value_and_grad(lambda m: (m(x) ** 2).mean())(model)
        optimizer.update(model, grads)
        return loss

    losses = [float(step(model, optimizer, X + n)) for n in range(3)]
    return losses, model


@pytest.mark.parametrize("how", HOW)
def test_it_trains_as_if_the_function_were_looked_up_at_the_call(how):
    losses, model = train(how)
    due, direct = train("direct")
    assert losses == due
    for name in ("kernel", "bias"):
        expected = getattr(direct.dense, name)[...]
        np.testing.assert_array_equal(getattr(model.dense, name)[...], expected)
    assert int(model.calls[...]) == (0 if how == "layer" else 3)
    np.testing.assert_array_equal(model(X), direct(X))


@pytest.mark.parametrize("how", HOW)
def test_states_have_the_paths_that_flax_gives_them(how):
    model = Net(how, nnx.Rngs(0))
    theirs = {path for path, _ in nnx.to_flat_state(nnx.state(model))}
    assert {*nt.state(model).flat_state().paths} == theirs


@pytest.mark.parametrize("how", HOW)
def test_functions_of_flax_go_on_to_work(how):
    model = Net(how, nnx.Rngs(0))
    before = nt.jit(lambda m, x: m(x))(model, X)
    graphdef, state = nnx.split(model)
    np.testing.assert_allclose(nnx.merge(graphdef, state)(X), before, rtol=1e-6)
    assert nnx.graphdef(model) == graphdef


@pytest.mark.parametrize("how", HOW)
def test_models_that_a_transform_makes_are_whole(how):
    model = nt.jit(lambda: Net(how, nnx.Rngs(0)))()
    np.testing.assert_allclose(model(X), Net(how, nnx.Rngs(0))(X), rtol=1e-6)
    copy = gc.clone(model)
    copy.dense.kernel[...] *= 0
    assert not np.allclose(model(X), copy(X))
    np.testing.assert_allclose(copy(X), jnp.zeros((3, 4)) + copy.dense.bias[...])
