"""Linear functions with a transpose of their own."""

import gc as garbage
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.custom_derivatives import linear_call as jax_linear_call
from rule_programs import close, inexact, models, same_graph, values

import graphcore as gc
from nnx_transforms import (
    BatchStat,
    Cache,
    Dict,
    DiffState,
    Module,
    Param,
    State,
    Variable,
    jit,
)
from nnx_transforms.transforms.grad import grad
from nnx_transforms.transforms.linear_call import linear_call


class Scale(Module):
    def __init__(self, by=2.0):
        self.by = Variable(jnp.array(by))
        self.calls = BatchStat(jnp.array(0))


class Linear(Module):
    def __init__(self, a=1.0, b=3.0):
        self.a = Param(jnp.array(a))
        self.b = Param(jnp.array(b))
        self.calls = BatchStat(jnp.array(0))


def forward(s, m):
    return {"a": m.a.value / s.by.value, "both": m.a.value + m.b.value}


def transpose(s, g):
    """The right one, but for a factor of ten in `b`."""
    return State(
        {
            "a": Param.state(g["a"] / s.by.value + g["both"]),
            "b": Param.state(10 * g["both"]),
        }
    )


def call(s, m):
    return linear_call(forward, transpose, s, m)


def test_objects_of_both_kinds():
    s, m = Scale(), Linear()
    close(call(s, m), {"a": 0.5, "both": 4.0})
    loss = lambda m, s: call(s, m)["a"] * 3 + call(s, m)["both"]
    for g in (grad(loss), jit(grad(loss)), grad(jit(loss))):
        close(g(m, s).to_pure_dict(), {"a": 2.5, "b": 10.0})


def test_compositions():
    def of_a(a):
        out = call(Scale(), Linear(a))
        return out["a"] + out["both"]

    close(jax.grad(jax.checkpoint(of_a))(1.0), 1.5)
    close(jax.jvp(of_a, (1.0,), (1.0,)), (4.5, 1.5))
    close(jax.grad(lambda a: jax.lax.cond(a > 0, of_a, lambda a: a, a))(1.0), 1.5)
    scan = lambda a: jax.lax.scan(lambda c, _: (of_a(c), c), a, None, 2)[0]
    close(jax.grad(scan)(1.0), 2.25)

    def linear(pair):
        m = Linear()
        m.a.value, m.b.value = pair
        return call(Scale(), m)

    (out,) = jax.linear_transpose(linear, (1.0, 1.0))({"a": 2.0, "both": 3.0})
    close(out, (4.0, 30.0))
    twice = jax.linear_transpose(
        lambda g: jax.linear_transpose(linear, (1.0, 1.0))(g)[0],
        {"a": 1.0, "both": 1.0},
    )
    close(twice((1.0, 3.0)), [{"a": 0.5, "both": 4.0}])


def test_updates_are_published_and_need_not_be_linear():
    def counting(s, m):
        s.calls.value = s.calls.value + 1
        m.calls.value = m.calls.value + 2
        m.square = Cache(m.a.value**2)
        return Dict(out=Cache(m.a.value * s.by.value)), m

    def back(s, g):
        out_g, same_g = g
        assert out_g.flat_state().paths == (("out",),)
        assert len(same_g) == 0
        return State({"a": Param.state(out_g["out"].value * 7), "b": Param.state(0.0)})

    def loss(m, s):
        out, same = linear_call(counting, back, s, m)
        assert same is m
        return out.out.value + m.square.value

    for transform in (lambda f: f, jit):
        s, m = Scale(), Linear(5.0)
        m_g = transform(grad(loss))(m, s)
        close(m_g.to_pure_dict(), {"a": 7 + 10.0, "b": 0.0})
        assert (int(s.calls.value), int(m.calls.value)) == (1, 2)
        close(m.square.value, 25.0)


def test_variables_and_mixed_trees():
    def f(r, x):
        return x["v"].value * r + x["y"]

    def t(r, g):
        return {"v": Param.state(g * r), "y": g * 5}

    def loss(v, y):
        return linear_call(f, t, 3.0, {"v": v, "y": y})

    v_g, y_g = grad(loss, argnums=(0, 1))(Param(jnp.array(2.0)), 1.0)
    close((v_g.value, y_g), (3.0, 5.0))


def test_bound_functions():
    class Layer(Scale):
        def f(self, r, x):
            self.calls.value = self.calls.value + 1
            return x * self.by.value

        def t(self, r, g):
            return g * self.by.value * 10

    m = Layer()
    close(jax.grad(lambda x: linear_call(Layer().f, Layer().t, (), x))(1.0), 20.0)
    close(linear_call(m.f, m.t, (), 2.0), 4.0)
    assert int(m.calls.value) == 1


@pytest.mark.parametrize("around", [lambda f: f, jax.jit, jax.checkpoint])
def test_no_derivative_by_residuals(around):
    def by_object(w):
        return linear_call(
            lambda s, x: x * s.by.value, lambda s, g: g * s.by.value, Scale(w), 3.0
        )

    def by_array(w):
        return linear_call(lambda r, x: x * r, lambda r, g: g * r, w, 3.0)

    for f in (by_object, by_array):
        close(around(f)(2.0), 6.0)
        for derivative in (jax.grad, jax.jacfwd):
            with pytest.raises(TypeError, match=r"no derivative.*residual_args"):
                derivative(around(f))(2.0)
        stopped = around(lambda w, f=f: f(jax.lax.stop_gradient(w)) * w)
        close(jax.grad(stopped)(2.0), 6.0)


def test_other_compositions_that_jax_lacks():
    with pytest.raises(TypeError, match="closes over"):
        jax.grad(
            lambda w: linear_call(lambda r, x: x * w, lambda r, g: g * w, (), 3.0)
        )(2.0)
    with pytest.raises(NotImplementedError, match="linear_call"):
        jax.vmap(lambda a: call(Scale(), Linear(a)))(jnp.ones(3))

    def fails(r, x):
        raise AssertionError("user")

    with pytest.raises(AssertionError, match="user"):
        linear_call(fails, fails, (), 1.0)


def test_errors():
    s, m = Scale(), Linear()
    shared = Dict(v=m.a)
    with pytest.raises(ValueError, match=r"(?s)Inconsistent.*1/a: 'linear_args'"):
        linear_call(forward, transpose, shared, m)
    for result, kind, message in [
        (jnp.ones(3), TypeError, "linear_args an array of type .*State"),
        (State({"a": Param.state(1.0)}), ValueError, "without 'b'"),
        (
            State({"a": Param.state(jnp.ones(3)), "b": Param.state(1.0)}),
            ValueError,
            "linear_args at 'a'",
        ),
    ]:
        with pytest.raises(kind, match=message):
            grad(lambda m, s: linear_call(forward, lambda *_: result, s, m)["a"])(m, s)

    def fails(s, m):
        s.by.value = m.a.value
        raise KeyError("user")

    before = gc.split((s, m))
    for run in (lambda s, m: linear_call(fails, fails, s, m),) * 2:
        with pytest.raises(KeyError, match="user"):
            run(s, m)
        with pytest.raises(KeyError, match="user"):
            jit(run)(s, m)
    assert gc.split((s, m)) == before


def test_nothing_leaks():
    loss = lambda m, s: call(s, m)["a"]
    for transformed in (loss, grad(loss), jit(grad(loss)), grad(jit(loss))):
        s, m = Scale(), Linear()
        transformed(m, s)
        refs = [weakref.ref(x) for x in (s, m, m.a)]
        del s, m
        garbage.collect()
        assert [r() for r in refs] == [None] * 3


@settings(max_examples=25, deadline=None)
@given(
    models(),
    models(),
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), max_size=4),
    st.sampled_from(["eager", "jit_grad", "grad_jit"]),
)
def test_random_linear_functions(r, m, terms, order):
    def apply(rs, ms):
        return sum((jnp.sin(rs[i]) * ms[j] for i, j in terms), ms[0])

    def back(rs, g, count):
        return [g * (i + 2) * rs[0] for i in range(count)]

    def f(r, m):
        r.count.value = r.count.value + len(terms)
        return apply(values(r), values(m))

    def t(r, g):
        tangents = back(values(r), g, len(inexact(m)))
        numbers = gc.state(m).flat_state()
        return State.from_flat_path(
            (path, s.replace(tangents[s.number]))
            for path, s in numbers
            if s.number >= 0
        )

    def loss(m, r):
        return jnp.sum(jnp.cos(linear_call(f, t, r, m)))

    def pure_loss(ms, rs):
        return jnp.sum(
            jnp.cos(jax_linear_call(apply, lambda rs, g: back(rs, g, len(ms)), rs, ms))
        )

    expected = jax.grad(pure_loss)(values(m), values(r))
    after = gc.clone(r)
    after.count.value = after.count.value + len(terms)
    everything = lambda path, v: v.get_metadata().get("number", -1) >= 0
    options = {"argnums": (DiffState(0, everything),)}
    (m_g,) = {
        "eager": lambda: grad(loss, **options),
        "jit_grad": lambda: jit(grad(loss, **options)),
        "grad_jit": lambda: grad(jit(loss), **options),
    }[order]()(m, r)
    by_number = {s.number: s.value for _, s in m_g.flat_state()}
    close([by_number[i] for i in range(len(expected))], expected)
    same_graph(r, after)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from([(), (2,), (2, 3)]), min_size=1, max_size=3),
    st.sampled_from(["call", "grad", "jit", "jvp", "vmap"]),
    st.sampled_from(["right", "structure", "none"]),
)
def test_as_jax(shapes, around, returned):
    args = [jnp.linspace(0.1, 1.0, int(np.prod(s))).reshape(s) for s in shapes]

    def f(r, xs):
        return {"a": sum(jnp.sum(x) for x in xs) * r, "b": xs[-1]}

    def t(r, g):
        right = [jnp.full(s, g["a"] * r * 3) for s in shapes]
        return {"right": right, "structure": right[0], "none": None}[returned]

    def outcome(linear_call):
        g = lambda xs: linear_call(f, t, 2.0, xs)["a"]
        try:
            if around == "call":
                return g(args)
            if around == "jvp":
                return jax.jvp(g, (args,), (args,))
            if around == "vmap":
                return jax.vmap(g)([jnp.stack([x, x]) for x in args])
            return (jax.jit(jax.grad(g)) if around == "jit" else jax.grad(g))(args)
        except Exception as error:
            return type(error)

    expected, found = outcome(jax_linear_call), outcome(linear_call)
    if isinstance(expected, type):
        assert found is expected
        return
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    close(found, expected)


def test_what_has_no_batching_rule_is_named():
    def double(x):
        return linear_call(lambda s, x: 2 * x, lambda s, g: 2 * g, Scale(), x)

    with pytest.raises(NotImplementedError) as caught:
        jax.vmap(double)(jnp.ones(2))
    assert "`linear_call` of '<lambda>'" in "".join(caught.value.__notes__)

    def lacks(s, x):
        raise NotImplementedError("a part of the function")

    with pytest.raises(NotImplementedError, match="a part of") as caught:
        linear_call(lacks, lacks, Scale(), 1.0)
    assert "linear_call" not in "".join(getattr(caught.value, "__notes__", ()))
