"""Logical partitioning, on several devices: where each variable and value lies."""

import contextlib
import dataclasses
import sys
import threading
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import linen_lift as nn
from linen_lift import metadata
from linen_lift.spmd import RulesFallback

P = PartitionSpec
KEY = jax.random.key(0)
RULES = (
    ("batch", "data"),
    ("heads", "model"),
    ("mlp", "model"),
    ("embed", None),
    ("everything", ("data", "model")),
)
several = pytest.mark.devices(8)


def mesh_of(kind=AxisType.Auto):
    return jax.make_mesh((2, 4), ("data", "model"), axis_types=(kind, kind))


# --- rules --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "rules", "expected"),
    [
        (("batch", "heads", None), RULES, P("data", "model", None)),
        (("unknown", "batch"), RULES, P(None, "data")),
        # One mesh axis holds one dimension of an array: the first rule wins.
        (("mlp", "heads"), RULES, P(None, "model")),
        # The second rule for a name is its second choice.
        (
            ("a", "b"),
            [("a", "x"), ("b", "x"), ("b", "y")],
            P("x", "y"),
        ),
        # None is a place, so that there is no second choice.
        (("a",), [("a", None), ("a", "x")], P(None)),
        (("everything", "batch"), RULES, P(None, "data")),
        (("everything", "embed"), RULES, P(("data", "model"), None)),
        ((P.UNCONSTRAINED, "batch"), RULES, P(P.UNCONSTRAINED, "data")),
        # Names only are there once.
        ((None, "batch", None), RULES, P(None, "data", None)),
        ((), RULES, P()),
        (None, RULES, None),
    ],
)
def test_rules(names, rules, expected):
    assert nn.logical_to_mesh_axes(names, rules) == expected
    with nn.logical_axis_rules(rules):
        assert nn.logical_to_mesh_axes(names) == expected
    if names is not None:
        tree = {"a": P(*names), "b": [P()]}
        found = nn.logical_to_mesh(tree, rules)
        assert found == {"a": expected, "b": [P()]}


names = st.lists(st.sampled_from("abcd"), unique=True).map(tuple)
places = st.one_of(
    st.none(),
    st.sampled_from("xyz"),
    st.lists(st.sampled_from("xyz"), min_size=2, unique=True).map(tuple),
)
rules = st.lists(st.tuples(st.sampled_from("abcd"), places))


@given(names, rules)
def test_a_mesh_axis_is_used_once_and_as_a_rule_says(names, rules):
    spec = nn.logical_to_mesh_axes(names, rules)
    used = [a for place in spec if place for a in np.atleast_1d(place)]
    assert len(spec) == len(names) and len(set(used)) == len(used)
    for name, place in zip(names, spec, strict=True):
        assert place is None or (name, place) in rules
    # A name that is first in the rules gets what it asks for.
    if rules and rules[0][0] in names:
        assert spec[names.index(rules[0][0])] == rules[0][1]


@given(names, rules)
def test_rules_are_those_of_flax(names, rules):
    flax_nn = pytest.importorskip("flax.linen")
    expected = flax_nn.logical_to_mesh_axes(names, rules)
    assert nn.logical_to_mesh_axes(names, rules) == expected


def test_mistakes_in_rules():
    with pytest.raises(ValueError, match="batch more than once"):
        nn.logical_to_mesh_axes(("batch", "batch"), RULES)
    with pytest.raises(ValueError, match="list or tuple"):
        nn.logical_to_mesh_axes(("batch",), {"batch": "data"})


def test_rules_belong_to_a_thread_and_a_block():
    seen = []
    with nn.logical_axis_rules(RULES):
        thread = threading.Thread(
            target=lambda: seen.append(nn.get_logical_axis_rules())
        )
        thread.start()
        thread.join()
        with contextlib.suppress(KeyError), nn.logical_axis_rules([("a", "b")]):
            assert nn.get_logical_axis_rules() == [("a", "b")]
            raise KeyError
        assert nn.get_logical_axis_rules() == RULES
    # Some Pythons, such as those without a global lock, have a thread inherit them.
    inherits = getattr(sys.flags, "thread_inherit_context", False)
    assert seen == [RULES if inherits else ()] and nn.get_logical_axis_rules() == ()
    nn.set_logical_axis_rules(RULES)
    try:
        assert nn.get_logical_axis_rules() == RULES
    finally:
        nn.set_logical_axis_rules(())


# --- constraints --------------------------------------------------------------------


@several
@pytest.mark.parametrize("how", ["argument", "set_mesh"])
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("jitted", [False, True])
def test_constraints(how, kind, jitted):
    mesh, x = mesh_of(kind), jnp.ones((4, 3, 8))
    given = mesh if how == "argument" and kind is AxisType.Auto else None

    def place(x):
        return nn.with_logical_constraint(x, ("batch", None, "mlp"), RULES, given)

    if given is not None:
        y = jax.jit(place)(x) if jitted else place(x)
    else:
        with jax.set_mesh(mesh):
            y = jax.jit(place)(x) if jitted else place(x)
    assert y.sharding.is_equivalent_to(NamedSharding(mesh, P("data", None, "model")), 3)
    assert {s.data.shape for s in y.addressable_shards} == {(2, 3, 2)}


@several
@pytest.mark.parametrize("outer", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_constraints_over_automatic_axes_keep_explicit_ones(outer):
    kinds = AxisType.Explicit, AxisType.Auto
    mesh = jax.make_mesh((2, len(jax.devices()) // 2), ("data", "model"), kinds)
    with jax.set_mesh(mesh), nn.logical_axis_rules([("heads", "model")]):
        x = jax.device_put(jnp.ones((4, 8)), P("data"))
        hinted = lambda x: nn.with_logical_constraint(x * 1, (None, "heads"))
        out = outer(jax.checkpoint(hinted))(x)
        assert tuple(out.sharding.spec) == ("data", "model")
        grad = outer(jax.grad(lambda x: (hinted(x) ** 2).sum()))(x)
        assert jax.typeof(grad) == jax.typeof(x) and (grad == 2).all()


@several
def test_constraints_of_a_tree():
    tree = {"a": jnp.ones((4, 8)), "b": [jnp.ones(8), 3.0]}
    names = {"a": ("batch", "mlp"), "b": [("mlp",), None]}
    found = nn.with_logical_constraint(tree, names, RULES, mesh_of())
    assert {s.data.shape for s in found["a"].addressable_shards} == {(2, 2)}
    assert {s.data.shape for s in found["b"][0].addressable_shards} == {(2,)}
    assert found["b"][1] == 3.0


@several
@pytest.mark.parametrize("rules", [tuple, list])
def test_a_compiled_module_follows_the_rules_in_force(rules):
    class Constrained(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.with_logical_constraint(x, ("batch", "mlp"))

    compiled = nn.jit(Constrained)()
    found = []
    with jax.set_mesh(mesh_of()):
        for place in ("data", None, "data"):
            with nn.logical_axis_rules(rules([("batch", place), ("mlp", "model")])):
                found.append(compiled.apply({}, jnp.ones((4, 8))))
    assert [{s.data.shape for s in y.addressable_shards} for y in found] == [
        {(2, 2)},
        {(4, 2)},
        {(2, 2)},
    ]


def test_without_rules_or_mesh_nothing_is_constrained():
    x = jnp.ones((4, 8))
    mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    for args in [
        (("batch", "mlp"), None, mesh),
        (("batch", "mlp"), RULES, None),
        (None, RULES, mesh),
    ]:
        assert nn.with_logical_constraint(x, *args) is x


@several
def test_names_without_a_rule():
    x, mesh = jnp.ones((4, 8)), mesh_of()
    place = lambda fallback: nn.with_logical_constraint(
        x, ("unknown", "mlp"), RULES, mesh, fallback
    )
    assert place(RulesFallback.NO_CONSTRAINT) is x
    y = place(RulesFallback.AXIS_IS_UNSHARDED)
    assert y.sharding.spec == P(None, "model")
    with pytest.raises(ValueError, match="unknown"):
        place(RulesFallback.RAISE_ERROR)
    for fallback in RulesFallback:  # not needed
        y = nn.with_logical_constraint(x, ("embed", "mlp"), RULES, mesh, fallback)
        assert y.sharding.spec == P(None, "model")


# --- variables ----------------------------------------------------------------------


def named(*names):
    return nn.with_logical_partitioning(nn.initializers.lecun_normal(), names)


class Block(nn.Module):
    @nn.compact
    def __call__(self, x, _=None):
        h = nn.Dense(8, kernel_init=named("embed", "mlp"), name="up")(x)
        h = nn.with_logical_constraint(nn.relu(h), ("batch", "mlp"))
        out = nn.Dense(4, kernel_init=named("mlp", "embed"), name="down")(h)
        return x + out, None


class Model(nn.Module):
    @nn.compact
    def __call__(self, x):
        Blocks = nn.scan(
            nn.remat(Block),
            variable_axes={"params": 0},
            split_rngs={"params": True},
            length=3,
            metadata_params={nn.PARTITION_NAME: "layers"},
        )
        return Blocks(name="blocks")(x)[0]


def specs(variables):
    return nn.get_partition_spec(variables)["params"]["blocks"]


@several
@pytest.mark.parametrize("rules", [RULES, (("embed", "model"), ("batch", "data"))])
def test_where_each_parameter_lies(rules):
    """The way of Flax's guide: shapes, logical specs, shardings, `init` into them."""
    mesh, model, x = mesh_of(), Model(), jnp.ones((4, 4))
    abstract = jax.eval_shape(model.init, KEY, x)
    logical = nn.get_partition_spec(abstract)
    assert specs(abstract) == {
        "up": {"kernel": P("layers", "embed", "mlp"), "bias": P()},
        "down": {"kernel": P("layers", "mlp", "embed"), "bias": P()},
    }
    shardings = nn.logical_to_mesh_sharding(logical, mesh, rules)
    with jax.set_mesh(mesh), nn.logical_axis_rules(rules):
        variables = jax.jit(model.init, out_shardings=shardings)(KEY, x)
        out = jax.jit(model.apply)(variables, x)
    place = dict(reversed(rules))
    for layer, axes in [("up", ("embed", "mlp")), ("down", ("mlp", "embed"))]:
        found = variables["params"]["blocks"][layer]
        box = found["kernel"]
        assert isinstance(box, nn.LogicallyPartitioned)
        assert box.names == ("layers", *axes)
        spec = P(None, *(place.get(axis) for axis in axes))
        assert box.value.sharding == NamedSharding(mesh, spec)
        split = [4 if place.get(axis) == "model" else 1 for axis in axes]
        sizes = [n // k for n, k in zip(box.value.shape[1:], split, strict=True)]
        shards = {s.data.shape for s in box.value.addressable_shards}
        assert shards == {(3, *sizes)}
        assert found["bias"].sharding.is_fully_replicated
    # The values are those of one device.
    alone = model.init(KEY, x)
    for a, b in zip(*map(jax.tree.leaves, (variables, alone)), strict=True):
        np.testing.assert_allclose(a, b, 1e-5, 1e-6)
    np.testing.assert_allclose(out, model.apply(alone, x), 1e-4, 1e-5)


@several
def test_boxes_lay_values_out_where_they_are_used():
    mesh, x = mesh_of(), jnp.ones((4, 4))
    seen = []

    class Look(nn.Module):
        @nn.compact
        def __call__(self, x):
            kernel = self.param("kernel", named("embed", "mlp"), (4, 8))
            jax.debug.inspect_array_sharding(kernel, callback=seen.append)
            return x @ kernel

    with jax.set_mesh(mesh), nn.logical_axis_rules(RULES):
        variables = Look().init(KEY, x)
        seen.clear()
        jax.block_until_ready(jax.jit(Look().apply)(variables, x))
    expected = NamedSharding(mesh, P(None, "model"))
    assert len(seen) == 1 and seen[0].is_equivalent_to(expected, 2)
    # Neither rules nor a mesh: the same model on one device.
    seen.clear()
    jax.block_until_ready(jax.jit(Look().apply)(variables, x))
    assert all(sharding.is_fully_replicated for sharding in seen)


@several
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_mesh_and_rules_of_a_box(kind):
    mesh = mesh_of(kind)
    with jax.set_mesh(mesh):
        box = nn.LogicallyPartitioned(
            jnp.ones((4, 8)), ("x", "y"), rules=(("y", "model"),)
        )
        assert box.unbox().sharding.spec == P(None, "model")
        assert box.unbox(apply_constraint=False) is box.value
        plain = nn.Partitioned(jnp.ones((4, 8)), ("data", None))
        rows = NamedSharding(mesh, P("data", None))
        assert plain.unbox().sharding.is_equivalent_to(rows, 2)
        assert plain.unbox(apply_constraint=False) is plain.value
        if kind is AxisType.Auto:  # a trace has what is written by hand
            traced = jax.make_jaxpr(lambda x: plain.replace_boxed(x).unbox())
            by_hand = jax.make_jaxpr(
                lambda x: jax.lax.with_sharding_constraint(x, rows.spec)
            )
            assert str(traced(plain.value)) == str(by_hand(plain.value))
        unnamed = nn.LogicallyPartitioned(box.value, None, rules=box.rules)
        assert unnamed.unbox() is box.value
        assert unnamed.get_sharding(mesh) == NamedSharding(mesh, P())
        # What has no layout is handed out as it is.
        abstract = jax.ShapeDtypeStruct((4, 8), jnp.float32)
        assert box.replace_boxed(abstract).unbox() is abstract
    assert box.unbox() is box.value
    on_mesh = box.replace(mesh=mesh_of())
    assert on_mesh.unbox().sharding == NamedSharding(mesh_of(), P(None, "model"))
    assert box.get_sharding(mesh) == NamedSharding(mesh, P(None, "model"))
    shardings = nn.get_sharding({"a": box, "b": jnp.ones(2)}, mesh)
    assert shardings["a"].spec == P(None, "model") and shardings["b"].spec == P()


def test_a_box_with_rules_goes_through_jit():
    init = nn.with_logical_partitioning(
        nn.initializers.ones, ("a", None), rules=[["a", "data"]]
    )
    box = jax.jit(lambda: init(KEY, (2, 3)))()
    assert box.names == ("a", None) and box.rules == (("a", "data"),)


# --- subclasses ---------------------------------------------------------------------


class Frozen(nn.LogicallyPartitioned):
    """A box that says whether its value is trained, and never lays it out."""

    trained: bool = dataclasses.field(default=True, metadata={"static": True})
    scale: float = 1.0

    def unbox(self, apply_constraint=False):
        return super().unbox(apply_constraint=False)


class Renamed(nn.Partitioned):
    kind: str = dataclasses.field(default="renamed", init=False)

    def get_partition_spec(self):
        return PartitionSpec(*(f"my_{name}" for name in self.names))


@pytest.mark.parametrize("make", [Renamed, Frozen, nn.Partitioned])
def test_subclasses_are_pytrees_and_dataclasses(make):
    box = make(jnp.ones((2, 3)), ("a", "b"))
    assert dataclasses.is_dataclass(box)
    doubled = jax.jit(lambda tree: jax.tree.map(lambda x: 2 * x, tree))({"w": box})
    assert type(doubled["w"]) is make and doubled["w"].value.sum() == 12
    params = {nn.PARTITION_NAME: "layers"}
    more = metadata.add_axis({"w": box}, 0, params)
    assert type(more["w"]) is make and more["w"].names == ("layers", "a", "b")
    assert metadata.remove_axis(more, 0, params)["w"].names == ("a", "b")
    assert type(box.replace(names=("c",))) is make
    with pytest.raises(dataclasses.FrozenInstanceError):
        box.names = ()


def test_fields_of_subclasses():
    box = Frozen(jnp.ones(2), ("a",), None, None, False, jnp.float32(3))
    leaves, treedef = jax.tree.flatten(box)
    assert len(leaves) == 2  # the value and the scale
    assert treedef.unflatten(leaves).trained is False
    assert hash(treedef) == hash(jax.tree.structure(box))
    assert Frozen[jax.Array] is not None
    box = jax.tree.map(lambda x: 2 * x, Renamed(1, ("a",)))
    assert box.get_partition_spec() == P("my_a") and box.kind == "renamed"

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            init = lambda *args: Frozen(nn.initializers.ones(*args), ("a", None))
            return nn.Dense(2, kernel_init=init)(x)

    variables = Model().init(KEY, jnp.ones((1, 3)))
    box = variables["params"]["Dense_0"]["kernel"]
    assert isinstance(box, Frozen) and box.value.shape == (3, 2)


def test_fields_marked_as_flax_marks_them():
    struct = pytest.importorskip("flax.struct")

    class Marked(nn.Partitioned):
        note: str = struct.field(default="", pytree_node=False)

    box = jax.jit(lambda: Marked(jnp.ones(2), ("a",), None, "hello"))()
    assert box.note == "hello" and len(jax.tree.leaves(box)) == 1


# --- names in collections of their own ----------------------------------------------


class Scale(nn.Module):
    axes: tuple = ("batch", "mlp")

    @nn.compact
    def __call__(self, x, _=None):
        scale = nn.partitioning.param_with_axes(
            "scale", nn.initializers.ones, x.shape, axes=self.axes
        )
        count = nn.partitioning.variable_with_axes(
            "state", "sum", jnp.zeros, x.shape, axes=self.axes
        )
        count.value += x
        return x * scale, None


@several
def test_parameters_with_axes():
    mesh, x = mesh_of(), jnp.ones((4, 8))
    with jax.set_mesh(mesh), nn.logical_axis_rules(RULES):
        (out, _), variables = jax.jit(Scale().init_with_output)(KEY, x)
        assert variables["state"]["sum"].sharding.spec == P("data", "model")
    assert out.tolist() == x.tolist()
    for collection in ("params", "state"):
        axes = nn.partitioning.get_axis_names(variables[f"{collection}_axes"])
        assert set(axes) == set(variables[collection])
        assert set(axes.values()) == {P("batch", "mlp")}
    placed = nn.logical_to_mesh_sharding(
        nn.partitioning.get_axis_names(variables["params_axes"]), mesh, RULES
    )
    put = jax.device_put(variables["params"], placed)
    assert put["scale"].sharding.spec == P("data", "model")


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_lifted_transforms_name_the_stacked_axis(axis):
    part = nn.partitioning
    names = [["batch", "mlp"] for _ in range(2)]
    names[0].insert(axis if axis >= 0 else 3 + axis, "layers")
    scanned = part.scan_with_axes(
        Scale,
        variable_axes={"params": axis, "state": 0},
        split_rngs={"params": True},
        length=3,
        axes_collections=("params", "state"),
    )
    mapped = part.vmap_with_axes(
        Scale,
        {"params": axis, "state": 0},
        {"params": True},
        in_axes=None,
        axis_size=3,
        partitioning_axis_names={"params": "layers", "state": "layers"},
    )
    for make in (scanned, mapped):
        variables = make().init(KEY, jnp.ones((4, 8)))
        assert variables["params_axes"]["scale_axes"].names == tuple(names[0])
        assert variables["state_axes"]["sum_axes"].names == ("layers", "batch", "mlp")
        assert make().apply(variables, jnp.ones((4, 8)), mutable="state")
        # `apply` leaves them as they are.
        _, state = make().apply(
            variables, jnp.ones((4, 8)), mutable=["state", "params_axes"]
        )
        assert state["params_axes"] == variables["params_axes"]


@pytest.mark.parametrize("filters", [("params", "state"), True, nn.DenyList("other")])
def test_collections_that_are_stacked_together_are_all_named(filters):
    part, x, kinds = nn.partitioning, jnp.ones((4, 8)), ("params", "state")
    scan = partial(part.scan_with_axes, Scale, {filters: 0}, length=3)
    scan = partial(scan, split_rngs={"params": True}, axes_collections=kinds)
    vmap = partial(part.vmap_with_axes, in_axes=None, axis_size=3)
    vmap = partial(vmap, partitioning_axis_names=dict.fromkeys(kinds, "layers"))

    def named(make):
        axes = make().init(KEY, x)
        return [axes[f"{kind}_axes"].popitem()[1].names[:-2] for kind in kinds]

    assert named(scan()) == [("layers",), ("layers",)]
    assert named(vmap(Scale, {filters: 0}, {"params": True})) == named(scan())
    # What all share, or hand on, has no such axis.
    assert named(scan("params")) == [(), ("layers",)]
    assert named(scan(variable_carry="state")) == [("layers",), ()]
    shared = vmap(Scale, {"params": None, filters: 0}, {"params": False})
    assert named(shared) == [(), ("layers",)]


def test_a_method_of_an_unbound_module_may_transform():
    class Makes(nn.Module):
        def layers(self):
            part, axes = nn.partitioning, {"params": 0, "state": 0}
            return part.scan_with_axes(Scale, axes, length=3, split_rngs={True: True})

    variables = Makes().layers()().init(KEY, jnp.ones((4, 8)))
    assert variables["params_axes"]["scale_axes"].names == ("layers", "batch", "mlp")


def test_static_arguments_are_counted_without_the_module():
    class Choose(nn.Module):
        @nn.compact
        def __call__(self, x, train):
            assert isinstance(train, bool)
            return nn.Dense(3)(x) if train else x

    x = jnp.ones((2, 4))
    for place in (1, -1, (-1,)):
        model = nn.partitioning.remat(Choose, static_argnums=place)()
        assert model.init_with_output(KEY, x, True)[0].shape == (2, 3)
    model = nn.partitioning.remat(Choose, static_argnums=(1,))()
    variables = model.init(KEY, x, True)
    assert jax.jit(lambda v: model.apply(v, x, True))(variables).shape == (2, 3)
    jaxpr = jax.make_jaxpr(jax.grad(lambda v: model.apply(v, x, True).sum()))(variables)
    assert "remat" in str(jaxpr) or "checkpoint" in str(jaxpr)


def test_variables_of_another_module_and_without_names():
    class Calls(nn.Module):
        def __call__(self, fn):
            return fn()

    class Around(nn.Module):
        @nn.compact
        def __call__(self):
            def declare():
                part, ones = nn.partitioning, nn.initializers.ones
                part.param_with_axes("a", ones, (2,), axes=("embed",), module=self)
                part.variable_with_axes(
                    "state", "b", jnp.ones, 2, axes=("mlp",), module=self
                )
                part.param_with_axes("c", ones, (2,), module=self)

            Calls()(declare)

    variables = Around().init(KEY)
    assert {name: sorted(found) for name, found in variables.items()} == {
        "params": ["a", "c"],
        "params_axes": ["a_axes"],
        "state": ["b"],
        "state_axes": ["b_axes"],
    }


def test_mistakes_with_axes():
    with pytest.raises(ValueError, match="No module is running"):
        nn.partitioning.param_with_axes("a", nn.initializers.ones, (2,), axes=("a",))

    class Twice(nn.Module):
        @nn.compact
        def __call__(self):
            for names in (("a",), ("b",)):
                nn.partitioning._note(self, "params", "w", names)

    with pytest.raises(ValueError, match="named twice"):
        Twice().init(KEY)


def test_names_of_a_tree_of_arrays():
    axes = {"a": ("foo", "bar"), "b": (("foo", None), ("bar", "foo")), "c": None}

    class Model(nn.Module):
        @nn.compact
        def __call__(self):
            make = lambda key: {"a": ONES, "b": (ONES, ONES), "c": ONES}
            return nn.partitioning.param_with_axes("w", make, axes=axes)

    class Scanned(Model):
        @nn.compact
        def __call__(self, carry, _):
            super().__call__()
            return carry, None

    ONES = jnp.ones((2, 2))
    with nn.logical_axis_rules([("foo", "data"), ("bar", None)]):
        variables = Model().init(jax.random.key(0))
    named = nn.partitioning.get_axis_names(variables["params_axes"])["w"]
    P = jax.sharding.PartitionSpec
    of_pair = P("foo", None), P("bar", "foo")
    assert named == {"a": P("foo", "bar"), "b": of_pair, "c": None}
    scan = partial(
        nn.partitioning.scan_with_axes, length=3, split_rngs={"params": True}
    )
    stacked = scan(Scanned, {"params": 0})().init(KEY, None, None)["params_axes"]
    assert nn.partitioning.get_axis_names(stacked)["w"] == {
        "a": P("layers", "foo", "bar"),
        "b": (P("layers", "foo", None), P("layers", "bar", "foo")),
        "c": None,
    }
