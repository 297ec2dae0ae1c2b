"""Every ordered pair of lifted transforms composes."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import linen_lift as nn

KEYS = {"params": jax.random.key(0), "noise": jax.random.key(1)}
X = jnp.array([0.1, 0.4, -0.3])
N = 2


def leaf(m, x):
    """The innermost function: it declares, updates and draws."""
    w = m.param("w", nn.initializers.normal(0.5), (3, 3))
    n = m.variable("stats", "n", jnp.zeros, ())
    if not m.is_initializing() and n.is_mutable():
        n.value = n.value + 1
    noise = jax.random.normal(m.make_rng("noise"), x.shape)
    return jnp.tanh(x @ w) * (1 + n.value) + 0.1 * noise


AXES = {"params": 0, "stats": 0}
SPLIT = {"params": True, "noise": True}


def simple(transform, **options):
    return lambda f: transform(f, **options)


def vmap(f):
    mapped = nn.vmap(f, AXES, SPLIT)
    return lambda m, x: mapped(m, jnp.stack([x] * N)).mean(0)


def scan(f):
    loop = nn.scan(lambda m, c: (f(m, c), None), AXES, split_rngs=SPLIT, length=N)
    return lambda m, x: loop(m, x)[0]


def while_loop(f):
    def run(m, x):
        if m.is_initializing():
            return f(m, x)
        step = lambda m, c: (c[0] + 1, f(m, c[1]))
        split = {"noise": True}
        return nn.while_loop(
            lambda m, c: c[0] < N, step, m, (0, x), "stats", True, split
        )[1]

    return run


def cond(f):
    def run(m, x):
        if m.is_initializing():
            return f(m, x)
        return nn.cond(x[0] > 0, f, f, m, x)

    return run


def switch(f):
    def run(m, x):
        if m.is_initializing():
            return f(m, x)
        return nn.switch(jnp.int32(1), [f, f], m, x)

    return run


def vjp(f):
    def run(m, x):
        out, pull_back = nn.vjp(f, m, x)
        params, x_ct = pull_back(jnp.ones_like(out))
        return out + x_ct + sum(jnp.sum(p) for p in jax.tree.leaves(params))

    return run


def jvp(f):
    return lambda m, x: sum(nn.jvp(f, m, (x,), (x,), {}))


def value_and_grad(f):
    def run(m, x):
        value, (x_grad,) = nn.value_and_grad(lambda m, x: f(m, x).sum(), m, x)
        return value + x_grad

    return run


def grad(f):
    return lambda m, x: nn.grad(lambda m, x: f(m, x).sum(), m, x)[0]


def custom_vjp(f):
    bwd = lambda pull_back, g: pull_back(2 * g)
    return nn.custom_vjp(f, lambda m, x: nn.vjp(f, m, x), bwd)


def map_variables(f):
    double = lambda cols: jax.tree.map(lambda a: 2 * a, cols)
    halve = lambda cols: jax.tree.map(lambda a: a / 2, cols)
    return nn.map_variables(f, "params", double, halve, init=True)


TRANSFORMS = {
    "vmap": vmap,
    "scan": scan,
    "while_loop": while_loop,
    "cond": cond,
    "switch": switch,
    "remat": simple(nn.remat),
    "remat_scan": simple(nn.remat_scan, lengths=(1, N)),
    "jit": simple(nn.jit),
    "vjp": vjp,
    "jvp": jvp,
    "value_and_grad": value_and_grad,
    "grad": grad,
    "custom_vjp": custom_vjp,
    "map_variables": map_variables,
    "fold_rngs": simple(nn.fold_rngs),
    "named_call": simple(nn.named_call),
    "add_metadata_axis": simple(nn.add_metadata_axis, variable_axes={"params": 0}),
}

# What these return is not differentiable in reverse by JAX itself.
NOT_REVERSIBLE = {"while_loop"}
REVERSE = {"vjp", "value_and_grad", "grad"}


class Model(nn.Module):
    fn: object

    @nn.compact
    def __call__(self, x):
        return self.fn(self, x)


@pytest.mark.parametrize("outer", TRANSFORMS)
def test_pairs(outer):
    for inner in TRANSFORMS:
        fn = TRANSFORMS[outer](TRANSFORMS[inner](leaf))
        model = Model(fn)
        apply = lambda v: model.apply(v, X, rngs=KEYS, mutable="stats")
        variables = jax.eval_shape(model.init, KEYS, X)
        assert {"params", "stats"} == set(variables), (outer, inner)
        if (outer in REVERSE and inner in NOT_REVERSIBLE) or (
            outer == "custom_vjp" and inner in NOT_REVERSIBLE
        ):
            continue  # JAX refuses the same without modules
        with jax.checking_leaks():
            shape, updated = jax.eval_shape(apply, variables)
        assert shape.shape == X.shape, (outer, inner)
        assert jax.tree.structure(updated["stats"]) == jax.tree.structure(
            variables["stats"]
        ), (outer, inner)
        assert jax.tree.map(jnp.shape, updated["stats"]) == jax.tree.map(
            jnp.shape, variables["stats"]
        )


# Transforms that change nothing but how things are computed.
TRANSPARENT = [
    "remat",
    "jit",
    "fold_rngs",
    "named_call",
    "cond",
    "switch",
    "custom_vjp",
]


@pytest.mark.parametrize("outer", TRANSPARENT)
def test_pairs_of_transparent_transforms_change_no_value(outer):
    variables = Model(leaf).init(KEYS, X)
    expected = Model(leaf).apply(variables, X, rngs=KEYS, mutable="stats")
    for inner in TRANSPARENT:
        fn = TRANSFORMS[outer](TRANSFORMS[inner](leaf))
        found = Model(fn).apply(variables, X, rngs=KEYS, mutable="stats")
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, 1e-6), found, expected
        )


def test_all_pairs_are_there():
    assert len(list(itertools.product(TRANSFORMS, TRANSFORMS))) == 17 * 17
