"""Models as they are written for Flax NNX, trained on both libraries."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import nnx_transforms as nnx

flax_nnx = pytest.importorskip("flax.nnx")
pytestmark = pytest.mark.filterwarnings("ignore")


def normal(*shape, seed=7):
    return jax.random.normal(jax.random.key(seed), shape)


def vision_transformer(nnx):
    """Patches by a convolution, a class token, attention blocks with dropout."""

    class Block(nnx.Module):
        def __init__(self, width, heads, *, rngs):
            self.norm1 = nnx.LayerNorm(width, rngs=rngs)
            self.attention = nnx.MultiHeadAttention(
                num_heads=heads,
                in_features=width,
                dropout_rate=0.1,
                decode=False,
                deterministic=False,
                kernel_init=nnx.initializers.xavier_uniform(),
                rngs=rngs,
            )
            self.norm2 = nnx.LayerNorm(width, rngs=rngs)
            self.mlp = nnx.Sequential(
                nnx.Linear(width, 2 * width, rngs=rngs),
                nnx.gelu,
                nnx.Dropout(0.1, rngs=rngs),
                nnx.Linear(2 * width, width, rngs=rngs),
            )

        def __call__(self, x):
            x = x + self.attention(self.norm1(x))
            return x + self.mlp(self.norm2(x))

    class Model(nnx.Module):
        def __init__(self, rngs, width=8, classes=3):
            self.patches = nnx.Conv(
                1, width, (4, 4), strides=(4, 4), padding="VALID", rngs=rngs
            )
            self.token = nnx.Param(jnp.zeros((1, 1, width)))
            self.places = nnx.Param(
                nnx.initializers.truncated_normal(0.02)(rngs.params(), (1, 5, width))
            )
            self.blocks = nnx.Sequential(*(Block(width, 2, rngs=rngs) for _ in "12"))
            self.norm = nnx.LayerNorm(width, rngs=rngs)
            self.head = nnx.Linear(
                width, classes, kernel_init=nnx.initializers.zeros_init(), rngs=rngs
            )

        def __call__(self, x):
            x = self.patches(x)
            x = x.reshape(x.shape[0], -1, x.shape[-1])
            token = jnp.tile(self.token[...], (x.shape[0], 1, 1))
            x = jnp.concatenate([token, x], 1) + self.places[...]
            return self.head(self.norm(self.blocks(x))[:, 0])

    return Model


def residual_network(nnx):
    """Convolutions and batch norm, with a projection where sizes change."""

    class Block(nnx.Module):
        def __init__(self, features, out, strides, *, rngs):
            conv = functools.partial(nnx.Conv, use_bias=False, rngs=rngs)
            norm = functools.partial(nnx.BatchNorm, momentum=0.9, rngs=rngs)
            self.conv1 = conv(features, out, (3, 3), strides=strides)
            self.norm1 = norm(out)
            self.conv2 = conv(out, out, (3, 3))
            self.norm2 = norm(out, scale_init=nnx.initializers.zeros_init())
            if (features, strides) == (out, 1):
                self.shortcut = nnx.identity
            else:
                project = conv(features, out, (1, 1), strides=strides)
                self.shortcut = nnx.Sequential(project, norm(out))

        def __call__(self, x):
            y = nnx.relu(self.norm1(self.conv1(x)))
            y = self.norm2(self.conv2(y))
            return nnx.relu(y + self.shortcut(x))

    class Model(nnx.Module):
        def __init__(self, rngs):
            self.first = nnx.Conv(1, 4, (3, 3), rngs=rngs)
            self.norm = nnx.GroupNorm(4, num_groups=2, rngs=rngs)
            self.block1 = Block(4, 4, 1, rngs=rngs)
            self.block2 = Block(4, 6, 2, rngs=rngs)
            self.head = nnx.Linear(6, 3, rngs=rngs)

        def __call__(self, x):
            pool = jax.lax.reduce_window
            x = nnx.silu(self.norm(self.first(x)))
            x = pool(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "SAME")
            return self.head(self.block2(self.block1(x)).mean((1, 2)))

    return Model


def lstm_classifier(nnx):
    """Both directions over embedded tokens, of which some are padding."""

    class Model(nnx.Module):
        def __init__(self, rngs):
            self.embed = nnx.Embed(11, 4, rngs=rngs)
            self.dropout = nnx.Dropout(0.2, rngs=rngs)
            self.rnn = nnx.Bidirectional(
                nnx.RNN(nnx.OptimizedLSTMCell(4, 3, rngs=rngs)),
                nnx.RNN(nnx.OptimizedLSTMCell(4, 3, rngs=rngs)),
                return_carry=True,
            )
            self.head = nnx.Linear(6, 3, rngs=rngs)

        def __call__(self, images):
            tokens = (10 * jnp.abs(images[:, 0, :, 0])).astype(int) % 11
            lengths = 1 + tokens[:, 0] % 8
            carries, _ = self.rnn(self.dropout(self.embed(tokens)), seq_lengths=lengths)
            return self.head(jnp.concatenate([hidden for _, hidden in carries], -1))

    return Model


def adapted_network(nnx):
    """A fixed layer with a low-rank change, and normalized weights."""

    class Model(nnx.Module):
        def __init__(self, rngs):
            self.first = nnx.LoRALinear(64, 6, lora_rank=2, rngs=rngs)
            self.act = nnx.PReLU()
            self.second = nnx.WeightNorm(nnx.Linear(6, 6, rngs=rngs), rngs=rngs)
            self.norm = nnx.RMSNorm(6, rngs=rngs)
            self.head = nnx.Linear(6, 3, rngs=rngs)

        def __call__(self, x):
            x = self.act(self.first(x.reshape(x.shape[0], -1)))
            return self.head(self.norm(self.second(x)))

    return Model


def variables(lib, model):
    state = lib.state(model)
    flat = state.flat_state() if lib is nnx else lib.to_flat_state(state)
    values = {p: v.value if lib is nnx else v.get_value() for p, v in flat}
    is_key = lambda x: jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    return {p: jax.random.key_data(x) if is_key(x) else x for p, x in values.items()}


def trained(lib, make, images, labels):
    """Losses of two steps, the outputs in evaluation, and all variables."""
    model = make(lib)(lib.Rngs(0, dropout=1))
    optimizer = lib.Optimizer(model, optax.sgd(0.1, momentum=0.9), wrt=lib.Param)

    @lib.jit
    def step(model, optimizer, images, labels):
        def loss_fn(model):
            losses = optax.softmax_cross_entropy_with_integer_labels(
                model(images), labels
            )
            return losses.mean()

        loss, grads = lib.value_and_grad(loss_fn)(model)
        optimizer.update(model, grads)
        return loss

    model.train()
    losses = [step(model, optimizer, images, labels) for _ in range(2)]
    model.eval()
    return losses, model(images), variables(lib, model)


@pytest.mark.parametrize(
    "make", [vision_transformer, residual_network, lstm_classifier, adapted_network]
)
def test_training(make):
    images, labels = normal(4, 8, 8, 1), jnp.array([0, 1, 2, 0])
    losses, out, values = trained(nnx, make, images, labels)
    other_losses, other_out, other_values = trained(flax_nnx, make, images, labels)
    np.testing.assert_allclose(losses, other_losses, rtol=1e-5)
    np.testing.assert_allclose(out, other_out, rtol=1e-3, atol=1e-4)
    assert values.keys() == other_values.keys()
    for path, value in values.items():
        np.testing.assert_allclose(
            value, other_values[path], rtol=1e-3, atol=1e-4, err_msg=str(path)
        )


def accumulator(nnx):
    """Gradients added up in variables that a state holds, as trainers write it."""

    def is_variable(x):
        return isinstance(x, nnx.Variable)

    class Accumulator(nnx.Module):
        def __init__(self, model, wrt):
            state = nnx.state(model, wrt)
            self.dtypes = nnx.data(
                jax.tree.map(lambda v: v[...].dtype, state, is_leaf=is_variable)
            )
            self.grads = nnx.data(jax.tree.map(jnp.zeros_like, state))
            self.count = nnx.Variable(jnp.zeros(()))

        def add(self, grads):
            def add(total, grad):
                total.set_value(total[...] + grad[...])

            jax.tree.map(add, self.grads, grads, is_leaf=is_variable)
            self.count.set_value(self.count[...] + 1)

        def take(self):
            def mean(total, dtype):
                grad = type(total)((total[...] / self.count[...]).astype(dtype))
                total.set_value(jnp.zeros_like(total[...]))
                return grad

            out = jax.tree.map(mean, self.grads, self.dtypes, is_leaf=is_variable)
            self.count.set_value(jnp.zeros(()))
            return out

    return Accumulator


def trained_in_parts(lib):
    model = lib.Sequential(
        lib.Linear(3, 4, rngs=lib.Rngs(0)), lib.tanh, lib.Linear(4, 2, rngs=lib.Rngs(1))
    )
    tx = optax.inject_hyperparams(optax.adamw)(learning_rate=0.1)
    optimizer = lib.Optimizer(model, tx, wrt=lib.Param)
    total = accumulator(lib)(model, lib.Param)

    def apply(model, optimizer, total):
        optimizer.update(model, total.take())

    @lib.jit
    def step(model, optimizer, total, x, is_last):
        loss, grads = lib.value_and_grad(lambda m: jnp.mean((m(x) - 1) ** 2))(model)
        total.add(grads)
        lib.cond(
            is_last,
            apply,
            lambda model, optimizer, total: None,
            *(model, optimizer, total),
        )
        return loss

    losses = []
    for i in range(6):
        hyperparameters = optimizer.opt_state.hyperparams
        if i == 2:
            hyperparameters["learning_rate"].value = jnp.float32(0.05)
        if i == 4:
            hyperparameters["learning_rate"] = jnp.float32(0.01)
        x = normal(4, 3, seed=i)
        losses.append(step(model, optimizer, total, x, jnp.array(i % 2 == 1)))
        losses.append(jnp.add(optimizer.opt_state.hyperparams["learning_rate"], 0))
    return losses, variables(lib, model), step.jitted_fn._cache_size()


def test_training_in_parts():
    losses, values, size = trained_in_parts(nnx)
    other_losses, other_values, _ = trained_in_parts(flax_nnx)
    np.testing.assert_allclose(losses, other_losses, rtol=1e-5)
    for path, value in values.items():
        np.testing.assert_allclose(value, other_values[path], rtol=1e-4, atol=1e-5)
    assert size == 1


def decoder(nnx):
    class Model(nnx.Module):
        def __init__(self, rngs):
            self.embed = nnx.Embed(7, 8, rngs=rngs)
            self.norm = nnx.RMSNorm(8, rngs=rngs)
            self.rope = nnx.RoPE()
            self.attention = nnx.MultiHeadAttention(
                4, 8, num_kv_heads=2, decode=True, use_bias=False, rngs=rngs
            )

        def init_cache(self, batch, length):
            self.attention.init_cache((batch, length, 8))

        def __call__(self, tokens, **kwargs):
            x = self.embed(tokens)
            return self.embed.attend(x + self.attention(self.norm(x), **kwargs))

    return Model


def generated(lib):
    model = decoder(lib)(lib.Rngs(3))
    model.init_cache(2, 6)

    @lib.jit
    def step(model, token):
        logits = model(token)
        return logits.argmax(-1), logits

    token, tokens, logits = jnp.array([[1], [4]]), [], []
    for _ in range(6):
        tokens.append(token)
        token, out = step(model, token)
        logits.append(out)
    return model, jnp.concatenate(tokens, 1), jnp.concatenate(logits, 1)


def test_generating_with_a_cache():
    model, tokens, logits = generated(nnx)
    other, other_tokens, other_logits = generated(flax_nnx)
    assert tokens.tolist() == other_tokens.tolist()
    np.testing.assert_allclose(logits, other_logits, rtol=1e-4, atol=1e-5)
    whole = model(tokens, decode=False, is_causal=True)
    np.testing.assert_allclose(logits, whole, rtol=1e-4, atol=1e-5)
    values, others = variables(nnx, model), variables(flax_nnx, other)
    assert values.keys() == others.keys()


OPTIMIZERS = {
    "adamw": lambda: optax.adamw(1e-2),
    "chain": lambda: optax.chain(optax.clip(1.0), optax.sgd(0.1, momentum=0.9)),
    "alone": lambda: optax.scale_by_adam(),
    "injected": lambda: optax.inject_hyperparams(optax.adam)(learning_rate=0.1),
    "in steps": lambda: optax.MultiSteps(optax.adam(0.1), every_k_schedule=2),
    "finite": lambda: optax.apply_if_finite(optax.adam(0.1), 2),
    "lbfgs": lambda: optax.lbfgs(0.1, memory_size=2, linesearch=None),
    "schedule free": lambda: optax.contrib.schedule_free_sgd(0.1),
}


def optimizer_read_by_path(lib, name):
    """What programs do with the state of an optimizer, beside updates."""
    kernel = lib.with_partitioning(lib.initializers.ones_init(), ("x", None))
    mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    with jax.set_mesh(mesh):
        model = lib.List([lib.Linear(2, 3, kernel_init=kernel, rngs=lib.Rngs(0))])
        optimizer = lib.Optimizer(model, OPTIMIZERS[name](), wrt=lib.Param)
        places = lib.get_partition_spec(lib.state(optimizer, lib.OptState))
    state = lib.split(optimizer, lib.OptState, ...)[1]
    visited = [p for p, x in lib.iter_graph(optimizer) if isinstance(x, lib.OptState)]
    shapes = jax.tree.map(jnp.shape, lib.to_pure_dict(state))
    lib.update(optimizer, jax.tree.map(lambda x: x + 1, lib.state(optimizer)))
    twin = lib.merge(*lib.split(optimizer))
    kinds = [type(part) for part in (optimizer.opt_state, twin.opt_state)]
    values = lib.to_flat_state(lib.state(twin, lib.OptState))
    # Flax places also what has one axis more, as the memory of L-BFGS, like this.
    places = None if name == "lbfgs" else lib.to_pure_dict(places)
    return (
        (sorted(visited), shapes, kinds, places),
        {path: jnp.asarray(leaf[...]) for path, leaf in values},
    )


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_state_of_an_optimizer_has_the_paths_that_it_has_in_flax(name):
    read, values = optimizer_read_by_path(nnx, name)
    other, other_values = optimizer_read_by_path(flax_nnx, name)
    assert read == other
    assert values.keys() == other_values.keys()
    for path, value in values.items():
        np.testing.assert_allclose(value, other_values[path], rtol=1e-5)
