"""Captured values as arguments."""

import functools
import gc as garbage
import types
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rule_programs import close, inexact, models, programs, run, same_graph, values

import graphcore as gc
from graphcore.authors import captured_objects
from nnx_transforms import (
    BatchStat,
    Cache,
    Dict,
    Module,
    Param,
    TraceContextError,
    jit,
)
from nnx_transforms.transforms.closure_convert import closure_convert
from nnx_transforms.transforms.grad import grad


class Model(Module):
    def __init__(self, w=2.0, b=1.0):
        self.w = Param(jnp.array(w))
        self.b = Param(jnp.array(b))
        self.calls = BatchStat(jnp.array(0))

    def __call__(self, x):
        return self.w.value * x


GLOBAL = Model(11.0)


def uses_a_global(x):
    return (lambda y: GLOBAL(y))(x)


def test_what_is_read_is_hoisted():
    m = Model()
    f, hoisted = closure_convert(lambda x: m(x), 1.0)
    assert [x is m.w.value for x in hoisted] == [True]
    close(f(3.0, *hoisted), 6.0)
    close(f(3.0, jnp.array(5.0)), 15.0)
    close(jax.grad(f, argnums=1)(3.0, *hoisted), 3.0)
    close(jax.jit(f)(3.0, *hoisted), 6.0)
    close(jax.vmap(f, (None, 0))(3.0, jnp.arange(2.0)), jnp.array([0.0, 3.0]))


def test_each_conversion_reads_variables_afresh():
    m = Model()

    def g(x):
        return m(x)

    _, first = closure_convert(g, 1.0)
    m.w.value = jnp.array(7.0)
    f, second = closure_convert(g, 1.0)
    close((first, second), ([2.0], [7.0]))
    close(f(3.0, *first), 6.0)
    m.extra = Param(jnp.array(4.0))
    f, third = closure_convert(lambda x: m(x) + m.extra.value, 1.0)
    assert sorted(map(float, third)) == [4.0, 7.0]
    close(f(1.0, *third), 11.0)


def test_all_ways_to_capture():
    m = Model()

    class Holder:
        def __init__(self):
            self.models = {"a": [m]}

        def call(self, x):
            return self.models["a"][0](x)

    def default(x, m=m):
        return m(x)

    @functools.wraps(default)
    def wrapped(x):
        return default(x)

    for f in (
        m,
        m.__call__,
        functools.partial(lambda m, x: m(x), m),
        default,
        wrapped,
        Holder().call,
        jit(lambda x: x * m.w.value),
        jax.jit(lambda x: m(x)),
        lambda x: (lambda y: m(y))(x),
    ):
        converted, hoisted = closure_convert(f, 1.0)
        close((hoisted, converted(3.0, jnp.array(10.0))), ([2.0], 30.0))
    converted, hoisted = closure_convert(uses_a_global, 1.0)
    close((hoisted, converted(3.0, jnp.array(10.0))), ([11.0], 30.0))
    assert captured_objects(lambda: print(np, jax, "text")) == []

    class LazyModule(types.ModuleType):
        """As libraries have it that load their parts when needed."""

    lazy = LazyModule("lazy")
    lazy.model = Param(jnp.array(1.0))
    assert captured_objects(lambda: lazy) == []


def test_objects_among_the_arguments():
    captured = Model(3.0)

    def g(m, x):
        m.calls.value = m.calls.value + 1
        m.last = Cache(x)
        return captured(x) + m.w.value, m

    example, m = Model(), Model(5.0)
    f, hoisted = closure_convert(g, example, 1.0)
    close(hoisted, [3.0])
    assert int(example.calls.value) == 0  # only looked at
    assert not hasattr(example, "last")
    for calls in (1, 2):
        m = Model(5.0) if calls == 1 else m
        if calls == 2:
            del m.last
        out, same = f(m, 2.0, *hoisted)
        assert same is m
        close((out, m.calls.value, m.last.value), (11.0, calls, 2.0))
    del m.last
    m_g = grad(lambda m: f(m, 2.0, *hoisted)[0])(m)
    close(m_g.to_pure_dict(), {"w": 1.0, "b": 0.0})

    with pytest.raises(TypeError, match="b: missing"):
        f(Dict(w=m.w), 2.0, *hoisted)
    with pytest.raises(TypeError, match="example arguments"):
        f(1.0, 2.0, *hoisted)
    with pytest.raises(TypeError):
        f(m, (2.0, 3.0), *hoisted)


def test_constants_are_written_as_arrays():
    m = Dict(steps=jnp.array(3))
    converted, _ = closure_convert(lambda m: setattr(m, "steps", jnp.array(0)), m)
    converted(m)
    assert isinstance(m.steps, jax.Array)


def test_tracers_are_hoisted_as_in_jax():
    m = Model()

    def loss(w):
        f, hoisted = closure_convert(lambda x: m(x) * w, 1.0)
        assert len(hoisted) == 2
        return f(3.0, *hoisted)

    close(jax.grad(loss)(5.0), 6.0)
    close(jax.jit(jax.grad(loss))(5.0), 6.0)

    def inside(m, x):
        f, hoisted = closure_convert(lambda x: m(x), 1.0)
        return f(x, *hoisted)

    close(grad(inside)(m, 3.0).to_pure_dict(), {"w": 3.0, "b": 0.0})


def test_objects_with_arrays_and_pytrees():
    def value(w, x):
        m = Dict(a=w, v=Param({"w": w * 2, "name": "a", "f": jnp.sin}))
        rate = lambda x: m.a * m.v.value["f"](m.v.value["w"] * x)
        f, hoisted = closure_convert(rate, x)
        return f(x, *hoisted), len(hoisted)

    w, x = jnp.array(2.0), jnp.array(3.0)
    (out, _), slope = jax.value_and_grad(value, has_aux=True)(w, x)
    plain = lambda w, x: w * jnp.sin(w * 2 * x)
    close((out, slope), (plain(w, x), jax.grad(plain)(w, x)))
    assert value(w, x)[1] == 1  # a constant stays in the function, as in JAX


def test_shapes_are_enough_for_examples():
    m = Model()
    f, hoisted = closure_convert(lambda x: m(x), jax.ShapeDtypeStruct((2,), "float32"))
    close(f(jnp.ones(2), *hoisted), jnp.full(2, 2.0))


def test_writing_what_is_captured_is_refused():
    m = Model()
    before = gc.split(m)

    def g(x):
        m.calls.value = m.calls.value + 1
        return x

    with pytest.raises(TraceContextError):
        closure_convert(g, 1.0)
    assert gc.split(m) == before

    def fails(x):
        m(x)
        raise KeyError("user")

    with pytest.raises(KeyError, match="user"):
        closure_convert(fails, 1.0)
    assert gc.split(m) == before
    assert isinstance(m.w.value, jax.Array)
    assert not isinstance(m.w.value, jax.core.Tracer)


def test_nothing_leaks():
    m, example = Model(), Model()
    g = functools.partial(lambda m, e, x: m(x) * e.w.value, m)
    with jax.checking_leaks():
        f, hoisted = closure_convert(g, example, 1.0)
        f(example, 2.0, *hoisted)
    refs = [weakref.ref(x) for x in (m, m.w, example, example.w)]
    del m, example
    garbage.collect()
    assert [r() for r in refs[2:]] == [None, None]
    del f, hoisted, g
    garbage.collect()
    assert [r() for r in refs] == [None] * 4


@settings(max_examples=25, deadline=None)
@given(models(), models(), programs())
def test_random_programs(captured, m, program):
    x = jnp.array([0.5, -0.25])

    def f(m, x):
        return run(program, m, x) + sum(v.value for v in inexact(captured))

    expected_m = gc.clone(m)
    expected = f(expected_m, x)
    converted, hoisted = closure_convert(f, m, x)
    assert len(hoisted) == len(inexact(captured))
    m2 = gc.clone(m)
    close(converted(m2, x, *hoisted), expected)
    same_graph(m2, expected_m)
    changed = [value * 2 + 1 for value in hoisted]
    close(
        converted(gc.clone(m), x, *changed),
        expected - sum(values(captured)) + sum(changed),
    )


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from([(), (2,), (2, 3)]), min_size=1, max_size=3),
    st.sampled_from(["none", "grad", "jit", "jit_grad"]),
    st.sampled_from(["right", "structure", "few"]),
)
def test_as_jax(shapes, around, called):
    args = [jnp.linspace(0.1, 1.0, int(np.prod(s))).reshape(s) for s in shapes]

    def outcome(convert):
        counts = []

        def g(w):
            constant = jnp.arange(2.0)
            f = lambda *xs: {"a": sum(jnp.sum(x * w) for x in xs), "b": constant}
            converted, hoisted = convert(f, *args)
            counts.append(len(hoisted))
            given = {"right": args, "structure": [args[0]] * 4, "few": args[1:]}[called]
            out = converted(*given, *hoisted)
            assert out["b"].shape == (2,)
            return out["a"]

        transform = {
            "none": lambda g: g,
            "grad": jax.grad,
            "jit": jax.jit,
            "jit_grad": lambda g: jax.jit(jax.grad(g)),
        }[around]
        try:
            return transform(g)(3.0), counts
        except Exception as error:
            return type(error)

    expected, found = outcome(jax.closure_convert), outcome(closure_convert)
    if isinstance(expected, type):
        assert found is expected
        return
    close(found, expected)


def test_hoisted_values_must_be_given():
    model = gc.Dict(w=gc.Param(jnp.array(2.0)))
    converted, hoisted = closure_convert(lambda x: model.w.value * x, 3.0)
    for extra in ((), (*hoisted, 1.0)):
        with pytest.raises(TypeError, match=r"takes 1 hoisted values .* got "):
            converted(3.0, *extra)
