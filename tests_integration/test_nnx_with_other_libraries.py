"""optax, chex, orbax and safetensors on states, models and abstract models."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import Net, arrays, assert_same, data, loss

import nnx_transforms as nnx

optax = pytest.importorskip("optax")


def is_kernel(path, leaf):
    return path[-1] == "kernel"


def mask(params):
    return nnx.map_state(is_kernel, params)


def labels(params):
    return nnx.map_state(lambda path, leaf: "ba"[is_kernel(path, leaf)], params)


# What takes masks or labels gets the given function's, over states or over dicts.
WRAPPERS = {
    "chain": lambda mask, labels: optax.chain(optax.clip(0.1), optax.adamw(0.1)),
    "masked": lambda mask, labels: optax.masked(optax.sgd(0.1), mask),
    "multi_transform": lambda mask, labels: optax.multi_transform(
        {"a": optax.sgd(0.1), "b": optax.adam(0.1)}, labels
    ),
    "MultiSteps": lambda mask, labels: optax.MultiSteps(optax.adam(0.1), 2),
    "inject_hyperparams": lambda mask, labels: optax.inject_hyperparams(optax.adam)(
        optax.linear_schedule(0.1, 0.0, 3)
    ),
    "apply_if_finite": lambda mask, labels: optax.apply_if_finite(optax.adam(0.1), 2),
    "flatten": lambda mask, labels: optax.flatten(optax.adam(0.1)),
    "schedule free": lambda mask, labels: optax.contrib.schedule_free_sgd(0.1),
}

NAMING = {"masked", "multi_transform"}


@pytest.mark.parametrize("name", WRAPPERS)
def test_optax_over_states_is_optax_over_dicts(name):
    model = Net()
    params = nnx.state(model, nnx.Param)
    grads = nnx.grad(loss)(model, *data())

    def as_dict(function):
        return lambda params: function(nnx.State(params)).to_pure_dict()

    def steps(tx, params, grads):
        state = tx.init(params)
        update = jax.jit(tx.update)
        for _ in range(3):
            updates, state = update(grads, state, params)
            params = optax.apply_updates(params, updates)
        return params, optax.tree.norm(state)

    over_states = WRAPPERS[name](
        lambda params: nnx.as_pure(mask(params)),
        lambda params: nnx.as_pure(labels(params)),
    )
    over_dicts = WRAPPERS[name](as_dict(mask), as_dict(labels))
    found, norm = steps(over_states, nnx.as_pure(params), nnx.as_pure(grads))
    due, due_norm = steps(over_dicts, params.to_pure_dict(), grads.to_pure_dict())
    assert isinstance(found, nnx.State)
    assert_same(found.to_pure_dict(), due, rtol=1e-6)
    np.testing.assert_allclose(norm, due_norm, rtol=1e-5)

    # The same on a live model, whichever of the two it was made for.
    for tx in (over_states, over_dicts) if name in NAMING else (over_dicts,):
        optimizer = nnx.Optimizer(nnx.clone(model), tx)
        update = nnx.jit(lambda optimizer, grads: optimizer.update(grads))
        for _ in range(3):
            update(optimizer, grads)
        assert_same(arrays(optimizer.model, nnx.Param), due, rtol=1e-4, atol=1e-6)


def test_optax_over_states_of_variables():
    params = nnx.state(Net(), nnx.Param)
    assert float(optax.tree.norm(params)) > 0
    tx = optax.adam(0.1)
    updates, state = tx.update(params, tx.init(params), params)
    moved = optax.apply_updates(params, updates)
    assert moved["last"]["kernel"].type is nnx.Param
    assert state[0].mu["last"]["kernel"].value.shape == (
        params["last"]["kernel"].value.shape
    )
    average = optax.incremental_update(moved, params, 0.5)
    nnx.update(Net(), average)


def test_chex_on_states():
    chex = pytest.importorskip("chex")
    state, other = nnx.state(Net(0), nnx.Param), nnx.state(Net(1), nnx.Param)
    chex.assert_trees_all_equal_shapes_and_dtypes(state, other)
    chex.assert_tree_all_finite(state)
    chex.assert_trees_all_close(state, jax.tree.map(lambda x: x + 0, state))
    with pytest.raises(AssertionError, match="kernel/value"):
        chex.assert_trees_all_close(state, other)


@pytest.mark.filterwarnings("default")  # orbax warns of its own internals
def test_orbax_restores_into_an_abstract_model(tmp_path):
    ocp = pytest.importorskip("orbax.checkpoint")
    mesh = jax.make_mesh((2,), ("data",))
    init = nnx.with_partitioning(jax.nn.initializers.normal(), ("data", None))

    def make(seed):
        return nnx.Dict(w=nnx.Param(init(jax.random.key(seed), (4, 3))))

    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "model", nnx.state(make(0)))
        checkpointer.wait_until_finished()
        graphdef, abstract = nnx.get_abstract_model(lambda: make(1), mesh)
        state = checkpointer.restore(tmp_path / "model", abstract)
    model = nnx.merge(graphdef, state)
    np.testing.assert_array_equal(model.w.value, make(0).w.value)
    assert model.w.value.sharding.spec[0] == "data"


def test_safetensors_into_a_model_by_a_mapping_of_names(tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy")
    saved = arrays(Net(0), nnx.Param)
    flat = nnx.traversals.flatten_mapping(saved)

    def foreign_name(path):
        name = ".".join("weight" if key == "kernel" else str(key) for key in path)
        return f"model.{name}"

    # As other frameworks write them: kernels the other way round.
    written = {
        foreign_name(path): np.ascontiguousarray(np.asarray(value).T)
        for path, value in flat.items()
    }
    safetensors.save_file(written, tmp_path / "model.safetensors")

    model = nnx.eval_shape(lambda: Net(1))
    tensors = safetensors.load_file(tmp_path / "model.safetensors")
    params = nnx.to_flat_state(nnx.state(model, nnx.Param))
    loaded = {path: tensors[foreign_name(path)].T for path in params.paths}
    nnx.update(model, nnx.from_flat_state(loaded).to_pure_dict())
    assert_same(arrays(model, nnx.Param), saved, rtol=0)


def test_a_loader_of_numpy_batches_feeds_a_compiled_step():
    class Loader:
        """Batches of records, from a position that can be saved, as grain's do."""

        def __init__(self):
            self.position = 0

        def __iter__(self):
            return self

        def __next__(self):
            if self.position == 4:
                raise StopIteration
            self.position += 1
            x, y = data()
            return {"x": np.asarray(x), "y": np.asarray(y) * self.position}

    traces = []
    model = Net()
    optimizer = nnx.Optimizer(model, optax.sgd(0.01))
    seen = nnx.metrics.Average("loss")

    @nnx.jit
    def step(model, optimizer, seen, batch):
        traces.append(None)
        value, grads = nnx.value_and_grad(loss)(model, batch["x"], batch["y"])
        optimizer.update(model, grads)
        seen.update(loss=value)

    for batch in Loader():
        step(model, optimizer, seen, batch)
    assert len(traces) == 1 and int(optimizer.step.value) == 4
    assert int(seen.count.value) == 4 and np.isfinite(seen.compute())


def test_a_checkpoint_of_training_goes_through_pure_dicts():
    model = Net()
    optimizer = nnx.Optimizer(model, optax.adam(0.01))
    optimizer.update(model, nnx.grad(loss)(model, *data()))
    kinds = nnx.Any(nnx.Param, nnx.OptState)
    saved = jax.tree.map(np.asarray, nnx.to_pure_dict(nnx.state(optimizer, kinds)))
    twin = nnx.Optimizer(Net(1), optax.adam(0.01))
    state = nnx.state(twin, kinds)
    nnx.replace_by_pure_dict(state, nnx.restore_int_paths(saved))
    nnx.update(twin, state)
    grads = nnx.grad(loss)(model, *data())
    optimizer.update(model, grads)
    twin.update(twin.model, grads)
    assert_same(arrays(twin.model, nnx.Param), arrays(model, nnx.Param), rtol=1e-6)
    assert int(twin.step.value) == 2 and jnp.ndim(twin.step.value) == 0
