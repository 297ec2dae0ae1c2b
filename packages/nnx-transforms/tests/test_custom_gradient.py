"""Functions that return their own gradient."""

import gc as garbage
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rule_programs import (
    close,
    inexact,
    models,
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
from nnx_transforms.transforms.custom_gradient import custom_gradient
from nnx_transforms.transforms.grad import grad, value_and_grad


class Model(Module):
    def __init__(self, w=2.0):
        self.w = Param(jnp.array(w))
        self.calls = BatchStat(jnp.array(0))

    def state(self, value):
        return State({"w": self.w.to_state().replace(value)})


@custom_gradient
def scale(m, x):
    m.calls.value = m.calls.value + 1
    product = m.w.value * x

    def vjp(g):
        return m.state(10 * g * x), g * product

    return product, vjp


def test_the_gradient_is_what_the_function_returns():
    m = Model()
    for transform in (lambda f: f, jit):
        m_g, x_g = transform(grad(scale, argnums=(0, 1)))(m, 3.0)
        close((m_g.to_pure_dict(), x_g), ({"w": 30.0}, 6.0))
        m_g = grad(transform(scale))(m, x=3.0)
        close(m_g.to_pure_dict(), {"w": 30.0})
    assert int(m.calls.value) == 4
    close(scale(m, 3.0), 6.0)
    assert int(m.calls.value) == 5


def test_compositions():
    def of_w(w):
        return scale(Model(w), 3.0)

    close(jax.vmap(jax.grad(of_w))(jnp.arange(3.0)), jnp.full(3, 30.0))
    close(
        jax.grad(lambda w: jax.vmap(of_w)(w).sum())(jnp.arange(3.0)), jnp.full(3, 30.0)
    )
    close(jax.grad(jax.checkpoint(of_w))(1.0), 30.0)
    close(
        jax.grad(lambda w: jax.lax.scan(lambda c, _: (of_w(c), c), w, None, 2)[0])(1.0),
        900.0,
    )


def test_one_argument_and_structures():
    @custom_gradient
    def f(m):
        return {"a": m.w.value}, lambda g: m.state(g["a"] * 5)

    close(grad(lambda m: f(m)["a"])(Model()).to_pure_dict(), {"w": 5.0})

    @custom_gradient
    def g(v, tree):
        out = Dict(new=Cache(tree["x"]), v=v)

        def vjp(out_g):
            assert out_g.flat_state().paths == (("new",), ("v",))
            return out_g["v"].replace(out_g["new"].value * 7), None

        return out, vjp

    def loss(v):
        out = g(v, {"x": 1.0})
        assert out.v is v
        return out.new.value

    v_g = grad(loss)(Param(jnp.array(1.0)))
    assert isinstance(v_g, VariableState)
    close(v_g.value, 7.0)


def test_methods():
    class Layer(Model):
        @custom_gradient
        def __call__(self, x):
            return self.w.value * x, lambda g: (self.state(g), g * 3)

    m = Layer()
    m_g, x_g = grad(lambda m, x: m(x), argnums=(0, 1))(m, 4.0)
    close((m_g.to_pure_dict(), x_g), ({"w": 1.0}, 3.0))


def test_errors():
    m = Model()
    for result, kind, message in [
        (lambda m: jnp.ones(3), TypeError, r"argument 0 \('m'\) an array"),
        (lambda m: (State({}),), ValueError, r"argument 0 \('m'\) a State without 'w'"),
        (lambda m: (m.state(1.0), None), TypeError, "returned 2"),
        (lambda m: m.state(jnp.ones(3)), ValueError, r"at 'w'.*float32\[3\]"),
    ]:
        f = custom_gradient(lambda m: (m.w.value, lambda g: result(m)))
        with pytest.raises(kind, match=message):
            grad(f)(m)
    f = custom_gradient(lambda m, x=None: (m.w.value, lambda g: m.state(g)))
    with pytest.raises(TypeError, match="returned a State"):
        grad(f)(m)
    with pytest.raises(TypeError, match="must return a pair"):
        custom_gradient(lambda m: m.w.value)(m)

    @custom_gradient
    def fails(m):
        m.w.value = m.w.value * 2
        raise KeyError("user")

    before = gc.split(m)
    for call in (fails, grad(fails), jit(fails)):
        with pytest.raises(KeyError, match="user"):
            call(m)
    assert gc.split(m) == before


def test_nothing_leaks():
    calls = [scale, grad(scale), jit(scale), jit(grad(scale)), grad(jit(scale))]
    for call in calls:
        m = Model()
        with jax.checking_leaks():
            call(m, 2.0)
        refs = [weakref.ref(m), weakref.ref(m.w)]
        del m
        garbage.collect()
        assert [r() for r in refs] == [None, None]


@settings(max_examples=25, deadline=None)
@given(models(), programs(), st.sampled_from(["eager", "jit_grad", "grad_jit"]))
def test_random_programs(m, program, order):
    x = jnp.array([0.5, -0.25])
    targets = written(program)

    @custom_gradient
    def f(m, x):
        out = run(program, m, x)

        def vjp(g):
            tangents = gc.state(m).filter(lambda path, v: "number" in v.get_metadata())
            known = [p for p, s in tangents.flat_state() if s.number >= 0]
            return (
                State.from_flat_path(
                    (p, s.replace(s.value * g * (s.number + 1)))
                    for p, s in tangents.flat_state()
                    if p in known and s.number < len(inexact(m)) and p in given_paths
                ),
                g * x,
            )

        return out, vjp

    given_paths = set(gc.state(m).flat_state().paths)

    def loss(m, x):
        return jnp.sum(f(m, x))

    graphdef, state = gc.split(m)

    @jax.custom_gradient
    def pure(vs, x):
        inner = gc.merge(graphdef, state)
        for v, value in zip(inexact(inner), vs, strict=True):
            v.value = value
        out = run(program, inner, x)
        after = values(inner)
        return out, lambda g: ([v * g * (i + 1) for i, v in enumerate(after)], g * x)

    expected, (vs_g, x_g) = jax.value_and_grad(
        lambda vs, x: jnp.sum(pure(vs, x)), argnums=(0, 1)
    )(values(m), x)
    changed = gc.merge(graphdef, state)
    run(program, changed, x)
    everything = lambda path, v: v.get_metadata().get("number", -1) >= 0
    options = {"argnums": (DiffState(0, everything), 1)}
    transformed = {
        "eager": lambda: value_and_grad(loss, **options),
        "jit_grad": lambda: jit(value_and_grad(loss, **options)),
        "grad_jit": lambda: value_and_grad(jit(loss), **options),
    }[order]()
    unwritten = {i: v.value for i, v in enumerate(inexact(m)) if i not in targets}
    found, (m_g, found_x_g) = transformed(m, x)
    close(found, expected)
    by_number = {s.number: s.value for _, s in m_g.flat_state()}
    close([by_number[i] for i in range(len(vs_g))], vs_g)
    close(found_x_g, x_g)
    same_graph(m, changed)
    for i, value in unwritten.items():
        assert inexact(m)[i].value is value


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.sampled_from([(), (2,), (2, 3)]), min_size=1, max_size=3),
    st.sampled_from(["grad", "vmap", "jit"]),
    st.sampled_from(["tuple", "list", "first", "none", "long", "shape"]),
)
def test_as_jax(shapes, around, returned):
    args = [jnp.linspace(0.1, 1.0, int(np.prod(s))).reshape(s) for s in shapes]

    def f(*args):
        def vjp(g):
            tangents = tuple(jnp.cos(x) * g["a"] * 3 for x in args)
            return {
                "tuple": tangents,
                "list": list(tangents),
                "first": tangents[0],
                "none": (None, *tangents[1:]),
                "long": (*tangents, tangents[0]),
                "shape": (jnp.ones(7), *tangents[1:]),
            }[returned]

        return {"a": sum(jnp.sum(jnp.sin(x)) for x in args), "b": args[-1]}, vjp

    def outcome(decorate):
        wrapped = decorate(f)
        g = jax.grad(lambda *xs: wrapped(*xs)["a"], argnums=tuple(range(len(args))))
        try:
            if around == "vmap":
                return jax.vmap(g)(*(jnp.stack([x, x + 1]) for x in args))
            return (jax.jit(g) if around == "jit" else g)(*args)
        except Exception as error:
            return type(error)

    expected, found = outcome(jax.custom_gradient), outcome(custom_gradient)
    if isinstance(expected, type):
        assert found is expected
        return
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    close(found, expected)


def test_a_pullback_must_be_a_function():
    with pytest.raises(TypeError, match=r"'\<lambda\>' must .* but the second is 3"):
        jax.grad(custom_gradient(lambda x: (x, 3)))(1.0)
