"""Rematerialization of functions of live objects."""

import functools
import gc as garbage
import inspect
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from derivative_programs import (
    Scale,
    assert_close,
    assert_same_equations,
    equations,
    pairs_of_models,
    programs,
    run,
    snapshot,
)
from hypothesis import given, settings
from jax.ad_checkpoint import checkpoint_name

import graphcore as gc
from nnx_transforms import (
    BatchStat,
    List,
    Module,
    Param,
    TraceContextError,
    jit,
)
from nnx_transforms.transforms.checkpoint import checkpoint, remat
from nnx_transforms.transforms.grad import grad, value_and_grad

X = jnp.array([0.5, -1.0, 2.0])


class Layer(Module):
    def __init__(self, traces=None):
        self.w = Param(jnp.array(2.0))
        self.calls = BatchStat(jnp.array(0))

    def __call__(self, x, power=1):
        self.calls.value = self.calls.value + 1
        return jnp.sin(jnp.sin(self.w.value * x)) ** power


def loss(m, x):
    return m(x).sum()


def primitives(jaxpr):
    found = []
    for e in jaxpr.eqns:
        found.append(e.primitive.name)
        for p in e.params.values():
            inner = getattr(p, "jaxpr", p)
            if hasattr(inner, "eqns"):
                found += primitives(inner)
    return found


def backward_primitives(f, m, x=X):
    graphdef, state = gc.split(m)

    def run(state, x):
        return grad(f)(gc.merge(graphdef, state), x)

    return primitives(jax.make_jaxpr(run)(state, x).jaxpr)


# What it computes


def test_values_gradients_and_updates():
    m, n = Layer(), Layer()
    value, g = value_and_grad(remat(loss))(m, X)
    want, want_g = value_and_grad(loss)(n, X)
    assert_close((value, g), (want, want_g))
    assert int(m.calls.value) == 1
    assert checkpoint is remat


def test_it_computes_again_on_the_way_back():
    plain = backward_primitives(loss, Layer())
    again = backward_primitives(remat(loss), Layer())
    saved = backward_primitives(
        remat(loss, policy=jax.checkpoint_policies.everything_saveable), Layer()
    )
    assert plain.count("sin") == 2
    assert again.count("sin") > 2
    assert saved.count("sin") == 2


def test_policies_by_name():
    def f(m, x):
        y = checkpoint_name(jnp.sin(m.w.value * x), "kept")
        return jnp.sin(y).sum()

    policy = jax.checkpoint_policies.save_only_these_names("kept")
    kept = backward_primitives(remat(f, policy=policy), Layer())
    again = backward_primitives(remat(f), Layer())
    assert kept.count("sin") < again.count("sin")


def test_random_streams_draw_the_same_keys_again():
    m, n = Scale(), Scale()
    f = lambda m, x: m(x).sum()
    got, g = value_and_grad(remat(f))(m, X)
    want, want_g = value_and_grad(f)(n, X)
    assert_close((got, g), (want, want_g))
    assert int(m.rngs.noise.count.value) == 1
    assert int(m.calls.value) == 1


def test_prevent_cse():
    for setting in (True, False):
        graphdef, state = gc.split(Layer())
        f = lambda state: remat(loss, prevent_cse=setting)(gc.merge(graphdef, state), X)
        (equation,) = [
            e for e in jax.make_jaxpr(f)(state).jaxpr.eqns if "prevent_cse" in e.params
        ]
        assert equation.params["prevent_cse"] is setting


def test_prevent_cse_by_argument():
    graphdef, state = gc.split(List([Layer(), Layer()]))

    def f(state, x):
        m, n = gc.merge(graphdef, state)
        g = remat(lambda m, n, x: m(x) + n(x), prevent_cse=(True, False, True))
        return g(m, n, x)

    (equation,) = [
        e for e in jax.make_jaxpr(f)(state, X).jaxpr.eqns if "prevent_cse" in e.params
    ]
    assert equation.params["prevent_cse"] == (True, True, False, False, True)


def test_prevent_cse_by_place_in_an_argument():
    graphdef, state = gc.split(Layer())

    def f(state, x):
        g = remat(lambda d: d["m"](d["x"]), prevent_cse=({"m": False, "x": True},))
        return g({"m": gc.merge(graphdef, state), "x": x})

    (equation,) = [
        e for e in jax.make_jaxpr(f)(state, X).jaxpr.eqns if "prevent_cse" in e.params
    ]
    assert equation.params["prevent_cse"] == (False, False, True)

    def g(state, x):
        return remat(gc.merge(graphdef, state).__call__, prevent_cse=(False,))(x)

    (equation,) = [
        e for e in jax.make_jaxpr(g)(state, X).jaxpr.eqns if "prevent_cse" in e.params
    ]
    assert equation.params["prevent_cse"] == (True, True, False)


@pytest.mark.parametrize(
    ("setting", "due"), [((True, False), True), ((False, False), False)]
)
def test_prevent_cse_by_argument_of_a_call_with_keywords(setting, due):
    graphdef, state = gc.split(Layer())

    def f(state, x):
        g = remat(lambda m, x, *, by: m(x) * by, prevent_cse=setting)
        return g(gc.merge(graphdef, state), x, by=2.0)

    (equation,) = [
        e for e in jax.make_jaxpr(f)(state, X).jaxpr.eqns if "prevent_cse" in e.params
    ]
    assert equation.params["prevent_cse"] is due


# Arguments


@pytest.mark.parametrize(
    "options",
    [{"static_argnums": 2}, {"static_argnums": (-1,)}, {"static_argnames": "power"}],
)
def test_static_arguments(options):
    def f(m, x, power):
        if power > 1:  # fails for a tracer
            m.seen = power
        return m(x, power).sum()

    m, n = Layer(), Layer()
    g = grad(remat(f, **options))(m, X, 3)
    assert_close(g, grad(f)(n, X, 3))
    assert m.seen == 3
    assert int(m.calls.value) == 1
    grad(remat(f, **options))(m, X, power=2)
    assert m.seen == 2


def test_static_names_that_have_no_position():
    f = lambda m, x, *, mode: m(x).sum() if mode == "on" else x.sum()
    m = Layer()
    got = remat(f, static_argnames=("mode",))(m, X, mode="off")
    assert float(got) == float(X.sum())
    assert int(m.calls.value) == 0
    assert float(remat(lambda x, *, n: x * n, static_argnames="n")(2.0, n=3)) == 6.0


def test_static_arguments_need_not_be_hashable():
    f = lambda m, x, sizes: m(x).sum() * sizes[0]
    m = Layer()
    one = remat(f, static_argnums=2)(m, X, [1])
    assert float(remat(f, static_argnums=2)(m, X, [2])) == pytest.approx(2 * float(one))


def test_keyword_arguments():
    m = Layer()
    assert float(remat(loss)(x=X, m=m)) == float(loss(Layer(), X))


def test_methods_and_callable_objects():
    m = Layer()
    for f in (remat(m), remat(m.__call__)):
        assert_close(f(X), Layer()(X))
    assert int(m.calls.value) == 2
    m.w.value = jnp.array(0.0)
    assert_close(remat(m)(X), X * 0)


def test_as_a_decorated_method():
    class Net(Module):
        def __init__(self):
            self.layers = List([Layer() for _ in range(3)])

        @remat
        def __call__(self, x):
            for layer in self.layers:
                x = layer(x)
            return x

        @remat(static_argnums=(2,))
        def powered(self, x, power):
            return self.layers[0](x, power=power)

    net = Net()
    g = grad(lambda net, x: net(x).sum())(net, X)
    assert len(jax.tree.leaves(g)) == 3
    assert [int(layer.calls.value) for layer in net.layers] == [1, 1, 1]
    net.powered(X, 2)


# What is published


def test_structural_changes_and_returned_objects():
    m = Layer()
    w = m.w

    @remat
    def f(m, x):
        m.new = Param(x)
        m.alias = m.w
        m.loop = m
        del m.calls
        return m, Param(x * 2), x

    same, new, x = f(m, X)
    assert same is m is m.loop
    assert m.alias is w
    assert not hasattr(m, "calls")
    assert_close((m.new.value, new.value, x), (X, X * 2, X))


def test_constants_are_written_as_arrays():
    def reset(m):
        m.steps = jnp.array(0)
        m.count.value = jnp.array(0)

    m = gc.Dict(steps=jnp.array(3), count=gc.Variable(jnp.array(5)))
    remat(reset)(m)
    # As attributes, numbers would be static, and compile anew with each new one.
    assert isinstance(m.steps, jax.Array)
    assert (m.count.value.shape, int(m.count.value)) == ((), 0)


def test_unwritten_variables_keep_their_arrays():
    m = Layer()
    w = m.w.value
    remat(loss)(m, X)
    assert m.w.value is w


def test_errors_leave_objects_alone():
    m = Layer()

    def fail(m):
        m.w.value = m.w.value * 2
        m.new = 1
        raise KeyError("stop")

    before = snapshot(m)
    for call in (remat(fail), grad(remat(fail)), jit(remat(fail))):
        with pytest.raises(KeyError):
            call(m)
    assert snapshot(m) == before


def test_objects_of_other_traces_are_refused():
    m = Layer()
    with pytest.raises(TraceContextError, match="different trace level"):
        jax.jit(lambda x: remat(loss)(m, x))(X)
    with pytest.raises(TraceContextError, match="BatchStat"):
        remat(lambda x: m(x))(X)


def test_static_argnums_out_of_range():
    with pytest.raises(ValueError, match="static_argnums"):
        remat(loss, static_argnums=5)(Layer(), X)
    with pytest.raises(TypeError):
        remat(loss, static_argnums="a")(Layer(), X)
    for argnums in ([1], {1}, range(1, 2), (np.int64(1),)):
        with pytest.raises(
            TypeError, match=r"`static_argnums` .* must be an int, tuple"
        ):
            remat(loss, static_argnums=argnums)(Layer(), X)


def test_no_static_argnums_may_be_none():
    assert remat(lambda x: x * 2, static_argnums=None)(X).tolist() == (X * 2).tolist()


def test_a_function_that_jax_refuses_runs_once():
    calls = []

    def text(x):
        calls.append(x)
        return "text"

    with pytest.raises(TypeError, match="type str"):
        remat(text)(X)
    assert len(calls) == 1


# Traces


def test_traces_are_kept_with_the_function():
    traces = []

    def f(m, x, power):
        traces.append(power)
        return m(x, power).sum()

    m = List([Layer() for _ in range(4)])
    for layer in m:
        remat(f, static_argnums=2)(layer, X, 1)
        # `traces` is only written, and no object.
    assert traces == [1]
    remat(f, static_argnums=2)(m[0], X, 2)
    assert traces == [1, 2]
    m[0].kind = "another"
    remat(f, static_argnums=2)(m[0], X, 1)
    assert traces == [1, 2, 1]
    m[1].w.value = jnp.ones(3)
    remat(f, static_argnums=2)(m[1], X, 1)
    assert traces == [1, 2, 1, 1]
    policy = jax.checkpoint_policies.everything_saveable
    remat(f, static_argnums=2, policy=policy)(m[2], X, 1)
    graphdef, state = gc.split(m[2])
    jaxpr = jax.make_jaxpr(
        lambda state: remat(f, static_argnums=2, policy=policy)(
            gc.merge(graphdef, state), X, 1
        )
    )(state)
    assert jaxpr.jaxpr.eqns[0].params["policy"] is policy


def test_objects_that_are_closed_over_are_read_now():
    m = Layer()
    by_argument = remat(lambda n, x: n.w.value * m.w.value * x)
    plain = remat(lambda x: m.w.value * x)
    for value in (3.0, 4.0):
        m.w.value = jnp.array(value)
        assert float(plain(1.0)) == value
        assert float(by_argument(Layer(), 1.0)) == 2 * value
    # In another trace the values are tracers, which no kept trace may hold.
    graphdef, state = gc.split(m)
    for _ in range(2):
        inner = []
        g = remat(lambda x: inner[0].w.value * x)

        @jax.jit
        def step(state):
            inner[:] = [gc.merge(graphdef, state)]
            return g(2.0)

        assert float(step(state)) == 8.0


# The work that is done


def test_the_same_equations_as_by_hand():
    graphdef, state = gc.split(Scale())
    twin_def, _ = gc.split(Scale())

    def ours(state, x):
        m = gc.merge(graphdef, state)
        y = remat(lambda m, x: m(x).sum())(m, x)
        return y, gc.state(m)

    def hand(state, x):
        @jax.checkpoint
        def f(state, x):
            m = gc.merge(twin_def, state)
            y = m(x).sum()
            return m.calls.value, m.rngs.noise.count.value, y

        calls, count, y = f(state, x)
        return y, calls, count

    assert_same_equations(ours, hand, state, X)
    inner = [
        [e.params["jaxpr"] for e in jax.make_jaxpr(f)(state, X).jaxpr.eqns]
        for f in (ours, hand)
    ]
    assert equations(inner[0][0]) == equations(inner[1][0])


# Oracle


@settings(max_examples=25, deadline=None)
@given(pairs_of_models(), programs)
def test_random_programs_equal_the_rewrite_by_hand(models, program):
    m, n = models
    x = jnp.array([0.5, -1.5])
    graphdef, params, rest = gc.split(List([m, n]), Param, ...)

    @jax.checkpoint
    def pure(params, x):
        models = gc.merge(graphdef, params, rest)
        return run(program, *models, x), gc.split(models)

    (value, after), (want, want_x) = jax.value_and_grad(pure, (0, 1), has_aux=True)(
        params, x
    )
    f = remat(functools.partial(run, program))
    got, (g, gx) = value_and_grad(lambda ms, x: f(*ms, x), argnums=(0, 1))([m, n], x)
    assert_close((got, gx), (value, want_x))
    for i in range(2):
        assert_close(g[i], want.get(i, gc.State({})))
    found, state = gc.split(List([m, n]))
    assert found == after[0]
    assert_close(state, after[1])


# Composition


def test_compositions():
    f = lambda m, x: m(x).sum()
    want = grad(f)(Scale(), X)
    for g in (
        jit(grad(remat(f))),
        grad(jit(remat(f))),
        grad(remat(jit(f))),
        grad(remat(remat(f))),
        remat(grad(f)),
    ):
        m = Scale()
        assert_close(g(m, X), want)
        assert int(m.calls.value) == 1
        assert int(m.rngs.noise.count.value) == 1
    xs = jnp.stack([X, 2 * X])
    graphdef, state = gc.split(Layer())
    each = lambda x: grad(remat(loss))(gc.merge(graphdef, state), x).w.value
    assert_close(jax.vmap(each)(xs), jnp.stack([each(x) for x in xs]))


def test_metadata_is_kept():
    @remat
    def f(m, x):
        """Doc."""

    assert (f.__name__, f.__doc__) == ("f", "Doc.")
    assert list(inspect.signature(f).parameters) == ["m", "x"]
    assert f.__wrapped__


# Leaks


def test_nothing_leaks():
    with jax.checking_leaks():
        m = Layer()
        remat(loss)(m, X)
        grad(remat(loss))(m, X)
        jit(grad(remat(loss)))(m, X)
        remat(lambda x: jnp.sin(x))(X)


def test_objects_and_functions_are_collected():
    m = Layer()

    def f(m, x):
        return m(x).sum()

    def closing_over(n):
        return remat(lambda x: n.w.value * x), weakref.ref(n)

    g, closed_over = closing_over(Layer())
    grad(remat(f))(m, X)
    remat(m)(X)
    grad(g)(X[0])
    alive = [weakref.ref(m), weakref.ref(f), closed_over]
    del m, f, g
    garbage.collect()
    assert [x() for x in alive] == [None] * 3


def test_no_trace_is_kept_of_what_is_closed_over():
    m = Layer()
    by_argument = remat(lambda n, x: n.w.value * m.w.value * x)
    plain = remat(lambda x: m.w.value * x)
    old = []
    for value in (3.0, 4.0):
        m.w.value = jnp.array(value)
        plain(1.0), by_argument(Layer(), 1.0)
        old.append(weakref.ref(m.w.value))
    m.w.value = jnp.array(0.0)
    garbage.collect()
    assert [x() for x in old] == [None, None]


def test_static_arguments_from_the_end_are_those_of_the_call():
    def f(x, y, k=3):
        return isinstance(x, jax.core.Tracer), isinstance(y, jax.core.Tracer), k

    seen = []

    def note(x, y, k=3):
        seen.append(f(x, y, k))
        return x * 1.0

    jax.checkpoint(note, static_argnums=-1)(1.0, 2)
    remat(note, static_argnums=-1)(1.0, 2)
    assert seen[0] == seen[1] == (True, False, 3)
