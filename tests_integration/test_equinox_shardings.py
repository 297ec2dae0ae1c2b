"""Objects that hold Equinox modules, in variables and as attributes, on a mesh."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import nnx_transforms as nnx

pytestmark = pytest.mark.devices(2)
X = jnp.array([0.5, -1.0])


def mlp():
    return eqx.nn.MLP(2, 2, 4, 1, key=jax.random.key(0))


class InVariable(nnx.Module):
    def __init__(self):
        self.net = nnx.Param(mlp())
        self.scale = nnx.Param(jnp.ones(2))

    def __call__(self, x):
        return self.net.value(x) * self.scale.value


class AsAttribute(nnx.Module):
    def __init__(self):
        self.net = mlp()
        self.scale = nnx.Param(jnp.ones(2))

    def __call__(self, x):
        return self.net(x) * self.scale.value


class Split(nnx.Module):
    def __init__(self):
        self.net = nnx.Param(mlp(), out_sharding=("x",))


def is_inexact(path, x):
    return jnp.issubdtype(x.dtype, jnp.inexact)


TRAINED = {InVariable: nnx.Param, AsAttribute: is_inexact}


def mesh_of(kind):
    return jax.make_mesh((2,), ("x",), axis_types=(kind,))


@pytest.fixture(params=[AxisType.Auto, AxisType.Explicit], ids=["auto", "explicit"])
def mesh(request):
    mesh = mesh_of(request.param)
    with jax.set_mesh(mesh):
        yield mesh


def arrays_of(tree):
    return jax.tree.leaves(eqx.filter(tree, eqx.is_inexact_array))


def made(kind):
    model = kind()
    return model, nnx.Optimizer(model, optax.adam(0.1), wrt=TRAINED[kind])


def trained(model, optimizer):
    @nnx.jit
    def step(model, optimizer):
        wrt = TRAINED[type(model)]
        grads = nnx.grad(lambda m: jnp.sum((m(X) - 1) ** 2), wrt=wrt)(model)
        optimizer.update(model, grads)

    for _ in range(2):
        step(model, optimizer)
    return arrays_of(nnx.state(model))


def placed(kind):
    pair = made(kind)
    nnx.shard(pair, {...: P()})
    return pair


def made_in_place(kind):
    return nnx.create_sharded(lambda: made(kind), shardings={...: P()})()


def made_in_turn(kind):
    model = nnx.create_sharded(kind, shardings={...: P()})()

    @nnx.create_sharded(shardings={...: P()})
    def optimizer_of(model):
        return nnx.Optimizer(model, optax.adam(0.1), wrt=TRAINED[kind])

    return model, optimizer_of(model)


@pytest.mark.parametrize("kind", [*TRAINED])
@pytest.mark.parametrize("make", [placed, made_in_place, made_in_turn])
def test_what_is_on_a_mesh_is_trained_as_on_one_device(mesh, kind, make):
    found = trained(*make(kind))
    with jax.set_mesh(jax.make_mesh((1,), ("x",), axis_types=(AxisType.Auto,))):
        expected = trained(*made(kind))
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=1e-5)


def test_the_arrays_of_a_module_are_divided(mesh):
    def make():
        model = Split()
        return model, nnx.Optimizer(model, optax.adam(0.1))

    model, optimizer = nnx.create_sharded(make)()
    whole = Split()
    nnx.shard(whole)
    moments = nnx.pure(optimizer.opt_state[0].mu["net"])
    for net in (model.net.value, moments, whole.net.value):
        for x in arrays_of(net):
            assert x.sharding.spec[0] == "x"
    assert model.net.value.activation is mlp().activation
    nnx.jit(lambda model: None, constrain_state=True)(model)


def specs(tree):
    return [tuple(x.sharding.spec)[:1] for x in jax.tree.leaves(tree) if is_abstract(x)]


def is_abstract(x):
    return isinstance(x, jax.ShapeDtypeStruct)


def test_abstract_modules_have_shardings(mesh):
    graphdef, state = nnx.get_abstract_model(Split, mesh)
    assert specs(nnx.merge(graphdef, state).net.value) == [("x",)] * 4
    abstract = nnx.as_abstract(nnx.eval_shape(Split))
    assert specs(abstract.net.value) == [("x",)] * 4
    nnx.shard(abstract, {...: P(None)})
    assert specs(abstract.net.value) == [(None,)] * 4
    nnx.update(abstract, nnx.state(Split()))
    assert arrays_of(abstract)[0].sharding.spec[0] == "x"


def test_a_module_that_is_abstract_gets_the_shardings_of_its_variable():
    shapes = eqx.filter_eval_shape(mlp)
    model = nnx.Dict(net=nnx.Param(shapes, sharding=("x",)), rest=jnp.ones(2))
    with jax.set_mesh(mesh_of(AxisType.Auto)):
        model = nnx.as_abstract(model)
    assert specs(model.net.value) == [("x",)] * 4
    assert model.net.value.activation is shapes.activation


def test_metadata_are_those_of_variables():
    model = AsAttribute()
    nnx.set_metadata(model, sharding=("x",))
    assert model.scale.sharding == ("x",)
