"""Saving graphs to files and restoring them."""

import pickle
import sys
from collections import OrderedDict, UserDict
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import nnx_transforms as nnx
from nnx_transforms import saving

optax = pytest.importorskip("optax")
pytest.importorskip("orbax.checkpoint")


class Net(nnx.Module):
    """A tied layer, running statistics, dropout, a Python counter and a cycle."""

    def __init__(self, seed=0):
        rngs = nnx.Rngs(seed)
        self.first = nnx.Linear(4, 4, rngs=rngs)
        self.again = self.first
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.dropout = nnx.Dropout(0.3, rngs=rngs)
        self.calls = nnx.BatchStat(0, unit="calls")
        self.me = self

    def __call__(self, x):
        self.calls.value += 1
        return self.dropout(self.norm(self.again(self.first(x)))).sum(axis=1)


X = jnp.asarray(np.random.default_rng(0).normal(size=(8, 4)), jnp.float32)


@nnx.jit
def step(run):
    value, grads = nnx.value_and_grad(lambda m: jnp.mean((m(X) - 1) ** 2))(run.model)
    run.optimizer.update(grads)
    return value


def new_run(seed=0):
    model = Net(seed)
    optimizer = nnx.Optimizer(model, optax.adamw(0.01))
    return nnx.Dict(model=model, optimizer=optimizer)


def trained(steps, seed=0):
    run = new_run(seed)
    for _ in range(steps):
        step(run)
    return run


def assert_same(one, other):
    """That two nodes have equal structure and, bit by bit, equal values."""
    one, other = nnx.state(one), nnx.state(other)
    # With the types and the metadata of the variables.
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert type(x) is type(y)
        assert getattr(x, "weak_type", None) == getattr(y, "weak_type", None)
        if hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        np.testing.assert_array_equal(x, y)


def values(node):
    return [np.asarray(x) for x in jax.tree.leaves(nnx.state(node, nnx.Param))]


@pytest.mark.parametrize("target", ["fresh", "used", "abstract"])
def test_a_run_goes_on_as_if_it_had_never_stopped(tmp_path, target):
    start = new_run()
    run = nnx.clone(start)  # so that the step is compiled once
    for _ in range(3):
        step(run)
    saving.save(tmp_path / "run", run)
    make = {
        "fresh": lambda: nnx.clone(start),
        "used": lambda: (other := nnx.clone(run), step(other))[0],
        "abstract": lambda: nnx.eval_shape(nnx.clone, start),
    }
    other = make[target]()
    model, kernel = other.model, other.model.first.kernel
    assert saving.restore(tmp_path / "run", other) is other
    assert_same(other, run)
    assert other.model is model is other.optimizer.model is model.me
    assert model.first is model.again and model.first.kernel is kernel
    # What is drawn, counted and updated from here on is the same.
    for _ in range(2):
        assert step(other) == step(run)
    assert_same(other, run)


def test_a_shared_object_is_saved_once(tmp_path):
    run = new_run()
    saving.save(tmp_path / "run", run)
    found = saving.read_values(tmp_path / "run")
    assert len(found) == len(jax.tree.leaves(nnx.state(run))) - 1  # `calls` is a number
    assert "model/again/kernel" in found and "model/first/kernel" not in found
    assert "optimizer/model/again/kernel" not in found


def test_pytrees_of_objects(tmp_path):
    model = Net()
    saving.save(tmp_path / "both", (model, {"rngs": nnx.Rngs(params=3)}))
    other, streams = saving.restore(
        tmp_path / "both", (Net(1), {"rngs": nnx.Rngs(params=4)})
    )
    assert_same(other, model)
    assert streams["rngs"].params() == nnx.Rngs(params=3).params()


LEAVES = st.sampled_from(
    [
        lambda: jnp.arange(3, dtype=jnp.int8),
        lambda: jnp.ones((2, 2), jnp.bfloat16) / 3,
        lambda: jnp.ones(2, jnp.float8_e4m3fn),
        lambda: jnp.array([1 + 2j]),
        lambda: jnp.array(True),
        lambda: jnp.asarray(2.5),  # of a weak type
        lambda: jnp.broadcast_to(jnp.asarray(1), (3,)),
        lambda: jnp.zeros((0, 3)),
        lambda: jax.random.key(7),
        lambda: jax.random.split(jax.random.key(1, impl="rbg"), 3),
        lambda: jax.random.split(jax.random.key(1), 0),
        lambda: np.arange(4.0),
        lambda: 3,
        lambda: float("inf"),
        lambda: 1j,
        lambda: "text",
        lambda: None,
        lambda: {"b": jnp.ones(2), "a": (np.int32(3) * np.ones(1), 2.0)},
        lambda: optax.EmptyState(),
        lambda: optax.ScaleByScheduleState(count=jnp.array(3)),
    ]
)
KEYS = st.sampled_from(
    [
        0,
        1,
        "1",
        "-3",
        "a/b",
        "a",
        "b",
        "a.b",
        "x#y",
        "%31",
        "ä",
        " ",
        "",
        "..",
        "d/",
        "٣",
    ]
)
GRAPHS = st.recursive(
    LEAVES, lambda inner: st.dictionaries(KEYS, inner, min_size=1, max_size=3)
)


def graph(tree):
    if isinstance(tree, dict):
        return nnx.Dict([(key, graph(item)) for key, item in tree.items()])
    return nnx.Variable(tree(), unit=("m", 1.5))


@settings(max_examples=25)
@given(tree=st.dictionaries(KEYS, GRAPHS, min_size=1, max_size=4))
def test_what_was_saved_comes_back(tmp_path_factory, tree):
    path = tmp_path_factory.mktemp("graph") / "graph"
    node = graph(tree)
    saving.save(path, node)

    def emptied(x):
        return jnp.zeros_like(x) if isinstance(x, jax.Array) and x.ndim == 1 else x

    other = nnx.merge(nnx.graphdef(node), jax.tree.map(emptied, nnx.state(node)))
    assert_same(saving.restore(path, other), node)


def test_arrays_that_stand_in_an_object_as_they_are(tmp_path):
    def make(value):
        return nnx.Dict(
            a=jnp.full(2, value), parts=[np.full(3, value), nnx.Param(jnp.ones(1))]
        )

    saving.save(tmp_path / "bare", make(1.0))
    for node in (make(2.0), nnx.eval_shape(lambda: make(0.0))):
        assert_same(saving.restore(tmp_path / "bare", node), make(1.0))
    only = nnx.PathContains("a")
    saving.save(tmp_path / "a", make(3.0), only)
    assert saving.restore(tmp_path / "a", node, only).a.tolist() == [3.0, 3.0]
    other = nnx.Dict(a=nnx.Param(jnp.ones(2)), parts=[np.ones(3), jnp.ones(1)])
    with pytest.raises(saving.DifferentGraphError) as info:
        saving.restore(tmp_path / "bare", other)
    assert [str(d) for d in info.value.differences] == [
        "a: type params in the graph, array in the file",
        "parts/1: type array in the graph, params in the file",
    ]


def test_what_is_static_in_a_value_is_that_of_the_graph(tmp_path):
    def make(value, f):
        return nnx.Dict(v=nnx.Param({"w": jnp.full(2, value), "n": value, "f": f}))

    saving.save(tmp_path / "x", make(1.0, abs))
    assert_same(saving.restore(tmp_path / "x", make(0.0, len)), make(1.0, len))


def test_metadata_goes_through_and_hooks_stay(tmp_path):
    def double(_, value):
        return value * 2

    old = nnx.Dict(
        w=nnx.Param(1.0, unit=("m", 2), on_get_value=double, sharding=("x",))
    )
    old.w.order = OrderedDict(a=1)
    old.w.table = table = {"a": [1, None, (2j, {3: (True, [])})]}
    saving.save(tmp_path / "w", old)
    new = nnx.Dict(w=nnx.Param(3.0, unit="km", on_get_value=double, sharding=("y",)))
    new.w.note = "kept"
    new.w.order = OrderedDict(a=2)
    saving.restore(tmp_path / "w", new)
    assert new.w.value == 2.0 and new.w.unit == ("m", 2) and new.w.note == "kept"
    assert new.w.table == table
    # A mapping of another type than dict is not written.
    assert type(new.w.order) is OrderedDict and new.w.order["a"] == 2
    # Where a value lies is up to the program that runs.
    assert new.w.sharding == ("y",)


# What differs


def two(**changes):
    variables = {
        "a": nnx.Param(jnp.zeros((2, 3))),
        "b": nnx.Dict(c=nnx.BatchStat(jnp.zeros(2, jnp.int32))),
        **changes,
    }
    return nnx.Dict({key: v for key, v in variables.items() if v is not None})


TIED = nnx.Param(jnp.zeros(2))


@pytest.mark.parametrize(
    ("graph", "file", "expected"),
    [
        ({"d": nnx.Param(jnp.ones(2))}, {}, ("d", "missing")),
        ({}, {"d": nnx.Dict(e=nnx.Param(jnp.ones(2)))}, ("d/e", "new")),
        ({"a": nnx.Param(jnp.zeros((2, 4)))}, {}, ("a", "shape")),
        ({"a": nnx.Param(jnp.zeros((2, 3), jnp.float16))}, {}, ("a", "dtype")),
        ({"a": nnx.Cache(jnp.zeros((2, 3)))}, {}, ("a", "type")),
        ({"a": nnx.Param({"x": jnp.zeros(1)})}, {}, ("a#['x']", "missing")),
        ({"d": nnx.Param(0)}, {"d": nnx.Param(0.5)}, ("d", "dtype")),
        ({"d": nnx.Param(0)}, {"d": nnx.Param("text")}, ("d", "dtype")),
        ({"d": nnx.Param(0)}, {"d": nnx.Param(jax.random.key(0))}, ("d", "dtype")),
        (
            {"d": nnx.Param(jnp.zeros(2))},
            {"d": nnx.Param(np.zeros(2, np.int32))},
            ("d", "dtype"),
        ),
        (
            {"d": nnx.Param(np.zeros(2, np.int32))},
            {"d": nnx.Param(np.zeros(2, np.int64))},
            ("d", "dtype"),
        ),
        (
            {"d": nnx.Variable(jax.random.key(0))},
            {"d": nnx.Variable(jax.random.key(0, impl="rbg"))},
            ("d", "dtype"),
        ),
        (
            {"t": TIED, "u": TIED},
            {"t": nnx.Param(jnp.zeros(2)), "u": nnx.Param(jnp.zeros(2))},
            ("u", "sharing"),
        ),
        (
            {"t": nnx.Param(jnp.zeros(2)), "u": nnx.Param(jnp.zeros(2))},
            {"t": TIED, "u": TIED},
            ("u", "sharing"),
        ),
    ],
)
def test_what_differs_is_named_and_nothing_is_changed(tmp_path, graph, file, expected):
    saving.save(tmp_path / "file", two(**file))
    node = two(**graph)
    before = nnx.state(node)
    with pytest.raises(saving.DifferentGraphError, match="nothing was changed") as info:
        saving.restore(tmp_path / "file", node)
    assert expected in [(d.path, d.kind) for d in info.value.differences]
    assert expected[0] in str(info.value)
    assert nnx.state(node) == before


def test_all_differences_are_listed(tmp_path):
    saving.save(tmp_path / "file", nnx.Dict(a=nnx.Param(jnp.ones(2)), c=nnx.Param(1)))
    node = nnx.Dict(a=nnx.Cache(jnp.ones(3)), b=nnx.Param("x"))
    with pytest.raises(saving.DifferentGraphError) as info:
        saving.restore(tmp_path / "file", node)
    assert str(info.value).splitlines()[1:-1] == [
        "  a: type cache in the graph, params in the file",
        "  a: shape (3,) in the graph, (2,) in the file",
        "  b: params str in the graph, missing in the file",
        "  c: params int in the file, not in the graph",
    ]
    again = pickle.loads(pickle.dumps(info.value))
    assert again.differences == info.value.differences
    assert str(again) == str(info.value)


def test_of_many_differences_the_first_are_shown(tmp_path):
    saving.save(tmp_path / "file", nnx.List([nnx.Param(1) for _ in range(50)]))
    with pytest.raises(saving.DifferentGraphError) as info:
        saving.restore(tmp_path / "file", nnx.List([]))
    assert len(info.value.differences) == 50
    shown = str(info.value).splitlines()[1:-1]
    assert shown[-1] == f"  ... {51 - len(shown)} more" and len(shown) < 25


def test_a_counter_may_have_become_an_array_and_the_reverse(tmp_path):
    counter = nnx.Dict(n=nnx.Variable(0))

    @nnx.jit
    def count(node):
        node.n.value += 1

    saving.save(tmp_path / "number", counter)
    count(counter)
    saving.save(tmp_path / "array", counter)
    fresh = saving.restore(tmp_path / "array", nnx.Dict(n=nnx.Variable(0)))
    assert_same(fresh, counter)
    count(fresh)
    assert nnx.explain_recompile(count) == []  # its weak type came along
    assert saving.restore(tmp_path / "number", fresh).n.value == 0


def test_an_array_of_64_bits_on_the_host_goes_through_an_abstract_graph(tmp_path):
    def make():
        return nnx.Dict(n=nnx.Variable(np.arange(3)))

    saving.save(tmp_path / "n", make())
    assert_same(saving.restore(tmp_path / "n", nnx.eval_shape(make)), make())


# Parts


def test_a_part_by_filter(tmp_path):
    run = trained(2)
    saving.save(tmp_path / "run", run)
    other = new_run(1)
    before = nnx.state(other, nnx.BatchStat)
    saving.restore(tmp_path / "run", other, nnx.Param)
    assert jax.tree.map(bool, jax.tree.map(jnp.array_equal, values(other), values(run)))
    assert nnx.state(other, nnx.BatchStat) == before
    assert int(other.optimizer.step.value) == 0


def test_what_is_shared_otherwise_outside_of_a_part(tmp_path):
    untied = (nnx.Param(jnp.ones(2)) for _ in range(2))
    file = two(**dict(zip("tu", untied, strict=True)), b=nnx.BatchStat(1))
    saving.save(tmp_path / "x", file)
    node = two(t=TIED, u=TIED, b=nnx.BatchStat(0))
    assert saving.restore(tmp_path / "x", node, nnx.BatchStat).b.value == 1


def test_a_part_of_another_graph(tmp_path):
    run = trained(2)
    saving.save(tmp_path / "run", run)
    model = Net(1)
    # Its variables are in the file under the optimizer's `model` as well.
    part = nnx.Dict(model=model)
    saving.restore(tmp_path / "run", part, nnx.PathContains("model"))
    assert_same(model, run.model)
    late = nnx.Dict(optimizer=nnx.Dict(model=Net(1)))
    saving.restore(tmp_path / "run", late, lambda path, _: "model" in path)
    assert_same(late.optimizer.model, run.model)
    with pytest.raises(saving.DifferentGraphError, match="optimizer/step"):
        saving.restore(tmp_path / "run", part)


def test_saving_a_part(tmp_path):
    model = Net()
    saving.save(tmp_path / "params", model, nnx.Param)
    other = Net(1)
    with pytest.raises(saving.DifferentGraphError, match="calls: batch_stats int"):
        saving.restore(tmp_path / "params", other)
    saving.restore(tmp_path / "params", other, nnx.Param)
    assert nnx.state(other, nnx.Param) == nnx.state(model, nnx.Param)


def test_a_graph_without_arrays(tmp_path):
    saving.save(tmp_path / "plain", nnx.Dict(n=nnx.Param(3), name="static"))
    assert saving.restore(tmp_path / "plain", nnx.Dict(n=nnx.Param(0))).n.value == 3
    saving.save(tmp_path / "none", nnx.Dict(name="static"))
    with pytest.raises(ValueError, match="which has no variables"):
        saving.save(tmp_path / "some", nnx.Dict(name="static"), nnx.Param)
    assert saving.restore(tmp_path / "none", nnx.Dict(name="other")).name == "other"


@pytest.mark.parametrize("jit", [nnx.jit, jax.jit])
def test_what_is_traced_is_restored_outside(tmp_path, jit):
    make = lambda: nnx.Dict(inner=nnx.Dict(w=nnx.Param(jnp.arange(3.0))))
    saving.save(tmp_path / "model", make())

    @jit
    def inside(x):
        return saving.restore(tmp_path / "model", make()).inner.w.value + x

    with pytest.raises(TypeError, match=r"at 'inner/w' is traced.* Restore .* outside"):
        inside(1.0)


# Placement


@pytest.mark.devices(8)
def test_restoring_on_other_devices(tmp_path):
    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    other_mesh = jax.make_mesh((2,), ("z",), axis_types=(AxisType.Auto,))

    class Table(nnx.Module):
        def __init__(self, sharding=None):
            self.rows = nnx.Param(jnp.arange(32.0).reshape(8, 4), sharding=sharding)
            self.keys = nnx.Variable(jax.random.split(jax.random.key(0), 8))
            self.count = nnx.Variable(jnp.array(3))

    def shard(spec, mesh=mesh):
        return NamedSharding(mesh, PartitionSpec(*spec))

    table = Table()
    table.rows.value = jax.device_put(table.rows.value, shard(("x", "y")))
    table.keys.value = jax.device_put(table.keys.value, shard(("x",)))
    saving.save(tmp_path / "table", table)

    # Where the graph's arrays are, and free where they are free.
    same = Table()
    same.rows.value = jax.device_put(same.rows.value, shard(("y",)))
    saving.restore(tmp_path / "table", same)
    assert same.rows.value.sharding == shard(("y",))
    assert not same.count.value.committed and not same.keys.value.committed
    assert float(jax.jit(jnp.dot)(same.rows.value[0, 1], same.count.value)) == 3.0

    # On another mesh, by filter.
    where = nnx.StateSharding(
        {nnx.Param: shard((None, "z"), other_mesh), ...: shard((), other_mesh)}
    )
    for node in (nnx.eval_shape(Table), same):
        split = saving.restore(tmp_path / "table", node, sharding=where)
        assert split.rows.value.sharding == shard((None, "z"), other_mesh)
        assert split.keys.value.sharding.mesh == other_mesh
        assert_same(split, table)

    # Where stand-ins say, whatever the metadata do.
    abstract = nnx.eval_shape(lambda: Table((None, "x")))
    rows = jax.ShapeDtypeStruct((8, 4), jnp.float32, sharding=shard(("y",)))
    abstract.rows.value = rows
    with jax.set_mesh(mesh):
        saving.restore(tmp_path / "table", abstract)
    assert abstract.rows.value.sharding == rows.sharding

    # By the metadata, on the mesh in force.
    with jax.set_mesh(mesh):
        by_name = saving.restore(
            tmp_path / "table", nnx.eval_shape(lambda: Table((None, "x")))
        )
    assert by_name.rows.value.sharding.spec == PartitionSpec(None, "x")
    np.testing.assert_array_equal(by_name.rows.value, table.rows.value)

    # By logical names, which stand for other axes than where it was saved.
    with jax.set_mesh(mesh):
        logical, elsewhere = Table(("rows",)), Table(("rows",))
        nnx.shard(logical, rules={"rows": "x"})
        saving.save(tmp_path / "logical", logical)
        nnx.shard(elsewhere, rules={"rows": "y"})
        saving.restore(tmp_path / "logical", elsewhere)
    assert nnx.get_var_pspec(elsewhere.rows) == PartitionSpec("y")
    assert elsewhere.rows.value.sharding.spec == PartitionSpec("y")


@pytest.mark.devices(8)
def test_a_sharding_that_does_not_fit_is_named_before_anything_is_read(tmp_path):
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))

    def make(*names):
        rows = nnx.Param(jnp.arange(6.0), sharding=names)
        return nnx.Dict(
            a=nnx.Dict(rows=rows, host=nnx.Variable(np.ones(3, np.float32)))
        )

    with saving.Manager(tmp_path) as manager:
        manager.save(1, make())
    values = {"a/rows": np.ones(6, np.float32), "a/host": np.ones(3, np.float32)}
    abstract = nnx.eval_shape(lambda: make("x"))
    expected = r"'a/\w+', of shape \([36],\), can't be laid out as NamedSharding.*'x'"
    with jax.set_mesh(mesh), saving.Manager(tmp_path) as manager:
        for given in (None, PartitionSpec("x"), PartitionSpec(None, "x")):
            for read in (
                lambda given: saving.restore(tmp_path / "1", abstract, sharding=given),
                lambda given: saving.load(values, abstract, sharding=given),
                lambda given: manager.restore(abstract, sharding=given),
            ):
                with pytest.raises(ValueError, match=expected) as info:
                    read(given)
                assert not isinstance(info.value, saving.DamagedCheckpointError)
        # What stays on the host is laid out nowhere.
        where = nnx.StateSharding({nnx.Param: PartitionSpec(), ...: PartitionSpec("x")})
        node = saving.restore(tmp_path / "1", make(), sharding=where)
        assert node.a.host.value.tolist() == [1.0] * 3
    # A spec that is asked for needs a mesh; one in the metadata waits for it.
    with pytest.raises(ValueError, match=r"'a/\w+'.*no mesh is in force.*set_mesh"):
        saving.restore(tmp_path / "1", abstract, sharding=PartitionSpec("x"))
    node = saving.restore(tmp_path / "1", abstract)
    assert node.a.rows.value.tolist() == list(range(6))


# What can't be


def test_a_filter_that_selects_nothing_is_an_error(tmp_path):
    shared = nnx.Param(jnp.ones(2))
    tied = nnx.Dict(decode=shared, embed=shared, none=nnx.Cache(None))
    saving.save(tmp_path / "x", tied)
    given, values = nnx.PathContains("embed"), {"decode": np.ones(2, np.float32)}
    for call in (
        lambda: saving.save(tmp_path / "y", tied, given),
        lambda: saving.restore(tmp_path / "x", tied, given),
        lambda: saving.load(values, tied, filter=given),
        lambda: saving.export_safetensors(tmp_path / "y", tied, given),
    ):
        with pytest.raises(ValueError, match=r"(?s)embed.*selects nothing.*has decode"):
            call()
    assert not (tmp_path / "y").exists()
    saving.save(tmp_path / "y", tied, nnx.Cache)  # a variable, though without arrays


def test_what_cannot_be_saved_is_named(tmp_path):
    with pytest.raises(TypeError, match="'a/b' can't be saved"):
        saving.save(tmp_path / "x", nnx.Dict(a=nnx.Dict(b=nnx.Param(object()))))
    abstract = nnx.eval_shape(lambda: nnx.Dict(w=nnx.Param(jnp.ones(2))))
    with pytest.raises(TypeError, match=r"'w' can't be saved.*ShapeDtypeStruct"):
        saving.save(tmp_path / "x", abstract)
    words = nnx.Dict(a=nnx.Dict(words=nnx.Variable(np.array(["one", "two"]))))
    with pytest.raises(TypeError, match=r"'a/words' can't be saved.*dtype"):
        saving.save(tmp_path / "x", words)
    # Its mask would be lost.
    masked = nnx.Dict(w=nnx.Variable(np.ma.masked_array([1.0, 2.0], [True, False])))
    with pytest.raises(TypeError, match=r"(?s)'w' can't be saved.*MaskedArray"):
        saving.save(tmp_path / "x", masked)
    with pytest.raises(TypeError, match=r"'w' is masked_array"):
        saving.export_safetensors(tmp_path / "x", masked)
    assert not (tmp_path / "x").exists()


def test_a_checkpoint_is_not_written_over(tmp_path):
    saving.save(tmp_path / "x", nnx.Dict(a=nnx.Param(jnp.ones(2))))
    with pytest.raises(ValueError, match="already exists"):
        saving.save(tmp_path / "x", nnx.Dict(a=nnx.Param(jnp.zeros(2))))
    node = saving.restore(tmp_path / "x", nnx.Dict(a=nnx.Param(jnp.zeros(2))))
    assert node.a.value.tolist() == [1.0, 1.0]


def test_there_is_no_checkpoint(tmp_path):
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        saving.restore(tmp_path / "x", Net())


@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
def test_a_saving_in_the_background_has_the_values_of_its_start(tmp_path):
    big = nnx.Dict(
        w=nnx.Param(jnp.zeros(200_000)), on_host=nnx.Variable(np.zeros(200_000))
    )

    @nnx.jit(donate_state=True)
    def add(node):
        node.w.value += 1

    pending = saving.save_async(tmp_path / "big", big)
    for _ in range(10):
        add(big)
        big.on_host.value += 1
    pending.wait()
    saving.restore(tmp_path / "big", big)
    assert not big.w.value.any() and not big.on_host.value.any()


def test_savings_that_threads_start_at_once(tmp_path):
    def run(number):
        for step in range(3):
            node = nnx.Dict(w=nnx.Param(jnp.full(1000, number)))
            saving.save(tmp_path / f"{number} {step}", node)

    with ThreadPoolExecutor(6) as pool:
        [*pool.map(run, range(6))]
    for number in range(6):
        node = nnx.Dict(w=nnx.Param(jnp.zeros(1000, int)))
        saving.restore(tmp_path / f"{number} 2", node)
        assert {*node.w.value.tolist()} == {number}


def test_a_filter_sees_keys_of_other_digits(tmp_path):
    def make(value):
        return nnx.Dict([("٣", nnx.Param(value)), ("b", nnx.Param(value))])

    saving.save(tmp_path / "x", make(1.0))
    node = nnx.Dict(b=nnx.Param(0.0))
    with pytest.raises(saving.DifferentGraphError, match="٣: params float in the file"):
        saving.restore(tmp_path / "x", node, nnx.PathContains("٣"))


def test_keys_that_read_alike_are_told_apart(tmp_path):
    keys = [1, "1", -3, "-3", "", "%", "%31", "a/b", "a%2Fb"]

    def make(*values):
        return nnx.Dict([(k, nnx.Param(v)) for k, v in zip(keys, values, strict=True)])

    saving.save(tmp_path / "x", make(*range(9)))
    node = saving.restore(tmp_path / "x", make(*[0] * 9))
    assert [node[key].value for key in keys] == [*range(9)]
    for number, key in enumerate(keys):  # also by a filter of what only the file has
        with pytest.raises(saving.DifferentGraphError) as info:
            saving.restore(tmp_path / "x", nnx.Dict(), nnx.PathIn((key,)))
        assert [d.file.value for d in info.value.differences] == [number]


def test_a_filter_sees_what_only_the_file_has_as_it_was(tmp_path):
    more = {"d": nnx.Param(jnp.ones((2, 2))), "e": jnp.ones(3), "f": nnx.Param("g")}
    saving.save(tmp_path / "x", two(**more))
    for only, names in (
        (lambda path, x: getattr(x, "ndim", 2) == 2, "df"),
        (lambda path, x: getattr(x, "ndim", 2) < 2, "e"),
        (lambda path, x: path == ("a",) or getattr(x, "value", 0) == "g", "f"),
        (nnx.Variable, "df"),
        (nnx.Param, "df"),
        (nnx.Any(nnx.Not(nnx.Variable), nnx.BatchStat), "e"),
    ):
        with pytest.raises(saving.DifferentGraphError) as info:
            saving.restore(tmp_path / "x", two(), only)
        assert [d.path for d in info.value.differences] == [*names]


def test_loading_from_a_mapping_that_makes_its_arrays_when_asked():
    class Lazy(UserDict):  # as an open HDF5 file is one
        def __getitem__(self, name):
            return jnp.asarray(super().__getitem__(name))

    numbers = {f"w{i}": np.full(3, i, np.float32) for i in range(8)}
    model = nnx.Dict({name: nnx.Param(jnp.zeros(3)) for name in numbers})
    saving.load(Lazy(numbers), model)
    assert [int(model[name].value[0]) for name in numbers] == list(range(8))


@pytest.mark.parametrize("kind", [dict, UserDict])  # a group of HDF5 is no pytree
def test_loading_from_a_nested_mapping(kind):
    values = kind(params=kind(Dense_0=kind(kernel=np.ones((2, 3), np.float32))))
    model = nnx.Dict(up=nnx.Dict(kernel=nnx.Param(jnp.zeros((2, 3)))))
    saving.load(values, model, {"up": "params/Dense_0"})
    assert model.up.kernel.value.tolist() == [[1.0] * 3] * 2
    model = nnx.List([nnx.Param(jnp.zeros(())) for _ in range(2)])
    saving.load(kind(layers=[np.float32(2), np.float32(3)]), model, {"": "layers"})
    assert (float(model[0].value), float(model[1].value)) == (2.0, 3.0)


@pytest.mark.parametrize("value", [None, object(), "text", jax.random.key(0), 1j])
def test_loading_what_is_no_such_number_is_told(value):
    model = nnx.Dict(w=nnx.Param(jnp.zeros(())))
    with pytest.raises(saving.DifferentGraphError) as info:
        saving.load({"w": value}, model)
    assert ("w", "dtype", "float32") in [d[:3] for d in info.value.differences]


def test_loading_two_numbers_that_are_one_object():
    number, model = 1.5, nnx.Dict(a=nnx.Param(0.0), b=nnx.Param(0.0))
    saving.load({"a": number, "b": number}, model)
    assert model.a.value == model.b.value == number


def test_loading_keys_of_another_implementation_is_refused():
    model = nnx.Dict(w=nnx.Param(jax.random.key(0)))
    data = jax.random.key_data(jax.random.key(0, impl="rbg"))
    with pytest.raises(saving.DifferentGraphError, match="w: dtype key<threefry2x32>"):
        saving.load({"w": data}, model)


def test_names_are_asked_only_for_what_is_loaded():
    given = {"weight": np.ones(2, np.float32)}
    model = nnx.Dict(w=nnx.Param(jnp.zeros(2)), rngs=nnx.Rngs(0), n=nnx.Cache(0))
    saving.load(given, model, {"w": "weight"}.__getitem__, nnx.Param)
    with pytest.raises(TypeError, match="returned None for 'n'"):
        saving.load(given, model, {"w": "weight"}.get)
    assert model.w.value.tolist() == [1.0, 1.0]


def test_loading_one_array_without_a_name():
    given, model = {"": np.ones(2, np.float32)}, nnx.Dict(w=nnx.Param(jnp.zeros(2)))
    with pytest.raises(saving.DifferentGraphError, match=r"<root>: float32.2. in the"):
        saving.load(given, model)
    assert saving.load(given, model, {"w": ""}).w.value.tolist() == [1.0, 1.0]


def test_loading_by_names_that_stand_for_others():
    values = {"a": np.zeros(2, np.float32), "b": np.ones(2, np.float32)}
    model = nnx.Dict(a=nnx.Param(jnp.zeros(2)))
    saving.load(values, model, {"a": "b"}, nnx.Param)
    assert model.a.value.tolist() == [1.0, 1.0]
    with pytest.raises(saving.DifferentGraphError) as info:
        saving.load(values, model, {"a": "b"})
    assert [d[:2] for d in info.value.differences] == [("a", "new")]
    assert "'given' does not fit" in str(info.value)  # which may be large


def test_a_file_of_no_known_kind(tmp_path):
    (tmp_path / "w.bin").write_bytes(b"weights!")
    with pytest.raises(saving.DamagedCheckpointError, match="taken for a msgpack file"):
        saving.load(tmp_path / "w.bin", nnx.Dict())
    for name in ("w.safetensors", "w.msgpack"):
        (tmp_path / name).write_bytes(b"weights!")
    for path in (tmp_path / "w.safetensors", tmp_path / "w.msgpack", tmp_path):
        with pytest.raises(saving.DamagedCheckpointError, match="can't be read") as e:
            saving.load(path, nnx.Dict())
        assert "taken for" not in str(e.value)


def test_a_library_that_is_not_installed_is_no_damage(tmp_path, monkeypatch):
    (tmp_path / "w.safetensors").write_bytes(b"weights!")
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(ImportError, match="safetensors"):
        saving.read_values(tmp_path / "w.safetensors")


def test_a_number_of_numpy_stays_one(tmp_path):
    def make(loss, last):
        return nnx.Dict(best=nnx.Variable(loss), last=nnx.Variable(last))

    saving.save(tmp_path / "run", make(np.float64(0.25), np.array(3.0)))
    found = saving.restore(tmp_path / "run", make(np.float64("inf"), np.array(0.0)))
    assert f"{found.best.value:.2f}" == "0.25"
    assert type(found.best.value) is np.float64
    assert type(found.last.value) is np.ndarray
    fresh = saving.restore(tmp_path / "run", make(float("inf"), np.array(0.0)))
    assert type(fresh.best.value) is np.float64


@pytest.mark.parametrize("program", ["load", "safetensors", "restore"])
def test_what_has_64_bits_where_jax_has_32_is_not_cut(tmp_path, program):
    many = 2**40 + 1

    def make(*numbers):
        return nnx.Dict(
            {k: nnx.Variable(x) for k, x in zip("abc", numbers, strict=True)}
        )

    run, file = make(np.array([many]), many, 0.1), tmp_path / "run.safetensors"
    fresh = make(np.array([0]), 0, 0.0)
    if program == "restore":
        with jax.enable_x64(True):
            saving.save(tmp_path / "run", make(jnp.array([many]), jnp.array(many), 0.1))
        saving.restore(tmp_path / "run", fresh)
    elif program == "load":
        given = {"a": np.array([many]), "b": np.int64(many), "c": np.float64(0.1)}
        saving.load(given, fresh)
        given["a"][:] = 0  # it is the caller's
    else:
        saving.export_safetensors(file, run)
        saving.load(file, fresh)
    assert fresh.a.value.tolist() == [many]
    assert (fresh.b.value, fresh.c.value) == (many, 0.1)
