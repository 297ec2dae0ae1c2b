"""Random programs of modules give what Flax Linen gives.

Where Flax fails with an error that is not its own, leaves a tracer in a variable, or
refuses what works here, there is nothing to compare.
"""

import flax.linen
import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from linen_comparison import alike, changed, pattern
from linen_programs import module_class, programs

import linen_lift

KEYS = {"params": jax.random.key(0), "noise": jax.random.key(1)}
X = jnp.array([0.1, 0.4, 0.8])
MUTABLE = ["stats", "draws", "intermediates"]


def outcome(fn):
    """What a call returns or raises, and which of the drawn keys are equal."""
    try:
        out, variables = fn()
        variables = {**variables}
        draws = jax.tree.leaves(variables.pop("draws", {}))
        return (out, variables), [pattern(*map(jax.random.wrap_key_data, draws))]
    except Exception as error:
        return error, None


def same(fn):
    """Compares what a function of a library gives; returns it, or None for an error."""
    ours, our_keys = outcome(lambda: fn(linen_lift))
    theirs, their_keys = outcome(lambda: fn(flax.linen))
    leaked = any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(theirs))
    if not leaked and not isinstance(theirs, Exception):
        alike(ours, theirs)
        assert our_keys == their_keys
        return theirs
    return None  # Of several faults, which one is met first may differ.


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=10)
@given(programs)
def test_a_random_program(program):
    def init(nn):
        return module_class(nn, program)().init_with_output(KEYS, X, mutable=True)

    made = same(init)
    if made is None:
        return
    variables = changed({c: made[1].get(c, {}) for c in ("params", "stats")})

    def differentiated(nn):
        model = module_class(nn, program)()

        def loss(params):
            out, updated = model.apply(
                {**variables, "params": params}, X, rngs=KEYS, mutable=MUTABLE
            )
            return jnp.sin(out).sum(), (out, updated)

        grads, (out, updated) = jax.grad(loss, has_aux=True)(variables["params"])
        return (grads, out), updated

    same(differentiated)
    same(lambda nn: (module_class(nn, program)().apply(variables, X, rngs=KEYS), {}))
