"""What rules log from a backward pass, as JAX 0.12 lets them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nnx_transforms import (
    BatchStat,
    DiffState,
    Module,
    Param,
    State,
    custom_gradient,
    custom_vjp,
    grad,
    jit,
    vjp,
)

pytestmark = pytest.mark.skipif(
    not hasattr(jax.custom_vjp, "defvjp_with_logs"), reason="JAX has no logs yet"
)


class Model(Module):
    def __init__(self):
        self.w = Param(jnp.array(3.0))
        self.calls = BatchStat(jnp.array(0))


def _gradient(model, x, g):
    w = model.w.to_state().replace(10 * g * x)
    return (State({"w": w}), g * model.w.value), {"g": g, "x": {"twice": 2 * x}}


def by_custom_gradient(gradient=_gradient):
    @custom_gradient(with_logs=True)
    def scale(model, x):
        model.calls.value += 1
        return model.w.value * x, lambda g: gradient(model, x, g)

    return scale


def by_custom_vjp(gradient=_gradient):
    @custom_vjp(nondiff_argnums=(DiffState(0, Param),), input_updates=False)
    def scale(model, x):
        model.calls.value += 1
        return model.w.value * x

    scale.defvjp_with_logs(
        lambda model, x: (scale(model, x), (model, x)),
        lambda residuals, g: gradient(*residuals, g),
    )
    return scale


both = pytest.mark.parametrize("make", [by_custom_gradient, by_custom_vjp])


@both
def test_the_pullback_gives_what_the_rule_logs_beside_the_tangents(make):
    model = Model()
    out, pull = vjp(make(), model, 2.0)
    (model_g, x_g), logs = pull.with_logs(5.0)
    assert (float(out), int(model.calls.value)) == (6.0, 1)
    assert (float(model_g.w.value), float(x_g)) == (100.0, 15.0)
    assert jax.tree.map(float, logs) == {"g": 5.0, "x": {"twice": 4.0}}


@both
def test_without_being_asked_for_the_logs_are_dropped(make):
    model = Model()
    model_g, x_g = vjp(make(), model, 2.0)[1](5.0)
    assert (float(model_g.w.value), float(x_g)) == (100.0, 15.0)
    assert float(grad(make())(model, 2.0).w.value) == 20.0
    assert int(model.calls.value) == 2


@both
def test_the_pullback_with_logs_passes_through_jit(make):
    model = Model()
    _, pull = jit(lambda model, x: vjp(make(), model, x))(model, 2.0)
    (model_g, _), logs = jax.jit(lambda pull, g: pull.with_logs(g))(pull, 5.0)
    assert (float(model_g.w.value), float(logs["g"])) == (100.0, 5.0)
    _, again = jax.tree.map(lambda x: x, pull).with_logs(1.0)
    assert float(again["g"]) == 1.0
    np.testing.assert_array_equal(pull(5.0)[1], 15.0)


@both
def test_a_rule_may_log_nothing(make):
    scale = make(lambda *args: (_gradient(*args)[0], None))
    (_, x_g), logs = vjp(scale, Model(), 2.0)[1].with_logs(5.0)
    assert (float(x_g), logs) == (15.0, {})


@both
def test_a_rule_that_returns_no_pair_is_named(make):
    scale = make(lambda *args: _gradient(*args)[0][1])
    with pytest.raises(TypeError, match=r"must return a pair \(tangents, logs\)"):
        grad(scale)(Model(), 2.0)


def test_for_arrays_it_is_as_with_jax():
    def f(x):
        return x**2, lambda g: ((g * 3 * x,), {"g": g})

    ours, theirs = (
        custom_gradient(with_logs=True)(f),
        jax.custom_gradient(with_logs=True)(f),
    )
    for transform in (vjp, jax.vjp):
        found = transform(ours, 2.0)[1].with_logs(5.0)
        assert jax.tree.map(float, found) == (((30.0,)), {"g": 5.0})
        assert found == transform(theirs, 2.0)[1].with_logs(5.0)


def test_rules_defined_anew_do_not_log():
    scale = by_custom_vjp()
    scale.defvjp(
        lambda model, x: (model.w.value * x, (model, x)),
        lambda residuals, g: _gradient(*residuals, g)[0],
    )
    (_, x_g), logs = vjp(scale, Model(), 2.0)[1].with_logs(5.0)
    assert (float(x_g), logs) == (15.0, {})
