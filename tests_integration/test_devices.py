"""Training on several CPU devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from small_models import Net, arrays, assert_same, data, loss

import nnx_transforms as nnx

optax = pytest.importorskip("optax")
pytestmark = pytest.mark.devices(8)


def step(model, optimizer, x, y):
    value, grads = nnx.value_and_grad(loss)(model, x, y)
    optimizer.update(grads)
    return value


def run(step, steps=3):
    model = Net()
    optimizer = nnx.Optimizer(model, optax.sgd(0.05, momentum=0.9))
    losses = [float(step(model, optimizer, *data(64))) for _ in range(steps)]
    return model, optimizer, losses


@pytest.fixture(scope="module")
def single():
    return run(nnx.jit(step))


def mesh_of(*shape):
    axes = ("data", "model")[: len(shape)]
    return jax.make_mesh(shape, axes, axis_types=(AxisType.Auto,) * len(shape))


def check(found, single, whole=None):
    model, optimizer, losses = found
    np.testing.assert_allclose(losses, single[2], rtol=1e-4)
    tolerance = {"rtol": 1e-3, "atol": 1e-5}
    assert_same(arrays(model, nnx.Param), arrays(single[0], nnx.Param), **tolerance)
    stats = arrays(model, nnx.BatchStat), arrays(single[0], nnx.BatchStat)
    assert_same(*stats, **tolerance)
    assert int(optimizer.step.value) == 3
    assert model.middle is model.again


@pytest.mark.parametrize("donate_state", [False, True])
def test_data_parallel_is_the_step_on_one_device(single, donate_state):
    mesh = mesh_of(8)
    whole = nnx.StateSharding({...: NamedSharding(mesh, PartitionSpec())})
    split = NamedSharding(mesh, PartitionSpec("data"))
    parallel = nnx.jit(
        step, in_shardings=(whole, whole, split, split), donate_state=donate_state
    )
    found = run(parallel)
    check(found, single)
    kernel = found[0].first.kernel.value
    assert len(kernel.sharding.device_set) == 8
    assert kernel.sharding.is_fully_replicated


def test_parameters_in_shards(single):
    mesh = mesh_of(2, 4)
    columns = NamedSharding(mesh, PartitionSpec(None, "model"))
    whole = NamedSharding(mesh, PartitionSpec())

    def is_wide_kernel(path, variable):
        return "kernel" in str(path) and "last" not in str(path)

    placed = nnx.StateSharding({is_wide_kernel: columns, ...: whole})
    split = NamedSharding(mesh, PartitionSpec("data"))
    both = {"model": placed, "optimizer": placed}

    @nnx.jit(in_shardings=(both, (split, split)), out_shardings=whole)
    def sharded(objects, batch):
        return step(objects["model"], objects["optimizer"], *batch)

    found = run(lambda m, o, *xy: sharded({"model": m, "optimizer": o}, xy))
    check(found, single)
    assert found[0].middle.kernel.value.sharding == columns
    assert found[0].last.kernel.value.sharding == whole
    assert found[0].middle.kernel.value.addressable_shards[0].data.shape == (16, 4)


def test_shard_map_with_a_collective(single):
    mesh = mesh_of(8)

    @nnx.jit
    def parallel_loss(model, x, y):
        def local(model, x, y):
            return jax.lax.pmean(jnp.mean((model.last(x)[:, 0] - y) ** 2), "data")

        split = PartitionSpec("data")
        return nnx.shard_map(
            local,
            mesh=mesh,
            in_specs=(nnx.StateSharding({...: PartitionSpec()}), split, split),
            out_specs=PartitionSpec(),
        )(model, x, y)

    model = single[0]
    x, y = jnp.ones((64, 16)), data(64)[1]
    expected = jnp.mean((model.last(x)[:, 0] - y) ** 2)
    np.testing.assert_allclose(parallel_loss(model, x, y), expected, rtol=1e-5)


def test_made_in_shards():
    mesh = mesh_of(8)
    rows = NamedSharding(mesh, PartitionSpec("data"))
    whole = NamedSharding(mesh, PartitionSpec())
    is_large = lambda path, variable: variable.value.shape[:1] == (16,)
    placed = nnx.StateSharding({is_large: rows, ...: whole})
    model = nnx.jit(Net, out_shardings=placed)()
    assert model.middle.kernel.value.sharding == rows
    assert model.calls.value.sharding == whole
    assert_same(arrays(model), arrays(Net()), rtol=1e-5)
