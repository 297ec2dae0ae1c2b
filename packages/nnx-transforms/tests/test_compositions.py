"""Every transformation inside every other, against the same done by hand.

A step reads a shared parameter, counts its calls, draws from a random stream and
writes a statistic. Each transformation is written twice as a map from steps to steps:
with live objects, and by hand as a pure function of a state. All ordered pairs of the
first must do what the same pairs of the second do, in values and in side effects.
"""

import pickle
from unittest import mock

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

import nnx_transforms as nnx

P = PartitionSpec


class Model(nnx.Module):
    def __init__(self):
        self.w = nnx.Param(jnp.array(0.5))
        self.tied = nnx.Dict(w=self.w)
        self.calls = nnx.Variable(jnp.array(0))
        self.last = nnx.BatchStat(jnp.array(0.0))
        self.rngs = nnx.Rngs(noise=0)


def live_step(model, x):
    model.calls.value += 1
    noise = jax.random.uniform(model.rngs.noise())
    model.last.value = model.last.value * 0.5 + noise
    return jnp.tanh(model.w.value * x + noise) * model.tied.w.value


KEY = jax.random.key(0)


def pure_step(state, x):
    w, calls, last, draws = state
    noise = jax.random.uniform(jax.random.fold_in(KEY, draws))
    state = (w, calls + 1, last * 0.5 + noise, draws + 1)
    return state, jnp.tanh(w * x + noise) * w


def mesh():
    return jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,))


# With live objects


def live_jit(step):
    return nnx.jit(step)


def live_grad(step):
    return nnx.grad(lambda m, x: step(m, x).sum(), argnums=1)


def live_vmap(step):
    return nnx.vmap(step, in_axes=(None, 0))


def live_scan(step):
    carried = nnx.StateAxes({...: nnx.Carry})
    return nnx.scan(step, in_axes=(carried, 0), out_axes=0)


def live_remat(step):
    return nnx.remat(step)


def live_cond(step):
    def other(m, x):
        m.calls.value += 100
        return x

    return lambda m, x: nnx.cond(m.w.value > 0.0, step, other, m, x)


def live_custom_vjp(step):
    f = nnx.custom_vjp(step)

    def fwd(m, x):
        return f(m, x), (m, x)

    def bwd(residuals, g):
        (m_g, _), out_g = g
        m, x = residuals
        tangent = jax.tree.map(jnp.zeros_like, m_g)
        return tangent, 3.0 * out_g * m.w.value + 0.0 * x

    f.defvjp(fwd, bwd)
    return f


def live_custom_jvp(step):
    f = nnx.custom_jvp(step)

    def rule(primals, tangents):
        (m, x), (_, x_t) = primals, tangents
        return step(m, x), 2.0 * x_t

    f.defjvp(rule)
    return f


def live_shard_map(step):
    whole = nnx.StateSharding({...: P()})
    return nnx.shard_map(step, mesh=mesh(), in_specs=(whole, P("d")), out_specs=P("d"))


# By hand


def pure_jit(step):
    return jax.jit(step)


def pure_grad(step):
    def loss(x, state):
        state, y = step(state, x)
        return y.sum(), state

    def run(state, x):
        g, state = jax.grad(loss, has_aux=True)(x, state)
        return state, g

    return run


def pure_vmap(step):
    return jax.vmap(step, in_axes=(None, 0), out_axes=(None, 0))


def pure_scan(step):
    return lambda state, x: jax.lax.scan(step, state, x)


def pure_remat(step):
    return jax.checkpoint(step)


def pure_cond(step):
    def other(state, x):
        w, calls, last, draws = state
        return (w, calls + 100, last, draws), x

    return lambda s, x: jax.lax.cond(s[0] > 0.0, step, other, s, x)


def pure_custom_vjp(step):
    @jax.custom_vjp
    def f(state, x):
        return step(state, x)

    def fwd(state, x):
        return step(state, x), (state, x)

    def bwd(residuals, g):
        (w, *_), x = residuals
        zeros = [jnp.zeros_like(w), None, jnp.zeros_like(w), None]
        return tuple(zeros), 3.0 * g[1] * w + 0.0 * x

    f.defvjp(fwd, bwd)
    return f


def pure_custom_jvp(step):
    @jax.custom_jvp
    def f(state, x):
        return step(state, x)

    @f.defjvp
    def rule(primals, tangents):
        out = step(*primals)
        zero = jax.tree.map(
            lambda s: (
                jnp.zeros(jnp.shape(s), s.dtype)
                if jnp.issubdtype(s.dtype, jnp.inexact)
                else np.zeros(jnp.shape(s), jax.dtypes.float0)
            ),
            out[0],
        )
        return out, (zero, 2.0 * tangents[1])

    return f


def pure_shard_map(step):
    return jax.shard_map(
        step, mesh=mesh(), in_specs=(P(), P("d")), out_specs=(P(), P("d"))
    )


NAMES = [
    "jit",
    "grad",
    "vmap",
    "scan",
    "remat",
    "cond",
    "custom_vjp",
    "custom_jvp",
    "shard_map",
]


def run_live(outer, inner):
    model = Model()
    step = globals()[f"live_{outer}"](globals()[f"live_{inner}"](live_step))
    y = step(model, X)
    assert model.tied.w is model.w
    assert int(model.rngs.noise.count.value) >= 1
    state = model.w, model.calls, model.last, model.rngs.noise.count
    return y, [np.asarray(v.value) for v in state]


def run_pure(outer, inner):
    step = globals()[f"pure_{outer}"](globals()[f"pure_{inner}"](pure_step))
    state, y = step(
        (jnp.array(0.5), jnp.array(0), jnp.array(0.0), jnp.array(0, jnp.uint32)), X
    )
    return y, [np.asarray(v) for v in state]


X = jnp.linspace(-1.0, 1.0, 64).reshape(8, 8)


# `shard_map` in itself is below: an axis that is manual already can't be mapped again.
PAIRS = [
    pytest.param(a, b, marks=[pytest.mark.devices(8)] * ("shard_map" in (a, b)))
    for a in NAMES
    for b in NAMES
    if not a == b == "shard_map"
]


@pytest.mark.parametrize(("outer", "inner"), PAIRS)
def test_pair(outer, inner):
    expected, expected_state = run_pure(outer, inner)
    found, found_state = run_live(outer, inner)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    for a, b in zip(found_state, expected_state, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


@pytest.mark.devices(8)
def test_shard_map_in_shard_map_over_another_axis():
    grid = jax.make_mesh((4, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
    whole = nnx.StateSharding({...: P()})

    def inner(m, x):
        return nnx.shard_map(
            live_step,
            in_specs=(whole, P("b")),
            out_specs=P("b"),
            axis_names={"b"},
        )(m, x)

    model = Model()
    y = nnx.jit(
        nnx.shard_map(
            inner,
            mesh=grid,
            in_specs=(whole, P("a")),
            out_specs=P("a"),
            axis_names={"a"},
        )
    )(model, X)
    other = Model()
    np.testing.assert_allclose(y, live_step(other, X), rtol=1e-6)
    assert int(model.calls.value) == 1


OF_METHODS = {
    "jit of vmap": lambda f: nnx.jit(nnx.vmap(f)),
    "jit of jit": lambda f: nnx.jit(nnx.jit(f)),
    "vmap of jit": lambda f: nnx.vmap(nnx.jit(f)),
    "jit of remat": lambda f: nnx.jit(nnx.remat(f)),
    "remat of jit": lambda f: nnx.remat(nnx.jit(f)),
    "vmap of remat": lambda f: nnx.vmap(nnx.remat(f)),
    "jit of vmap of jit": lambda f: nnx.jit(nnx.vmap(nnx.jit(f))),
    "checkify of jit": lambda f: lambda x: nnx.checkify(nnx.jit(f))(x)[1],
}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", OF_METHODS)
def test_transformations_of_transformed_methods(name, compiled):
    class Scale(nnx.Module):
        def __init__(self):
            self.w = nnx.Param(jnp.array(3.0))
            self.calls = nnx.Variable(jnp.array(0))

        def times(self, x):
            self.calls.value = self.calls.value + 1
            return self.w.value * x

    def call(m, x):
        return OF_METHODS[name](m.times)(x)

    call = nnx.jit(call) if compiled else call
    m = Scale()
    for count in (1, 2):
        np.testing.assert_array_equal(call(m, jnp.arange(3.0)), [0.0, 3.0, 6.0])
        assert int(m.calls.value) == count
        m.w.value = jnp.array(3.0)


BY_NAME = {
    **OF_METHODS,
    "checkify of jit": lambda f: lambda **named: nnx.checkify(nnx.jit(f))(**named)[1],
    "trace of jit": lambda f: lambda **named: nnx.jit(f).trace(**named).out_info,
    "compiled jit": lambda f: (
        lambda **named: nnx.jit(f).lower(**named).compile()(**named)
    ),
    "shapes of jit": lambda f: nnx.jit(f).eval_shape,
    "jaxpr": lambda f: lambda **named: nnx.make_jaxpr(f)(**named).out_avals[0],
}


@pytest.mark.parametrize("name", BY_NAME)
def test_arguments_may_have_any_name(name):
    class Sum(nnx.Module):
        def __init__(self):
            self.w = nnx.Param(jnp.array(3.0))

        def __call__(this, /, **named):  # noqa: N805
            return this.w.value + sum(named.values())

    names = ["self", "x", "f", "g", "out", "call", "variables", "args", "kwargs"]
    if name == "compiled jit":
        names[0] = "other"  # what JAX compiled has a `self` of its own
    out = BY_NAME[name](Sum())(**dict.fromkeys(names, jnp.ones(2)))
    assert out.shape == (2,)
    if isinstance(out, jax.Array):
        np.testing.assert_array_equal(out, [12.0, 12.0])


def with_rule(f):
    squared = nnx.custom_vjp(f)
    squared.defvjp(lambda *args: (f(*args), None), lambda res, g: (None, g))
    return squared


BY_VALUE = {
    "jit": nnx.jit,
    "remat": nnx.remat,
    "vmap": lambda f: nnx.vmap(f, in_axes=(None, 0)),
    "scan": lambda f: nnx.scan(f, in_axes=(nnx.StateAxes({...: None}), 0), out_axes=0),
    "grad": nnx.grad,
    "checkify": nnx.checkify,
    "custom_vjp": with_rule,
    "grad of vmap of jit": lambda f: nnx.grad(
        lambda m, x: nnx.vmap(nnx.jit(f), in_axes=(None, 0))(m, x).sum()
    ),
}


@pytest.mark.parametrize("name", BY_VALUE)
def test_transformed_functions_are_pickled_by_value(name):
    def f(m, x):
        return (m.w.value * x).sum()

    m, x = nnx.Dict(w=nnx.Param(jnp.array(3.0))), jnp.arange(3.0)
    transformed = BY_VALUE[name](f)
    want = transformed(m, x)
    got = pickle.loads(cloudpickle.dumps(transformed))(m, x)
    for leaves in zip(*map(jax.tree.leaves, (want, got)), strict=True):
        np.testing.assert_array_equal(*leaves)


def test_a_pickled_transformation_of_a_method_still_finds_its_object():
    class Count(nnx.Module):
        def __init__(self):
            self.n = nnx.Variable(jnp.array(0))

        def __call__(self, x):
            self.n.value += 1
            return x

    m, f = pickle.loads(cloudpickle.dumps((m := Count(), nnx.remat(m))))
    nnx.jit(f)(1.0)
    assert int(m.n.value) == 1


@pytest.mark.parametrize("mocked", [mock.Mock, mock.MagicMock])
def test_transformations_of_mocks(mocked):
    f = mocked(side_effect=live_step)
    model, x = Model(), jnp.ones(3)
    for transform in (nnx.jit, nnx.remat, nnx.checkify):
        transform(f)(model, x)
    assert f.call_count == int(model.calls.value) == 3
