"""What is given to a transform as the function."""

import functools
import pickle
import unittest.mock

import cloudpickle
import jax
import jax.numpy as jnp
import pytest

import nnx_transforms as nnx


class Model(nnx.Module):
    """It has no `__call__`."""

    def __init__(self, *given):
        self.w = nnx.Param(jnp.array(2.0))
        self.given = len(given)


CALLS = {
    "vjp": lambda f: nnx.vjp(f, 1.0),
    "jvp": lambda f: nnx.jvp(f, (1.0,), (1.0,)),
    "linearize": lambda f: nnx.linearize(f, 1.0),
    "map": lambda f: nnx.map(f, jnp.ones(2)),
    "eval_shape": lambda f: nnx.eval_shape(f, 1.0),
    "custom_gradient": lambda f: nnx.custom_gradient(f)(1.0),
    "linear_call": lambda f: nnx.linear_call(f, f, 1.0, 1.0),
    "grad": lambda f: nnx.grad(f)(1.0),
    "jit": lambda f: nnx.jit(f)(1.0),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("given", [Model(), 3.0], ids=["object", "number"])
def test_what_can_not_be_called_is_refused(call, given):
    with pytest.raises(TypeError, match="Expected a callable value, got"):
        call(given)


@pytest.mark.parametrize("name", ["grad", "vmap", "jacfwd", "value_and_grad", "remat"])
def test_the_function_may_be_named_as_jax_names_it(name):
    x = jnp.ones(()) if "grad" in name else jnp.ones(2)
    ours, of_jax = (getattr(m, name)(fun=jnp.sin)(x) for m in (nnx, jax))
    assert jax.tree.all(jax.tree.map(lambda a, b: (a == b).all(), ours, of_jax))


def test_the_function_has_one_name_at_a_time():
    with pytest.raises(TypeError, match="'fun'"):
        nnx.grad(f=jnp.sin, fun=jnp.cos)


def generator(x):
    yield x


async def coroutine(x):
    return x


async def async_generator(x):
    yield x


@pytest.mark.parametrize("given", [generator, coroutine, async_generator])
def test_what_runs_later_is_refused(given):
    for wrap in (nnx.jit, nnx.grad, nnx.vmap, nnx.remat, nnx.jacrev, nnx.scan):
        with pytest.raises(TypeError, match="got a generator"):
            wrap(given)
    for name in ("vjp", "jvp", "linearize", "eval_shape"):
        with pytest.raises(TypeError, match="got a generator"):
            CALLS[name](functools.partial(given))


def test_what_has_any_attribute_may_be_called():
    class Spy:
        def __getattr__(self, name):
            if name == "__code__":
                return unittest.mock.MagicMock()
            raise AttributeError(name)

        def __call__(self, x):
            return 2 * x

    assert nnx.vmap(Spy())(jnp.arange(2)).tolist() == [0, 2]


def test_what_runs_later_is_named_without_the_object_it_is_bound_to():
    class Stream(nnx.Module):
        def read(self, x):
            yield x

    with pytest.raises(TypeError, match=r"function: '\S*Stream\.read'\. A call"):
        nnx.jit(Stream().read)


def test_a_class_and_a_partial_of_one_make_objects():
    for make in (Model, functools.partial(Model, 1)):
        assert type(nnx.jit(make)()) is Model
        assert type(nnx.eval_shape(make)) is Model


@pytest.mark.parametrize("transform", [nnx.grad, nnx.vmap, nnx.remat, nnx.scan])
def test_what_was_compiled_stays_with_the_jitted_function(transform):
    def f(c, x):
        return c + x.sum(), x

    f.unit = "m"
    jitted = nnx.jit(f)
    transformed = transform(jitted)
    assert transformed.__wrapped__ is jitted
    assert (jitted.unit, transformed.unit) == ("m", "m")
    own = vars(transformed).keys() - {"__wrapped__", "_lifted", "unit"}
    assert not own & vars(jitted).keys()
    pickle.loads(cloudpickle.dumps(transformed))


def test_the_gradient_of_a_jitted_function_can_be_sent():
    gradient = nnx.grad(nnx.jit(lambda x: (x**2).sum()))
    assert gradient(jnp.ones(2)).tolist() == [2.0, 2.0]
    sent = pickle.loads(cloudpickle.dumps(gradient))
    assert sent(jnp.ones(2)).tolist() == [2.0, 2.0]
