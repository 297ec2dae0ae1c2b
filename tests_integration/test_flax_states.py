"""States of Flax NNX that a loop carries: pytrees of variables, and values."""

import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import nnx_transforms as nt

nnx = pytest.importorskip("flax.nnx")

X = jnp.arange(12.0).reshape(4, 3) / 10


def split():
    return nnx.split(nnx.Linear(3, 2, rngs=nnx.Rngs(0)), nnx.Param)


def values(state):
    return jax.tree.map(np.asarray, nnx.to_pure_dict(state))


def assert_same(a, b):
    assert jax.tree.all(jax.tree.map(np.array_equal, values(a), values(b)))


def trained(scan, run=lambda f: f):
    """Fits a state with optax, which maps it in each step."""
    definition, params = split()
    optimizer = optax.adam(1e-2)

    def loss(params, x):
        return (nnx.merge(definition, params)(x) ** 2).mean()

    def step(carry, x):
        params, state = carry
        value, grads = jax.value_and_grad(loss)(params, x)
        updates, state = optimizer.update(grads, state, params)
        return (optax.apply_updates(params, updates), state), value

    start = params, optimizer.init(params)
    (last, _), losses = run(lambda carry, x: scan(step)(carry, x))(start, X)
    return params, last, losses


@pytest.mark.parametrize("run", [lambda f: f, nt.jit], ids=["eager", "jit"])
def test_a_state_that_is_mapped_in_each_iteration_is_a_value(run):
    start, last, losses = trained(nt.scan, run)
    _, due, due_losses = trained(lambda f: functools.partial(jax.lax.scan, f))
    assert type(last) is nnx.State and isinstance(last["kernel"], nnx.Param)
    assert_same(last, due)
    assert np.array_equal(losses, due_losses)
    assert_same(start, split()[1])  # What came in is as it was.


def test_a_state_beside_a_model_that_shares_parts():
    model = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
    model.tied = model.kernel
    axes = {"in_axes": (nt.Carry, None), "out_axes": nt.Carry}

    def step(state, model):
        return jax.tree.map(lambda x: x + model.tied[...].sum(), state)

    last = nt.scan(step, length=2, **axes)(split()[1], model)
    np.testing.assert_allclose(
        last["bias"][...], 2 * model.kernel[...].sum() * np.ones(2), rtol=1e-6
    )


def doubled(state):
    return jax.tree.map(lambda x: 2 * x + 1, state)


def test_other_loops():
    start = split()[1]
    last = nt.fori_loop(0, 3, lambda i, state: doubled(state), start)
    again = nt.while_loop(
        lambda c: c[1] < 3,
        lambda c: (doubled(c[0]), c[1] + 1),
        (
            start,
            0,
        ),
    )
    assert_same(last, doubled(doubled(doubled(start))))
    assert_same(again[0], last)
    assert again[1] == 3


def test_what_is_written_is_an_object_as_before():
    start = split()[1]

    def step(state, x):
        state["bias"][...] += x
        return state, None

    last, _ = nt.scan(step)(start, jnp.arange(3.0))
    assert last["bias"] is start["bias"]
    assert start["bias"][...].tolist() == [3.0, 3.0]


def both(state, _):
    state["bias"][...] += 1
    return doubled(state), None


def one_anew(state, _):
    state["bias"] = nnx.Param(state["bias"][...])
    return state, None


def test_what_would_be_lost_is_refused():
    with pytest.raises(ValueError, match="wrote to a Param that is carried"):
        nt.scan(both, length=2)(split()[1], None)
    with pytest.raises(ValueError, match="Carry references must be the same"):
        nt.scan(one_anew, length=2)(split()[1], None)
    # A variable that stands at two places is no value.
    shared = nnx.Param(jnp.ones(2))
    state = nnx.State({"a": shared, "b": shared})
    with pytest.raises(ValueError, match="Carry references must be the same"):
        nt.scan(lambda state, _: (doubled(state), None), length=2)(state, None)


def test_a_call_takes_steps_in_proportion_to_the_variables_it_is_given():
    def steps(count):
        found = 0

        def note(frame, event, argument):
            nonlocal found
            found += event == "call"

        variables = [nnx.Param(jnp.ones(2)) for _ in range(count)]
        jitted = nt.jit(lambda variables: 1)
        jitted(variables)
        sys.setprofile(note)
        try:
            jitted(variables)
        finally:
            sys.setprofile(None)
        return found

    assert steps(160) < 5 * steps(40)


def test_what_was_compiled_ahead_of_time_reports_objects_as_their_states():
    model, scale = nnx.Linear(3, 2, rngs=nnx.Rngs(0)), nnx.Param(jnp.ones(2))
    step = nt.jit(lambda model, scale, x: model(x) * scale[...])
    (of_model, of_scale, _), _ = step.lower(model, scale, X).compile().input_shardings
    assert isinstance(of_model, nnx.State) and isinstance(of_scale, nnx.Param)
    nnx.update(model, jax.device_put(nnx.state(model), of_model))
    assert model(X).shape == (4, 2)


def test_the_gradient_of_a_variable_is_where_it_stands_first():
    scale = nnx.Param(jnp.ones(2))
    gradient = nt.grad(lambda a, b: (a[...] * b[...]).sum(), argnums=(0, 1))
    first, second = gradient(scale, scale)
    assert type(first) is nnx.Param and first[...].tolist() == [2.0, 2.0]
    assert isinstance(second, nnx.State) and len(second) == 0
