"""Whole models, written for Flax Linen: run by it and, ported, by linen-lift.

Both must have the same variables, and the same outputs, updated collections and
gradients given them.
"""

import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import linen_lift
from nnx_transforms.port import port

flax_nn = pytest.importorskip("flax.linen")

IMAGE_MODEL = '''
from functools import partial
from typing import Any

import flax.linen as nn
import jax.numpy as jnp


class Residual(nn.Module):
    filters: int
    norm: Any

    @nn.compact
    def __call__(self, x):
        y = nn.Conv(self.filters, (3, 3), use_bias=False)(x)
        y = nn.relu(self.norm()(y))
        y = nn.Conv(self.filters, (3, 3), use_bias=False)(y)
        y = self.norm(scale_init=nn.initializers.zeros_init())(y)
        if x.shape != y.shape:
            x = nn.Conv(self.filters, (1, 1), name="shortcut")(x)
        return nn.relu(x + y)


class Model(nn.Module):
    """A residual network with two kinds of norm, and a decoder of its features."""

    @nn.compact
    def __call__(self, x, train=False):
        batch = partial(nn.BatchNorm, use_running_average=not train, momentum=0.9)
        group = partial(nn.GroupNorm, num_groups=2)
        x = Residual(4, batch)(x)
        x = nn.max_pool(x, (2, 2), strides=(2, 2))
        x = Residual(6, group, name="grouped")(x)
        low = nn.avg_pool(x, (2, 2), (1, 1), "SAME", count_include_pad=False)
        up = nn.ConvTranspose(3, (2, 2), strides=(2, 2))(nn.PReLU()(low))
        logits = nn.WeightNorm(nn.Dense(5))(jnp.mean(x, axis=(1, 2)))
        return logits, up
'''

TEXT_MODEL = '''
from typing import Any

import flax
import jax.numpy as jnp
from flax import linen as nn, struct
from flax.linen.attention import combine_masks


@struct.dataclass
class Config:
    vocab: int = 13
    width: int = 8
    heads: int = 2
    layers: int = 3
    decode: bool = struct.field(pytree_node=False, default=False)


def kernel(*names):
    return nn.with_logical_partitioning(nn.linear.default_kernel_init, names)


class Block(nn.Module):
    config: Config

    @nn.compact
    def __call__(self, x, mask):
        c = self.config
        h = nn.RMSNorm()(x)
        h = nn.MultiHeadDotProductAttention(
            c.heads,
            kernel_init=kernel("embed", "heads"),
            out_kernel_init=kernel("heads", "embed"),
            decode=c.decode,
            normalize_qk=True,
        )(h, mask=mask)
        x = x + h
        h = nn.LayerNorm()(x)
        h = nn.gelu(nn.DenseGeneral(2 * c.width, kernel_init=kernel("embed", "mlp"))(h))
        h = nn.with_logical_constraint(h, ("batch", "length", "mlp"))
        return x + nn.Dense(c.width, kernel_init=kernel("mlp", "embed"))(h), None


class Model(nn.Module):
    """A decoder, whose layers are one scan of rematerialized blocks."""

    config: Config = Config()

    @nn.compact
    def __call__(self, tokens):
        c = self.config
        embed = nn.Embed(c.vocab, c.width)
        x = embed(tokens)
        mask = None
        if not c.decode:
            mask = combine_masks(
                nn.make_attention_mask(tokens > 0, tokens > 0),
                nn.make_causal_mask(tokens),
            )
        blocks = nn.scan(
            nn.remat(Block, prevent_cse=False),
            variable_axes={"params": 0, "cache": 0},
            split_rngs={"params": True},
            in_axes=(nn.broadcast,),
            length=c.layers,
            metadata_params={nn.PARTITION_NAME: "layers"},
        )
        x, _ = blocks(c, name="blocks")(x, mask)
        return embed.attend(x)


def partition_specs(variables):
    assert isinstance(flax.core.freeze({}), flax.core.FrozenDict)
    return nn.get_partition_spec(variables)
'''

RECURRENT_MODEL = '''
import flax.linen as nn
import jax
import jax.numpy as jnp


class Attend(nn.RNNCellBase):
    """A cell that looks at the whole source in each step."""

    features: int

    @nn.compact
    def __call__(self, carry, inputs):
        carry, y = nn.OptimizedLSTMCell(self.features)(carry, inputs)
        return carry, nn.Einsum((self.features, 5), "...i,io->...o")(y)

    @nn.nowrap
    def initialize_carry(self, rng, input_shape):
        return nn.LSTMCell(self.features).initialize_carry(rng, input_shape)

    @property
    def num_feature_axes(self):
        return 1


class Model(nn.Module):
    def setup(self):
        self.encoder = nn.Bidirectional(
            nn.RNN(nn.GRUCell(4)), nn.RNN(nn.MGUCell(4)), return_carry=True
        )
        self.bridge = nn.Dense(6)
        self.decoder = nn.RNN(Attend(6))

    def __call__(self, source, lengths, target):
        states, out = self.encoder(source, seq_lengths=lengths)
        h = jnp.tanh(self.bridge(jnp.concatenate(states, -1)))
        self.sow("intermediates", "summary", h)
        return self.decoder(target, initial_carry=(jnp.zeros_like(h), h)), out
'''


@pytest.fixture(autouse=True, scope="module")
def quick_compilation():
    """The time goes into compiling what runs once."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


def run_source(source, name):
    module = types.ModuleType(name)
    sys.modules[name] = module  # dataclasses look their module up
    exec(compile(source, name, "exec"), module.__dict__)
    return module


def both(source, problems=()):
    """The module of a source text, and that of the ported text."""
    out = port(source)
    assert out.problems == problems
    return run_source(source, "of_flax"), run_source(out.source, "of_linen_lift")


def randomized(tree):
    leaves, treedef = jax.tree.flatten(tree)
    rng = np.random.default_rng(0)
    return treedef.unflatten(
        jnp.asarray(rng.uniform(0.1, 0.6, x.shape), x.dtype)
        if jnp.issubdtype(x.dtype, jnp.inexact)
        else jnp.zeros(x.shape, x.dtype)
        for x in leaves
    )


def close(a, b, tolerance=1e-4):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, tolerance, tolerance), a, b
    )


def compare(source, *args, **kwargs):
    theirs, ours = (module.Model() for module in both(source))
    key = jax.random.key(0)
    abstract = flax_nn.unbox(jax.eval_shape(lambda: theirs.init(key, *args, **kwargs)))
    made = linen_lift.unbox(jax.eval_shape(lambda: ours.init(key, *args, **kwargs)))
    shapes = lambda tree: jax.tree.map(lambda x: (x.shape, x.dtype.name), tree)
    assert shapes(made) == shapes(abstract)
    variables = randomized(abstract)

    def run(model):
        def loss(params):
            out, state = model.apply(
                {**variables, "params": params},
                *args,
                mutable=["batch_stats", "intermediates"],
                **kwargs,
            )
            total = sum(jnp.sum(jnp.sin(x)) for x in jax.tree.leaves(out))
            return total, (out, state)

        grads, aux = jax.grad(loss, has_aux=True)(variables["params"])
        return grads, aux

    close(jax.jit(lambda: run(ours))(), jax.jit(lambda: run(theirs))(), 1e-3)


@pytest.mark.parametrize("train", [False, True])
def test_image_model(train):
    x = jax.random.normal(jax.random.key(1), (2, 8, 8, 3))
    compare(IMAGE_MODEL, x, train=train)


def test_recurrent_model():
    source = jax.random.normal(jax.random.key(1), (2, 6, 3))
    target = jax.random.normal(jax.random.key(2), (2, 4, 3))
    compare(RECURRENT_MODEL, source, jnp.array([6, 2]), target)


TOKENS = jnp.array([[1, 5, 2, 7], [3, 4, 0, 0]])


def test_text_model():
    compare(TEXT_MODEL, TOKENS)


def test_text_model_a_token_at_a_time():
    caches, params = {}, None
    for module, unbox in zip(
        both(TEXT_MODEL), (flax_nn.unbox, linen_lift.unbox), strict=True
    ):
        model = module.Model(module.Config(decode=True))
        variables = unbox(jax.jit(model.init)(jax.random.key(0), TOKENS))
        params = params or randomized(variables["params"])
        caches[module] = (model, variables["cache"])
    for t in range(3):
        outs = []
        for module, (model, cache) in caches.items():
            out, state = jax.jit(
                lambda v, x, m=model: m.apply(v, x, mutable=["cache"])
            )({"params": params, "cache": cache}, TOKENS[:, t : t + 1])
            caches[module] = (model, state["cache"])
            outs.append((out, state))
        close(*outs)


def test_where_the_parameters_of_the_text_model_lie():
    specs = []
    for module in both(TEXT_MODEL):
        init = module.Model().init
        abstract = jax.eval_shape(init, jax.random.key(0), TOKENS)
        specs.append(module.partition_specs(abstract))
    assert specs[0] == specs[1]
    kernel = specs[1]["params"]["blocks"]["Dense_0"]["kernel"]
    assert tuple(kernel) == ("layers", "mlp", "embed")


def test_modules_have_names_of_their_own():
    before = "from flax import nnx\nprint(nnx.__name__, nnx.Linear.__doc__)\n"
    ported = port(before)
    assert not ported.problems
    assert ported.source == before.replace(
        "from flax import nnx", "import nnx_transforms as nnx"
    )


PRIVATE = """
from flax import linen as nn
from flax.linen.normalization import _compute_stats, _normalize

ones, zeros = nn.initializers.ones, nn.initializers.zeros


class Model(nn.Module):
    @nn.compact
    def __call__(self, x):
        mean, var = _compute_stats(x, (0,), None)
        options = None, x.dtype, 1e-6, True, True, zeros, ones
        return _normalize(self, x, mean, var, (0,), (1,), *options)
"""


def test_private_names_stay_imports_of_flax():
    problems = port(PRIVATE).problems
    assert [problem.line for problem in problems] == [3, 3]
    assert all("private to Flax" in problem.reason for problem in problems)
    key, x = jax.random.key(0), jnp.arange(12.0).reshape(4, 3) ** 2
    models = (module.Model() for module in both(PRIVATE, problems))
    close(*(model.init_with_output(key, x) for model in models))
