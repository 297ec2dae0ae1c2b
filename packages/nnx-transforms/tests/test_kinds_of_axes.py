"""Where variables are placed over explicit, automatic and mixed mesh axes."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

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


OPEN = PartitionSpec(PartitionSpec.UNCONSTRAINED, "model")


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_what_may_lie_anyhow_stays_where_it_is(mesh, transform):
    value = jax.device_put(jnp.ones((4, 4)), NamedSharding(mesh, PartitionSpec("data")))
    made = TRANSFORMS[transform](lambda x: nnx.Param(x, out_sharding=OPEN))(value)
    # Over automatic axes, XLA may choose.
    assert spec(made)[1] == "model"
    if mesh.axis_types[0] is AxisType.Explicit:
        assert spec(made)[0] == "data"


def test_an_axis_that_two_parts_of_a_spec_could_name_is_the_named_one(mesh):
    value = jax.device_put(
        jnp.ones((4, 4)), NamedSharding(mesh, PartitionSpec("model"))
    )
    assert spec(nnx.jit(lambda x: nnx.Param(x, out_sharding=OPEN))(value))[1] == "model"


def test_objects_are_placed_by_specs_with_open_parts(mesh):
    model = nnx.Dict(w=nnx.Param(jnp.ones((4, 4))))
    nnx.shard(model, {...: OPEN})
    assert spec(model.w) == (None, "model")
    assert model.w.sharding == OPEN


@pytest.mark.parametrize("kinds", KINDS)
def test_a_mesh_of_a_variable_of_its_own_under_another_one(mesh, kinds):
    own = jax.make_mesh((4,), ("rows",), (KINDS[kinds][1],))
    made = nnx.Param(jnp.ones((4, 4)), out_sharding=("rows",), mesh=own)
    assert made.value.sharding.mesh == own and spec(made)[0] == "rows"
    with pytest.raises(ValueError, match="rwos"):
        nnx.Param(jnp.ones((4, 4)), out_sharding=("rwos",), mesh=own)
    model = nnx.Dict(w=nnx.Param(jnp.ones((4, 4)), sharding=("rwos",)))
    with pytest.raises(ValueError, match="rwos") as caught:
        nnx.get_named_sharding(nnx.state(model), own)
    assert any("'w'" in note for note in caught.value.__notes__)


def test_over_explicit_axes_a_trace_has_what_is_written_by_hand():
    mesh = jax.make_mesh((2, 2), BOTH, KINDS["explicit"])
    with jax.set_mesh(mesh):
        ours = jax.make_jaxpr(lambda x: nnx.Param(x, out_sharding=BOTH).value)
        by_hand = jax.make_jaxpr(
            lambda x: jax.sharding.reshard(x, PartitionSpec(*BOTH))
        )
        x = jnp.ones((4, 4))
        assert str(ours(x)) == str(by_hand(x))


def test_values_with_sums_that_are_still_to_be_taken():
    due, taken = PartitionSpec("data", unreduced={"model"}), PartitionSpec("data")
    mesh = jax.make_mesh((2, 2), BOTH, KINDS["explicit"])
    with jax.set_mesh(mesh):
        value = jax.jit(lambda x: jax.sharding.reshard(x, due))(jnp.arange(4.0))
        model = nnx.Dict(w=nnx.Param(value))
        abstract = nnx.eval_shape(lambda model: model, model)
        assert abstract.w.value.sharding.spec == value.sharding.spec
        assert "4@data" in repr(nnx.placement(model))

        total = lambda w: jax.lax.psum(w, "model")
        mapped = nnx.shard_map(lambda m: total(m.w.value), out_specs=taken)
        by_hand = jax.shard_map(total, out_specs=taken)
        # (compiled, since JAX before 0.10 maps such values no other way)
        assert nnx.jit(mapped)(model).tolist() == jax.jit(by_hand)(value).tolist()

        @nnx.jit
        def double(model):
            model.w.value += model.w.value
            return jax.sharding.reshard(model.w.value, taken)

        by_hand = jax.jit(lambda w: jax.sharding.reshard(w + w, taken))(value)
        assert double(model).tolist() == by_hand.tolist()
        assert model.w.value.sharding.spec == value.sharding.spec


def test_names_of_axes_to_sum_over_stay_in_a_sharding():
    metadata = {nnx.PARTITION_NAME: "layers"}
    summed = PartitionSpec("data", unreduced={"model"})
    stacked = nnx.vmap(
        lambda x: nnx.Param(x, sharding=summed), transform_metadata=metadata
    )(jnp.ones((3, 4)))
    assert stacked.sharding == PartitionSpec("layers", "data", unreduced={"model"})
    specs = nnx.get_partition_spec(nnx.state(nnx.Dict(w=stacked)))
    assert specs["w"].value == stacked.sharding
