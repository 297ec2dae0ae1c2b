"""What is traced again and what is not: JAX keeps traces with the function."""

import functools
import gc as garbage
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnx_transforms as nnx
from nnx_transforms import Carry, Dict, Module, Param, StateAxes, Variable


class Model(Module):
    def __init__(self, w=2.0):
        self.w = Param(jnp.array(w))
        self.calls = Variable(jnp.array(0))

    def step(self, x):
        TRACES.append("step")
        self.calls.value += 1
        return self.w.value * x


TRACES = []


def traced(f):
    """A function that notes when Python runs it."""

    def noted(*args):
        TRACES.append(f.__name__)
        return f(*args)

    return noted


@traced
def write(m, x):
    m.calls.value += 1
    return x * m.w.value


@traced
def add_one(m, x):
    m.w.value = m.w.value + 1
    return x + m.w.value


@traced
def scanned(m, c, x):
    m.calls.value += 1
    return c + x * m.w.value, c


@traced
def iterate(carry):
    m, x = carry
    m.calls.value += 1
    return m, x * m.w.value


@traced
def below(carry):
    return carry[1] < 100.0


@traced
def iterate_i(i, carry):
    m, x = carry
    m.calls.value += 1
    return m, x + i * m.w.value


@traced
def plain_step(c, x):
    return c + x, c


SCAN = nnx.scan(scanned, in_axes=(None, Carry, 0), out_axes=(Carry, 0))
PLAIN_SCAN = nnx.scan(plain_step)
REMAT = nnx.remat(write)
CALLS = {
    "scan": lambda m, x: SCAN(m, x, jnp.arange(3.0)),
    "plain scan": lambda m, x: PLAIN_SCAN(x, jnp.arange(3.0)),
    "cond": lambda m, x: nnx.cond(x > 0, write, add_one, m, x),
    "switch": lambda m, x: nnx.switch(1, [write, add_one], m, x),
    "while_loop": lambda m, x: nnx.while_loop(below, iterate, (m, x)),
    "fori_loop": lambda m, x: nnx.fori_loop(0, 3, iterate_i, (m, x)),
    "remat": lambda m, x: REMAT(m, x),
    "eval_shape": lambda m, x: nnx.eval_shape(write, m, x),
}


@pytest.mark.parametrize("inside_jit", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_a_second_call_does_not_trace(name, inside_jit):
    call = CALLS[name]

    def twice(m, x):
        first = call(m, x)
        TRACES.clear()
        second = call(m, x)
        assert TRACES == []
        return jax.tree.leaves((first, second), is_leaf=lambda y: isinstance(y, Model))

    if inside_jit:
        nnx.jit(lambda m, x: twice(m, x) and None)(Model(), jnp.array(1.5))
    else:
        twice(Model(), jnp.array(1.5))


@pytest.mark.parametrize("name", [n for n in CALLS if n != "eval_shape"])
def test_kept_traces_do_what_new_ones_do(name):
    kept, fresh = Model(), Model()
    for x in (jnp.array(1.5), jnp.array(2.5)):
        out = CALLS[name](kept, x)
        with jax.disable_jit():
            jax.clear_caches()
            expected = CALLS[name](fresh, x)
        leaves, others = (
            [y for y in jax.tree.leaves(o, is_leaf=nnx.is_graph_node) if y is not m]
            for o, m in ((out, kept), (expected, fresh))
        )
        for a, b in zip(leaves, others, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6)
        np.testing.assert_allclose(kept.w.value, fresh.w.value)
        assert int(kept.calls.value) == int(fresh.calls.value)


def test_another_structure_is_traced_and_each_has_its_own_outcome():
    def grow(m, x):
        if hasattr(m, "extra"):
            m.w.value = m.w.value + m.extra.value
        else:
            m.extra = Variable(x)
        return x

    for _ in range(2):
        m = Model()
        for expected in (2.0, 5.0, 8.0):
            nnx.cond(True, grow, grow, m, jnp.array(3.0))
            assert float(m.w.value) == expected
        assert float(m.extra.value) == 3.0


def test_another_type_or_configuration_is_traced():
    TRACES.clear()
    m = Model()
    CALLS["cond"](m, jnp.array(1.0))
    CALLS["cond"](m, jnp.array(1.0))
    TRACES.clear()
    CALLS["cond"](m, jnp.array([1.0])[0].astype(jnp.bfloat16))
    assert TRACES
    TRACES.clear()
    with jax.numpy_dtype_promotion("strict"):
        nnx.cond(True, write, write, m, jnp.array(1.0))
    assert TRACES


def test_what_branches_write_is_known_under_each_trace():
    def only_first(m, x):
        if x.dtype == jnp.float32:  # what is written depends on the types
            m.w.value = x
        else:
            m.calls.value = m.calls.value + 1

    def nothing(m, x):
        pass

    m = Model()
    for x in (jnp.array(7.0), jnp.array(7), jnp.array(8.0), jnp.array(9)):
        nnx.cond(True, only_first, nothing, m, x)
        nnx.jit(lambda m, x: nnx.cond(True, only_first, nothing, m, x))(m, x)
    assert (float(m.w.value), int(m.calls.value)) == (8.0, 4)


def test_functions_that_close_over_objects_read_them_anew():
    outer = Variable(jnp.array(1.0))

    def read(m, x):
        return outer.value * x

    run = nnx.remat(read)
    m = Model()
    assert float(run(m, jnp.array(2.0))) == 2.0
    outer.value = jnp.array(5.0)
    assert float(run(m, jnp.array(2.0))) == 10.0
    assert float(nnx.cond(True, read, read, m, jnp.array(2.0))) == 10.0
    outer.value = jnp.array(6.0)
    assert float(nnx.cond(True, read, read, m, jnp.array(2.0))) == 12.0


@pytest.mark.parametrize("transform", [nnx.remat, nnx.jit])
def test_methods_are_known_by_their_function_and_the_place_of_their_object(transform):
    TRACES.clear()
    a, b = Model(2.0), Model(3.0)
    outs = [float(transform(m.step)(jnp.array(2.0))) for m in (a, b, a)]
    assert outs == [4.0, 6.0, 4.0]
    assert TRACES == ["step"]
    assert (int(a.calls.value), int(b.calls.value)) == (2, 1)


def test_kept_traces_hold_neither_objects_nor_functions():
    def local(m, c, x):
        m.calls.value += 1
        return c + x * m.w.value, c

    m = Model()
    run = nnx.scan(local, in_axes=(None, Carry, 0), out_axes=(Carry, 0))
    run(m, jnp.array(0.0), jnp.arange(3.0))
    nnx.cond(True, write, add_one, m, jnp.array(1.0))
    seen = weakref.ref(m), weakref.ref(local), weakref.ref(m.w)
    garbage.disable()
    try:
        del m, local, run
        assert [r() for r in seen] == [None] * 3
    finally:
        garbage.enable()


def _mapped(f):
    return nnx.vmap(f, in_axes=(None, 0))


@pytest.mark.parametrize(
    "transform",
    [
        nnx.jit,
        nnx.remat,
        nnx.grad,
        _mapped,
        lambda f: _mapped(nnx.jit(f)),
        lambda f: _mapped(functools.partial(f)),
        lambda f: nnx.jit(_mapped(f)),
    ],
)
def test_a_model_that_holds_a_transformed_function_of_its_own_goes_with_it(transform):
    # What is kept with the function refers to the static values of the model, and so
    # to the function.
    class Holder(Module):
        def __init__(self):
            self.w = Param(jnp.array(2.0))

            def local(m, x):
                return (m.w.value * x).sum()

            seen.append(weakref.ref(local))
            self.run = transform(local)

    seen = []
    model = Holder()
    if transform in (nnx.jit, nnx.remat, nnx.grad):
        model.run(model, 1.0)
    else:
        model.run(model, jnp.ones(2))
    assert seen[0]() is not None
    del model
    garbage.collect()
    assert seen[0]() is None


def test_functions_jitted_alike_are_compiled_once():
    TRACES.clear()
    m = Model()
    for _ in range(2):
        nnx.jit(write)(m, jnp.array(1.0))
        nnx.jit(write, donate_argnums=[1])(m, jnp.array(1.0))
        nnx.jit(write, in_shardings=None)(m, jnp.array(1.0))
        nnx.jit(write, static_argnums=1)(m, 2.0)
    assert (TRACES, int(m.calls.value)) == (["write"] * 3, 8)
    assert nnx.jit(write)._cache_size() == 1
    nnx.jit(write).clear_cache()
    nnx.jit(write)(m, jnp.array(1.0))
    assert TRACES == ["write"] * 4


def test_functions_of_arrays_jitted_alike_are_compiled_once():
    TRACES.clear()
    for _ in range(3):
        total, _ = nnx.jit(plain_step)(jnp.array(1.0), jnp.array(2.0))
        assert float(total) == 3.0
    nnx.jit(plain_step, keep_unused=True)(jnp.array(1.0), jnp.array(2.0))
    assert TRACES == ["plain_step"] * 2


def test_jitted_anew_a_function_reads_the_objects_that_it_closes_over_anew():
    outer = Variable(jnp.array(1.0))

    def read(x):
        return outer.value * x

    assert float(nnx.jit(read)(2.0)) == 2.0
    outer.value = jnp.array(5.0)
    assert float(nnx.jit(read)(2.0)) == 10.0


def test_a_jitted_method_reads_an_object_of_an_outer_trace_anew():
    class Reader(Module):
        def __init__(self):
            self.w = Param(jnp.array(2.0))

        def read(self, other, x):
            return self.w.value * other.w.value * x

    m, other = Reader(), Reader()
    run = nnx.jit(m.read)
    assert float(nnx.jit(lambda other, x: run(other, x))(other, 1.0)) == 4.0
    m.w.value = jnp.array(5.0)
    assert float(nnx.jit(lambda other, x: run(other, x))(other, 1.0)) == 10.0
    assert float(run(other, 1.0)) == 10.0


def test_jitted_methods_read_their_own_objects_of_an_outer_trace():
    class Scale(Module):
        def __init__(self, w):
            self.w = Param(jnp.array(w))

        def times(self, x):
            return self.w.value * x

    @jax.jit
    def outer(x):
        runs = [nnx.jit(Scale(w).times) for w in (2.0, 3.0)]
        return jax.vmap(lambda x: [run(x) for run in runs])(x)

    assert [float(y[0]) for y in outer(jnp.ones(1))] == [2.0, 3.0]


def test_settings_that_say_the_same_agree():
    def total(a, b, x):
        return a.w.value + b.w.value + x

    m = Dict(w=Param(jnp.arange(3.0)))
    same = nnx.vmap(total, in_axes=(0, StateAxes({...: 0}), 0))
    np.testing.assert_array_equal(same(m, m, jnp.ones(3)), [1.0, 3.0, 5.0])
    with pytest.raises(ValueError, match="Inconsistent aliasing detected"):
        nnx.vmap(total, in_axes=(0, StateAxes({...: None}), 0))(m, m, jnp.ones(3))

    placed = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    by_filter = nnx.StateSharding({...: placed})
    run = nnx.jit(total, in_shardings=(placed, by_filter, None))
    np.testing.assert_array_equal(run(m, m, jnp.ones(3)), [1.0, 3.0, 5.0])


def test_filters_that_look_at_values_are_asked_at_each_call():
    m = Dict(w=Param(jnp.ones(3)), b=Param(jnp.array(1.0)))
    has_axes = lambda path, v: jnp.ndim(v.value) > 0
    run = nnx.vmap(
        lambda m, x: m.w.value * x + m.b.value,
        in_axes=(StateAxes({has_axes: 0, ...: None}), 0),
    )
    np.testing.assert_array_equal(run(m, jnp.arange(3.0)), [1.0, 2.0, 3.0])
    m.w.value, m.b.value = jnp.array(1.0), jnp.arange(3.0)
    np.testing.assert_array_equal(run(m, jnp.arange(3.0)), [0.0, 2.0, 4.0])


@pytest.mark.parametrize(
    "transform", ["cond", "switch", "while_loop", "remat", "vmap", "jit"]
)
def test_a_function_whose_code_was_replaced_is_traced_anew(transform):
    # As tools do that load an edited module again.
    def f(m, x):
        return x * m.w.value

    def edited(m, x):
        return x * m.w.value * 10

    def run():
        m = Model()
        if transform == "cond":
            return nnx.cond(True, f, lambda m, x: x, m, 1.0)
        if transform == "switch":
            return nnx.switch(0, [f, lambda m, x: x], m, 1.0)
        if transform in ("remat", "jit"):
            return getattr(nnx, transform)(f)(m, 1.0)
        if transform == "vmap":
            return nnx.vmap(f, in_axes=(None, 0))(m, jnp.ones(1))[0]
        once = nnx.while_loop(lambda c: c[2] < 1, step, (m, 1.0, 0))
        return once[1]

    def step(carry):
        m, x, i = carry
        return m, x * m.w.value, i + 1

    def edited_step(carry):
        m, x, i = carry
        return m, x * m.w.value * 10, i + 1

    assert float(run()) == 2.0
    f.__code__, step.__code__ = edited.__code__, edited_step.__code__
    assert float(run()) == 20.0


class Scorer:
    def __init__(self, teacher):
        self.teacher = teacher

    def score(self, x):
        return self.teacher.w.value * x


@pytest.mark.parametrize(
    "hide",
    [
        lambda teacher: Scorer(teacher).score,
        lambda teacher: functools.partial(lambda t, x: t.w.value * x, teacher),
        lambda teacher: lambda x: teacher.w.value * x,
        lambda teacher: functools.partial(lambda ts, x: ts[0].w.value * x, (teacher,)),
    ],
)
def test_what_a_static_argument_of_remat_holds_is_read_at_each_call(hide):
    model, teacher = Dict(w=Param(2.0)), Dict(w=Param(3.0))
    step = nnx.remat(lambda m, score: score(m.w.value), static_argnums=1)
    score = hide(teacher)
    assert float(step(model, score)) == 6.0
    teacher.w.value = 5.0
    assert float(step(model, score)) == 10.0
