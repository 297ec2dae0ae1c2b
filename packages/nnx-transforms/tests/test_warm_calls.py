"""Calls of a jitted function that are like the one before, or only seem to be."""

import copy
import dataclasses
import pathlib
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from frames import frames_of
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jax.sharding import SingleDeviceSharding

import graphcore as gc
import nnx_transforms as nnx


def model():
    return nnx.Dict(w=nnx.Param(jnp.arange(2.0)), count=nnx.Variable(jnp.array(0)))


def total(x):
    if isinstance(x, nnx.Dict):
        x.count.value += 1
        return jnp.sum(x.w.value)
    if isinstance(x, gc.Variable):
        x.value += 1
        return jnp.sum(x.value)
    if isinstance(x, list):
        return sum(map(total, x))
    return jnp.sum(jnp.asarray(x))


def totals(*args, last=()):
    out = 0.0
    for number, x in enumerate((*args, *last), 1):
        out += number * total(x)
    return out


# Kinds of arguments: many of them have the types of another one.
KINDS = {
    "first": lambda known: known[0],
    "second": lambda known: known[1],
    "deeper": lambda known: known[2],
    "variable": lambda known: known[0].count,
    "array": lambda known: jnp.ones(2),
    "numpy": lambda known: np.ones(2),
    "number": lambda known: 3,
    "arrays": lambda known: [jnp.ones(2), 2.0],
    "objects": lambda known: [known[1], known[0].w],
    "nothing": lambda known: [],
}


CALLS = st.tuples(*[st.lists(st.sampled_from(sorted(KINDS)), max_size=3)] * 2)


HERE = SingleDeviceSharding(jax.devices()[0])
OPTIONS = {
    "nothing": {},
    "donated state": {"donate_state": True},
    "donated argument": {"donate_argnums": 0},
    "placed arguments": {"in_shardings": HERE},
    "placed output": {"out_shardings": HERE},
}
with_options = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
IN_ANY_ORDER = "nothing", "donated state", "placed output"  # and named arguments


@example("nothing", [(["first", "arrays"], [])] * 2 + [(["first", "objects"], [])])
@example("nothing", [(["first"], ["array"])] * 2 + [(["first"], ["second"])])
@example("nothing", [(["objects"], ["array"])] * 2 + [(["arrays"], ["array"])])
@example("donated state", [(["first", "second"], [])] * 2 + [(["first"] * 2, [])])
@settings(deadline=None, max_examples=60)
@given(st.sampled_from(IN_ANY_ORDER), st.lists(CALLS, max_size=8))
def test_calls_in_any_order_do_what_the_function_does(option, calls):
    def objects():
        first, second, deeper = model(), model(), model()
        deeper.more = first
        return first, second, deeper

    jitted = nnx.jit(lambda *a, **k: totals(*a, **k), **OPTIONS[option])
    known, due = objects(), objects()
    for kinds, last in calls:

        def call(f, objects, kinds=kinds, last=last):
            given = [[KINDS[kind](objects) for kind in each] for each in (kinds, last)]
            return f(*given[0], last=given[1]) if last else f(*given[0])

        assert float(call(jitted, known)) == float(call(totals, due))
        for x, y in zip(known, due, strict=True):
            assert x.w.value.tolist() == y.w.value.tolist()
            assert int(x.count.value) == int(y.count.value)


def test_an_object_of_another_trace_is_refused_however_often_it_was_passed():
    m, others, jitted = model(), [model(), model()], nnx.jit(totals)
    for objects in ([m], others):
        for _ in range(3):
            jitted(*objects)
        with pytest.raises(gc.TraceContextError):
            jax.vmap(lambda x, objects=objects: jitted(*objects) + x)(jnp.ones(2))
        for _ in range(2):
            jitted(*objects)
    assert int(m.count.value) == 5


@with_options
def test_an_edit_that_no_object_is_told_of(options):
    m, jitted = model(), nnx.jit(lambda m: jnp.sum(m.w.value), **options)
    for _ in range(2):
        assert float(jitted(m)) == 1.0
    vars(m)["w"] = nnx.Param(jnp.ones(2))
    assert float(jitted(m)) == 2.0


def test_an_object_that_stands_elsewhere_in_an_equal_argument():
    @nnx.jit
    def where(first, second):
        return jnp.array([isinstance(x, nnx.Dict) for x in (*first, *second)])

    m, x = model(), jnp.ones(2)
    for _ in range(2):
        assert where([m, x], [x, x]).tolist() == [True, False, False, False]
    for _ in range(2):
        assert where([x, m], [x, x]).tolist() == [False, True, False, False]
    assert where([x, x], [m, x]).tolist() == [False, False, True, False]
    assert where([m, x], [x, x]).tolist() == [True, False, False, False]


@with_options
def test_two_objects_that_come_to_share_a_variable(options):
    a, b = (
        nnx.Dict(n=nnx.Variable(jnp.array(0))),
        nnx.Dict(n=nnx.Variable(jnp.array(0))),
    )

    @nnx.jit(**options)
    def count(a, b):
        a.n.value += 1
        b.n.value += 10

    for _ in range(2):
        count(a, b)
    b.n = a.n
    count(a, b)
    assert a.n is b.n
    assert int(a.n.value) == 13


@with_options
def test_two_variables_that_come_to_hold_one_array(options):
    m = nnx.Dict(a=nnx.Variable(jnp.zeros(2)), b=nnx.Variable(jnp.ones(2)))

    @nnx.jit(**options)
    def add(m):
        m.a.value += 1
        m.b.value *= 2

    for _ in range(3):
        add(m)
    m.b.value = m.a.value
    for _ in range(2):
        add(m)
    assert m.a.value.tolist() == [5.0, 5.0]
    assert m.b.value.tolist() == [12.0, 12.0]


def test_calls_of_what_was_compiled_ahead_of_time():
    @nnx.jit(static_argnames="by")
    def count(m, x, by):
        m.count.value += by
        return m.w.value * x

    m, other = model(), model()
    compiled = count.lower(m, 2.0, by=3).compile()
    for x in (m, m, other, m):
        assert compiled(x, 2.0).tolist() == [0.0, 2.0]
    assert "enter" not in [name for _, name in frames_of(compiled, m, 2.0)]
    assert (int(m.count.value), int(other.count.value)) == (12, 3)
    m.w.value = jnp.ones(2)
    assert compiled(m, 2.0).tolist() == [2.0, 2.0]
    for x in (jnp.ones(1), jnp.ones(2)):
        count(m, x, 3)
    compiled(m, 2.0)  # and tells nothing of what the jitted function was compiled for
    ((path, *_),) = nnx.explain_recompile(count)
    m.more = nnx.Variable(1.0)
    with pytest.raises(TypeError, match="another structure"):
        compiled(m, 2.0)
    assert [found for found, *_ in nnx.explain_recompile(count)] == [path] == ["args/1"]
    del m.more
    with pytest.raises(gc.TraceContextError):
        jax.vmap(lambda x: compiled(m, x))(jnp.ones(2))
    assert compiled(m, 2.0).tolist() == [2.0, 2.0]


@dataclasses.dataclass(frozen=True)
class Config:
    scale: float
    activation: object = jnp.tanh


class Pair(NamedTuple):
    first: object
    second: object


def anew(value):
    """An equal value that is another object."""
    if isinstance(value, Config):
        return dataclasses.replace(value)
    if isinstance(value, tuple | frozenset):
        parts = map(anew, value)
        return Pair(*parts) if isinstance(value, Pair) else type(value)(parts)
    is_made = isinstance(value, float | pathlib.PurePath)
    return type(value)(str(value)) if is_made else value


STATICS = [0, False, 0.0, -0.0, 1, True, "a", "b", None, (1,), (True,), abs]
STATICS += [Pair(0, 1.0), Pair(False, 1.0), Pair(0, (-0.0,)), Pair(0, (0.0,))]
STATICS += [Config(0.0), Config(-0.0), frozenset([1]), frozenset([True])]


@example([(0.0, False), (-0.0, False), (0, False), (False, False)])
@example([(1, True), (True, True), ((1,), False), ((True,), False)])
@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.sampled_from(STATICS), st.booleans()), max_size=8))
def test_static_arguments_in_any_order(calls):
    @nnx.jit(static_argnums=1, donate_argnums=3)
    def f(m, how, x, y=0.0):
        m.count.value += 1
        return STATICS_BY_NAME[repr(how)] * x + y

    m = model()
    for how, by_name in calls:
        for _ in range(2):
            how = anew(how)
            found = f(m, x=2.0, how=how) if by_name else f(m, how, 2.0, 0.5)
            due = STATICS_BY_NAME[repr(how)] * 2.0
            assert float(found) == (due if by_name else due + 0.5)
    assert int(m.count.value) == 2 * len(calls)


STATICS_BY_NAME = {repr(x): number for number, x in enumerate(STATICS)}


def test_arguments_by_keyword_have_the_shardings_of_their_positions():
    f, m = nnx.jit(lambda x, m: m.w.value * x, in_shardings=(None, HERE)), model()
    for _ in range(3):
        assert f(m=m, x=2.0).tolist() == [0.0, 2.0]


def test_shardings_by_a_filter_of_values_are_asked_at_each_call():
    asked = []

    def by_value(path, x):
        asked.append(path)
        return x.value.ndim > 0

    m = model()
    axes = nnx.StateSharding({by_value: HERE, ...: None})
    f = nnx.jit(lambda m: jnp.sum(m.w.value), in_shardings=(axes,))
    for _ in range(3):
        asked.clear()
        f(m)
    assert asked


NOT_ANEW = {"a static argument": {"static_argnums": 1}, **OPTIONS}


@pytest.mark.parametrize("options", NOT_ANEW.values(), ids=NOT_ANEW)
def test_a_call_does_not_look_at_its_arguments_anew(options):
    f, m = nnx.jit(lambda m, how=0: jnp.sum(m.w.value) + how, **options), model()
    args = (m, 3) if "static_argnums" in options else (m,)
    for _ in range(3):
        f(*args)
    names = [name for _, name in frames_of(f, *args)]
    assert "enter" not in names
    assert len(names) < 35


@pytest.mark.parametrize("is_anew", [False, True])
@pytest.mark.parametrize(
    "how",
    [
        *(2.5, Config(2.0), (1, "a"), Pair(1, ("a", 2.0)), frozenset([1, "a"])),
        *(jnp.tanh, jnp.float32, pathlib.PurePosixPath("a")),
    ],
)
def test_a_static_argument_that_never_changes_is_not_looked_into_again(how, is_anew):
    f = nnx.jit(lambda m, how: (jnp.sum(m.w.value), how)[0], static_argnums=1)
    m = model()
    for each in (copy.copy(how), how, how):
        f(m, each)
    how = anew(how) if is_anew else how
    assert "enter" not in [name for _, name in frames_of(f, m, how)]


def test_a_call_that_traces_again_may_write_nothing_else_of_the_callers():
    other = nnx.Variable(jnp.array(0.0))
    m = nnx.Dict(w=nnx.Param(jnp.ones(2)))

    class Hidden:
        def __init__(self, x):
            self.x = x

        __hash__ = object.__hash__

    m.hidden = Hidden(other)

    @nnx.jit
    def f(m, x):
        if x.ndim:
            m.hidden.x.value = x[0]
        return x * 2

    for _ in range(2):
        f(m, jnp.array(1.0))
    with pytest.raises(gc.TraceContextError):
        f(m, jnp.ones(2))
    assert other.value.tolist() == 0.0
    assert float(f(m, jnp.array(1.0))) == 2.0


def test_an_error_leaves_everything_as_it_was_and_names_the_variable():
    m = model()

    @nnx.jit
    def f(m, x):
        m.count.value += 1
        if x.ndim:
            raise RuntimeError("no vectors")
        return m.w.value + x

    for _ in range(2):
        f(m, jnp.array(1.0))
    with pytest.raises(RuntimeError, match="no vectors"):
        f(m, jnp.ones(2))
    assert int(m.count.value) == 2
    m.w.value.delete()
    with pytest.raises(RuntimeError) as caught:
        f(m, jnp.array(1.0))
    assert any("args/0/w" in note for note in caught.value.__notes__)
    assert int(m.count.value) == 2


@with_options
def test_a_value_that_becomes_a_pytree_with_a_function_in_it(options):
    m = nnx.Dict(v=nnx.Variable(jnp.array(2.0)))
    jitted = nnx.jit(lambda m: apply(m.v), **options)

    def apply(v):
        value = v.value
        if isinstance(value, dict):
            v.value = {**value, "x": value["f"](value["x"])}
        else:
            v.value = -value

    for _ in range(3):
        jitted(m)
    m.v.value = {"f": abs, "x": jnp.array(-3.0)}
    for _ in range(3):
        jitted(m)
        assert float(m.v.value["x"]) == 3.0
    m.v.value = jnp.array(1.0)
    jitted(m)
    assert float(m.v.value) == -1.0


@with_options
def test_what_a_function_returns_is_the_callers_own_object_each_time(options):
    m, jitted = model(), nnx.jit(lambda m, x: (m, m.w, x), **options)
    for _ in range(3):
        out, w, _ = jitted(m, 1.0)
        assert out is m
        assert w is m.w


# What a function may return of a model and a new variable: all of it is the caller's
# own, or new, and what is one object is one again.
RETURNED = {
    "model": lambda m, new: m,
    "variable": lambda m, new: m.inner.w,
    "inner": lambda m, new: m.inner,
    "new": lambda m, new: new,
    "around the new": lambda m, new: nnx.List([new, new]),
    "around a variable": lambda m, new: nnx.Dict(a=m.inner.w, b=new),
    "around a node": lambda m, new: nnx.List([m.inner, m.count]),
}


@settings(deadline=None, max_examples=40)
@given(st.lists(st.sampled_from(sorted(RETURNED)), min_size=1, max_size=4))
def test_returned_objects_are_those_that_the_function_returned(kinds):
    def f(m, x):
        m.count.value += 1
        new = nnx.Variable(x * 2)
        return [RETURNED[kind](m, new) for kind in kinds]

    def parts(m, out):
        whole, numbers = nnx.List([m, *out]), gc.RefMap()
        order = [numbers.setdefault(x, len(numbers)) for _, x in gc.iter_graph(whole)]
        paths = gc.state(whole).flat_state()
        return order, [(path, x.value.tolist()) for path, x in paths]

    jitted, found, due = nnx.jit(f), model(), model()
    found.inner, due.inner = model(), model()
    for _ in range(3):
        x = jnp.array(1.0)
        assert parts(found, jitted(found, x)) == parts(due, f(due, x))


def test_a_call_that_returns_new_objects_does_not_look_at_the_whole_model():
    @nnx.jit
    def f(m, x):
        m[0].value += x
        return nnx.Variable(x), nnx.Dict(x=nnx.Variable(x))

    counts = []
    for size in (5, 50):
        m = nnx.List([nnx.Variable(jnp.array(0.0)) for _ in range(size)])
        for _ in range(3):
            f(m, 1.0)
        counts.append(len(frames_of(f, m, 1.0)))
    assert counts[1] < counts[0] + 9


def test_a_keyword_of_a_type_of_its_own():
    class Name(str):
        pass

    m, f = model(), nnx.jit(lambda m, **given: given["x"][0] + m.w.value)
    for _ in range(3):
        assert f(m, **{Name("x"): [1.0]}).tolist() == [1.0, 2.0]


def test_a_type_declared_immutable_that_is_registered_later():
    class Late:
        def __init__(self, w):
            self.w = w

    gc.register_immutable_type(Late)
    m = nnx.Dict(late=Late(nnx.Param(jnp.ones(2))), count=nnx.Variable(jnp.array(0)))
    size = nnx.jit(lambda m: len(nnx.state(m)))
    assert [int(size(m)) for _ in range(2)] == [1, 1]
    gc.register_graph_node_type(
        Late,
        flatten=lambda late: ([("w", late.w)], None),
        set_key=setattr,
        pop_key=lambda late, key: vars(late).pop(key),
        create_empty=lambda metadata: Late(None),
        clear=lambda late: vars(late).clear(),
        init=lambda late, pairs: vars(late).update(pairs),
    )
    assert [int(size(m)) for _ in range(2)] == [2, 2]
