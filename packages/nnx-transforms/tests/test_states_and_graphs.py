"""Functions on states, graphs and variables."""

import copy
import inspect
import pickle
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec

import nnx_transforms as nnx

keys = st.sampled_from(["a", "b", "0", "12"]) | st.integers(0, 3)
trees = st.recursive(
    st.integers(), lambda inner: st.dictionaries(keys, inner, min_size=1), max_leaves=8
).filter(lambda tree: isinstance(tree, dict))


def chain():
    shared = nnx.Param(jnp.ones(2))
    inner = nnx.Dict(w=shared)
    return nnx.Dict(a=inner, b=[inner, (shared, 3)])


# States


@settings(max_examples=30, deadline=None)
@given(trees)
def test_flat_and_nested_are_inverses(tree):
    flat = nnx.to_flat_state(tree)
    assert nnx.from_flat_state(flat).to_pure_dict() == nnx.State(tree).to_pure_dict()
    assert nnx.to_flat_state(flat.to_nested_state()) == flat
    nested = nnx.traversals.flatten_mapping(tree)
    assert nnx.traversals.unflatten_mapping(nested) == tree
    assert dict(flat) == nested


def test_a_flat_state_reads_as_a_mapping_and_as_a_sequence():
    flat = nnx.FlatState([(("b",), 2), (("a", "x"), 1)])
    assert flat["b",] == 2 and flat[0] == (("a", "x"), 1)
    assert ("b",) in flat and ("c",) not in flat
    assert dict(flat) == {("a", "x"): 1, ("b",): 2} == dict(flat.items())
    assert flat.get(("c",), 7) == 7 and list(flat.values()) == [1, 2]
    with pytest.raises(KeyError):
        flat["c",]
    assert nnx.FlatState([(("b",), 2), (("a",), 1)], sort=False).paths[0] == ("b",)


def test_a_state_equals_a_mapping_of_the_same_leaves():
    state = nnx.State({"a": {"b": 1}})
    assert state == {"a": {"b": 1}}
    assert state == {"a": {"b": 1}}
    assert state != {"a": {"b": 2}}
    assert state != {}
    assert nnx.State({}) == {}
    assert state != 3


def test_a_state_goes_to_pure_values_and_back():
    node = chain()
    state = nnx.state(node)
    pure = nnx.to_pure_dict(state, lambda leaf: 10 * leaf.value)
    nnx.replace_by_pure_dict(state, pure, lambda leaf, new: leaf.replace(new + 1))
    assert state.a.w.value.tolist() == [11.0, 11.0]
    assert nnx.to_pure_dict(nnx.variables(node))["a"]["w"] is node.a.w.value
    assert nnx.as_pure(nnx.state(node)).a.w is node.a.w.value
    assert nnx.pure is nnx.as_pure
    assert nnx.pure({"w": node.a.w, "n": 3}) == {"w": node.a.w.value, "n": 3}


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_an_unpacked_state_can_be_copied(copied):
    whole = nnx.unpack(nnx.Dict(a=nnx.Param(1), b=nnx.Param(2)))
    again = copied(whole)
    assert again == whole and nnx.merge(again).b.value == 2


def test_metadata_are_set_where_there_are_variables():
    node = nnx.Dict(w=nnx.Param(1.0), n=nnx.Cache(2), bare=np.ones(2))
    nnx.set_metadata(node, unit="m")
    nnx.set_metadata(node, only=nnx.Cache, order=3)
    assert node.w.get_metadata() == {"unit": "m"}
    assert node.n.get_metadata() == {"unit": "m", "order": 3}


def test_metadata_that_cannot_be_set_are_refused():
    class Fixed:
        def __init__(self, x):
            self.x = x

    nnx.register_variable_type(
        Fixed,
        get_value=lambda v: v.x,
        set_value=lambda v, x: setattr(v, "x", x),
        get_metadata=lambda v: {},
        create=lambda kind, x, metadata: kind(x),
    )
    node = nnx.Dict(a=nnx.Param(1.0), b=Fixed(2.0))
    with pytest.raises(ValueError, match=r"Fixed is registered .* `only`"):
        nnx.set_metadata(node, unit="m")
    assert node.a.get_metadata() == {}
    nnx.set_metadata(node, only=nnx.Param, unit="m")
    assert node.a.get_metadata() == {"unit": "m"}


# Graphs


def test_leaves_of_a_state_answer_for_their_variables():
    leaf = nnx.state(nnx.Linear(2, 3, rngs=nnx.Rngs(0))).kernel
    assert isinstance(leaf, nnx.Param)
    assert isinstance(leaf, nnx.VariableState)
    assert not isinstance(leaf, nnx.BatchStat)
    assert not isinstance(leaf, jax.Array)
    for again in (pickle.loads(pickle.dumps(leaf)), copy.copy(leaf)):
        assert type(again) is nnx.VariableState
        assert again == leaf
    assert leaf.get_raw_value() is leaf.value
    other = type(leaf)(jnp.ones(2))
    assert other.type is nnx.Variable
    assert other.value.shape == (2,)
    assert repr(leaf) == "VariableState(Param, float32[2,3])"


def test_merge_takes_the_leaves_of_a_state_in_their_order():
    node = nnx.Dict({str(i): nnx.Param(i) for i in range(12)}, b=[nnx.Param(20)] * 2)
    node["a"] = jnp.ones(2)
    graphdef, state = nnx.split(node)
    leaves = jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, nnx.Variable))
    again = jax.jit(lambda leaves: nnx.state(nnx.merge(graphdef, leaves)))(leaves)
    assert nnx.to_pure_dict(again)["b"] == {0: 20}
    assert [again[str(i)].value for i in range(12)] == [*range(12)]
    with pytest.raises(ValueError, match="list of 3 leaves, expected 14"):
        nnx.merge(graphdef, leaves[:3])


def test_recursive_map_keeps_sharing_and_the_original():
    node = chain()

    def change(path, value):
        return value.replace(value.value + 1) if isinstance(value, nnx.Param) else value

    twin = nnx.recursive_map(change, node)
    assert twin.a is twin.b[0] and twin.a.w is twin.b[1][0]
    assert twin.a.w.value.tolist() == [2.0, 2.0]
    assert node.a.w.value.tolist() == [1.0, 1.0]


def test_recursive_map_refuses_a_cycle():
    node = chain()
    node.a.top = node
    with pytest.raises(ValueError, match="'a/top' is below itself"):
        nnx.recursive_map(lambda path, value: value, node)


def test_duplicates_are_found_through_containers():
    node = chain()
    assert nnx.find_duplicates(node) == [
        [("a",), ("b", 0)],
        [("a", "w"), ("b", 1, 0)],
    ]
    assert nnx.find_duplicates(node, only=nnx.Dict) == [[("a",), ("b", 0)]]


def test_merge_takes_live_variables_over_or_copies_them():
    node = chain()
    graphdef, live = nnx.graphdef(node), nnx.variables(node)
    assert nnx.merge(graphdef, live, copy=False).b[1][0] is node.a.w
    assert nnx.merge(graphdef, live).a.w is not node.a.w
    with pytest.raises(ValueError, match=r"'a/w'.*BatchStat.*Param"):
        nnx.merge(graphdef, {"a": {"w": nnx.BatchStat(1)}}, copy=False)


def test_with_vars_copies_what_is_selected():
    node = chain()
    with pytest.raises(ValueError, match=r"'a/w'.*'b/1/0'.*allow_duplicates"):
        nnx.with_vars(node)
    twin = nnx.with_vars(node, allow_duplicates=True)
    assert twin.a.w is twin.b[1][0] is not node.a.w
    with pytest.raises(ValueError, match="hijax"):
        nnx.with_vars(node, hijax=True)
    with pytest.raises(ValueError, match="ref"):
        nnx.var_defaults(ref=True)


# Modules


class Noisy(nnx.Module):
    def __init__(self):
        self.scale = nnx.Param(jnp.array(2.0))
        self.deterministic = False

    def set_view(self, deterministic=None):
        if deterministic is not None:
            self.deterministic = deterministic

    def __call__(self, x):
        self.sow(nnx.Intermediate, "xs", x)
        return self.perturb("shift", self.scale.value * x)


def test_a_view_shares_variables_and_differs_in_settings():
    model = nnx.Dict(first=Noisy(), second=Noisy())
    quiet = nnx.view(model, deterministic=True, only=nnx.PathContains("first"))
    assert quiet.first.deterministic and not quiet.second.deterministic
    assert not model.first.deterministic
    quiet.first.scale.value = jnp.array(5.0)
    assert float(model.first.scale.value) == 5.0
    with pytest.raises(ValueError, match=r"\['rate'\]"):
        nnx.view(model, rate=1)
    with pytest.raises(ValueError, match=r"\['rate'\]"):
        nnx.with_attributes(model, rate=1)


def test_capture_leaves_nothing_behind_even_after_an_error():
    model = Noisy()
    before = nnx.graphdef(model)
    y, shifts, seen = nnx.capture(model, nnx.Perturbation, nnx.Intermediate)(3.0)
    assert (float(y), seen["xs"].value) == (6.0, (3.0,))
    assert float(shifts["shift"].value) == 0.0
    with pytest.raises(TypeError):
        nnx.capture(model, nnx.Intermediate, method_outputs=nnx.Intermediate)(None)
    assert nnx.graphdef(model) == before
    assert "wrapper" not in Noisy.__call__.__qualname__


def test_capture_records_in_a_subclass_of_dict():
    class Records(nnx.Dict):
        def __call__(self, x):
            self.sow(nnx.Intermediate, "x", x)
            return x

    _, seen = nnx.capture(records := Records(), nnx.Intermediate)(1)
    assert (seen.x.value, len(records)) == ((1,), 0)


def test_capture_says_so_if_it_has_nowhere_to_record():
    record = nnx.capture(lambda x, model: model(x), nnx.Intermediate)
    with pytest.raises(ValueError, match=r"`capture` .* this ArrayImpl .* model first"):
        record(jnp.ones(2), Noisy())
    for nothing in (nnx.Dict(a=nnx.Param(1)), [nnx.Param(1)]):
        with pytest.raises(ValueError, match="none that record"):
            record(nothing, Noisy())


def test_capture_puts_nothing_among_the_items_of_a_dict():
    class Branches(nnx.Module):
        def __init__(self):
            self.all = nnx.Dict(a=Noisy(), b=Noisy())

        def __call__(self, x):
            for name in self.all:
                x = self.all[name](x)
            return x

    _, found = nnx.capture(Branches(), nnx.Intermediate)(jnp.ones(2))
    assert found.flat_state().paths == (("all", "a", "xs"), ("all", "b", "xs"))


def test_capture_inside_a_compiled_gradient():
    @nnx.jit
    def by_shift(model, shifts, x):
        def loss(model, shifts):
            y, seen = nnx.capture(model, nnx.Intermediate, init=shifts)(x)
            return y**2, seen

        return nnx.grad(loss, argnums=1, has_aux=True)(model, shifts)

    shifts = nnx.State({"shift": nnx.Perturbation.state(jnp.array(1.0))})
    gradient, seen = by_shift(Noisy(), shifts, jnp.array(3.0))
    assert float(gradient["shift"].value) == 14.0  # 2 * (2 * 3 + 1)
    assert float(seen["xs"].value[0]) == 3.0


def test_a_table_lists_modules_with_outputs_and_sizes():
    class Block(nnx.Module):
        def __init__(self, rngs):
            self.norm = nnx.BatchNorm(4, rngs=rngs)
            self.drop = nnx.Dropout(0.5, rngs=rngs)

        def __call__(self, x, scale):
            return self.drop(self.norm(x)) * scale, "text"

        def encode(self, x):
            return self.norm(x)

    block = Block(nnx.Rngs(0))
    before = nnx.clone(block)
    lines = nnx.tabulate(block, jnp.ones((2, 4)), scale=2, console_kwargs={}).split(
        "\n"
    )
    assert lines[0].split() == [
        "path",
        "type",
        "outputs",
        "BatchStat",
        "Param",
        "RngState",
    ]
    root = "<root> Block float32[2,4], 'text' 8 (32 B) 8 (32 B) 2 (12 B)"
    assert " ".join(lines[2].split()) == root
    assert [row.split()[0] for row in lines[4::2]][:1] == ["drop"]
    assert "mean: float32[4]" in "\n".join(lines)
    assert nnx.graphdef(block) == nnx.graphdef(before)
    assert block.norm.mean.value.tolist() == [0] * 4
    assert int(block.drop.rngs.count.value) == 0
    short = nnx.tabulate(block, jnp.ones((2, 4)), depth=0, method="encode").split("\n")
    assert len(short) == 3
    assert "float32[2,4]" in short[2]
    assert "float32" not in nnx.tabulate(block, depth=0)


def test_a_table_of_what_is_abstract_is_that_of_what_it_stands_for():
    class Block(nnx.Module):
        def __init__(self):
            self.norm = nnx.BatchNorm(4, rngs=nnx.Rngs(0))
            self.drop = nnx.Dropout(0.5, rngs=nnx.Rngs(0))
            self.bias = nnx.data(jnp.ones(4))

        def __call__(self, x, mode, scale):
            assert mode == "train" and float(scale) == 2
            return self.drop(self.norm(x["x"]) + self.bias) * scale

    arguments = {"x": jnp.ones((2, 4))}, "train"
    abstract = jax.eval_shape(lambda: arguments[0])
    due = nnx.tabulate(Block(), *arguments, scale=jnp.array(2.0))
    assert due.split("\n")[0].split()[3:] == ["Array", "BatchStat", "Param", "RngState"]
    for block in (Block(), nnx.eval_shape(Block)):
        table = nnx.tabulate(block, abstract, "train", scale=jnp.array(2.0))
        assert table == due


def test_a_table_takes_objects_among_the_arguments():
    class Noise(nnx.Module):
        def __call__(self, rngs):
            return jax.random.normal(rngs(), (3,))

    rngs = nnx.Rngs(0)
    assert "float32[3]" in nnx.tabulate(Noise(), rngs)
    assert int(rngs.default.count.value) == 0


def test_a_table_counts_the_operations_of_each_call():
    class Block(nnx.Module):
        def __init__(self, rngs):
            self.inner = nnx.Linear(4, 4, rngs=rngs)
            self.norm = nnx.BatchNorm(4, rngs=rngs)
            self.drop = nnx.Dropout(0.5, rngs=rngs)

        def __call__(self, x, mode):
            assert mode == "train"
            return self.drop(self.norm(self.inner(self.inner(x)))), mode

    block = Block(nnx.Rngs(0))
    options = {"compute_flops": True, "compute_vjp_flops": True}
    table = nnx.tabulate(block, jnp.ones((2, 4)), "train", **options).split("\n")
    assert table[0].split()[2:5] == ["outputs", "flops", "vjp_flops"]
    (start,) = (i for i, row in enumerate(table) if row.startswith("inner"))
    first, again = table[start].split(), table[start + 1].split()

    def by_hand(kernel, bias, x):
        return x @ kernel + bias

    def with_gradient(*args):
        out, pull_back = jax.vjp(by_hand, *args)
        return out, pull_back(out)

    weights = block.inner.kernel.value, block.inner.bias.value, jnp.ones((2, 4))
    due = [jax.jit(f).lower(*weights).cost_analysis() for f in (by_hand, with_gradient)]
    flops = [str(int(each["flops"])) for each in due]
    assert first[2:5] == ["float32[2,4]", *flops]
    assert again[:3] == ["float32[2,4]", *flops]
    (root,) = (row.split() for row in table if row.startswith("<root>"))
    assert int(root[4]) > 2 * int(flops[0]) and int(root[5]) > 2 * int(flops[1])
    assert block.norm.mean.value.tolist() == [0] * 4  # nothing was run


def test_a_table_shows_calls_of_inherited_methods_once():
    class Scaled(nnx.Linear):
        def __call__(self, x):
            return super().__call__(2 * x)

    class Base(nnx.Module):
        def __call__(self, x):
            return self.plain(self.scaled(x))

    class Net(Base):
        def __init__(self, rngs):
            self.plain = type("Plain", (nnx.Linear,), {})(4, 3, rngs=rngs)
            self.scaled = Scaled(4, 4, rngs=rngs)

    call = nnx.Linear.__call__
    table = nnx.tabulate(Net(nnx.Rngs(0)), jnp.ones((2, 4))).split("\n")
    assert [row.split()[2] for row in table if "float32[2," in row] == [
        "float32[2,3]",
        "float32[2,3]",
        "float32[2,4]",
    ]
    assert nnx.Linear.__call__ is call


def test_a_table_has_no_number_for_a_call_that_cannot_be_counted():
    class Block(nnx.Module):
        def __init__(self, rngs):
            self.inner = nnx.Linear(4, 4, rngs=rngs)

        def twice(self, f, x):
            return jax.lax.while_loop(lambda x: x.sum() < 9, jnp.exp, f(f(x)))

        def __call__(self, x):
            return self.twice(lambda x: self.inner(x), x)

    options = {"compute_flops": True, "compute_vjp_flops": True}
    table = nnx.tabulate(Block(nnx.Rngs(0)), jnp.ones((2, 4)), **options).split("\n")
    (start,) = (i for i, row in enumerate(table) if row.startswith("inner"))
    counts = [row.split("[2,4]")[1].split()[:2] for row in table[2:4]]
    assert all(flops.isdigit() and vjp == "unknown" for flops, vjp in counts)
    inner = [row for row in table[start:] if "float32[2,4]" in row]
    assert len(inner) == 2 and all("unknown" not in row for row in inner)


def test_capture_collects_only_what_was_asked_for():
    model = Noisy()
    _, shifts = nnx.capture(model, nnx.Perturbation)(3.0)
    assert list(shifts) == ["shift"] and not hasattr(model, "xs")
    assert model.sow(nnx.Intermediate, "xs", 1.0, capture_noop=True) is False
    assert not hasattr(model, "xs")


# Flax's modes
nothing = SimpleNamespace(init=lambda params: (), update=lambda *_: None)


def test_the_switch_of_modes_decorates_as_well():
    with nnx.set_graph_mode(True):
        assert nnx.set_graph_updates(True)(lambda: 3)() == 3
    with pytest.raises(ValueError, match="can't be set to False"):
        nnx.set_graph_mode(False)
    assert nnx.compat.jit is nnx.jit and nnx.graph.split is nnx.split


# Programs


def test_bound_functions_see_later_updates():
    counter = nnx.Dict(n=nnx.Variable(jnp.array(0)))

    def add(counter, k):
        counter.n.value += k
        return counter.n.value

    step = nnx.jit_partial(add, counter)
    counter.n.value = jnp.array(10)
    assert int(step(1)) == 11 == int(counter.n.value)
    assert list(inspect.signature(step).parameters) == ["k"]
    assert step.eval_shape(1).dtype == jnp.int32 and "add" in str(step.trace(1).jaxpr)
    compiled = step.lower(1).compile()
    assert int(compiled(2)) == 13 == int(counter.n.value)
    counter.n.value = jnp.array(11)
    jaxpr = nnx.make_jaxpr(add, graph=True, graph_updates=False)(counter, 1)
    assert "add" in str(jaxpr) and int(counter.n.value) == 11


@pytest.mark.parametrize("static_argnums", [(), (1,)])
def test_a_jaxpr_comes_with_shapes_if_asked(static_argnums):
    model = nnx.Dict(w=nnx.Param(jnp.ones(3)))

    def twice(model, k):
        model.w.value *= k
        return model, model.w.value.sum()

    shown = nnx.make_jaxpr(static_argnums=static_argnums, return_shape=True)(twice)
    jaxpr, (made, total) = shown(model, 2)
    assert "mul" in str(jaxpr) and model.w.value.tolist() == [1.0] * 3
    assert made.w.value == jax.ShapeDtypeStruct((3,), jnp.float32)
    assert total.shape == ()
    with pytest.raises(TypeError, match="axis_environment"):
        nnx.make_jaxpr(twice, axis_environment=[("i", 2)])


def test_a_jaxpr_may_be_of_a_function_of_a_mapped_axis():
    def total(counter, x):
        counter.n.value += jax.lax.psum(x, "i")
        return counter

    counter, x = nnx.Dict(n=nnx.Variable(jnp.array(0.0))), jnp.ones(3)
    jaxpr, made = nnx.make_jaxpr(total, (), [("i", 2)], True)(counter, x)
    assert "psum" in str(jaxpr) and made.n.value.shape == (3,)
    assert counter.n.value.shape == ()
    with pytest.raises(NameError, match="unbound axis name"):
        nnx.make_jaxpr(total)(counter, x)


def test_a_jaxpr_has_what_the_function_captures_as_constants():
    def shown(make):
        found = []

        def outer(x):
            found.append(make(lambda y: x * y + 1)(y=jnp.arange(3.0)))
            return x

        jax.jit(outer)(2.0)
        return str(found[0])

    assert shown(nnx.make_jaxpr) == shown(jax.make_jaxpr)


def test_the_first_argument_of_a_jaxpr_may_be_static():
    jaxpr = nnx.make_jaxpr(lambda n, x: n * x, 0)(3, 2.0)
    assert len(jaxpr.in_avals) == 1


def test_a_prefix_is_that_of_the_tree():
    model = nnx.Dict(w=nnx.Param(jnp.arange(3.0)), b=nnx.BatchStat(jnp.array(2.0)))
    tree = {"m": model, "x": jnp.ones(3)}
    axes = nnx.prefix(tree, lambda path, value: None if "b" in path else 0)
    compute = lambda tree: tree["m"].w.value * tree["m"].b.value + tree["x"]
    assert nnx.vmap(compute, in_axes=(axes,))(tree).tolist() == [1.0, 3.0, 5.0]
    with pytest.raises(ValueError, match=r"BatchStat at 'b'"):
        nnx.prefix(model, {nnx.Param: 0})


def test_shardings_follow_logical_rules():
    def spec():
        w = nnx.Param(jnp.ones((2, 2)), out_sharding=("in", "out"))
        return tuple(nnx.get_partition_spec(nnx.state(nnx.Dict(w=w))).w.value)

    with nnx.logical_axis_rules([("out", "model"), ("in", None)]):
        assert spec() == (None, "model")
    assert spec() == ("in", "out")


@pytest.mark.devices(2)
def test_variables_are_placed_when_they_are_made():
    mesh = jax.make_mesh((2,), ("data",))
    init = nnx.with_partitioning(jax.nn.initializers.ones, ("data", None))
    make = lambda: nnx.Dict(w=nnx.Param(init(jax.random.key(0), (4, 2))))
    with jax.set_mesh(mesh):
        placed, compiled = make(), nnx.jit(make)()
        with nnx.use_eager_sharding(False):
            left = make()
    with jax.set_mesh(jax.make_mesh((2,), ("model",))):
        with pytest.raises(ValueError, match="data") as raised:
            make()
        assert "use_eager_sharding(False)" in " ".join(raised.value.__notes__)
    for node in (placed, compiled):
        assert node.w.value.sharding.spec[0] == "data", node
    assert left.w.value.sharding.is_fully_replicated and nnx.using_eager_sharding()
    assert make().w.value.sharding.is_fully_replicated  # no mesh is in force
    graphdef, abstract = nnx.get_abstract_model(make, mesh)
    assert abstract.w.value.sharding.spec[0] == "data"
    assert nnx.merge(graphdef, abstract).w.value.shape == (4, 2)
    shape = jax.ShapeDtypeStruct((4, 2), "float32")
    without = nnx.Dict(w=nnx.Param(shape, out_sharding=("data", None)))
    with jax.set_mesh(mesh):
        assert nnx.as_abstract(without).w.value.sharding.spec[0] == "data"


@pytest.mark.devices(2)
def test_abstract_values_have_the_shardings_that_are_known():
    mesh = jax.make_mesh((2,), ("data",), (jax.sharding.AxisType.Auto,))

    def make():
        node = nnx.Dict(plain=nnx.Param(jnp.ones(3)), tree=nnx.Param([jnp.ones(2)]))
        node.logical = nnx.Param(jnp.ones(4), sharding=("embed",))
        node.own = nnx.Param(jnp.ones(4), sharding=("data",), mesh=mesh)
        return node, node.own

    node, own = nnx.eval_shape(make)
    assert own is node.own and own.value.sharding.spec == PartitionSpec("data")
    assert node.plain.value.sharding is None
    with jax.set_mesh(mesh):
        (node, _), state = nnx.eval_shape(lambda: (make(), nnx.state(make())))
    assert state[0].own.value.sharding.spec == PartitionSpec("data")
    assert node.plain.value.sharding.spec == PartitionSpec()
    assert node.logical.value.sharding is None  # nothing says where that is
    assert node.tree.value[0].sharding is None


@pytest.mark.parametrize(
    "use",
    [
        lambda model, **mode: list(nnx.iter_modules(model, **mode)),
        lambda model, **mode: list(nnx.iter_module_children(model, **mode)),
        lambda model, **mode: list(nnx.iter_children(model, **mode)),
        lambda model, **mode: nnx.reseed(model, default=1, **mode),
        lambda model, **mode: nnx.view_info(model, **mode),
        lambda model, **mode: nnx.as_abstract(model, **mode),
        lambda model, **mode: model.set_attributes(rate=0.1, **mode),
        lambda model, **mode: nnx.split(model, ..., **mode),
        lambda model, **mode: nnx.state(model, nnx.RngKey, **mode),
        lambda model, **mode: nnx.variables(model, **mode),
        lambda model, **mode: nnx.graphdef(model, **mode),
        lambda model, **mode: nnx.clone(model, variables=False, **mode),
        lambda model, **mode: nnx.graph.flatten(model, **mode),
        lambda model, **mode: list(nnx.iter_graph(model, **mode)),
        lambda model, **mode: nnx.backup_keys(model, **mode),
        lambda model, **mode: nnx.EMA(model, 0.9, only=nnx.Param, **mode),
        lambda model, **mode: nnx.Optimizer(model, nothing, nnx.RngCount, **mode),
    ],
)
def test_tools_do_the_same_in_every_mode_of_flax(use):
    results = []
    for mode in ({}, {"graph": True}, {"graph": False}):
        model = nnx.Dropout(0.5, rngs=nnx.Rngs(0))
        results.append((str(use(model, **mode)), str(model)))
    assert results[0] == results[1] == results[2]
