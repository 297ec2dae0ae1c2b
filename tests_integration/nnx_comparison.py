"""Layers of both libraries, compared: initial values, outputs, gradients, updates."""

import functools

import jax
import jax.numpy as jnp
from comparison import close
from flax import nnx as flax_nnx

import nnx_transforms as nnx


def normal(*shape, seed=7, dtype=jnp.float32):
    return jax.random.normal(jax.random.key(seed), shape).astype(dtype)


def leaves(lib, model, kind=...):
    """The values of a model's variables by their paths."""
    state = lib.state(model, kind)
    flat = state.flat_state() if lib is nnx else lib.to_flat_state(state)
    return {path: value_of(lib, leaf) for path, leaf in flat}


def value_of(lib, leaf):
    value = leaf
    if not isinstance(leaf, jax.Array):
        value = leaf.value if lib is nnx else leaf.get_value()
    if isinstance(value, jax.Array) and jnp.issubdtype(
        value.dtype, jax.dtypes.prng_key
    ):
        return jax.random.key_data(value)
    return value


def same(make, *args, tolerance=2e-5, **kwargs):
    """Compares the model that `make` builds of each library.

    Args:
        make: takes a library and its random streams.
        *args: for the call.
        tolerance: relative and absolute.
        **kwargs: for both calls.
    """
    ours, theirs = make(nnx, nnx.Rngs(0)), make(flax_nnx, flax_nnx.Rngs(0))
    close(leaves(nnx, ours), leaves(flax_nnx, theirs), 1e-6)
    randomize(ours, theirs)
    (ours, ours_state), (theirs, theirs_state) = nnx.split(ours), flax_nnx.split(theirs)

    # One program for both, and one that is quick to compile.
    @functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
    def both(ours_state, theirs_state):
        return run(nnx, nnx.merge(ours, ours_state), args, kwargs), run(
            flax_nnx, flax_nnx.merge(theirs, theirs_state), args, kwargs
        )

    found, expected = both(ours_state, theirs_state)
    for mine, other, scale in zip(found, expected, (1, 50, 1), strict=True):
        close(mine, other, scale * tolerance)


def randomize(ours, theirs):
    """The same other values for all variables, above zero where they are vectors."""
    of_flax = dict(flax_nnx.to_flat_state(flax_nnx.state(theirs)))
    variables = nnx.variables(ours).flat_state()
    keys = jax.random.split(jax.random.key(9), max(len(of_flax), 1))
    for key, (path, variable) in zip(keys, variables, strict=True):
        if path == ("mask",):  # an array, and the same
            continue
        x = variable.value
        if jnp.issubdtype(x.dtype, jnp.inexact):
            new = jax.random.uniform(key, x.shape, minval=0.1) - 0.3 * (x.ndim > 1)
            variable.value = new.astype(x.dtype)
            of_flax[path].set_value(new.astype(x.dtype))


def run(lib, model, args, kwargs):
    """Output, gradients and variables afterwards."""

    def loss(model):
        out = model(*args, **kwargs)
        total = sum(jnp.sum(jnp.sin(x)) for x in jax.tree.leaves(out))
        return total.astype(jnp.float32), out

    (_, out), grads = lib.value_and_grad(loss, has_aux=True)(model)
    flat = grads.flat_state() if lib is nnx else lib.to_flat_state(grads)
    grads = {path: value_of(lib, leaf) for path, leaf in flat}
    return out, grads, leaves(lib, model)
