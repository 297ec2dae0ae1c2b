"""`map` over objects, against a loop written by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nnx_transforms as nnx


class Scale(nnx.Module):
    def __init__(self, w):
        self.w = nnx.Param(jnp.asarray(w))
        self.calls = nnx.Variable(jnp.zeros(jnp.shape(w)[:1], int))

    def __call__(self, x):
        return self.w.value * x


@settings(max_examples=20, deadline=None)
@given(
    n=st.integers(1, 7),
    batch_size=st.sampled_from([None, 1, 2, 3, 7, 9]),
    compiled=st.booleans(),
)
def test_as_a_loop_by_hand(n, batch_size, compiled):
    stack = Scale(jnp.arange(1.0, n + 1))
    xs = jnp.arange(n * 2.0).reshape(n, 2)

    def call(pair):
        scale, x = pair
        scale.calls.value = scale.calls.value + 1
        scale.last = nnx.Cache(x)
        return {"sum": scale(x).sum(), "new": nnx.Param(2 * scale.w.value)}

    run = lambda stack, xs: nnx.map(call, (stack, xs), batch_size=batch_size)
    out = (nnx.jit(run) if compiled else run)(stack, xs)
    expected = [float((w + 1) * x.sum()) for w, x in enumerate(np.asarray(xs))]
    np.testing.assert_allclose(out["sum"], expected, rtol=1e-6)
    np.testing.assert_array_equal(out["new"].value, 2 * stack.w.value)
    np.testing.assert_array_equal(stack.calls.value, np.ones(n))
    np.testing.assert_array_equal(stack.last.value, xs)


def test_a_bound_object_is_read_and_the_loop_is_that_of_jax():
    model, xs = Scale(3.0), jnp.arange(5.0)
    np.testing.assert_array_equal(nnx.map(model, xs, batch_size=2), 3 * xs)
    w = model.w.value
    ours, by_hand = (
        jax.make_jaxpr(f)(xs)
        for f in (
            lambda xs: nnx.map(lambda x: w * x, xs, batch_size=2),
            lambda xs: jax.lax.map(lambda x: w * x, xs, batch_size=2),
        )
    )
    assert [e.primitive.name for e in ours.eqns] == [
        e.primitive.name for e in by_hand.eqns
    ]
    grads = nnx.grad(lambda m: nnx.map(m, xs, batch_size=2).sum())(model)
    assert float(grads.w.value) == 10.0


@pytest.mark.parametrize("batch_size", [None, 2])
def test_a_further_call_does_not_run_the_function_in_python(batch_size):
    runs = []

    def call(pair):
        runs.append(1)
        scale, x = pair
        scale.calls.value += 1
        return scale(x)

    def run(w, dtype=float):
        stack = Scale(jnp.arange(w, w + 3, dtype=dtype))
        out = nnx.map(call, (stack, jnp.ones(3)), batch_size=batch_size)
        assert stack.calls.value.tolist() == [1, 1, 1]
        assert out.tolist() == [w, w + 1, w + 2]

    run(0)
    count = len(runs)
    run(5)
    assert len(runs) == count
    run(5, int)
    assert len(runs) == 2 * count


def test_a_number_that_is_shared_stays_one():
    model = Scale(2.0)
    model.times = nnx.Variable(3)

    def call(x):
        return x if model.times.value == 3 else -x

    class Bound(Scale):
        def __call__(self, x):
            return x * self.w.value if self.times.value == 3 else x

    bound = Bound(2.0)
    bound.times = nnx.Variable(3)
    assert nnx.map(call, jnp.arange(3.0)).tolist() == [0, 1, 2]
    for times, due in ((3, [0, 2, 4]), (4, [0, 1, 2])):
        bound.times.value = times
        assert nnx.map(bound, jnp.arange(3.0)).tolist() == due


def test_errors_leave_everything_as_it_was():
    class Counter(Scale):
        def __call__(self, x):
            self.w.value = self.w.value + x
            return x

    counter = Counter(1.0)
    with pytest.raises(ValueError, match="wrote to the variable at 'self/w'"):
        nnx.map(counter, jnp.arange(3.0))
    assert float(counter.w.value) == 1.0
    stack = Scale(jnp.arange(3.0))
    with pytest.raises(ValueError, match=r"0/1: axis 0 of shape \(4,\) has size 4"):
        nnx.map(lambda pair: pair[0](pair[1]), (stack, jnp.arange(4.0)))
    with pytest.raises(ValueError, match="over axis 0, but its value has"):
        nnx.map(lambda s: s.w.value, Scale(1.0))
