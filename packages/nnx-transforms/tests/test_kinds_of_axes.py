"""Where variables are placed over explicit, automatic and mixed mesh axes."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, PartitionSpec

import nnx_transforms as nnx

KINDS = {
    "explicit": (AxisType.Explicit, AxisType.Explicit),
    "mixed": (AxisType.Explicit, AxisType.Auto),
    "mixed the other way": (AxisType.Auto, AxisType.Explicit),
    "automatic": (AxisType.Auto, AxisType.Auto),
}
BOTH = ("data", "model")
pytestmark = pytest.mark.devices(4)


@pytest.fixture(params=KINDS)
def mesh(request):
    mesh = jax.make_mesh((2, 2), BOTH, KINDS[request.param])
    with jax.set_mesh(mesh):
        yield mesh


def spec(variable):
    return tuple(variable.value.sharding.spec)


def make(x=1.0, names=BOTH):
    return nnx.Param(x * jnp.ones((4, 4)), out_sharding=names)


TRANSFORMS = {
    "eager": lambda f: f,
    "remat": nnx.remat,
    "jit": nnx.jit,
    "jit of remat": lambda f: nnx.jit(nnx.remat(f)),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_new_variables_lie_where_their_metadata_say(mesh, transform):
    made = TRANSFORMS[transform](make)(2.0)
    assert spec(made) == BOTH and made.value.sum() == 32
    with pytest.raises(ValueError, match="daat"):
        TRANSFORMS[transform](lambda x: make(x, ("daat", "model")))(2.0)


def test_variables_made_under_a_derivative(mesh):
    model = nnx.Dict(w=nnx.Param(jnp.ones((4, 4))))

    def loss(model):
        model.twice = nnx.Cache(model.w.value * 2, out_sharding=BOTH)
        return (model.twice.value**2).sum()

    for grad in (nnx.grad, lambda f: nnx.jit(nnx.grad(f))):
        assert grad(loss)(model).w.value.sum() == 128
        assert spec(model.twice) == BOTH


def test_shard_under_remat(mesh):
    model = nnx.Dict(w=nnx.Param(jnp.ones((4, 4))))
    nnx.remat(lambda model: nnx.shard(model, {...: PartitionSpec(*BOTH)}))(model)
    assert spec(model.w) == BOTH


@pytest.mark.parametrize("args", [(), (2.0,)])
def test_constraints_on_what_a_function_makes_of_no_object(mesh, args):
    make = lambda *_: nnx.Dict(w=nnx.Param(jnp.ones((4, 4)), sharding=BOTH))
    assert spec(nnx.jit(make, constrain_state=True)(*args).w) == BOTH
    called = []
    nnx.jit(make, constrain_state=lambda state: called.append(1) or state)(*args)
    assert called


def test_abstract_variables_with_names_of_no_axis_have_no_sharding(mesh):
    make = lambda names: nnx.Dict(w=nnx.Param(jnp.ones((4, 4)), sharding=names))
    abstract = nnx.eval_shape(lambda: make(("daat", "model")))
    assert abstract.w.value.sharding is None
    with pytest.raises(ValueError, match="daat"):
        nnx.as_abstract(abstract)
    known = nnx.eval_shape(lambda: make(BOTH)).w.value.sharding
    assert tuple(known.spec) == BOTH
