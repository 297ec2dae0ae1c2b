"""A model that keeps its own methods, and partials of them, among its attributes."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import nnx_transforms as nnx

X = jnp.array([[0.5, -1.0], [2.0, 1.0]])


class Mixer(nnx.Module):
    """Chooses its function when it is made, as models do by their configuration."""

    def __init__(self, how, rngs):
        self.dense = nnx.Linear(2, 2, rngs=rngs)
        self.calls = nnx.Variable(jnp.array(0))
        choices = {
            "method": self.plain,
            "partial": functools.partial(self.scaled, 2.0),
            "function": functools.partial(Mixer.scaled, self, 2.0),
            "layer": functools.partial(self.dense),
            "method of a layer": self.dense.__call__,
            "remat": nnx.remat(self.plain),
            "jit": nnx.jit(self.plain),
            "vmap": nnx.vmap(self.read, in_axes=None, out_axes=None, axis_size=1),
            "remat of jit": nnx.remat(nnx.jit(self.plain)),
            "jit of partial": nnx.jit(functools.partial(self.scaled, 1.0)),
        }
        self.apply = choices[how]

    def plain(self, x):
        self.calls.value += 1
        return self.dense(x)

    def read(self, x):
        return self.dense(x)

    def scaled(self, scale, x):
        self.calls.value += 1
        return self.dense(x) * scale

    def __call__(self, x):
        return self.apply(x)


HOW = ["method", "partial", "function", "layer", "method of a layer"]
MADE = ["remat", "jit", "vmap", "remat of jit", "jit of partial"]
every = pytest.mark.parametrize("how", [*HOW, *MADE])


def due(mixer, x):
    """What the model must give, without the attribute."""
    factor = 2.0 if isinstance(mixer.apply, functools.partial) else 1.0
    factor = 1.0 if getattr(mixer.apply, "func", None) is mixer.dense else factor
    return factor * (x @ mixer.dense.kernel[...] + mixer.dense.bias[...])


def counts(how):
    return 0 if "layer" in how or how == "vmap" else 1


TRANSFORMS = {
    "jit": nnx.jit,
    "remat": nnx.remat,
    "jit of remat": lambda f: nnx.jit(nnx.remat(f)),
    "cond": lambda f: lambda m, x: nnx.cond(True, f, f, m, x),
    "switch": lambda f: lambda m, x: nnx.switch(1, [f, f], m, x),
    "vjp": lambda f: lambda m, x: nnx.vjp(f, m, x)[0],
    "vmap": lambda f: lambda m, x: nnx.vmap(f, in_axes=(None, 0))(m, x),
    "checkify": lambda f: lambda m, x: nnx.checkify(f)(m, x)[1],
    "fori_loop": lambda f: (
        lambda m, x: nnx.fori_loop(
            0, 1, lambda i, carry: (carry[0], f(*carry)), (m, x)
        )[1]
    ),
}


@every
@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_the_present_values_are_read_and_writes_arrive(how, transform):
    mixer = Mixer(how, nnx.Rngs(0))
    f, kept = transform(lambda m, x: m(x)), mixer.apply
    for step in range(3):
        given = f(mixer, X)
        np.testing.assert_allclose(given, due(mixer, X), rtol=1e-6)
        mixer.dense.kernel.value = mixer.dense.kernel.value * 2 + step
        assert int(mixer.calls.value) == counts(how) * (step + 1)
    assert mixer.apply is kept


@every
def test_gradients_reach_the_parameters(how):
    mixer = Mixer(how, nnx.Rngs(0))
    gradient = nnx.grad(lambda m: m(X).sum())(mixer)
    expected = nnx.grad(lambda m: due(m, X).sum())(mixer)
    jax.tree.map(np.testing.assert_allclose, gradient, expected)
    assert float(jnp.abs(gradient.dense.kernel[...]).sum()) > 0


@every
def test_it_trains_in_one_trace(how):
    traces = []

    @nnx.jit
    def step(model, optimizer):
        traces.append(1)
        loss, grads = nnx.value_and_grad(lambda m: (m(X) ** 2).mean())(model)
        optimizer.update(model, grads)
        return loss

    tx = optax.sgd(0.05)
    for seed in (0, 1):
        model = Mixer(how, nnx.Rngs(seed))
        optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
        losses = [float(step(model, optimizer)) for _ in range(4)]
        assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0]
    assert len(traces) == 1  # also where each model has a function of its own


@every
def test_models_that_a_transform_makes_are_whole(how):
    one = nnx.jit(lambda: Mixer(how, nnx.Rngs(0)))()
    np.testing.assert_allclose(one(X), due(one, X), rtol=1e-6)
    abstract = nnx.eval_shape(lambda: Mixer(how, nnx.Rngs(0)))
    again = nnx.merge(nnx.graphdef(abstract), nnx.state(one))
    np.testing.assert_allclose(again(X), due(one, X), rtol=1e-6)
    many = nnx.vmap(lambda seed: Mixer(how, nnx.Rngs(seed)))(jnp.arange(3))
    ys = nnx.vmap(lambda m: m(X))(many)
    for n in range(3):
        alone = Mixer(how, nnx.Rngs(n))
        np.testing.assert_allclose(ys[n], due(alone, X), rtol=1e-5)


def _scaled(model, x, n):
    return model.w.value * x


MAKERS = {
    "remat": lambda f: nnx.remat(f),
    "policy": lambda f: nnx.remat(
        f, policy=jax.checkpoint_policies.everything_saveable
    ),
    "static": lambda f: nnx.remat(f, static_argnums=2),
    "static by name": lambda f: nnx.jit(f, static_argnames="n"),
    "jit": lambda f: nnx.jit(f),
    "donated": lambda f: nnx.jit(f, donate_argnums=1),
    "vmap": lambda f: nnx.vmap(f),
    "axes": lambda f: nnx.vmap(f, in_axes=(0, None)),
    "state": lambda f: nnx.vmap(f, in_axes=(nnx.StateAxes({nnx.Param: 0}), None)),
    "grad": lambda f: nnx.grad(f, argnums=1),
    "value": lambda f: nnx.value_and_grad(f, argnums=1),
    "filter": lambda f: nnx.grad(f, argnums=nnx.DiffState(0, nnx.Param)),
    "scan": lambda f: nnx.scan(f, in_axes=(nnx.Carry, 0)),
    "reverse": lambda f: nnx.scan(f, in_axes=(nnx.Carry, 0), reverse=True),
    "remat of jit": lambda f: nnx.remat(nnx.jit(f)),
}


def made(name):
    model = nnx.Dict(w=nnx.Param(X))
    model.f = MAKERS[name](types.MethodType(_scaled, model))
    return nnx.graphdef(model)


def test_models_that_are_made_alike_have_one_structure():
    definitions = {name: made(name) for name in MAKERS}
    for name, definition in definitions.items():
        assert hash(made(name)) == hash(definition)
        for other, another in definitions.items():
            assert (made(name) == another) == (name == other), (name, other)


@every
def test_layers_are_scanned(how):
    @nnx.vmap
    def layers(seed):
        return Mixer(how, nnx.Rngs(seed))

    @nnx.scan(in_axes=(0, nnx.Carry), out_axes=nnx.Carry)
    def forward(layer, x):
        return layer(x)

    stacked = layers(jnp.arange(3))
    y = X
    for n in range(3):
        y = due(Mixer(how, nnx.Rngs(n)), y)
    np.testing.assert_allclose(forward(stacked, X), y, rtol=1e-5)
    assert stacked.calls.value.tolist() == [counts(how)] * 3


def test_a_function_may_choose_another_method():
    mixer = Mixer("method", nnx.Rngs(0))

    @nnx.jit
    def choose(m, scale):
        m.apply = functools.partial(m.scaled, scale)

    choose(mixer, 3.0)
    assert mixer.apply.func.__self__ is mixer
    np.testing.assert_allclose(mixer(X), 3 * mixer.dense(X), rtol=1e-6)


def test_methods_stand_in_a_sequence():
    mixer = Mixer("method", nnx.Rngs(0))
    layers = nnx.Sequential(mixer.plain, jnp.tanh, functools.partial(mixer.scaled, 2.0))
    f = nnx.jit(lambda layers, x: layers(x))
    for _ in range(2):
        expected = 2 * mixer.dense(jnp.tanh(mixer.dense(X)))
        np.testing.assert_allclose(f(layers, X), expected, rtol=1e-6)
        mixer.dense.kernel.value *= 2
    assert int(mixer.calls.value) == 4


@pytest.mark.parametrize("how", [how for how in (*HOW, *MADE) if "layer" not in how])
def test_jax_makes_a_model_with_functions_of_its_own(how):
    mixer = Mixer(how, nnx.Rngs(0))
    doubled = jax.tree.map(lambda x: 2 * x, mixer)
    np.testing.assert_allclose(doubled(X), due(doubled, X), rtol=1e-6)
    given = jax.jit(lambda m: nnx.by_value(m)(X))(mixer)
    np.testing.assert_allclose(given, due(mixer, X), rtol=1e-6)
    assert jax.tree.structure(mixer) == jax.tree.structure(nnx.clone(mixer))
