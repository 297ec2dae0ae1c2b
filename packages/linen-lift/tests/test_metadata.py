import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import linen_lift as nn
from linen_lift import errors, metadata
from linen_lift.errors import PartitioningUnspecifiedError

PARAMS = {nn.PARTITION_NAME: "layers"}
axis_names = st.lists(st.sampled_from(["rows", "cols", None]), max_size=4).map(tuple)


@given(axis_names, st.data())
def test_removing_an_axis_undoes_adding_it(names, data):
    box = nn.Partitioned(0.0, names)
    index = data.draw(st.integers(-len(names) - 1, len(names)))
    more = box.add_axis(index, PARAMS)
    assert len(more.names) == len(names) + 1
    assert more.names[index] == "layers"
    assert more.remove_axis(index, PARAMS) == box
    tree = {"a": box, "b": 1.0}
    added = metadata.add_axis(tree, index, PARAMS)
    assert metadata.remove_axis(added, index, PARAMS) == tree


@given(axis_names)
def test_unbox_and_replace_boxed_are_inverse(names):
    tree = {"a": nn.Partitioned(1.0, names), "b": 2.0, "c": (nn.Partitioned(3, ()),)}
    assert nn.unbox(tree) == {"a": 1.0, "b": 2.0, "c": (3,)}
    assert nn.replace_boxed(tree, nn.unbox(tree)) == tree


def test_boxes_are_pytrees_with_their_metadata():
    box = nn.Partitioned(jnp.ones(2), ("rows",))
    doubled = jax.tree.map(lambda x: 2 * x, box)
    assert doubled.names == ("rows",)
    assert doubled.value.tolist() == [2, 2]


def test_nested_boxes_come_off_together():
    box = nn.Partitioned(nn.Partitioned(1.0, ("inner",)), ("outer",))
    assert nn.unbox(box) == 1.0
    added = metadata.add_axis(box, 0, PARAMS)
    assert added.names == ("layers", "outer")
    assert added.value.names == ("layers", "inner")
    assert metadata.remove_axis(added, 0, PARAMS) == box


def test_an_unnamed_axis_is_refused():
    box = nn.Partitioned(1.0, ("rows",))
    for use in (box.add_axis, box.remove_axis):
        with pytest.raises(PartitioningUnspecifiedError, match="PARTITION_NAME"):
            use(0, {})


def test_removing_the_wrong_axis_is_refused():
    with pytest.raises(ValueError, match="found 'rows' there"):
        nn.Partitioned(1.0, ("rows",)).remove_axis(0, PARAMS)


def test_specs_and_shardings():
    mesh = Mesh(np.array(jax.devices()[:1]), ("rows",))
    tree = {"a": nn.Partitioned(jnp.ones(2), ("rows",)), "b": jnp.ones(2), "c": "text"}
    specs = nn.get_partition_spec(tree)
    assert specs == {"a": PartitionSpec("rows"), "b": PartitionSpec(), "c": None}
    shardings = nn.get_sharding(tree, mesh)
    assert shardings["a"] == NamedSharding(mesh, PartitionSpec("rows"))
    assert shardings["b"] == NamedSharding(mesh, PartitionSpec())
    assert shardings["c"] is None
    # A box that says nothing of a layout has that of an array without a box.
    assert nn.get_partition_spec(Custom(jnp.ones(2))) == PartitionSpec()
    assert nn.get_sharding(Custom(jnp.ones(2)), mesh) == shardings["b"]
    del tree["c"]
    abstract = jax.eval_shape(lambda: tree)
    assert nn.get_partition_spec(abstract) == nn.get_partition_spec(tree)


class Sharded(nn.Module):
    mesh: object = None

    @nn.compact
    def __call__(self, x):
        init = nn.with_partitioning(nn.initializers.ones, (None, "model"), self.mesh)
        kernel = self.param("kernel", init, (x.shape[-1], 2))
        boxed = self.variable("state", "v", lambda: nn.Partitioned(x[0], ("model",)))
        boxed.value = boxed.value + 1
        return x @ kernel


def test_variables_keep_the_box_and_hand_out_the_value():
    out, variables = Sharded().init_with_output(jax.random.key(0), jnp.ones((1, 3)))
    assert out.tolist() == [[3, 3]]
    assert variables["params"]["kernel"].names == (None, "model")
    assert variables["state"]["v"].names == ("model",)
    assert variables["state"]["v"].value.tolist() == [2, 2, 2]


def test_the_box_itself_on_request():
    class Boxed(nn.Module):
        @nn.compact
        def __call__(self):
            init = nn.with_partitioning(nn.initializers.ones, ("model",))
            v = self.variable("state", "v", init, None, (2,), unbox=False)
            return self.param("p", init, (2,), unbox=False), v.value

    param, value = Boxed().init_with_output(jax.random.key(0))[0]
    assert isinstance(param, nn.Partitioned) and isinstance(value, nn.Partitioned)


def test_a_mesh_constrains_the_value():
    mesh = Mesh(np.array(jax.devices()[:1]), ("model",))
    variables = Sharded(mesh).init(jax.random.key(0), jnp.ones((1, 3)))
    jaxpr = jax.make_jaxpr(
        lambda v: Sharded(mesh).apply(v, jnp.ones((1, 3)), mutable=True)
    )
    assert "sharding_constraint" in str(jaxpr(variables))


@pytest.mark.parametrize("axis", range(-3, 3))
def test_names_may_be_fewer_than_dimensions(axis):
    init = nn.with_partitioning(nn.initializers.ones, ("rows",))

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            assert self.param("w", init, (4, 2), unbox=False).names[0] == "rows"
            return x

    mapped = nn.vmap(Net, {"params": axis}, {"params": True}, metadata_params=PARAMS)
    variables = mapped().init(jax.random.key(0), jnp.ones(3))
    box = variables["params"]["w"]
    names = [*box.names, *[None] * (3 - len(box.names))]
    meant = {4: "rows", 3: "layers", 2: None}
    assert names == [meant[size] for size in box.value.shape]
    mapped().apply(variables, jnp.ones(3))


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2, -3])
def test_vmap_moves_the_axis_in_boxes(axis):
    Many = nn.vmap(
        Sharded,
        variable_axes={"params": axis, "state": 0},
        split_rngs={"params": True},
        metadata_params=PARAMS,
    )
    x = jnp.ones((4, 1, 3))
    out, variables = Many().init_with_output(jax.random.key(0), x)
    kernel = variables["params"]["kernel"]
    names = [None, "model"]
    names.insert(axis if axis >= 0 else axis + 3, "layers")
    assert kernel.names == tuple(names)
    assert kernel.value.shape[axis] == 4
    assert variables["state"]["v"].names == ("layers", "model")
    again, updated = Many().apply(variables, x, mutable=["state"])
    assert (again == out).all()
    assert updated["state"]["v"].names == ("layers", "model")


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_scan_moves_the_axis_in_boxes(axis):
    class Body(nn.Module):
        @nn.compact
        def __call__(self, c, _):
            init = nn.with_partitioning(nn.initializers.ones, (None, "model"))
            return c @ self.param("kernel", init, (2, 2)), None

    Loop = nn.scan(
        Body,
        variable_axes={"params": axis},
        split_rngs={"params": True},
        length=3,
        metadata_params=PARAMS,
    )
    variables = Loop().init(jax.random.key(0), jnp.ones((1, 2)), None)
    kernel = variables["params"]["kernel"]
    assert kernel.names[axis] == "layers"
    assert kernel.value.shape[axis] == 3
    (out, _) = Loop().apply(variables, jnp.ones((1, 2)), None)
    assert out.tolist() == [[8, 8]]


def test_lifting_a_box_without_a_name_for_the_axis():
    Many = nn.vmap(Sharded, {"params": 0, "state": 0}, {"params": True})
    with pytest.raises(PartitioningUnspecifiedError, match="metadata_params"):
        Many().init(jax.random.key(0), jnp.ones((4, 1, 3)))


def test_add_metadata_axis_only_renames():
    Named = nn.add_metadata_axis(Sharded, {"params": 0, "state": 0}, PARAMS)
    assert Named.__name__ == "Sharded"
    x = jnp.ones((1, 3))
    variables = Named().init(jax.random.key(0), x)
    assert variables["params"]["kernel"].names == ("layers", None, "model")
    out, updated = Named().apply(variables, x, mutable="state")
    assert out.tolist() == [[3, 3]]
    assert updated["state"]["v"].names == ("layers", "model")


class Custom(nn.AxisMetadata):
    """A user's own box."""

    def __init__(self, value, count=0):
        self.value, self.count = value, count

    def unbox(self):
        return self.value

    def replace_boxed(self, value):
        return type(self)(value, self.count)

    def add_axis(self, index, params):
        return Custom(self.value, self.count + params["step"])

    def remove_axis(self, index, params):
        return Custom(self.value, self.count - params["step"])


jax.tree_util.register_pytree_node(
    Custom, lambda c: ((c.value,), c.count), lambda count, kids: Custom(kids[0], count)
)


def test_custom_boxes_take_part():
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            return x + self.param("p", lambda key: Custom(jnp.ones(())))

    Many = nn.vmap(Model, {"params": 0}, {"params": True}, metadata_params={"step": 5})
    variables = Many().init(jax.random.key(0), jnp.ones(2))
    assert variables["params"]["p"].count == 5
    assert Many().apply(variables, jnp.ones(2)).tolist() == [2, 2]


class Mean(Custom):
    """Keeps one value for all instances: the mean of theirs."""

    def add_axis(self, index, params):
        return Mean(self.value.mean(index))

    def remove_axis(self, index, params):
        return Mean(jnp.stack([self.value] * params["instances"], index))


jax.tree_util.register_pytree_node(
    Mean, lambda m: ((m.value,), None), lambda _, kids: Mean(*kids)
)


@pytest.mark.parametrize("transform", [nn.vmap, nn.scan])
def test_boxes_may_store_another_shape_than_is_mapped(transform):
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x, y):
            offset = self.variable("state", "offset", lambda: Mean(jnp.zeros(2)))
            offset.value += y
            return x, offset.value

    params = {"instances": 3}
    many = transform(Model, variable_axes={"state": 0}, metadata_params=params)()
    ys = jnp.arange(6.0).reshape(3, 2)
    x = ys if transform is nn.vmap else ys[0]
    variables = {"state": {"offset": Mean(jnp.ones(2))}}
    for _ in range(2):
        (_, offsets), variables = many.apply(variables, x, ys, mutable="state")
    assert offsets.tolist() == (ys + 1 + ys.mean(0)).tolist()
    assert variables["state"]["offset"].value.tolist() == [5, 7]
    flat = {"state": {"offset": nn.Partitioned(jnp.array(1.0), ())}}
    with pytest.raises(errors.VariableAxisError, match="/offset"):
        many.apply(flat, x, ys)


def test_a_class_with_the_methods_of_a_box_is_one():
    @jax.tree_util.register_pytree_node_class
    class Foreign:
        def __init__(self, value, names):
            self.value, self.names = value, names

        def unbox(self):
            return self.value

        def replace_boxed(self, value):
            return Foreign(value, self.names)

        def add_axis(self, index, params):
            return Foreign(self.value, (*self.names, params["label"]))

        def remove_axis(self, index, params):
            return Foreign(self.value, self.names[:-1])

        def tree_flatten(self):
            return (self.value,), self.names

        @classmethod
        def tree_unflatten(cls, names, children):
            return cls(*children, names)

    class Almost:
        unbox = replace_boxed = add_axis = Foreign.unbox

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return x * self.param("w", lambda key: Foreign(jnp.ones(2), ("a",)))

    mapped = nn.vmap(
        Net, {"params": 0}, {"params": True}, metadata_params={"label": "b"}
    )()
    x = jnp.ones((3, 2))
    variables = mapped.init(jax.random.key(0), x)
    assert variables["params"]["w"].names == ("a", "b")
    assert nn.unbox(variables)["params"]["w"].shape == (3, 2)
    assert (mapped.apply(variables, x) == x).all()
    assert not isinstance(Almost(), nn.AxisMetadata)
    assert not isinstance(Foreign(1, ()), nn.Partitioned)
