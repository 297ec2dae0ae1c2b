"""Transformations of JAX that are lifted by hand."""

import dataclasses
import gc as garbage
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphcore as gc
import nnx_transforms as nnx
from graphcore.authors import enter
from nnx_transforms import Dict, Module, Param, Variable
from nnx_transforms.transforms.split_inputs import merge_inputs, split_inputs


class Model(Module):
    def __init__(self):
        self.w = Param(jnp.arange(3.0))
        self.tied = self.w
        self.count = Variable(jnp.array(0))


def jit(f):
    return split_inputs(jax.jit(merge_inputs(f)))


def test_values_structure_and_identity():
    m, other = Model(), Dict()
    traces = []

    @jit
    def f(m, x, other):
        traces.append(x)
        m.count.value = m.count.value + 1
        m.w.value = m.w.value * x
        other.model = m
        other.new = Variable(x)
        return {"same": other, "new": Dict(w=m.w)}, x * 2

    for calls in (1, 2, 3):
        out, x = f(m, 2.0, other=other)
        assert (float(x), int(m.count.value)) == (4.0, calls)
        assert m.w.value.tolist() == [0.0, 2.0**calls, 2 * 2.0**calls]
        assert out["same"] is other
        assert other.model is m
        assert out["new"].w is m.w
        assert m.tied is m.w
    assert len(traces) == 2  # the structure of `other` changed in the first call


def test_what_changes_inside_a_value_leaves_with_it():
    def write(v):
        v.value["list"][0] = v.value["list"][0] + 1
        v.value["new"] = v.value["list"][0] * 2

    for transformed in (jit(write), nnx.jit(write), nnx.remat(write)):
        value = {"list": [jnp.array(1.0)], "kept": jnp.array(5.0)}
        v = Variable(value)
        transformed(v)
        assert v.value == {"list": [2.0], "kept": 5.0, "new": 4.0}
        assert set(value) == {"list", "kept"}  # what others hold is as it was


class Online(Module):
    """A network in plain containers, and the target that it starts as."""

    def __init__(self):
        self.params = {"w": jnp.ones(2), "layers": [jnp.ones(2), jnp.ones(2)]}
        self.target = self.params
        self.steps = Variable(jnp.zeros(2))

    def replace(self):
        self.params = jax.tree.map(lambda x: x / 2, self.params)
        self.steps.value = self.steps.value + 1

    def replace_layers(self):
        self.params["layers"] = [x / 2 for x in self.params["layers"]]

    def edit(self):
        self.params["layers"][0] = self.params["layers"][0] / 2


def nothing(m):
    pass


where_containers_are_written = {
    "jit": nnx.jit,
    "remat": nnx.remat,
    "vmap": nnx.vmap,
    "cond": lambda f: lambda m: nnx.cond(jnp.array(True), f, nothing, m),
    "other branch": lambda f: lambda m: nnx.cond(jnp.array(False), nothing, f, m),
    "fori_loop": lambda f: lambda m: nnx.fori_loop(0, 1, lambda i, m: (f(m), m)[1], m),
    "scan in jit": lambda f: nnx.jit(nnx.scan(lambda m, _: (m, f(m)), length=1)),
    "with what is returned": lambda f: nnx.jit(lambda m: (f(m), Variable(m.steps[0]))),
}


@pytest.mark.parametrize("write", [Online.replace, Online.replace_layers, Online.edit])
@pytest.mark.parametrize("name", where_containers_are_written)
def test_who_holds_a_container_sees_edits_of_it_and_not_what_replaces_it(name, write):
    def run(transformed):
        m, other = Online(), Dict()
        other.params = kept = m.params
        layers = kept["layers"]
        for _ in range(2):
            transformed(m, None) if "scan" in name else transformed(m)
        return jax.tree.map(list, [m.params, m.target, other.params, kept, layers])

    transformed = where_containers_are_written[name](write)
    assert run(transformed) == run(lambda m, _=None: write(m))


def noted(write):
    def write_and_note(m):
        write(m)
        m.note = "written"

    return write_and_note


@pytest.mark.parametrize("write", [Online.replace, Online.replace_layers, Online.edit])
@pytest.mark.parametrize("name", ["jit", "remat", "vmap", "grad", "cond"])
def test_a_change_elsewhere_does_not_hide_an_edit_from_who_holds_a_container(
    name, write
):
    transformed = {
        "grad": lambda f: lambda m: nnx.grad(lambda m: (f(m), jnp.array(0.0))[1])(m),
        "cond": lambda f: lambda m: nnx.cond(jnp.array(True), f, f, m),
    }.get(name) or where_containers_are_written[name]

    def run(transformed):
        m, other = Online(), Dict()
        other.params = kept = m.params
        layers = kept["layers"]
        transformed(m)
        assert m.note == "written"
        return jax.tree.map(list, [m.params, m.target, other.params, kept, layers])

    assert run(transformed(noted(write))) == run(noted(write))


class Guarded:
    """A variable of another library, which may refuse to be written."""

    def __init__(self, value):
        self.value, self.is_closed = value, False

    def write(self, value):
        if self.is_closed:
            raise ValueError("It is closed.")
        self.value = value


gc.register_variable_type(
    Guarded,
    get_value=lambda x: x.value,
    set_value=Guarded.write,
    get_metadata=lambda x: {},
    create=lambda kind, value, metadata: kind(value),
)


@pytest.mark.parametrize(
    "returned",
    [
        lambda m: None,
        lambda m: m.guarded,
        lambda m: Variable(m.guarded.value),
        lambda m: setattr(m, "count", m.get("count", 0) + 1),
    ],
)
def test_a_container_is_not_replaced_where_another_write_fails(returned):
    m = Dict(guarded=Guarded(jnp.zeros(())), params={"w": [jnp.ones(2)]})

    @nnx.jit
    def step(m):
        m.params = jax.tree.map(lambda x: x / 2, m.params)
        m.guarded.value = m.guarded.value + 1
        return returned(m)

    step(m)
    params, inner = m.params, m.params["w"]
    m.guarded.is_closed = True
    with pytest.raises(ValueError, match="closed"):
        step(m)
    assert m.params is params
    assert m.params["w"] is inner
    assert inner[0].tolist() == [0.5, 0.5]
    m.guarded.is_closed = False
    step(m)
    assert m.params["w"][0].tolist() == [0.25, 0.25]
    assert inner[0].tolist() == [0.5, 0.5]


class Holder:
    """What no library looks into."""

    def __init__(self, held):
        self.held = held


@pytest.mark.parametrize("options", [{}, {"donate_state": True}])
def test_a_write_to_the_caller_s_own_variable_is_refused_and_taken_back(options):
    guarded = Guarded(jnp.ones(2))
    m = Dict(guarded=guarded, holder=Holder(guarded))

    @nnx.jit(**options)
    def step(m, x):
        m.holder.held.value = m.guarded.value * x

    @nnx.jit(**options)
    def fail(m, x):
        step.__wrapped__(m, x)
        raise KeyError("key")

    for _ in range(2):
        with pytest.raises(nnx.TraceContextError, match=r"'step'.*'args/0/guarded'"):
            step(m, 3.0)
        with pytest.raises(KeyError):
            fail(m, 3.0)
        assert m.guarded.value.tolist() == [1.0, 1.0]


def test_a_value_that_is_made_at_each_look_is_no_write_of_the_caller_s_variable():
    class Doubled:
        def __init__(self, value):
            self.value = value

    gc.register_variable_type(
        Doubled,
        get_value=lambda x: x.value * 2,
        set_value=lambda x, value: setattr(x, "value", value / 2),
        get_metadata=lambda x: {},
        create=lambda kind, value, metadata: kind(value / 2),
    )
    m = Dict(doubled=Doubled(jnp.ones(2)))
    inner = nnx.jit(lambda m: m.doubled.value * 1)
    assert nnx.jit(lambda m: inner(m) + inner(m))(m).tolist() == [2.0, 2.0]


def test_a_write_to_the_caller_s_own_variable_is_refused_for_another_shape():
    guarded = Guarded(jnp.ones(2))
    m = Dict(guarded=guarded, holder=Holder(guarded))
    seen = []

    @nnx.jit
    def step(m, x):
        seen.append(x.shape)
        if x.shape == (2,):
            m.holder.held.value = m.guarded.value * x
        return x

    for shape in [(), (), (2,), (), (3,), (2,)]:
        if shape == (2,):
            with pytest.raises(nnx.TraceContextError, match=r"'args/0/guarded'"):
                step(m, jnp.ones(shape))
            assert m.guarded.value.tolist() == [1.0, 1.0]
        else:
            assert step(m, jnp.ones(shape)).shape == shape
    assert seen[:2] == [(), (2,)]  # no trace is begun that does not end


def test_a_frozen_record_that_was_kept_is_as_it_was():
    @jax.tree_util.register_dataclass
    @dataclasses.dataclass(frozen=True)
    class Record:
        params: dict

    m = Dict(record=Record({"w": jnp.ones(2)}))
    before = m.record

    @nnx.jit
    def step(m):
        m.record = jax.tree.map(lambda x: x * 2, m.record)

    step(m)
    assert m.record.params["w"].tolist() == [2.0, 2.0]
    assert before.params["w"].tolist() == [1.0, 1.0]


def test_an_error_leaves_the_inside_of_a_value_alone():
    v = Variable({"a": jnp.array(1.0)})

    def fail(v):
        v.value["b"] = v.value.pop("a")
        raise KeyError("no")

    entry = enter(fail, (v,))
    with pytest.raises(KeyError):
        entry.body(*entry.values)  # without JAX, which would make containers of its own
    assert set(v.value) == {"a"}


def test_variables_on_their_own_are_shared():
    v = Variable(jnp.array(1.0))

    @jit
    def f(a, pair):
        assert a is pair[0]
        pair[1].v = a
        a.value = a.value + 1
        return a, Variable(a.value)

    node = Dict()
    same, new = f(v, (v, node))
    assert (same is v, node.v is v, float(v.value)) == (True, True, 2.0)
    assert new is not v
    assert float(new.value) == 2.0


def test_cond_and_other_transformations():
    def cond(pred, *rest):
        return split_inputs(jax.lax.cond)(pred, *map(merge_inputs, rest[:2]), *rest[2:])

    m = Model()

    def double(m, x):
        m.w.value = m.w.value * x
        return m

    def count(m, x):
        m.count.value = m.count.value + 1
        return m

    assert cond(True, double, count, m, 2.0) is m
    assert cond(False, double, count, m, 2.0) is m
    assert (m.w.value.tolist(), int(m.count.value)) == ([0.0, 2.0, 4.0], 1)

    vmapped = split_inputs(jax.vmap(merge_inputs(double), (0, None), (0, 0)))
    stack = Dict(w=Param(jnp.ones((4, 3))))
    assert vmapped(stack, 2.0) is stack
    np.testing.assert_array_equal(stack.w.value, np.full((4, 3), 2.0))


def test_nested_under_one_tag_and_under_two():
    m = Model()

    @split_inputs(ctxtag="outer")
    @jax.jit
    @merge_inputs(ctxtag="outer")
    def outer(m):
        @jit
        def inner(m):
            @jit
            def innermost(count):
                count.value = count.value + 1

            innermost(m.count)
            innermost(m.count)
            return m

        assert inner(m) is m
        return m

    assert outer(m) is m
    assert int(m.count.value) == 2


def test_an_error_changes_nothing_and_closes_the_context():
    m = Model()
    before = gc.split(m)

    @jit
    def bad(m):
        m.w.value = m.w.value + 1
        m.new = 1
        raise KeyError("no")

    with pytest.raises(KeyError):
        bad(m)
    graphdef, state = gc.split(m)
    assert graphdef == before[0]
    jax.tree.map(np.testing.assert_array_equal, state, before[1])
    with pytest.raises(ValueError, match="split_inputs and merge_inputs"):
        merge_inputs(lambda m: None)(gc.to_tree(m))


def test_variables_on_their_own():
    v, holder = Param(jnp.array(1.0)), Dict()
    holder.w = v

    def f(v, holder):
        assert holder.w is v
        v.value, v.note, holder.new = v.value + 1, "written", Variable(v.value)
        return holder, v, holder.new, Param(v.value)

    same, argument, new, other = jit(f)(v, holder)
    assert same is holder and argument is v and new is holder.new
    assert (float(v.value), v.note, float(other.value)) == (2.0, "written", 2.0)
    assert jit(lambda holder: holder.w)(holder) is v


def test_the_pair_is_needed():
    with pytest.raises(
        TypeError, match=r"split_inputs\(jax.jit\(merge_inputs\(f\)\)\)"
    ):
        split_inputs(jax.jit(lambda m: None))(Model())


def test_nothing_is_kept():
    m = Model()
    f = jit(lambda m: m.w.value.sum())
    with jax.checking_leaks():
        f(m)
    reference = weakref.ref(m)
    del m
    garbage.collect()
    assert reference() is None


def test_a_body_whose_function_is_gone_says_so():
    model = Model()

    def total(model):
        return model.w.value.sum()

    entry = enter(total, (model,))
    assert entry.commit(*entry.body(*entry.values)) == 3.0
    del total
    with pytest.raises(ReferenceError, match=r"'total' is gone.*keep it in a variable"):
        entry.body(*entry.values)


def test_numbers_that_no_dtype_holds_may_stand_in_the_value_of_a_variable():
    count = 5_000_000_000
    m = Dict(w=Param(jnp.ones(())), seen=Variable({"tokens": count, "loss": 0.5}))
    grads = nnx.grad(lambda m: m.w.value**2)(m)
    assert float(grads["w"].value) == 2.0
    out = nnx.vmap(lambda m, x: m.w.value * x, in_axes=(None, 0))(m, jnp.ones(2))
    assert out.tolist() == [1.0, 1.0]
    assert m.seen.value == {"tokens": count, "loss": 0.5}


def test_a_compiled_function_takes_a_module_in_the_place_of_an_array():
    eqx = pytest.importorskip("equinox")
    m = Dict(w=Param(jnp.ones(2)))
    total = nnx.jit(lambda m: sum(x.sum() for x in jax.tree.leaves(m.w.value)))
    assert float(total(m)) == 2.0
    m.w.value = eqx.nn.LayerNorm(2)
    expected = float(sum(jnp.sum(x) for x in jax.tree.leaves(m.w.value)))
    assert float(total(m)) == pytest.approx(expected)
