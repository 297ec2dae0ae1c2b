"""What the tests of compiled functions run on."""

import jax
import jax.numpy as jnp
import numpy as np

import graphcore as gc
import nnx_transforms as nnx


class Block(nnx.Module):
    def __init__(self, seed):
        self.w = nnx.Param(jnp.arange(3.0) + seed)
        self.n = nnx.BatchStat(jnp.array(0))
        self.rate = 2


class Model(nnx.Module):
    def __init__(self):
        self.blocks = nnx.List([Block(0), Block(1)])
        self.plain = [Block(2), {"deep": Block(3)}]
        self.tied = self.blocks[0].w
        self.me = self

    def __call__(self, x):
        for block in self.blocks:
            block.n.value += 1
            x = x * block.w.value * block.rate
        return x


def snapshot(*nodes):
    graphdef, state = gc.split(nnx.List(nodes))
    return graphdef, jax.tree.map(np.asarray, state.to_pure_dict())


def assert_unchanged(before, *nodes):
    graphdef, values = snapshot(*nodes)
    assert graphdef == before[0]
    jax.tree.map(np.testing.assert_array_equal, values, before[1])


def counting(f):
    """A function and the list of its traces."""
    traces = []

    def traced(*args, **kwargs):
        traces.append(None)
        return f(*args, **kwargs)

    return traced, traces
