"""Modules of Flax Linen as submodules of linen-lift's."""

import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import linen_lift as nn
import nnx_transforms as nnx
from nnx_transforms import bridge

X = jnp.ones((4, 2))


class Block(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.FlaxModule(flax.linen.Dense(3))(x)
        x = nn.FlaxModule(flax.linen.BatchNorm(use_running_average=False))(x)
        return nn.FlaxModule(flax.linen.Dropout(0.5, deterministic=False))(x)


def keys():
    return {"params": jax.random.key(0), "dropout": jax.random.key(1)}


def test_variables_and_streams_are_those_of_the_module_here():
    variables = Block().init(keys(), X)
    shapes = jax.tree.map(jnp.shape, dict(variables["params"]))
    assert shapes["FlaxModule_0"] == {"kernel": (2, 3), "bias": (3,)}
    out, updates = Block().apply(
        variables, X, rngs={"dropout": jax.random.key(1)}, mutable=["batch_stats"]
    )
    mean = updates["batch_stats"]["FlaxModule_1"]["mean"]
    assert out.shape == (4, 3) and not (mean == 0).all()
    dense = flax.linen.Dense(3)
    one = {"params": variables["params"]["FlaxModule_0"]}
    same = nn.FlaxModule(dense).apply(one, X)
    np.testing.assert_array_equal(same, dense.apply(one, X))


def test_lifted_transforms():
    stacked = nn.vmap(
        nn.FlaxModule,
        variable_axes={"params": 0},
        split_rngs={"params": True},
        in_axes=None,
        axis_size=3,
    )(flax.linen.Dense(3))
    variables = stacked.init(jax.random.key(0), X)
    kernel = variables["params"]["kernel"]
    assert kernel.shape == (3, 2, 3) and not (kernel[0] == kernel[1]).all()
    assert stacked.apply(variables, X).shape == (3, 4, 3)
    rematerialized = nn.remat(nn.FlaxModule)(flax.linen.Dense(3))
    one = rematerialized.init(jax.random.key(0), X)
    grads = jax.grad(lambda v: rematerialized.apply(v, X).sum())(one)
    assert grads["params"]["bias"].tolist() == [4.0] * 3


@pytest.mark.parametrize("method", [None, "run", "unbound"])
def test_a_second_call_in_init_takes_no_step_either(method):
    class Inner(flax.linen.Module):
        shared: flax.linen.Module

        @flax.linen.compact
        def run(self, x):
            x = flax.linen.BatchNorm(use_running_average=False)(x)
            return self.shared(self.shared(x)) + self.is_initializing()

        def __call__(self, x):
            return self.run(x)

    def twice(library, inner):
        class Outer(library.Module):
            @library.compact
            def __call__(self, x):
                module = inner(name="inner")
                return module(module(x))

        return Outer()

    inner = Inner(flax.linen.BatchNorm(use_running_average=False))
    method = Inner.run if method == "unbound" else method
    ours = twice(nn, lambda name: nn.FlaxModule(inner, method, name=name))
    theirs = twice(flax.linen, lambda name: Inner(inner.shared, name=name))
    x = jnp.arange(8.0).reshape(4, 2)
    here = ours.init_with_output(keys(), x)
    there = theirs.init_with_output(keys(), x)
    assert jax.tree.structure(here) == jax.tree.structure(there)
    for a, b in zip(jax.tree.leaves(here), jax.tree.leaves(there), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


BOXES = [flax.linen.Partitioned, flax.linen.LogicallyPartitioned]


def layers(library, box, wrap):
    """A scan in `library` over a module of Flax with boxes in two collections."""

    class Counted(flax.linen.Module):
        @flax.linen.compact
        def __call__(self, x, _):
            def init(key, shape, dtype):
                return box(jnp.full(shape, 0.5, dtype), ("in", "out"))

            x = flax.linen.Dense(2, kernel_init=init)(x)
            n = self.variable("stats", "n", lambda: box(jnp.zeros(2), ("out",)))
            n.value += x.mean()
            return jnp.tanh(x + n.value), None

    return library.scan(
        *wrap(Counted),
        variable_axes={"params": 0, "stats": 1},
        split_rngs={"params": True},
        length=3,
        metadata_params={nn.PARTITION_NAME: "layers"},
    )


@pytest.mark.parametrize("box", BOXES)
def test_boxes_of_flax_follow_the_axes_of_lifted_transforms(box):
    theirs = layers(flax.linen, box, lambda cls: [cls])()
    made = []

    def wrap(cls):
        made.append(cls())
        return [nn.FlaxModule]

    ours = layers(nn, box, wrap)(*made)
    variables = theirs.init(jax.random.key(0), X, None)
    again = ours.init(jax.random.key(0), X, None)
    kernel = again["params"]["Dense_0"]["kernel"]
    assert kernel.names == ("layers", "in", "out")
    assert nn.get_partition_spec(again) == flax.linen.get_partition_spec(variables)
    for given in (variables, nn.unbox(again)):
        here = ours.apply(given, X, None, mutable=["stats"])
        there = theirs.apply(given, X, None, mutable=["stats"])
        assert jax.tree.structure(here) == jax.tree.structure(there)
        for a, b in zip(jax.tree.leaves(here), jax.tree.leaves(there), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.mark.parametrize("box", BOXES)
def test_boxes_of_flax_around_variables_of_a_module_here(box):
    def init(key, shape, dtype):
        return box(jnp.ones(shape, dtype), ("in", "out"))

    stacked = nn.vmap(
        nn.Dense,
        variable_axes={"params": -1},
        split_rngs={"params": True},
        in_axes=None,
        axis_size=3,
        metadata_params={nn.PARTITION_NAME: "heads"},
    )
    variables = nn.Dense(3, kernel_init=init).init(jax.random.key(0), X)
    assert nn.Dense(3).apply(variables, X).shape == (4, 3)
    many = jax.tree.map(lambda x: jnp.stack([x] * 3, axis=-1), variables)
    many = nn.meta.add_axis(many, 2, {nn.PARTITION_NAME: "heads"})
    assert many["params"]["kernel"].names == ("in", "out", "heads")
    assert stacked(3).apply(many, X).shape == (3, 4, 3)


class Counting(flax.linen.Module):
    @flax.linen.compact
    def __call__(self, x):
        count = self.variable("stats", "count", jnp.zeros, ())
        count.value += 1
        return flax.linen.Dense(3, name="dense")(x)


@pytest.mark.parametrize("box", [nn.Partitioned, nn.LogicallyPartitioned])
def test_boxes_here_around_variables_of_a_module_of_flax(box):
    model = nn.FlaxModule(Counting())
    variables = model.init(jax.random.key(0), X)
    expected = model.apply(variables, X, mutable=["stats"])[0]
    variables["params"]["dense"]["kernel"] = box(
        variables["params"]["dense"]["kernel"], ("in", "out")
    )
    variables["stats"]["count"] = box(jnp.array(4.0), ())
    out, updates = model.apply(variables, X, mutable=["stats"])
    np.testing.assert_array_equal(out, expected)
    count = updates["stats"]["count"]
    assert type(count) is box and float(nn.unbox(count)) == 5


def test_variables_of_a_live_module_of_flax_may_have_metadata():
    live = bridge.ToNNX(nn.FlaxModule(Counting()), rngs=nnx.Rngs(0)).lazy_init(X)
    expected = live(X)
    live.count.unit = "calls"
    live.dense.kernel.out_sharding = ("in", "out")
    np.testing.assert_array_equal(live(X), expected)
    assert live.count.value == 3 and live.count.unit == "calls"


@pytest.mark.parametrize(
    "make",
    [nn.jit, lambda m: nn.vmap(type(m)), lambda m: nn.init(lambda d, x: d(x), m)],
)
def test_a_bare_one_is_refused_with_the_way_out(make):
    with pytest.raises(nn.LinenLiftError, match="wrap an instance in FlaxModule"):
        make(flax.linen.Dense(3))


def test_an_error_about_one_that_is_called_as_it_is_tells_the_way_out():
    class Outer(nn.Module):
        @nn.compact
        def __call__(self, x):
            return Inner()(x)

    class Inner(nn.Module):
        @nn.compact
        def __call__(self, x):
            return flax.linen.Dense(3)(x)

    with pytest.raises(flax.errors.CallCompactUnboundModuleError) as found:
        Outer().init(keys(), X)
    (note,) = found.value.__notes__
    assert "FlaxModule(flax.linen.Dense(3))" in note
