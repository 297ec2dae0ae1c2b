"""What stays Flax's, optax's, orbax's and chex's in a program of linen-lift models.

Variables are plain dicts of arrays, so that all of it works on them as it does on those
of Flax.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import linen_lift as nn

chex = pytest.importorskip("chex")
flax = pytest.importorskip("flax")
optax = pytest.importorskip("optax")
ocp = pytest.importorskip("orbax.checkpoint")

from flax import serialization, struct, traverse_util  # noqa: E402
from flax.training import train_state  # noqa: E402

# orbax warns of its own internals.
pytestmark = pytest.mark.filterwarnings("default")

KEY = jax.random.key(0)
X = jax.random.normal(jax.random.key(1), (16, 3))
Y = X @ jnp.array([[1.0], [-2.0], [3.0]])


@struct.dataclass
class Config:
    width: int = struct.field(pytree_node=False, default=4)
    scale: float = 1.0


class Model(nn.Module):
    config: Config = Config()

    @nn.compact
    def __call__(self, x, train=False):
        init = nn.with_partitioning(nn.initializers.lecun_normal(), (None, "model"))
        x = nn.Dense(self.config.width, kernel_init=init)(x)
        x = nn.BatchNorm(use_running_average=not train)(x)
        return self.config.scale * nn.Dense(1, name="head")(nn.relu(x))


class TrainState(train_state.TrainState):
    batch_stats: dict


def made():
    return Model().init(KEY, X)


def same(a, b):
    chex.assert_trees_all_close(a, b, rtol=1e-6)


# --- flax.struct --------------------------------------------------------------------


def test_struct_in_fields_and_in_variables():
    model = Model(Config(width=5))
    variables = model.init(KEY, X)
    assert nn.unbox(variables)["params"]["Dense_0"]["kernel"].shape == (3, 5)
    doubled = model.clone(config=model.config.replace(scale=2.0))
    np.testing.assert_allclose(
        doubled.apply(variables, X), 2 * model.apply(variables, X), 1e-6
    )

    class Holds(nn.Module):
        @nn.compact
        def __call__(self):
            state = self.variable("state", "config", Config)
            state.value = state.value.replace(scale=state.value.scale + 1)
            return state.value.scale

    scale, state = Holds().init_with_output(KEY)
    assert (scale, state["state"]["config"].width) == (2.0, 4)
    again = jax.jit(lambda v: Holds().apply(v, mutable=["state"]))
    assert float(again(state)[0]) == 3.0


def test_a_struct_as_the_carry_of_a_loop():
    class Step(nn.Module):
        @nn.compact
        def __call__(self, carry, x):
            scale = self.param("scale", nn.initializers.ones, ())
            return carry.replace(scale=carry.scale + scale * x), carry.scale

    Loop = nn.scan(Step, variable_broadcast="params", split_rngs={"params": False})
    start = Config(scale=jnp.array(0.0))
    (last, seen), _ = Loop().init_with_output(KEY, start, jnp.arange(3.0))
    assert float(last.scale) == 3 and seen.tolist() == [0, 0, 1]


# --- flax.traverse_util and flax.serialization --------------------------------------


def test_flat_names_of_parameters():
    params = nn.unbox(made()["params"])
    flat = traverse_util.flatten_dict(params, sep="/")
    assert sorted(flat) == [
        "BatchNorm_0/bias",
        "BatchNorm_0/scale",
        "Dense_0/bias",
        "Dense_0/kernel",
        "head/bias",
        "head/kernel",
    ]
    same(traverse_util.unflatten_dict(flat, sep="/"), params)
    kernels = traverse_util.path_aware_map(lambda path, _: path[-1] == "kernel", params)
    assert kernels["head"] == {"kernel": True, "bias": False}
    tx = optax.masked(optax.set_to_zero(), kernels)
    grads = jax.tree.map(jnp.ones_like, params)
    updates, _ = tx.update(grads, tx.init(params), params)
    assert float(jnp.abs(updates["head"]["kernel"]).sum()) == 0
    assert float(updates["head"]["bias"].sum()) == 1


@pytest.mark.parametrize("frozen", [False, True])
def test_bytes_of_variables(frozen):
    variables = nn.unbox(made())
    stored = serialization.to_bytes(variables)
    target = jax.tree.map(jnp.zeros_like, variables)
    restored = serialization.from_bytes(target, stored)
    same(restored, variables)
    if frozen:
        restored = nn.freeze(restored)
    same(Model().apply(restored, X), Model().apply(variables, X))
    same(serialization.msgpack_restore(stored), variables)
    # What Flax's FrozenDict holds is read as well.
    theirs = flax.core.freeze(variables)
    same(Model().apply(theirs, X), Model().apply(variables, X))


def test_bytes_of_variables_that_flax_made():
    """Parameters that a program of Flax stored are read by the same model here."""

    class Theirs(flax.linen.Module):
        @flax.linen.compact
        def __call__(self, x, train=False):
            x = flax.linen.Dense(4)(x)
            x = flax.linen.BatchNorm(use_running_average=not train)(x)
            return flax.linen.Dense(1, name="head")(flax.linen.relu(x))

    variables = Theirs().init(KEY, X)
    stored = serialization.to_bytes(variables)
    target = nn.unbox(made())
    restored = serialization.from_bytes(target, stored)
    np.testing.assert_allclose(
        Model().apply(restored, X), Theirs().apply(variables, X), 1e-5, 1e-6
    )


# --- flax.training.train_state, optax, orbax ----------------------------------------


def train_step(state, x, y):
    def loss(params):
        variables = {"params": params, "batch_stats": state.batch_stats}
        out, updated = state.apply_fn(variables, x, train=True, mutable=["batch_stats"])
        return jnp.mean((out - y) ** 2), updated["batch_stats"]

    (value, stats), grads = jax.value_and_grad(loss, has_aux=True)(state.params)
    return state.apply_gradients(grads=grads, batch_stats=stats), value


def started(tx=None):
    variables = made()
    return TrainState.create(
        apply_fn=Model().apply,
        params=variables["params"],
        batch_stats=variables["batch_stats"],
        tx=tx or optax.adamw(0.02),
    )


def test_training_in_a_train_state():
    state, step = started(), jax.jit(train_step)
    state, first = step(state, X, Y)
    for _ in range(60):
        state, last = step(state, X, Y)
    assert int(state.step) == 61 and float(last) < float(first) / 5
    # Boxes go through gradients and optimizers as they are.
    box = state.params["Dense_0"]["kernel"]
    moment = state.opt_state[0].mu["Dense_0"]["kernel"]
    assert box.names == moment.names == (None, "model")


def test_transformations_by_parameter():
    labels = lambda params: traverse_util.path_aware_map(
        lambda path, _: "head" if "head" in path else "body", nn.unbox(params)
    )
    tx = optax.multi_transform(
        {"head": optax.sgd(0.1), "body": optax.set_to_zero()}, labels
    )
    variables = nn.unbox(made())
    state = started(tx).replace(params=variables["params"])
    state = state.replace(opt_state=tx.init(state.params))
    after, _ = jax.jit(train_step)(state, X, Y)
    same(after.params["Dense_0"], state.params["Dense_0"])
    change = after.params["head"]["kernel"] - state.params["head"]["kernel"]
    assert float(jnp.abs(change).sum()) > 0


def test_a_train_state_goes_on_from_its_checkpoint(tmp_path):
    step = jax.jit(train_step)
    state, _ = step(started(), X, Y)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", state)
        checkpointer.wait_until_finished()
        restored = checkpointer.restore(tmp_path / "state", started())
    same(restored.params, state.params)
    assert restored.params["Dense_0"]["kernel"].names == (None, "model")
    expected, loss = step(state, X, Y)
    found, again = step(restored, X, Y)
    assert float(loss) == float(again)
    same(found.opt_state, expected.opt_state)
    as_bytes = serialization.to_bytes(nn.unbox(state.params))
    same(serialization.msgpack_restore(as_bytes), nn.unbox(restored.params))


def test_restoring_into_shardings(tmp_path):
    mesh = jax.make_mesh(
        (jax.device_count(),), ("model",), axis_types=(jax.sharding.AxisType.Auto,)
    )
    model = Model(Config(width=2 * jax.device_count()))
    abstract = jax.eval_shape(model.init, KEY, X)
    variables = nn.unbox(model.init(KEY, X))
    target = jax.tree.map(
        lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
        nn.unbox(abstract),
        nn.get_sharding(abstract, mesh),
    )
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "variables", variables)
        checkpointer.wait_until_finished()
        restored = checkpointer.restore(tmp_path / "variables", target)
    kernel = restored["params"]["Dense_0"]["kernel"]
    assert {s.data.shape for s in kernel.addressable_shards} == {(3, 2)}
    same(restored, variables)


# --- chex ---------------------------------------------------------------------------


def test_chex_on_variables_and_functions():
    variables = nn.unbox(made())
    chex.assert_tree_all_finite(variables)
    chex.assert_shape(variables["params"]["Dense_0"]["kernel"], (3, 4))
    chex.assert_trees_all_equal_structs(variables, nn.unbox(made()))
    with pytest.raises(AssertionError):
        chex.assert_trees_all_close(
            variables, jax.tree.map(lambda x: x + 1, variables), rtol=1e-6
        )

    @jax.jit
    @chex.assert_max_traces(n=1)
    def apply(variables, x):
        return Model().apply(variables, x)

    same(apply(variables, X), apply(variables, X))


def test_a_chex_dataclass_through_a_module():
    @chex.dataclass
    class Batch:
        x: chex.Array
        weight: chex.Array

    class Weighted(nn.Module):
        @nn.compact
        def __call__(self, batch):
            out = nn.jit(nn.Dense)(2)(batch.x)
            return batch.replace(x=out * batch.weight)

    batch = Batch(x=X, weight=jnp.array(2.0))
    out, variables = Weighted().init_with_output(KEY, batch)
    assert isinstance(out, Batch)
    one = Weighted().apply(variables, batch.replace(weight=jnp.array(1.0)))
    same(out.x, 2 * one.x)


class TestVariants(chex.TestCase):
    """chex runs a test with and without jit; modules are pure functions to it."""

    @chex.variants(with_jit=True, without_jit=True)
    def test_apply(self):
        variables = nn.unbox(made())
        out = self.variant(Model().apply)(variables, X)
        same(out, Model().apply(variables, X))
