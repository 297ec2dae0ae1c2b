"""What a call leaves behind is freed without the cyclic garbage collector."""

import gc
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import pytest

import linen_lift as nn

KEY, X = jax.random.key(0), jnp.ones((2, 3))


class Block(nn.Module):
    inner: Any

    def setup(self):
        self.dense = nn.Dense(3)
        self.scale = self.param("scale", nn.initializers.ones, (3,))

    def __call__(self, x):
        return self.inner(self.dense(x)) * self.scale


class Net(nn.Module):
    wrap: Any = staticmethod(lambda cls: cls)

    @nn.compact
    def __call__(self, x):
        x = self.wrap(Block)(nn.Dense(3))(x)
        x = nn.BatchNorm(use_running_average=False)(x)
        self.sow("intermediates", "x", x)
        return x


def scanned(cls):
    class Step(nn.Module):
        inner: Any

        @nn.compact
        def __call__(self, x):
            def body(block, x, _):
                return block(x), None

            axes, split = {"params": 0}, {"params": True}
            return nn.scan(body, axes, split_rngs=split, length=2)(
                cls(self.inner), x, None
            )[0]

    return Step


WRAPS = {
    "plain": lambda cls: cls,
    "remat": nn.remat,
    "jit": nn.jit,
    "scan": scanned,
    "vmap": lambda cls: nn.vmap(cls, {"params": 0}, {"params": True}),
}


@pytest.fixture
def no_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
def test_results_are_freed_when_dropped(no_collector, wrap):
    model = Net(wrap)

    def use():
        variables = model.init(KEY, X)
        model.apply(variables, X, mutable=["batch_stats"])
        model.apply(variables, X, mutable=True, capture_intermediates=True)

    use()
    use()
    before = len(jax.live_arrays())
    for _ in range(3):
        use()
    assert len(jax.live_arrays()) <= before


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
def test_no_tracer_leaks(no_collector, wrap):
    model = Net(wrap)

    @jax.jit
    def run(key, x):
        out, variables = model.init_with_output(key, x)
        return model.apply(variables, x, mutable=["batch_stats"])[0] + out

    # JAX's check collects garbage first; a cycle must not need that.
    with mock.patch.object(gc, "collect", return_value=0), jax.checking_leaks():
        run(KEY, X)


def test_a_child_outlives_its_parent(no_collector):
    class Outer(nn.Module):
        def setup(self):
            self.dense = nn.Dense(2)

    dense = Outer().bind({"params": {"dense": {"kernel": jnp.ones((3, 2))}}}).dense
    assert dense.parent is None
    assert dense.path == ("dense",)
    assert dense.variables["params"]["kernel"].shape == (3, 2)
