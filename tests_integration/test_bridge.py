"""Both worlds in one model, beside Flax's own bridge."""

import dataclasses

import flax.linen
import flax.nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import linen_lift as nn
import nnx_transforms as nnx
from nnx_transforms import bridge

X = jnp.arange(8.0).reshape(4, 2)


class Block(nn.Module):
    @nn.compact
    def __call__(self, x, train=True):
        x = nn.Dense(3)(x)
        x = nn.BatchNorm(use_running_average=not train)(x)
        return nn.Dropout(0.5, deterministic=not train)(x)


class Live(nnx.Module):
    def __init__(self, rngs):
        self.layers = [nnx.Linear(2, 3, rngs=rngs)]
        self.norm = nnx.BatchNorm(3, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        return self.drop(self.norm(self.layers[0](x)))


def keys():
    return {"params": jax.random.key(0), "dropout": jax.random.key(1)}


@pytest.fixture
def block():
    return bridge.ToNNX(Block(), rngs=nnx.Rngs(0, dropout=1)).lazy_init(X)


def test_variables_stand_where_they_do_in_flax(block):
    class Theirs(flax.linen.Module):
        @flax.linen.compact
        def __call__(self, x):
            x = flax.linen.Dense(3)(x)
            return flax.linen.BatchNorm(use_running_average=False)(x)

    theirs = flax.nnx.bridge.ToNNX(Theirs(), rngs=flax.nnx.Rngs(0, dropout=1))
    theirs.lazy_init(X)
    of_theirs = {
        path: type(leaf).__name__
        for path, leaf in flax.nnx.to_flat_state(flax.nnx.state(theirs))
    }
    state = nnx.state(block).flat_state()
    assert {path: leaf.type.__name__ for path, leaf in state} == of_theirs


def test_equal_modules_with_settings_that_have_no_hash_are_the_same():
    @dataclasses.dataclass
    class Settings:
        width: int

    class Configured(nn.Module):
        settings: list[Settings]

        @nn.compact
        def __call__(self, x):
            return nn.Dense(self.settings[0].width)(x)

    def make(key, width=3):
        module = Configured([Settings(width)])
        return nnx.split(bridge.ToNNX(module, rngs=nnx.Rngs(key)).lazy_init(X))

    # As a training script does that learns from the shapes where its state shall lie.
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    shapes = jax.eval_shape(make, jax.random.key(0))
    places = jax.tree.map(lambda _: device, shapes)
    made = jax.jit(lambda key: make(key), out_shardings=places)  # traced once more
    graphdef, state = made(jax.random.key(0))
    assert graphdef == shapes[0] != make(jax.random.key(0), width=4)[0]

    traced = []
    call = nnx.jit(lambda model, x: traced.append(model) or model(x))
    for model in (nnx.merge(graphdef, state), nnx.merge(*make(1))):
        call(model, X)
    assert len(traced) == 1
    model.to_nnx__module.settings[0].width = 4
    with pytest.raises(nn.errors.ScopeParamShapeError):
        call(model, X)


def test_a_step_updates_statistics_and_draws_other_keys(block):
    mean = block.BatchNorm_0.mean
    before = mean.value
    step = nnx.jit(lambda block, x: block(x))
    first, second = step(block, X), step(block, X)
    assert not (first == second).all()
    assert block.BatchNorm_0.mean is mean and not (mean.value == before).all()
    # Where nothing may be written, the output comes alone, too.
    after = mean.value
    fixed = block(X, train=False, mutable=False)
    np.testing.assert_array_equal(fixed, block(X, train=False))
    assert mean.value is after


def test_gradients_equal_those_of_the_module(block):
    grads = nnx.grad(lambda block: (block(X, train=False) ** 2).sum())(block)
    variables = block._collections()

    def loss(params):
        out = Block().apply({**variables, "params": params}, X, train=False)
        return (out**2).sum()

    expected = jax.grad(loss)(variables["params"])
    np.testing.assert_allclose(
        grads["Dense_0"]["kernel"].value, expected["Dense_0"]["kernel"], rtol=1e-5
    )


def test_a_part_may_be_called_as_what_the_object_has_itself():
    class Named(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.Dense(2, name="module")(x)
            return x * self.param("rngs", nn.initializers.ones, (2,))

    live = bridge.ToNNX(Named(), rngs=nnx.Rngs(0)).lazy_init(X)
    assert live.module.kernel.value.shape == (2, 2) and live.rngs.value.shape == (2,)
    assert isinstance(live.to_nnx__module, Named) and live(X).shape == (4, 2)
    plain = bridge.ToNNX(nn.Dense(2), rngs=nnx.Rngs(0))
    assert plain.module is plain.to_nnx__module and plain.rngs is plain.to_nnx__rngs
    # What it has itself is none of the module's variables.
    assert {*plain.lazy_init(X)(X, method=lambda m, x: m.variables)} == {"params"}


def test_what_is_not_made_yet_says_how():
    with pytest.raises(ValueError, match="lazy_init"):
        bridge.ToNNX(nn.Dense(3), rngs=nnx.Rngs(0))(X)
    with pytest.raises(TypeError, match="linen-lift"):
        bridge.ToNNX(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))


def test_all_that_a_module_reaches_is_made_by_a_call_of_it():
    class Around(nnx.Module):
        def __init__(self, rngs):
            self.dense = bridge.ToNNX(nn.Dense(3), rngs=rngs)
            self.layers = [bridge.ToNNX(nn.Dense(2), rngs=rngs)]
            self.bias = nnx.Param(rngs.params.uniform((2,)))

        def __call__(self, x):
            return self.layers[0](self.dense(x)) + self.bias

    model = Around(nnx.Rngs(0))
    assert bridge.lazy_init(model, X) is model
    assert model.dense.kernel.value.shape == (2, 3)
    assert model(X).shape == (4, 2)
    # The object's draws are its own, so others get the keys that they get in Flax.
    rngs = flax.nnx.Rngs(0)
    flax.nnx.bridge.ToNNX(flax.linen.Dense(3), rngs=rngs)
    flax.nnx.bridge.ToNNX(flax.linen.Dense(2), rngs=rngs)
    np.testing.assert_array_equal(model.bias.value, rngs.params.uniform((2,)))
    with pytest.raises(ValueError, match="lazy_init"):
        Around(nnx.Rngs(0))(X)


def test_what_a_module_maps_is_made_by_a_call_of_it():
    def made(nnx, linen, bridge):
        class Around(nnx.Module):
            def __init__(self, rngs):
                self.inner = bridge.ToNNX(linen.Dense(3), rngs=rngs)

            def __call__(self, x):
                @nnx.split_rngs(splits=5)
                @nnx.vmap(in_axes=(0, None), axis_size=5)
                def mapped(inner, x):
                    return inner(x)

                return mapped(self.inner, x)

        model = bridge.lazy_init(Around(nnx.Rngs(0)), X)
        assert not (model.inner.kernel[0] == model.inner.kernel[1]).all()
        return model.inner.kernel.shape, model.inner.bias.shape, model(X).shape

    theirs = made(flax.nnx, flax.linen, flax.nnx.bridge)
    assert made(nnx, nn, bridge) == theirs == ((5, 2, 3), (5, 3), (5, 4, 3))


def test_a_collection_of_another_name_is_a_type_of_its_own():
    class Counting(nn.Module):
        @nn.compact
        def __call__(self, x):
            count = self.variable("calls_seen", "count", lambda: jnp.zeros((), int))
            count.value += 1
            return x

    model = bridge.ToNNX(Counting()).lazy_init(X)
    kind = type(model.count)
    assert kind.__name__ == "calls_seen" and type(model.count) is not nnx.Variable
    model(X)
    assert nnx.state(model, kind).count.value == 2
    # Another object has variables of the same type.
    assert type(bridge.ToNNX(Counting()).lazy_init(X).count) is kind


def test_first_values_are_those_before_the_call():
    class Counter(nnx.Module):
        def __init__(self, rngs):
            self.count = nnx.Cache(jnp.array(0))

        def __call__(self, x):
            self.count.value += 1
            return x

    module = bridge.to_linen(Counter)
    variables = module.init(keys(), X)
    assert variables["cache"]["count"] == 0
    _, updates = module.apply(variables, X, mutable=["cache"])
    assert updates["cache"]["count"] == 1

    class Twice(nn.Module):
        @nn.compact
        def __call__(self, x):
            counter = bridge.to_linen(Counter, name="counter")
            return counter(counter(x))

    variables = Twice().init(keys(), X)
    assert variables["cache"]["counter"]["count"] == 0
    _, updates = Twice().apply(variables, X, mutable=["cache"])
    assert updates["cache"]["counter"]["count"] == 2


def test_a_live_object_in_linen_writes_what_is_mutable():
    module = bridge.ToLinen(Live)
    variables = module.init(keys(), X)
    assert variables["params"]["layers"]["0"]["kernel"].shape == (2, 3)
    rngs = {"dropout": jax.random.key(1)}
    out, updates = module.apply(variables, X, rngs=rngs, mutable=["batch_stats"])
    again, _ = module.apply(variables, X, rngs=rngs, mutable=["batch_stats"])
    np.testing.assert_array_equal(out, again)
    assert not (updates["batch_stats"]["norm"]["mean"] == 0).all()
    with pytest.raises(nn.LinenLiftError, match="not mutable"):
        module.apply(variables, X, rngs=rngs)
    with pytest.raises(ValueError, match="none of this name was given"):
        module.apply(variables, X, mutable=["batch_stats"])


class Summed(nnx.Module):
    def __init__(self, rngs):
        self.scale = nnx.Param(jnp.ones(2), out_sharding=("x",))
        self.total = nnx.BatchStat(jnp.zeros(2), out_sharding=("x",))

    def __call__(self, x):
        self.total.value += x.sum(0)
        return x * self.scale


@pytest.mark.parametrize("is_boxed", [True, False])
def test_what_is_written_is_in_a_box_where_it_was_in_one(is_boxed):
    module = bridge.ToLinen(Summed)
    variables = module.init(keys(), X)
    assert isinstance(variables["params"]["scale"], bridge.NNXMeta)
    if not is_boxed:
        variables = nn.unbox(variables)
    for metadata_fn in bridge.to_linen_var, None:
        module = bridge.ToLinen(Summed, metadata_fn=metadata_fn)
        _, after = module.apply(variables, X, mutable=True)
        assert jax.tree.structure(after) == jax.tree.structure(variables)
        total = nn.unbox(after)["batch_stats"]["total"]
        np.testing.assert_array_equal(total, X.sum(0))


def test_variables_in_collections_that_are_not_mapped():
    module = nn.map_variables(bridge.ToLinen, "params", init=True)(Summed)
    variables = nn.unbox(module.init(keys(), X))
    values = jax.tree.map(lambda x: x.tolist(), variables)
    assert values == {"params": {"scale": [1, 1]}, "batch_stats": {"total": [0, 0]}}
    out, _ = module.apply(variables, X, mutable=["batch_stats"])
    np.testing.assert_array_equal(out, X)


def test_layers_of_a_live_object_draw_other_keys():
    class Drops(nnx.Module):
        def __init__(self, rngs):
            split = nnx.split_rngs(splits=3)
            make = split(nnx.vmap(lambda rngs: nnx.Dropout(0.5, rngs=rngs)))
            self.drops = [nnx.Dropout(0.5, rngs=rngs) for _ in range(2)]
            self.mapped = make(rngs)

        def __call__(self, x):
            mapped = nnx.vmap(lambda drop, x: drop(x), in_axes=(0, None))
            return [*(drop(x) for drop in self.drops), *mapped(self.mapped, x)]

    module, x = bridge.ToLinen(Drops), jnp.ones(16)
    first, variables = module.init_with_output(keys(), x)
    rngs = {"dropout": jax.random.key(2)}
    masks, again = (module.apply(variables, x, rngs=rngs) for _ in range(2))
    np.testing.assert_array_equal(masks, again)
    # As in linen-lift, the stream `params` stands for others.
    given = ({"params": jax.random.key(i)} for i in range(2))
    one, two = (module.apply(variables, x, rngs=rngs) for rngs in given)
    assert not np.array_equal(one, two)
    for found in first, masks:
        assert len(np.unique(np.stack(found), axis=0)) == 5


def test_lifted_transforms_of_a_live_object():
    class Outer(nn.Module):
        @nn.compact
        def __call__(self, x):
            stack = nn.vmap(
                bridge.ToLinen,
                variable_axes={"params": 0, "batch_stats": 0},
                split_rngs={"params": True, "dropout": True},
                in_axes=None,
                axis_size=3,
            )
            return stack(Live)(x)

    variables = Outer().init(keys(), X)
    kernel = variables["params"]["VmapToLinen_0"]["layers"]["0"]["kernel"]
    assert kernel.shape == (3, 2, 3) and not (kernel[0] == kernel[1]).all()


def test_there_and_back():
    module = bridge.to_linen(nnx.Linear, 2, 3)
    live = bridge.ToNNX(module, rngs=nnx.Rngs(0)).lazy_init(X)
    variables = live._collections()
    np.testing.assert_allclose(live(X), module.apply(variables, X), rtol=1e-6)


def test_streams_that_nobody_draws_from_need_not_be_given():
    class Mid(nnx.Module):
        def __init__(self, rate, rngs):
            self.dense = bridge.ToNNX(nn.Dense(2), rngs=rngs).lazy_init(X)
            drop = nn.Dropout(rate, deterministic=False)
            self.drop = bridge.ToNNX(drop, rngs=rngs).lazy_init(X)

        def __call__(self, x):
            return self.drop(self.dense(x))

    none = bridge.ToLinen(lambda: bridge.ToNNX(nn.Dropout(0.5)), skip_rng=True)
    with pytest.raises(ValueError, match="lazy_init"):
        none.apply({}, X)
    module = bridge.to_linen(Mid, rate=0.0, abstract_init=False)
    assert module.rate == 0.0
    variables = module.init(keys(), X)
    assert module.apply(variables, X).shape == (4, 2)
    drops = bridge.to_linen(Mid, rate=0.5)
    rngs = {"dropout": jax.random.key(2)}
    dropped = drops.apply(variables, jnp.ones((9, 2)), rngs=rngs) == 0
    assert dropped.any() and not dropped.all()
    with pytest.raises(nn.LinenLiftError, match="dropout"):
        drops.apply(variables, X)


def sharded(linen, nnx, bridge):
    """Modules whose kernels have a sharding, put into the other world and back."""
    init = linen.with_partitioning(linen.initializers.ones, (None, "model"))
    of_rules = linen.with_logical_partitioning(
        linen.initializers.ones, ("in", "out"), rules=(("out", "model"),)
    )
    dense = bridge.ToNNX(linen.Dense(4, kernel_init=init), rngs=nnx.Rngs(0))
    logical = bridge.ToNNX(linen.Dense(4, kernel_init=of_rules), rngs=nnx.Rngs(0))
    for live in (dense, logical):
        live.lazy_init(X)
    yield from (v.out_sharding for v in (dense.kernel, logical.kernel))
    yield logical.kernel.sharding_rules
    yield nnx.spmd.get_var_pspec(logical.kernel), nnx.spmd.get_var_pspec(dense.bias)
    yield type(dense.kernel.get_metadata("linen_meta_type")) is type
    yield dense(X), nnx.grad(lambda dense: dense(X).sum())(dense)["kernel"][...]

    plain = nnx.with_partitioning(nnx.initializers.ones, ("in", "out"))
    boxed = bridge.with_partitioning(nnx.initializers.ones, ("in", "out"))
    for kernel_init, more in ((plain, {}), (boxed, {}), (plain, {"metadata_fn": None})):
        module = bridge.to_linen(nnx.Linear, 2, 3, kernel_init=kernel_init, **more)
        variables = module.init(keys(), X)
        kernel = variables["params"]["kernel"]
        yield type(kernel).__name__ if more == {} else kernel.shape
        yield linen.get_partition_spec(variables)["params"]
        yield module.apply(variables, X), module.apply(linen.unbox(variables), X)
        if type(kernel) is bridge.NNXMeta:
            yield kernel.metadata["out_sharding"], kernel.var_type is nnx.Param
            yield kernel.replace_boxed(1).unbox()
            yield kernel.to_nnx_variable().out_sharding


def test_shardings_go_along():
    ours = list(sharded(nn, nnx, bridge))
    with flax.nnx.use_eager_sharding(False):  # it needs a mesh
        theirs = list(sharded(flax.linen, flax.nnx, flax.nnx.bridge))
    for found, due in zip(ours, theirs, strict=True):
        jax.tree.map(np.testing.assert_array_equal, found, due)


def test_a_lifted_transform_names_the_axis_that_it_adds():
    # Flax leaves its boxes as they are.
    init = nnx.with_partitioning(nnx.initializers.ones, ("in", "out"))

    class Outer(nn.Module):
        @nn.compact
        def __call__(self, x):
            stack = nn.vmap(
                bridge.ToLinen,
                variable_axes={"params": 0},
                split_rngs={"params": True},
                in_axes=None,
                axis_size=3,
                metadata_params={nn.PARTITION_NAME: "layers"},
            )
            return stack(nnx.Linear, (2, 3), {"kernel_init": init})(x)

    variables = Outer().init(keys(), X)
    specs = nn.get_partition_spec(variables)["params"]["VmapToLinen_0"]
    assert tuple(specs["kernel"]) == ("layers", "in", "out")
    assert Outer().apply(variables, X).shape == (3, 4, 3)


def methods(linen, nnx, bridge):
    class Coder(linen.Module):
        def setup(self):
            self.dense = linen.Dense(3, kernel_init=linen.initializers.ones)

        def __call__(self, x):
            return self.encode(x) + 1

        def encode(self, x):
            return self.dense(x)

    class LiveCoder(nnx.Module):
        def __init__(self, rngs):
            self.w = nnx.Param(jnp.ones((2, 3)))

        def __call__(self, x):
            return self.encode(x) + 1

        def encode(self, x):
            return x @ self.w[...]

    live = bridge.ToNNX(Coder(), rngs=jax.random.key(0))
    bridge.lazy_init(live.encode, X)
    yield live.encode(X), live(X), live(X, method="encode")
    yield live(X, rngs=jax.random.key(1))
    assert not hasattr(live, "decode")
    module = bridge.to_linen(LiveCoder)
    variables = module.init(keys(), X)
    yield module.apply(variables, X, nnx_method="encode"), module.apply(variables, X)
    yield module.init_with_output(keys(), X, nnx_method=LiveCoder.encode)[0]

    class Outer(linen.Module):
        def setup(self):
            self.coder = bridge.to_linen(LiveCoder)

        def __call__(self, x):
            assert not hasattr(self.coder, "decode")
            return self.coder.encode(x)

    yield Outer().init_with_output(keys(), X)


def test_methods():
    ours = list(methods(nn, nnx, bridge))
    theirs = list(methods(flax.linen, flax.nnx, flax.nnx.bridge))
    for found, due in zip(ours, theirs, strict=True):
        jax.tree.map(np.testing.assert_array_equal, found, due)


def test_a_box_of_another_kind():
    class Tagged(nn.Partitioned):
        tag: str = "kernel"

    box = Tagged(jnp.ones((2, 3)), (None, "model"), tag="w")
    variable = bridge.to_nnx_var("params", box)
    assert variable.tag == "w"
    back = bridge.to_linen_var(nnx.state(nnx.Dict(a=variable)).a)
    assert type(back) is Tagged and (back.tag, back.names) == ("w", box.names)

    # What the initializer says is what its box says, and nothing else.
    init = bridge.with_partitioning(nn.initializers.ones, (None, "model"))
    param = nnx.Param(init(jax.random.key(0), (2, 3)))
    back = bridge.to_nnx_var("params", bridge.to_linen_var(param))
    assert back.get_metadata() == param.get_metadata()
    # In the box that it made, a variable is of its own type.
    box = bridge.to_linen_var(nnx.LoRAParam(1.0, unit="m"))
    variable = bridge.to_nnx_var("params", box)
    assert type(variable) is nnx.LoRAParam and variable.get_metadata() == {"unit": "m"}

    class Odd(nn.AxisMetadata):
        def unbox(self):
            return 1

        replace_boxed = add_axis = remove_axis = unbox

    with pytest.raises(TypeError, match="Odd is no dataclass"):
        bridge.to_nnx_var("params", Odd())


def test_an_intermediate_that_the_constructor_makes():
    class Doubled(nnx.Module):
        def __init__(self):
            self.last = nnx.Intermediate(jnp.zeros((4, 2)))

        def __call__(self, x):
            self.last.value = 2 * x
            return x

    model = bridge.ToLinen(Doubled, skip_rng=True)
    with pytest.raises(ValueError, match="mutable=True"):
        model.apply(model.init({}, X), X)
    variables = model.init({}, X, mutable=True)
    _, left = model.apply(variables, X, mutable=["intermediates"])
    np.testing.assert_array_equal(left["intermediates"]["last"], 2 * X)
