"""A small model and its training step, which several tests and processes run."""

import jax
import jax.numpy as jnp
import numpy as np

import nnx_transforms as nnx


class Net(nnx.Module):
    """Two layers around a tied one, running statistics, dropout and a counter."""

    def __init__(self, seed=0, width=16):
        rngs = nnx.Rngs(seed)
        self.first = nnx.Linear(8, width, rngs=rngs)
        self.middle = nnx.Linear(width, width, rngs=rngs)
        self.again = self.middle
        self.norm = nnx.BatchNorm(width, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.last = nnx.Linear(width, 1, rngs=rngs)
        self.calls = nnx.BatchStat(jnp.array(0))

    def __call__(self, x):
        self.calls.value += 1
        x = jax.nn.tanh(self.first(x))
        x = self.dropout(self.norm(self.again(self.middle(x))))
        return self.last(x)[:, 0]


def data(size=32, seed=0):
    x = np.random.default_rng(seed).normal(size=(size, 8)).astype(np.float32)
    return jnp.asarray(x), jnp.asarray(np.sin(x.sum(axis=1)))


def loss(model, x, y):
    return jnp.mean((model(x) - y) ** 2)


@nnx.jit
def sgd_step(model, x, y):
    value, grads = nnx.value_and_grad(loss)(model, x, y)
    params = nnx.state(model, nnx.Param)
    nnx.update(model, jax.tree.map(lambda p, g: p - 0.05 * g, params, grads))
    return value


def train(model, steps=3):
    x, y = data()
    return [float(sgd_step(model, x, y)) for _ in range(steps)]


def train_pickled(model):
    """What a spawned process runs: the trained model, and what the training saw."""
    return model, train(model)


def arrays(node, *filters):
    """The values of a node's variables as NumPy arrays, keys as their data."""
    pure = nnx.state(node, *filters).to_pure_dict()

    def array(x):
        is_key = jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
        return np.asarray(jax.random.key_data(x) if is_key else x)

    return jax.tree.map(array, pure)


def assert_same(one, other, **tolerance):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **tolerance), one, other)
