"""Checkpoints of live objects with orbax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from small_models import Net, arrays, assert_same, data, loss

import nnx_transforms as nnx

optax = pytest.importorskip("optax")
ocp = pytest.importorskip("orbax.checkpoint")
pytestmark = pytest.mark.filterwarnings("default")


@nnx.jit
def step(model, optimizer, x, y):
    value, grads = nnx.value_and_grad(loss)(model, x, y)
    optimizer.update(grads)
    return value


def trained(seed, steps):
    model = Net(seed)
    optimizer = nnx.Optimizer(model, optax.adam(0.01))
    for _ in range(steps):
        step(model, optimizer, *data())
    return nnx.Dict(model=model, optimizer=optimizer)


def without_keys(node):
    """The state, with random keys as the numbers that they are made of."""

    def number(x):
        is_key = jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
        return jax.random.key_data(x) if is_key else x

    return jax.tree.map(number, nnx.state(node))


def with_keys(state):
    def key(leaf):
        if leaf.type is nnx.RngKey:
            return leaf.replace(value=jax.random.wrap_key_data(leaf.value))
        return leaf

    return jax.tree.map(key, state, is_leaf=lambda x: isinstance(x, nnx.VariableState))


@pytest.mark.parametrize("form", ["state", "pure dict"])
def test_training_goes_on_where_it_was_saved(tmp_path, form):
    run = trained(0, 3)
    saved = without_keys(run)
    fresh = trained(1, 0)
    target = without_keys(fresh)
    with ocp.StandardCheckpointer() as checkpointer:
        if form == "state":
            checkpointer.save(tmp_path / "run", saved)
            checkpointer.wait_until_finished()
            restored = checkpointer.restore(tmp_path / "run", target)
        else:
            checkpointer.save(tmp_path / "run", saved.to_pure_dict())
            checkpointer.wait_until_finished()
            found = checkpointer.restore(tmp_path / "run", target.to_pure_dict())
            restored = target
            restored.replace_by_pure_dict(found)
    nnx.update(fresh, with_keys(restored))
    assert_same(arrays(fresh), arrays(run), rtol=0)
    # The sharing is the object's own, and both go on alike: dropout draws the same.
    assert fresh.model.middle is fresh.model.again
    assert fresh.optimizer.model is fresh.model
    expected = step(run.model, run.optimizer, *data())
    np.testing.assert_array_equal(step(fresh.model, fresh.optimizer, *data()), expected)
    assert int(fresh.model.calls.value) == 4


def test_restoring_into_an_abstract_model_places_the_arrays(tmp_path):
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
    split = NamedSharding(mesh, PartitionSpec("x"))

    class Table(nnx.Module):
        def __init__(self):
            self.rows = nnx.Param(jnp.arange(16.0))

    graphdef, state = nnx.split(nnx.eval_shape(Table))
    target = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=split), state
    )
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "table", nnx.state(Table()))
        checkpointer.wait_until_finished()
        table = nnx.merge(graphdef, checkpointer.restore(tmp_path / "table", target))
    assert table.rows.value.sharding == split
    np.testing.assert_array_equal(table.rows.value, np.arange(16.0))
