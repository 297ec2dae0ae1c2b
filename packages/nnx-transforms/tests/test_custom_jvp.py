"""Rules for the differential."""

import gc as garbage
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.custom_derivatives import SymbolicZero
from rule_programs import (
    close,
    inexact,
    models,
    primitives,
    programs,
    run,
    same_graph,
    values,
    written,
)

import graphcore as gc
from nnx_transforms import (
    BatchStat,
    Cache,
    Dict,
    DiffState,
    Module,
    Param,
    State,
    VariableState,
    jit,
)
from nnx_transforms.transforms.custom_jvp import custom_jvp
from nnx_transforms.transforms.grad import grad, value_and_grad
from nnx_transforms.transforms.jvp import jvp


class Model(Module):
    def __init__(self, w=2.0):
        self.w = Param(jnp.array(w))
        self.last = Cache(jnp.array(0.0))
        self.calls = BatchStat(jnp.array(0))


def make_scale(**options):
    """`w x`, whose derivative by `w` is ten times too large; counts its calls."""

    @custom_jvp(**options)
    def scale(m, x):
        m.calls.value = m.calls.value + 1
        m.last.value = x
        return m.w.value * x

    @scale.defjvp
    def rule(primals, tangents):
        (m, x), (m_t, x_t) = primals, tangents
        assert isinstance(m_t, State)
        assert m_t.flat_state().paths == (("last",), ("w",))
        return scale(m, x), 10 * m_t["w"].value * x + m.w.value * x_t

    return scale


def test_both_modes_use_the_rule():
    scale = make_scale()
    m = Model()
    m_g, x_g = grad(scale, argnums=(0, 1))(m, 3.0)
    close((m_g.to_pure_dict(), x_g), ({"w": 30.0}, 2.0))
    assert (int(m.calls.value), float(m.last.value)) == (1, 3.0)
    tangent = State({"w": Param.state(1.0)})
    out, out_t = jvp(scale, (m, 5.0), (tangent, 0.0))
    close((out, out_t), (10.0, 50.0))
    assert (int(m.calls.value), float(m.last.value)) == (2, 5.0)
    close(scale(m, 7.0), 14.0)
    assert (int(m.calls.value), float(m.last.value)) == (3, 7.0)


@pytest.mark.parametrize("symbolic_zeros", [False, True])
def test_compositions(symbolic_zeros):
    scale = custom_jvp(lambda m, x: m.w.value * x)

    def rule(primals, tangents):
        (m, x), (m_t, x_t) = primals, tangents
        w_t = m_t["w"].value
        assert (type(x_t) is SymbolicZero) == symbolic_zeros
        m.calls.value = m.calls.value + 1
        return m.w.value * x, 10 * w_t * x

    scale.defjvp(rule, symbolic_zeros=symbolic_zeros)

    def of_w(w, x=3.0):
        m = Model(w)
        return scale(m, x)

    close(jax.grad(of_w)(2.0), 30.0)
    close(jax.jit(jax.grad(of_w))(2.0), 30.0)
    close(jax.vmap(jax.grad(of_w))(jnp.arange(3.0)), jnp.full(3, 30.0))

    # Traced first and differentiated later, the rule may do no more than the function.
    @custom_jvp
    def counted(m, x):
        m.calls.value = m.calls.value + 1
        return m.w.value * x

    counted.defjvp(rule, symbolic_zeros=symbolic_zeros)

    def of_w(w, x=3.0):
        m = Model(w)
        return counted(m, x)

    close(jax.grad(jax.jit(of_w))(2.0), 30.0)
    close(jax.grad(jax.checkpoint(of_w))(2.0), 30.0)
    close(
        jax.grad(lambda w: jax.vmap(of_w)(w).sum())(jnp.arange(3.0)), jnp.full(3, 30.0)
    )
    close(
        jax.jvp(
            lambda w: jax.lax.scan(lambda c, _: (of_w(c), None), w, None, 2)[0],
            (1.0,),
            (1.0,),
        ),
        (9.0, 900.0),
    )
    with pytest.raises(ValueError, match="'calls' of argument 0"):
        jax.grad(jax.jit(lambda w: scale(Model(w), 1.0)))(2.0)


def test_updates_carry_no_tangent():
    @custom_jvp
    def f(m, x):
        m.last.value = x * 3
        m.new = Cache(x * 5)
        return x

    @f.defjvp
    def rule(primals, tangents):
        (m, x), (_, x_t) = primals, tangents
        return f(m, x), x_t

    m = Model()
    loss = lambda m, x: f(m, x) + m.last.value + m.new.value
    for transform in (lambda f: f, jit):
        close(transform(grad(loss, argnums=1))(m, 1.0), 1.0)
        del m.new
        close(grad(transform(loss), argnums=1)(m, 2.0), 1.0)
        assert (float(m.last.value), float(m.new.value)) == (6.0, 10.0)
        del m.new


def test_new_objects_in_the_output():
    @custom_jvp
    def f(m, x):
        return Dict(v=Cache(x * 2), m=m), [Param(x)]

    @f.defjvp
    def rule(primals, tangents):
        (m, x), (_, x_t) = primals, tangents
        out = f(m, x)
        return out, (State({"v": VariableState(Cache, x_t * 7)}), [None])

    def loss(m, x):
        node, [p] = f(m, x)
        assert node.m is m
        return node.v.value + p.value

    close(grad(loss, argnums=1)(Model(), 1.0), 7.0)

    @f.defjvp
    def wrong(primals, tangents):
        return f(*primals), (tangents[1], [None])

    with pytest.raises(TypeError, match=r"'wrong' of 'f'.*State is due for a Dict"):
        grad(loss, argnums=1)(Model(), 1.0)


def test_new_objects_without_objects_among_arguments():
    f = custom_jvp(lambda x: Param(x))
    f.defjvp(lambda p, t: (f(*p), Param.state(t[0] * 3)))
    close(jax.grad(lambda x: f(x).value)(1.0), 3.0)
    f.defjvp(lambda p, t: (f(*p), None))
    close(jax.grad(lambda x: f(x).value)(1.0), 0.0)


def test_defjvps():
    @custom_jvp
    def f(m, x, y):
        m.calls.value = m.calls.value + 1
        return m.w.value * x * y

    f.defjvps(
        lambda t, out, m, x, y: t["w"].value * out,
        None,
        lambda t, out, m, x, y: t * m.w.value,
    )
    m = Model()
    m_g, x_g, y_g = grad(f, argnums=(0, 1, 2))(m, 3.0, 4.0)
    close((m_g.to_pure_dict(), x_g, y_g), ({"w": 24.0}, 0.0, 2.0))
    assert int(m.calls.value) == 1

    f.defjvps(None, None, None)
    close(grad(f, argnums=1)(m, 3.0, 4.0), 0.0)
    f.defjvps(None)
    with pytest.raises(ValueError, match="1 rules for 3 arguments"):
        grad(f, argnums=1)(m, 3.0, 4.0)
    with pytest.raises(TypeError, match="nondiff_argnums"):
        custom_jvp(lambda n, x: x, nondiff_argnums=(0,)).defjvps(None)


def test_defjvps_where_the_output_has_more_than_floats():
    @custom_jvp
    def f(x, y):
        return 3, x * y

    f.defjvps(
        lambda t, out, x, y: (np.zeros((), jax.dtypes.float0), t * y),
        lambda t, out, x, y: (np.zeros((), jax.dtypes.float0), t * x),
    )
    (_, out), (number_t, out_t) = jax.jvp(f, (2.0, 3.0), (1.0, 1.0))
    close((out, out_t), (6.0, 5.0))
    assert number_t.dtype == jax.dtypes.float0

    made = custom_jvp(lambda m, x: Model(x))
    made.defjvps(None, None)
    out, out_t = jax.jvp(lambda x: made(Model(), x).w.value, (3.0,), (1.0,))
    close((out, out_t), (3.0, 0.0))


def test_symbolic_zeros_without_objects():
    seen = []
    f = custom_jvp(lambda x, y: x * y)

    def rule(primals, tangents):
        seen.append([type(t) is SymbolicZero for t in tangents])
        return f(*primals), tangents[0] * primals[1]

    f.defjvp(rule, symbolic_zeros=True)
    close(jax.grad(f)(2.0, 3.0), 3.0)
    assert seen == [[False, True]]


def test_updates_have_no_tangent_that_is_computed_with():
    @custom_jvp
    def f(m, x):
        m.last.value = m.last.value + 1
        return m.w.value * x

    @f.defjvp
    def rule(primals, tangents):
        (m, x), (m_t, x_t) = primals, tangents
        return f(m, x), m.w.value * x_t + m_t["w"].value * x

    def g(w, x):
        m = Model()
        m.w.value = w
        return f(m, x) + m.last.value

    traced = jax.make_jaxpr(lambda *args: jax.jvp(g, args, (1.0, 1.0)))(2.0, 3.0)
    # That in the rule, and that of the primals: to the tangent nothing is added.
    assert [e.primitive.name for e in traced.eqns].count("add") == 2


def test_nondiff_arguments_keywords_and_methods():
    class Scaler(Module):
        def __init__(self):
            self.w = Param(jnp.array(2.0))

        @custom_jvp(nondiff_argnums=(1,))
        def __call__(self, f, x, y=1.0):
            return f(self.w.value) * x * y

        @__call__.defjvp
        def rule(f, primals, tangents):  # noqa: N805
            (self, x, y), (self_t, x_t, _) = primals, tangents
            return self(f, x, y), self_t["w"].value * 3 + x_t * 5

    m = Scaler()
    close(m(jnp.sin, y=2.0, x=1.0), np.sin(2.0) * 2)
    m_g, x_g = grad(lambda m, x: m(jnp.sin, x=x), argnums=(0, 1))(m, 1.0)
    close((m_g.to_pure_dict(), x_g), ({"w": 3.0}, 5.0))


def test_a_bound_method_and_a_variable():
    class Counter(Module):
        def __init__(self):
            self.calls = BatchStat(jnp.array(0))

        def f(self, v, x):
            self.calls.value = self.calls.value + 1
            return v.value * x

        def rule(self, primals, tangents):
            (v, x), (v_t, _) = primals, tangents
            self.calls.value = self.calls.value + 1
            assert isinstance(v_t, VariableState)
            return v.value * x, v_t.value * 4

    m = Counter()

    def loss(m, v):
        f = custom_jvp(m.f)
        f.defjvp(m.rule)
        return f(v, 3.0)

    v = Param(jnp.array(2.0))
    close(grad(loss, argnums=1)(m, v).value, 4.0)
    close(loss(m, v), 6.0)
    assert int(m.calls.value) == 2


def test_errors():
    @custom_jvp
    def nameless(m):
        return m.w.value

    m = Model()
    with pytest.raises(AttributeError, match="nameless"):
        nameless(m)
    nameless.defjvp(lambda p, t: 1.0)
    with pytest.raises(TypeError, match=r"of 'nameless' must return a pair"):
        grad(nameless)(m)
    nameless.defjvp(lambda p, t: (p[0].w.value, (1.0, 2.0)))
    with pytest.raises(TypeError, match="structure"):
        grad(nameless)(m)
    with pytest.raises(ValueError, match="twice"):
        custom_jvp(lambda x: x, nondiff_argnums=(0, 0))
    with pytest.raises(TypeError, match="DiffState"):
        custom_jvp(lambda x: x, nondiff_argnums=(DiffState(0),))
    g = custom_jvp(lambda n, x: x, nondiff_argnums=(0,))
    g.defjvp(lambda n, p, t: (p[0], t[0]))
    with pytest.raises(TypeError, match=r"argument 0 \('n'\) of '<lambda>' holds"):
        g({"a": m}, 1.0)


def test_errors_leave_objects_alone():
    def fails(m):
        m.w.value = m.w.value * 2
        m.new = 1
        raise KeyError("user")

    f = custom_jvp(fails)
    f.defjvp(lambda primals, tangents: fails(*primals))
    m = Model()
    before = gc.split(m)
    for call in (f, grad(f), jit(f), grad(jit(f))):
        with pytest.raises(KeyError, match="user"):
            call(m)
    assert gc.split(m) == before


def test_nothing_leaks():
    scale = make_scale()
    calls = [scale, grad(scale), jit(scale), jit(grad(scale)), grad(jit(scale))]
    for call in calls:
        m = Model()
        with jax.checking_leaks():
            call(m, 2.0)
        refs = [weakref.ref(m), weakref.ref(m.w)]
        del m
        garbage.collect()
        assert [r() for r in refs] == [None, None]


def test_the_jaxpr_is_that_of_the_functional_version():
    scale = make_scale()
    graphdef, state = gc.split(Model())

    def ours(w, x):
        m = gc.merge(graphdef, state)
        m.w.value = w
        out = scale(m, x)
        return out, m.calls.value, m.last.value

    @jax.custom_jvp
    def by_hand(calls, last, w, x):
        return calls + 1, x, w * x

    @by_hand.defjvp
    def rule(primals, tangents):
        (*_, w, x), (*_, w_t, x_t) = primals, tangents
        out = by_hand(*primals)
        zero = [np.zeros((), jax.dtypes.float0), jnp.zeros(())]
        return out, (*zero, 10 * w_t * x + w * x_t)

    def theirs(w, x):
        return by_hand(state["calls"].value, state["last"].value, w, x)

    a, b = jax.make_jaxpr(ours)(1.0, 2.0), jax.make_jaxpr(theirs)(1.0, 2.0)
    assert primitives(a.jaxpr) == primitives(b.jaxpr)
    assert len(a.jaxpr.eqns[-1].outvars) == len(b.jaxpr.eqns[-1].outvars)


@settings(max_examples=30, deadline=None)
@given(models(), programs(), st.sampled_from(["eager", "jit_grad", "grad_jit"]))
def test_random_programs(m, program, order):
    x = jnp.array([0.5, -0.25])
    targets = written(program)

    @custom_jvp
    def f(m, x):
        return run(program, m, x)

    def tangent(by_number, kept, x, x_t):
        return sum(t * (i + 1) + kept[i] * x for i, t in by_number.items()) * 3 + x_t

    @f.defjvp
    def rule(primals, tangents):
        (m, x), (m_t, x_t) = primals, tangents
        kept = values(m)
        by_number = {s.number: s.value for _, s in m_t.flat_state()}
        assert sorted(by_number) == list(range(len(kept)))
        return run(program, m, x), tangent(by_number, kept, x, x_t)

    def loss(m, x):
        out = f(m, x)
        return jnp.sum(out) + sum(
            jnp.sum(jnp.sin(v.value)) * (i + 1) for i, v in enumerate(inexact(m))
        )

    graphdef, state = gc.split(m)

    def pure_run(vs, x):
        inner = gc.merge(graphdef, state)
        for v, value in zip(inexact(inner), vs, strict=True):
            v.value = value
        out = run(program, inner, x)
        return [inexact(inner)[i].value for i in targets], out

    @jax.custom_jvp
    def pure(vs, x):
        return pure_run(vs, x)

    @pure.defjvp
    def pure_rule(primals, tangents):
        (vs, x), (vs_t, x_t) = primals, tangents
        new, out = pure_run(vs, x)
        zeros = [jnp.zeros_like(value) for value in new]
        return (new, out), (zeros, tangent(dict(enumerate(vs_t)), vs, x, x_t))

    def pure_loss(vs, x):
        new, out = pure(vs, x)
        after = dict(enumerate(vs)) | dict(zip(targets, new, strict=True))
        return jnp.sum(out) + sum(
            jnp.sum(jnp.sin(after[i])) * (i + 1) for i in range(len(vs))
        )

    expected, (vs_g, x_g) = jax.value_and_grad(pure_loss, argnums=(0, 1))(values(m), x)
    changed = gc.merge(graphdef, state)
    run(program, changed, x)

    everything = lambda path, v: v.get_metadata().get("number", -1) >= 0
    options = {"argnums": (DiffState(0, everything), 1)}
    transformed = {
        "eager": lambda: value_and_grad(loss, **options),
        "jit_grad": lambda: jit(value_and_grad(loss, **options)),
        "grad_jit": lambda: value_and_grad(jit(loss), **options),
    }[order]()
    found, (m_g, found_x_g) = transformed(m, x)
    close(found, expected)
    by_number = {s.number: s.value for _, s in m_g.flat_state()}
    close([by_number[i] for i in range(len(vs_g))], vs_g)
    close(found_x_g, x_g)
    same_graph(m, changed)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from([(), (2,), (2, 3)]), min_size=1, max_size=3),
    st.sampled_from(["jvp", "grad", "vmap", "jit"]),
    st.sampled_from(["right", "zeros", "pair", "structure", "shape", "dtype"]),
    st.booleans(),
    st.booleans(),
)
def test_as_jax(shapes, around, returned, nondiff, symbolic_zeros):
    args = [jnp.linspace(0.1, 1.0, int(np.prod(s))).reshape(s) for s in shapes]

    def f(*args):
        return {"a": sum(jnp.sum(jnp.sin(x)) for x in args), "b": args[-1] * 2}

    def rule(*inputs):
        *fixed, primals, tangents = inputs
        tangents = [
            jnp.zeros(x.shape) if type(t) is SymbolicZero else t
            for x, t in zip(primals, tangents, strict=True)
        ]
        out = f(*fixed, *primals)
        right = {"a": sum(map(jnp.sum, tangents)) * 3.0, "b": tangents[-1]}
        return {
            "right": (out, right),
            "zeros": (out, jax.tree.map(jnp.zeros_like, out)),
            "pair": out,
            "structure": (out, list(right.values())),
            "shape": (out, {**right, "a": jnp.ones(7)}),
            "dtype": (out, {**right, "a": 1}),
        }[returned]

    fixed = [3.0] if nondiff else []

    def attempt(decorate):
        wrapped = decorate(f, nondiff_argnums=(0,) if nondiff else ())
        wrapped.defjvp(rule, symbolic_zeros=symbolic_zeros)

        def loss(*diff):
            out = wrapped(*fixed, *diff)
            return out["a"] + jnp.sum(out["b"])

        if around == "jvp":
            return jax.jvp(loss, tuple(args), tuple(jnp.ones_like(x) for x in args))
        g = jax.grad(loss)
        if around == "vmap":
            return jax.vmap(g)(*(jnp.stack([x, x]) for x in args))
        return (jax.jit(g) if around == "jit" else g)(*args)

    def outcome(decorate):
        try:
            return attempt(decorate)
        except Exception as error:
            return type(error)

    expected, found = outcome(jax.custom_jvp), outcome(custom_jvp)
    if isinstance(expected, type):
        assert found is expected
        return
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    close(found, expected)
