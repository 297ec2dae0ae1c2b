"""Branches and loops over live objects, against JAX and against explicit rewrites."""

import dataclasses
import functools
import gc as garbage
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import graphcore as gc
from nnx_transforms import (
    Carry,
    Dict,
    List,
    Module,
    Param,
    Rngs,
    TraceContextError,
    Variable,
    cond,
    fori_loop,
    remat,
    scan,
    switch,
    while_loop,
)


class Model(Module):
    def __init__(self):
        self.w = Param(jnp.arange(3.0))
        self.b = Param(jnp.zeros(3))
        self.tied = self.w
        self.count = Variable(jnp.array(0))
        self.sub = Dict(x=Param(jnp.ones(2)))
        self.rate = 0.5

    def bump(self, x):
        self.count.value = self.count.value + 1
        return x * self.w.value

    def __call__(self, x):
        self.b.value = self.b.value + x
        return x + self.w.value


def snapshot(*nodes):
    """Everything there is to know of objects: to see that nothing changed."""
    graphdef, state = gc.split(List(nodes))
    return graphdef, jax.tree.map(np.asarray, state.to_pure_dict())


def assert_unchanged(before, *nodes):
    graphdef, values = snapshot(*nodes)
    assert graphdef == before[0]
    jax.tree.map(np.testing.assert_array_equal, values, before[1])


def write_b(m, x):
    m.b.value = m.b.value + x
    return m


def write_count(m, x):
    m.count.value = m.count.value + 1
    return m


# Branches


@pytest.mark.parametrize("pred", [True, False])
@pytest.mark.parametrize("compiled", [False, True])
def test_branches_may_write_different_variables(pred, compiled):
    m = Model()
    w, x = m.w.value, m.sub.x.value

    if compiled:

        @jax.jit
        def run(graphdef, state, pred):
            inner = gc.merge(graphdef, state)
            assert cond(pred, write_b, write_count, inner, 2.0) is inner
            return gc.state(inner)

        gc.update(m, run(*gc.split(m), pred))
    else:
        assert cond(pred, write_b, write_count, m, 2.0) is m
        assert m.w.value is w
        assert m.sub.x.value is x
    assert m.b.value.tolist() == [2.0 * pred] * 3
    assert int(m.count.value) == (not pred)
    assert m.tied is m.w


def test_switch_clamps_and_unions():
    for index, expected in [(-1, (1, 0, 0)), (1, (0, 1, 0)), (7, (0, 0, 1))]:
        variables = List([Variable(jnp.array(0)) for _ in range(3)])

        def write(number):
            def f(v):
                v[number].value = v[number].value + 1

            return f

        assert switch(index, [write(0), write(1), write(2)], variables) is None
        assert tuple(int(v.value) for v in variables) == expected


def test_what_no_branch_writes_is_no_output():
    m = Model()
    graphdef, state = gc.split(m)

    def ours(state, pred):
        inner = gc.merge(graphdef, state)
        cond(pred, write_b, write_count, inner, 2.0)
        return inner.b.value, inner.count.value

    def by_hand(state, pred):
        inner = gc.merge(graphdef, state)
        values = (inner.b.value, inner.count.value)
        return jax.lax.cond(
            pred,
            lambda b, n: (b + 2.0, n),
            lambda b, n: (b, n + 1),
            *values,
        )

    def branches(f):
        (eqn,) = [
            e
            for e in jax.make_jaxpr(f)(state, True).jaxpr.eqns
            if e.primitive.name == "cond"
        ]
        return [
            (
                [e.primitive.name for e in b.jaxpr.eqns],
                [v.aval for v in b.jaxpr.outvars],
            )
            for b in eqn.params["branches"]
        ]

    def outputs(found):
        return [sorted(map(str, avals)) for _, avals in found]

    def computed(found):
        return [[n for n in names if n != "convert_element_type"] for names, _ in found]

    assert computed(branches(ours)) == computed(branches(by_hand))
    assert outputs(branches(ours)) == outputs(branches(by_hand))


def test_structure_changed_alike_in_all_branches():
    m = Model()
    sub = m.sub

    def one(m, x):
        m.new = Param(x)
        m.other = m.sub
        del m.sub
        m.rate = 1.0
        return [m.new, Variable(x + 1)], m.other

    def two(m, x):
        m.rate = 1.0
        m.other = m.sub
        m.new = Param(x * 2)
        del m.sub
        return [m.new, Variable(x - 1)], m.other

    (new, fresh), other = cond(False, one, two, m, 3.0)
    assert (new is m.new, other is m.other, other is sub) == (True, True, True)
    assert not hasattr(m, "sub")
    assert (float(new.value), float(fresh.value), m.rate) == (6.0, 2.0, 1.0)


def test_arrays_that_are_attributes_may_be_moved_and_replaced():
    def move(m):
        m.x = m.scale * 2
        del m.scale
        m.mean = [m.mean]

    m = Model()
    m.scale, m.mean = jnp.ones(2), jnp.zeros(2)
    cond(True, move, move, m)
    assert not hasattr(m, "scale")
    assert (m.x.tolist(), m.mean[0].tolist()) == ([2.0, 2.0], [0.0, 0.0])
    with pytest.raises(ValueError, match=r"carry/x: missing \S*Array"):
        fori_loop(0, 2, lambda i, m: delattr(m, "x") or m, m)
    assert m.x.tolist() == [2.0, 2.0]


def test_swaps_and_cycles_made_alike():
    m = Model()
    w, b = m.w, m.b

    def swap(m):
        m.w, m.b = m.b, m.w
        m.me = m

    cond(True, swap, swap, m)
    assert (m.w is b, m.b is w, m.me is m, m.tied is w) == (True,) * 4


def test_new_objects_without_objects_among_the_operands():
    made = cond(True, lambda x: Param(x), lambda x: Param(-x), jnp.ones(2))
    assert type(made) is Param
    assert made.value.tolist() == [1.0, 1.0]


def test_bound_methods_and_callable_objects():
    m, other = Model(), Model()
    out = cond(True, m.bump, other, jnp.ones(3))
    assert out.tolist() == [0.0, 1.0, 2.0]
    assert (int(m.count.value), other.b.value.tolist()) == (1, [0.0] * 3)
    out = cond(False, m.bump, other, jnp.ones(3))
    assert (int(m.count.value), other.b.value.tolist()) == (1, [1.0] * 3)


def test_older_forms():
    v = Variable(jnp.array(1.0))

    def add(pair):
        pair[0].value = pair[0].value + pair[1]

    cond(True, add, lambda pair: None, operand=(v, 2.0))
    assert float(v.value) == 3.0
    out = cond(False, (v, 1.0), lambda p: p[1], v, lambda v: v.value * 2)
    assert float(out) == 6.0
    switch(0, [add], operand=(v, 1.0))
    assert float(v.value) == 4.0
    cond(True, (v, 2.0), add, v, lambda v: None)
    assert float(v.value) == 6.0
    with pytest.raises(TypeError, match="operand"):
        cond(True, add, add, v, operand=v)


@pytest.mark.parametrize(
    ("branch", "error", "lines"),
    [
        (
            lambda m: setattr(m, "new", Param(jnp.ones(1))),
            ValueError,
            ["operands/0/new: extra"],
        ),
        (lambda m: setattr(m.sub, "flag", 1), ValueError, ["operands/0/sub/flag"]),
        (lambda m: setattr(m, "rate", 2), ValueError, ["operands/0/rate", "0.5 -> 2"]),
        (lambda m: delattr(m, "sub"), ValueError, ["operands/0/sub: missing"]),
        (
            lambda m: setattr(m, "tied", m.b),
            ValueError,
            ["operands/0/tied: sharing", "operands/0/w"],
        ),
        (
            lambda m: [setattr(m, "w", m.b), setattr(m, "b", m.tied)],
            ValueError,
            ["operands/0/b"],
        ),
        (lambda m: m, ValueError, ["returned: extra"]),
        (
            lambda m: setattr(m.sub.x, "value", jnp.ones(3)),
            TypeError,
            ["operands/0/sub/x: float32[2] -> float32[3]"],
        ),
        (
            lambda m: setattr(m.sub.x, "value", jnp.ones(2, int)),
            TypeError,
            ["operands/0/sub/x: float32[2] -> int32[2]"],
        ),
        (lambda m: jnp.ones(2), TypeError, ["output: (none) -> float32[2]"]),
    ],
)
@pytest.mark.parametrize("name", ["cond", "switch"])
def test_branches_that_disagree(branch, error, lines, name):
    m = Model()
    before = snapshot(m)

    def run():
        if name == "cond":
            return cond(True, lambda m: None, branch, m)
        return switch(0, [lambda m: None, lambda m: None, branch], m)

    with pytest.raises(error) as caught:
        run()
    message = str(caught.value)
    for line in lines:
        assert line in message
    names = "true_fun -> false_fun" if name == "cond" else "branch 0 -> branch 2"
    assert names in message
    assert_unchanged(before, m)


@dataclasses.dataclass
class Scaled:
    x: Any
    unit: str


jax.tree_util.register_dataclass(Scaled, ["x"], ["unit"])


@pytest.mark.parametrize(
    "loop",
    [
        lambda f, v: cond(False, lambda v: v, f, v),
        lambda f, v: fori_loop(0, 2, lambda i, v: f(v), v),
        lambda f, v: while_loop(lambda v: v.value.x < 3, f, v),
        lambda f, v: scan(lambda v, x: (f(v), x))(v, jnp.ones(2)),
    ],
)
def test_what_is_static_in_a_value_may_not_change(loop):
    def convert(v):
        v.value = Scaled(v.value.x + 1, "km")
        return v

    v = Variable(Scaled(jnp.array(0.0), "m"))
    with pytest.raises(TypeError, match=r"  (operands/0|carry|0): .*\bm\b.* -> .*km"):
        loop(convert, v)
    assert v.value.unit == "m" and float(v.value.x) == 0.0


def test_what_is_static_in_an_output_is_named_where_it_differs():
    def in_unit(unit, v):
        return {"a": [Scaled(v.value, unit), Scaled(v.value, "m")], "b": v.value}

    of_unit = [functools.partial(in_unit, unit) for unit in ("m", "km")]
    with pytest.raises(TypeError, match=r"differ.*:\n  output/a/0: .*km.*$") as caught:
        cond(True, *of_unit, Variable(jnp.array(0.0)))
    assert len(str(caught.value).splitlines()) == 2


def test_branches_that_return_one_new_object_and_two():
    def one(m):
        new = Dict(x=Param(m.w.value))
        return new, new

    def two(m):
        return one(m)[0], one(m)[0]

    with pytest.raises(
        ValueError, match=r"returned/1: sharing shared with returned/0 -> not shared$"
    ):
        cond(True, one, two, Model())


def test_branches_that_put_a_new_object_in_places_that_look_alike():
    def renew(m):
        m.a = Dict(kind=1)

    def shift(m):
        m.a, m.b = m.b, Dict(kind=1)

    m = Dict(a=Dict(kind=1), b=Dict(kind=1))
    with pytest.raises(ValueError) as caught:
        cond(True, renew, shift, m)
    line = "operands/0/a: holds a new object -> what stood at operands/0/b"
    assert line in str(caught.value)


def test_an_object_within_an_operand_is_told_by_its_path_from_the_operands():
    def grow(parts):
        parts["m"].b.value = jnp.ones(9)

    with pytest.raises(TypeError, match="  operands/0/m/b: "):
        cond(True, grow, lambda parts: None, {"m": Model()})


def test_swapped_objects_are_told():
    m = Model()
    m.c, m.d = Param(jnp.ones(1)), Param(jnp.ones(1))

    def swap(m):
        m.c, m.d = m.d, m.c

    with pytest.raises(ValueError, match=r"operands/0/c: holds what stood at .*/d ->"):
        cond(True, swap, lambda m: None, m)


def test_different_returned_objects():
    m = Model()
    with pytest.raises(ValueError, match="returned: sharing shared with operands/0/b"):
        cond(True, lambda m: m.b, lambda m: m.w, m)
    with pytest.raises(ValueError, match="returned"):
        cond(True, lambda m: m.b, lambda m: Param(m.b.value), m)
    with pytest.raises(ValueError, match="returned"):
        cond(True, lambda x: Param(x), lambda x: x, 1.0)


def test_an_error_in_a_branch_changes_nothing():
    m = Model()
    before = snapshot(m)

    def bad(m, x):
        write_b(m, x)
        m.extra = Param(x)
        raise KeyError("no")

    with pytest.raises(KeyError):
        cond(True, write_b, bad, m, 1.0)
    with pytest.raises(KeyError):
        switch(0, [bad, write_b], m, 1.0)
    with pytest.raises(TypeError):
        cond(jnp.ones(2), write_b, write_b, m, 1.0)
    assert_unchanged(before, m)


CALLS = [
    lambda f, x: cond(True, f, f, x),
    lambda f, x: switch(0, [f, f], x),
    lambda f, x: fori_loop(0, 1, f, x),
    lambda f, x: while_loop(lambda y: y[0] < 1.5, f, x),
    lambda f, x: scan(f, in_axes=0, out_axes=0)(x),
]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("bound", [False, True])
def test_objects_captured_by_a_branch_or_a_body_are_read_anew(call, bound):
    class Scale(Dict):
        def times(self, *args):
            return args[-1] * self.w.value

    scale = Scale(w=Param(jnp.array(2.0)))

    def f(*args):
        return scale.times(*args)

    f = scale.times if bound else f
    x = jnp.ones(2)
    for w in (2.0, 3.0, 5.0):
        scale.w.value = jnp.array(w)
        # From inside of another transformation the object is not the method's own.
        for result in (call(f, x), jax.vmap(lambda x: call(f, x))(x[None])[0]):
            np.testing.assert_array_equal(result, [w, w])


@pytest.mark.parametrize("number", [3, 0.5, True])
def test_numbers_that_a_loop_hands_through(number):
    m = Model()
    _, out = fori_loop(0, 2, lambda i, c: (bump(c[0]), c[1]), (m, number))
    assert (out, int(m.count.value)) == (number, 2)
    _, out = while_loop(
        lambda c: c[0].count.value < 5, lambda c: (bump(c[0]), c[1]), (m, number)
    )
    assert (out, int(m.count.value)) == (number, 5)
    m.count.value = number
    fori_loop(0, 2, lambda i, m: m, m)
    assert m.count.value == number


def bump(m):
    m.bump(1.0)
    return m


scale_of_this_file = Dict(w=Param(jnp.array(2.0)))


def scaled_by_a_global(*args):
    return args[-1] * scale_of_this_file.w.value


@pytest.mark.parametrize("transform", [remat, lambda f: remat(remat(f))])
@pytest.mark.parametrize("call", CALLS)
def test_global_objects_of_a_transformed_branch_or_body_are_read_anew(call, transform):
    f = transform(scaled_by_a_global)
    for w in (2.0, 3.0, 5.0):
        scale_of_this_file.w.value = jnp.array(w)
        np.testing.assert_array_equal(call(f, jnp.ones(2)), [w, w])


def test_objects_captured_by_a_branch_may_be_read_only():
    m = Model()
    out = cond(True, lambda x: x * m.w.value, lambda x: x + m.w.value, jnp.ones(3))
    assert out.tolist() == [0.0, 1.0, 2.0]
    with pytest.raises(TraceContextError):
        cond(True, lambda: setattr(m.b, "value", m.w.value), lambda: None)


# Loops


def test_while_loop_returns_the_callers_objects():
    m = Model()
    w = m.w.value

    def body(carry):
        m, i = carry
        m.count.value = m.count.value + i
        m.sub.x.value = m.sub.x.value * 2
        return m, i + 1

    out, i = while_loop(lambda c: c[1] < 4, body, (m, jnp.array(0)))
    assert (out is m, m.w.value is w, int(i), int(m.count.value)) == (True, True, 4, 6)
    assert m.sub.x.value.tolist() == [16.0, 16.0]


def test_an_object_that_a_function_of_a_loop_is_bound_to_is_named_self():
    class Counter(Module):
        def __init__(self):
            self.n = Variable(jnp.array(0))

        def grow(self, carry):
            self.n.value = jnp.zeros(3)
            return carry + 1

        def ask(self, carry):
            self.n.value = self.n.value + 1
            return carry < 3

    with pytest.raises(TypeError, match=r"self/n: int32\[\] -> float32\[3\]"):
        while_loop(lambda carry: carry < 3, Counter().grow, 0)
    with pytest.raises(ValueError, match=r"may only read.*\n  self/n"):
        while_loop(Counter().ask, lambda carry: carry + 1, 0)


def test_loops_of_bound_methods():
    m = Model()
    x = fori_loop(0, 3, lambda i, x: x + 1, jnp.zeros(3))
    assert x.tolist() == [3.0] * 3

    class Loop(Module):
        def __init__(self):
            self.n = Variable(jnp.array(0))

        def step(self, m):
            self.n.value = self.n.value + 1
            return write_count(m, 0)

        def goes_on(self, m):
            return self.n.value < 5

    loop = Loop()
    assert while_loop(loop.goes_on, loop.step, m) is m
    assert (int(loop.n.value), int(m.count.value)) == (5, 5)


@pytest.mark.parametrize("bounds", [(0, 4), (jnp.array(0), jnp.array(4)), (3, 3)])
def test_fori_loop_draws_keys(bounds):
    rngs, out = Rngs(0), jnp.zeros(4)
    by_hand = Rngs(0)
    expected = [float(jax.random.uniform(by_hand())) for _ in range(*map(int, bounds))]

    def body(i, carry):
        rngs, out = carry
        return rngs, out.at[i].set(jax.random.uniform(rngs()))

    found, out = fori_loop(*bounds, body, (rngs, out))
    assert found is rngs
    np.testing.assert_allclose(out[: len(expected)], expected)
    assert int(rngs.default.count.value) == len(expected)


def test_a_weak_value_may_become_another_dtype_as_in_jax():
    v = Variable(0)

    def add(i, v):
        v.value = v.value + 1.5 * i
        return v

    assert float(fori_loop(0, 3, add, v).value) == 4.5
    by_jax = jax.lax.fori_loop(0, 3, lambda i, x: x + 1.5 * i, 0)
    assert v.value.dtype == by_jax.dtype


def test_a_dtype_that_only_the_first_value_needs_is_published():
    def widen(i, v):
        v.value = jnp.asarray(v.value, jnp.float32)  # by JAX, no change afterwards
        return v

    v = fori_loop(0, 3, widen, Variable(2))
    by_jax = jax.lax.fori_loop(0, 3, lambda i, x: jnp.asarray(x, jnp.float32), 2)
    assert float(v.value) == float(by_jax) == 2.0
    assert v.value.dtype == by_jax.dtype == jnp.float32


@pytest.mark.parametrize("start", [0.5, jnp.asarray(0.5)])
@pytest.mark.parametrize("loop", ["while_loop", "fori_loop", "nested"])
def test_a_weak_value_becomes_strong_in_one_trace_as_in_jax(loop, start):
    traces = []

    def widen(v):
        traces.append(v)
        v.value = jnp.asarray(v.value, jnp.float32)
        return v

    def repeat(v):
        if loop == "fori_loop":
            return fori_loop(0, 3, lambda i, v: widen(v), v)
        count = Variable(jnp.array(0))

        def step(carry):
            v, count = carry
            count.value += 1
            return (repeat_inside if loop == "nested" else widen)(v), count

        return while_loop(lambda carry: carry[1].value < 3, step, (v, count))[0]

    def repeat_inside(v):
        return fori_loop(0, 2, lambda i, v: widen(v), v)

    v = repeat(Variable(start))
    assert len(traces) == 1
    assert v.value.dtype == jnp.float32
    assert not v.value.weak_type


@pytest.mark.parametrize(
    ("change", "error", "line"),
    [
        (lambda m: setattr(m, "new", Param(m.w.value)), ValueError, "carry/0/new"),
        (lambda m: setattr(m, "tied", m.b), ValueError, "carry/0/tied: sharing"),
        (lambda m: delattr(m.sub, "x"), ValueError, "carry/0/sub/x"),
        (lambda m: setattr(m, "rate", 1), ValueError, "carry/0/rate: static 0.5 -> 1"),
        (
            lambda m: setattr(m.b, "value", m.b.value[:2]),
            TypeError,
            "carry/0/b: float32[3] -> float32[2]",
        ),
        (
            lambda m: setattr(m.b, "value", m.b.value.astype(int)),
            TypeError,
            "carry/0/b: float32[3] -> int32[3]",
        ),
    ],
)
@pytest.mark.parametrize("name", ["while_loop", "fori_loop"])
def test_iterations_that_change_more_than_values(change, error, line, name):
    m = Model()
    before = snapshot(m)

    def body(carry):
        change(carry[0])
        return carry[0], carry[1] + 1

    def run():
        if name == "while_loop":
            return while_loop(lambda c: c[1] < 3, body, (m, 0))
        return fori_loop(0, 3, lambda i, c: body(c), (m, 0))

    with pytest.raises(error) as caught:
        run()
    assert line in str(caught.value)
    assert name in str(caught.value)
    assert_unchanged(before, m)


def test_carries_must_come_back_in_their_places():
    a, b = Param(jnp.ones(1)), Param(jnp.ones(1))
    match = r"Carry references must be the same between iterations"
    for out in [
        lambda c: (c[1], c[0]),
        lambda c: (c[0], c[0]),
        lambda c: (c[0], Param(jnp.ones(1))),
        lambda c: (c[0], c[1].value),
    ]:
        with pytest.raises(ValueError, match=match) as caught:
            fori_loop(0, 2, lambda i, c: out(c), (a, b))
        assert "at 'carry/" in str(caught.value)

    def swap(i, c):
        c.a, c.b = c.b, c.a
        return c

    with pytest.raises(ValueError, match=r"carry/a: holds what stood at carry/a ->"):
        fori_loop(0, 2, swap, Dict(a=a, b=b))


def test_a_condition_may_not_write():
    m = Model()
    before = snapshot(m)

    def writes(m):
        m.sub.x.value = m.sub.x.value + 1
        return False

    with pytest.raises(ValueError, match=r"may only read.*\n.*carry/sub/x"):
        while_loop(writes, lambda m: m, m)
    with pytest.raises(ValueError, match=r"may only read.*\n.*carry/rate"):
        while_loop(lambda m: setattr(m, "rate", 1) or True, lambda m: m, m)
    assert_unchanged(before, m)


def test_an_error_in_a_body_changes_nothing():
    m = Model()
    before = snapshot(m)

    def bad(i, m):
        write_b(m, 1.0)
        m.extra = i
        raise KeyError("no")

    with pytest.raises(KeyError):
        fori_loop(0, 3, bad, m)
    with pytest.raises(KeyError):
        while_loop(lambda m: True, lambda m: bad(0, m), m)
    with pytest.raises(TypeError):
        while_loop(lambda m: m.w.value, lambda m: m, m)
    assert_unchanged(before, m)


def test_the_loop_is_that_written_by_hand():
    m = Model()
    graphdef, state = gc.split(m)

    def ours(state):
        inner = gc.merge(graphdef, state)
        fori_loop(0, 3, lambda i, m: write_b(m, m.w.value), inner)
        return inner.b.value

    def by_hand(state):
        inner = gc.merge(graphdef, state)
        w = inner.w.value
        return jax.lax.fori_loop(0, 3, lambda i, b: b + w, inner.b.value)

    def loop(f):
        (eqn,) = jax.make_jaxpr(f)(state).jaxpr.eqns
        body = eqn.params["jaxpr"].jaxpr
        names = [e.primitive.name for e in body.eqns]
        return eqn.primitive.name, names, [str(v.aval) for v in body.outvars]

    assert loop(ours) == loop(by_hand)


# All of them


def test_under_other_transformations():
    def loss(w, pred):
        m = Model()
        m.w.value = w
        cond(pred, lambda m: m(m.w.value), lambda m: m.bump(1.0), m)
        fori_loop(0, 2, lambda i, m: write_b(m, m.w.value), m)
        return jnp.sum(m.b.value**2) + m.count.value

    def by_hand(w, pred):
        b = jnp.where(pred, w, 0) + 2 * w
        return jnp.sum(b**2) + jnp.where(pred, 0, 1)

    w, preds = jnp.arange(1.0, 4.0), jnp.array([True, False])
    for transform, pred in [
        (jax.jit, True),
        (jax.grad, False),
        (lambda f: jax.jit(jax.grad(f)), True),
        (lambda f: jax.vmap(f, (None, 0)), preds),
        (lambda f: jax.vmap(jax.grad(f), (None, 0)), preds),
        (lambda f: jax.linearize(f, w, True)[1] and jax.jit(f), False),
    ]:
        expected = transform(by_hand)(w, pred)
        np.testing.assert_allclose(transform(loss)(w, pred), expected)


def test_nested():
    m = Model()

    def body(i, m):
        def both(m):
            return switch(i, [lambda m: m, lambda m: write_b(m, 1.0)], m)

        cond(i % 2 == 0, both, lambda m: write_count(m, 0), m)
        return m

    fori_loop(0, 5, body, m)
    assert (m.b.value.tolist(), int(m.count.value)) == ([2.0] * 3, 2)


def test_without_tracing():
    m = Model()
    with jax.disable_jit():
        assert cond(True, write_b, write_count, m, 1.0) is m
        assert while_loop(lambda m: m.count.value < 3, lambda m: write_count(m, 0), m)
        assert while_loop(lambda m: False, lambda m: m, m) is m
    assert (m.b.value.tolist(), int(m.count.value)) == ([1.0] * 3, 3)


def test_no_tracer_leaks_and_everything_is_collected():
    m = Model()
    with jax.checking_leaks():
        cond(True, write_b, write_count, m, 1.0)
        fori_loop(0, 2, lambda i, m: write_b(m, i), m)
        while_loop(lambda m: m.count.value < 2, lambda m: write_count(m, 0), m)
    for leaf in jax.tree.leaves(gc.state(m)):
        assert not isinstance(leaf, jax.core.Tracer)
    reference = weakref.ref(m)
    del m, leaf
    garbage.collect()
    assert reference() is None


def test_values_that_jax_does_not_accept():
    m = Model()
    m.sub.name = Variable("text")
    match = r"'operands/0/sub/name' holds a value of type str"
    with pytest.raises(TypeError, match=match):
        cond(True, lambda m: None, lambda m: None, m)
    with pytest.raises(TypeError, match=r"'carry/sub/name' holds"):
        fori_loop(0, 2, lambda i, m: m, m)
    del m.sub.name

    def make(m):
        m.sub.name = Variable("text")

    match = r"'operands/0/sub/name' was given a value of type str inside 'make'"
    with pytest.raises(TypeError, match=match):
        switch(0, [make, make], m)
    assert not hasattr(m.sub, "name")


# The same as JAX, where there are no objects


@st.composite
def programs(draw):
    """A pytree of arrays, and functions from such a pytree to such a pytree."""
    shapes = draw(st.lists(st.sampled_from([(), (2,), (2, 3)]), min_size=1, max_size=3))
    dtypes = [draw(st.sampled_from([jnp.float32, jnp.int32])) for _ in shapes]
    leaves = [
        jnp.ones(s, d) * i for i, (s, d) in enumerate(zip(shapes, dtypes, strict=True))
    ]
    wrap = draw(
        st.sampled_from(
            [list, tuple, lambda xs: {f"k{i}": x for i, x in enumerate(xs)}]
        )
    )
    nested = draw(st.booleans())
    tree = {"a": wrap(leaves), "b": None} if nested else wrap(leaves)
    operations = st.sampled_from(
        [
            lambda x: x,
            lambda x: x + 1,
            lambda x: x * 2,
            lambda x: x.astype(jnp.float32),  # may not agree
            lambda x: x[None],  # never agrees
        ]
    )

    def function():
        chosen = [draw(operations) for _ in leaves]

        def f(tree):
            found, structure = jax.tree.flatten(tree)
            changed = [op(x) for op, x in zip(chosen, found, strict=True)]
            return jax.tree.unflatten(structure, changed)

        return f

    return tree, [function() for _ in range(draw(st.integers(1, 3)))]


def outcome_of(f):
    try:
        out = f()
    except Exception as error:
        return type(error)
    return jax.tree.map(lambda x: (np.asarray(x).tolist(), str(x.dtype)), out)


@settings(max_examples=30, deadline=None)
@given(programs(), st.integers(0, 3))
def test_plain_pytrees_go_as_in_jax(program, n):
    tree, functions = program
    f, g = functions[0], functions[-1]
    for ours, theirs in [
        (lambda: cond(n > 1, f, g, tree), lambda: jax.lax.cond(n > 1, f, g, tree)),
        (
            lambda: switch(n, functions, tree),
            lambda: jax.lax.switch(n, functions, tree),
        ),
        (
            lambda: fori_loop(0, n, lambda i, x: f(x), tree),
            lambda: jax.lax.fori_loop(0, n, lambda i, x: f(x), tree),
        ),
        (
            lambda: while_loop(
                lambda c: c[1] < n, lambda c: (g(c[0]), c[1] + 1), (tree, 0)
            ),
            lambda: jax.lax.while_loop(
                lambda c: c[1] < n, lambda c: (g(c[0]), c[1] + 1), (tree, 0)
            ),
        ),
    ]:
        assert outcome_of(ours) == outcome_of(theirs)


@pytest.mark.parametrize(
    "arguments",
    [
        (None, lambda x: x, lambda x: x, 1.0),
        (jnp.ones(2), lambda x: x, lambda x: x, 1.0),
        (True, 1, 2, 3.0),
        (True, abs, 2.0, 3.0),
        (True, 1.0, abs, 2.0, 3.0),
        (True, 1.0, 2.0, 3.0, abs),
        (True, 1.0, abs, 2.0, abs, 3.0),
        (True, lambda x: x, lambda x: x),
        (True, lambda x: x, lambda x: x.astype(int), jnp.ones(2)),
        (True, lambda x: "a", lambda x: "a", 1.0),
        (True, abs, abs, "a"),
        (True, lambda x: x, lambda x: (x, x), 1.0),
    ],
)
def test_errors_of_cond_are_those_of_jax(arguments):
    with pytest.raises(Exception) as theirs:
        jax.lax.cond(*arguments)
    with pytest.raises(type(theirs.value)) as ours:
        cond(*arguments)
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize(
    ("ours", "theirs", "arguments"),
    [
        (switch, jax.lax.switch, (0, [])),
        (switch, jax.lax.switch, (0.5, [abs, abs], 1.0)),
        (switch, jax.lax.switch, (0, [abs, 1], 1.0)),
        (switch, jax.lax.switch, (0, [1], 1.0)),
        (switch, jax.lax.switch, (0, 1, 1.0)),
        (while_loop, jax.lax.while_loop, (1, 2, 3)),
        (while_loop, jax.lax.while_loop, (lambda x: x, lambda x: x, jnp.ones(2))),
        (fori_loop, jax.lax.fori_loop, (0, 1, 2, 3)),
        (fori_loop, jax.lax.fori_loop, (0, 1.0, lambda i, x: x, 3)),
    ],
)
def test_errors_are_those_of_jax(ours, theirs, arguments):
    with pytest.raises(Exception) as expected:
        theirs(*arguments)
    with pytest.raises(type(expected.value)) as found:
        ours(*arguments)
    assert str(found.value) == str(expected.value)


# The same as an explicit rewrite, on random objects


@st.composite
def objects(draw):
    """A graph of dicts and lists that share variables, with a cycle at times."""
    count = draw(st.integers(1, 4))
    variables = [
        draw(st.sampled_from([Param, Variable]))(jnp.full((2,), float(i)))
        for i in range(count)
    ]
    picks = st.lists(st.sampled_from(variables), min_size=1, max_size=3)
    nodes = []
    for _ in range(draw(st.integers(1, 3))):
        children = [
            *draw(picks),
            *draw(st.lists(st.sampled_from(nodes or [0]), max_size=2)),
        ]
        if draw(st.booleans()):
            node = Dict({f"c{k}": c for k, c in enumerate(children)})
        else:
            node = List(children)
        nodes.append(node)
    root = Dict({f"n{i}": n for i, n in enumerate(nodes)})
    if draw(st.booleans()):
        root.back = Dict(root=root)
    return root


def variables_of(node):
    return [v for _, v in gc.iter_graph(node) if isinstance(v, Variable)]


writes = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 3), st.sampled_from("+*=")), max_size=4
)


def run_writes(program, node, x):
    variables = variables_of(node)
    for target, source, operation in program:
        to, of = (variables[i % len(variables)] for i in (target, source))
        if operation == "+":
            to.value = to.value + of.value + x
        elif operation == "*":
            to.value = to.value * 0.5
        else:
            to.value = of.value


def run_structure(program, node):
    """The same in all branches."""
    for operation in program:
        if operation == "add":
            node["new"] = Param(variables_of(node)[0].value + 1)
        elif operation == "alias":
            node["alias"] = node["n0"]
        elif operation == "drop" and "n1" in node:
            del node["n1"]
        elif operation == "flag":
            node["flag"] = True


structures = st.lists(st.sampled_from(["add", "alias", "drop", "flag"]), max_size=3)


@settings(max_examples=40, deadline=None)
@given(
    objects(), st.lists(writes, min_size=1, max_size=3), structures, st.integers(0, 2)
)
def test_branches_as_rewritten_by_hand(node, programs, structure, index):
    copy = gc.clone(node)
    before = {id(v): v.value for v in variables_of(node)}
    old = variables_of(node)

    def live(program):
        def f(node, x):
            run_writes(program, node, x)
            run_structure(structure, node)
            return node, variables_of(node)[-1]

        return f

    def pure(program):
        def f(state, x):
            inner = gc.merge(graphdef, state)
            run_writes(program, inner, x)
            run_structure(structure, inner)
            definition, state = gc.split(inner)
            definitions.append(definition)
            return state

        return f

    graphdef, state = gc.split(copy)
    definitions = []
    x = jnp.array(3.0)
    found, last = switch(index, [live(p) for p in programs], node, x)
    expected = jax.lax.switch(index, [pure(p) for p in programs], state, x)
    assert found is node
    assert last is variables_of(node)[-1]
    assert gc.graphdef(node) == definitions[-1]
    jax.tree.map(np.testing.assert_array_equal, gc.state(node), expected)
    touched = {t % len(old) for p in programs for t, _, _ in p}
    for i, variable in enumerate(old):
        assert i in touched or variable.value is before[id(variable)]


@settings(max_examples=40, deadline=None)
@given(objects(), writes, st.integers(0, 3))
def test_loops_as_rewritten_by_hand(node, program, n):
    graphdef, state = gc.split(gc.clone(node))

    def live(i, carry):
        run_writes(program, carry[1], i)
        return carry

    def pure(i, state):
        inner = gc.merge(graphdef, state)
        run_writes(program, inner, i)
        return gc.state(inner)

    expected = jax.lax.fori_loop(0, n, pure, state)
    first = node["n0"]
    again = gc.clone(node)
    out = fori_loop(0, n, live, (first, node))
    assert out[0] is first
    assert out[1] is node
    counted = while_loop(
        lambda c: c[0] < n, lambda c: (c[0] + 1, live(c[0], c[1])), (0, (again,) * 2)
    )
    assert counted[1][1] is again
    for x in (node, again):
        assert gc.graphdef(x) == graphdef
        jax.tree.map(np.testing.assert_allclose, gc.state(x), expected)


@pytest.mark.devices(2)
def test_loops_and_branches_name_what_changes_its_sharding():
    kinds = (jax.sharding.AxisType.Explicit,)
    mesh = jax.make_mesh((2,), ("x",), axis_types=kinds, devices=jax.devices()[:2])
    spread = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))

    def add(n):
        n.total.value = n.total.value + step
        return n

    with jax.set_mesh(mesh):
        n = Dict(total=Variable(jnp.zeros(4)))
        step = jax.device_put(jnp.ones(4), spread)
        for path, call in [
            ("carry", lambda: fori_loop(0, 3, lambda i, n: add(n), n)),
            ("carry", lambda: while_loop(lambda n: n.total[0] < 3, add, n)),
            ("operands/0", lambda: cond(True, lambda n: n, add, n)),
            ("0", lambda: scan(lambda n, x: (add(n), x))(n, jnp.arange(3))),
        ]:
            message = rf"{path}/total: float32\[4\] -> float32\[4@x\] .*reshard"
            with pytest.raises((TypeError, ValueError), match=message):
                call()
        n.total.value = jax.sharding.reshard(n.total.value, spread)
        assert fori_loop(0, 3, lambda i, n: add(n), n).total.value.tolist() == [3] * 4


class Block(Module):
    def __init__(self):
        self.w = Param(jnp.ones(4))

    @functools.cached_property
    def heads(self):
        return self.w.value.shape[0] // 2

    @functools.cached_property
    def doubled(self):
        return 2 * self.w.value

    @functools.cached_property
    def seen(self):
        return Variable(jnp.array(0))

    def split(self, x):
        return x.reshape(self.heads, -1).sum() * x


LOOPS = [
    lambda f, m, x: cond(x[0] > 0, f, lambda m, x: x, m, x),
    lambda f, m, x: switch(1, [lambda m, x: x, f], m, x),
    lambda f, m, x: fori_loop(0, 1, lambda i, c: (c[0], f(*c)), (m, x))[1],
    lambda f, m, x: while_loop(lambda c: c[1][0] < 2, lambda c: (c[0], f(*c)), (m, x))[
        1
    ],
    lambda f, m, x: scan(lambda c, _: ((c[0], f(*c)), 0), length=1)((m, x), None)[0][1],
    lambda f, m, x: scan(lambda x, m: (f(m, x), 0), in_axes=(Carry, None), length=1)(
        x, m
    )[0],
]


@pytest.mark.parametrize("loop", LOOPS)
def test_a_cached_property_may_be_asked_for_inside(loop):
    model, x = Block(), jnp.arange(1.0, 5.0)
    assert loop(Block.split, model, x).tolist() == model.split(x).tolist()
    known = Block()
    assert known.heads == 2
    assert loop(Block.split, known, x).tolist() == known.split(x).tolist()
    assert known.heads == 2


@pytest.mark.parametrize("loop", LOOPS)
def test_a_cached_property_that_depends_on_arrays_is_asked_for_before(loop):
    model, x = Block(), jnp.ones(4)
    with pytest.raises(
        ValueError, match=r"'?(operands/|carry/)?[01]/(0/)?doubled"
    ) as caught:
        loop(lambda m, x: m.doubled * x, model, x)
    assert "before" in str(caught.value)
    assert "BareArray" not in str(caught.value)
    assert "doubled" not in vars(model)
    expected = model.doubled * x
    assert loop(lambda m, x: m.doubled * x, model, x).tolist() == expected.tolist()


@pytest.mark.parametrize("loop", LOOPS)
def test_a_cached_property_that_makes_an_object_is_asked_for_before(loop):
    def count(m, x):
        m.seen.value += 1
        return x * m.seen.value

    model, x = Block(), jnp.ones(4)
    with pytest.raises(ValueError, match=r"seen") as caught:
        loop(count, model, x)
    assert "before" in str(caught.value)
    assert "seen" not in vars(model)
    assert int(model.seen.value) == 0
    loop(count, model, x)
    assert int(model.seen.value) > 0
