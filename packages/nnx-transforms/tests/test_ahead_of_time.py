"""`jit` ahead of time, and abstract evaluation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jitted_models import Model, assert_unchanged, counting, snapshot

import nnx_transforms as nnx

# Ahead of time


def test_lower_and_compile():
    model, x = Model(), jnp.ones(3)
    f, traces = counting(lambda m, x, k: m(x) * k)
    jitted = nnx.jit(f, static_argnums=2)
    lowered = jitted.lower(model, x, 2)
    assert "multiply" in lowered.as_text()
    compiled = lowered.compile()
    assert int(model.blocks[0].n.value) == 0
    expected = nnx.jit(f, static_argnums=2)(Model(), x, 2)
    np.testing.assert_allclose(compiled(model, x, 2), expected)
    assert int(model.blocks[0].n.value) == 1
    assert compiled.cost_analysis() is not None
    model.blocks[0].rate = 7
    with pytest.raises(TypeError, match="another structure"):
        compiled(model, x, 2)
    assert len(traces) == 2


def test_lowering_with_abstract_values():
    model = nnx.eval_shape(Model)
    x = jax.ShapeDtypeStruct((3,), jnp.float32)
    compiled = nnx.jit(lambda m, x: m(x)).lower(model, x).compile()
    real = Model()
    assert compiled(real, jnp.ones(3)).shape == (3,)
    assert int(real.blocks[1].n.value) == 1


def test_eval_shape_publishes_nothing():
    model = Model()
    before = snapshot(model)

    def f(m, x):
        m(x)
        m.made = nnx.Param(jnp.ones((5, 5)))
        return m, m.made, m.made

    same, made, again = nnx.eval_shape(f, model, jnp.ones(3))
    assert_unchanged(before, model)
    assert same is not model
    assert made is again
    assert same.made is made
    assert made.value == jax.ShapeDtypeStruct((5, 5), jnp.float32)
    assert nnx.jit(f).eval_shape(model, jnp.ones(3))[1].value.shape == (5, 5)
