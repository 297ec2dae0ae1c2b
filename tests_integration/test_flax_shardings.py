"""Shardings that the metadata of variables of Flax name, under our transforms."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx as flax
from jax.sharding import PartitionSpec

import nnx_transforms as nnx

pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")


@pytest.fixture
def mesh():
    kinds = (jax.sharding.AxisType.Auto,) * 2
    with jax.set_mesh(jax.make_mesh((2, 2), ("data", "model"), axis_types=kinds)):
        yield


def make(*names):
    init = flax.with_partitioning(flax.initializers.ones_init(), names)
    return lambda: flax.Linear(2, 4, kernel_init=init, rngs=flax.Rngs(0))


def value(variable):
    get = getattr(variable, "get_value", None)
    return variable.value if get is None else get()


@pytest.mark.usefixtures("mesh")
def test_an_abstract_model_knows_its_shardings():
    model = nnx.eval_shape(make(None, "model"))
    assert value(model.kernel).sharding.spec == PartitionSpec(None, "model")
    assert value(model.bias).sharding.spec == PartitionSpec()
    # What programs do with them: arrays are made where they will lie.
    shardings = jax.tree.map(lambda x: x.sharding, flax.state(model))
    init = jax.jit(lambda: flax.state(make(None, "model")()), out_shardings=shardings)
    kernel = value(init()["kernel"])
    assert kernel.sharding.spec == PartitionSpec(None, "model")
    assert kernel.addressable_shards[0].data.shape == (2, 2)


@pytest.mark.usefixtures("mesh")
def test_names_of_axes_follow_the_rules_of_flax():
    from flax.core.spmd import logical_axis_rules

    with logical_axis_rules([("embed", None), ("heads", "model")]):
        model = nnx.eval_shape(make("embed", "heads"))
        specs = nnx.get_partition_spec(model)
    assert value(model.kernel).sharding.spec == PartitionSpec(None, "model")
    assert specs["kernel"].value == PartitionSpec(None, "model")


@pytest.mark.usefixtures("mesh")
def test_values_that_are_no_variables_stay_as_jax_gives_them():
    out = nnx.eval_shape(lambda x: {"x": x, "sum": x.sum()}, jnp.ones((2, 4)))
    assert jax.tree.map(lambda x: x.sharding, out) == {"x": None, "sum": None}
