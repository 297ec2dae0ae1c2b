"""Static fields of Equinox modules: those of the module that was given, no others."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import nnx_transforms as nnx

X = jnp.ones(2)


class Scaled(eqx.Module):
    w: jax.Array
    by: object = eqx.field(static=True)


class Held(eqx.Module):
    w: jax.Array
    by: object


EQUAL = [1, 1.0, True, 0.0, -0.0, 0, False]
AS_IT_IS = {
    "jit": lambda f, m: nnx.jit(f)(m),
    "vmap": lambda f, m: nnx.vmap(f)(m),
    "remat": lambda f, m: nnx.remat(f)(m),
    "cond": lambda f, m: nnx.cond(True, f, f, m),
    "scan": lambda f, m: nnx.scan(lambda m, x: (f(m), x))(m, X)[0],
    "grad": lambda f, m: nnx.grad(lambda m: (m.w * f(m).by).sum())(m),
}


@pytest.mark.parametrize("name", AS_IT_IS)
def test_static_fields_are_not_those_of_an_equal_module(name):
    def kept(scaled):
        return scaled

    for x in EQUAL:
        found = AS_IT_IS[name](kept, Scaled(X, x))
        assert repr(found.by) == repr(x)


class Config:
    """What can be hashed, and compared with nothing."""

    def __init__(self, width):
        self.width = width

    def __eq__(self, other):
        raise NotImplementedError

    def __hash__(self):
        return 1


@pytest.mark.parametrize("kind", [Scaled, Held])
def test_a_change_in_place_of_what_has_no_equality_is_seen(kind):
    traces = []

    @nnx.jit
    def width(module):
        traces.append(1)
        return module.by.width

    module = kind(X, Config(2))
    assert [int(width(module)) for _ in range(3)] == [2, 2, 2]
    assert len(traces) == 1
    module.by.width = 3
    assert [int(width(module)) for _ in range(3)] == [3, 3, 3]
    assert len(traces) == 2
    assert int(width(kind(X, Config(4)))) == 4


def test_static_fields_of_values_change_to_what_is_equal():
    value = nnx.Variable(Scaled(X, 1))

    @nnx.jit
    def become(value, scaled):
        value.value = scaled

    for x in EQUAL:
        become(value, Scaled(X, x))
        assert repr(value.value.by) == repr(x)
        nnx.jit(lambda v: setattr(v, "value", bumped(v.value)))(value)
        assert repr(value.value.by) == repr(x)


def bumped(scaled):
    return Scaled(scaled.w + 1, scaled.by)
