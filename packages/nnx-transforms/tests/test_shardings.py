import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

import graphcore as gc
import nnx_transforms as nnx
from nnx_transforms.sharding.shardings import (
    get_named_sharding,
    get_partition_spec,
    sharding_of,
)

P = PartitionSpec


def mesh(*names):
    devices = np.array(jax.devices())
    shape = (1,) * (len(names) - 1)
    return Mesh(devices.reshape(*shape, -1), names)


def node(**shardings):
    return gc.Dict(
        {
            name: gc.Param(jnp.ones((8, 8)), sharding=sharding)
            for name, sharding in shardings.items()
        },
        plain=gc.Cache(jnp.ones(3)),
    )


def test_every_form_gives_its_partition_spec():
    named = NamedSharding(mesh("x", "y"), P("y"))
    n = node(a=("x", None), b=P(("x", "y")), c=named, d=None, e=["x"])
    specs = get_partition_spec(gc.state(n))
    assert specs.to_pure_dict() == {
        "a": P("x", None),
        "b": P(("x", "y")),
        "c": P("y"),
        "d": P(),
        "e": P("x"),
        "plain": P(),
    }
    assert specs.a.type is gc.Param
    assert specs.a.sharding == ("x", None)


def test_rules_leave_axes_that_may_lie_anyhow():
    with nnx.logical_axis_rules([("embed", None), ("heads", ("x", "y"))]):
        found = sharding_of({"sharding": (P.UNCONSTRAINED, "embed", "heads", "z")})
    assert found == P(P.UNCONSTRAINED, None, ("x", "y"), "z")


def test_nodes_variables_and_pytrees_are_read_alike():
    n = node(a=("x",))
    expected = get_partition_spec(gc.state(n))
    assert get_partition_spec(n) == expected
    assert get_partition_spec(gc.variables(n)) == expected
    tree = get_partition_spec([gc.state(n), jnp.ones(2)])
    assert tree == [expected, P()]


@pytest.mark.devices(2)
def test_named_shardings_place_values():
    m = mesh("x", "y")
    n = node(a=(None, "y"))
    state = gc.state(n)
    shardings = get_named_sharding(state, m)
    placed = jax.device_put(state, shardings)
    assert placed.a.value.sharding.is_equivalent_to(NamedSharding(m, P(None, "y")), 2)
    assert placed.plain.value.sharding.is_fully_replicated
    inside = jax.jit(lambda s: jax.lax.with_sharding_constraint(s, shardings))(state)
    assert inside.a.value.sharding.spec == P(None, "y")


def test_mesh_metadata_comes_before_the_given_mesh():
    own, given = mesh("x"), mesh("x", "y")
    n = gc.Dict(
        a=gc.Param(1.0, sharding=("x",), mesh=own),
        b=gc.Param(1.0, sharding=("x",)),
        c=gc.Param(1.0, mesh=own),
    )
    found = get_named_sharding(gc.state(n), given).to_pure_dict()
    assert found["a"] == NamedSharding(own, P("x"))
    assert found["b"] == NamedSharding(given, P("x"))
    assert found["c"] == NamedSharding(own, P())


def test_shardings_are_taken_as_they_are():
    single = SingleDeviceSharding(jax.devices()[0])
    state = gc.state(node(a=single))
    assert get_named_sharding(state, mesh("x")).a.value is single
    with pytest.raises(ValueError, match=r"'a.*SingleDeviceSharding"):
        get_partition_spec(state)


def test_an_unknown_sharding_is_named_with_its_path():
    state = gc.state(gc.Dict(layer=node(kernel="x")))
    for read in (get_partition_spec, lambda s: get_named_sharding(s, mesh("x"))):
        with pytest.raises(ValueError, match=r"'layer/kernel.*'x' of type str"):
            read(state)


def test_sharding_of_one_variable():
    m = mesh("x")
    assert sharding_of({}, m) is None
    assert sharding_of({"sharding": ("x",)}) == P("x")
    assert sharding_of({"sharding": ("x",)}, m) == NamedSharding(m, P("x"))
    assert sharding_of({"sharding": P("x"), "mesh": m}) == NamedSharding(m, P("x"))


def test_variables_are_made_without_a_mesh_where_a_program_wraps_constraints(
    monkeypatch,
):
    constraint = jax.lax.with_sharding_constraint

    def wrapped(x, sharding):
        try:
            return constraint(x, sharding)
        except Exception:
            return jax.sharding.reshard(x, sharding)

    monkeypatch.setattr(jax.lax, "with_sharding_constraint", wrapped)
    assert gc.Param(jnp.ones(2), out_sharding=("data",)).value.shape == (2,)


@pytest.mark.parametrize("transform", [nnx.jit, nnx.remat])
def test_a_model_is_made_by_the_rules_in_force_where_it_is_transformed(transform):
    def make():
        init = nnx.with_partitioning(nnx.initializers.ones_init(), ("rows", "columns"))
        return gc.Dict(w=nnx.Param(init(jax.random.key(0), (8, 8))))

    def made(rules, eager=True):
        with nnx.logical_axis_rules(rules), nnx.use_eager_sharding(eager):
            return transform(make)()

    with jax.set_mesh(jax.make_mesh((jax.device_count(),), ("x",))):
        of_rows = made([("rows", "x"), ("columns", None)])
        of_columns = made([("rows", None), ("columns", "x")])
        whole = made([("rows", "x"), ("columns", None)], eager=False)
    shapes = [m.w.value.sharding.shard_shape((8, 8)) for m in (of_rows, of_columns)]
    assert shapes == [(8 // jax.device_count(), 8), (8, 8 // jax.device_count())]
    assert whole.w.value.sharding.is_fully_replicated
