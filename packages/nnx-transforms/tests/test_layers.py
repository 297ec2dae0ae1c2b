import itertools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import graphcore as gc
import nnx_transforms as nnx
from nnx_transforms.layers import (
    BatchNorm,
    Conv,
    Dropout,
    Embed,
    LayerNorm,
    Linear,
    Sequential,
)
from nnx_transforms.randomness.rngs import Rngs, RngStream


def random(seed, shape, dtype=np.float32):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def fill(layer, seed=0):
    """Gives every parameter random values, so that none is neutral."""
    for i, (_, v) in enumerate(gc.variables(layer, gc.Param).flat_state()):
        v.value = jnp.asarray(random(seed + i, v.value.shape), v.value.dtype)
    return layer


def primitives(f, *args):
    return [e.primitive.name for e in jax.make_jaxpr(f)(*args).jaxpr.eqns]


@pytest.mark.parametrize(
    "rngs", [0, None, jax.random.key(0), np.uint32([0, 1]), lambda: jax.random.key(0)]
)
def test_a_seed_is_no_random_stream(rngs):
    for make in (
        lambda: Linear(3, 2, rngs=rngs),
        lambda: Conv(3, 4, (3,), rngs=rngs),
        lambda: Embed(3, 4, rngs=rngs),
    ):
        with pytest.raises(
            TypeError, match=r"Expected random streams.*Rngs\(params=seed"
        ):
            make()


# Linear


def test_linear_says_how_many_features_it_takes():
    layer = Linear(3, 2, rngs=Rngs(0))
    for call in (layer, nnx.jit(layer)):
        with pytest.raises(TypeError) as caught:
            call(jnp.ones((5, 4)))
        notes = "".join(caught.value.__notes__)
        assert "Linear takes 3 features, and got an input of shape (5, 4)." in notes


@pytest.mark.parametrize("shape", [(3,), (4, 3), (2, 4, 3)])
@pytest.mark.parametrize("use_bias", [True, False])
def test_linear_is_a_product_and_a_sum(shape, use_bias):
    layer = fill(Linear(3, 5, use_bias=use_bias, rngs=Rngs(0)))
    x = random(9, shape)
    expected = x @ np.asarray(layer.kernel.value)
    if use_bias:
        expected = expected + np.asarray(layer.bias.value)
    else:
        assert layer.bias is None
    np.testing.assert_allclose(layer(x), expected, rtol=2e-5, atol=1e-6)


def test_linear_takes_code_that_was_put_into_the_product(monkeypatch):
    layer = Linear(3, 5, use_bias=False, rngs=Rngs(0))
    x = jnp.ones((2, 3))
    expected = layer(x)

    def changed(lhs, rhs, *args, **kwargs):
        return lhs + 7

    with monkeypatch.context() as patch:
        patch.setattr(jax.lax.dot_general, "__code__", changed.__code__)
        assert layer(x).tolist() == (x + 7).tolist()
    assert layer(x).tolist() == expected.tolist()


def test_linear_traces_what_one_writes_by_hand():
    layer = Linear(3, 5, rngs=Rngs(0))
    graphdef = gc.graphdef(layer)
    w, b, x = layer.kernel.value, layer.bias.value, jnp.ones((4, 3))
    ours = jax.make_jaxpr(lambda w, b, x: _apply(graphdef, w, b, x))(w, b, x)
    by_hand = jax.make_jaxpr(lambda w, b, x: x @ w + b)(w, b, x)
    assert str(ours) == str(by_hand)


def _apply(graphdef, w, b, x):
    state = gc.State({"kernel": gc.Param.state(w), "bias": gc.Param.state(b)})
    return gc.merge(graphdef, state)(x)


def test_parameters_are_drawn_from_the_stream_in_order():
    rngs = Rngs(params=0, other=1)
    layer = Linear(3, 5, rngs=rngs, bias_init=jax.nn.initializers.normal())
    draw = Rngs(params=0)
    kernel = jax.nn.initializers.lecun_normal()(draw.params(), (3, 5), jnp.float32)
    bias = jax.nn.initializers.normal()(draw.params(), (5,), jnp.float32)
    assert layer.kernel.value.tolist() == kernel.tolist()
    assert layer.bias.value.tolist() == bias.tolist()
    assert int(rngs.other.count.value) == 0


def test_initializers_may_bring_metadata():
    init = gc.with_metadata(jax.nn.initializers.ones, sharding=("in", "out"))
    layer = Linear(3, 5, kernel_init=init, rngs=Rngs(0))
    assert layer.kernel.sharding == ("in", "out")


@pytest.mark.parametrize(
    ("x_dtype", "param_dtype", "dtype", "expected"),
    [
        (jnp.bfloat16, jnp.bfloat16, None, jnp.bfloat16),
        (jnp.bfloat16, jnp.float32, None, jnp.float32),
        (jnp.float32, jnp.float32, jnp.bfloat16, jnp.bfloat16),
        (jnp.int32, jnp.float32, None, jnp.float32),
        (jnp.float16, jnp.float32, jnp.float16, jnp.float16),
    ],
)
def test_dtypes(x_dtype, param_dtype, dtype, expected):
    kwargs = {"dtype": dtype, "param_dtype": param_dtype, "rngs": Rngs(0)}
    x = jnp.ones((2, 4, 4), x_dtype)
    for layer in (
        Linear(4, 4, **kwargs),
        Conv(4, 4, 3, **kwargs),
        LayerNorm(4, **kwargs),
        BatchNorm(4, **kwargs),
    ):
        # Statistics are float32, and take part where no dtype is given.
        with_statistics = isinstance(layer, BatchNorm) and dtype is None
        assert layer(x).dtype == (jnp.float32 if with_statistics else expected)
        for v in gc.variables(layer, gc.Param).flat_state().leaves:
            assert v.value.dtype == param_dtype


def test_layers_split_and_merge_and_have_hashable_definitions():
    for layer in (
        Linear(2, 2, rngs=Rngs(0), dtype=jnp.bfloat16),
        Conv(2, 2, (3, 3), padding=((1, 1), (2, 0)), rngs=Rngs(0)),
        Embed(3, 2, rngs=Rngs(0)),
        BatchNorm(2, axis_name=("a", "b"), rngs=Rngs(0)),
        LayerNorm(2, rngs=Rngs(0)),
        Dropout(0.5, broadcast_dims=[0], rngs=Rngs(0)),
        Sequential(Linear(2, 2, rngs=Rngs(0)), jax.nn.relu),
    ):
        graphdef, state = gc.split(layer)
        assert hash(graphdef) == hash(gc.graphdef(gc.merge(graphdef, state)))


def test_equal_layers_have_equal_definitions():
    def make():
        return Sequential(
            Linear(2, 2, rngs=Rngs(0)), jax.nn.relu, Conv(2, 2, 3, rngs=Rngs(0))
        )

    assert gc.graphdef(make()) == gc.graphdef(make())


# Conv


def convolve(x, kernel, strides, pads, dilation=(1, 1), groups=1):
    """A two-dimensional convolution, element by element."""
    x = np.pad(x, ((0, 0), *pads, (0, 0)))
    (kh, kw, cin, cout), n = kernel.shape, x.shape[0]
    reach = [(k - 1) * d + 1 for k, d in zip((kh, kw), dilation, strict=True)]
    size = [
        (s - r) // t + 1 for s, r, t in zip(x.shape[1:3], reach, strides, strict=True)
    ]
    out = np.zeros((n, *size, cout))
    per_group = cout // groups
    for i, j, o in np.ndindex(*size, cout):
        first = o // per_group * cin
        for a, b in np.ndindex(kh, kw):
            row, col = (
                i * strides[0] + a * dilation[0],
                j * strides[1] + b * dilation[1],
            )
            values = x[:, row, col, first : first + cin]
            out[:, i, j, o] += values @ kernel[a, b, :, o]
    return out


@pytest.mark.parametrize(
    ("kwargs", "pads"),
    [
        ({"padding": "VALID"}, ((0, 0), (0, 0))),
        ({"padding": "SAME"}, ((1, 1), (0, 1))),
        ({"padding": 1}, ((1, 1), (1, 1))),
        ({"padding": (2, (0, 1)), "strides": (2, 1)}, ((2, 2), (0, 1))),
        ({"padding": "VALID", "kernel_dilation": (1, 2)}, ((0, 0), (0, 0))),
        ({"padding": "VALID", "feature_group_count": 2}, ((0, 0), (0, 0))),
    ],
)
def test_conv_against_loops(kwargs, pads):
    layer = fill(Conv(4, 6, (3, 2), rngs=Rngs(0), **kwargs))
    x = random(1, (2, 6, 5, 4))
    expected = convolve(
        x,
        np.asarray(layer.kernel.value),
        kwargs.get("strides", (1, 1)),
        pads,
        kwargs.get("kernel_dilation", (1, 1)),
        layer.feature_group_count,
    ) + np.asarray(layer.bias.value)
    np.testing.assert_allclose(layer(x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("mode", "numpy"), [("CIRCULAR", "wrap"), ("REFLECT", "reflect")]
)
def test_conv_fills_the_border(mode, numpy):
    layer = fill(Conv(2, 3, (3, 3), padding=mode, rngs=Rngs(0)))
    x = random(1, (1, 5, 4, 2))
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), mode=numpy)
    expected = convolve(padded, np.asarray(layer.kernel.value), (1, 1), ((0, 0),) * 2)
    expected = expected + np.asarray(layer.bias.value)
    np.testing.assert_allclose(layer(x), expected, rtol=1e-4, atol=1e-5)


def test_causal_conv_sees_the_past_only():
    layer = fill(Conv(1, 1, 3, padding="CAUSAL", kernel_dilation=2, rngs=Rngs(0)))
    x = random(0, (8, 1))
    y = layer(x)
    changed = x.copy()
    changed[5:] += 1
    assert y.shape == (8, 1)
    np.testing.assert_array_equal(layer(changed)[:5], y[:5])
    assert (np.asarray(layer(changed)[5:]) != np.asarray(y[5:])).all()


def test_conv_with_any_number_of_batch_axes():
    layer = fill(Conv(2, 3, (3, 3), rngs=Rngs(0)))
    x = random(0, (2, 3, 5, 5, 2))
    y = layer(x)
    assert y.shape == (2, 3, 5, 5, 3)
    np.testing.assert_allclose(y[1, 2], layer(x[1, 2]), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(y[1], layer(x[1]), rtol=1e-5, atol=1e-5)


def test_conv_traces_a_convolution_and_a_sum():
    layer = Conv(2, 3, (3, 3), rngs=Rngs(0))
    assert primitives(layer, jnp.ones((1, 5, 5, 2))) == [
        "conv_general_dilated",
        "broadcast_in_dim",
        "add",
    ]


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"padding": "SOME"}, "'SOME' is unknown"),
        ({"padding": "CAUSAL"}, "one spatial axis"),
        ({"strides": (1, 2, 3)}, "strides"),
        ({"feature_group_count": 3}, "3 groups"),
    ],
)
def test_conv_refuses_what_does_not_fit(kwargs, message):
    with pytest.raises(ValueError, match=message):
        Conv(4, 4, (3, 3), rngs=Rngs(0), **kwargs)
    with pytest.raises(ValueError, match=r"2 spatial axes"):
        Conv(4, 4, (3, 3), rngs=Rngs(0))(jnp.ones((3, 4)))


# Embed


def test_embed_looks_up_and_attends():
    layer = Embed(7, 3, rngs=Rngs(0))
    table = np.asarray(layer.embedding.value)
    indices = np.array([[0, 6], [3, 3]])
    np.testing.assert_array_equal(layer(indices), table[indices])
    query = random(0, (2, 3))
    np.testing.assert_allclose(layer.attend(query), query @ table.T, rtol=1e-5)
    assert Embed(7, 3, dtype=jnp.bfloat16, rngs=Rngs(0))(1).dtype == jnp.bfloat16
    with pytest.raises(ValueError, match="float32"):
        layer(jnp.ones(3))


# Normalization


@settings(max_examples=15)
@given(
    seed=st.integers(0, 100),
    shape=st.sampled_from([(6, 3), (2, 4, 3), (5, 2, 2, 3)]),
    momentum=st.floats(0.0, 1.0),
)
def test_batch_norm_against_float64(seed, shape, momentum):
    layer = fill(BatchNorm(3, momentum=momentum, rngs=Rngs(0)), seed)
    x = random(seed, shape) * 3 + 5
    wide = x.astype(np.float64)
    axes = tuple(range(x.ndim - 1))
    mean, var = wide.mean(axes), wide.var(axes)
    scale, bias = np.float64(layer.scale.value), np.float64(layer.bias.value)
    expected = (wide - mean) / np.sqrt(var + 1e-5) * scale + bias
    np.testing.assert_allclose(layer(x), expected, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(layer.mean.value, (1 - momentum) * mean, atol=1e-4)
    expected_var = momentum + (1 - momentum) * var
    np.testing.assert_allclose(layer.var.value, expected_var, rtol=1e-4)
    layer.eval()
    expected = (wide - np.float64(layer.mean.value)) / np.sqrt(
        np.float64(layer.var.value) + 1e-5
    ) * scale + bias
    before = layer.mean.value
    np.testing.assert_allclose(layer(x), expected, rtol=1e-3, atol=1e-4)
    assert layer.mean.value is before


@pytest.mark.parametrize("axis", [0, 1, -2])
def test_batch_norm_over_another_feature_axis(axis):
    x = random(0, (4, 4, 4))
    first, last = (fill(BatchNorm(4, axis=a, rngs=Rngs(0))) for a in (axis, -1))
    moved = np.moveaxis(np.asarray(last(np.moveaxis(x, axis, -1))), -1, axis)
    np.testing.assert_allclose(first(x), moved, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(first.var.value, last.var.value, rtol=1e-6)


def test_statistics_keep_their_digits_where_the_mean_is_large():
    x = random(0, (256, 2)) + 1e4
    wide = x.astype(np.float64)
    layer = BatchNorm(2, momentum=0.0, use_fast_variance=False, rngs=Rngs(0))
    y = layer(x)
    np.testing.assert_allclose(layer.var.value, wide.var(0), rtol=1e-2)
    assert float(jnp.std(y)) == pytest.approx(1, rel=1e-2)
    z = LayerNorm(256, use_fast_variance=False, rngs=Rngs(0))(x.T)
    assert float(jnp.std(z)) == pytest.approx(1, rel=1e-2)


def test_statistics_of_half_precision_are_computed_in_float32():
    x = jnp.asarray(random(0, (4096, 1)) + 8, jnp.bfloat16)
    layer = BatchNorm(1, momentum=0.0, dtype=jnp.bfloat16, rngs=Rngs(0))
    assert layer(x).dtype == jnp.bfloat16
    assert layer.mean.value.dtype == jnp.float32
    exact = np.asarray(x, np.float64)
    np.testing.assert_allclose(layer.mean.value, exact.mean(0), rtol=1e-4)
    np.testing.assert_allclose(layer.var.value, exact.var(0), rtol=1e-3)


def test_batch_norm_over_a_mapped_axis_is_that_of_the_whole_batch():
    x = random(0, (4, 6, 3))
    whole = BatchNorm(3, rngs=Rngs(0))
    expected = whole(x.reshape(24, 3)).reshape(4, 6, 3)

    def one(x):
        layer = BatchNorm(3, axis_name="shards", rngs=Rngs(0))
        return layer(x), layer.mean.value, layer.var.value

    y, mean, var = jax.vmap(one, axis_name="shards")(x)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(mean[2], whole.mean.value, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(var[2], whole.var.value, rtol=1e-5)


def test_batch_norm_call_argument_takes_the_place_of_the_attribute():
    layer = BatchNorm(3, use_running_average=True, rngs=Rngs(0))
    x = random(0, (4, 3))
    layer(x)
    assert not layer.mean.value.any()
    layer(x, use_running_average=False)
    assert layer.mean.value.any()


def test_layer_norm_against_float64():
    layer = fill(LayerNorm(5, epsilon=1e-3, rngs=Rngs(0)))
    x = random(0, (2, 3, 5)) * 2 + 1
    wide = x.astype(np.float64)
    mean, var = wide.mean(-1, keepdims=True), wide.var(-1, keepdims=True)
    expected = (wide - mean) / np.sqrt(var + 1e-3) * np.asarray(layer.scale.value)
    expected = expected + np.asarray(layer.bias.value)
    np.testing.assert_allclose(layer(x), expected, rtol=1e-4, atol=1e-5)
    plain = LayerNorm(5, use_bias=False, use_scale=False, rngs=Rngs(0))
    assert plain.bias is None is plain.scale
    np.testing.assert_allclose(
        plain(x), (wide - mean) / np.sqrt(var + 1e-6), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (LayerNorm, {"epsilon": 0.5}),
        (BatchNorm, {"epsilon": 0.5, "momentum": 0.5, "axis": 0}),
    ],
)
def test_norms_hold_only_the_settings_that_are_not_defaults(kind, settings):
    usual, other = kind(3, rngs=Rngs(0)), kind(3, **settings, rngs=Rngs(0))
    assert vars(other).keys() - vars(usual).keys() == settings.keys()
    assert {name: getattr(other, name) for name in settings} == settings
    for options in itertools.product([False, True], repeat=2):
        use = dict(zip(("use_bias", "use_scale"), options, strict=True))
        assert kind(3, **use, rngs=Rngs(0)).num_features == 3
    stacked = nnx.vmap(lambda rngs: kind(3, rngs=rngs), axis_size=2)
    assert nnx.split_rngs(splits=2)(stacked)(Rngs(0)).num_features == 3


@pytest.mark.parametrize("kind", [BatchNorm, LayerNorm])
def test_normalization_names_the_wrong_shape(kind):
    with pytest.raises(ValueError, match=r"expected 3 features.*\(2, 4\)"):
        kind(3, rngs=Rngs(0))(jnp.ones((2, 4)))


# Dropout


def test_dropout_zeroes_at_its_rate_and_keeps_the_mean():
    layer = Dropout(0.25, rngs=Rngs(dropout=0))
    y = np.asarray(layer(jnp.ones((200, 200))))
    assert set(np.unique(y).round(5)) == {0.0, np.float32(1 / 0.75).round(5)}
    assert (y == 0).mean() == pytest.approx(0.25, abs=0.01)
    assert int(layer.rngs.count.value) == 1
    assert (np.asarray(layer(jnp.ones((200, 200)))) != y).any()


def test_dropout_is_the_identity_in_evaluation_and_draws_nothing():
    layer = Dropout(0.5, rngs=Rngs(0))
    x = jnp.ones(3)
    layer.eval()
    assert layer(x) is x
    layer.train()
    assert layer(x, deterministic=True) is x
    assert int(layer.rngs.count.value) == 0
    assert Dropout(0.0)(x) is x
    assert not Dropout(1.0)(x).any()


def test_dropout_has_a_stream_of_its_own():
    rngs = Rngs(dropout=0)
    model = Sequential(Dropout(0.5, rngs=rngs), Dropout(0.5, rngs=rngs))
    assert int(rngs.dropout.count.value) == 2
    first, second = (layer.rngs for layer in model.layers)
    assert first.key.value == jax.random.fold_in(jax.random.key(0), 0)
    assert second.key.value == jax.random.fold_in(jax.random.key(0), 1)
    model(jnp.ones(4))
    assert int(rngs.dropout.count.value) == 2 and int(first.count.value) == 1
    assert gc.state(model, "dropout").flat_state().paths[0][-2:] == ("rngs", "count")
    with pytest.raises(TypeError, match="Rngs"):
        Dropout(0.5, rngs=0)


def test_dropout_broadcasts_along_axes():
    y = np.asarray(Dropout(0.5, broadcast_dims=(0,), rngs=Rngs(0))(jnp.ones((50, 40))))
    assert (y == y[0]).all() and len(set(y[0])) == 2


def test_dropout_takes_streams_with_the_call():
    x, key = jnp.ones(64), jax.random.key(3)
    layer = Dropout(0.5)
    expected = layer(x, rngs=jax.random.fold_in(key, 0)).tolist()
    assert layer(x, rngs=Rngs(dropout=key)).tolist() == expected
    assert layer(x, rngs=RngStream(key, tag="x")).tolist() == expected
    other = types.SimpleNamespace(dropout=RngStream(key, tag="x"))  # of a library
    assert layer(x, rngs=other).tolist() == expected
    with pytest.raises(ValueError, match="no random streams"):
        layer(x)
    with pytest.raises(ValueError, match=r"got 1\.5"):
        Dropout(1.5)


# Sequential


def test_sequential_passes_tuples_and_dicts_on():
    model = Sequential(
        lambda x, y=1: (x, y),
        lambda x, y: {"a": x, "b": y},
        lambda *, a, b: a * 10 + b,
        str,
    )
    assert model(1, y=2) == "12"
    assert Sequential()(3) == 3
    with pytest.raises(TypeError, match=r"layers/1.*int"):
        Sequential(str, 3)


def test_sequential_takes_one_list_and_lists_its_layers():
    layers = [Linear(2, 2, rngs=Rngs(0)), jax.nn.relu]
    for model in (Sequential(layers), Sequential(tuple(layers)), Sequential(*layers)):
        assert list(model) == layers


def test_sequential_gives_keywords_to_the_layers_that_take_them():
    dropout = Dropout(0.5)
    model = Sequential(
        Linear(8, 8, rngs=Rngs(0)), dropout, jnp.sin, Sequential(dropout)
    )
    x, key = jnp.ones(8), jax.random.key(0)
    kept = model(x, deterministic=True)
    np.testing.assert_array_equal(kept, jnp.sin(model.layers[0](x)))
    assert (model(x, rngs=key) == 0).any()
    with pytest.raises(TypeError, match=r"layers/1.*\['a'\]"):
        Sequential(lambda x: {"a": x}, lambda a: a)(1, a=2)


def test_sequential_has_paths_of_layers():
    model = Sequential(Linear(2, 2, rngs=Rngs(0)), jax.nn.relu)
    assert gc.state(model).flat_state().paths == (
        ("layers", 0, "bias"),
        ("layers", 0, "kernel"),
    )


def test_train_and_eval_reach_the_layers_of_a_model():
    rngs = Rngs(0)
    model = Sequential(BatchNorm(3, rngs=rngs), Sequential(Dropout(0.5, rngs=rngs)))
    model.eval()
    x = jnp.asarray(random(0, (4, 3)))
    np.testing.assert_array_equal(model(x), model(x))
    assert not model.layers[0].mean.value.any()
    model.train()
    assert (np.asarray(model(x)) != np.asarray(model(x))).any()
    assert model.layers[0].mean.value.any()


def test_an_option_may_be_given_in_several_places():
    assert nnx.first_from(None, 0, 1, error_msg="none given") == 0
    with pytest.raises(ValueError, match="none given"):
        nnx.first_from(None, None, error_msg="none given")


def test_attributes_of_a_subclass_are_no_options():
    class Own(nnx.Linear):
        kernel_init = staticmethod(jax.nn.initializers.zeros)

    assert set(vars(Own(2, 3, rngs=nnx.Rngs(0)))) == {"kernel", "bias"}


IMAGES, SEQUENCES = (2, 6, 6, 4), (2, 5, 4)


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda rngs: nnx.Linear(4, 3, rngs=rngs), SEQUENCES),
        (lambda rngs: nnx.LinearGeneral(4, (3, 2), rngs=rngs), SEQUENCES),
        (lambda rngs: nnx.Einsum("btd,dh->bth", (4, 3), (3,), rngs=rngs), SEQUENCES),
        (lambda rngs: nnx.LoRALinear(4, 3, lora_rank=2, rngs=rngs), SEQUENCES),
        (lambda rngs: nnx.Conv(4, 3, (3, 3), rngs=rngs), IMAGES),
        (lambda rngs: nnx.ConvTranspose(4, 3, (3, 3), rngs=rngs), IMAGES),
        (lambda rngs: nnx.BatchNorm(4, rngs=rngs), IMAGES),
        (
            lambda rngs: nnx.BatchNorm(4, use_running_average=True, rngs=rngs),
            IMAGES,
        ),
        (lambda rngs: nnx.LayerNorm(4, rngs=rngs), IMAGES),
        (lambda rngs: nnx.RMSNorm(4, rngs=rngs), IMAGES),
        (lambda rngs: nnx.GroupNorm(4, num_groups=2, rngs=rngs), IMAGES),
        (lambda rngs: nnx.InstanceNorm(4, rngs=rngs), IMAGES),
        (
            lambda rngs: nnx.MultiHeadAttention(
                2, 4, normalize_qk=True, decode=False, rngs=rngs
            ),
            SEQUENCES,
        ),
        (lambda rngs: nnx.RoPE(), SEQUENCES),
        (lambda rngs: nnx.RoPE(embedding_size=4, max_seq_len=9), SEQUENCES),
        (lambda rngs: nnx.RNN(nnx.LSTMCell(4, 3, rngs=rngs)), SEQUENCES),
        (lambda rngs: nnx.RNN(nnx.OptimizedLSTMCell(4, 3, rngs=rngs)), SEQUENCES),
        (lambda rngs: nnx.RNN(nnx.GRUCell(4, 3, rngs=rngs)), SEQUENCES),
        (
            lambda rngs: (
                lambda x: nnx.avg_pool(
                    x, (2, 2), padding="SAME", count_include_pad=False
                )
            ),
            IMAGES,
        ),
    ],
)
def test_layers_promote_no_ranks(make, shape):
    # A setting of JAX's that programs use to find mistakes of their own.
    layer, x = make(nnx.Rngs(0)), jax.random.normal(jax.random.key(0), shape)
    expected = layer(x)
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        found = make(nnx.Rngs(0))(x)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("param_dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_norms_of_mixed_precision_where_jax_is_told_to_promote_none(dtype, param_dtype):
    options = {"dtype": dtype, "param_dtype": param_dtype, "rngs": Rngs(0)}
    x = jax.random.normal(jax.random.key(0), (2, 3, 4), dtype)
    for layer in (
        LayerNorm(4, **options),
        BatchNorm(4, **options),
        BatchNorm(4, use_running_average=True, **options),
        nnx.RMSNorm(4, **options),
        nnx.GroupNorm(4, num_groups=2, **options),
        nnx.InstanceNorm(4, **options),
    ):
        expected = layer(x)
        with jax.numpy_dtype_promotion("strict"):
            found = layer(x)
        np.testing.assert_array_equal(found, expected)


def test_batch_norm_without_parameters_knows_its_size():
    norm = nnx.BatchNorm(3, rngs=Rngs(0))
    norm.scale = norm.bias = None
    assert norm.num_features == 3
    assert norm(jnp.ones((2, 3))).shape == (2, 3)
