"""Checks at run time, and objects that keep out of what failed."""

import gc as garbage
import inspect
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.experimental import checkify as jax_checkify

import graphcore as gc
from nnx_transforms import Dict, Module, Param, Rngs, Variable, jit
from nnx_transforms.transforms.checkify import checkify
from nnx_transforms.transforms.vmap import vmap


class Model(Module):
    def __init__(self):
        self.w = Param(jnp.arange(1.0, 4.0))
        self.tied = self.w
        self.count = Variable(jnp.array(0))
        self.rngs = Rngs(0)

    def step(self, x):
        self.count.value = self.count.value + 1
        self.w.value = self.w.value * x
        self.rngs()
        jax_checkify.check(jnp.all(x > 0), "x is {x}", x=jnp.asarray(x))
        return self


def step(m, x):
    return m.step(x)


def snapshot(*nodes):
    graphdef, state = gc.split(gc.List(nodes))
    return graphdef, jax.tree.map(
        lambda x: (
            np.asarray(jax.random.key_data(x))
            if jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
            else np.asarray(x)
        ),
        state,
    )


def assert_unchanged(before, *nodes):
    graphdef, values = snapshot(*nodes)
    assert graphdef == before[0]
    jax.tree.map(np.testing.assert_array_equal, values, before[1])


def test_a_call_that_passes_is_published():
    m = Model()
    error, out = checkify(step)(m, 2.0)
    assert error.get() is None
    assert out is m
    assert (m.w.value.tolist(), int(m.count.value)) == ([2.0, 4.0, 6.0], 1)


def test_constants_are_written_as_arrays():
    m = Dict(steps=jnp.array(3))
    checkify(lambda m: setattr(m, "steps", jnp.array(0)))(m)
    assert isinstance(m.steps, jax.Array)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_call_that_fails_is_not(compiled):
    m = Model()
    before = snapshot(m)

    def f(m, *, x):
        step(m, x)
        m.new = Param(x)
        m.other = Dict(w=m.w)
        del m.tied
        return m, m.other, m.new, Dict(m=m), x * 2

    f = checkify(jit(f) if compiled else f)
    error, (same, other, new, fresh, doubled) = f(m, x=-1.0)
    assert "x is " in error.get()
    assert "-1." in error.get()
    assert_unchanged(before, m)
    assert same is m
    assert other.w is m.w
    assert fresh.m is m
    assert (float(new.value), float(doubled)) == (-1.0, -2.0)
    with pytest.raises(jax_checkify.JaxRuntimeError, match="x is"):
        error.throw()
    error, (same, other, new, fresh, _) = f(m, x=2.0)
    assert (m.other is other, m.new is new, fresh.m is m) == (True, True, True)


def test_methods_and_decorators():
    m = Model()
    before = snapshot(m)
    error, _ = checkify(m.step)(-1.0)
    assert error.get() is not None
    assert_unchanged(before, m)
    error, out = checkify(m.step)(1.0)
    assert (out is m, int(m.count.value)) == (True, 1)

    @checkify(errors=jax_checkify.div_checks)
    def divide(m, by):
        """Divides."""
        m.w.value = m.w.value / by

    assert (divide.__name__, divide.__doc__) == ("divide", "Divides.")
    assert list(inspect.signature(divide).parameters) == ["m", "by"]
    assert "division by zero" in divide(m, 0)[0].get()
    assert divide(m, 2)[0].get() is None
    assert m.w.value.tolist() == [0.5, 1.0, 1.5]


def test_inside_jit_the_error_selects():
    m = Model()

    @jit
    def f(m, x):
        error, out = checkify(step)(m, x)
        assert out is m
        return error

    before = snapshot(m)
    error = f(m, -1.0)
    assert error.get() is not None
    assert_unchanged(before, m)
    assert f(m, 2.0).get() is None
    assert (m.w.value.tolist(), int(m.count.value)) == ([2.0, 4.0, 6.0], 1)
    assert int(m.rngs.default.count.value) == 1


def test_inside_vmap_each_index_has_its_error():
    m = Dict(w=Param(jnp.ones((3, 2))))

    @vmap(in_axes=(0, 0))
    def f(m, x):
        def check(m, x):
            m.w.value = m.w.value * x
            jax_checkify.check(x > 0, "negative")

        return checkify(check)(m, x)[0]

    error = f(m, jnp.array([2.0, -1.0, 3.0]))
    assert "index 1" in error.get()
    assert m.w.value.tolist() == [[2.0, 2.0], [1.0, 1.0], [3.0, 3.0]]


def test_checks_of_a_mapped_function():
    m = Dict(w=Param(jnp.ones((2, 2))))

    def check(m, x):
        m.w.value = m.w.value * x
        jax_checkify.check(x > 0, "negative")

    mapped = checkify(vmap(check, in_axes=(0, 0)))
    assert mapped(m, jnp.array([1.0, -1.0]))[0].get() is not None
    assert m.w.value.tolist() == [[1.0, 1.0], [1.0, 1.0]]


def test_nested():
    m = Model()

    def outer(m, x):
        error, _ = checkify(step)(m, x)
        jax_checkify.check(m.count.value < 2, "too many")
        jax_checkify.check_error(error)

    before = snapshot(m)
    assert "x is" in checkify(outer)(m, -1.0)[0].get()
    assert_unchanged(before, m)
    assert checkify(outer)(m, 1.0)[0].get() is None
    before = snapshot(m)
    assert "too many" in checkify(outer)(m, 1.0)[0].get()
    assert_unchanged(before, m)


@pytest.mark.parametrize(
    ("change", "kind", "line"),
    [
        (
            lambda m: setattr(m, "new", Param(m.w.value)),
            ValueError,
            "args/0/new: extra",
        ),
        (lambda m: delattr(m, "tied"), ValueError, "args/0/tied: missing"),
        (lambda m: setattr(m, "tied", m.count), ValueError, "args/0/tied: sharing"),
        (
            lambda m: setattr(m.w, "value", m.w.value[:1]),
            TypeError,
            "args/0/tied: float32[3] -> float32[1]",
        ),
        (
            lambda m: setattr(m.count, "value", 0.5 * m.count.value),
            TypeError,
            "args/0/count: int32[] -> float32[]",
        ),
    ],
)
def test_inside_a_transformation_nothing_else_may_change(change, kind, line):
    m = Model()

    def f(m, x):
        step(m, x)
        change(m)

    before = snapshot(m)
    with pytest.raises(kind) as caught:
        jit(lambda m, x: checkify(f)(m, x)[0])(m, 1.0)
    assert line in str(caught.value)
    assert_unchanged(before, m)
    assert checkify(f)(m, 1.0)[0].get() is None  # the error is known here


def test_new_objects_may_be_returned_inside():
    m = Model()
    made = jit(lambda m, x: checkify(lambda m, x: Dict(w=m.w, x=Param(x)))(m, x)[1])
    out = made(m, 1.0)
    assert out.w is m.w
    assert float(out.x.value) == 1.0


def test_an_exception_changes_nothing():
    m = Model()

    def bad(m):
        m.w.value = m.w.value + 1
        raise KeyError("no")

    before = snapshot(m)
    with pytest.raises(KeyError):
        checkify(bad)(m)
    assert_unchanged(before, m)


def test_no_leaks():
    m = Model()
    with jax.checking_leaks():
        checkify(step)(m, 2.0)
        checkify(step)(m, -1.0)
    reference = weakref.ref(m)
    del m
    garbage.collect()
    assert reference() is None


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(-2, 2), min_size=1, max_size=4),
    st.sampled_from(["user_checks", "div_checks", "nan_checks", "all_checks"]),
    st.booleans(),
)
def test_plain_pytrees_go_as_in_jax(numbers, errors, compiled):
    errors = getattr(jax_checkify, errors)
    xs = jnp.array(numbers, jnp.float32)

    def f(xs, *, scale):
        jax_checkify.check(xs[0] > 0, "first: {first}", first=xs[0])
        return {"y": scale / xs, "z": (jnp.log(xs), None)}

    def run(transform):
        checked = transform(f, errors=errors)
        if compiled:
            checked = jax.jit(checked)
        return checked(xs, scale=2.0)

    (error, out), (expected_error, expected) = run(checkify), run(jax_checkify.checkify)
    messages = [
        None if e.get() is None else e.get().partition(" at ")[0]
        for e in (error, expected_error)
    ]
    assert messages[0] == messages[1]
    assert jax.tree.structure(out) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, out, expected)
