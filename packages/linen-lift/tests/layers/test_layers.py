import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import linen_lift as nn

KEY = jax.random.key(0)


def normal(*shape):
    return jax.random.normal(jax.random.key(7), shape)


@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 5, 3)])
@pytest.mark.parametrize("use_bias", [True, False])
def test_dense(shape, use_bias):
    x, model = normal(*shape), nn.Dense(4, use_bias=use_bias)
    out, variables = model.init_with_output(KEY, x)
    p = variables["params"]
    expected = x @ p["kernel"] + p.get("bias", 0)
    np.testing.assert_allclose(out, expected, 1e-5)
    assert sorted(p) == (["bias", "kernel"] if use_bias else ["kernel"])


@pytest.mark.parametrize(
    "model",
    [
        nn.Dense(4, dtype=jnp.bfloat16),
        nn.Conv(4, (3,), dtype=jnp.bfloat16),
        nn.LayerNorm(dtype=jnp.bfloat16),
        nn.BatchNorm(True, dtype=jnp.bfloat16),
    ],
)
def test_types(model):
    x = normal(2, 5, 3)
    out, variables = model.init_with_output(KEY, x)
    assert out.dtype == jnp.bfloat16
    assert all(p.dtype == jnp.float32 for p in jax.tree.leaves(variables))
    low = model.clone(param_dtype=jnp.bfloat16, dtype=None)
    variables = low.init(KEY, x.astype(jnp.bfloat16))
    assert all(p.dtype == jnp.bfloat16 for p in jax.tree.leaves(variables["params"]))
    assert low.apply(variables, x.astype(jnp.bfloat16)).dtype == jnp.bfloat16
    assert nn.Dense(4).init_with_output(KEY, jnp.ones(3, int))[0].dtype == jnp.float32


@pytest.mark.parametrize(
    "padding", ["SAME", "VALID", 1, [(1, 0)], "CIRCULAR", "CAUSAL"]
)
@pytest.mark.parametrize("stride", [1, 2])
def test_conv_in_one_dimension(padding, stride):
    x, model = normal(2, 7, 3), nn.Conv(4, (3,), stride, padding)
    out, variables = model.init_with_output(KEY, x)
    kernel = variables["params"]["kernel"]
    widths = {"VALID": (0, 0), "CAUSAL": (2, 0), "CIRCULAR": (1, 1), "SAME": None}
    if isinstance(padding, str):
        width = widths[padding]
        if width is None:
            total = max((-(-7 // stride) - 1) * stride + 3 - 7, 0)
            width = (total // 2, total - total // 2)
    else:
        width = (1, 1) if padding == 1 else (1, 0)
    mode = "wrap" if padding == "CIRCULAR" else "constant"
    padded = np.pad(x, [(0, 0), width, (0, 0)], mode=mode)
    count = (padded.shape[1] - 3) // stride + 1
    expected = np.stack(
        [
            np.einsum("bti,tio->bo", padded[:, s * stride : s * stride + 3], kernel)
            for s in range(count)
        ],
        1,
    )
    np.testing.assert_allclose(out, expected, 1e-4, 1e-5)


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_conv_in_two_dimensions(batch):
    x = normal(*batch, 6, 6, 4)
    model = nn.Conv(8, (3, 3), (2, 1), feature_group_count=2, kernel_dilation=2)
    out, variables = model.init_with_output(KEY, x)
    assert variables["params"]["kernel"].shape == (3, 3, 2, 8)
    assert out.shape == (*batch, 3, 6, 8)
    each = model.apply(variables, x.reshape(-1, 6, 6, 4))
    np.testing.assert_allclose(out, each.reshape(out.shape), 1e-5, 1e-6)


def test_conv_masks_and_mistakes():
    mask = jnp.zeros((3, 3, 2)).at[0].set(1)
    _out, variables = nn.Conv(2, (3,), mask=mask).init_with_output(KEY, normal(1, 5, 3))
    grads = jax.grad(
        lambda v: nn.Conv(2, (3,), mask=mask).apply(v, normal(1, 5, 3)).sum()
    )(variables)
    assert (grads["params"]["kernel"][1:] == 0).all()
    for bad, word in [
        (nn.Conv(2, (3,), strides=(1, 1)), "stride"),
        (nn.Conv(2, (3,), padding=[1, 1]), "padding"),
        (nn.Conv(2, (3,), feature_group_count=2), "groups"),
        (nn.Conv(2, (3,), mask=jnp.ones(1)), "mask"),
    ]:
        with pytest.raises((TypeError, ValueError), match=word):
            bad.init(KEY, normal(1, 5, 3))
    with pytest.raises(ValueError, match="CAUSAL"):
        nn.Conv(2, (3, 3), padding="CAUSAL").init(KEY, normal(1, 5, 5, 3))
    for conv in (nn.Conv, nn.ConvLocal, nn.ConvTranspose):
        with pytest.raises(ValueError, match=r"3 axes at least; found shape \(5, 3\)"):
            conv(2, (3, 3)).init(KEY, normal(5, 3))


def test_embed():
    model, ids = nn.Embed(5, 3), jnp.array([[0, 4], [2, 2]])
    out, variables = model.init_with_output(KEY, ids)
    table = variables["params"]["embedding"]
    assert (out == table[ids]).all()
    query = normal(2, 3)
    np.testing.assert_allclose(
        model.apply(variables, query, method="attend"), query @ table.T, 1e-5
    )
    with pytest.raises(ValueError, match="integers"):
        model.init(KEY, jnp.ones(3))


@settings(max_examples=15)
@given(st.sampled_from([-1, 0, 1, (0, 1), (-2, -1), (1, 2)]), st.booleans())
def test_layer_norm(axes, fast):
    x = normal(4, 3, 5) * 3 + 1
    model = nn.LayerNorm(reduction_axes=axes, feature_axes=axes, use_fast_variance=fast)
    out, variables = model.init_with_output(KEY, x)
    mean, var = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    np.testing.assert_allclose(out, (x - mean) / np.sqrt(var + 1e-6), 1e-3, 1e-4)
    listed = (axes,) if isinstance(axes, int) else axes
    shape = tuple(x.shape[a] for a in sorted(a % 3 for a in listed))
    assert variables["params"]["scale"].shape == shape


def test_layer_norm_masks():
    x = normal(2, 4)
    mask = jnp.array([True, True, True, False])
    out = nn.LayerNorm(use_bias=False, use_scale=False).apply({}, x, mask=mask)
    part = nn.LayerNorm(use_bias=False, use_scale=False).apply({}, x[:, :3])
    np.testing.assert_allclose(out[:, :3], part, 1e-4, 1e-5)


def test_batch_norm_trains_and_infers():
    x, model = normal(8, 3) * 2 + 1, nn.BatchNorm(momentum=0.9)
    variables = model.init(KEY, x, use_running_average=False)
    assert variables["batch_stats"]["mean"].tolist() == [0, 0, 0]
    out, updated = model.apply(
        variables, x, use_running_average=False, mutable="batch_stats"
    )
    np.testing.assert_allclose(
        out, (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5), 1e-3, 1e-4
    )
    stats = updated["batch_stats"]
    np.testing.assert_allclose(stats["mean"], 0.1 * x.mean(0), 1e-4)
    np.testing.assert_allclose(stats["var"], 0.9 + 0.1 * x.var(0), 1e-4)
    fixed = model.apply({**variables, **updated}, x, use_running_average=True)
    expected = (x - stats["mean"]) / np.sqrt(stats["var"] + 1e-5)
    np.testing.assert_allclose(fixed, expected, 1e-4, 1e-5)
    with pytest.raises(ValueError, match="use_running_average"):
        model.apply(variables, x)


def test_batch_norm_over_a_named_axis():
    x = normal(4, 2, 3)
    model = nn.BatchNorm(False, axis_name="devices")
    variables = model.init(KEY, x[0])
    run = lambda x: model.apply(variables, x, mutable="batch_stats")[0]
    out = jax.vmap(run, axis_name="devices")(x)
    whole = nn.BatchNorm(False).apply(variables, x.reshape(8, 3), mutable=True)[0]
    np.testing.assert_allclose(out.reshape(8, 3), whole, 1e-4, 1e-5)


def test_batch_norm_axes():
    x = normal(2, 3, 4, 5)
    variables = nn.BatchNorm(False, axis=1).init(KEY, x)
    assert variables["params"]["scale"].shape == (3,)
    out, _ = nn.BatchNorm(False, axis=(1, -1)).init_with_output(KEY, x)
    np.testing.assert_allclose(out.mean((0, 2)), np.zeros((3, 5)), atol=1e-5)


def test_dropout():
    x = jnp.ones((100, 100))
    drop = lambda model, **kwargs: model.apply({}, x, rngs={"dropout": KEY}, **kwargs)
    out = drop(nn.Dropout(0.25), deterministic=False)
    kept = out != 0
    assert 0.7 < kept.mean() < 0.8
    np.testing.assert_allclose(out[kept], 1 / 0.75, 1e-6)
    assert (drop(nn.Dropout(0.25, deterministic=True)) == x).all()
    assert (drop(nn.Dropout(0.0), deterministic=False) == x).all()
    assert (drop(nn.Dropout(1.0), deterministic=False) == 0).all()
    rows = drop(nn.Dropout(0.5, (1,), False))
    assert (rows == rows[:, :1]).all() and 0 < rows.mean() < 2
    named = nn.Dropout(0.5, deterministic=False, rng_collection="other")
    assert not (named.apply({}, x, rngs={"other": KEY}) == x).all()
    given_key = nn.Dropout(0.5).apply({}, x, False, KEY)
    assert (given_key == nn.Dropout(0.5).apply({}, x, False, rng=KEY)).all()
    with pytest.raises(ValueError, match="deterministic"):
        drop(nn.Dropout(0.5))


@pytest.mark.parametrize(("rate", "slope"), [(0.0, 1.0), (1.0, 0.0)])
def test_dropout_of_nothing_or_everything_draws_no_key(rate, slope):
    drop = lambda x: nn.Dropout(rate, deterministic=False).apply({}, x)
    assert (drop(jnp.ones(3)) == slope).all()
    assert (jax.grad(lambda x: drop(x).sum())(jnp.ones(3)) == slope).all()


def test_sequential():
    model = nn.Sequential(
        [nn.Dense(4), lambda x: (x, x), lambda a, b: {"x": a + b}, lambda x: 2 * x]
    )
    x = normal(2, 3)
    out, variables = model.init_with_output(KEY, x)
    dense = nn.Dense(4).apply({"params": variables["params"]["layers_0"]}, x)
    np.testing.assert_allclose(out, 4 * dense, 1e-5)
    with pytest.raises(ValueError, match="no layers"):
        nn.Sequential([]).init(KEY, x)
    with pytest.raises(ValueError, match="sequence"):
        nn.Sequential(nn.Dense(3))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def test_lstm_cell():
    x, cell = normal(2, 3), nn.LSTMCell(4, bias_init=nn.initializers.normal())
    carry = cell.initialize_carry(KEY, x.shape)
    assert jax.tree.map(jnp.shape, carry) == ((2, 4), (2, 4))
    c, h = jax.random.normal(KEY, (2, 2, 4))
    ((new_c, new_h), out), variables = cell.init_with_output(KEY, (c, h), x)
    p = variables["params"]
    gate = lambda n: (
        x @ p[f"i{n}"]["kernel"] + h @ p[f"h{n}"]["kernel"] + p[f"h{n}"]["bias"]
    )
    i, f, o = (sigmoid(gate(n)) for n in "ifo")
    expected = f * c + i * np.tanh(gate("g"))
    np.testing.assert_allclose(new_c, expected, 1e-4, 1e-5)
    np.testing.assert_allclose(new_h, o * np.tanh(expected), 1e-4, 1e-5)
    assert (out == new_h).all() and len(p) == 8


def test_gru_cell():
    x, cell = normal(2, 3), nn.GRUCell(4, bias_init=nn.initializers.normal())
    assert cell.initialize_carry(KEY, x.shape).shape == (2, 4)
    h = jax.random.normal(KEY, (2, 4))
    (new, out), variables = cell.init_with_output(KEY, h, x)
    p = variables["params"]
    i = lambda n: x @ p[n]["kernel"] + p[n]["bias"]
    r = sigmoid(i("ir") + h @ p["hr"]["kernel"])
    z = sigmoid(i("iz") + h @ p["hz"]["kernel"])
    n = np.tanh(i("in") + r * (h @ p["hn"]["kernel"] + p["hn"]["bias"]))
    np.testing.assert_allclose(new, (1 - z) * n + z * h, 1e-4, 1e-5)
    assert (out == new).all()


def test_a_cell_over_time():
    Rnn = nn.scan(
        nn.LSTMCell,
        variable_broadcast="params",
        split_rngs={"params": False},
        in_axes=1,
        out_axes=1,
    )
    x = normal(2, 5, 3)
    cell = nn.LSTMCell(4)
    carry = cell.initialize_carry(KEY, (2, 3))
    (last, ys), variables = Rnn(4).init_with_output(KEY, carry, x)
    for t in range(5):
        carry, y = cell.apply(variables, carry, x[:, t])
        np.testing.assert_allclose(ys[:, t], y, 1e-4, 1e-5)
    np.testing.assert_allclose(last[0], carry[0], 1e-4, 1e-5)


def test_activations_are_those_of_jax():
    computes_no_activation = {
        "dot_product_attention",
        "get_scaled_dot_general_config",
        "scaled_dot_general",
        "scaled_matmul",
    }
    for name in dir(jax.nn):
        if not name.startswith("_") and name != "initializers":
            if name not in computes_no_activation:
                assert getattr(nn, name) is getattr(jax.nn, name), name
    assert nn.normalize is jax.nn.standardize


def test_initializers_are_those_of_jax():
    for name in dir(jax.nn.initializers):
        if not name.startswith("_"):
            theirs = getattr(jax.nn.initializers, name)
            assert getattr(nn.initializers, name) is theirs, name
    assert nn.initializers.zeros_init() is nn.zeros is jax.nn.initializers.zeros
    assert nn.initializers.ones_init() is nn.ones is jax.nn.initializers.ones


def test_functions_among_the_layers_of_a_sequence_make_modules():
    widen = lambda x: nn.Dense(x.shape[-1] + 1)(x)
    model = nn.Sequential([widen, nn.relu, nn.Dense(2), widen])
    out, variables = model.init_with_output(KEY, jnp.ones((1, 4)))
    assert out.shape == (1, 3)
    shapes = {k: v["kernel"].shape for k, v in variables["params"].items()}
    assert shapes == {"Dense_0": (4, 5), "layers_2": (5, 2), "Dense_1": (2, 3)}


def test_batch_apply():
    def f(x, scale, *, bias, missing=None):
        assert x.ndim == 2 and bias.ndim == 1 and missing is None
        return {"out": x @ bias * scale, "max": x}

    x, bias = jnp.arange(24.0).reshape(2, 3, 4), jnp.ones(4)
    out = nn.BatchApply(f)(x, 2.0, bias=bias, missing=None)
    assert out["out"].shape == (2, 3) and bool((out["max"] == x).all())
    assert nn.BatchApply(jnp.ravel, num_dims=3)(x).shape == (2, 3, 4)
    with pytest.raises(ValueError, match=r"\(4,\)"):
        nn.BatchApply(f)(bias, 1.0)
