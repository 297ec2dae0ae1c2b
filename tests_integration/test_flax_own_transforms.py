"""Our objects as arguments of Flax NNX's own transforms, to which they are pytrees."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnx_transforms as nt

fx = pytest.importorskip("flax.nnx")

X = jax.random.normal(jax.random.key(0), (3, 4))
READ_ONLY = "the caller would not see the change"
# Flax before 0.12.3 has no such option.
try:
    fx.jit(lambda: 0, graph=True, graph_updates=True)
except TypeError:
    MODES = [{}]
else:
    MODES = [{}, {"graph": True}, {"graph": True, "graph_updates": True}]
transforms = pytest.mark.parametrize(
    "transform",
    [
        fx.jit,
        fx.remat,
        lambda f, **kw: fx.vmap(f, in_axes=(None, 0), **kw),
        lambda f, **kw: fx.jit(fx.remat(f, **kw), **kw),
        lambda f, **kw: lambda m, x: fx.cond(True, f, f, m, x, **kw),
    ],
    ids=["jit", "remat", "vmap", "jit of remat", "cond"],
)
modes = pytest.mark.parametrize("mode", MODES, ids=[" ".join(m) for m in MODES])


class Block(nt.Module):
    def __init__(self, rngs):
        self.dense = nt.Linear(4, 4, rngs=rngs)
        self.dropout = nt.Dropout(0.5, rngs=rngs)
        self.calls = nt.Variable(jnp.array(0))
        self.scales = nt.List([jnp.ones(4)])
        self.scale = jnp.ones(4)

    def __call__(self, x):
        return self.dense(x) * self.scales[0] * self.scale


class Holder(fx.Module):
    def __init__(self, block):
        self.block = fx.data(block) if hasattr(fx, "data") else block


def _count(block):
    block.calls.value += 1


def _draw(block):
    block.dropout(X)


def _replace(block):
    block.scale = block.scale + 1


def _replace_below(block):
    block.scales[0] = block.scales[0] + 1


def _edit(block):
    block.dense.bias = None


@modes
@transforms
@pytest.mark.parametrize("write", [_count, _draw, _replace, _replace_below, _edit])
@pytest.mark.parametrize("of", [lambda m: m, Holder], ids=["alone", "in Flax's"])
def test_a_write_that_would_be_lost_is_refused(of, write, transform, mode):
    def f(m, x):
        block = getattr(m, "block", m)
        write(block)
        return block(x)

    block = Block(nt.Rngs(0))
    state = jax.tree.map(np.asarray, nt.pure(nt.state(block, nt.Param)))
    with pytest.raises(nt.TraceContextError, match=READ_ONLY):
        transform(f, **mode)(of(block), X)
    assert int(block.calls.value) == 0
    assert int(block.dropout.rngs.count.value) == 0
    assert block.scale.tolist() == block.scales[0].tolist() == [1] * 4
    now = jax.tree.map(np.asarray, nt.pure(nt.state(block, nt.Param)))
    jax.tree.map(np.testing.assert_array_equal, now, state)


@modes
@transforms
@pytest.mark.parametrize("of", [lambda m: m, Holder], ids=["alone", "in Flax's"])
def test_what_is_read_is_as_ever(of, transform, mode):
    def f(m, x):
        return getattr(m, "block", m)(x)

    block = Block(nt.Rngs(0))
    given = transform(f, **mode)(of(block), X)
    np.testing.assert_allclose(given, block(X), rtol=1e-6)


@modes
def test_a_write_under_grad_is_refused(mode):
    def loss(m, write=False):
        if write:
            m.bias.value += 1
        return m(X).sum()

    dense = nt.Linear(4, 4, rngs=nt.Rngs(0))
    gradient = fx.grad(loss, **mode)(dense)
    due = jax.grad(loss)(dense)
    np.testing.assert_array_equal(gradient.kernel[...], due.kernel[...])
    with pytest.raises(nt.TraceContextError, match=READ_ONLY):
        fx.grad(lambda m: loss(m, write=True), **mode)(dense)
    assert dense.bias[...].tolist() == [0] * 4


@modes
def test_what_is_returned_may_be_written(mode):
    def f(block, x):
        block = nt.by_value(block)
        _count(block)
        return block, block(x)

    block = Block(nt.Rngs(0))
    new, _ = fx.jit(f, **mode)(block, X)
    _count(new)
    assert (int(new.calls.value), int(block.calls.value)) == (2, 0)
