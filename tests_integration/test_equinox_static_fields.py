"""Static fields of Equinox modules: those of the module that was given, no others."""

import dataclasses

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


@dataclasses.dataclass
class Width:
    width: int


class Listed(eqx.Module):
    w: list
    by: object = eqx.field(static=True)


WHERE = {
    "an argument": (lambda module: module, lambda held: held),
    "in a list": (lambda module: [module], lambda held: held[0]),
    "an attribute": (lambda module: nnx.Dict(a=module), lambda held: held.a),
    "in an attribute": (lambda module: nnx.Dict(a=[module]), lambda held: held.a[0]),
    "a value": (nnx.Param, lambda held: held.value),
}


@pytest.mark.parametrize(("hold", "module_of"), WHERE.values(), ids=WHERE)
@pytest.mark.parametrize("kind", [Scaled, Listed])
def test_a_change_in_place_is_seen_in_each_of_equal_modules(kind, hold, module_of):
    fields = [Width(1), Width(1)]
    held = [hold(kind([X], field)) for field in fields]
    width = nnx.jit(lambda held: module_of(held).by.width)
    for number, new in [(1, 5), (1, 1), (0, 7), (0, 1), (1, 7), (0, 5)]:
        for _ in range(10):  # often enough to be remembered
            assert [int(width(x)) for x in held] == [field.width for field in fields]
        fields[number].width = new
    assert [int(width(x)) for x in held] == [5, 7]


def test_a_call_that_writes_leaves_the_static_value():
    field = Width(2)
    model = nnx.Dict(a=Scaled(X, field), b=nnx.Param(Scaled(X, field)))

    @nnx.jit
    def double(model):
        model.a = jax.tree.map(lambda w: w * model.a.by.width, model.a)
        model.b.value = jax.tree.map(lambda w: w * model.a.by.width, model.b.value)

    for factor in (2, 3):
        field.width = factor
        before = model.a.w
        double(model)
        assert model.a.by is field
        assert (model.a.w == before * factor).all()
        assert (model.b.value.w == model.a.w).all()


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
