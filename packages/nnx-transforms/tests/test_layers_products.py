"""Products, convolutions, pooling, norms and wrappers beyond the basic layers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphcore as gc
import nnx_transforms as nnx


def random(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def close(found, expected, tolerance=1e-5):
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


def fill(layer):
    for i, (_, v) in enumerate(gc.variables(layer, gc.Param).flat_state()):
        v.value = random(i, *v.value.shape)
    return layer


X = random(9, 2, 5, 4)


def rngs():
    return nnx.Rngs(0)


# Options


def test_options_that_are_given_are_attributes():
    layer = nnx.Linear(4, 3, use_bias=False, precision="highest", rngs=rngs())
    assert (layer.use_bias, layer.precision, layer.dtype) == (False, "highest", None)
    assert (layer.in_features, layer.out_features) == (4, 3)
    assert layer.bias is None and layer.param_dtype == jnp.float32
    conv = nnx.Conv(4, 3, 3, padding=[(1, 2)], strides=2, rngs=rngs())
    assert (conv.padding, conv.strides, conv.kernel_size) == (((1, 2),), 2, (3,))
    assert set(vars(nnx.Linear(4, 3, rngs=rngs()))) == {"kernel", "bias"}


LAYERS = {
    "kernel": [
        lambda **m: nnx.Linear(4, 4, rngs=rngs(), **m),
        lambda **m: nnx.LinearGeneral(4, (2, 2), rngs=rngs(), **m),
        lambda **m: nnx.Einsum("ab,bc->ac", (4, 4), (4,), rngs=rngs(), **m),
        lambda **m: nnx.Conv(4, 4, 3, rngs=rngs(), **m),
        lambda **m: nnx.ConvTranspose(4, 4, 3, rngs=rngs(), **m),
        lambda **m: nnx.MultiHeadAttention(2, 4, rngs=rngs(), **m).query,
        lambda **m: nnx.LSTMCell(4, 4, rngs=rngs(), **m).ii,
        lambda **m: nnx.GRUCell(4, 4, rngs=rngs(), **m).dense_i,
    ],
    "scale": [
        lambda kind=kind, **m: kind(4, rngs=rngs(), **m)
        for kind in (nnx.BatchNorm, nnx.LayerNorm, nnx.RMSNorm, nnx.InstanceNorm)
    ],
    "embedding": [lambda **m: nnx.Embed(4, 4, rngs=rngs(), **m)],
    "negative_slope": [lambda **m: nnx.PReLU(**m)],
}


@pytest.mark.parametrize("name", LAYERS)
def test_parameters_have_the_metadata_that_is_given(name):
    for make in LAYERS[name]:
        layer = make(**{f"{name}_metadata": {"note": "here"}})
        assert getattr(layer, name).note == "here"


@pytest.mark.parametrize(
    "make",
    [
        lambda **o: nnx.Linear(4, 4, rngs=rngs(), **o),
        lambda **o: nnx.LinearGeneral(4, 4, rngs=rngs(), **o),
        lambda **o: nnx.Conv(4, 4, 3, rngs=rngs(), **o),
        lambda **o: nnx.LayerNorm(4, rngs=rngs(), **o),
        lambda **o: nnx.BatchNorm(4, rngs=rngs(), **o),
        lambda **o: nnx.RMSNorm(4, rngs=rngs(), **o),
        lambda **o: nnx.GroupNorm(4, 2, rngs=rngs(), **o),
        lambda **o: nnx.LoRA(4, 2, 4, rngs=rngs(), **o),
    ],
)
def test_a_promotion_of_ones_own_sees_inputs_and_parameters(make):
    seen = []

    def promote(arrays, *, dtype, **options):
        seen.append((len(arrays), dtype))
        return nnx.promote_dtype(arrays, dtype=dtype, **options)

    out = make(promote_dtype=promote, dtype=jnp.float16)(X)
    assert out.dtype == jnp.float16
    assert seen[0][1] == jnp.float16 and seen[0][0] >= 2


def test_products_of_ones_own():
    calls = []

    def dot_general(*args, **kwargs):
        calls.append(kwargs)
        return jax.lax.dot_general(*args, **kwargs)

    for layer in (
        nnx.Linear(4, 3, dot_general=dot_general, rngs=rngs()),
        nnx.LinearGeneral(4, 3, dot_general=dot_general, rngs=rngs()),
        nnx.LinearGeneral(4, 3, dot_general_cls=lambda: dot_general, rngs=rngs()),
    ):
        assert layer(X).shape == (2, 5, 3)
    assert calls == [{"precision": None}] * 3
    half = X.astype(jnp.bfloat16)
    wide = nnx.Linear(
        4,
        3,
        param_dtype=jnp.bfloat16,
        preferred_element_type=jnp.float32,
        use_bias=False,
        rngs=rngs(),
    )
    assert wide(half).dtype == jnp.float32


def test_promote_dtype():
    assert nnx.canonicalize_dtype(jnp.ones(1, jnp.bfloat16), None, 1.0) == jnp.bfloat16
    assert nnx.canonicalize_dtype(jnp.arange(2)) == jnp.float32
    (kept,) = nnx.promote_dtype((jnp.arange(2),), inexact=False)
    assert kept.dtype == jnp.int32
    with pytest.raises(ValueError, match="int32"):
        nnx.promote_dtype((jnp.ones(2),), dtype=jnp.int32)


# Products


def test_linear_general_contracts_and_keeps_batches():
    layer = fill(nnx.LinearGeneral((5, 4), (3, 2), axis=(1, -1), rngs=rngs()))
    kernel = layer.kernel.value
    close(layer(X), np.einsum("bij,ijkl->bkl", X, kernel) + layer.bias.value, 1e-4)
    own = fill(nnx.LinearGeneral(4, 3, batch_axis={0: 2}, rngs=rngs()))
    expected = np.einsum("bij,bjk->bik", X, own.kernel.value)
    close(own(X), expected + own.bias.value[:, None], 1e-4)
    assert nnx.jit(lambda layer, x: layer(x))(own, X).shape == (2, 5, 3)
    with pytest.raises(ValueError, match="as many sizes"):
        nnx.LinearGeneral((5, 4), 3, rngs=rngs())
    with pytest.raises(ValueError, match="first"):
        nnx.LinearGeneral(4, 3, batch_axis={1: 2}, rngs=rngs())


def test_initializers_with_metadata_keep_it_when_reshaped():
    init = gc.with_metadata(jax.nn.initializers.ones, sharding=("a", "b", "c"))
    layer = nnx.LinearGeneral(4, (3, 2), kernel_init=init, rngs=rngs())
    assert layer.kernel.sharding == ("a", "b", "c")
    assert layer.kernel.value.shape == (4, 3, 2)


@pytest.mark.parametrize(
    ("equation", "kernel", "bias"),
    [
        ("abc,cd->abd", (4, 3), (3,)),
        ("...c,cd->...d", (4, 3), (3,)),
        ("nta,hab->nthb", (3, 4, 2), (3, 2)),
        ("a...c,cd->d...a", (4, 3), (3,)),
        ("...c,...cd->...d", (5, 4, 3), (5, 3)),
        ("ab...,ab...->ab...", (2, 5), (2, 5)),
    ],
)
def test_einsum_adds_the_bias_along_the_axes_of_the_kernel(equation, kernel, bias):
    layer = fill(nnx.Einsum(equation, kernel, bias, rngs=rngs()))
    layer.kernel.value = jnp.zeros(kernel)
    out, values = layer(X), layer.bias.value
    assert np.unique(out).tolist() == np.unique(values).tolist()
    assert out.shape == jnp.einsum(equation, X, layer.kernel.value).shape
    with pytest.raises(ValueError, match="two operands"):
        nnx.Einsum("ab->a", (2,), rngs=rngs())


def test_embed_of_one_vector_and_its_dtype():
    one = nnx.Embed(1, 3, rngs=rngs())
    close(one(jnp.array([0, 5])), jnp.tile(one.embedding.value, (2, 1)))
    half = nnx.Embed(4, 3, param_dtype=jnp.bfloat16, rngs=rngs())
    assert half.dtype == jnp.bfloat16 and (half.num_embeddings, half.features) == (4, 3)
    assert half.attend(jnp.ones(3)).dtype == jnp.bfloat16


# Convolution and pooling


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("padding", ["VALID", "CIRCULAR", "SAME"])
def test_transposed_convolution_is_the_transpose(stride, padding):
    size = 2 + stride
    conv = nnx.Conv(3, 4, size, stride, padding=padding, use_bias=False, rngs=rngs())
    back = nnx.ConvTranspose(
        4,
        3,
        size,
        stride,
        padding=padding,
        use_bias=False,
        transpose_kernel=True,
        rngs=rngs(),
    )
    back.kernel.value = conv.kernel.value
    x = random(0, 1, 8, 3)
    y = random(1, *conv(x).shape)
    assert back(y).shape == x.shape
    close(jnp.vdot(conv(x), y), jnp.vdot(x, back(y)), 1e-4)


def test_masks_of_kernels():
    mask = jnp.zeros((3, 4, 2)).at[1].set(1.0)
    for kind in (nnx.Conv, nnx.ConvTranspose):
        layer = fill(kind(4, 2, 3, mask=mask, rngs=rngs()))
        pointwise = X @ layer.kernel.value[1] + layer.bias.value
        close(layer(X), pointwise, 1e-4)
        close(nnx.jit(lambda layer, x: layer(x))(layer, X), pointwise, 1e-4)
        with pytest.raises(ValueError, match=r"\(3, 4, 2\)"):
            kind(4, 2, 3, mask=jnp.ones((3, 2)), rngs=rngs())


@pytest.mark.parametrize("padding", ["VALID", "SAME", ((1, 0),)])
def test_pooling(padding):
    x = X[..., :2]
    pads = {"VALID": (0, 0), "SAME": (0, 1)}.get(padding, (1, 0))
    wide = np.pad(x, ((0, 0), pads, (0, 0)), constant_values=np.nan)
    steps = range(0, wide.shape[1] - 1, 2)
    windows = np.stack([wide[:, i : i + 2] for i in steps], 1)
    options = {"strides": (2,), "padding": padding}
    close(nnx.max_pool(x, (2,), **options), np.nanmax(windows, 2))
    close(nnx.min_pool(x, (2,), **options), np.nanmin(windows, 2))
    average = nnx.avg_pool(x, (2,), **options, count_include_pad=False)
    close(average, np.nanmean(windows, 2))
    close(nnx.avg_pool(x, (2,), **options), np.nansum(windows, 2) / 2)
    with pytest.raises(ValueError, match="stride"):
        nnx.max_pool(x, (2,), strides=(1, 1))


# Normalization


def test_norms_of_other_axes_are_layer_norms():
    x = random(0, 3, 4, 5, 6)
    groups = nnx.GroupNorm(6, num_groups=1, rngs=rngs())
    whole = nnx.LayerNorm(6, reduction_axes=(1, 2, 3), rngs=rngs())
    close(groups(x), whole(x))
    single = nnx.GroupNorm(6, num_groups=None, group_size=1, rngs=rngs())
    instance = nnx.InstanceNorm(6, rngs=rngs())
    spatial = nnx.LayerNorm(6, reduction_axes=[1, 2], rngs=rngs())
    close(single(x), spatial(x))
    close(instance(x), spatial(x))
    assert (single.num_groups, single.group_size) == (6, 1)


def test_group_norm_with_more_batch_axes():
    x = random(0, 2, 3, 5, 6)
    norm = nnx.GroupNorm(6, 3, reduction_axes=(2, -1), rngs=rngs())
    close(norm(x), jax.vmap(nnx.GroupNorm(6, 3, rngs=rngs()))(x))


def test_rms_norm_is_the_formula():
    norm = fill(nnx.RMSNorm(4, epsilon=0.1, rngs=rngs()))
    wide = np.asarray(X, np.float64)
    expected = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 0.1)
    close(norm(X), expected * norm.scale.value)
    assert not hasattr(norm, "bias") or norm.bias is None


@pytest.mark.parametrize(
    "norm",
    [
        nnx.BatchNorm(4, rngs=rngs()),
        nnx.BatchNorm(4, use_fast_variance=False, rngs=rngs()),
        nnx.InstanceNorm(4, rngs=rngs()),
        nnx.GroupNorm(4, 2, rngs=rngs()),
    ],
)
def test_what_is_masked_does_not_count(norm):
    mask = jnp.array([True, True, True, False, False])[None, :, None]
    other = X.at[:, 3:].set(1e3)
    close(norm(X, mask=mask)[:, :3], norm(other, mask=mask)[:, :3], 1e-4)
    close(norm(X, mask=mask)[:, :3], norm(X[:, :3]), 1e-4)


@pytest.mark.parametrize("options", [{}, {"use_fast_variance": False}])
def test_variance_in_one_pass_and_two(options):
    x = random(0, 64, 4) + 1e4
    norm = nnx.BatchNorm(4, momentum=0.0, **options, rngs=rngs())
    norm(x)
    exact = np.asarray(x, np.float64).var(0)
    assert np.allclose(norm.var.value, exact, rtol=1e-2) is bool(options)


def test_norms_say_what_does_not_fit():
    with pytest.raises(ValueError, match="num_groups=3"):
        nnx.GroupNorm(4, 3, rngs=rngs())
    with pytest.raises(ValueError, match="one of them"):
        nnx.GroupNorm(4, 2, 2, rngs=rngs())
    with pytest.raises(ValueError, match="batch"):
        nnx.InstanceNorm(2, feature_axes=0, rngs=rngs())(X)
    for kind in (nnx.RMSNorm, nnx.InstanceNorm):
        with pytest.raises(ValueError, match="expected 3 features at axis"):
            kind(3, rngs=rngs())(X)
    with pytest.raises(ValueError, match="`use_running_average`"):
        nnx.BatchNorm(4, use_running_average=None, rngs=rngs())(X)


# Wrappers


def test_weight_norm_separates_length_and_direction():
    layer = nnx.WeightNorm(nnx.Linear(4, 3, rngs=rngs()), rngs=rngs())
    (path,) = layer.scales
    layer.scales[path].value = jnp.array([1.0, 2.0, 3.0])
    before = layer.layer_instance.kernel.value
    y = layer(X)
    kernel = layer.layer_instance.kernel.value
    close(np.linalg.norm(kernel, axis=0), [1, 2, 3])
    close(
        kernel / np.linalg.norm(kernel, axis=0), before / np.linalg.norm(before, axis=0)
    )
    close(y, X @ kernel + layer.layer_instance.bias.value)
    assert path == ("kernel",)
    grads = nnx.grad(lambda layer: layer(X).sum())(layer)
    assert ("scales", ("kernel",)) in grads.flat_state().paths


def test_spectral_norm_finds_the_largest_singular_value():
    conv = nnx.Conv(4, 3, (2, 2), rngs=rngs())
    layer = nnx.SpectralNorm(conv, n_steps=100, rngs=nnx.Rngs(1))
    kernel = conv.kernel.value.reshape(-1, 3)
    layer(random(0, 1, 4, 4, 4))
    close(layer.batch_stats["kernel", "sigma"].value, np.linalg.norm(kernel, 2), 1e-4)
    close(np.linalg.norm(conv.kernel.value.reshape(-1, 3), 2), 1, 1e-4)
    layer.eval()
    kept = layer.batch_stats["kernel", "u"].value
    layer(random(0, 1, 4, 4, 4))
    assert layer.batch_stats["kernel", "u"].value is kept
    with pytest.raises(ValueError, match="kernel of shape"):
        nnx.SpectralNorm(conv, error_on_non_matrix=True, rngs=rngs())


def test_low_rank_adaptation_trains_its_own_parameters():
    base = nnx.Linear(4, 3, rngs=rngs())
    for layer in (
        nnx.LoRA(4, 2, 3, base_module=base, rngs=nnx.Rngs(1)),
        nnx.LoRALinear(4, 3, lora_rank=2, rngs=rngs()),
    ):
        close(layer(X), base(X))
        state = gc.state(layer, nnx.LoRAParam)
        assert {path[-1] for path in state.flat_state().paths} == {"lora_a", "lora_b"}
        lora = layer if isinstance(layer, nnx.LoRA) else layer.lora
        lora.lora_b.value = random(0, 2, 3)
        change = X @ lora.lora_a.value @ lora.lora_b.value
        close(layer(X), base(X) + change, 1e-4)


def test_prelu_learns_its_slope():
    layer = nnx.PReLU(0.25, param_dtype=jnp.bfloat16)
    close(layer(jnp.array([-2.0, 3.0])), [-0.5, 3.0])
    grads = nnx.grad(lambda layer: layer(jnp.array([-2.0, 3.0])).sum())(layer)
    assert float(grads.negative_slope.value) == -2.0


@pytest.mark.parametrize(
    "layer",
    [
        nnx.Dropout(0.5),
        nnx.BatchNorm(4, rngs=rngs()),
        nnx.MultiHeadAttention(2, 4, rngs=rngs()),
    ],
)
def test_views_switch_the_mode(layer):
    name = "use_running_average" if hasattr(layer, "momentum") else "deterministic"
    before = getattr(layer, name)
    layer.set_view()
    assert getattr(layer, name) is before
    layer.set_view(**{name: True})
    assert getattr(layer, name) is True
