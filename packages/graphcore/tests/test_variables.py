import copy
import operator
import pickle
import weakref

import cloudpickle
import graph_zoo as zoo
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import graphcore as gc

# Operators

UNARY = [operator.neg, operator.pos, operator.abs, operator.invert]
ARITHMETIC = [
    *(operator.add, operator.sub, operator.mul, operator.truediv),
    *(operator.floordiv, operator.mod, operator.pow, divmod),
]
BITWISE = [operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift]
ORDER = [operator.lt, operator.le, operator.gt, operator.ge]
IN_PLACE = {
    operator.iadd: operator.add,
    operator.isub: operator.sub,
    operator.imul: operator.mul,
    operator.itruediv: operator.truediv,
    operator.ifloordiv: operator.floordiv,
    operator.imod: operator.mod,
    operator.ipow: operator.pow,
    operator.iand: operator.and_,
    operator.ior: operator.or_,
    operator.ixor: operator.xor,
    operator.ilshift: operator.lshift,
    operator.irshift: operator.rshift,
}


@pytest.mark.parametrize("op", UNARY)
def test_unary_operators(op):
    assert op(gc.Param(5)) == op(5)


@pytest.mark.parametrize("op", [*ARITHMETIC, *BITWISE, *ORDER])
def test_binary_operators_from_both_sides(op):
    assert op(gc.Param(7), 2) == op(7, 2)
    assert op(7, gc.Param(2)) == op(7, 2)
    assert op(gc.Param(7), gc.BatchStat(2)) == op(7, 2)


@pytest.mark.parametrize("op", list(IN_PLACE))
def test_in_place_operators_assign_to_the_variable(op):
    for other in (2, gc.BatchStat(2)):
        v = gc.Param(7, unit="m")
        same = op(v, other)
        assert same is v
        assert v.value == IN_PLACE[op](7, 2)
        assert v.unit == "m"


def test_matrix_products():
    a, b = jnp.arange(6.0).reshape(2, 3), jnp.arange(3.0)
    v = gc.Param(a)
    np.testing.assert_allclose(v @ b, a @ b)
    np.testing.assert_allclose(a @ gc.Param(b), a @ b)
    w = gc.Param(jnp.eye(2))
    w @= 2 * jnp.eye(2)
    np.testing.assert_allclose(w.value, 2 * jnp.eye(2))


def test_conversions_and_containers():
    v = gc.Param(jnp.array([3, 1, 2]))
    assert len(v) == 3
    assert [int(x) for x in v] == [3, 1, 2]
    assert 3 in v
    assert 9 not in v
    one = gc.Param(2.6)
    assert (int(one), float(one), complex(one), bool(one)) == (2, 2.6, 2.6 + 0j, True)
    assert (round(one), round(one, 1), type(round(one))) == (3, 2.6, int)
    assert [10, 20, 30][gc.Param(1)] == 20
    assert gc.Param(abs)(-3) == 3
    assert gc.Param(jnp.ones((2, 3))).shape == (2, 3)
    assert gc.Param("text").upper() == "TEXT"


def test_unknown_attributes_say_what_was_looked_for():
    with pytest.raises(AttributeError, match=r"Param.*'nope'.*int"):
        _ = gc.Param(1).nope
    with pytest.raises(AttributeError, match="nope"):
        del gc.Param(1).nope


def test_numpy_and_jax_accept_variables():
    v = gc.Param(jnp.arange(3.0))
    np.testing.assert_allclose(jnp.stack([v, v])[1], v.value)
    np.testing.assert_allclose(jnp.asarray(v), v.value)
    np.testing.assert_allclose(np.asarray(v), v.value)
    assert np.asarray(v, dtype=np.int32).dtype == np.int32
    np.testing.assert_allclose(np.ones(3) + v, 1 + v.value)
    assert isinstance(np.ones(3) + v, jax.Array)

    @jax.jit
    def f(x):
        return np.ones(3) * gc.Param(x) + np.float32(1) - gc.Param(x)

    np.testing.assert_allclose(f(v.value), jnp.ones(3))
    copied = np.array(v, copy=True)
    copied[0] = 9
    assert v[0] == 0


# Values and items


def test_ellipsis_means_the_value():
    v = gc.Param(jnp.arange(3))
    v[...] = jnp.arange(4)
    assert v[...] is v.value
    v[0] = 7
    v[1:3] = 0
    assert v.value.tolist() == [7, 0, 0, 3]
    assert int(v[0]) == 7


def test_items_of_other_values():
    v = gc.Param({"a": 1})
    v["b"] = 2
    assert v["b"] == 2
    n = gc.Param(np.zeros(2))
    n[0] = 1
    assert n.value.tolist() == [1, 0]


def test_values_may_be_pytrees():
    v = gc.Param({"a": jnp.ones(2), "b": (jnp.zeros(1), None)})
    node = gc.Dict(v=v)
    state = gc.state(node)
    assert len(jax.tree.leaves(state)) == 2
    state = jax.tree.map(lambda x: x + 1, state)
    gc.update(node, state)
    assert float(v.value["a"][0]) == 2.0
    assert gc.clone(node).v == v


def test_a_variable_cannot_hold_a_variable():
    with pytest.raises(ValueError, match="BatchStat"):
        gc.Param(gc.BatchStat(1))
    v = gc.Param(1)
    with pytest.raises(ValueError, match="copy_from"):
        v.value = gc.Param(2)
    with pytest.raises(ValueError, match="copy_from"):
        v.raw_value = v
    assert v.value == 1


# Hooks


def test_hooks_run_in_order():
    log = []

    def hook(name):
        def f(variable, value):
            log.append((name, value))
            return value + 1

        return f

    v = gc.Param(
        0,
        on_create_value=[hook("c1"), hook("c2")],
        on_set_value=(hook("s1"), hook("s2")),
        on_get_value=hook("g"),
    )
    assert v.raw_value == 2
    v.value = 10
    assert v.raw_value == 12
    assert v.value == 13
    assert log == [("c1", 0), ("c2", 1), ("s1", 10), ("s2", 11), ("g", 12)]
    log.clear()
    v.raw_value = 5
    assert (v.raw_value, log) == (5, [])
    v += 1  # read, then written
    assert v.raw_value == 5 + 1 + 1 + 2
    assert [name for name, _ in log] == ["g", "s1", "s2"]
    assert hash(gc.graphdef(gc.Dict(v=v))) == hash(gc.graphdef(gc.Dict(v=v)))


def test_a_subclass_may_define_hooks_as_methods():
    class Scaled(gc.Param):
        def on_get_value(self, value):
            return value * self.scale

        def on_set_value(self, value):
            return value / self.scale

        def on_create_value(self, value):
            return value / self.scale

        def on_add_axis(self, index, name):
            self.axes = (*self.axes, (index, name))

    v = Scaled(8.0, scale=2.0, axes=())
    assert (v.raw_value, v.value) == (4.0, 8.0)
    v.value = 6.0
    assert v.raw_value == 3.0
    v.add_axis(0, "layers")
    v.remove_axis(0, "layers")
    assert v.axes == ((0, "layers"),)


def test_a_subclass_may_define_how_its_value_is_read_and_written():
    class Reads:
        def get_value(self, **part):
            return super().get_value(**part) / 2

    class Halved(Reads, gc.Param):
        def set_value(self, value, **part):
            super().set_value(2 * value, **part)

    class Shifted(Halved):
        def get_value(self, **part):
            return super().get_value(**part) + 1

    for kind, shift in ((Halved, 0), (Shifted, 1)):
        v = kind(jnp.array([4.0, 8.0]), on_get_value=zoo.double)
        assert v.value.tolist() == v[...].tolist() == [4.0 + shift, 8.0 + shift]
        assert (float(v[1]), float(v.sum())) == (8.0 + shift, 12.0 + 2 * shift)
        assert gc.merge(*gc.split(gc.Dict(v=v))).v[1] == v[1]
        v.on_get_value = ()
        v.value = jnp.ones(2)
        v[0] = 3.0
        assert v.raw_value.tolist() == [6.0, 2.0]
        v += 1
        assert v.raw_value.tolist() == [8.0 + 2 * shift, 4.0 + 2 * shift]
        assert jax.jit(jnp.sum)(v) == jnp.sum(v[...])


def test_a_hook_set_later_counts_from_then_on():
    v = gc.Param(1)
    v.on_get_value = zoo.double
    assert v.value == 2
    del v.on_get_value
    assert v.value == 1


def test_a_failing_hook_leaves_the_value():
    def refuse(variable, value):
        raise RuntimeError

    v = gc.Param(1, on_set_value=refuse)
    with pytest.raises(RuntimeError):
        v.value = 2
    with pytest.raises(RuntimeError):
        v += 1
    assert v.raw_value == 1


# Metadata


def test_metadata_are_attributes():
    v = gc.Param(1, sharding=("data", None))
    v.unit = "m"
    assert (v.sharding, v.unit) == (("data", None), "m")
    found = v.get_metadata()
    assert found == {"sharding": ("data", None), "unit": "m"}
    found["unit"] = "changed"
    assert v.unit == "m"
    del v.unit
    with pytest.raises(AttributeError):
        _ = v.unit


def test_completion_offers_metadata_and_what_the_value_has():
    v = gc.Param(np.ones(2), unit="m", on_get_value=lambda v, x: 1 / 0)
    of_v = gc.state(gc.Dict(v=v))["v"]
    assert {"unit", "shape", "mean", "get_metadata"} <= {*dir(v)} & {*dir(of_v)}


def test_an_entry_of_the_metadata_can_be_removed():
    v = gc.Param(1.0, unit="m", on_get_value=lambda v, x: -x)
    v.del_metadata("on_get_value")
    assert v.value == 1.0 and v.get_metadata() == {"unit": "m"}
    with pytest.raises(AttributeError, match="no metadata 'scale'"):
        v.del_metadata("scale")
    with pytest.raises(gc.TraceContextError):
        jax.eval_shape(lambda: v.del_metadata("unit"))
    assert v.get_metadata() == {"unit": "m"}


def test_with_metadata_wraps_an_initializer():
    init = gc.with_metadata(
        lambda n: n,
        set_value_hooks=lambda v, x: x + 1,
        get_value_hooks=[zoo.double],
        create_value_hooks=lambda v, x: x + 10,
        add_axis_hooks=lambda v, i, n: log.append(("add", i, n)),
        remove_axis_hooks=lambda v, i, n: log.append(("remove", i, n)),
        unit="m",
    )
    log = []
    made = init(1)
    assert isinstance(made, gc.VariableMetadata)
    assert (made.raw_value, made.metadata) == (1, {"unit": "m"})
    v = gc.Param(made)
    assert (v.raw_value, v.value, v.unit) == (11, 22, "m")
    v.value = 5
    assert v.raw_value == 6
    v.add_axis(0, "a")
    v.remove_axis(1, "b")
    assert log == [("add", 0, "a"), ("remove", 1, "b")]
    assert gc.Param(init(1), unit="s").unit == "s"


# Copies and states


def test_copies_and_replacements():
    v = gc.Param(jnp.ones(2), unit="m")
    w = v.copy()
    assert w == v
    assert w is not v
    w.unit = "s"
    w.value = jnp.zeros(2)
    assert (v.unit, float(v[0])) == ("m", 1.0)
    assert v.replace(3).value == 3
    assert v.replace(unit="x").unit == "x"
    assert v.replace(unit="x").value is v.value
    assert (v.copy(3, unit="x").value, v.copy(3, unit="x").unit) == (3, "x")
    assert gc.Param.from_metadata(4, {"unit": "k"}) == gc.Param(4, unit="k")


@pytest.mark.parametrize("other", [2.0, None, [gc.Param(1.0)]])
def test_what_is_no_variable_is_refused_where_one_is_copied(other):
    v = gc.Param(1.0)
    kind = type(other).__name__
    for take_over in (v.copy_from, v.update_from_state):
        with pytest.raises(ValueError, match=f"Param from a {kind}: expected"):
            take_over(other)
    assert v.value == 1.0


def test_a_variable_is_updated_from_a_variable_as_from_its_state():
    v, w = gc.Param(1.0), gc.Param(2.0, unit="m")
    v.update_from_state(w)
    assert v == w
    v.copy_from(gc.Param.state(3.0))
    assert v.value == 3.0 and v.get_metadata() == {}


def test_copy_from_and_update_from_state():
    v, w = gc.Param(1, a=1), gc.Param(2, b=2)
    v.copy_from(w)
    assert v == w
    v.update_from_state(gc.Param.state(3, c=3))
    assert (v.value, v.get_metadata()) == (3, {"c": 3})
    with pytest.raises(ValueError, match=r"Param.*BatchStat"):
        v.copy_from(gc.BatchStat(9))
    with pytest.raises(ValueError, match=r"Param.*BatchStat"):
        v.update_from_state(gc.BatchStat.state(9))
    assert v.value == 3


def test_variable_states():
    v = gc.Param(jnp.ones(2), unit="m")
    s = v.to_state()
    assert (s.type, s.unit, s.value) == (gc.Param, "m", v.value)
    assert s == gc.Param.state(jnp.ones(2), unit="m")
    assert s == gc.VariableState(gc.Param, jnp.ones(2), unit="m")
    assert s.to_variable() == v
    assert s.replace(jnp.zeros(2)).unit == "m"
    assert s.replace(unit="s").unit == "s" and s.replace(unit="s").value is s.value
    assert s.get_metadata() == {"unit": "m"}
    doubled = jax.tree.map(lambda x: 2 * x, s)
    assert (doubled.type, doubled.unit) == (gc.Param, "m")
    assert pickle.loads(pickle.dumps(s)) == s
    path, _ = jax.tree_util.tree_leaves_with_path(s)[0]
    assert jax.tree_util.keystr(path) == ".value"
    with pytest.raises(AttributeError, match="nope"):
        _ = s.nope
    assert s != gc.BatchStat.state(jnp.ones(2), unit="m")


def test_a_state_makes_hooks_run_on_creation_only_for_values_not_for_states():
    s = gc.Param.state(1, on_create_value=zoo.double)
    assert s.value == 2
    assert s.to_variable().raw_value == 2


@pytest.mark.parametrize(
    "duplicate",
    [
        copy.copy,
        copy.deepcopy,
        lambda v: pickle.loads(pickle.dumps(v)),
        lambda v: pickle.loads(cloudpickle.dumps(v)),
        gc.Variable.copy,
    ],
)
def test_duplicates(duplicate):
    v = gc.BatchStat(jnp.arange(3), unit="m", on_get_value=zoo.double)
    w = duplicate(v)
    assert type(w) is gc.BatchStat
    assert w == v
    w.value = jnp.zeros(3)
    assert int(v.raw_value[1]) == 1


# Equality


def test_equality_is_by_type_metadata_and_content():
    v = gc.Param(jnp.arange(3), unit="m")
    assert v == gc.Param(jnp.arange(3), unit="m")
    assert v != gc.Param(jnp.arange(3), unit="s")
    assert v != gc.Param(jnp.arange(3) + 1, unit="m")
    assert v != gc.Param(jnp.arange(3.0), unit="m")
    assert v != gc.Param(jnp.arange(4), unit="m")
    assert v != gc.BatchStat(jnp.arange(3), unit="m")
    assert gc.Param(1) != gc.Param(True)
    assert gc.Param(1) != 1
    assert gc.Param({"a": jnp.ones(1)}) == gc.Param({"a": jnp.ones(1)})
    assert gc.Param(jax.random.key(0)) == gc.Param(jax.random.key(0))
    assert gc.Param(jax.random.key(0)) != gc.Param(jax.random.key(1))
    with pytest.raises(TypeError):
        hash(v)
    assert weakref.ref(v)() is v


@given(st.floats(), st.floats())
def test_equality_of_numbers_is_strict(a, b):
    same = repr(a) == repr(b)
    assert (gc.Param(a) == gc.Param(b)) is same


# Trace levels


def writes():
    return {
        "value": lambda v: setattr(v, "value", 1.0),
        "raw_value": lambda v: setattr(v, "raw_value", 1.0),
        "ellipsis": lambda v: v.__setitem__(..., 1.0),
        "item": lambda v: v.__setitem__(0, 1.0),
        "metadata": lambda v: setattr(v, "unit", "s"),
        "hook": lambda v: setattr(v, "on_get_value", zoo.double),
        "del metadata": lambda v: delattr(v, "unit"),
        "add": lambda v: operator.iadd(v, 1.0),
        "matmul": lambda v: operator.imatmul(v, jnp.eye(2)),
        "copy_from": lambda v: v.copy_from(gc.Param(1.0)),
        "update_from_state": lambda v: v.update_from_state(gc.Param.state(1.0)),
        "class": lambda v: setattr(v, "__class__", gc.BatchStat),
    }


@pytest.mark.parametrize("level", ["jit", "grad", "vmap", "eval_shape", "scan"])
@pytest.mark.parametrize("name", list(writes()))
def test_writing_from_another_trace_level_is_refused(name, level):
    v = gc.Param(jnp.ones(2), unit="m")
    before = zoo.canonical(v)
    messages = []

    def f(x):
        with pytest.raises(gc.TraceContextError) as error:
            writes()[name](v)
        messages.append(str(error.value))
        return x * v.value.sum()

    {
        "jit": lambda: jax.jit(f)(1.0),
        "grad": lambda: jax.grad(f)(1.0),
        "vmap": lambda: jax.vmap(f)(jnp.ones(2)),
        "eval_shape": lambda: jax.eval_shape(f, 1.0),
        "scan": lambda: jax.lax.scan(lambda c, x: (f(c), x), 1.0, jnp.ones(2)),
    }[level]()
    assert messages
    assert all("Param" in message for message in messages)
    assert zoo.canonical(v) == before
    assert issubclass(gc.TraceContextError, ValueError)


def test_items_of_a_mutable_value_are_guarded_as_well():
    v = gc.Param({"a": 1.0})

    def f(x):
        v["a"] = x
        return x

    with pytest.raises(gc.TraceContextError, match="Param"):
        jax.jit(f)(1.0)
    assert v.value == {"a": 1.0}


def test_inside_its_own_trace_a_variable_can_be_written():
    def f(x):
        v = gc.Variable(x)
        v += 1
        v.unit = "m"
        return v.value * 2

    assert jax.jit(f)(1.0) == 4.0
    assert jax.grad(f)(1.0) == 2.0
    assert jax.vmap(f)(jnp.ones(2)).tolist() == [4, 4]


def test_a_variable_of_a_trace_that_has_ended_cannot_be_written():
    kept = []
    jax.jit(lambda x: kept.append(gc.Param(1.0)) or x)(1.0)
    with pytest.raises(gc.TraceContextError, match="ended"):
        kept[0].value = 2.0


# Names and foreign types


def test_names_of_variable_types():
    pairs = {
        "params": gc.Param,
        "batch_stats": gc.BatchStat,
        "cache": gc.Cache,
        "intermediates": gc.Intermediate,
        "perturbations": gc.Perturbation,
    }
    for name, kind in pairs.items():
        assert gc.variable_type_from_name(name) is kind
        assert gc.variable_name_from_type(kind) == name

    class LearnedRate2D(gc.Param):
        pass

    name = gc.variable_name_from_type(LearnedRate2D)
    assert name == name.lower()
    assert gc.variable_type_from_name(name) is LearnedRate2D
    with pytest.raises(ValueError, match="nobody"):
        gc.variable_type_from_name("nobody")
    made = gc.variable_type_from_name("somebody", base=gc.Param, allow_register=True)
    assert issubclass(made, gc.Param) and made(1).value == 1
    assert gc.variable_type_from_name("somebody") is made
    assert gc.variable_name_from_type(made, allow_register=True) == "somebody"
    with pytest.raises(ValueError, match="int"):
        gc.variable_name_from_type(int)


def test_registering_names():
    class One(gc.Variable):
        pass

    class Two(gc.Variable):
        pass

    gc.register_variable_name_type_pair("test_ones", One)
    gc.register_variable_name_type_pair("test_ones", One)
    with pytest.raises(ValueError, match=r"test_ones.*One"):
        gc.register_variable_name_type_pair("test_ones", Two)
    with pytest.raises(ValueError, match=r"One.*test_ones"):
        gc.register_variable_name_type_pair("test_others", One)
    gc.register_variable_name_type_pair("test_ones", Two, overwrite=True)
    assert gc.variable_type_from_name("test_ones") is Two
    assert gc.variable_name_from_type(One) == "one"
    with pytest.raises(ValueError, match="str"):
        gc.register_variable_name_type_pair("test_strings", str)


def test_foreign_variable_types_act_as_variables():
    class SubCell(zoo.Cell):
        pass

    cell = SubCell(jnp.ones(2), {"tag": "slow"})
    assert gc.is_variable(cell)
    assert not gc.is_node(cell)
    node = gc.Dict(a=cell, b=cell)
    graphdef, slow, rest = gc.split(node, zoo.Cell, ...)
    assert (list(slow), list(rest)) == (["a"], [])
    assert slow.a.type is SubCell
    twin = gc.merge(graphdef, slow, rest)
    assert type(twin.a) is SubCell
    assert twin.a is twin.b
    assert twin.a.notes == {"tag": "slow"}
    gc.update(node, {"a": jnp.zeros(2)})
    assert float(cell.content[0]) == 0
    with pytest.raises(ValueError, match=r"SubCell.*no way to set"):
        gc.update(node, {"a": gc.VariableState(SubCell, 1, tag="fast")})
    assert float(cell.content[0]) == 0
    assert list(gc.variables(node, "slow")) == ["a"]
    assert gc.pop(node, "slow").a.value is cell.content
    with pytest.raises(ValueError, match="already"):
        gc.register_variable_type(
            zoo.Cell, get_value=id, set_value=id, get_metadata=id, create=id
        )
    with pytest.raises(ValueError, match="already"):
        gc.register_variable_type(
            gc.Param, get_value=id, set_value=id, get_metadata=id, create=id
        )
    with pytest.raises(ValueError, match="Cell"):
        gc.register_pytree_node_type(zoo.Cell, flatten=id, unflatten=id)


def test_metadata_cannot_hide_behind_attributes_of_the_class():
    class Scaled(gc.Param):
        scale = 2.0

    v = Scaled(1.0)
    for wrong in (
        lambda: Scaled(1.0, scale=3.0),
        lambda: setattr(v, "scale", 3.0),
        lambda: gc.Param(1.0, copy=True),
        lambda: setattr(v, "get_metadata", 1),
    ):
        with pytest.raises(ValueError, match=r"'(scale|copy|get_metadata)'"):
            wrong()
    assert (v.scale, v.get_metadata()) == (2.0, {})


def test_properties_of_a_subclass_work():
    class WithProperty(gc.Param):
        @property
        def doubled(self):
            return self.value * 2

        @doubled.setter
        def doubled(self, value):
            self.value = value / 2

    v = WithProperty(1.0)
    v.doubled = 8.0
    assert (v.value, v.doubled, v.get_metadata()) == (4.0, 8.0, {})


def test_metadata_may_hold_arrays():
    def make(value=1):
        return gc.Dict(v=gc.Param(value, mask=jnp.array([True, False])))

    node = make()
    assert node.v == make().v
    assert node.v != gc.Param(1, mask=jnp.array([True, True]))
    assert gc.graphdef(node) == gc.graphdef(make())
    gc.update(node, gc.state(make(2)))
    assert node.v.value == 2
    assert hash(gc.graphdef(node)) == hash(gc.graphdef(make()))


def test_lists_of_hooks_are_hashable_in_variables_and_states():
    v = gc.Param(1, on_get_value=[zoo.double])
    s = gc.VariableState(gc.Param, 1, on_get_value=[zoo.double])
    assert v.to_state() == s
    assert s.to_variable().value == 2
    hash(gc.graphdef(gc.Dict(v=s.to_variable())))


def test_formatting():
    assert f"{gc.Param(1.234):.2f}" == "1.23"
    assert f"{gc.Param(1)}" == repr(gc.Param(1))


def test_the_value_of_a_state_can_be_had_as_that_of_a_variable():
    state = gc.Param.state(jnp.arange(3.0))
    assert state[...] is state.value
    assert float(state[1]) == 1


def test_copies_are_taken_past_what_a_class_says_of_itself():
    class Named(gc.Param):
        type = "a name"
        raw_value = property(lambda self: "another value")

    x = Named(1)
    x.copy_from(Named(2))
    assert x.value == 2
    x.update_from_state(gc.VariableState.from_variable(Named(3)))
    assert x.value == 3
