"""Plain JAX transforms around bound modules."""

import jax
import jax.numpy as jnp
import pytest

import linen_lift as nn

KEY, X = jax.random.key(0), jnp.arange(6.0).reshape(2, 3)


class Readout(nn.Module):
    def setup(self):
        self.readout = nn.Dense(1)

    def __call__(self, x):
        return self.readout(x)

    def energy(self, x):
        return self.readout(x).sum()


def over_readout(transform):
    class Wrapped(Readout):
        def __call__(self, x):
            return transform(self, x)

    return Wrapped()


TRANSFORMS = {
    "vmap of a submodule": lambda m, x: jax.vmap(m.readout)(x),
    "vmap of itself": lambda m, x: jax.vmap(m.energy)(x),
    "value_and_grad": lambda m, x: jax.value_and_grad(m.energy)(x),
    "jit": lambda m, x: jax.jit(lambda x: m.readout(x))(x),
    "checkpoint": lambda m, x: jax.checkpoint(lambda x: m.readout(x))(x),
    "scan": lambda m, x: jax.lax.scan(lambda c, x: (c, m.readout(x)), 0.0, x)[1],
    "nested": lambda m, x: jax.jit(jax.vmap(jax.grad(m.energy)))(x),
}


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
@pytest.mark.parametrize("around", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_a_bound_module_in_a_plain_transform(transform, around):
    expected = Readout().init(KEY, X)
    model = over_readout(transform)
    variables = around(model.init)(KEY, X)
    assert jax.tree.all(
        jax.tree.map(lambda a, b: jnp.allclose(a, b), variables, expected)
    )
    assert not any(isinstance(v, jax.core.Tracer) for v in jax.tree.leaves(variables))
    out = around(model.apply)(variables, X)
    bound = Readout().bind(variables)
    assert jax.tree.all(jax.tree.map(jnp.allclose, out, transform(bound, X)))


def test_names_are_reserved_inside():
    class Twice(nn.Module):
        @nn.compact
        def __call__(self, x):
            y = jax.vmap(lambda x: nn.Dense(2)(x))(x)
            return jax.vmap(lambda x: nn.Dense(2)(x))(x) + y

    params = Twice().init(KEY, X)["params"]
    assert sorted(params) == ["Dense_0", "Dense_1"]
    assert not (params["Dense_0"]["kernel"] == params["Dense_1"]["kernel"]).all()


def test_a_module_used_twice_in_one_transform_has_one_value():
    class Tied(nn.Module):
        @nn.compact
        def __call__(self, x):
            dense = nn.Dense(3)
            return jax.jit(lambda x: (dense(x), dense(x)))(x)

    (a, b), variables = Tied().init_with_output(KEY, X)
    assert (a == b).all()
    again = Tied().apply(variables, X)[0]
    assert jnp.allclose(again, a)


def test_closing_over_a_module_in_a_lifted_function():
    class Closing(nn.Module):
        @nn.compact
        def __call__(self, x):
            dense = nn.Dense(3, name="dense")
            return nn.remat(lambda self, x: dense(x))(self, x)

    variables = Closing().init(KEY, X)
    assert variables["params"]["dense"]["kernel"].shape == (3, 3)
    grads = jax.grad(lambda v: Closing().apply(v, X).sum())(variables)
    assert grads["params"]["dense"]["bias"].tolist() == [2, 2, 2]
