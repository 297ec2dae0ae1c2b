"""Objects that plain JAX puts together: who may write them."""

import gc as garbage

import jax
import jax.numpy as jnp
import pytest

import graphcore as gc

READ_ONLY = "the caller would not see the change"


def _write(variable):
    variable.value = variable.value + 1
    return variable


@pytest.fixture
def variable():
    return gc.Variable(jnp.ones(2))


def test_a_variable_that_jax_puts_together_in_a_trace_is_read_only(variable):
    with pytest.raises(gc.TraceContextError, match=READ_ONLY):
        jax.jit(_write)(variable)
    assert jax.jit(lambda v: _write(gc.by_value(v)))(variable).value.tolist() == [2, 2]


@pytest.mark.parametrize("times", [1, 3])
def test_so_is_a_copy_with_the_same_value(variable, times):
    def f(v):
        for _ in range(times):
            v = jax.tree.map(lambda x: x, v)
        return _write(v)

    with pytest.raises(gc.TraceContextError, match=READ_ONLY):
        jax.jit(f)(variable)
    with pytest.raises(gc.TraceContextError, match=READ_ONLY):
        jax.jit(lambda: f(variable))()
    assert f(variable).value.tolist() == [2, 2]
    assert variable.value.tolist() == [1, 1]


@pytest.mark.parametrize("change", [lambda x: x * 2, jnp.sin, lambda _: jnp.zeros(2)])
def test_a_copy_with_another_value_may_be_written(variable, change):
    made = jax.jit(lambda v: _write(jax.tree.map(change, v)))(variable)
    assert made.value.tolist() == (change(jnp.ones(2)) + 1).tolist()


def test_what_is_gone_does_not_count(variable):
    """A new array may stand at the place in memory of one that is gone."""

    def f(v):
        leaves, structure = jax.tree.flatten(jax.tree.map(lambda x: x, v))
        garbage.collect()
        return _write(jax.tree.unflatten(structure, leaves))

    assert jax.jit(f)(variable).value.tolist() == [2, 2]


def test_what_a_trace_made_is_its_own():
    def f(x):
        v = gc.Variable(x)
        return _write(jax.tree.map(lambda x: x, v)).value, v.value

    assert [a.tolist() for a in jax.jit(f)(jnp.ones(2))] == [[2, 2], [1, 1]]
