"""Every option of every layer against Flax NNX's."""

import inspect

import jax
import jax.numpy as jnp
import pytest

import nnx_transforms as nnx

flax_nnx = pytest.importorskip("flax.nnx")

from comparison import close  # noqa: E402
from nnx_comparison import normal, same  # noqa: E402

# Flax warns of what it will remove; nothing of it is under test here.
pytestmark = pytest.mark.filterwarnings("ignore")

X = normal(2, 5, 4)


def doubled(function):
    return lambda *args, **kwargs: 2 * function(*args, **kwargs)


def promoted(args, /, **options):
    return tuple(x if x is None else 1.5 * jnp.asarray(x) for x in args)


def other_than_usual(option, lib):
    """A value for an option of a layer; None where the tables above have others."""
    known = {
        "negative_slope_init": 0.3,
        "einsum_op": doubled(jnp.einsum),
        "conv_general_dilated": doubled(jax.lax.conv_general_dilated),
        "gate_fn": jnp.tanh,
        "activation_fn": jnp.sin,
        "lora_dtype": jnp.float32,
        "lora_param_dtype": jnp.float16,
        "lora_param_type": lib.Cache,
        "variable_filter": lib.PathContains("kernel"),
        "keep_rngs": True,
        "attention_fn": lambda q, k, v, **options: q + 2 * k - v,
    }
    by_ending = {
        "_metadata": {"note": option},
        "_init": jax.nn.initializers.normal(0.3),
        "_initializer": jax.nn.initializers.normal(0.3),
        "promote_dtype": promoted,
        "dot_general": doubled(jax.lax.dot_general),
        "dot_general_cls": lambda: doubled(jax.lax.dot_general),
    }
    found = [value for end, value in by_ending.items() if option.endswith(end)]
    return known.get(option, found[0] if found else None)


CELL_CALL = (normal(2, 3), normal(2, 4))
OPTIONS = {
    "Linear": ((4, 3), (X,)),
    "LinearGeneral": ((4, 3), (X,)),
    "Einsum": (("abc,cde->abde", (4, 3, 2), (3, 2)), (X,)),
    "Embed": ((7, 4), (jnp.array([1, 5]),)),
    "Conv": ((4, 3, 3), (X,)),
    "ConvTranspose": ((4, 3, 3), (X,)),
    "BatchNorm": ((4,), (X,)),
    "LayerNorm": ((4,), (X,)),
    "RMSNorm": ((4,), (X,)),
    "GroupNorm": ((4, 2), (X,)),
    "InstanceNorm": ((4,), (X,)),
    "LoRA": ((4, 2, 3), (X,)),
    "LoRALinear": ((4, 3), (X,)),
    "PReLU": ((), (X,)),
    "MultiHeadAttention": ((2, 4), (X,)),
    "LSTMCell": ((4, 3), ((CELL_CALL[0],) * 2, CELL_CALL[1])),
    "OptimizedLSTMCell": ((4, 3), ((CELL_CALL[0],) * 2, CELL_CALL[1])),
    "SimpleCell": ((4, 3), CELL_CALL),
    "GRUCell": ((4, 3), CELL_CALL),
}


def options_of(name):
    """Each option of Flax's layer; for low-rank adaptation, also those of `Linear`."""
    names = ["Linear", name] if name == "LoRALinear" else [name]
    kinds = [getattr(flax_nnx, name) for name in names]
    return {
        p: None for kind in kinds for p in inspect.signature(kind.__init__).parameters
    }


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option(name):
    layer, args = OPTIONS[name]
    more = {
        "LoRALinear": {"lora_rank": 2},
        "MultiHeadAttention": {"decode": False, "normalize_qk": True},
    }

    def make(lib, rngs):
        given = {p: other_than_usual(p, lib) for p in options_of(name)}
        given = {p: value for p, value in given.items() if value is not None}
        given |= {"rngs": rngs} if "rngs" in options_of(name) else {}
        return getattr(lib, name)(*layer, **given, **more.get(name, {}))

    same(make, *args, tolerance=1e-4)
    notes = [
        {
            path: (leaf.type.__name__, leaf.get_metadata("note", None))
            for path, leaf in lib.to_flat_state(lib.state(make(lib, lib.Rngs(0))))
        }
        for lib in (nnx, flax_nnx)
    ]
    assert notes[0] == notes[1]


@pytest.mark.parametrize(
    ("name", "layer", "x"),
    [
        ("Linear", (4, 3), X),
        ("LinearGeneral", (4, 3), X),
        ("Einsum", ("abc,cd->abd", (4, 3), (3,)), X),
        ("Embed", (7, 4), jnp.array([[1, 5]])),
        ("Conv", (4, 3, 3), X),
        ("LoRALinear", (4, 3), X),
        ("MultiHeadAttention", (2, 4), X),
    ],
)
def test_sharding_of_what_is_returned(name, layer, x):
    explicit = (jax.sharding.AxisType.Explicit,) * 2
    with jax.set_mesh(jax.make_mesh((1, 1), ("a", "b"), axis_types=explicit)):
        spec = jax.sharding.PartitionSpec("a", None, "b")
        more = {"lora_rank": 2} if "LoRA" in name else {}
        more |= {"decode": False} if "Attention" in name else {}
        made = (
            getattr(lib, name)(*layer, rngs=lib.Rngs(0), **more)(x, out_sharding=spec)
            for lib in (nnx, flax_nnx)
        )
        found, due = made
        assert jax.typeof(found) == jax.typeof(due)
        assert jax.typeof(found).sharding.spec == spec
        close(found, due)


def test_what_a_layer_takes():
    """Each parameter of Flax's layers, in its place and with its default."""
    for name in {*OPTIONS, "Dropout", "RNN", "Bidirectional", "WeightNorm", "RoPE"}:
        kinds = [getattr(lib, name) for lib in (nnx, flax_nnx)]
        for method in ("__init__", "__call__"):
            of_ours, of_flax = (
                inspect.signature(getattr(kind, method)).parameters for kind in kinds
            )
            for due in of_flax.values():
                if due.kind in (due.VAR_KEYWORD, due.VAR_POSITIONAL):
                    continue
                found = of_ours.get(due.name, of_ours.get("kwargs"))
                assert found is not None, (name, method, due.name)
                if found.name == due.name and isinstance(
                    due.default, int | float | str | tuple | type(None)
                ):
                    assert found.default == due.default, (name, method, due.name)
