"""Modules of Flax's own bridge between NNX and Linen, under our transforms."""

import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx as flax_nnx
from flax.nnx import bridge

import graphcore as gc
import nnx_transforms as nnx

X = jax.random.normal(jax.random.key(0), (4, 2))


def around(transforms):
    """Linen's module as a submodule that is mapped, with variables made by a call."""

    class Mapped(flax_nnx.Module):
        def __init__(self):
            dense = flax.linen.Dense(3, use_bias=False)
            self.dense = bridge.ToNNX(dense, rngs=flax_nnx.Rngs(0))

        def __call__(self, x):
            split = transforms.split_rngs(splits=4)
            mapped = transforms.vmap(lambda dense, x: dense(x))
            return split(mapped)(self.dense, x)

    return Mapped()


def test_variables_are_made_inside_of_a_transform():
    theirs, ours = around(flax_nnx), around(nnx)
    for model in (theirs, ours):
        bridge.lazy_init(model, X)
    np.testing.assert_array_equal(ours.dense.kernel[...], theirs.dense.kernel[...])
    assert ours.dense.kernel.shape == (4, 2, 3)
    np.testing.assert_array_equal(ours(X), theirs(X))


@pytest.mark.parametrize("is_first", [True, False])
def test_a_model_is_called_as_being_initialized_only_while_it_is(is_first):
    model = bridge.ToNNX(flax.linen.Dense(3), rngs=flax_nnx.Rngs(0))
    call = nnx.jit(lambda model, x: model(x))
    if is_first:
        bridge.lazy_init(model, X)
        call(model, X)
    # What was compiled for one state does not serve the other.
    initialize = nnx.jit(lambda model, x: bridge.lazy_init(model, x) and None)
    initialize(model, X)
    kernel = jnp.array(model.kernel[...])
    np.testing.assert_array_equal(call(model, X), X @ kernel + model.bias[...])
    made = []

    class Around(flax_nnx.Module):
        def __init__(self):
            self.inner = model

        def __call__(self, x):
            out = call(self.inner, x)
            made.append(jnp.array(self.inner.kernel[...]))
            return out

    # Other keys, under the name that this release has for them.
    rngs = next(x for x in vars(model).values() if isinstance(x, flax_nnx.Rngs))
    rngs.params()
    bridge.lazy_init(Around(), X)
    assert not (made[0] == kernel).all()
    call(model, X)
    np.testing.assert_array_equal(model.kernel[...], made[0])


def test_flags_cross_a_boundary_with_their_object():
    class Net(bridge.Module):
        pass

    def state_of(net):
        return next(x for name, x in vars(net).items() if name.endswith("__state"))

    seen = []

    @nnx.jit
    def flip(net):
        state = state_of(net)
        seen.append((state.initializing, state.is_setup))
        state._initializing, state._is_setup = not state.initializing, True

    net = Net()
    state = state_of(net)
    for _ in range(2):
        flip(net)
    assert seen == [(False, False), (True, True)]
    assert (state.initializing, state.is_setup) == (False, True)
    assert state_of(net) is state
    copy = gc.clone(net)
    assert state_of(copy).is_setup and not state_of(copy).initializing
