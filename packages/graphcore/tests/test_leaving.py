"""What functions leave of their objects, and how it reaches the caller's."""

import collections
import dataclasses
import types

import jax
import jax.numpy as jnp
import pytest

import graphcore as gc
from graphcore.authors import enter, lifted

ways = {"jit": jax.jit, "checkpoint": jax.checkpoint, "nothing": lambda body: body}


def run(f, *args, way="checkpoint"):
    entry = enter(f, args)
    return entry.commit(*ways[way](entry.body)(*entry.values))


@pytest.mark.parametrize("way", ways)
@pytest.mark.parametrize("make", [lambda x: gc.Param(x), lambda x: gc.Dict(x=x)])
def test_what_was_put_into_a_removed_object_can_be_returned(make, way):
    def f(m):
        new = m.inner.new = make(jnp.array(1.0))
        m.inner = gc.Dict()
        return {"new": new}

    m = gc.Dict(inner=gc.Dict(v=gc.Param(5.0)))
    inner = m.inner
    out = run(f, m, way=way)
    assert inner.new is out["new"]
    assert [*m.inner] == []


def reset(m):
    m.w.value = jnp.array(9.0)
    m.flag.value = jnp.array(False)
    m.scale = jnp.array(2.0)
    m.new = gc.Variable(jnp.array(3))
    m.count.value = 5


def small():
    return gc.Dict(
        w=gc.Param(jnp.ones(())),
        flag=gc.Variable(jnp.array(True)),
        count=gc.Variable(0),
    )


@pytest.mark.parametrize("way", ways)
def test_constants_arrive_as_arrays(way):
    m = small()
    for _ in range(2):
        run(reset, m, way=way)
        for x in (m.w.value, m.flag.value, m.scale, m.new.value):
            assert isinstance(x, jax.Array)
        assert (float(m.w.value), bool(m.flag.value), float(m.scale)) == (9, False, 2)
    assert set(gc.state(m)) == {"count", "flag", "new", "scale", "w"}
    # A number of Python stays one where nothing was traced.
    assert isinstance(m.count.value, int if way == "nothing" else jax.Array)


def test_constants_arrive_as_arrays_for_each_member_of_a_map():
    @lifted(reset)
    def inner(f, m):
        return run(f, m)

    def mapped(m):
        entry = enter(inner, (m,), settings=0, out_settings=0)
        body = jax.vmap(entry.body, entry.settings, entry.out_settings)
        return entry.commit(*body(*entry.values))

    m = gc.Dict(
        w=gc.Param(jnp.ones(3)),
        flag=gc.Variable(jnp.ones(3, bool)),
        count=gc.Variable(jnp.zeros(3, int)),
    )
    mapped(m)
    assert m.w.value.tolist() == [9.0] * 3
    assert m.scale.tolist() == [2.0] * 3


@dataclasses.dataclass(eq=False)
class Config:
    scale: object


@pytest.mark.parametrize(
    ("leave", "place"),
    [
        (lambda m: setattr(m.w, "unit", m.w.value), "metadata of the object at 'w'"),
        (
            lambda m: setattr(m, "new", gc.Param(1.0, units={"a": [m.w.value]})),
            "metadata of the object at 'new'",
        ),
        (lambda m: setattr(m, "config", Config(m.w.value)), "attribute at 'config'"),
        (
            lambda m: setattr(m, "all", [(Config([m.w.value]),)]),
            "static attribute at 'all/0/0'",
        ),
        (lambda m: gc.Dict(x=Config(m.w.value)), "static attribute at 'x'"),
        (
            lambda m: setattr(m, "names", types.SimpleNamespace(scale=m.w.value)),
            "static attribute at 'names'",
        ),
        (
            lambda m: setattr(m, "queue", [collections.deque([m.w.value])]),
            "static attribute at 'queue/0'",
        ),
    ],
)
@pytest.mark.parametrize("way", ["jit", "checkpoint"])
def test_traced_values_do_not_stay_in_what_is_static(leave, place, way):
    m = small()
    before = gc.graphdef(m)
    with pytest.raises(gc.TraceContextError, match=place):
        run(leave, m, way=way)
    assert gc.graphdef(m) == before
    run(leave, m, way="nothing")


def test_a_traced_value_that_was_static_before_may_stay():
    @jax.jit
    def outer(x):
        m = gc.Dict(w=gc.Param(x), config=Config(x))
        run(lambda m: setattr(m, "note", 1), m)
        return m.config.scale + m.note

    assert float(outer(1.0)) == 2.0


class Settings(collections.OrderedDict):
    """A static value, as frameworks keep what an object was made with."""


def test_an_object_that_was_made_in_a_trace_may_stay_in_what_is_static():
    def make(x):
        seed = gc.Param(x)
        settings = Settings(seed=seed, of=gc.Dict(seed=seed))
        return gc.Dict(w=gc.Param(2 * x), settings=settings)

    made = run(make, 1.0, way="jit")
    assert made.w.value == 2
    assert run(lambda m: m.w.value + 1, made, way="jit") == 3
    with pytest.raises(jax.errors.UnexpectedTracerError):
        made.settings["of"].seed.value + 1


@dataclasses.dataclass(frozen=True)
class Table:
    rows: object


CONSTANT, KEY = jnp.arange(2.0), jax.random.key(0)
STATIC = {
    "namespace": lambda x: types.SimpleNamespace(x=x),
    "dataclass": lambda x: Table([x]),
    "view": lambda x: types.MappingProxyType({"x": x}),
    "deque": lambda x: collections.deque([types.SimpleNamespace(x=x)]),
}


@pytest.mark.parametrize("way", ways)
@pytest.mark.parametrize("x", [CONSTANT, KEY], ids=["array", "key"])
@pytest.mark.parametrize("hold", STATIC.values(), ids=STATIC)
def test_arrays_in_what_is_static_stay_as_they_are(hold, x, way):
    held = hold(x)
    m = gc.Dict(w=gc.Param(jnp.ones(())), held=held)
    before = gc.graphdef(m)
    seen = []

    def read(m):
        seen.append(m.held)
        return m, m.w.value * 2

    def write(m):
        m.w.value += 1
        m.new = gc.Dict(held=m.held)

    for f in (read, write, read):
        run(f, m, way=way)
        assert m.held is held
        assert repr(m.held) == repr(hold(x))
    assert repr(m.new.held) == repr(held)
    del m.new
    assert gc.graphdef(m) == before
    assert not any(isinstance(y, jax.core.Tracer) for y in jax.tree.leaves(seen))


@pytest.mark.parametrize("way", ways)
def test_what_several_returned_objects_share_is_one_object(way):
    def f(m):
        new = gc.Dict(w=gc.Param(m.w.value + 1), words=["a"])
        m.flag.value = ~m.flag.value
        other = gc.Dict(new=new, w=new.w, old=m.w, x=jnp.ones(3))
        return [new.w, m.w, other, new, gc.Dict(m=m, last=gc.Param(m.count.value))]

    m = small()
    lists = []
    for _ in range(2):
        w, old, other, new, outer = run(f, m, way=way)
        assert w.value == 2 and other.w is w and new.w is w and other.new is new
        assert old is m.w and other.old is m.w and outer.m is m
        assert outer.last.value == 0 and other.x.shape == (3,)
        lists.append(new.words)
    assert m.flag.value and lists == [["a"], ["a"]]
    assert lists[0] is not lists[1]  # What may change in place is each call's own.
