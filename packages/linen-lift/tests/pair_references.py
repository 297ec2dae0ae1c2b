"""By-hand counterparts of the lifted transforms that `test_pairs` composes.

Each takes and gives a pure function `(variables, rngs, x) -> (out, statistics)`, and is
written with JAX alone, so that any two of them compose without a module.
"""

import jax
import jax.numpy as jnp
from jax import lax

N = 2

# The axes that a transform puts in front of every variable.
LEADING = {"vmap": (N,), "scan": (N,), "remat_scan": (1, N)}


def unchanged(f):
    return f


def split(rngs, n):
    return {name: jax.random.split(key, n) for name, key in rngs.items()}


def vmap(f):
    def run(variables, rngs, x):
        xs = jnp.stack([x] * N)
        out, stats = jax.vmap(f)(variables, split(rngs, N), xs)
        return out.mean(0), stats

    return run


def loop(f, n):
    def run(variables, rngs, x):
        body = lambda x, own: f(*own, x)
        return lax.scan(body, x, (variables, split(rngs, n)), length=n)

    return run


def while_loop(f):
    def run(variables, rngs, x):
        def body(state):
            i, stats, x = state
            keys = {**rngs, "noise": jax.random.fold_in(rngs["noise"], i)}
            x, stats = f({**variables, "stats": stats}, keys, x)
            return i + 1, stats, x

        start = (jnp.uint32(0), variables["stats"], x)
        _, stats, x = lax.while_loop(lambda state: state[0] < N, body, start)
        return x, stats

    return run


def cond(f):
    def run(variables, rngs, x):
        negated = lambda v, r, x: f(v, r, -x)
        return lax.cond(x[0] > 0, f, negated, variables, rngs, x)

    return run


def switch(f):
    return lambda variables, rngs, x: f(variables, rngs, 2 * x)


def of_params(f, variables, rngs):
    """`f` as a function of the parameters and the input."""
    return lambda params, x: f({**variables, "params": params}, rngs, x)


def vjp(f):
    def run(variables, rngs, x):
        pure = of_params(f, variables, rngs)
        out, pull_back, stats = jax.vjp(pure, variables["params"], x, has_aux=True)
        params, x_ct = pull_back(jnp.ones_like(out))
        return out + x_ct + sum(jnp.sum(p) for p in jax.tree.leaves(params)), stats

    return run


def jvp(f):
    def run(variables, rngs, x):
        pure = lambda x: f(variables, rngs, x)
        out, tangent, stats = jax.jvp(pure, (x,), (x,), has_aux=True)
        return out + tangent, stats

    return run


def scalar(f, variables, rngs):
    def total(x):
        out, stats = f(variables, rngs, x)
        return out.sum(), stats

    return total


def value_and_grad(f):
    def run(variables, rngs, x):
        total = jax.value_and_grad(scalar(f, variables, rngs), has_aux=True)
        (value, stats), gradient = total(x)
        return value + gradient, stats

    return run


def grad(f):
    def run(variables, rngs, x):
        return jax.grad(scalar(f, variables, rngs), has_aux=True)(x)

    return run


def custom_vjp(f):
    """Twice the cotangents of the parameters and the input."""

    @jax.custom_vjp
    def primal(variables, rngs, x):
        return f(variables, rngs, x)

    def forward(variables, rngs, x):
        pure = of_params(f, variables, rngs)
        out, pull_back, stats = jax.vjp(pure, variables["params"], x, has_aux=True)
        return (out, stats), (pull_back, variables["stats"])

    def backward(left, cotangents):
        pull_back, stats = left
        params, x = pull_back(2 * cotangents[0])
        return {"params": params, "stats": jax.tree.map(jnp.zeros_like, stats)}, None, x

    primal.defvjp(forward, backward)
    return primal


def map_variables(f):
    def run(variables, rngs, x):
        params = jax.tree.map(lambda a: 2 * a, variables["params"])
        return f({**variables, "params": params}, rngs, x)

    return run


BY_HAND = {
    "vmap": vmap,
    "scan": lambda f: loop(f, N),
    "while_loop": while_loop,
    "cond": cond,
    "switch": switch,
    "remat": jax.checkpoint,
    "remat_scan": lambda f: loop(loop(jax.checkpoint(f), N), 1),
    "jit": jax.jit,
    "vjp": vjp,
    "jvp": jvp,
    "value_and_grad": value_and_grad,
    "grad": grad,
    "custom_vjp": custom_vjp,
    "map_variables": map_variables,
    "fold_rngs": unchanged,
    "named_call": unchanged,
    "add_metadata_axis": unchanged,
}

# What JAX refuses, with modules and without.
REFUSED = {
    **{
        (reverse, "while_loop"): (ValueError, "Reverse-mode differentiation")
        for reverse in ("vjp", "value_and_grad", "grad")
    },
    ("jvp", "custom_vjp"): (TypeError, "forward-mode"),
}
