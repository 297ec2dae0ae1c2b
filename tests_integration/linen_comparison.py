"""What the programs consist of that run with linen-lift and with Flax Linen.

A case is a function of the library; what it returns is compared: the structure of
containers, the values of arrays, texts, and the class of an error that `raised` caught.
Initial values are constants, because the two libraries draw different keys.
"""

from typing import Any

import flax.core
import flax.linen
import jax
import jax.numpy as jnp
import numpy as np

import linen_lift

KEYS = {"params": jax.random.key(0), "noise": jax.random.key(1)}
X = jnp.array([[0.5, -1.0, 2.0]])


# --- what cases are made of ------------------------------------------------------------


def ramp(scale=1.0):
    """An initializer of numbers that depend on the shape alone."""

    def init(key, shape=(3,), dtype=jnp.float32):
        size = int(np.prod(shape))
        return scale * jnp.linspace(0.1, 1.0, size, dtype=dtype).reshape(shape)

    return init


def dense(nn, features=3, **fields):
    return nn.Dense(features, kernel_init=ramp(), bias_init=ramp(0.3), **fields)


def raised(fn, *args, **kwargs):
    """The error of a call; the result is "no error" if there is none."""
    try:
        fn(*args, **kwargs)
    except Exception as error:
        return error
    return "no error"


def changed(variables):
    """Other values for all variables."""
    return jax.tree.map(lambda x: x * 1.5 + 0.25, variables)


def run(module, *args, mutable=("stats", "cache", "intermediates"), keys=KEYS, **kwargs):
    """Initial variables, and what the module does with others."""
    out, variables = module.init_with_output(keys, *args, **kwargs)
    other = changed(variables)
    fixed = module.apply(other, *args, rngs=keys, **kwargs)
    again = module.apply(other, *args, rngs=keys, mutable=list(mutable), **kwargs)
    return out, variables, fixed, again


def pattern(*keys):
    """Which of some keys are equal."""
    seen = {}
    rows = [row for k in keys for row in np.asarray(jax.random.key_data(k)).reshape(-1, 2)]
    return [seen.setdefault(tuple(row), len(seen)) for row in rows]


def same_error(ours, theirs):
    """Whether `except` clauses for the other error also catch ours."""
    known = {cls.__name__ for cls in type(ours).__mro__}
    library = type(theirs).__module__.startswith("flax")
    return type(theirs).__name__ in known or (
        not library and isinstance(ours, type(theirs))
    )


def alike(ours, theirs, path=""):
    if isinstance(theirs, Exception) or isinstance(ours, Exception):
        assert isinstance(ours, Exception) and isinstance(theirs, Exception), (
            path,
            ours,
            theirs,
        )
        assert same_error(ours, theirs), (path, repr(ours), repr(theirs))
    elif hasattr(theirs, "items"):
        assert hasattr(ours, "items") and set(ours) == set(theirs), (path, ours, theirs)
        for name in theirs:
            alike(ours[name], theirs[name], f"{path}/{name}")
    elif isinstance(theirs, (tuple, list)):
        assert isinstance(ours, type(theirs)) or type(ours).__name__ == (
            type(theirs).__name__
        ), (path, ours, theirs)
        assert len(ours) == len(theirs), (path, ours, theirs)
        for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            alike(a, b, f"{path}/{i}")
    elif hasattr(theirs, "shape"):
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape, (path, ours, theirs)
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=1e-6, err_msg=path)
    else:
        assert ours == theirs, (path, ours, theirs)


def compare(fn):
    """Runs a case with both libraries."""
    alike(fn(linen_lift), fn(flax.linen))


def around(nn):
    """A class, in a library, that calls what it is given."""

    class Around(nn.Module):
        inner: Any
        scale: float = 1.0

        def __call__(self, x):
            return self.scale * self.inner(x)

    return Around
