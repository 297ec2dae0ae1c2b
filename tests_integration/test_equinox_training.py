"""What trains and shows models, over variables that hold Equinox modules."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnx_transforms as nnx

X = jnp.ones(2)


class Holder(nnx.Module):
    def __init__(self, seed=0):
        net = eqx.nn.MLP(2, 2, 4, 1, key=jax.random.key(seed))
        # What an average must leave alone: an array of integers.
        net = eqx.tree_at(lambda n: n.layers[1].bias, net, jnp.array([1, 2]))
        self.net = nnx.Param(net)
        self.scale = nnx.Param(jnp.array(float(seed)))
        self.calls = nnx.Variable(jnp.array(0))

    def __call__(self, x):
        self.calls.value += 1
        return self.net.value(x) * self.scale.value


def average(old, new):
    def moved(a, b):
        return 0.75 * a + 0.25 * b if eqx.is_inexact_array(a) else a

    return jax.tree.map(moved, old, new)


def same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    arrays = (eqx.filter(x, eqx.is_array) for x in (a, b))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), *arrays)


def update(ema, model):
    ema.update(model)


@pytest.mark.parametrize("jitted", [True, False])
@pytest.mark.parametrize("of_state", [True, False])
def test_a_moving_average_has_the_inexact_arrays_of_a_module(of_state, jitted):
    model, newer = Holder(0), Holder(1)
    start = nnx.state(model, nnx.Param) if of_state else model
    ema = nnx.EMA(start, decay=0.75, only=nnx.Param)
    follower = ema.apply_to(model)
    expected = Holder(0).net.value
    for _ in range(2):
        (nnx.jit(update) if jitted else update)(ema, newer)
        expected = average(expected, newer.net.value)
    same(follower.net.value, expected)
    assert follower.net.value.activation is expected.activation
    np.testing.assert_allclose(follower.scale.value, 1 - 0.75**2)
    same(model.net.value, Holder(0).net.value)
    assert follower.calls is model.calls


def test_a_moving_average_survives_the_donation_of_its_model():
    model = Holder()
    ema = nnx.EMA(model, decay=0.75, only=nnx.Param)

    @nnx.jit(donate_state=True)
    def step(model):
        model.net.value = average(model.net.value, model.net.value)

    step(model)
    assert np.isfinite(ema.apply_to(model)(X)).all()


def test_a_moving_average_names_what_is_no_variable():
    model = nnx.Dict(net=eqx.nn.Linear(2, 2, key=jax.random.key(0)))
    with pytest.raises(TypeError, match="at 'net/bias', expected variables"):
        nnx.EMA(model, decay=0.5)


def test_a_table_of_a_model_that_holds_a_module():
    model = Holder()
    lines = nnx.tabulate(model, X).split("\n")
    row = " ".join(lines[2].split())
    assert row == (
        "<root> Holder float32[2] "
        "net: float32[4,2], float32[4], float32[2,4], int32[2] calls: int32[]"
    )
    assert int(model.calls.value) == 0
