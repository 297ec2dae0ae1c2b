"""Axes and shardings of Equinox modules: by functions of leaves, and by trees."""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import nnx_transforms as nnx

X = jnp.ones(2)
KEYS = jax.random.split(jax.random.key(0), 3)


def make(key):
    return eqx.nn.MLP(2, 2, 4, 1, key=key)


def call(net, x):
    return net(x)


def bias_of(net):
    return net.layers[0].bias


@pytest.fixture(scope="module")
def mlp():
    return make(jax.random.key(1))


@pytest.fixture(scope="module")
def ensemble():
    return eqx.filter_vmap(make)(KEYS)


@pytest.fixture(scope="module")
def biases(mlp):
    """A module with three biases in the place of one, and the axes for it."""
    nothing = jax.tree.map(lambda _: None, mlp)
    axes = eqx.tree_at(bias_of, nothing, 0, is_leaf=lambda x: x is None)
    return eqx.tree_at(bias_of, mlp, jnp.arange(12.0).reshape(3, 4)), axes


def same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)

    def compare(x, y):
        if eqx.is_array(y):
            assert x.shape == y.shape and x.dtype == y.dtype
            np.testing.assert_allclose(x, y, rtol=1e-6)
        else:
            assert x is y

    jax.tree.map(compare, a, b)


IN_AXES = {
    "for all arguments": (eqx.if_array(0), jnp.ones((3, 2))),
    "for the module": ((eqx.if_array(0), None), X),
    "for the array": ((eqx.if_array(0), eqx.if_array(1)), jnp.ones((2, 3))),
    "of one's own": ((lambda x: 0 if eqx.is_array(x) else None, None), X),
}


@pytest.mark.parametrize("where", IN_AXES)
@pytest.mark.parametrize("jitted", [False, True])
def test_functions_from_leaves_to_axes(ensemble, where, jitted):
    in_axes, x = IN_AXES[where]
    mapped = nnx.vmap(call, in_axes=in_axes)
    mapped = nnx.jit(mapped) if jitted else mapped
    same(mapped(ensemble, x), eqx.filter_vmap(call, in_axes=in_axes)(ensemble, x))


def last_axis(x):
    return x.ndim - 1 if eqx.is_inexact_array(x) else None


@pytest.mark.parametrize(
    "out_axes", [eqx.if_array(0), (eqx.if_array(1), None), (-1, lambda x: None)]
)
def test_a_function_answers_for_each_leaf(out_axes):
    tree = {"a": jnp.ones((2, 3)), "b": [jnp.arange(3.0), jnp.array(7)]}

    def f(tree):
        return tree["a"] * tree["b"][0], tree["b"][1]

    axes = {"in_axes": (last_axis,), "out_axes": out_axes}
    same(nnx.vmap(f, **axes)(tree), eqx.filter_vmap(f, **axes)(tree))


def test_functions_over_keys_and_numbers():
    def f(key, number):
        return key, jax.random.normal(key) * number

    axes = {"in_axes": eqx.if_array(0), "out_axes": eqx.if_array(0)}
    keys, drawn = nnx.vmap(f, **axes)(KEYS, 3)
    assert (keys == KEYS).all()
    same(drawn, jax.vmap(lambda key: jax.random.normal(key) * 3)(KEYS))


def test_a_tree_of_axes_inside_of_a_module(biases):
    nets, axes = biases
    same(
        nnx.vmap(call, in_axes=(axes, None))(nets, X),
        eqx.filter_vmap(call, in_axes=(axes, None))(nets, X),
    )
    # In a container, and down to a node of the module only.
    short = eqx.tree_at(lambda n: n.layers, axes, (axes.layers[0], None))
    found = nnx.vmap(lambda d: d["net"](X), in_axes=({"net": short},))({"net": nets})
    same(found, nnx.vmap(call, in_axes=(axes, None))(nets, X))


def test_scan_takes_a_tree_of_axes_inside_of_a_module(biases):
    nets, axes = biases
    how = {"in_axes": (axes, nnx.Carry), "out_axes": (0, nnx.Carry)}
    each, _ = nnx.scan(lambda net, x: (net(x), x), **how)(nets, X)
    same(each, eqx.filter_vmap(call, in_axes=(axes, None))(nets, X))


@pytest.mark.parametrize("jitted", [False, True])
def test_axes_of_a_module_that_is_returned(biases, jitted):
    nets, axes = biases
    last = jax.tree.map(lambda axis: 1, axes)

    def bump(net):
        return eqx.tree_at(bias_of, net, replace_fn=lambda b: b + 1)

    for out_axes in (axes, last, eqx.if_array(0)):
        mapped = nnx.vmap(bump, in_axes=(axes,), out_axes=out_axes)
        due = eqx.filter_vmap(bump, in_axes=(axes,), out_axes=out_axes)(nets)
        same((nnx.jit(mapped) if jitted else mapped)(nets), due)


def test_gradients_through_axes_of_leaves(biases):
    nets, axes = biases

    def loss(transform):
        def mean(nets):
            out = transform(call, in_axes=(axes, None), out_axes=eqx.if_array(1))
            return (out(nets, X) ** 2).mean()

        return mean

    same(nnx.grad(loss(nnx.vmap))(nets), eqx.filter_grad(loss(eqx.filter_vmap))(nets))


def test_objects_beside_modules_with_axes_of_leaves(ensemble):
    counter = nnx.Dict(calls=nnx.Variable(jnp.array(0)), seen=nnx.Variable(X))
    each = nnx.StateAxes({nnx.PathContains("seen"): 0, ...: None})

    def step(counter, net, x):
        counter.calls.value += 1
        counter.seen.value = net(x)[0]
        return counter, net

    counter.seen.value = jnp.zeros(3)
    out, nets = nnx.vmap(
        step, in_axes=(each, eqx.if_array(0), None), out_axes=(each, eqx.if_array(0))
    )(counter, ensemble, X)
    assert out is counter and int(counter.calls.value) == 1
    due = eqx.filter_vmap(call, in_axes=(eqx.if_array(0), None))(ensemble, X)
    same(counter.seen.value, due[:, 0])
    same(nets, ensemble)


def test_other_axes_are_another_structure(biases, mlp):
    nets, axes = biases
    mapped = nnx.vmap(call, in_axes=(axes, None), out_axes=eqx.if_array(1))
    other = nnx.vmap(call, in_axes=(axes, None), out_axes=eqx.if_array(0))
    for _ in range(2):
        assert mapped(nets, X).shape == (2, 3)
        assert other(nets, X).shape == (3, 2)


# Errors


@pytest.mark.parametrize("which", ["in_axes", "out_axes"])
def test_a_function_is_not_asked_about_an_object(which):
    layer = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
    axes = {"in_axes": None, "out_axes": None, "axis_size": 3}
    axes[which] = eqx.if_array(0)
    before = layer.kernel.value
    with pytest.raises(TypeError, match=rf"{which} has .* for a Linear at '0/net'"):
        nnx.vmap(lambda tree: (tree,), **axes)({"net": layer})
    assert layer.kernel.value is before


def test_what_a_function_answers_is_checked(mlp):
    with pytest.raises(TypeError, match="'first'"):
        nnx.vmap(lambda x: x, in_axes=(lambda x: "first",))(X)
    with pytest.raises(TypeError, match=r"out_axes must give .* 'first'"):
        nnx.vmap(lambda x: x, out_axes=lambda x: "first")(X)
    with pytest.raises(ValueError, match="1 entries"):
        nnx.vmap(call, in_axes=(eqx.if_array(0),))(mlp, X)


def test_axes_of_another_module_are_refused(biases):
    nets, _ = biases
    other = eqx.nn.MLP(2, 2, 4, 2, key=KEYS[0])
    axes = jax.tree.map(lambda _: None, other)
    with pytest.raises(ValueError, match="MLP"):
        nnx.vmap(call, in_axes=(axes, 0))(nets, jnp.ones((3, 2)))


@pytest.mark.parametrize("in_axes", [0, eqx.if_array(0)])
def test_sizes_that_differ_are_told_by_the_paths_in_a_module(ensemble, in_axes):
    lines = re.escape("0/layers/0/bias: axis 0 of shape (3, 4) has size 3")
    with pytest.raises(ValueError, match=lines):
        nnx.vmap(call, in_axes=in_axes)(ensemble, jnp.ones((4, 2)))


def shifted(net, x):
    return x, eqx.tree_at(bias_of, net, bias_of(net) + x)


def given(net, x):
    return x, {"x": x}


@pytest.mark.parametrize(
    ("f", "out_axes", "message"),
    [
        (shifted, (0, None), "The output at 'output/1/layers/0/bias' has axis None"),
        (given, (0, None), "The output at 'output/1/x' has axis None"),
        (given, (0, 2), "The output at 'output/1/x' is stacked along axis 2"),
        (shifted, (0, (0, 0)), "out_axes at '1' is a tuple of 2, .* there is a MLP"),
        (given, 0, None),
    ],
)
def test_axes_of_outputs_are_told_by_the_paths_in_the_output(mlp, f, out_axes, message):
    mapped = nnx.vmap(f, in_axes=(None, 0), out_axes=out_axes)
    if message is None:
        same(mapped(mlp, X), given(mlp, X))
        return
    with pytest.raises(ValueError, match=message):
        mapped(mlp, X)


@pytest.mark.parametrize("donated", [{}, {"donate_argnums": 0}])
@pytest.mark.parametrize("parted", [False, True])
def test_shardings_of_a_module_for_single_arrays(mlp, parted, donated):
    mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,))
    # Equinox's way for `jax.jit`: the arrays of a module, and None for all else.
    net = eqx.filter(mlp, eqx.is_array) if parted else mlp
    whole, split = (NamedSharding(mesh, PartitionSpec(*p)) for p in ((), ("x",)))
    placed = jax.tree.map(lambda x: whole if eqx.is_array(x) else x, net)
    placed = eqx.tree_at(bias_of, placed, split)

    def double(net):
        return jax.tree.map(lambda x: 2 * x if eqx.is_array(x) else x, net)

    counter = nnx.Variable(jnp.array(0))

    def step(net, counter):
        counter.value += 1
        return double(net), counter.value

    expected = double(net)
    given = double(jax.tree.map(lambda x: x / 2 if eqx.is_array(x) else x, net))
    jitted = nnx.jit(step, in_shardings=(placed, None), **donated)
    out, count = jitted(given, counter)
    same(out, expected)
    assert bias_of(out).sharding == split and int(count) == int(counter) == 1
    # Of the output, with objects and without arguments.
    out = nnx.jit(step, out_shardings=(placed, None))(net, counter)[0]
    same(out, expected)
    made = nnx.jit(lambda: double(net), out_shardings=placed)()
    same(made, expected)
    for x in (out, made):
        assert bias_of(x).sharding == split
        assert x.layers[1].weight.sharding == whole
    # Those of another module are refused.
    with pytest.raises(ValueError, match="out_shardings"):
        nnx.jit(lambda: double(net.layers[0]), out_shardings=placed)()


@pytest.mark.parametrize("donated", [{}, {"donate_argnums": 1}])
def test_a_sharding_in_a_module_may_be_for_a_part_of_it(mlp, donated):
    mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,))
    whole, split = (NamedSharding(mesh, PartitionSpec(*p)) for p in ((), ("x",)))
    first = eqx.tree_at(lambda net: net.layers[1], mlp, whole)
    placed = eqx.tree_at(lambda net: net.layers[0], first, split)

    def scaled(by, net, plus):
        return eqx.tree_at(bias_of, net, by * bias_of(net) + plus.value), plus.value

    plus = nnx.Variable(jnp.array(1.0))
    due, _ = scaled(2, mlp, plus)
    for shardings in (
        {"in_shardings": (placed, None)},
        {"out_shardings": (placed, None)},
        {"in_shardings": (placed, None), "out_shardings": (placed, whole)},
    ):
        f = nnx.jit(scaled, static_argnums=0, **shardings, **donated)
        for _ in range(2):
            net = jax.tree.map(lambda x: x + 0 if eqx.is_array(x) else x, mlp)
            out, _ = f(2, net, plus)
        same(out, due)
        assert f._cache_size() == 1
        if "out_shardings" in shardings:
            assert bias_of(out).sharding == out.layers[0].weight.sharding == split
            assert out.layers[1].bias.sharding == whole
    with pytest.raises(KeyError, match="'no'"):
        nnx.jit(lambda: {}["no"], out_shardings=placed)()
    # What has another cause is told as it is, before what JAX says of the shardings.
    odd = eqx.tree_at(bias_of, mlp, jnp.ones(3))
    with pytest.raises(ValueError, match="was given the sharding"):
        nnx.jit(scaled, static_argnums=0, in_shardings=(placed, None))(2, odd, plus)
    runs = []

    @nnx.jit(in_shardings=(placed, None))
    def fails(net, plus):
        runs.append(plus)
        raise ValueError(f"in run {len(runs)}")

    with pytest.raises(ValueError, match="in run 1"):
        fails(mlp, plus)


def transform_of(kind):
    return nnx.jit if kind == "compiled" else lambda f: f


@pytest.mark.parametrize("parted", [False, True])
@pytest.mark.parametrize("kind", ["eager", "compiled"])
def test_specs_of_a_module_for_single_arrays(mlp, parted, kind):
    mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,))
    whole, rows, columns = (PartitionSpec(*p) for p in ((), ("x",), (None, "x")))
    net = eqx.filter(mlp, eqx.is_array) if parted else mlp
    specs = jax.tree.map(lambda x: whole if eqx.is_array(x) else x, net)
    specs = eqx.tree_at(lambda m: m.layers[0], specs, rows)  # for a part of it
    specs = eqx.tree_at(lambda m: m.layers[1].weight, specs, columns)
    calls = nnx.Variable(jnp.array(0))

    def step(net, x, calls):
        calls.value += 1
        first, second = net.layers
        assert first.weight.shape == (2, 2) and second.bias.shape == (2,)
        hidden = jax.nn.relu(first.weight @ x + first.bias)
        y = jax.lax.psum(second.weight @ hidden, "x") + second.bias
        doubled = jax.tree.map(lambda w: 2 * w if eqx.is_array(w) else w, net)
        return doubled, y

    options = {"mesh": mesh, "in_specs": (specs, whole, None)}
    mapped = nnx.shard_map(step, out_specs=(specs, whole), **options)
    doubled, y = transform_of(kind)(mapped)(net, X, calls)
    same(doubled, jax.tree.map(lambda w: 2 * w if eqx.is_array(w) else w, net))
    np.testing.assert_allclose(y, mlp(X), rtol=1e-6)
    assert bias_of(doubled).sharding.spec == rows
    assert doubled.layers[1].weight.sharding.spec == columns
    assert int(calls) == 1
    # What doesn't fit is told by its path.
    same_all_over = jax.tree.map(lambda x: whole if eqx.is_array(x) else x, net)
    mapped = nnx.shard_map(step, out_specs=(same_all_over, whole), **options)
    with pytest.raises(ValueError, match="'output/0/layers/0/weight' has the spec"):
        mapped(net, X, calls)
    bad = eqx.tree_at(bias_of, same_all_over, PartitionSpec("x", "x"))
    mapped = nnx.shard_map(
        step, out_specs=whole, mesh=mesh, in_specs=(bad, whole, None)
    )
    with pytest.raises(ValueError, match="'0/layers/0/bias' cannot be sharded by"):
        mapped(net, X, calls)
    assert int(calls) == 1


def test_gradients_through_specs_of_a_module(mlp):
    mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,))
    nothing = jax.tree.map(lambda x: PartitionSpec(), mlp)
    specs = eqx.tree_at(lambda m: m.layers[0], nothing, PartitionSpec("x"))
    specs = eqx.tree_at(lambda m: m.layers[1].weight, specs, PartitionSpec(None, "x"))

    def call(net, x):
        hidden = jax.nn.relu(net.layers[0].weight @ x + net.layers[0].bias)
        return jax.lax.psum(net.layers[1].weight @ hidden, "x") + net.layers[1].bias

    mapped = nnx.shard_map(
        call, mesh=mesh, in_specs=(specs, PartitionSpec()), out_specs=PartitionSpec()
    )
    found = nnx.grad(lambda net: mapped(net, X).sum())(mlp)
    due = eqx.filter_grad(lambda net: net(X).sum())(mlp)
    same(found, due)


def test_functions_of_leaves_as_axes_of_pmap():
    count = jax.local_device_count()
    ensemble = eqx.filter_vmap(make)(jax.random.split(jax.random.key(0), count))
    calls = nnx.Variable(jnp.zeros(count))

    def counted(net, x, calls):
        calls.value += 1
        return net(x)

    run = nnx.pmap(counted, in_axes=(eqx.if_array(0), None, 0))
    due = eqx.filter_vmap(call, in_axes=(eqx.if_array(0), None))(ensemble, X)
    for _ in range(2):
        np.testing.assert_allclose(run(ensemble, X, calls), due, rtol=1e-6)
    assert calls.value.tolist() == [2.0] * count
