"""What can be read of a variable, and of its state alike."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphcore as gc


@pytest.fixture(params=["variable", "state"])
def shown(request):
    v = gc.Param(jnp.arange(6.0).reshape(2, 3), out_sharding=("data", None), unit="m")
    return v if request.param == "variable" else v.to_state()


def test_the_value_shows_through(shown):
    assert (shown.shape, shown.ndim, shown.dtype) == ((2, 3), 2, jnp.float32)
    assert shown.T.shape == (3, 2)
    assert shown.get_value() is shown.value is shown[...]
    assert shown.get_value(index=1).tolist() == shown[1].tolist() == [3.0, 4.0, 5.0]
    assert float(jnp.sum(shown)) == 15.0
    assert (shown + 1).tolist() == (1 + shown).tolist() == (shown.value + 1).tolist()
    assert (shown @ shown.T).shape == (2, 2)
    assert np.asarray(shown).shape == (2, 3)
    assert len(shown) == len(list(shown)) == 2
    with pytest.raises(AttributeError, match="'colour'"):
        _ = shown.colour


def test_metadata(shown):
    assert shown.get_metadata() == {"out_sharding": ("data", None), "unit": "m"}
    assert shown.get_metadata("unit") == shown.unit == "m"
    assert shown.get_metadata("scale", 1) == 1
    with pytest.raises(KeyError):
        shown.get_metadata("scale")
    assert shown.has_metadata("unit")
    assert not shown.has_metadata("scale")
    assert shown.out_sharding == shown.sharding_names == ("data", None)
    assert shown.get_metadata("sharding") == ("data", None)
    assert shown.has_metadata("sharding")


def test_a_sharding_is_that_of_the_array_unless_it_is_metadata_itself(shown):
    assert shown.sharding is shown.value.sharding
    described = gc.Param(jnp.ones(2), sharding=("data",))
    assert described.sharding == described.out_sharding == ("data",)
    assert gc.Param(2.0, out_sharding=("data",)).sharding == ("data",)


@pytest.mark.parametrize("make", [gc.Param, gc.Param.state])
def test_truth(make):
    assert make(jnp.zeros(3))
    assert make(np.zeros((1, 2)))
    assert not make(jnp.zeros((0, 3)))
    assert make(jnp.array(1.0))
    assert not make(jnp.array(0.0))
    assert not make(())


def test_values_and_metadata_are_set_by_methods():
    v = gc.Param(jnp.zeros(2), unit="m", on_set_value=lambda v, x: x * 2)
    v.set_value(jnp.ones(2))
    assert v.raw_value.tolist() == [2.0, 2.0]
    v.set_metadata(unit="km")
    v.set_metadata("axes", ["a"])
    assert (v.unit, v.axes) == ("km", ["a"])
    v.set_metadata({"out_sharding": ("x",)})
    assert v.get_metadata() == {"out_sharding": ("x",)}
    v.sharding = ("y",)
    assert v.get_metadata() == {"sharding": ("y",)}
    v.sharding_names = ("x",)
    assert v.get_metadata() == {"out_sharding": ("x",)}
    v.set_value(3.0, index=0)
    assert v.raw_value.tolist() == [3.0, 2.0]
    for args in (("a", 1, 2), ({},)):
        with pytest.raises(TypeError, match="set_metadata takes"):
            v.set_metadata(*args, unit="m")
    with pytest.raises(ValueError, match="'value' can't be"):
        v.set_metadata("value", 1)


def test_leaves_of_a_state_are_filled_in_place():
    node = gc.Dict(a=gc.Param(np.zeros(2)), b=gc.Param(jnp.zeros(2)))
    state = gc.state(node)
    for leaf in dict(state.flat_state()).values():  # as loaders of weights do
        leaf.set_value(leaf + 1.0)
        leaf.set_value(5.0, index=0)
        leaf[1] += 2.0
    state.b[...] = 1
    assert state.to_pure_dict()["a"].tolist() == [5.0, 3.0]
    assert state.b.tolist() == [1.0, 1.0]
    assert node.a.value.tolist() == node.b.value.tolist() == [0.0, 0.0]
    gc.update(node, state)
    assert node.a.value.tolist() == [5.0, 3.0]


@pytest.mark.parametrize("make", [gc.Param, gc.Param.state])
@pytest.mark.parametrize("array", [jnp.zeros, np.zeros])
def test_an_array_that_is_written_into_stays_what_it_is(make, array):
    shown = make(array((2, 3), np.float32))
    for item, due in ((1, 1), (np.arange(3), [0, 1, 2]), (gc.Param(jnp.int8(4)), 4)):
        shown[...] = item
        assert (shown.shape, shown.dtype) == ((2, 3), np.float32)
        assert np.array_equal(shown.value, np.broadcast_to(due, (2, 3)))
    fits = jnp.ones((2, 3))
    shown[...] = fits
    assert shown.value is fits
    for other in (jnp.ones(9), "none", 2):  # The last one into no array.
        shown[...] = other
        assert shown.value is other
    shown.set_value(jnp.ones(2))
    shown.set_value(2.5)
    assert shown.value == 2.5


@pytest.mark.devices(2)
def test_an_array_that_is_written_into_stays_where_it_is():
    mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    v = gc.Param(jax.device_put(jnp.zeros(4), sharding))
    v[...] = jnp.arange(4.0)
    assert v.value.sharding.is_equivalent_to(sharding, 1)
    assert v.tolist() == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.devices(2)
def test_a_value_takes_its_own_place_where_none_is_due():
    mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    v, placed = gc.Param(jnp.zeros(4)), jax.device_put(jnp.ones(4), sharding)
    v[...] = placed
    assert v.value is placed
    keys = gc.Variable(jax.random.split(jax.random.key(0), 3))
    keys[...] = jax.random.key(1)
    assert keys.value.shape == (3,)
    keys[...] = 3
    assert keys.value == 3


def test_an_array_of_numpy_stays_one():
    counts = gc.Variable(np.zeros(2, np.int64))
    counts[...] = 2**40
    assert counts.value.dtype == np.int64 and counts.value.tolist() == [2**40] * 2
    words = gc.Variable(np.array(["a", "b"]))
    words[...] = "none"
    assert words.value == "none"


def test_hooks_see_what_is_written():
    shown = gc.Param(jnp.zeros(2), on_get_value=lambda v, x: x.astype(jnp.bfloat16))
    shown[...] = 1
    assert shown.raw_value.dtype == jnp.float32
    quantized = gc.Param(
        jnp.zeros(2, jnp.int8),
        on_get_value=lambda v, x: x.astype(jnp.float32) / 10,
        on_set_value=lambda v, x: (x * 10).astype(jnp.int8),
    )
    quantized[...] = 0.5
    assert (
        quantized.raw_value.tolist() == [5, 5] and quantized.raw_value.dtype == jnp.int8
    )


def test_what_is_written_into_an_array_under_a_trace():
    def program(v, x):
        v[...] = x
        v[...] = 2
        return v

    found = jax.make_jaxpr(lambda v, x: program(gc.Variable(v), x).value)(
        jnp.zeros(2), jnp.ones(2)
    )
    assert found.out_avals[0].shape == (2,) and found.out_avals[0].dtype == jnp.float32


def test_a_state_is_not_changed_by_an_operator():
    state = gc.Param.state(jnp.zeros(2))
    other = state
    other += 1
    assert other.tolist() == [1.0, 1.0]
    assert state.value.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("value", [[1, 2], {0: 1}], ids=["list", "dict"])
def test_an_item_of_a_state_that_is_a_container(value):
    leaf = gc.Param.state(value)
    before = value.copy()
    leaf[0] = 3
    assert leaf[0] == 3 and type(leaf.value) is type(value)
    assert value == before  # which may be that of the variable


def test_metadata_is_removed_by_any_of_its_names():
    v = gc.Param(1, out_sharding=("data",))
    del v.sharding
    assert not v.get_metadata()
    with pytest.raises(TypeError, match="a name and a value"):
        v.set_metadata("unit")
