"""Weights that Flax saved, and files that other programs read."""

from typing import NamedTuple

import flax.linen as linen
import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx as flax_nnx
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import nnx_transforms as nnx
from nnx_transforms import saving

ocp = pytest.importorskip("orbax.checkpoint")
pytestmark = pytest.mark.filterwarnings("default")

X = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)


class Ours(nnx.Module):
    def __init__(self, seed=7):
        rngs = nnx.Rngs(seed)
        self.encoder = nnx.Linear(4, 5, rngs=rngs)
        self.norm = nnx.BatchNorm(5, rngs=rngs)
        self.layers = [nnx.Linear(5, 5, rngs=rngs) for _ in range(2)]
        self.rngs = rngs

    def __call__(self, x):
        x = self.norm(self.encoder(x), use_running_average=True)
        for layer in self.layers:
            x = jnp.tanh(layer(x))
        return x


class OfLinen(linen.Module):
    @linen.compact
    def __call__(self, x, train=False):
        x = linen.Dense(5, name="embed")(x)
        x = linen.BatchNorm(use_running_average=not train)(x)
        for _ in range(2):
            x = jnp.tanh(linen.Dense(5)(x))
        return x


class OfNnx(flax_nnx.Module):
    def __init__(self, seed=3):
        rngs = flax_nnx.Rngs(seed)
        self.encoder = flax_nnx.Linear(4, 5, rngs=rngs)
        self.norm = flax_nnx.BatchNorm(5, use_running_average=True, rngs=rngs)
        self.layers = flax_nnx.List(
            [flax_nnx.Linear(5, 5, rngs=rngs) for _ in range(2)]
        )
        self.rngs = rngs

    def __call__(self, x):
        x = self.norm(self.encoder(x))
        for layer in self.layers:
            x = jnp.tanh(layer(x))
        return x


NAMES_OF_LINEN = {
    "encoder": "params/embed",
    "norm": "params/BatchNorm_0",
    "norm/mean": "batch_stats/BatchNorm_0/mean",
    "norm/var": "batch_stats/BatchNorm_0/var",
    "layers/0": "params/Dense_0",
    "layers/1": "params/Dense_1",
}
WITHOUT_KEYS = nnx.Not(nnx.RngState)


@pytest.mark.parametrize("form", ["msgpack", "orbax", "manager", "mapping"])
def test_weights_of_linen(tmp_path, form):
    theirs = OfLinen()
    variables = theirs.init(jax.random.key(0), X)
    _, changed = theirs.apply(variables, X, train=True, mutable=["batch_stats"])
    variables = {**variables, **changed}
    path = tmp_path / "linen"
    if form == "msgpack":
        path.write_bytes(flax.serialization.to_bytes(variables))
    elif form == "orbax":
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(path, variables)
    elif form == "manager":
        with ocp.CheckpointManager(path) as manager:
            manager.save(3, args=ocp.args.StandardSave(variables))
        path = path / "3"
    else:
        path = {
            f"{kind}/{module}/{name}": value
            for kind, modules in variables.items()
            for module, weights in modules.items()
            for name, value in weights.items()
        }
    ours = nnx.eval_shape(Ours)
    saving.load(path, ours, NAMES_OF_LINEN, WITHOUT_KEYS)
    np.testing.assert_allclose(ours(X), theirs.apply(variables, X), rtol=1e-6)


@pytest.mark.parametrize("form", ["state", "pure dict"])
def test_a_state_of_flax_nnx(tmp_path, form):
    theirs = OfNnx()
    theirs.rngs()
    state = flax_nnx.state(theirs)
    with ocp.StandardCheckpointer() as checkpointer:
        pure = state if form == "state" else flax_nnx.to_pure_dict(state)
        checkpointer.save(tmp_path / "nnx", pure)
    ours = Ours()
    saving.load(tmp_path / "nnx", ours)
    np.testing.assert_allclose(ours(X), theirs(X), rtol=1e-6)
    # The random streams as well: the keys are keys, and the counts go on.
    assert ours.rngs.default.key.value == theirs.rngs.default.key.get_value()
    assert int(ours.rngs.default.count.value) == int(theirs.rngs.default.count[...])


def test_what_does_not_fit_is_named_and_nothing_is_changed(tmp_path):
    variables = OfLinen().init(jax.random.key(0), X)
    (tmp_path / "linen").write_bytes(flax.serialization.to_bytes(variables))
    ours = Ours()
    before = nnx.state(ours)
    names = {**NAMES_OF_LINEN, "layers/1": "params/embed", "norm": "nowhere"}
    with pytest.raises(saving.DifferentGraphError) as info:
        saving.load(tmp_path / "linen", ours, names)
    found = {(d.path, d.kind) for d in info.value.differences}
    assert {
        ("layers/1/kernel", "shape"),
        ("layers/1/bias", "sharing"),
        ("norm/scale", "missing"),
        ("params/Dense_1/kernel", "new"),
        ("rngs/default/key", "missing"),
    } <= found
    assert nnx.state(ours) == before
    with pytest.raises(FileNotFoundError):
        saving.load(tmp_path / "nothing", ours)
    content = (tmp_path / "linen").read_bytes()
    (tmp_path / "cut").write_bytes(content[: len(content) // 2])
    with pytest.raises(saving.DamagedCheckpointError, match="can't be read"):
        saving.load(tmp_path / "cut", ours)


def test_a_folder_of_several_checkpoints_says_what_is_in_it(tmp_path):
    parts = {name: ocp.args.StandardSave({"w": jnp.ones(2)}) for name in ("ema", "own")}
    with ocp.CheckpointManager(tmp_path / "run", item_names=tuple(parts)) as manager:
        manager.save(3, args=ocp.args.Composite(**parts))
    (tmp_path / "empty").mkdir()
    for path, expected in {
        "run": "it is a folder with 3, expected one checkpoint",
        "run/3": "it is a folder with ema, own, expected one checkpoint",
        "empty": "it is a folder with no checkpoint",
    }.items():
        with pytest.raises(saving.DamagedCheckpointError, match=expected):
            saving.read_values(tmp_path / path)
    assert saving.read_values(tmp_path / "run/3/ema")["w"].tolist() == [1.0, 1.0]


class Tied(nnx.Module):
    def __init__(self, seed=0):
        rngs = nnx.Rngs(seed)
        self.embed = nnx.Linear(4, 4, rngs=rngs)
        self.head = self.embed
        self.scale = nnx.Param(jnp.full(4, seed, jnp.bfloat16))
        self.other = {"scale": self.scale, "me": self}
        self.rngs = rngs


def test_safetensors_keep_the_names_of_what_is_shared(tmp_path):
    path = tmp_path / "tied.safetensors"
    model = Tied(1)
    saving.export_safetensors(path, model)
    with safe_open(path, framework="numpy") as file:
        aliases = file.metadata()
    assert aliases == {
        "head.kernel": "embed.kernel",
        "head.bias": "embed.bias",
        "scale": "other.scale",
    }
    assert sorted(load_file(path)) == [
        "embed.bias",
        "embed.kernel",
        "other.scale",
        "rngs.default.count",
        "rngs.default.key",
    ]
    twin = saving.load(path, Tied(2))
    assert nnx.state(twin) == nnx.state(model)
    assert twin.head is twin.embed
    # A graph that finds them under the other names has them, too.
    part = nnx.Dict(head=nnx.Linear(4, 4, rngs=nnx.Rngs(3)))
    saving.load(path, part, filter=nnx.Param)
    assert (part.head.kernel.value == model.embed.kernel.value).all()


class Parts(NamedTuple):
    one: jax.Array
    others: dict[str, jax.Array]


def test_safetensors_have_each_array_of_a_pytree(tmp_path):
    def make(value):
        parts = {"a.b": jnp.full(2, value), "c/d": jnp.full(3, value)}
        return nnx.Dict(w=nnx.Param(Parts(jnp.array(value), parts)))

    saving.export_safetensors(tmp_path / "w.safetensors", make(1.0))
    assert nnx.state(saving.load(tmp_path / "w.safetensors", make(0.0))) == nnx.state(
        make(1.0)
    )


def test_safetensors_have_an_array_under_the_name_that_the_format_keeps(tmp_path):
    path = tmp_path / "w.safetensors"

    def make(value):
        weight = nnx.Param(jnp.full(2, value))
        return nnx.Dict({"__metadata__": weight, "again": weight})

    saving.export_safetensors(path, make(1.0))
    assert sorted(saving.read_values(path)) == ["__metadata__", "again"]
    assert nnx.state(saving.load(path, make(0.0))) == nnx.state(make(1.0))


def test_safetensors_of_another_program(tmp_path):
    path = tmp_path / "theirs.safetensors"
    weight = np.arange(8, dtype=np.float32).reshape(2, 4)
    save_file(
        {"model.fc.weight": weight, "model.fc.bias": np.ones(2, np.float32)}, path
    )
    ours = nnx.Linear(4, 2, rngs=nnx.Rngs(0))
    values = saving.read_values(path)
    values["model/fc/weight"] = values["model/fc/weight"].T
    names = {"kernel": "model/fc/weight", "bias": "model/fc/bias"}
    saving.load(values, ours, names.get)
    np.testing.assert_allclose(ours(X), X @ weight.T + 1, rtol=1e-5)
    with pytest.raises(saving.DifferentGraphError, match=r"kernel: shape \(4, 2\)"):
        saving.load(path, ours, names)


@pytest.mark.parametrize("name", ["e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu"])
def test_safetensors_of_eight_bits(tmp_path, name):
    path = tmp_path / "w.safetensors"

    def make(value):
        small = jnp.full((2, 3), value, f"float8_{name}")
        arrays = [small, jnp.full(2, value), small[0, 0], jnp.bfloat16(value)]
        return nnx.List([nnx.Param(array) for array in arrays])

    saving.export_safetensors(path, make(2.0))
    assert nnx.state(saving.load(path, make(1.0))) == nnx.state(make(2.0))


@pytest.mark.parametrize("dtype", ["int4", "float4_e2m1fn"])
def test_safetensors_refuse_what_they_have_no_dtype_for(tmp_path, dtype):
    node = nnx.Dict(a=nnx.Dict(w=nnx.Param(jnp.ones(2, dtype))))
    with pytest.raises(TypeError, match=r"(?s)'a/w' is .*that safetensors can hold"):
        saving.export_safetensors(tmp_path / "w.safetensors", node)


def test_an_export_replaces_the_file_at_once(tmp_path):
    path = tmp_path / "w.safetensors"
    saving.export_safetensors(path, nnx.Dict(w=nnx.Param(jnp.ones(2))))
    with pytest.raises(TypeError, match="'w' is 'text', expected an array"):
        saving.export_safetensors(path, nnx.Dict(w=nnx.Param("text")))
    assert saving.read_values(path)["w"].tolist() == [1.0, 1.0]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("written", "read"), [(OfNnx, Ours), (Ours, OfNnx)])
def test_a_checkpoint_of_a_model_is_restored_into_that_of_the_other_library(
    tmp_path, written, read
):
    model = written()
    model.norm.mean.value = jnp.arange(5.0)
    model.rngs.default()
    saving.save(tmp_path / "model", model)
    restored = saving.restore(tmp_path / "model", read(seed=11))
    np.testing.assert_array_equal(restored(X), model(X))
    key, due = restored.rngs.default(), model.rngs.default()
    assert jax.random.key_data(key).tolist() == jax.random.key_data(due).tolist()
