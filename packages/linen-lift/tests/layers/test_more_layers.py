"""Layers against what they compute, written out with numpy, and their mistakes."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import linen_lift as nn

KEY = jax.random.key(0)


def normal(*shape, seed=7):
    return jax.random.normal(jax.random.key(seed), shape)


def close(a, b, tolerance=1e-5):
    np.testing.assert_allclose(a, b, rtol=10 * tolerance, atol=tolerance)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


# --- attention ----------------------------------------------------------------------


def attend(q, k, v, mask=True):
    products = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(q.shape[-1])
    weights = softmax(np.where(mask, products, -1e9))
    return weights, np.einsum("hqk,khd->qhd", weights, v)


def test_attention_functions():
    q, k, v = normal(4, 2, 3), normal(5, 2, 3, seed=1), normal(5, 2, 3, seed=2)
    mask = np.tril(np.ones((4, 5), bool))
    weights, out = attend(q, k, v, mask)
    close(nn.dot_product_attention_weights(q, k, mask=mask), weights)
    close(nn.dot_product_attention(q, k, v, mask=mask), out)
    rows = nn.dot_product_attention(
        q, k, v, mask=mask, dropout_rate=0.5, dropout_rng=KEY
    )
    kept = np.asarray(jax.random.bernoulli(KEY, 0.5, (1, 4, 5)))
    close(rows, np.einsum("hqk,khd->qhd", weights * kept / 0.5, v))


def test_a_mask_may_add_axes():
    q, k, v = normal(4, 2, 3), normal(5, 2, 3, seed=1), normal(5, 2, 3, seed=2)
    masks = jnp.stack([jnp.ones((1, 4, 5)), jnp.tril(jnp.ones((1, 4, 5)))])
    out = nn.dot_product_attention(q, k, v, mask=masks)
    for found, mask in zip(out, masks, strict=True):
        close(found, nn.dot_product_attention(q, k, v, mask=mask))


def test_multi_head_attention():
    x, mask = normal(5, 6), nn.make_causal_mask(jnp.ones(5))
    model = nn.MultiHeadAttention(2, bias_init=nn.initializers.normal())
    out, variables = model.init_with_output(KEY, x, mask=mask)
    p = jax.tree.map(np.asarray, variables["params"])
    assert jax.tree.map(np.shape, p["query"]) == {"kernel": (6, 2, 3), "bias": (2, 3)}
    assert jax.tree.map(np.shape, p["out"]) == {"kernel": (2, 3, 6), "bias": (6,)}
    q, k, v = (
        np.einsum("li,ihd->lhd", x, p[name]["kernel"]) + p[name]["bias"]
        for name in ("query", "key", "value")
    )
    _, heads = attend(q, k, v, np.asarray(mask[0], bool))
    expected = np.einsum("lhd,hdo->lo", heads, p["out"]["kernel"]) + p["out"]["bias"]
    close(out, expected)


def test_attention_weights_are_stored_where_asked():
    x, model = normal(2, 5, 6), nn.MultiHeadAttention(2)
    variables = model.init(KEY, x)
    assert sorted(variables) == ["params"]
    _, state = model.apply(variables, x, sow_weights=True, mutable=["intermediates"])
    (weights,) = state["intermediates"]["attention_weights"]
    close(weights.sum(-1), np.ones((2, 2, 5)))


def test_dropout_of_attention_draws_from_its_stream():
    x, model = normal(2, 5, 6), nn.MultiHeadAttention(2, dropout_rate=0.5)
    variables = model.init(KEY, x, deterministic=True)
    run = lambda seed, **kwargs: model.apply(
        variables, x, rngs={"dropout": jax.random.key(seed)}, **kwargs
    )
    a, b = run(1, deterministic=False), run(2, deterministic=False)
    assert not np.allclose(a, b)
    close(run(1, deterministic=True), run(2, deterministic=True))
    with pytest.raises(ValueError, match="deterministic"):
        run(1)


@pytest.mark.parametrize(
    ("length", "batch_axes", "heads"), [(1, 0, 1), (5, 1, 2), (3, 2, 3)]
)
def test_decoding_is_causal_attention(length, batch_axes, heads):
    x = normal(*(2,) * batch_axes, length, 6)
    model = nn.MultiHeadAttention(heads, qkv_features=2 * heads, decode=True)
    variables = jax.jit(model.init)(KEY, x)
    params, cache = variables["params"], variables["cache"]
    step = jax.jit(lambda variables, x: model.apply(variables, x, mutable=["cache"]))
    whole = model.clone(decode=False).apply(
        {"params": params}, x, mask=nn.make_causal_mask(x[..., 0])
    )
    for t in range(length):
        variables = {"params": params, "cache": cache}
        here = slice(t, t + 1)
        out, updated = step(variables, x[..., here, :])
        cache = updated["cache"]
        close(out, whole[..., here, :])
    assert int(cache["cache_index"]) == length


@pytest.mark.parametrize(
    "shapes",
    [
        ((4, 3), (4, 3)),
        ((4, 2, 3), (1, 4, 2, 3)),
        ((4, 2, 3), (2, 3)),
        ((2, 4, 2, 3), (1, 4, 2, 3)),
        ((4, 2, 3), (5, 1, 3)),
        ((4, 2, 3), (5, 2, 1)),
        ((4, 2, 3), (5, 2, 3), (1, 2, 3)),
    ],
)
def test_shapes_that_do_not_fit_are_not_broadcast(shapes):
    has_values = len(shapes) == 3
    fn = nn.dot_product_attention if has_values else nn.dot_product_attention_weights
    words = re.escape(", ".join(map(str, shapes)))
    with pytest.raises(ValueError, match=f"needs a query.*; found {words}"):
        fn(*map(jnp.ones, shapes))


def test_mistakes_in_attention():
    q = normal(4, 2, 3)
    with pytest.raises(ValueError, match="dropout_rng"):
        nn.dot_product_attention(q, q, q, dropout_rate=0.1)
    with pytest.raises(ValueError, match="belong together"):
        nn.dot_product_attention(q, q, q, qk_attn_weights_einsum=jnp.einsum)
    with pytest.raises(ValueError, match="precision"):
        nn.dot_product_attention_weights(q, q, precision="high", einsum=jnp.einsum)
    x = normal(5, 6)
    for call, word in [
        ({"inputs_v": x}, "inputs_k"),
        ({"inputs_k": x, "inputs_kv": x}, "inputs_kv"),
        ({"inputs_v": x, "inputs_kv": x}, "inputs_kv"),
    ]:
        with pytest.raises(ValueError, match=word):
            nn.MultiHeadAttention(2).init(KEY, x, **call)
    with pytest.raises(ValueError, match="does not divide"):
        nn.MultiHeadAttention(4).init(KEY, x)
    with pytest.raises(ValueError, match="number of axes"):
        nn.combine_masks(jnp.ones(2), jnp.ones((2, 2)))


# --- linear layers ------------------------------------------------------------------


@pytest.mark.parametrize("axis", [-1, 1, (1, 3), (-1, 1)])
@pytest.mark.parametrize("features", [3, (3, 2)])
def test_dense_general(axis, features):
    x = normal(2, 3, 4, 5)
    model = nn.DenseGeneral(features, axis, bias_init=nn.initializers.normal())
    out, variables = model.init_with_output(KEY, x)
    p = variables["params"]
    axes = sorted(a % 4 for a in np.atleast_1d(axis))
    expected = np.tensordot(x, p["kernel"], (axes, range(len(axes)))) + p["bias"]
    close(out, expected)


def test_numbers_of_numpy():
    x, last = normal(2, 3, 4), np.int64(-1)
    layer = nn.DenseGeneral(np.prod((2, 3)), axis=last)
    assert layer.init_with_output(KEY, x)[0].shape == (2, 3, 6)
    for norm in (nn.LayerNorm(reduction_axes=last), nn.BatchNorm(False, axis=last)):
        assert norm.init_with_output(KEY, x)[0].shape == x.shape
    for name in ("strides", "kernel_dilation", "padding"):
        outs = [
            nn.Conv(5, (2,), **{name: value}).init_with_output(KEY, x)[0]
            for value in (2, np.int64(2), [np.int64(2)], np.array([2]))
        ]
        assert len({out.shape for out in outs}) == 1
        for out in outs[1:]:
            close(out, outs[0])


def test_dense_general_with_a_kernel_per_entry():
    x = normal(2, 3, 4)
    model = nn.DenseGeneral(5, batch_dims=(0,), bias_init=nn.initializers.normal())
    out, variables = model.init_with_output(KEY, x)
    p = variables["params"]
    close(out, np.einsum("bli,bio->blo", x, p["kernel"]) + p["bias"][:, None])
    with pytest.raises(ValueError, match="batch_dims"):
        nn.DenseGeneral(5, batch_dims=(1,)).init(KEY, x)


def test_dense_general_makes_its_kernel_as_a_matrix():
    made = []

    def init(key, shape, dtype):
        made.append(shape)
        return nn.with_partitioning(nn.initializers.ones, ("a", "b"))(key, shape, dtype)

    model = nn.DenseGeneral((3, 2), (-2, -1), use_bias=False, kernel_init=init)
    box = model.init(KEY, normal(5, 4, 6))["params"]["kernel"]
    assert made == [(24, 6)] and box.value.shape == (4, 6, 3, 2)
    assert box.names == ("a", "b")


def test_einsum():
    x = normal(2, 3, 4)
    model = nn.Einsum((4, 5), "...a, ab -> ...b", bias_init=nn.initializers.normal())
    out, variables = model.init_with_output(KEY, x)
    p = variables["params"]
    close(out, x @ p["kernel"] + p["bias"])
    for equation in ["ab", "a,b,c->a", "abc,cd"]:
        with pytest.raises(ValueError, match="equation"):
            nn.Einsum((4, 5), equation).init(KEY, x)
    with pytest.raises(ValueError, match="subscripts"):
        nn.Einsum((4, 5), "abc,c->ab").init(KEY, x)


# --- convolutions -------------------------------------------------------------------


def test_conv_local_is_conv_where_kernels_are_the_same():
    x, conv = normal(2, 7, 3), nn.Conv(4, (3,), 2, bias_init=nn.initializers.normal())
    out, variables = conv.init_with_output(KEY, x)
    p = variables["params"]
    local = nn.ConvLocal(4, (3,), 2)
    own = local.init(KEY, x)["params"]
    assert own["kernel"].shape == (4, 9, 4) and own["bias"].shape == (4, 4)
    # The patches that a kernel is multiplied with have the channels first.
    kernel = jnp.swapaxes(p["kernel"], 0, 1).reshape(9, 4)
    everywhere = {
        "kernel": jnp.broadcast_to(kernel, own["kernel"].shape),
        "bias": jnp.broadcast_to(p["bias"], own["bias"].shape),
    }
    close(local.apply({"params": everywhere}, x), out)
    with pytest.raises(ValueError, match="groups"):
        nn.ConvLocal(4, (3,), feature_group_count=3).init(KEY, x)


def test_subclasses_of_conv_say_whether_weights_are_shared():
    class Either(nn.Conv):
        local: bool = True

        @property
        def shared_weights(self):
            return not self.local

    x = normal(2, 7, 3)
    for layer, same in [
        (Either(4, (3,), 2), nn.ConvLocal(4, (3,), 2)),
        (Either(4, (3,), 2, local=False), nn.Conv(4, (3,), 2)),
    ]:
        assert layer.shared_weights is same.shared_weights
        for made, expected in zip(
            jax.tree.leaves(layer.init_with_output(KEY, x)),
            jax.tree.leaves(same.init_with_output(KEY, x)),
            strict=True,
        ):
            assert jnp.array_equal(made, expected)


@pytest.mark.parametrize("padding", ["SAME", "VALID", "CIRCULAR"])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("stride", [1, 2])
def test_conv_transpose_is_the_transpose_of_conv(padding, size, stride):
    if padding != "CIRCULAR" and size < stride:
        return  # the sizes of input and output do not match
    x = normal(1, 8, 3)
    conv = nn.Conv(2, (size,), stride, padding, use_bias=False)
    variables = conv.init(KEY, x)
    y, pull_back = jax.vjp(lambda x: conv.apply(variables, x), x)
    back = nn.ConvTranspose(
        3, (size,), (stride,), padding, use_bias=False, transpose_kernel=True
    )
    g = normal(*y.shape, seed=1)
    expected, found = pull_back(g)[0], back.apply(variables, g)
    if padding == "CIRCULAR" and size % 2 == 0:
        # The reach of an even kernel is uneven: a matter of where zero is.
        expected, found = (np.sort(a, axis=1) for a in (expected, found))
    close(found[:, : expected.shape[1]], expected[:, : found.shape[1]])


def test_mistakes_in_convolutions():
    x = normal(1, 5, 3)
    for make in (nn.Conv, nn.ConvTranspose):
        for options, word in [
            ({"strides": (1, 1)}, "stride"),
            ({"padding": [1, 1]}, "padding"),
            ({"padding": [(1, 1, 1)]}, "padding"),
            ({"kernel_dilation": (1, 1)}, "kernel_dilation"),
            ({"mask": jnp.ones(1)}, "mask"),
        ]:
            with pytest.raises(ValueError, match=word):
                make(2, (3,), **options).init(KEY, x)


# --- pooling ------------------------------------------------------------------------


@pytest.mark.parametrize("strides", [None, (2, 3)])
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_pooling(strides, batch):
    x = np.asarray(normal(*batch, 5, 7, 2))
    windows = np.lib.stride_tricks.sliding_window_view(x, (2, 3), (-3, -2))
    a, b = strides or (1, 1)
    windows = windows[..., ::a, ::b, :, :, :]
    for pool, reduce in [
        (nn.avg_pool, np.mean),
        (nn.max_pool, np.max),
        (nn.min_pool, np.min),
    ]:
        close(pool(x, (2, 3), strides), reduce(windows, (-2, -1)))


def test_pooling_with_padding():
    x = jnp.array([[1.0], [2.0], [6.0]])
    assert nn.max_pool(-x, (2,), (2,), "SAME").ravel().tolist() == [-1, -6]
    assert nn.avg_pool(x, (2,), (2,), "SAME").ravel().tolist() == [1.5, 3]
    mean = nn.avg_pool(x, (2,), (2,), [(0, 1)], count_include_pad=False)
    assert mean.ravel().tolist() == [1.5, 6]
    assert nn.max_pool(x, (2,), (2,), 1).ravel().tolist() == [1, 6]
    for strides, padding in [((1, 1), "SAME"), (None, [()]), (None, [(1, 1), (1, 1)])]:
        with pytest.raises(ValueError, match="per axis"):
            nn.max_pool(x, (2,), strides, padding)
    with pytest.raises(ValueError, match="axis"):
        nn.max_pool(x, (2, 2))


# --- normalization ------------------------------------------------------------------


def test_rms_norm():
    x, model = normal(3, 4), nn.RMSNorm(scale_init=nn.initializers.normal())
    out, variables = model.init_with_output(KEY, x)
    scale = variables["params"]["scale"]
    close(out, x / np.sqrt(np.mean(x**2, -1, keepdims=True) + 1e-6) * scale)
    assert list(variables["params"]) == ["scale"]


def test_group_norm_and_instance_norm():
    x = np.asarray(normal(2, 3, 5, 6)) * 2 + 1
    out, variables = nn.GroupNorm(2).init_with_output(KEY, x)
    split = x.reshape(2, 3, 5, 2, 3)
    mean = split.mean((1, 2, 4), keepdims=True)
    var = split.var((1, 2, 4), keepdims=True)
    close(out, ((split - mean) / np.sqrt(var + 1e-6)).reshape(x.shape), 1e-4)
    assert variables["params"]["scale"].shape == (6,)
    by_size = nn.GroupNorm(None, 3).apply(variables, x)
    close(by_size, out)
    each = nn.GroupNorm(None, 1).apply(variables, x)
    close(nn.InstanceNorm().apply(variables, x), each, 1e-4)
    whole = nn.LayerNorm(reduction_axes=(1, 2, 3)).apply(variables, x)
    close(nn.GroupNorm(1).apply(variables, x), whole, 1e-4)
    for bad, word in [
        (nn.GroupNorm(4), "split"),
        (nn.GroupNorm(0), "split"),
        (nn.GroupNorm(-2), "split"),
        (nn.GroupNorm(None, 4), "split"),
        (nn.GroupNorm(2, 3), "one of"),
        (nn.GroupNorm(None), "one of"),
        (nn.GroupNorm(2, reduction_axes=(1, 2)), "last axis"),
        (nn.InstanceNorm(feature_axes=(0, -1)), "first axis"),
    ]:
        with pytest.raises(ValueError, match=word):
            bad.init(KEY, x)


class Wrapped(nn.Module):
    make: object

    @nn.compact
    def __call__(self, x, **kwargs):
        return self.make(nn.Dense(3, use_bias=False, name="dense"))(x, **kwargs)


def test_weight_norm():
    x, model = normal(2, 4), Wrapped(nn.WeightNorm)
    variables = model.init(KEY, x)
    kernel = variables["params"]["dense"]["kernel"]
    scale = jnp.array([1.0, 2.0, 3.0])
    name = "WeightNorm_0"
    assert list(variables["params"][name]) == ["dense/kernel/scale"]
    variables["params"][name]["dense/kernel/scale"] = scale
    close(
        model.apply(variables, x),
        x @ (kernel / jnp.linalg.norm(kernel, axis=0)) * scale,
    )


def test_spectral_norm():
    x, model = normal(2, 4), Wrapped(lambda layer: nn.SpectralNorm(layer, n_steps=3))
    variables = model.init(KEY, x, update_stats=False)
    kernel = variables["params"]["dense"]["kernel"]
    largest = jnp.linalg.svd(kernel)[1][0]
    for _ in range(30):
        out, state = model.apply(
            variables, x, update_stats=True, mutable=["batch_stats"]
        )
        variables = {**variables, **state}
    close(out, x @ kernel / largest)
    stats = variables["batch_stats"]["SpectralNorm_0"]
    close(stats["dense/kernel/sigma"], largest)
    still = model.apply(variables, x, update_stats=False)
    close(still, out)
    strict = functools.partial(nn.SpectralNorm, error_on_non_matrix=True)
    strict(nn.Dense(2)).init(KEY, x, update_stats=True)
    with pytest.raises(ValueError, match="error_on_non_matrix"):
        strict(nn.Conv(2, (3,))).init(KEY, normal(1, 5, 3), update_stats=True)
    unchanged = nn.SpectralNorm(nn.Dense(2), n_steps=0)
    out, variables = unchanged.init_with_output(KEY, x, update_stats=True)
    assert list(variables) == ["params"]
    close(out, nn.Dense(2).apply({"params": variables["params"]["layer_instance"]}, x))


# --- recurrence ---------------------------------------------------------------------


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def linear(p, x):
    return x @ p["kernel"] + p.get("bias", 0)


def test_optimized_lstm_is_lstm():
    x, carry = normal(2, 3), tuple(normal(2, 2, 4, seed=3))
    ours, plain = nn.OptimizedLSTMCell(4), nn.LSTMCell(4)
    variables = plain.init(KEY, carry, x)
    shapes = jax.tree.map(jnp.shape, variables)
    assert jax.tree.map(jnp.shape, ours.init(KEY, carry, x)) == shapes
    jax.tree.map(
        close, ours.apply(variables, carry, x), plain.apply(variables, carry, x)
    )
    products = lambda cell: str(jax.make_jaxpr(cell.apply)(variables, carry, x)).count(
        "dot_general"
    )
    assert (products(ours), products(plain)) == (2, 8)


@pytest.mark.parametrize("residual", [False, True])
def test_simple_cell(residual):
    x, h = normal(2, 3), normal(2, 4, seed=3)
    cell = nn.SimpleCell(4, bias_init=nn.initializers.normal(), residual=residual)
    (new, out), variables = cell.init_with_output(KEY, h, x)
    p = variables["params"]
    close(new, np.tanh(linear(p["i"], x) + h @ p["h"]["kernel"] + residual * h))
    assert (out == new).all()


@pytest.mark.parametrize("reset", [False, True])
def test_mgu_cell(reset):
    x, h = normal(2, 3), normal(2, 4, seed=3)
    cell = nn.MGUCell(
        4, activation_bias_init=nn.initializers.normal(), reset_gate=reset
    )
    (new, _), variables = cell.init_with_output(KEY, h, x)
    p = variables["params"]
    assert (p["if"]["bias"] == 1).all() and ("bias" in p["hn"]) == reset
    f = sigmoid(linear(p["if"], x) + linear(p["hf"], h))
    n = np.tanh(linear(p["in"], x) + (f if reset else 1) * linear(p["hn"], h))
    close(new, (1 - f) * n + f * h)


def test_conv_lstm_cell():
    x, cell = normal(2, 5, 3), nn.ConvLSTMCell(4, (3,))
    carry = cell.initialize_carry(KEY, x.shape)
    assert jax.tree.map(jnp.shape, carry) == ((2, 5, 4), (2, 5, 4))
    c, h = normal(2, 2, 5, 4, seed=3)
    ((new_c, new_h), out), variables = cell.init_with_output(KEY, (c, h), x)
    p = variables["params"]
    conv = lambda name, x: nn.Conv(16, (3,)).apply({"params": p[name]}, x)
    i, g, f, o = np.split(np.asarray(conv("ih", x) + conv("hh", h)), 4, -1)
    expected = sigmoid(f + 1) * c + sigmoid(i) * np.tanh(g)
    close(new_c, expected)
    close(new_h, sigmoid(o) * np.tanh(expected))
    assert (out == new_h).all()


def test_rnn_is_a_loop():
    x, cell = normal(2, 6, 3), nn.GRUCell(4)
    model = nn.RNN(cell, return_carry=True)
    (last, out), variables = model.init_with_output(KEY, x)
    inner = {"params": variables["params"]["cell"]}
    h = jnp.zeros((2, 4))
    for t in range(6):
        h, y = cell.apply(inner, h, x[:, t])
        close(out[:, t], y)
    close(last, h)
    # Each example on its own, without its padding, is the same.
    lengths = jnp.array([4, 2])
    last, out = model.apply(variables, x, seq_lengths=lengths)
    backward = model.apply(
        variables, x, seq_lengths=lengths, reverse=True, keep_order=True
    )
    for i, n in enumerate(lengths):
        h, y = model.apply(variables, x[i, :n])
        close(last[i], h)
        close(out[i, :n], y)
        h, y = model.apply(variables, x[i, :n], reverse=True, keep_order=True)
        close(backward[0][i], h)
        close(backward[1][i, :n], y)


def test_options_of_rnn_are_those_of_the_layer_or_of_the_call():
    x, cell = normal(2, 6, 3), nn.GRUCell(4)
    variables = nn.RNN(cell).init(KEY, x)
    run = lambda x=x, call={}, **options: nn.RNN(cell, **options).apply(
        variables, x, **call
    )
    forward, backward = run(), run(x[:, ::-1])
    both = {"reverse": True, "keep_order": True}
    for options, expected in [({"reverse": True}, backward), (both, backward[:, ::-1])]:
        close(run(**options), expected)
        close(run(call=options), expected)
        close(run(call=dict.fromkeys(options, False), **options), forward)
    turned, first = x.swapaxes(0, 1), {"time_major": True}
    for out in (run(turned, **first), run(turned, first)):
        close(out.swapaxes(0, 1), forward)


def test_bidirectional():
    x = normal(2, 6, 3)
    model = nn.Bidirectional(nn.RNN(nn.GRUCell(4)), nn.RNN(nn.GRUCell(4)))
    out, variables = model.init_with_output(KEY, x)
    p = variables["params"]
    one = lambda side, **kwargs: nn.RNN(nn.GRUCell(4)).apply(
        {"params": p[f"{side}_rnn"]}, x, **kwargs
    )
    close(out[..., :4], one("forward"))
    close(out[..., 4:], one("backward", reverse=True, keep_order=True))


def test_rnn_with_dropout_and_state_in_its_cell():
    class Cell(nn.RNNCellBase):
        features: int

        @nn.compact
        def __call__(self, carry, inputs):
            steps = self.variable("stats", "steps", lambda: jnp.array(0))
            if not self.is_initializing():
                steps.value += 1
            carry, out = nn.SimpleCell(self.features)(carry, inputs)
            return carry, nn.Dropout(0.5, deterministic=False)(out)

        @nn.nowrap
        def initialize_carry(self, rng, input_shape):
            return jnp.zeros((*input_shape[:-1], self.features))

    model = nn.RNN(
        Cell(4), variable_carry="stats", split_rngs={"params": False, "dropout": True}
    )
    x = normal(2, 6, 3)
    rngs = {"params": KEY, "dropout": jax.random.key(1)}
    variables = model.init(rngs, x)
    out, state = model.apply(variables, x, rngs=rngs, mutable=["stats"])
    assert int(state["stats"]["cell"]["steps"]) == 6
    dropped = np.asarray(out == 0)
    assert 0 < dropped.mean() < 1 and (dropped[:, 0] != dropped[:, 1]).any()


def test_a_cell_without_a_first_state():
    class Cell(nn.RNNCellBase):
        def __call__(self, carry, inputs):
            return carry, inputs

    with pytest.raises(TypeError, match="initialize_carry"):
        nn.RNN(Cell()).apply({}, normal(2, 3))
    assert nn.RNN(Cell()).apply({}, normal(2, 3), initial_carry=0).shape == (2, 3)


# --- activations --------------------------------------------------------------------


def test_prelu():
    x = jnp.array([-2.0, 0.0, 3.0])
    out, variables = nn.PReLU(negative_slope_init=0.25).init_with_output(KEY, x)
    assert out.tolist() == [-0.5, 0, 3]
    assert variables["params"]["negative_slope"].shape == ()
    grads = jax.grad(lambda v: nn.PReLU().apply(v, x).sum())(variables)
    assert float(grads["params"]["negative_slope"]) == -2


def test_the_scale_of_a_boxed_weight():
    boxed = nn.with_partitioning(nn.initializers.ones, ("x", None))
    model, x = nn.WeightNorm(nn.Dense(3, kernel_init=boxed)), jnp.ones((2, 4))
    params = jax.eval_shape(model.init, KEY, x)["params"]
    assert sorted(params) == ["layer_instance", "layer_instance/kernel/value/scale"]


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_attention_of_half_precision(dtype):
    q, k, v = (normal(2, 5, 2, 3, seed=seed).astype(dtype) for seed in range(3))
    out = jax.jit(nn.dot_product_attention)(q, k, v)
    assert out.dtype == dtype
    whole = nn.dot_product_attention(*(x.astype(jnp.float32) for x in (q, k, v)))
    np.testing.assert_allclose(out.astype(jnp.float32), whole, rtol=0.1, atol=0.02)


# --- settings of JAX's ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Dense(3), (2, 5, 4)),
        (nn.DenseGeneral((3, 2), batch_dims=(0,)), (2, 5, 4)),
        (nn.Einsum((4, 3), "btd,dh->bth"), (2, 5, 4)),
        (nn.Conv(3, (3, 3)), (2, 6, 6, 4)),
        (nn.ConvLocal(3, (3, 3)), (2, 6, 6, 4)),
        (nn.ConvTranspose(3, (3, 3)), (2, 6, 6, 4)),
        (nn.BatchNorm(use_running_average=True), (2, 6, 6, 4)),
        (nn.BatchNorm(use_running_average=False), (2, 6, 6, 4)),
        (nn.LayerNorm(), (2, 6, 6, 4)),
        (nn.RMSNorm(), (2, 6, 6, 4)),
        (nn.GroupNorm(num_groups=2), (2, 6, 6, 4)),
        (nn.InstanceNorm(), (2, 6, 6, 4)),
        (nn.SelfAttention(2, normalize_qk=True), (2, 5, 4)),
        (nn.RNN(nn.LSTMCell(3)), (2, 5, 4)),
        (nn.RNN(nn.OptimizedLSTMCell(3)), (2, 5, 4)),
        (nn.RNN(nn.GRUCell(3)), (2, 5, 4)),
    ],
    ids=lambda x: type(x).__name__,
)
def test_layers_promote_no_ranks(layer, shape):
    # Programs set this to find mistakes of their own.
    x = normal(*shape)
    expected, _ = layer.init_with_output(KEY, x)
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        found, _ = layer.init_with_output(KEY, x)
    close(found, expected)


@pytest.mark.parametrize("param_dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_norms_of_mixed_precision_where_jax_is_told_to_promote_none(dtype, param_dtype):
    options = {"dtype": dtype, "param_dtype": param_dtype}
    x = normal(2, 3, 4).astype(dtype)
    for layer in (
        nn.LayerNorm(**options),
        nn.BatchNorm(use_running_average=False, **options),
        nn.BatchNorm(use_running_average=True, **options),
        nn.RMSNorm(**options),
        nn.GroupNorm(2, **options),
        nn.InstanceNorm(**options),
        nn.MultiHeadDotProductAttention(2, force_fp32_for_softmax=True, **options),
    ):
        expected, _ = layer.init_with_output(KEY, x)
        with jax.numpy_dtype_promotion("strict"):
            found, _ = layer.init_with_output(KEY, x)
        assert found.dtype == expected.dtype
        close(found, expected)


def test_means_of_windows_promote_no_ranks():
    x = normal(2, 6, 6, 4)
    settings = {"padding": "SAME", "count_include_pad": False}
    expected = nn.avg_pool(x, (2, 2), **settings)
    with jax.numpy_rank_promotion("raise"):
        found = nn.avg_pool(x, (2, 2), **settings)
    np.testing.assert_array_equal(found, expected)


def test_sequences_of_one_length_are_flipped_time_first():
    x = jnp.arange(24.0).reshape(3, 4, 2)
    flipped = nn.recurrent.flip_sequences(x, 2, num_batch_dims=1, time_major=True)
    np.testing.assert_array_equal(flipped[:2], x[1::-1])


# --- initializers -------------------------------------------------------------------

ONE, TWO, THREE, FOUR = map(nn.initializers.constant, range(1, 5))


def made(model, *args):
    """The first number of each parameter."""
    params = model.init(KEY, *args)["params"]
    return jax.tree.map(lambda x: int(x.ravel()[0]), params)


def test_initializers_of_attention():
    model = nn.MultiHeadAttention(2, kernel_init=ONE, bias_init=TWO)
    names = ["query", "key", "value", "out"]
    maps = {name: {"kernel": 1, "bias": 2} for name in names}
    assert made(model, jnp.ones((3, 4))) == maps
    other = model.clone(out_kernel_init=THREE, out_bias_init=FOUR)
    assert made(other, jnp.ones((3, 4))) == {**maps, "out": {"kernel": 3, "bias": 4}}


@pytest.mark.parametrize(
    ("cell", "biases"),
    [
        (nn.LSTMCell, {f"h{gate}": 3 for gate in "ifgo"}),
        (nn.OptimizedLSTMCell, {f"h{gate}": 3 for gate in "ifgo"}),
        (nn.GRUCell, {"ir": 3, "iz": 3, "in": 3, "hn": 3}),
        (nn.SimpleCell, {"i": 3}),
        (nn.MGUCell, {"if": 4, "in": 3, "hn": 3}),
    ],
)
def test_initializers_of_cells(cell, biases):
    options = {"kernel_init": ONE, "recurrent_kernel_init": TWO}
    if cell is nn.MGUCell:
        options |= {"forget_bias_init": FOUR, "activation_bias_init": THREE}
    else:
        options["bias_init"] = THREE
    model, x = cell(4, **options), jnp.ones((2, 3))
    params = made(model, model.initialize_carry(KEY, x.shape), x)
    found = {name: p["bias"] for name, p in params.items() if "bias" in p}
    assert found == biases
    for name, p in params.items():
        assert p["kernel"] == (2 if name.startswith("h") else 1)
