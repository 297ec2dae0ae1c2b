"""Jitted methods of an object, handed on as values: the object goes with them."""

import copy
import inspect

import jax.numpy as jnp
import pytest

import nnx_transforms as nnx


class Counter(nnx.Module):
    def __init__(self):
        self.w = nnx.Param(jnp.array(3.0))
        self.calls = nnx.Variable(jnp.array(0))

    @nnx.jit
    def scaled(self, x):
        self.calls.value += 1
        return self.w.value * x


class Trainer(nnx.Module):
    def __init__(self, model):
        self.model = model
        self.forward = model.scaled
        self.own = self.both

    @nnx.jit
    def both(self, x):
        return self.model.scaled(x) + self.forward(x)


@pytest.mark.parametrize("transform", [nnx.jit, nnx.remat])
def test_as_an_argument_it_updates_its_object(transform):
    model = Counter()
    out = transform(lambda f, x: f(x) + f(x))(model.scaled, 2.0)
    assert (float(out), int(model.calls.value)) == (12.0, 2)


def test_beside_its_object_it_is_of_the_same_one():
    model = Counter()

    @nnx.jit
    def step(model, f, x):
        model.w.value = model.w.value + 1
        return f(x)

    assert float(step(model, model.scaled, 2.0)) == 8.0
    assert int(model.calls.value) == 1


def test_its_gradient_has_that_of_its_object():
    grads = nnx.grad(lambda f, x: f(x))(Counter().scaled, 2.0)
    assert float(grads.__self__.w.value) == 2.0


@pytest.mark.parametrize("copied", [lambda x: x, nnx.clone, copy.deepcopy])
def test_as_an_attribute_it_is_of_the_object_in_the_graph(copied):
    given = Trainer(Counter())
    trainer = copied(given)
    assert trainer.forward.__self__ is trainer.model
    assert trainer.own.__self__ is trainer
    assert float(nnx.jit(lambda t, x: t.own(x))(trainer, 2.0)) == 12.0
    assert int(trainer.model.calls.value) == 2
    assert int(given.model.calls.value) == (2 if trainer is given else 0)


def test_a_deep_copy_is_bound_to_a_copy():
    model = Counter()
    other = copy.deepcopy(model.scaled)
    assert float(other(2.0)) == 6.0
    assert other.__self__ is not model
    assert int(model.calls.value) == 0


def test_its_signature_is_without_the_object():
    model = Counter()
    assert str(inspect.signature(model.scaled)) == "(x)"
    assert float(nnx.jit(model.scaled, donate_argnames="x")(jnp.array(2.0))) == 6.0
