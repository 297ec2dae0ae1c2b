"""Every ordered pair of lifted transforms composes, as JAX's own do by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pair_references import BY_HAND, LEADING, REFUSED

import linen_lift as nn

KEYS = {"params": jax.random.key(0), "noise": jax.random.key(1)}
X = jnp.array([0.1, 0.4, -0.3])
N = 2  # as in pair_references


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
        return nn.cond(x[0] > 0, f, lambda m, x: f(m, -x), m, x)

    return run


def switch(f):
    def run(m, x):
        if m.is_initializing():
            return f(m, x)
        branches = [f, lambda m, x: f(m, 2 * x), lambda m, x: f(m, 3 * x)]
        return nn.switch(jnp.int32(1), branches, m, x)

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


class Model(nn.Module):
    fn: object

    @nn.compact
    def __call__(self, x):
        return self.fn(self, x)


def functional(fn):
    """`(variables, rngs, x) -> (out, updated statistics)`."""

    def apply(variables, rngs, x):
        out, updated = Model(fn).apply(variables, x, rngs=rngs, mutable="stats")
        return out, updated["stats"]

    return apply


def values(shapes):
    """Other values for all variables than their initial ones."""
    leaves, treedef = jax.tree.flatten(shapes)
    rng = np.random.default_rng(7)
    return treedef.unflatten(
        [jnp.asarray(rng.normal(0, 0.5, leaf.shape), leaf.dtype) for leaf in leaves]
    )


@pytest.mark.parametrize("inner", TRANSFORMS)
@pytest.mark.parametrize("outer", TRANSFORMS)
def test_pair(outer, inner):
    fn = TRANSFORMS[outer](TRANSFORMS[inner](leaf))
    shapes = jax.eval_shape(Model(fn).init, KEYS, X)
    stacked = LEADING.get(outer, ()) + LEADING.get(inner, ())
    assert jax.tree.map(jnp.shape, shapes) == {
        "params": {"w": (*stacked, 3, 3)},
        "stats": {"n": stacked},
    }
    variables = values(shapes)
    by_hand = BY_HAND[outer](BY_HAND[inner](functional(leaf)))
    lifted = functional(fn)
    if (outer, inner) in REFUSED:
        error, message = REFUSED[outer, inner]
        for composed in (by_hand, lifted):
            with pytest.raises(error, match=message):
                composed(variables, KEYS, X)
        return
    # In one program, which takes less time to compile than two.
    both = jax.jit(lambda *args: (lifted(*args), by_hand(*args)))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6),
        *both(variables, KEYS, X),
    )


def test_all_transforms_are_there():
    assert list(BY_HAND) == list(TRANSFORMS) and len(TRANSFORMS) == 17
