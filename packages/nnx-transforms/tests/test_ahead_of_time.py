"""`jit` ahead of time, and abstract evaluation."""

import copy
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jitted_models import Model, assert_unchanged, counting, snapshot

import nnx_transforms as nnx

# Ahead of time


def test_lower_and_compile():
    model, x = Model(), jnp.ones(3)
    f, traces = counting(lambda m, x, k: m(x) * k)
    jitted = nnx.jit(f, static_argnums=2)
    lowered = jitted.lower(model, x, 2)
    assert "multiply" in lowered.as_text()
    compiled = lowered.compile()
    assert int(model.blocks[0].n.value) == 0
    expected = nnx.jit(f, static_argnums=2)(Model(), x, 2)
    np.testing.assert_allclose(compiled(model, x), expected)
    assert int(model.blocks[0].n.value) == 1
    assert compiled.cost_analysis() is not None
    assert "cost_analysis" in dir(compiled) and "as_text" in dir(lowered)
    model.blocks[0].rate = 7
    differs = r"another structure(.|\n)*differs:\nargs/0/blocks/0/rate: .* -> 7$"
    with pytest.raises(TypeError, match=differs):
        compiled(model, x)
    assert len(traces) == 1


def test_objects_where_it_was_compiled_for_none_and_none_where_for_some():
    f = nnx.jit(lambda x: x)
    model, x = Model(), jnp.ones(3)
    with pytest.raises(TypeError, match="with objects, but there are none among"):
        f.lower(model).compile()(x)
    with pytest.raises(TypeError, match="with no objects, but there are some among"):
        f.lower(x).compile()(model)


def test_copies_of_stages():
    model, x = Model(), jnp.ones(3)
    traced = copy.copy(nnx.jit(lambda m, x: m(x)).trace(model, x))
    compiled = copy.copy(copy.copy(traced.lower()).compile())
    np.testing.assert_allclose(compiled(model, x), Model()(x))


def test_static_arguments_are_left_out_of_compiled_calls():
    model, x = Model(), jnp.ones(3)
    f = lambda k, m, x, *, n: m(x) * k + n
    jitted = nnx.jit(f, static_argnums=0, static_argnames="n")
    compiled = jitted.lower(2, model, x, n=1).compile()
    np.testing.assert_allclose(compiled(Model(), x), f(2, Model(), x, n=1))
    plain = nnx.jit(lambda k, x: k * x, static_argnums=0).lower(2, 1.0).compile()
    assert plain(4.0) == 8
    with pytest.raises(TypeError):
        plain(2, 4.0)


def test_stages_say_of_the_output_what_jax_says():
    def f(x):
        return {"a": x + 1, "b": (x, None)}

    for call in ((1.0,), (jnp.ones(3),)):
        ours, theirs = nnx.jit(f).trace(*call), jax.jit(f).trace(*call)
        assert ours.out_info == theirs.out_info
        if hasattr(theirs, "out_avals"):  # not in older JAX
            assert ours.out_avals == theirs.out_avals
        assert ours.lower().out_tree == theirs.lower().out_tree
        ours, theirs = ours.lower().compile({}), theirs.lower().compile({})
        assert ours.output_shardings == theirs.output_shardings
    lowered = nnx.jit(lambda m, x: m(x)).lower(Model(), jnp.ones(3))
    assert lowered.out_info == jax.ShapeDtypeStruct((3,), jnp.float32)


def call_in_a_dict(scale, batch, v, *, mode):
    return (batch["models"][0](batch["x"]) * scale + v.value).sum()


@pytest.mark.parametrize(
    ("options", "donated"),
    [
        ({}, ()),
        ({"donate_argnums": 2}, (17,)),
        ({"donate_state": True}, (0, 2, 8, 10)),
    ],
)
def test_stages_say_of_the_arguments_what_was_given(options, donated):
    model, v, x = Model(), nnx.Variable(jnp.ones(3)), jnp.ones(3)
    f = nnx.jit(call_in_a_dict, static_argnums=0, static_argnames="mode", **options)
    traced = f.trace(2, {"models": [model, model], "x": x}, v, mode="a")
    given = (
        {"models": [nnx.state(model)] * 2, "x": x},
        nnx.VariableState(nnx.Variable, v.value),
    )
    assert traced.in_tree == jax.tree.structure((given, {}))
    shapes = jax.tree.map(lambda x: x.shape, traced.lower().in_avals)
    assert shapes == jax.tree.map(jnp.shape, (given, {}))
    compiled = traced.lower().compile()
    assert compiled.donate_argnums == donated
    for (batch, of_v), named in (compiled.input_shardings, compiled.input_formats):
        placed = jax.device_put(v.value, of_v.value)
        nnx.update(model, jax.device_put(nnx.state(model), batch["models"][0]))
        assert named == {} and placed.shape == (3,)


def test_a_compiled_function_outlives_the_cache():
    model, x = Model(), jnp.ones(3)
    jitted = nnx.jit(lambda m, x: m(x))
    compiled = jitted.lower(model, x).compile()
    jitted.clear_cache()
    compiled(model, x)
    assert int(model.blocks[0].n.value) == 1


class Counter(nnx.Module):
    def __init__(self):
        self.n = nnx.BatchStat(jnp.array(0))

    @nnx.jit
    def add(self, x):
        """Counts."""
        self.n.value += x
        return x * 2


@pytest.mark.parametrize("options", [{"donate_state": True}, {"donate_argnums": 0}])
@pytest.mark.parametrize("shared", [False, True])
def test_donation_of_arrays_that_are_shared_at_some_calls(options, shared):
    def follow(net, target):
        net.w.value *= 2
        net.key.value = jax.random.fold_in(net.key.value, 1)
        target.w.value = target.w.value + net.w.value

    def pair(shared):
        net = nnx.Dict(w=nnx.Param(jnp.ones(2)), key=nnx.Variable(jax.random.key(0)))
        return net, nnx.clone(net, arrays=not shared)

    compiled = nnx.jit(follow, **options).lower(*pair(shared)).compile()
    for now in (shared, not shared):
        net, target = pair(now)
        before, key = target.w.value, target.key.value
        compiled(net, target)
        w = net.w.value
        compiled(net, target)
        assert w.is_deleted() and not key.is_deleted()
        assert before.is_deleted() == ("donate_state" in options and not now)
        np.testing.assert_array_equal(net.w.value, [4.0, 4.0])
        np.testing.assert_array_equal(target.w.value, [7.0, 7.0])


def test_stages_of_a_bound_method():
    counter = Counter()
    assert counter.add.lower(3).compile()(4) == 8
    assert int(counter.n.value) == 4
    assert counter.add.eval_shape(3).shape == ()
    assert int(counter.n.value) == 4
    assert (counter.add.__name__, counter.add.__doc__) == ("add", "Counts.")


def test_lowering_with_abstract_values():
    model = nnx.eval_shape(Model)
    x = jax.ShapeDtypeStruct((3,), jnp.float32)
    compiled = nnx.jit(lambda m, x: m(x)).lower(model, x).compile()
    real = Model()
    assert compiled(real, jnp.ones(3)).shape == (3,)
    assert int(real.blocks[1].n.value) == 1


def test_shapes_of_what_is_jitted_have_its_shardings_and_are_its_trace():
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    f, traces = counting(lambda x, k: x * k)
    jitted = nnx.jit(f, static_argnums=1, out_shardings=sharding)
    found = jitted.eval_shape(jnp.ones(3), 2)
    assert (found.shape, found.sharding) == ((3,), sharding)
    assert float(jitted(jnp.ones(3), 2).sum()) == 6.0 and len(traces) == 1
    assert nnx.eval_shape(jitted, jnp.ones(3), 2) == found and len(traces) == 1


@pytest.mark.parametrize("jit", [jax.jit, nnx.jit])
def test_eval_shape_of_what_is_jitted_with_static_arguments(jit):
    def tile(model, k):
        return nnx.Dict(w=nnx.Param(jnp.tile(model.w.value, k)))

    model = nnx.Dict(w=nnx.Param(jnp.ones(3)))
    shapes = nnx.eval_shape(jit(tile, static_argnums=1), model, 2)
    assert type(shapes) is nnx.Dict and shapes.w.shape == (6,)
    method = functools.partial(jit(tile, static_argnames="k"), k=3)
    assert nnx.eval_shape(method, model).w.shape == (9,)


def test_eval_shape_publishes_nothing():
    model = Model()
    before = snapshot(model)

    def f(m, x):
        m(x)
        m.made = nnx.Param(jnp.ones((5, 5)))
        return m, m.made, m.made

    same, made, again = nnx.eval_shape(f, model, jnp.ones(3))
    assert_unchanged(before, model)
    assert same is not model
    assert made is again
    assert same.made is made
    assert made.value == jax.ShapeDtypeStruct((5, 5), jnp.float32)
    assert nnx.jit(f).eval_shape(model, jnp.ones(3))[1].value.shape == (5, 5)


def test_export_takes_functions_of_arrays():
    model, x = nnx.Dict(w=nnx.Param(jnp.arange(3.0))), jnp.ones((1, 3))
    with pytest.raises(TypeError, match=r"`merge\(graphdef, state\)` inside"):
        export.export(nnx.jit(lambda model, x: model.w.value * x))(model, x)
    graphdef, state = nnx.split(model)

    @nnx.jit
    def scale(state, x):
        return nnx.merge(graphdef, state).w.value * x

    batch = jax.ShapeDtypeStruct(export.symbolic_shape("n, 3"), jnp.float32)
    exported = export.export(scale)(state, batch)
    for n in (1, 4):
        xs = jnp.ones((n, 3))
        assert exported.call(state, xs).tolist() == (model.w.value * xs).tolist()
