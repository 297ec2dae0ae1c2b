"""Layers that both libraries have: the same numbers from the same parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import linen_lift as nn
import nnx_transforms as nnx

X = jax.random.normal(jax.random.key(0), (2, 5, 6, 4))
IDS = jnp.array([[0, 3], [2, 2]])

# The layer of nnx-transforms, that of linen-lift, and the input.
LAYERS = {
    "linear": (
        lambda rngs: nnx.Linear(4, 3, rngs=rngs),
        nn.Dense(3),
        X,
    ),
    "linear without bias": (
        lambda rngs: nnx.Linear(4, 3, use_bias=False, rngs=rngs),
        nn.Dense(3, use_bias=False),
        X,
    ),
    "conv": (
        lambda rngs: nnx.Conv(4, 8, (3, 2), strides=(2, 1), rngs=rngs),
        nn.Conv(8, (3, 2), strides=(2, 1)),
        X,
    ),
    "embed": (lambda rngs: nnx.Embed(5, 3, rngs=rngs), nn.Embed(5, 3), IDS),
    "layer norm": (
        lambda rngs: nnx.LayerNorm(4, rngs=rngs),
        nn.LayerNorm(),
        X,
    ),
    "batch norm": (
        lambda rngs: nnx.BatchNorm(4, use_running_average=False, rngs=rngs),
        nn.BatchNorm(use_running_average=False),
        X,
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layer(name):
    make, module, x = LAYERS[name]
    layer = make(nnx.Rngs(0))
    shapes = jax.eval_shape(module.init, jax.random.key(0), x)
    # Random values under the names that both use.
    keys = iter(jax.random.split(jax.random.key(1), 9))
    params = jax.tree.map(
        lambda p: jax.random.normal(next(keys), p.shape), shapes["params"]
    )
    for parameter, value in params.items():
        getattr(layer, parameter).value = value
    variables = {"params": params}
    if "batch_stats" in shapes:
        variables["batch_stats"] = {"mean": jnp.zeros(4), "var": jnp.ones(4)}
    out, updated = module.apply(variables, x, mutable=["batch_stats"])
    np.testing.assert_allclose(layer(x), out, rtol=1e-5, atol=1e-6)
    for statistic, value in updated.get("batch_stats", {}).items():
        found = getattr(layer, statistic).value
        np.testing.assert_allclose(found, value, rtol=1e-5, atol=1e-6)
