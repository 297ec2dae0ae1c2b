"""Each layer against Flax NNX's: same initial values, same numbers given the same."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnx_transforms as nnx

flax_nnx = pytest.importorskip("flax.nnx")

from comparison import close  # noqa: E402
from nnx_comparison import leaves, normal, same  # noqa: E402

# Flax warns of what it will remove; nothing of it is under test here.
pytestmark = pytest.mark.filterwarnings("ignore")


def case(name, *args, layer=(), options=None, **more):
    """A layer by its name, with its own arguments, and those of the call."""

    def make(lib, rngs):
        return getattr(lib, name)(*layer, **(options or {}), rngs=rngs)

    return functools.partial(same, make, *args, **more)


def wrapped(name, inner, *args, options=None, **more):
    """A layer around another one."""

    def make(lib, rngs):
        return getattr(lib, name)(inner(lib, rngs), rngs=rngs, **(options or {}))

    return functools.partial(same, make, *args, **more)


def linear(lib, rngs):
    return lib.Linear(4, 3, rngs=rngs)


def small_conv(lib, rngs):
    return lib.Conv(4, 3, (2, 2), rngs=rngs)


X = normal(2, 5, 4)
IMAGE = normal(2, 6, 7, 4)
MASK = jnp.array([True, True, False, True, True])[None, :, None]
BF16 = {"dtype": jnp.bfloat16}
TRIANGLE = jnp.tril(jnp.ones((3, 4, 3)))

CASES = {
    "linear": case("Linear", X, layer=(4, 3)),
    "linear, a vector": case("Linear", X[0, 0], layer=(4, 3)),
    "linear bfloat16": case("Linear", X, layer=(4, 3), options=BF16, tolerance=2e-2),
    "linear of integers": case("Linear", jnp.arange(4), layer=(4, 3)),
    "linear, wider product": case(
        "Linear",
        X.astype(jnp.bfloat16),
        layer=(4, 3),
        options={
            "preferred_element_type": jnp.float32,
            "param_dtype": jnp.bfloat16,
            "use_bias": False,
        },
        tolerance=2e-2,
    ),
    "linear general": case(
        "LinearGeneral", X, layer=((5, 4), (3, 2)), options={"axis": (1, 2)}
    ),
    "linear general, middle": case(
        "LinearGeneral", IMAGE, layer=((6, 4), 3), options={"axis": (1, -1)}
    ),
    "linear general, batch": case(
        "LinearGeneral", IMAGE, layer=(4, (3, 2)), options={"batch_axis": {0: 2}}
    ),
    "linear general, batches": case(
        "LinearGeneral", IMAGE, layer=(4, 3), options={"batch_axis": {0: 2, 1: 6}}
    ),
    "einsum": case("Einsum", X, layer=("abc,cde->abde", (4, 3, 2), (3, 2))),
    "einsum, ellipsis": case("Einsum", X, layer=("...c,cd->...d", (4, 3), (3,))),
    "einsum, first axis": case("Einsum", X, layer=("nta,hab->nthb", (3, 4, 2), (3, 2))),
    "einsum, no bias": case("Einsum", X, "abc,cd->dab", layer=("abc,cd->abd", (4, 3))),
    "embed": case("Embed", jnp.array([[1, 5], [-1, 6]]), layer=(7, 4)),
    "embed, one vector": case("Embed", jnp.array([0, 3]), layer=(1, 4)),
    "embed bfloat16": case(
        "Embed", jnp.array([1, 5]), layer=(7, 4), options=BF16, tolerance=2e-2
    ),
    "conv": case("Conv", IMAGE, layer=(4, 3, (3, 2))),
    "conv, integer, strides": case("Conv", X, layer=(4, 3, 3, 2)),
    "conv, circular": case(
        "Conv", IMAGE, layer=(4, 3, (4, 3)), options={"padding": "CIRCULAR"}
    ),
    "conv, reflect": case(
        "Conv", IMAGE, layer=(4, 3, (4, 3)), options={"padding": "REFLECT"}
    ),
    "conv, causal": case(
        "Conv", X, layer=(4, 3, 3), options={"padding": "CAUSAL", "kernel_dilation": 2}
    ),
    "conv, pairs": case(
        "Conv",
        IMAGE,
        layer=(4, 4, (3, 3), None),
        options={"padding": [(1, 2), 0], "feature_group_count": 2, "input_dilation": 2},
    ),
    "conv, no batch": case("Conv", IMAGE[0], layer=(4, 3, (3, 3))),
    "conv, two batches": case("Conv", IMAGE, layer=(4, 3, 3)),
    "conv, mask": case("Conv", X, layer=(4, 3, 3), options={"mask": TRIANGLE}),
    "conv bfloat16": case(
        "Conv", X, layer=(4, 3, 3), options={**BF16, "use_bias": False}, tolerance=3e-2
    ),
    "conv transpose": case("ConvTranspose", IMAGE, layer=(4, 3, (3, 2), 2)),
    "conv transpose, valid": case(
        "ConvTranspose", X, layer=(4, 3, 3), options={"padding": "VALID"}
    ),
    "conv transpose, circular": case(
        "ConvTranspose",
        IMAGE,
        layer=(4, 3, (4, 3), (2, 1)),
        options={"padding": "CIRCULAR"},
    ),
    "conv transpose, circular, transposed": case(
        "ConvTranspose",
        IMAGE,
        layer=(4, 3, (3, 4), (1, 2)),
        options={"padding": "CIRCULAR", "transpose_kernel": True},
    ),
    "conv transpose, numbers": case(
        "ConvTranspose",
        X,
        layer=(4, 3, 3),
        options={"padding": [(1, 2)], "kernel_dilation": 2, "mask": TRIANGLE},
    ),
    "batch norm": case("BatchNorm", X, layer=(4,), options={"momentum": 0.8}),
    "batch norm, axis": case("BatchNorm", IMAGE, layer=(7,), options={"axis": 2}),
    "batch norm, evaluation": case(
        "BatchNorm", X, layer=(4,), options={"use_running_average": True}
    ),
    "batch norm, by the call": case(
        "BatchNorm", X, True, layer=(4,), options={"use_running_average": None}
    ),
    "batch norm, mask": case("BatchNorm", X, layer=(4,), mask=MASK),
    "batch norm, fast": case(
        "BatchNorm", X, layer=(4,), options={"use_fast_variance": False}, mask=MASK
    ),
    "batch norm bfloat16": case(
        "BatchNorm", X.astype(jnp.bfloat16), layer=(4,), tolerance=3e-2
    ),
    "batch norm, dtype": case("BatchNorm", X, layer=(4,), options=BF16, tolerance=5e-2),
    "layer norm": case("LayerNorm", X, layer=(4,)),
    "layer norm, axes": case(
        "LayerNorm", IMAGE, layer=(4,), options={"reduction_axes": (1, 2, -1)}
    ),
    "layer norm, other features": case(
        "LayerNorm", IMAGE, layer=(7,), options={"feature_axes": 2}
    ),
    "layer norm, mask": case("LayerNorm", X, layer=(4,), mask=normal(2, 5, 4) > -1),
    "layer norm, no scale": case(
        "LayerNorm", X, layer=(4,), options={"use_scale": False, "epsilon": 1e-3}
    ),
    "layer norm bfloat16": case(
        "LayerNorm", X.astype(jnp.bfloat16), layer=(4,), tolerance=3e-2
    ),
    "rms norm": case("RMSNorm", X, layer=(4,)),
    "rms norm, axes": case(
        "RMSNorm", IMAGE, layer=(4,), options={"reduction_axes": (1, -1)}
    ),
    "rms norm bfloat16": case("RMSNorm", X, layer=(4,), options=BF16, tolerance=3e-2),
    "group norm": case("GroupNorm", IMAGE, layer=(4, 2)),
    "group norm, size": case("GroupNorm", X, layer=(4, None, 2)),
    "group norm, mask": case("GroupNorm", X, layer=(4, 2), mask=normal(2, 5, 4) > -1),
    "group norm, vectors": case(
        "GroupNorm", X[0], layer=(4, 2), options={"use_bias": False}
    ),
    "instance norm": case("InstanceNorm", IMAGE, layer=(4,)),
    "instance norm, axis": case(
        "InstanceNorm", IMAGE, layer=(7,), options={"feature_axes": 2}
    ),
    "weight norm": wrapped("WeightNorm", linear, X),
    "weight norm of a convolution": wrapped("WeightNorm", small_conv, IMAGE),
    "weight norm, whole": wrapped(
        "WeightNorm", small_conv, IMAGE, options={"feature_axes": None}
    ),
    "weight norm, no scale": wrapped(
        "WeightNorm", linear, X, options={"use_scale": False}
    ),
    "spectral norm": wrapped("SpectralNorm", linear, X),
    "spectral norm of a convolution": wrapped(
        "SpectralNorm", small_conv, IMAGE, options={"n_steps": 3}
    ),
    "spectral norm, other dtypes": wrapped(
        "SpectralNorm",
        linear,
        X,
        options={**BF16, "param_dtype": jnp.float16},
        tolerance=2e-2,
    ),
    "spectral norm, evaluation": wrapped(
        "SpectralNorm", linear, X, options={"update_stats": False}
    ),
    "lora": case("LoRA", X, layer=(4, 2, 3)),
    "lora around a layer": functools.partial(
        same,
        lambda lib, rngs: lib.LoRA(
            4, 2, 3, base_module=lib.Linear(4, 3, rngs=rngs), rngs=rngs
        ),
        X,
    ),
    "lora linear": case("LoRALinear", X, layer=(4, 3), options={"lora_rank": 2}),
    "prelu": functools.partial(same, lambda lib, rngs: lib.PReLU(0.3), X),
    "prelu bfloat16": functools.partial(
        same, lambda lib, rngs: lib.PReLU(**BF16), X, tolerance=2e-2
    ),
    "dropout": case("Dropout", X, layer=(0.4,)),
    "dropout, broadcast": case(
        "Dropout", X, layer=(0.4,), options={"broadcast_dims": (1,)}
    ),
    "dropout, evaluation": case("Dropout", X, layer=(0.4,), deterministic=True),
    "attention": case("MultiHeadAttention", X, layer=(2, 4), options={"decode": False}),
    "attention of others": case(
        "MultiHeadAttention",
        X,
        normal(2, 3, 6),
        layer=(2, 4, 8, 5),
        options={"in_kv_features": 6},
        decode=False,
    ),
    "attention, causal, shared heads": case(
        "MultiHeadAttention",
        X,
        layer=(4, 4, 16, None, 2),
        options={"normalize_qk": True, "use_bias": False},
        decode=False,
        is_causal=True,
    ),
    "attention, mask": case(
        "MultiHeadAttention",
        X,
        layer=(2, 4),
        decode=False,
        mask=jnp.tril(jnp.ones((2, 2, 5, 5))),
    ),
    "attention, dropout": case(
        "MultiHeadAttention",
        X,
        layer=(2, 4),
        options={"dropout_rate": 0.4, "deterministic": False},
        decode=False,
    ),
    "attention, dropout of each": case(
        "MultiHeadAttention",
        X,
        layer=(4, 4, 8, 4, 2),
        options={"dropout_rate": 0.4, "broadcast_dropout": False},
        decode=False,
        deterministic=False,
    ),
    "attention, recorded": case(
        "MultiHeadAttention", X, layer=(2, 4), decode=False, sow_weights=True
    ),
    "attention, extra batch": case(
        "MultiHeadAttention", IMAGE, layer=(2, 4), decode=False
    ),
    "attention, nothing in the batch": case(
        "MultiHeadAttention",
        X[:0],
        layer=(2, 4),
        options={"precision": "highest"},
        decode=False,
    ),
    "attention bfloat16": case(
        "MultiHeadAttention",
        X,
        layer=(2, 4),
        options=BF16,
        decode=False,
        tolerance=5e-2,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_initial_values_outputs_gradients_and_updates(name):
    CASES[name]()


def recurrent(cell, options, cell_options=None):
    def make(lib, rngs):
        inner = getattr(lib, cell)(4, 3, rngs=rngs, **(cell_options or {}))
        return lib.RNN(inner, **options)

    return make


LENGTHS = jnp.array([3, 5])
CELLS = ["LSTMCell", "OptimizedLSTMCell", "SimpleCell", "GRUCell"]
RECURRENT = {
    **{cell: functools.partial(same, recurrent(cell, {}), X) for cell in CELLS},
    "residual": functools.partial(
        same, recurrent("SimpleCell", {}, {"residual": True}), X
    ),
    "first state": functools.partial(
        same,
        recurrent("GRUCell", {"return_carry": True}),
        X,
        initial_carry=normal(2, 3),
    ),
    "lengths": functools.partial(
        same, recurrent("LSTMCell", {"return_carry": True}), X, seq_lengths=LENGTHS
    ),
    "reverse": functools.partial(
        same, recurrent("GRUCell", {"reverse": True, "unroll": 2}), X
    ),
    "reverse, in order, lengths": functools.partial(
        same,
        recurrent("GRUCell", {"reverse": True, "keep_order": True}),
        X,
        seq_lengths=LENGTHS,
        return_carry=True,
    ),
    "time first": functools.partial(
        same,
        recurrent("LSTMCell", {"time_major": True, "return_carry": True}),
        X,
        seq_lengths=jnp.array([1, 2, 1, 2, 2]),
    ),
    "drawn state": functools.partial(
        same,
        recurrent("GRUCell", {}, {"carry_init": jax.nn.initializers.normal()}),
        X,
    ),
    "both directions": functools.partial(
        same,
        lambda lib, rngs: lib.Bidirectional(
            recurrent("LSTMCell", {})(lib, rngs), recurrent("GRUCell", {})(lib, rngs)
        ),
        X,
        seq_lengths=LENGTHS,
        return_carry=True,
    ),
    "streams given": functools.partial(
        same,
        lambda lib, rngs: lib.RNN(
            lib.SimpleCell(4, 3, rngs=rngs, carry_init=jax.nn.initializers.normal()),
            rngs=rngs,
        ),
        X,
    ),
}


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_layers(name):
    RECURRENT[name]()


@pytest.mark.parametrize("name", [*CELLS, "BatchNorm"])
def test_with_64_bits(name):
    sizes = {"BatchNorm": (4,)}.get(name, (4, 3))
    with jax.enable_x64(True):
        x = X.astype(jnp.float64)
        args = (x,) if name == "BatchNorm" else (x[0, :, :3], x[0])
        args = ((args[0],) * 2, args[1]) if "LSTM" in name else args
        case(name, *args, layer=sizes)()


N = np.int64
OF_NUMPY = {
    "Linear": ((N(4), N(3)), {}),
    "LinearGeneral": ((N(4), N(3)), {"axis": N(-1)}),
    "BatchNorm": ((N(4),), {"axis": N(-1), "momentum": np.float32(0.9)}),
    "LayerNorm": ((N(4),), {"reduction_axes": N(-1), "feature_axes": N(-1)}),
    "MultiHeadAttention": ((N(2), N(4), N(8)), {"decode": False}),
}


@pytest.mark.parametrize("name", OF_NUMPY)
def test_sizes_that_are_integers_of_numpy(name):
    args, options = OF_NUMPY[name]
    made = [
        getattr(lib, name)(*args, **options, rngs=lib.Rngs(0))(X)
        for lib in (nnx, flax_nnx)
    ]
    close(*made)


def test_lists_as_inputs():
    made = [lib.Linear(4, 3, rngs=lib.Rngs(0))([1.0] * 4) for lib in (nnx, flax_nnx)]
    close(*made)
    conv = nnx.Conv(4, 2, N(3), N(2), padding=N(1), rngs=nnx.Rngs(0))
    assert conv(X).shape == nnx.Conv(4, 2, 3, 2, padding=1, rngs=nnx.Rngs(0))(X).shape


def noisy_cell(lib):
    """A cell that drops out inside of the loop."""

    class Noisy(lib.RNNCellBase):
        num_feature_axes = 1

        def __init__(self, rngs):
            self.linear = lib.Linear(4, 4, rngs=rngs)
            self.dropout = lib.Dropout(0.5, rngs=rngs)

        def initialize_carry(self, input_shape, rngs=None, carry_init=None):
            return jnp.zeros(input_shape)

        def __call__(self, carry, inputs):
            carry = self.dropout(self.linear(inputs)) + carry
            return carry, carry

    return Noisy


@pytest.mark.parametrize("broadcast", [None, "dropout"])
def test_random_streams_of_a_cell(broadcast):
    make = lambda lib, rngs: lib.RNN(noisy_cell(lib)(rngs), broadcast_rngs=broadcast)
    ours, theirs = (
        make(nnx, nnx.Rngs(0, dropout=1)),
        make(flax_nnx, flax_nnx.Rngs(0, dropout=1)),
    )
    for _ in range(2):
        close(ours(X), theirs(X))
    close(leaves(nnx, ours), leaves(flax_nnx, theirs))


def test_decoding_step_by_step():
    def make(lib):
        layer = lib.MultiHeadAttention(4, 4, 8, 4, 2, rngs=lib.Rngs(0), decode=True)
        layer.init_cache(X.shape)
        return layer

    ours, theirs = make(nnx), make(flax_nnx)
    for i in range(X.shape[1]):
        close(ours(X[:, i : i + 1]), theirs(X[:, i : i + 1]))
        close(leaves(nnx, ours), leaves(flax_nnx, theirs))
    whole = ours(X, decode=False, is_causal=True)
    ours.init_cache(X.shape)
    steps = [ours(X[:, i : i + 1]) for i in range(X.shape[1])]
    close(jnp.concatenate(steps, 1), whole)


def attention_inputs(heads=2, key_heads=2, value_depth=4, dtype=jnp.float32):
    return (
        normal(2, 5, heads, 4, dtype=dtype),
        normal(2, 3, key_heads, 4, seed=8, dtype=dtype),
        normal(2, 3, key_heads, value_depth, seed=9, dtype=dtype),
    )


@pytest.mark.parametrize(
    ("shapes", "options"),
    [
        ({}, {}),
        ({"heads": 4}, {"bias": normal(1, 4, 5, 3)}),
        ({}, {"mask": normal(2, 1, 5, 3) > -0.5}),
        ({}, {"is_causal": True}),
        ({}, {"dropout_rate": 0.5, "dropout_rng": jax.random.key(1)}),
        (
            {"heads": 4, "value_depth": 3},
            {
                "dropout_rate": 0.5,
                "dropout_rng": jax.random.key(1),
                "broadcast_dropout": False,
                "is_causal": True,
            },
        ),
    ],
)
def test_attention_functions(shapes, options):
    args = attention_inputs(**shapes)
    for name in ("dot_product_attention", "dot_product_attention_weights"):
        theirs = getattr(flax_nnx.nn.attention, name)
        used = args if name == "dot_product_attention" else args[:2]
        close(getattr(nnx, name)(*used, **options), theirs(*used, **options))


@pytest.mark.parametrize("key_heads", [1, 2])
@pytest.mark.parametrize("options", [{}, {"deterministic": True}, {"dropout_rate": 0}])
def test_attention_is_rounded_as_theirs(options, key_heads):
    # What differs in the last bit differs in the first ones after steps of Adam.
    drawn = {"dropout_rate": 0.1, "dropout_rng": jax.random.key(1), **options}
    args = attention_inputs(key_heads=key_heads)

    def loss(attention):
        return lambda args: (attention(*args, **drawn) ** 2).sum()

    ours, theirs = (
        jax.value_and_grad(loss(library.dot_product_attention))(args)
        for library in (nnx, flax_nnx)
    )
    assert jax.tree.all(jax.tree.map(np.array_equal, ours, theirs))


def test_rotary_embedding():
    q, k, v = (normal(2, 5, 2, 4, seed=i) for i in range(3))
    for sizes in ((), (4, 8)):
        ours, theirs = nnx.RoPE(100.0, *sizes), flax_nnx.RoPE(100.0, *sizes)
        close(ours(q[0]), theirs(q[0]))
        close(leaves(nnx, ours), leaves(flax_nnx, theirs))
        close(
            nnx.dot_product_attention_with_rope(q, k, v, rope=ours, is_causal=True),
            flax_nnx.dot_product_attention_with_rope(
                q, k, v, rope=theirs, is_causal=True
            ),
        )
    places = jnp.array([3.0, 1.0, 7.0, 0.0, 2.0])
    close(nnx.RoPE()(q[0, :, 0], places), flax_nnx.RoPE()(q[0, :, 0], places))


@pytest.mark.parametrize("name", ["max_pool", "avg_pool"])
@pytest.mark.parametrize(
    "options",
    [{}, {"strides": (2, 1), "padding": "SAME"}, {"padding": ((1, 0), (0, 1))}],
)
def test_pooling(name, options):
    # Flax's NNX takes these from Linen.
    theirs = getattr(pytest.importorskip("flax.linen"), name)
    close(
        getattr(nnx, name)(IMAGE, (2, 3), **options), theirs(IMAGE, (2, 3), **options)
    )


def test_masks():
    tokens = jnp.array([[1, 1, 0], [1, 0, 0]])
    for extra in (0, 1):
        masks = [
            lib.combine_masks(
                lib.make_attention_mask(tokens, tokens, extra_batch_dims=extra),
                None,
                lib.make_causal_mask(tokens, extra_batch_dims=extra),
            )
            for lib in (nnx, flax_nnx)
        ]
        close(*masks)


def test_names():
    """Every layer, activation and initializer of Flax has its name here."""
    theirs = {
        *flax_nnx.nn.activations.__all__,
        *(
            name
            for module in ("attention", "linear", "lora", "normalization", "recurrent")
            for name, value in vars(getattr(flax_nnx.nn, module)).items()
            if isinstance(value, type) and value.__module__.endswith(module)
        ),
    } - {"RNNBase"}  # a protocol
    assert not [name for name in theirs if not hasattr(nnx, name)]
    made = [n for n in vars(flax_nnx.initializers) if hasattr(jax.nn.initializers, n)]
    assert not [n for n in made if not hasattr(nnx.initializers, n)]


def test_options_are_attributes_where_flax_has_them():
    options = [
        ("Linear", (3, 4), {"use_bias": False, "precision": "highest"}),
        ("LinearGeneral", ((2, 3), 4), {"axis": (-2, -1)}),
        ("Einsum", ("ab,bc->ac", (3, 4), (4,)), {"dtype": jnp.bfloat16}),
        ("Conv", (3, 4, (3, 3)), {"strides": 2, "padding": "CIRCULAR"}),
        ("ConvTranspose", (3, 4, (3,)), {"transpose_kernel": True}),
        ("Embed", (5, 3), {}),
        ("BatchNorm", (3,), {"momentum": 0.5}),
        ("LayerNorm", (3,), {"use_bias": False}),
        ("RMSNorm", (3,), {"epsilon": 0.1}),
        ("GroupNorm", (4, 2), {}),
        ("InstanceNorm", (3,), {"use_scale": False}),
        ("Dropout", (0.5,), {"broadcast_dims": (1,)}),
        ("MultiHeadAttention", (2, 4), {"dropout_rate": 0.5}),
        ("LSTMCell", (3, 4), {}),
        ("OptimizedLSTMCell", (3, 4), {"dtype": jnp.float16}),
        ("SimpleCell", (3, 4), {"residual": True}),
        ("GRUCell", (3, 4), {}),
        ("LoRA", (3, 2, 4), {}),
        ("LoRALinear", (3, 4), {"lora_rank": 2}),
    ]
    for name, args, kwargs in options:
        ours = getattr(nnx, name)(*args, rngs=nnx.Rngs(0), **kwargs)
        theirs = getattr(flax_nnx, name)(*args, rngs=flax_nnx.Rngs(0), **kwargs)
        for option, value in vars(theirs).items():
            if option.startswith("_"):
                continue
            found = getattr(ours, option)
            if isinstance(value, int | float | str | tuple | type(None)):
                assert found == value, (name, option)


@pytest.mark.parametrize(
    ("name", "args", "options"),
    [
        ("LayerNorm", (4,), {}),
        ("LayerNorm", (4,), {"use_fast_variance": False}),
        ("LayerNorm", (4,), BF16),
        ("RMSNorm", (4,), {}),
        ("GroupNorm", (4, 2), {}),
        ("BatchNorm", (4,), {}),
        ("InstanceNorm", (4,), {}),
    ],
)
def test_norms_do_the_same_operations_in_the_same_order(name, args, options):
    def bits(lib):
        layer = getattr(lib, name)(*args, **options, rngs=lib.Rngs(0))
        loss = lambda layer, x: jnp.sin(layer(x).astype(jnp.float32)).sum()
        grads, of_input = lib.grad(loss, argnums=(0, 1))(layer, X)
        return [layer(X), of_input, *jax.tree.leaves(lib.to_pure_dict(grads))]

    for ours, theirs in zip(bits(nnx), bits(flax_nnx), strict=True):
        np.testing.assert_array_equal(ours, theirs, strict=True)
