"""Attention, masks, rotary embedding and recurrent layers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphcore as gc
import nnx_transforms as nnx

INITS = {"carry_init": jax.nn.initializers.normal()}


def random(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def close(found, expected, tolerance=1e-5):
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=tolerance, atol=tolerance),
        found,
        expected,
    )


X = random(0, 2, 5, 8)


def attention(**options):
    return nnx.MultiHeadAttention(2, 8, **options, rngs=nnx.Rngs(0))


def by_hand(query, key, value, bias=0.0, mask=True):
    """Attention as the formula says it, with a key head for each group of heads."""
    group = query.shape[-2] // key.shape[-2]
    key, value = (np.repeat(x, group, -2) for x in (key, value))
    products = np.einsum("...qhd,...khd->...hqk", query, key) / np.sqrt(key.shape[-1])
    weights = np.exp(np.where(mask, products + bias, -np.inf))
    weights = weights / weights.sum(-1, keepdims=True)
    return np.einsum("...hqk,...khd->...qhd", weights, value)


@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
@pytest.mark.parametrize("depth", [4, 6])  # of values; 4 is that of keys
def test_attention_is_the_formula(batch, depth):
    query, key = random(1, *batch, 5, 4, 4), random(2, *batch, 3, 2, 4)
    value, bias = random(3, *batch, 3, 2, depth), random(4, 1, 5, 3)
    mask = random(5, *batch, 1, 5, 3) > -1
    mask = mask.at[..., 0].set(True)
    expected = by_hand(query, key, value, bias, mask)
    assert expected.shape == (*batch, 5, 4, depth)
    close(nnx.dot_product_attention(query, key, value, bias, mask), expected)


def test_causal_attention_combines_with_a_mask():
    q, k, v = (random(i, 4, 1, 2) for i in range(3))
    mask = jnp.array([True, True, False, True])
    expected = by_hand(q, k, v, mask=np.tri(4, dtype=bool) & np.asarray(mask))
    for options in ({}, {"precision": "highest"}):  # by JAX, and by the weights
        found = nnx.dot_product_attention(
            q, k, v, mask=mask[None, None], is_causal=True, **options
        )
        close(found, expected)


@pytest.mark.parametrize("broadcast", [True, False])
def test_dropout_of_attention_weights(broadcast):
    q = k = jnp.zeros((2, 8, 4, 2))
    weights = nnx.dot_product_attention_weights(
        q,
        k,
        dropout_rate=0.5,
        dropout_rng=jax.random.key(0),
        broadcast_dropout=broadcast,
    )
    assert set(np.unique(weights)) == {0.0, 0.25}
    assert bool((weights == weights[0, 0]).all()) is broadcast
    with pytest.raises(ValueError, match="dropout_rng"):
        nnx.dot_product_attention_weights(q, k, dropout_rate=0.5)
    with pytest.raises(ValueError, match=r"1\.5"):
        nnx.dot_product_attention_weights(q, k, dropout_rate=1.5)


@pytest.mark.parametrize(
    "shapes",
    [
        ((5, 2, 4), (3, 2, 3), (3, 2, 4)),
        ((5, 3, 4), (3, 2, 4), (3, 2, 4)),
        ((5, 2, 4), (3, 2, 4), (4, 2, 4)),
        ((1, 5, 2, 4), (3, 2, 4), (3, 2, 4)),
    ],
)
def test_attention_names_shapes_that_do_not_fit(shapes):
    with pytest.raises(ValueError, match=r"got .*5, .*4\)"):
        nnx.dot_product_attention(*(jnp.ones(s) for s in shapes))


def test_masks():
    tokens = jnp.array([1, 1, 0])
    causal = nnx.make_causal_mask(tokens, dtype=bool)
    padding = nnx.make_attention_mask(tokens, tokens, dtype=bool)
    both = nnx.combine_masks(causal, None, padding, dtype=bool)
    assert both.tolist() == (causal & padding).tolist()
    assert nnx.combine_masks(None, None) is None
    assert nnx.make_causal_mask(tokens, extra_batch_dims=2).shape == (1, 1, 1, 3, 3)
    with pytest.raises(ValueError, match=r"\(3, 3\)"):
        nnx.combine_masks(causal, causal[0])


def test_heads_attend_for_themselves():
    layer = attention(decode=False, use_bias=False)
    project = lambda kernel: np.einsum("...i,ihd->...hd", X, kernel.value)
    heads = by_hand(*(project(p.kernel) for p in (layer.query, layer.key, layer.value)))
    expected = np.einsum("...hd,hdo->...o", heads, layer.out.kernel.value)
    close(layer(X), expected)
    close(layer(X, X, X), expected)


@pytest.mark.parametrize("shape", [(5, 8), (2, 5, 8), (2, 3, 5, 8)])
def test_decoding_is_causal_attention(shape):
    layer = nnx.MultiHeadAttention(4, 8, num_kv_heads=2, decode=True, rngs=nnx.Rngs(0))
    layer.init_cache(shape)
    x = random(0, *shape)
    step = nnx.jit(lambda layer, x: layer(x))
    steps = [step(layer, x[..., i : i + 1, :]) for i in range(5)]
    whole = layer(x, decode=False, is_causal=True)
    close(jnp.concatenate(steps, -2), whole)
    assert int(layer.cache_index.value) == 5
    assert gc.state(layer, gc.Cache).flat_state().paths == (
        ("cache_index",),
        ("cached_key",),
        ("cached_value",),
    )


def test_decoding_says_what_it_needs():
    with pytest.raises(ValueError, match="`decode`"):
        attention()(X)
    layer = attention(decode=True)
    with pytest.raises(ValueError, match="init_cache"):
        layer(X[:, :1])
    layer.init_cache(X.shape)
    with pytest.raises(ValueError, match=r"\(2, 1, 2, 4\), got \(2, 5, 2, 4\)"):
        layer(X)


def test_attention_modes():
    layer = attention(dropout_rate=0.5, decode=False)
    assert layer.rngs.tag == "default"
    with pytest.raises(ValueError, match="`deterministic`"):
        layer(X)
    layer.eval()
    close(layer(X), layer(X))
    layer.train()
    assert (np.asarray(layer(X)) != np.asarray(layer(X))).any()
    assert int(layer.rngs.count.value) == 2
    close(layer(X, deterministic=True), layer(X, deterministic=True))
    bare = attention(
        dropout_rate=0.5, decode=False, deterministic=False, keep_rngs=False
    )
    with pytest.raises(ValueError, match="keep_rngs"):
        bare(X)
    assert bare(X, rngs=nnx.Rngs(dropout=0)).shape == X.shape


def test_attention_records_its_weights():
    layer = attention(decode=False)
    layer(X, sow_weights=True)
    (weights,) = layer.attention_weights.value
    assert weights.shape == (2, 2, 5, 5)
    close(weights.sum(-1), np.ones((2, 2, 5)))


@pytest.mark.parametrize(
    ("args", "message"),
    [((3, 8), "num_heads=3"), ((4, 8, 8, 8, 3), "num_kv_heads=3")],
)
def test_attention_refuses_heads_of_unequal_size(args, message):
    with pytest.raises(ValueError, match=message):
        nnx.MultiHeadAttention(*args, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="inputs_v without inputs_k"):
        attention(decode=False)(X, None, X)
    with pytest.raises(ValueError, match="8 features"):
        attention(decode=False)(X[..., :7])


def test_rotary_embedding_depends_on_distances():
    q, k, rope = random(1, 8), random(2, 8), nnx.RoPE()
    turn = lambda x, place: rope(x[None], jnp.array([place]))[0]
    product = lambda a, b: float(turn(q, a) @ turn(k, b))
    assert product(3, 1) == pytest.approx(product(12, 10), abs=1e-4)
    assert abs(product(3, 1) - product(3, 2)) > 1e-3
    table = nnx.RoPE(embedding_size=8, max_seq_len=6)
    close(table(X), rope(X))
    assert len(gc.state(table).flat_state()) == 2
    with pytest.raises(ValueError, match="expected both"):
        nnx.RoPE(embedding_size=8)
    with pytest.raises(ValueError, match="even"):
        rope(jnp.ones((2, 3)))
    with pytest.raises(ValueError, match="expected 5"):
        rope(X, jnp.arange(4))


def test_rotary_attention_knows_places():
    rope = nnx.RoPE()
    q, k, v = (random(i, 2, 5, 3, 4) for i in range(3))
    turned = functools.partial(nnx.dot_product_attention_with_rope, rope=rope)
    plain = turned(q, k, v)
    close(turned(q, k, v, input_positions=jnp.arange(7, 12)), plain, 1e-4)
    order = jnp.array([3, 0, 4, 1, 2])
    places = jnp.stack([order, order])
    shuffled = turned(*(x[:, order] for x in (q, k, v)), input_positions=places)
    close(shuffled, plain[:, order], 1e-4)
    layer = attention(decode=False, attention_fn=turned)
    assert nnx.jit(lambda layer, x: layer(x))(layer, X).shape == X.shape


# Recurrence

CELLS = [nnx.LSTMCell, nnx.OptimizedLSTMCell, nnx.SimpleCell, nnx.GRUCell]


def stepped(cell, carry, x):
    outputs = []
    for i in range(x.shape[1]):
        carry, y = cell(carry, x[:, i])
        outputs.append(y)
    return carry, jnp.stack(outputs, 1)


@pytest.mark.parametrize("kind", CELLS)
def test_a_recurrent_layer_steps_its_cell(kind):
    cell = kind(8, 3, rngs=nnx.Rngs(0))
    carry = cell.initialize_carry((2, 8), nnx.Rngs(0), INITS["carry_init"])
    layer = nnx.RNN(cell, return_carry=True)
    close(layer(X, initial_carry=carry), stepped(cell, carry, X))
    first, last = nnx.RNN(cell)(X), nnx.RNN(cell, time_major=True)(X.swapaxes(0, 1))
    close(first, last.swapaxes(0, 1))


@pytest.mark.parametrize("reverse", [False, True])
def test_padding_changes_nothing(reverse):
    cell = nnx.LSTMCell(8, 3, rngs=nnx.Rngs(0))
    layer = nnx.RNN(cell, return_carry=True, reverse=reverse, keep_order=True)
    lengths = jnp.array([3, 5])
    carry, outputs = layer(X, seq_lengths=lengths)
    other, others = layer(X.at[0, 3:].set(7.0), seq_lengths=lengths)
    close(carry, other)
    close(outputs[0, :3], others[0, :3])
    short, first = layer(X[:1, :3])
    close(jax.tree.map(lambda x: x[:1], carry), short)
    close(outputs[:1, :3], first)


def test_both_directions():
    forward, backward = (nnx.RNN(nnx.GRUCell(8, 3, rngs=nnx.Rngs(i))) for i in range(2))
    layer = nnx.Bidirectional(forward, backward)
    flipped = backward(X[:, ::-1])[:, ::-1]
    close(layer(X), jnp.concatenate([forward(X), flipped], -1))
    (first, last), _ = layer(X, return_carry=True)
    close((first, last), (forward(X)[:, -1], flipped[:, 0]))
    close(
        nnx.Bidirectional(forward, backward, merge_fn=jnp.add)(X), forward(X) + flipped
    )


@pytest.mark.parametrize("unroll", [1, 5])
def test_gradients_through_time(unroll):
    cell = nnx.SimpleCell(8, 3, rngs=nnx.Rngs(0))
    layer = nnx.RNN(cell, unroll=unroll)
    grads = nnx.grad(lambda layer: layer(X).sum())(layer)
    by_steps = nnx.grad(lambda cell: stepped(cell, jnp.zeros((2, 3)), X)[1].sum())(cell)
    close(
        [leaf.value for _, leaf in grads.flat_state()],
        [leaf.value for _, leaf in by_steps.flat_state()],
        1e-4,
    )


@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_cells_are_made_where_dtypes_may_not_be_promoted(kind, dtype):
    with jax.numpy_dtype_promotion("strict"), jax.enable_x64(True):
        cell = kind(2, 3, param_dtype=dtype, rngs=nnx.Rngs(0))
    assert {x.dtype for x in jax.tree.leaves(nnx.state(cell, nnx.Param))} == {
        jnp.dtype(dtype)
    }


class Counting(nnx.RNNCellBase):
    """Counts its steps, and drops out."""

    num_feature_axes = 1

    def __init__(self, rngs):
        self.steps = nnx.BatchStat(jnp.array(0))
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def initialize_carry(self, input_shape, rngs=None, carry_init=None):
        return jnp.zeros(())

    def __call__(self, carry, inputs):
        self.steps.value += 1
        return carry, self.dropout(inputs)


def test_what_a_cell_writes_the_next_step_sees():
    layer = nnx.RNN(Counting(nnx.Rngs(0)))
    layer(X)
    layer(X)
    assert int(layer.cell.steps.value) == 10
    carried = nnx.RNN(Counting(nnx.Rngs(0)), state_axes={...: nnx.Carry})
    carried(X)
    assert int(carried.cell.steps.value) == 5


def test_steps_may_share_their_random_numbers():
    x = jnp.ones((4, 5, 8))
    own = nnx.RNN(Counting(nnx.Rngs(dropout=0)))
    shared = nnx.RNN(Counting(nnx.Rngs(dropout=0)), broadcast_rngs="dropout")
    assert (own(x)[:, 0] != own(x)[:, 1]).any()
    first, second = shared(x), shared(x)
    assert (first == first[:, :1]).all() and (second == second[:, :1]).all()
    assert (first != second).any()
    assert shared.cell.dropout.rngs.key.value.shape == ()


@pytest.mark.parametrize("broadcast_rngs", [None, ["dropout", "noise"]])
def test_a_further_call_does_not_run_the_cell_in_python(broadcast_rngs):
    runs = []

    class Cell(Counting):
        def __call__(self, carry, inputs):
            runs.append(1)
            return super().__call__(carry, inputs)

    def made():
        cell = Cell(nnx.Rngs(dropout=0))
        return nnx.RNN(cell, broadcast_rngs=broadcast_rngs)

    one, other = made(), made()
    one(X)
    count = len(runs)
    assert not (one(X) == one(X)).all()
    assert (other(X) == made()(X)).all()
    nnx.jit(lambda one, other: one(other(X)))(one, other)
    assert len(runs) == count
    assert int(one.cell.steps.value) == 4 * X.shape[1]


def test_first_states_are_drawn():
    cell = nnx.GRUCell(8, 3, rngs=nnx.Rngs(0), **INITS)
    layer = nnx.RNN(cell, rngs=nnx.Rngs(carry=5))
    assert layer.rngs.tag == "carry"
    assert (layer(X) != layer(X)).any()
    assert int(layer.rngs.count.value) == 2
    assert (layer(X, rngs=nnx.Rngs(1)) == layer(X, rngs=nnx.Rngs(1))).all()
    with pytest.raises(ValueError, match="first state"):
        nnx.RNN(cell, rngs=False)(X)
    with pytest.raises(TypeError, match="int"):
        nnx.RNN(cell, rngs=3)
    kept = nnx.LSTMCell(8, 3, keep_rngs=True, rngs=nnx.Rngs(0))
    assert kept.initialize_carry((2, 8))[0].shape == (2, 3)


def test_sequences_of_one_length_are_flipped_time_first():
    x = jnp.arange(24.0).reshape(3, 4, 2)
    flipped = nnx.flip_sequences(x, 2, num_batch_dims=1, time_major=True)
    np.testing.assert_array_equal(flipped[:2], x[1::-1])
    rnn = nnx.RNN(nnx.SimpleCell(2, 2, rngs=nnx.Rngs(0)), time_major=True, reverse=True)
    np.testing.assert_array_equal(
        rnn(x, seq_lengths=3), rnn(x, seq_lengths=jnp.full(4, 3))
    )
