"""linen_lift beside nnx_transforms, and both with optax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import data

import linen_lift as nn
import nnx_transforms as nnx

optax = pytest.importorskip("optax")


class Mlp(nn.Module):
    width: int = 16

    @nn.compact
    def __call__(self, x, train=True):
        seen = self.variable("counts", "seen", lambda: jnp.array(0))
        if not self.is_initializing():
            seen.value += 1
        x = nn.remat(nn.Dense)(self.width)(x)
        x = jax.nn.tanh(x)
        x = nn.Dropout(0.1, deterministic=not train)(x)
        return nn.Dense(1)(x)[:, 0]


def test_variables_of_a_module_are_trained_with_optax():
    module, (x, y) = Mlp(), data()
    variables = module.init({"params": jax.random.key(0)}, x, train=False)
    tx = optax.adam(0.02)
    state = tx.init(variables["params"])

    @jax.jit
    def step(variables, state, key):
        def loss(params):
            out, updates = module.apply(
                {**variables, "params": params},
                x,
                rngs={"dropout": key},
                mutable=["counts"],
            )
            return jnp.mean((out - y) ** 2), updates

        (value, updates), grads = jax.value_and_grad(loss, has_aux=True)(
            variables["params"]
        )
        change, state = tx.update(grads, state, variables["params"])
        params = optax.apply_updates(variables["params"], change)
        return {**variables, **updates, "params": params}, state, value

    losses = []
    for key in jax.random.split(jax.random.key(1), 60):
        variables, state, value = step(variables, state, key)
        losses.append(float(value))
    assert np.mean(losses[-10:]) < 0.6 * losses[0]
    assert int(variables["counts"]["seen"]) == 60


class Held(nnx.Module):
    """An object that holds a functional module and its variables."""

    def __init__(self, module, x, rngs):
        variables = dict(module.init({"params": rngs.params()}, x, train=False))
        self.module = module
        self.params = nnx.Param(variables.pop("params"))
        self.rest = nnx.BatchStat(variables)
        self.rngs = rngs

    def __call__(self, x, train=True):
        variables = {"params": self.params.value, **self.rest.value}
        out, self.rest.value = self.module.apply(
            variables,
            x,
            train=train,
            rngs={"dropout": self.rngs.dropout()},
            mutable=list(self.rest.value),
        )
        return out


def test_an_object_holds_a_functional_module():
    x, y = data()
    model = Held(Mlp(), x, nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(0.02))
    traces = []

    @nnx.jit(donate_state=True)
    def step(model, optimizer, x, y):
        traces.append(None)

        def loss(model):
            return jnp.mean((model(x) - y) ** 2)

        value, grads = nnx.value_and_grad(loss)(model)
        optimizer.update(grads)
        return value

    losses = [float(step(model, optimizer, x, y)) for _ in range(60)]
    assert np.mean(losses[-10:]) < 0.6 * losses[0]
    assert int(model.rest.value["counts"]["seen"]) == 60
    assert int(model.rngs.default.count.value) == 61  # one for the parameters
    assert len(traces) == 2
    # Another module of equal fields is the same static value: nothing is compiled.
    model.module = Mlp()
    step(model, optimizer, x, y)
    assert nnx.explain_recompile(step) == []
    model.module = Mlp(width=17)
    with pytest.raises(Exception, match="shape"):
        step(model, optimizer, x, y)
    assert int(optimizer.step.value) == 61


def test_stacked_objects_and_lifted_scans_agree():
    """The same deep network by both libraries, on the same parameters."""
    depth, x = 4, data()[0]

    class Layers(nn.Module):
        @nn.compact
        def __call__(self, x):
            def body(layer, carry, _):
                return jax.nn.tanh(layer(carry)), None

            scanned = nn.scan(
                body,
                variable_axes={"params": 0},
                split_rngs={"params": True},
                length=depth,
            )
            return scanned(nn.Dense(8, name="layer"), x, None)[0]

    variables = Layers().init(jax.random.key(0), x)
    [stacked] = jax.tree.leaves(variables["params"], is_leaf=lambda v: "kernel" in v)

    @nnx.vmap(in_axes=0, out_axes=0)
    def make(kernel, bias):
        layer = nnx.Linear(8, 8, rngs=nnx.Rngs(0))
        layer.kernel.value, layer.bias.value = kernel, bias
        return layer

    layers = make(stacked["kernel"], stacked["bias"])

    @nnx.jit
    @nnx.scan(in_axes=(0, nnx.Carry), out_axes=nnx.Carry)
    def run(layer, x):
        return jax.nn.tanh(layer(x))

    expected = jax.jit(Layers().apply)(variables, x)
    np.testing.assert_allclose(run(layers, x), expected, rtol=1e-5)


def test_an_object_inside_a_module():
    """A module may call an object that it is given: values that it closes over."""
    scale = nnx.Dict(by=nnx.Param(jnp.array(3.0)), calls=nnx.BatchStat(jnp.array(0)))

    class Scaled(nn.Module):
        @nn.compact
        def __call__(self, scale, x):
            return nn.Dense(2)(x) * scale.by.value

    x = data()[0]
    variables = Scaled().init(jax.random.key(0), scale, x)

    @nnx.jit
    def step(scale, variables, x):
        scale.calls.value += 1

        def loss(scale, variables):
            return Scaled().apply(variables, scale, x).sum()

        return nnx.grad(loss, argnums=(0, 1))(scale, variables)

    by_scale, by_variables = step(scale, variables, x)
    expected = Scaled().apply(variables, scale, x).sum() / 3
    np.testing.assert_allclose(by_scale["by"].value, expected, rtol=1e-4)
    assert by_variables["params"]["Dense_0"]["bias"].tolist() == [96.0, 96.0]
    assert int(scale.calls.value) == 1


@pytest.mark.parametrize("library", [nn, nnx])
def test_rules_for_names_of_axes_are_in_force_for_both(library):
    weight = nnx.Param(jnp.ones((4, 2)), out_sharding=("rows", None))
    with library.logical_axis_rules([("rows", "data")]):
        assert tuple(nnx.get_partition_spec({"w": weight})["w"]) == ("data", None)
        assert tuple(nn.logical_to_mesh_axes(("rows", None))) == ("data", None)
    assert tuple(nn.logical_to_mesh_axes(("rows", None))) == (None, None)


def test_rules_that_are_set_hold_until_others_are():
    weight = nnx.Param(jnp.ones((4, 2)), out_sharding=("rows", None))
    nn.set_logical_axis_rules([("rows", "data")])
    try:
        assert tuple(nnx.get_partition_spec({"w": weight})["w"]) == ("data", None)
    finally:
        nn.set_logical_axis_rules(())
    assert tuple(nnx.get_partition_spec({"w": weight})["w"]) == ("rows", None)


def test_functions_that_linen_lift_made_are_functions_to_nnx():
    double = nn.jit(lambda module, x: 2 * module(x))
    module = nn.Dense(2)
    variables = module.init(jax.random.key(0), jnp.ones(3))

    @nnx.jit
    def f(holder, x):
        return nn.apply(holder.double, module)(variables, x)

    holder = nnx.Dict(double=double)
    due = 2 * module.apply(variables, jnp.ones(3))
    np.testing.assert_allclose(f(holder, jnp.ones(3)), due, rtol=1e-6)
    assert nnx.clone(holder).double is double
    assert nnx.jit(double).__wrapped__ is double
