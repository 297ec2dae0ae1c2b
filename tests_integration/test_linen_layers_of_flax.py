"""Each layer against Flax Linen's: same variables, and same numbers given them."""

import functools
import itertools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from comparison import close

import linen_lift as nn

flax_nn = pytest.importorskip("flax.linen")

KEYS = {name: jax.random.key(i) for i, name in enumerate(["params", "dropout"])}


def normal(*shape, seed=7, dtype=jnp.float32):
    return jax.random.normal(jax.random.key(seed), shape).astype(dtype)


def randomized(variables):
    """Other values for all variables, with averages of squares above zero."""
    leaves, treedef = jax.tree.flatten(variables)
    keys = jax.random.split(jax.random.key(9), max(len(leaves), 1))

    def draw(key, x):
        if not jnp.issubdtype(x.dtype, jnp.inexact):
            return x
        return jax.random.uniform(key, x.shape, x.dtype, 0.1, 1.0) - 0.3 * (x.ndim > 1)

    return treedef.unflatten(map(draw, keys, leaves))


def shapes(tree):
    return jax.tree.map(lambda x: (x.shape, x.dtype.name), tree)


def quiet(fn, *args, **kwargs):
    """Flax warns of what it will remove; nothing of it is under test here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fn(*args, **kwargs)


def same(make, *args, tolerance=2e-5, **kwargs):
    """Compares the module that `make` builds of each library.

    Args:
        make: takes a library.
        *args: for the call.
        tolerance: relative and absolute.
        **kwargs: for both calls.
    """
    ours, theirs = make(nn), quiet(make, flax_nn)
    abstract = quiet(jax.eval_shape, lambda: theirs.init(KEYS, *args, **kwargs))
    made = jax.eval_shape(lambda: ours.init(KEYS, *args, **kwargs))
    assert shapes(made) == shapes(abstract)
    variables = randomized(abstract)
    mutable = sorted({*variables, "intermediates"} - {"params"})

    def run(model):
        """Output, updated collections and gradients."""

        def loss(params):
            both = {**variables, "params": params}
            out, updated = model.apply(both, *args, mutable=mutable, **kwargs)
            total = sum(jnp.sum(jnp.sin(x)) for x in jax.tree.leaves(out))
            return total.astype(jnp.float32), (out, updated)

        grads, aux = jax.grad(loss, has_aux=True)(variables.get("params", {}))
        return aux, grads

    out, grads = jax.jit(lambda: run(ours))()
    expected, expected_grads = quiet(jax.jit(lambda: run(theirs)))
    close(out, expected, tolerance)
    close(grads, expected_grads, 50 * tolerance)


def case(name, *args, layer=(), options=None, **more):
    """A layer by its name, with its own arguments, and those of the call."""
    make = lambda lib: getattr(lib, name)(*layer, **(options or {}))
    return lambda: same(make, *args, **more)


X = normal(2, 5, 4)
IMAGE = normal(2, 6, 7, 4)
MASK = jnp.array([True, True, False, True, True])[None, :, None]

CASES = {
    "dense": case("Dense", X, layer=(3,)),
    "dense bfloat16": case(
        "Dense", X, layer=(3,), options={"dtype": jnp.bfloat16}, tolerance=2e-2
    ),
    "dense of integers": case("Dense", jnp.arange(4), layer=(3,)),
    "dense general": case("DenseGeneral", X, layer=((3, 2),), options={"axis": (1, 2)}),
    "dense general, other order": case(
        "DenseGeneral", IMAGE, layer=(3,), options={"axis": (-1, 1)}
    ),
    "dense general, batch": case(
        "DenseGeneral",
        IMAGE,
        layer=((3, 2),),
        options={"axis": -1, "batch_dims": (0, 1)},
    ),
    "einsum": case("Einsum", X, layer=((4, 3, 2), "abc,cde->abde")),
    "einsum, ellipsis": case("Einsum", X, layer=((4, 3), "...c,cd->...d")),
    "einsum, kernel's ellipsis": case("Einsum", X, layer=((5, 4), "a...,...->a...")),
    "einsum, no bias": case(
        "Einsum", X, "abc,cd->dab", layer=((4, 3),), options={"use_bias": False}
    ),
    "einsum, transposed": case("Einsum", X, layer=((4, 3), "abc, cd -> dab")),
    "embed": case("Embed", jnp.array([[0, 3], [2, 2]]), layer=(5, 3)),
    "embed of one": case("Embed", jnp.array([[0, 3], [2, 2]]), layer=(1, 3)),
    "embed bfloat16": case(
        "Embed", jnp.array([1]), layer=(5, 3), options={"dtype": jnp.bfloat16}
    ),
    "conv": case("Conv", IMAGE, layer=(8, (3, 2), (2, 1))),
    "conv, integer size": case("Conv", X, layer=(8, 3)),
    "conv, groups": case(
        "Conv",
        IMAGE,
        layer=(8, (3, 3)),
        options={"feature_group_count": 2, "kernel_dilation": 2, "padding": 1},
    ),
    "conv, input dilation": case(
        "Conv",
        IMAGE,
        layer=(8, (3, 3)),
        options={"input_dilation": (2, 1), "padding": [(1, 0), 2], "use_bias": False},
    ),
    "conv, one example": case("Conv", IMAGE[0], layer=(8, (3, 3))),
    "conv, more batch axes": case("Conv", normal(2, 3, 5, 4), layer=(2, (3,))),
    **{
        f"conv, {padding}": case(
            "Conv", X, layer=(8, (3,)), options={"padding": padding}
        )
        for padding in ("CIRCULAR", "REFLECT", "CAUSAL", "VALID")
    },
    "conv, even circular": case(
        "Conv", IMAGE, layer=(3, (4, 2)), options={"padding": "CIRCULAR"}
    ),
    "conv local": case("ConvLocal", IMAGE, layer=(3, (3, 2), (2, 1))),
    "conv local, circular": case(
        "ConvLocal", X, layer=(3, (3,)), options={"padding": "CIRCULAR"}
    ),
    "conv transpose": case("ConvTranspose", IMAGE, layer=(3, (3, 2), (2, 1))),
    "conv transpose, one example": case("ConvTranspose", IMAGE[0], layer=(3, (3, 3))),
    "conv transpose, padding": case(
        "ConvTranspose", X, layer=(3, 3), options={"padding": [(1, 2)]}
    ),
    "conv transpose, kernel": case(
        "ConvTranspose",
        IMAGE,
        layer=(3, (3, 2), (2, 2), "VALID"),
        options={"transpose_kernel": True, "kernel_dilation": (1, 2)},
    ),
    **{
        f"conv transpose, circular {size} {stride} {transpose}": case(
            "ConvTranspose",
            normal(2, 5, 4),
            layer=(3, (size,), (stride,), "CIRCULAR"),
            options={"transpose_kernel": transpose},
        )
        for size in (1, 3, 4, 12)
        for stride in (1, 2)
        for transpose in (False, True)
    },
    "layer norm": case("LayerNorm", X),
    "layer norm, axes": case(
        "LayerNorm", IMAGE, options={"reduction_axes": (1, 2), "feature_axes": (1, 3)}
    ),
    "layer norm, mask": case(
        "LayerNorm",
        X,
        mask=MASK[..., :1],
        options={"reduction_axes": (1, 2), "use_fast_variance": False},
    ),
    "layer norm, half": case(
        "LayerNorm",
        X.astype(jnp.float16),
        options={"dtype": jnp.float16},
        tolerance=4e-3,
    ),
    "layer norm, half statistics": case(
        "LayerNorm",
        X,
        options={"dtype": jnp.float16, "force_float32_reductions": False},
        tolerance=1e-2,
    ),
    "batch norm": case("BatchNorm", IMAGE, options={"use_running_average": False}),
    "batch norm, mask": case("BatchNorm", X, False, mask=MASK),
    "batch norm, averages": case("BatchNorm", X, True, options={"axis": 1}),
    "batch norm, half": case(
        "BatchNorm",
        X,
        False,
        tolerance=1e-2,
        options={"force_float32_reductions": False, "param_dtype": jnp.float16},
    ),
    "rms norm": case("RMSNorm", X),
    "rms norm, axes": case(
        "RMSNorm", IMAGE, options={"reduction_axes": (1, -1), "feature_axes": -1}
    ),
    "rms norm, mask": case("RMSNorm", X, mask=jnp.arange(4) < 3),
    "rms norm, bfloat16": case(
        "RMSNorm",
        X.astype(jnp.bfloat16),
        options={"dtype": jnp.bfloat16},
        tolerance=2e-2,
    ),
    "group norm": case("GroupNorm", IMAGE, layer=(2,)),
    "group norm, size": case("GroupNorm", X, layer=(None, 1)),
    "group norm, axes": case(
        "GroupNorm", IMAGE, layer=(2,), options={"reduction_axes": (0, -1)}
    ),
    "group norm, mask": case(
        "GroupNorm", X, layer=(2,), mask=jnp.broadcast_to(MASK, X.shape)
    ),
    "instance norm": case("InstanceNorm", IMAGE),
    "instance norm, axes": case(
        "InstanceNorm",
        IMAGE,
        options={
            "feature_axes": (1, -1),
            "use_fast_variance": False,
            "use_bias": False,
        },
    ),
    "prelu": case("PReLU", X),
    "prelu bfloat16": case("PReLU", X.astype(jnp.bfloat16)),
    "dropout": case("Dropout", X, True, layer=(0.5,)),
    "spectral norm": lambda: same(
        lambda lib: lib.SpectralNorm(lib.Conv(3, (3, 2)), n_steps=2),
        IMAGE,
        update_stats=True,
    ),
    "spectral norm, kept": lambda: same(
        lambda lib: lib.SpectralNorm(lib.Dense(3), collection_name="spectral"),
        X,
        update_stats=False,
    ),
    "weight norm": lambda: same(lambda lib: lib.WeightNorm(lib.Dense(3)), X),
    "weight norm of all": lambda: same(
        lambda lib: lib.WeightNorm(
            lib.Conv(3, (3, 3)), feature_axes=None, variable_filter=None
        ),
        IMAGE,
    ),
    "weight norm, axes": lambda: same(
        lambda lib: lib.WeightNorm(
            lib.DenseGeneral((3, 2)), feature_axes=(-2, -1), use_scale=False
        ),
        X,
    ),
}


@pytest.fixture(autouse=True, scope="module")
def quick_compilation():
    """The time goes into compiling what runs once."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.mark.parametrize("name", CASES)
def test_layer(name):
    CASES[name]()


@pytest.mark.parametrize("wrapper", ["WeightNorm", "SpectralNorm"])
def test_weights_of_a_submodule(wrapper):
    def make(lib):
        class Inner(lib.Module):
            @lib.compact
            def __call__(self, x):
                return lib.Dense(3)(lib.Conv(4, (2,))(x))

        class Model(lib.Module):
            @lib.compact
            def __call__(self, x):
                options = {"update_stats": True} if wrapper == "SpectralNorm" else {}
                x = getattr(lib, wrapper)(Inner())(x, **options)
                return getattr(lib, wrapper)(lib.Dense(2), name="last")(x, **options)

        return Model()

    same(make, X)


Q, K, V = (normal(2, 5, 8, seed=i) for i in range(3))
CAUSAL = nn.make_causal_mask(Q[..., 0])
ATTENTION = {
    "self": ((Q,), {}, {}),
    "cross": ((Q, normal(2, 7, 6)), {}, {}),
    "values": ((Q, K, V), {}, {}),
    "inputs_kv": ((Q,), {}, {"inputs_kv": normal(2, 7, 6)}),
    "mask": ((Q,), {}, {"mask": CAUSAL}),
    "boolean mask": ((Q,), {}, {"mask": CAUSAL.astype(bool)}),
    "mask of one head": ((Q,), {}, {"mask": CAUSAL[0, 0]}),
    "one example": ((Q[0],), {}, {"mask": CAUSAL[0]}),
    "two batch axes": (
        (normal(2, 3, 5, 8),),
        {},
        {"mask": jnp.ones((3, 1, 5, 5)).at[1, 0, 2:, 1].set(0)},
    ),
    "features": ((Q,), {"qkv_features": 4, "out_features": 3}, {}),
    "no bias": ((Q,), {"use_bias": False}, {}),
    "normalized": ((Q,), {"normalize_qk": True}, {}),
    "weights": ((Q,), {}, {"sow_weights": True, "mask": CAUSAL}),
    "precision": ((Q,), {"precision": "highest"}, {}),
    "initializers": (
        (Q,),
        {"out_kernel_init": jax.nn.initializers.ones, "out_bias_init": None},
        {},
    ),
    "dropout": (
        (Q,),
        {"dropout_rate": 0.5},
        {"deterministic": False, "dropout_rng": jax.random.key(3)},
    ),
    "dropout by element": (
        (Q,),
        {"dropout_rate": 0.5, "broadcast_dropout": False, "deterministic": False},
        {"dropout_rng": jax.random.key(3), "sow_weights": True},
    ),
    "no dropout": ((Q,), {"dropout_rate": 0.5, "deterministic": True}, {}),
    "jax's function": (
        (Q,),
        {"attention_fn": jax.nn.dot_product_attention},
        {"mask": CAUSAL.astype(bool)},
    ),
    "einsums": (
        (Q,),
        {
            "qk_attn_weights_einsum_cls": lambda: jnp.einsum,
            "attn_weights_value_einsum_cls": lambda: jnp.einsum,
        },
        {},
    ),
}


@pytest.mark.parametrize(
    "layer", ["MultiHeadDotProductAttention", "MultiHeadAttention"]
)
@pytest.mark.parametrize("name", ATTENTION)
def test_attention(layer, name):
    args, options, call = ATTENTION[name]
    same(lambda lib: getattr(lib, layer)(num_heads=2, **options), *args, **call)


@pytest.mark.parametrize("force", [False, True])
def test_attention_in_bfloat16(force):
    options = {"dtype": jnp.bfloat16, "force_fp32_for_softmax": force}
    same(
        lambda lib: lib.MultiHeadAttention(num_heads=2, **options),
        Q,
        mask=CAUSAL,
        tolerance=2e-2,
    )


def test_self_attention():
    same(lambda lib: lib.SelfAttention(num_heads=2), Q, CAUSAL)


def test_a_position_at_a_time():
    """The cache has Flax's contents after each step, and ends in the whole."""
    x = normal(2, 4, 8)
    make = functools.partial(dict, num_heads=2, qkv_features=6)
    ours = nn.MultiHeadAttention(decode=True, **make())
    theirs = flax_nn.MultiHeadAttention(decode=True, **make())
    variables = theirs.init(KEYS, x)
    assert shapes(ours.init(KEYS, x)) == shapes(variables)
    params, cache = randomized(variables["params"]), variables["cache"]
    expected = nn.MultiHeadAttention(**make()).apply(
        {"params": params}, x, mask=nn.make_causal_mask(x[..., 0])
    )
    for t in range(4):
        step = {"params": params, "cache": cache}, x[:, t : t + 1]
        out, updated = ours.apply(*step, mutable=["cache"])
        close((out, updated), theirs.apply(*step, mutable=["cache"]))
        np.testing.assert_allclose(out[:, 0], expected[:, t], 1e-4, 1e-5)
        cache = updated["cache"]
    with pytest.raises(ValueError, match="one position"):
        ours.apply({"params": params, "cache": cache}, x, mutable=["cache"])


@pytest.mark.parametrize("depth", [4, 3])
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
@pytest.mark.parametrize("options", ["", "bias", "mask", "both"])
def test_attention_functions(depth, batch, options):
    q, k = normal(*batch, 5, 2, 4), normal(*batch, 6, 2, 4, seed=8)
    v = normal(*batch, 6, 2, depth, seed=9)
    kwargs = {}
    if options in ("bias", "both"):
        kwargs["bias"] = normal(*batch[:1], *(1,) * len(batch[1:]), 1, 5, 6)
    if options in ("mask", "both"):
        kwargs["mask"] = normal(2, 5, 6) > 0
    for name, args in [
        ("dot_product_attention", (q, k, v)),
        ("dot_product_attention_weights", (q, k)),
    ]:
        ours, theirs = getattr(nn, name), getattr(flax_nn, name)
        close(ours(*args, **kwargs), theirs(*args, **kwargs))


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32])
@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_attention_rounds_where_flax_does(dtype, rate):
    q, k, v = (normal(2, 5, 2, 4, seed=seed).astype(dtype) for seed in range(3))
    bias = normal(2, 5, 5, seed=3).astype(dtype)
    dropout = {"dropout_rate": rate, "dropout_rng": jax.random.key(0)}
    found, expected = (
        lib.dot_product_attention(q, k, v, bias, bias > 0, **dropout)
        for lib in (nn, flax_nn)
    )
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, expected)


def test_attention_of_wide_numbers():
    with jax.enable_x64(True):
        q, k, v = (np.random.default_rng(i).normal(size=(3, 2, 4)) for i in range(3))
        out = nn.dot_product_attention(q, k, v)
        assert out.dtype == jnp.float64
        close(out, flax_nn.dot_product_attention(q, k, v), 1e-13)


def test_masks():
    x, y = jnp.array([[1, 1, 0]]), jnp.array([[1, 0]])
    for lib in (nn, flax_nn):
        if lib is nn:
            found = []
        found.append(
            [
                lib.make_causal_mask(x, 1, bool),
                lib.make_attention_mask(x, y),
                lib.make_attention_mask(x, y, jnp.greater, 2, jnp.int32),
                lib.combine_masks(
                    lib.make_causal_mask(x), None, lib.make_attention_mask(x, x)
                ),
            ]
        )
        assert lib.combine_masks(None) is None
    close(*found)


@pytest.mark.parametrize("fn", ["avg_pool", "max_pool", "min_pool"])
@pytest.mark.parametrize(
    ("x", "padding"),
    [
        *itertools.product([IMAGE, IMAGE[0]], ["SAME", "VALID", ((1, 0), (0, 2))]),
        # With more batch axes Flax takes no numbers.
        (normal(2, 3, 6, 7, 4), "SAME"),
    ],
)
def test_pooling(fn, x, padding):
    other = getattr(flax_nn.pooling, fn)
    for strides in (None, (2, 1)):
        args = (x, (2, 3), strides, padding)
        close(getattr(nn, fn)(*args), other(*args))
    if fn == "avg_pool":
        args = (x, (2, 3), (2, 2), padding, False)
        close(nn.avg_pool(*args), flax_nn.avg_pool(*args))


CELLS = {
    "LSTMCell": {},
    "OptimizedLSTMCell": {},
    "GRUCell": {},
    "MGUCell": {},
    "MGUCell without reset": {"reset_gate": False},
    "SimpleCell": {},
    "SimpleCell with residual": {"residual": True, "activation_fn": jnp.sin},
    "ConvLSTMCell": {"kernel_size": (3, 2)},
    "ConvLSTMCell without bias": {"kernel_size": (3, 2), "use_bias": False},
}


def cell(lib, name):
    return getattr(lib, name.split()[0])(features=3, **CELLS[name])


def step_input(name, *batch):
    return normal(*batch, 5, 4, 2) if name.startswith("Conv") else normal(*batch, 2)


def carries(name, x):
    """A state that is not the first one."""
    first = cell(nn, name).initialize_carry(KEYS["params"], x.shape)
    theirs = cell(flax_nn, name).initialize_carry(KEYS["params"], x.shape)
    assert shapes(first) == shapes(theirs)
    return randomized(first)


@pytest.mark.parametrize("name", CELLS)
def test_cell(name):
    x = step_input(name, 2)
    same(lambda lib: cell(lib, name), carries(name, x), x)
    assert cell(nn, name).num_feature_axes == cell(flax_nn, name).num_feature_axes


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("time_major", [False, True])
def test_rnn_over_each_cell(name, time_major):
    x = step_input(name, 6, 2) if time_major else step_input(name, 2, 6)
    make = lambda lib: lib.RNN(
        cell(lib, name), return_carry=True, time_major=time_major
    )
    same(make, x)
    start = carries(name, x[0] if time_major else x[:, 0])
    same(make, x, initial_carry=start)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("keep_order", [False, True])
@pytest.mark.parametrize("lengths", [None, jnp.array([6, 2, 1])])
@pytest.mark.parametrize("return_carry", [False, True])
def test_rnn_options(reverse, keep_order, lengths, return_carry):
    same(
        lambda lib: lib.RNN(lib.LSTMCell(3), reverse=reverse, unroll=2),
        normal(3, 6, 2),
        seq_lengths=lengths,
        keep_order=keep_order,
        return_carry=return_carry,
    )


IMAGE_STEP = normal(2, 5, 4, 2)
INITIALIZED = {
    "Dense": ((3,), X),
    "DenseGeneral": ((3,), X),
    "Einsum": (((4, 3), "abc,cd->abd"), X),
    "Embed": ((5, 3), jnp.array([1])),
    "Conv": ((8, 3), X),
    "ConvLocal": ((8, 3), X),
    "ConvTranspose": ((8, 3), X),
    "BatchNorm": ((False,), X),
    "LayerNorm": ((), X),
    "RMSNorm": ((), X),
    "GroupNorm": ((2,), X),
    "InstanceNorm": ((), X),
    "PReLU": ((), X),
    "MultiHeadDotProductAttention": ((2,), X),
    **{name: ((3,), None, normal(2, 2)) for name in CELLS if name.endswith("Cell")},
    "ConvLSTMCell": ((3, (3, 2)), None, IMAGE_STEP),
}


@pytest.mark.parametrize("name", INITIALIZED)
def test_each_initializer_makes_what_it_makes_in_flax(name):
    def initialized(lib):
        kind = getattr(lib, name)
        number = name == "PReLU"  # whose option is a value
        options = {
            field: float(i) if number else functools.partial(counted, 1000.0 * i)
            for i, field in enumerate(fields)
        }
        model = kind(*layer, **options)
        if not hasattr(kind, "initialize_carry"):
            return model.init(KEYS, *args)
        x = args[-1]
        carry = model.initialize_carry(KEYS["params"], x.shape)
        # (Kernels that no option makes have other random values.)
        return carry, model.init(KEYS, carry, x) if "kernel_init" in fields else {}

    def counted(first, key, shape, dtype=jnp.float32):
        return first + jnp.arange(np.prod(shape, dtype=int), dtype=dtype).reshape(shape)

    layer, *args = INITIALIZED[name]
    kinds = getattr(nn, name), getattr(flax_nn, name)
    fields, theirs = (
        sorted(f for f in kind.__dataclass_fields__ if f.endswith("_init"))
        for kind in kinds
    )
    assert fields == theirs != []
    close(initialized(nn), quiet(initialized, flax_nn), 0)


@pytest.mark.parametrize("lengths", [None, jnp.array([6, 2, 1])])
def test_bidirectional(lengths):
    same(
        lambda lib: lib.Bidirectional(
            lib.RNN(lib.LSTMCell(3)), lib.RNN(lib.GRUCell(4)), return_carry=True
        ),
        normal(3, 6, 2),
        seq_lengths=lengths,
    )
    same(
        lambda lib: lib.Bidirectional(
            lib.RNN(lib.GRUCell(3)), lib.RNN(lib.GRUCell(3)), merge_fn=jnp.add
        ),
        normal(6, 3, 2),
        time_major=True,
        init_key=jax.random.key(1),
    )


def test_flipped_sequences():
    x, lengths = normal(2, 3, 5, 4), jnp.array([[5, 2, 1], [3, 4, 5]])
    for args in [(x, lengths, 2, False), (x, None, 2, False)]:
        close(
            nn.recurrent.flip_sequences(*args), flax_nn.recurrent.flip_sequences(*args)
        )


@pytest.mark.parametrize(
    "options",
    [
        {
            "dot_general": lambda *args, **kwargs: (
                2 * jax.lax.dot_general(*args, **kwargs)
            )
        },
        {"dot_general_cls": lambda: lambda *a, **kw: -jax.lax.dot_general(*a, **kw)},
        {"promote_dtype": lambda *xs, dtype: [x.astype(jnp.float16) for x in xs]},
    ],
)
def test_products_of_ones_own(options):
    tolerance = 1e-2 if "promote_dtype" in options else 2e-5
    for name in ("Dense", "DenseGeneral"):
        same(lambda lib: getattr(lib, name)(3, **options), X, tolerance=tolerance)
    if "promote_dtype" not in options:
        of_heads = {f"qkv_{k}": v for k, v in options.items()}
        of_heads |= {f"out_{k}": v for k, v in options.items()}
        same(lambda lib: lib.MultiHeadAttention(2, **of_heads), Q)


def test_convolutions_of_ones_own():
    def double(*args, **kwargs):
        return 2 * jax.lax.conv_general_dilated(*args, **kwargs)

    same(lambda lib: lib.Conv(3, (3,), conv_general_dilated=double), X)
    same(lambda lib: lib.Conv(3, (3,), conv_general_dilated_cls=lambda: double), X)


@pytest.mark.parametrize("inexact", [True, False])
def test_promotion(inexact):
    for arrays in [
        (jnp.ones(2, jnp.bfloat16), 1.5, None),
        (jnp.ones(2, jnp.bfloat16), jnp.ones(2)),
        (jnp.arange(2), 2),
        (np.ones(2), jnp.float16(1)),
        (jnp.ones(2) * 1j, jnp.arange(2)),
    ]:
        for dtype in (None, jnp.float16):
            args = {"dtype": dtype, "inexact": inexact}
            if dtype == jnp.float16 and jnp.iscomplexobj(arrays[0]):
                continue
            found = nn.promote_dtype(*arrays, **args)
            expected = flax_nn.dtypes.promote_dtype(*arrays, **args)
            close(
                [x for x in found if x is not None],
                [x for x in expected if x is not None],
            )
            assert [x is None for x in found] == [x is None for x in expected]
    with pytest.raises(ValueError, match="int32"):
        nn.promote_dtype(jnp.ones(2), dtype=jnp.int32)


def test_layers_are_found_in_modules_called_as_in_flax():
    assert nn.combinators.Sequential is nn.Sequential
    assert nn.stochastic.Dropout is nn.Dropout
    assert nn.activation.PReLU is nn.PReLU
    functions = {name for name in dir(jax.nn) if hasattr(flax_nn.activation, name)}
    assert "relu" in functions
    assert functions <= {*dir(nn.activation)}
