"""`Optimizer` over transformations of optax, against optax by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import Net, arrays, assert_same, data, loss

import nnx_transforms as nnx

optax = pytest.importorskip("optax")


def kernels(params):
    return jax.tree.map(lambda p: jnp.ndim(p) > 1, params)


def labels(params):
    return {name: "body" if name != "last" else "head" for name in params}


def scheduled():
    return optax.adamw(optax.warmup_cosine_decay_schedule(0.0, 0.1, 2, 8))


TRANSFORMATIONS = {
    "schedule": scheduled,
    "clipped chain": lambda: optax.chain(
        optax.clip_by_global_norm(0.5), optax.sgd(0.1, momentum=0.9, nesterov=True)
    ),
    "masked": lambda: optax.chain(
        optax.masked(optax.add_decayed_weights(0.1), kernels), optax.adam(0.01)
    ),
    "multi_transform": lambda: optax.multi_transform(
        {"body": optax.adam(0.01), "head": optax.set_to_zero()}, labels
    ),
    "inject_hyperparams": lambda: optax.inject_hyperparams(optax.adam)(
        optax.linear_schedule(0.1, 0.0, 5)
    ),
    "MultiSteps": lambda: optax.MultiSteps(scheduled(), every_k_schedule=2),
    "second order": lambda: optax.adafactor(0.05),
}


def by_hand(model, tx, steps):
    """Training with nothing but `split`, `merge`, `jax.grad` and optax."""
    graphdef, params, rest = nnx.split(model, nnx.Param, ...)
    params, rest = params.to_pure_dict(), rest.to_pure_dict()
    abstract = nnx.split(model, nnx.Param, ...)[1:]
    state = tx.init(params)

    def pure_loss(params, rest, x, y):
        states = []
        for like, pure in zip(abstract, (params, rest), strict=True):
            like = jax.tree.map(lambda leaf: leaf, like)
            like.replace_by_pure_dict(pure)
            states.append(like)
        merged = nnx.merge(graphdef, *states)
        value = loss(merged, x, y)
        return value, nnx.split(merged, nnx.Param, ...)[2].to_pure_dict()

    @jax.jit
    def step(params, rest, state, x, y):
        grads, rest = jax.grad(pure_loss, has_aux=True)(params, rest, x, y)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), rest, state

    for _ in range(steps):
        params, rest, state = step(params, rest, state, *data())
    return jax.tree.map(np.asarray, params), state


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_training_is_that_of_optax(name):
    make, steps = TRANSFORMATIONS[name], 5
    traces = []
    model = Net()
    optimizer = nnx.Optimizer(model, make())

    @nnx.jit(donate_state=True)
    def step(model, optimizer, x, y):
        traces.append(None)
        grads = nnx.grad(loss)(model, x, y)
        optimizer.update(grads)

    for _ in range(steps):
        step(model, optimizer, *data())
    params, state = by_hand(Net(), make(), steps)
    assert_same(arrays(model, nnx.Param), params, rtol=2e-4, atol=1e-6)
    found = jax.tree.leaves(optimizer.opt_state)
    for ours, theirs in zip(found, jax.tree.leaves(state), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-3, atol=1e-6)
    assert int(optimizer.step.value) == steps
    assert int(model.calls.value) == steps
    # One trace finds what is overwritten, so is donated; one is compiled.
    assert len(traces) == 2


def test_a_rate_that_is_set_from_outside():
    model = Net()
    tx = optax.inject_hyperparams(optax.sgd)(learning_rate=0.1)
    optimizer = nnx.Optimizer(model, tx)

    @nnx.jit
    def step(optimizer, x, y):
        optimizer.update(nnx.grad(loss)(optimizer.model, x, y))

    step(optimizer, *data())
    state = optimizer.opt_state
    state.hyperparams["learning_rate"] = jnp.float32(0.0)
    optimizer.opt_state = state
    before = arrays(model, nnx.Param)
    step(optimizer, *data())
    assert nnx.explain_recompile(step) == []
    assert_same(arrays(model, nnx.Param), before, rtol=0)


def test_the_loss_is_handed_on_to_a_transformation_that_wants_it():
    model = Net()
    tx = optax.chain(optax.sgd(0.0), optax.contrib.reduce_on_plateau(patience=1))
    optimizer = nnx.Optimizer(model, tx)

    @nnx.jit
    def step(optimizer, value, x, y):
        grads = nnx.grad(loss)(optimizer.model, x, y)
        optimizer.update(optimizer.model, grads, value=value)

    for _ in range(4):
        step(optimizer, jnp.array(1.0), *data())
    assert float(optimizer.opt_state[1].scale) < 1


def test_only_what_the_filter_selects_is_trained():
    model = Net()
    optimizer = nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.PathContains("last"))
    before = arrays(model, nnx.Param)

    @nnx.jit
    def step(model, optimizer, x, y):
        of = nnx.DiffState(0, optimizer.wrt)
        optimizer.update(model, nnx.grad(loss, argnums=of)(model, x, y))

    step(model, optimizer, *data())
    after = arrays(model, nnx.Param)
    assert not np.allclose(before.pop("last")["kernel"], after.pop("last")["kernel"])
    assert_same(before, after, rtol=0)
