"""Transforms of one's own, over module classes and methods."""

import functools
import gc
import weakref

import jax
import jax.numpy as jnp
import pytest

import linen_lift as nn

KEYS = {"params": jax.random.key(0)}
X = jnp.arange(8.0).reshape(4, 2)


def by_row(fn, scale=1):
    """Runs a function for each row, with parameters of its own."""
    each = nn.lift.vmap(fn, variable_axes={"params": 0}, split_rngs={"params": True})
    return lambda scopes, x, *args: scale * each(scopes, x, *args)


def test_classes_partials_and_methods():
    class Two(nn.Module):
        def setup(self):
            self.inner = nn.Dense(3)

        def first(self, x):
            return self.inner(x)

        def second(self, x):
            return 2 * self.inner(x)

        def lifted(self, x):
            return nn.lift_transform(by_row, Two.first)(self, x)

    Rows = nn.lift_transform(by_row, nn.Dense)
    variables = Rows(3).init(KEYS, X)
    assert jax.tree.map(jnp.shape, variables) == {
        "params": {"kernel": (4, 2, 3), "bias": (4, 3)}
    }
    out = jnp.einsum("ij,ijk->ik", X, variables["params"]["kernel"])
    assert jnp.allclose(Rows(3).apply(variables, X), out)
    partial = nn.lift_transform(by_row, functools.partial(nn.Dense, 3), scale=2)
    assert jnp.allclose(partial().apply(variables, X), 2 * out)
    inner = {"params": {"inner": variables["params"]}}
    methods = {"first": {}, "second": {"scale": 5}}
    chosen = nn.lift_transform(by_row, Two, methods=methods)()
    assert jnp.allclose(chosen.apply(inner, X, method="first"), out)
    assert jnp.allclose(chosen.apply(inner, X, method="second"), 10 * out)
    assert jnp.allclose(Two().apply(inner, X, method="lifted"), out)
    with pytest.raises(nn.errors.TransformTargetError, match="lift_transform"):
        nn.lift_transform(by_row, Two())


def test_classes_are_made_once_for_equal_transforms():
    lift = functools.partial(nn.lift_transform, by_row, nn.Dense)
    assert lift() is lift() and lift(1) is lift(1) and lift(scale=2) is lift(scale=2)
    assert len({lift(), lift(1), lift(True), lift(1.0), lift(scale=1)}) == 5


def test_what_a_transform_closes_over_is_not_kept():
    class Held:
        pass

    def run(held):
        def of_a_moment(fn):
            return lambda *args: (held, fn(*args))[1]

        assert nn.lift_transform(of_a_moment, nn.Dense)(3).init(KEYS, X)
        return weakref.ref(held)

    reference = run(Held())
    gc.collect()
    assert reference() is None
