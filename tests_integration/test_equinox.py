"""Equinox modules among arguments, as values of variables, and as attributes."""

import gc as garbage
import re
import subprocess
import sys
import textwrap
import weakref

import equinox as eqx
import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import nnx_transforms as nnx
from nnx_transforms import saving

X = jnp.ones(2)


@pytest.fixture(scope="module")
def mlp():
    return eqx.nn.MLP(2, 2, 4, 1, key=jax.random.key(0))


def total(net, x):
    return net(x).sum()


def bump(net):
    return eqx.tree_at(lambda n: n.layers[0].bias, net, replace_fn=lambda b: b + 1)


def same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), a, b)


def arrays_of(tree):
    return eqx.filter(tree, eqx.is_inexact_array)


def copied(net):
    return jax.tree.map(lambda x: x.copy() if eqx.is_array(x) else x, net)


class Holder(nnx.Module):
    def __init__(self, net):
        self.net = nnx.Param(net)
        self.calls = nnx.Variable(jnp.array(0))

    def __call__(self, x):
        self.calls.value += 1
        return self.net.value(x)


# Arguments


def test_jit_traces_arrays_and_keeps_the_rest_static(mlp):
    traces = []

    @nnx.jit
    def call(net, batch):
        traces.append(net.layers[0].weight)
        return net, net(batch["x"]) * batch["n"]

    for n in (2, 3):
        net, y = call(mlp, {"x": X, "n": n})
        same(y, mlp(X) * n)
    assert len(traces) == 1 and isinstance(traces[0], jax.core.Tracer)
    assert net.activation is mlp.activation
    call(eqx.tree_at(lambda n: n.activation, mlp, jax.nn.tanh), {"x": X, "n": 2})
    assert len(traces) == 2


def test_numbers_in_a_module_are_static():
    dropout = eqx.nn.Dropout(0.5, inference=True)
    assert (nnx.jit(lambda d, x: d(x))(dropout, X) == X).all()
    assert (nnx.jit(lambda d, x: d.value(x))(nnx.Variable(dropout), X) == X).all()


def test_a_module_inside_of_containers_beside_objects(mlp):
    holder = Holder(mlp)
    step = nnx.jit(lambda h, d: h(X) + d["nets"][0](X))
    for _ in range(2):
        same(step(holder, {"nets": [mlp]}), 2 * mlp(X))
    assert int(holder.calls.value) == 2


def test_what_can_not_be_hashed_is_refused_with_its_path():
    class Odd(eqx.Module):
        w: jax.Array
        table: object

    class Table:
        __hash__ = None

    with pytest.raises(TypeError, match="table"):
        nnx.jit(lambda m: m.w)(Odd(X, Table()))


@pytest.mark.parametrize("jitted", [False, True])
def test_gradients_as_of_filter_grad(mlp, jitted):
    class Counted(eqx.Module):
        net: eqx.nn.MLP
        count: jax.Array

        def __call__(self, x):
            return self.net(x) * self.count

    net = Counted(mlp, jnp.array(2))
    mine, theirs = nnx.grad(total), eqx.filter_grad(total)
    same(nnx.jit(mine)(net, X) if jitted else mine(net, X), theirs(net, X))


def test_forward_and_reverse_mode_take_nones(mlp):
    gradient = eqx.filter_grad(total)(mlp, X)
    _, pull = nnx.vjp(lambda n, x: n(x), mlp, X)
    same(pull(jnp.ones(2))[0], gradient)
    mine = nnx.jvp(lambda n, x: n(x), (mlp, X), (gradient, X))
    same(mine, eqx.filter_jvp(lambda n, x: n(x), (mlp, X), (gradient, X)))
    _, push = nnx.linearize(lambda n: n(X), mlp)
    assert push(gradient).shape == (2,)
    hessian = nnx.hessian(lambda n: total(n, X))(mlp)
    assert hessian.layers[0].bias.layers[0].bias.shape == (4, 4)


def test_tangents_have_none_where_there_is_none(mlp):
    net = eqx.tree_at(lambda n: n.layers[1].bias, mlp, jnp.array([1, 2]))
    tangents = eqx.filter(net, eqx.is_inexact_array)
    _, due = eqx.filter_jvp(bump, (net,), (tangents,))
    same(nnx.jvp(bump, (net,), (tangents,))[1], due)
    same(nnx.linearize(bump, net)[1](tangents), due)
    holder = Holder(net)
    dot = nnx.linearize(lambda h: h.net, holder)[1](nnx.State({"net": tangents}))
    same(dot.value, tangents)


def test_an_ensemble_by_vmap(mlp):
    keys = jax.random.split(jax.random.key(0), 3)
    nets = nnx.vmap(lambda key: eqx.nn.MLP(2, 2, 4, 1, key=key))(keys)
    each = nnx.vmap(lambda net, x: net(x), in_axes=(0, None))(nets, X)
    theirs = eqx.filter_vmap(lambda net, x: net(x), in_axes=(eqx.if_array(0), None))
    same(each, theirs(nets, X))


def test_control_flow(mlp):
    out = nnx.switch(0, [lambda n: n, bump], mlp)
    same(out(X), mlp(X))
    same(nnx.cond(False, lambda n: n(X), lambda n: n(X) * 2, mlp), mlp(X) * 2)
    carried, ys = nnx.scan(lambda n, x: (bump(n), n(x)))(mlp, jnp.ones((3, 2)))
    same(carried.layers[0].bias, mlp.layers[0].bias + 3)
    assert ys.shape == (3, 2)
    looped = nnx.fori_loop(0, 3, lambda i, n: bump(n), mlp)
    same(looped.layers[0].bias, carried.layers[0].bias)
    last = nnx.while_loop(lambda n: n.layers[0].bias[0] < 2, bump, mlp)
    assert last.layers[0].bias[0] >= 2


OTHERS = {
    "activation": lambda net: eqx.tree_at(lambda n: n.activation, net, jnp.tanh),
    "layers/0/bias: float32[4] -> int32[4]": lambda net: eqx.tree_at(
        lambda n: n.layers[0].bias, net, jnp.zeros(4, int)
    ),
    "layers/2/bias: (none) -> float32[4]": lambda net: eqx.tree_at(
        lambda n: n.layers, net, (*net.layers, net.layers[0])
    ),
}


@pytest.mark.parametrize("where", OTHERS)
def test_branches_and_loops_name_what_differs_in_a_module(mlp, where):
    holder = Holder(mlp)

    def change(holder):
        holder.net.value = OTHERS[where](holder.net.value)

    def changes(holder, x):
        change(holder)
        return holder, x

    with pytest.raises(TypeError, match=re.escape(f"output/{where}")):
        nnx.cond(True, lambda n: n, OTHERS[where], mlp)
    with pytest.raises(TypeError, match=re.escape(f"carry/{where}")):
        nnx.fori_loop(0, 2, lambda i, n: OTHERS[where](n), mlp)
    with pytest.raises(TypeError, match=re.escape(f"carry/{where}")):
        nnx.scan(lambda n, x: (OTHERS[where](n), x))(mlp, jnp.ones(3))
    with pytest.raises(TypeError, match=re.escape(f"net/{where}")):
        nnx.cond(True, lambda h: None, change, holder)
    with pytest.raises(TypeError, match=re.escape(f"net/{where}")):
        nnx.scan(changes)(holder, jnp.ones(3))


def test_remat_and_eval_shape(mlp):
    gradient = nnx.grad(lambda n: nnx.remat(total)(n, X))(mlp)
    same(gradient, eqx.filter_grad(total)(mlp, X))
    shapes = nnx.eval_shape(
        lambda key: eqx.nn.MLP(2, 2, 4, 1, key=key), jax.random.key(0)
    )
    assert isinstance(shapes.layers[0].bias, jax.ShapeDtypeStruct)
    assert shapes.activation is not None


def test_derivative_rules(mlp):
    def twice(tree):
        return jax.tree.map(lambda a: 2 * a, tree)

    @nnx.custom_vjp(input_updates=False)
    def f(net, x):
        return total(net, x)

    f.defvjp(
        lambda net, x: (total(net, x), (net, x)),
        lambda saved, g: (twice(eqx.filter_grad(total)(*saved)), None),
    )
    same(nnx.grad(f)(mlp, X), twice(eqx.filter_grad(total)(mlp, X)))

    @nnx.custom_jvp
    def h(net, x):
        return total(net, x)

    @h.defjvp
    def rule(primals, tangents):
        return h(*primals), sum(a.sum() for a in jax.tree.leaves(tangents[0]))

    assert (nnx.grad(h)(mlp, X).layers[0].bias == 1).all()


def test_stateful_layers():
    norm, state = eqx.nn.make_with_state(eqx.nn.BatchNorm)(2, "batch", mode="ema")
    xs = jax.random.normal(jax.random.key(0), (5, 2))

    def forward(vmap):
        def run(norm, state, xs):
            return vmap(norm, axis_name="batch", in_axes=(0, None), out_axes=(0, None))(
                xs, state
            )

        return run

    mine, theirs = nnx.jit(forward(nnx.vmap)), eqx.filter_jit(forward(jax.vmap))
    states = [state, state]
    for _ in range(2):
        (y, states[0]), (z, states[1]) = (
            mine(norm, states[0], xs),
            theirs(norm, states[1], xs),
        )
        same(y, z)
    same(states[0].get(norm.ema_state_index), states[1].get(norm.ema_state_index))


class Counter(eqx.Module):
    index: eqx.nn.StateIndex

    def __init__(self):
        self.index = eqx.nn.StateIndex(jnp.array(0.0))

    def __call__(self, x, state):
        count = state.get(self.index)
        return x * count, state.set(self.index, count + 1)


@pytest.mark.parametrize("calls", [None, nnx.Variable(jnp.array(0))])
def test_a_state_of_layers_goes_through_loops(calls):
    # A state is of no use any more once there is the next one.
    counter, state = eqx.nn.make_with_state(Counter)()

    def scanned(carry, x):
        calls, state = carry
        y, state = counter(x, state)
        return (calls, state), y

    (_, state), ys = nnx.scan(scanned)((calls, state), jnp.ones(3))
    assert ys.tolist() == [0, 1, 2]
    again = lambda carry: (carry[0], counter(1.0, carry[1])[1])
    small = lambda carry: carry[1].get(counter.index) < 5
    _, state = nnx.while_loop(small, again, (calls, state))
    _, state = nnx.fori_loop(0, 2, lambda i, carry: again(carry), (calls, state))
    assert state.get(counter.index) == 7

    def tagged(state, holder, x):
        holder.tag = "seen"
        y, state = counter(x, state)
        return state, y

    holder = nnx.Dict(tag=None)
    axes = (nnx.Carry, None, 0)
    state, ys = nnx.scan(tagged, in_axes=axes)(state, holder, jnp.ones(3))
    assert ys.tolist() == [7, 8, 9] and holder.tag == "seen"


def test_donation_of_a_module(mlp):
    net = copied(mlp)
    bias = net.layers[0].bias
    nnx.jit(bump, donate_argnums=0)(net)
    assert bias.is_deleted()


# Values of variables


def test_one_array_is_written_and_the_others_stay(mlp):
    holder = Holder(mlp)

    @nnx.jit
    def step(holder):
        holder.net.value = bump(holder.net.value)

    for _ in range(2):
        step(holder)
    now = holder.net.value
    assert now.layers[0].weight is mlp.layers[0].weight
    assert now.layers[1] is mlp.layers[1]
    same(now.layers[0].bias, mlp.layers[0].bias + 2)
    (values, *_) = jax.eval_shape(
        *step._bodies.known.values(), *_entry_values(holder)
    )  # what leaves the compiled call
    assert len(jax.tree.leaves(values)) == 1


def _entry_values(holder):
    from graphcore.authors import enter

    return enter(lambda h: None, (holder,)).values


def test_a_dict_of_arrays_is_written_by_array():
    table = nnx.Variable({"a": jnp.ones(2), "b": jnp.zeros(2)})
    before = table.value

    @nnx.jit
    def step(table):
        table.value = {**table.value, "a": table.value["a"] + 1}

    step(table)
    assert table.value["b"] is before["b"] and table.value["a"].tolist() == [2.0, 2.0]


def test_the_frame_is_part_of_the_key(mlp):
    holder, traces = Holder(mlp), []

    @nnx.jit
    def call(holder):
        traces.append(0)
        return holder(X)

    call(holder), call(holder)
    holder.net.value = eqx.tree_at(lambda n: n.activation, mlp, jax.nn.tanh)
    same(call(holder), holder.net.value(X))
    assert len(traces) == 2  # one for each activation


@pytest.mark.parametrize("jitted", [False, True])
def test_gradients_of_a_variable(mlp, jitted):
    holder = Holder(mlp)
    gradient = nnx.grad(lambda holder: holder(X).sum())
    grads = (nnx.jit(gradient) if jitted else gradient)(holder)
    same(grads["net"].value, eqx.filter_grad(total)(mlp, X))
    assert int(holder.calls.value) == 1


@pytest.mark.parametrize("jitted", [True, False])
def test_an_optimizer_updates_the_arrays_of_a_module(mlp, jitted):
    # Integers are no parameters, and functions are no arrays.
    net = eqx.tree_at(lambda n: n.layers[1].bias, mlp, jnp.array([1, 2]))
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-2))
    holder = Holder(net)
    holder.scale = nnx.Param(jnp.ones(2))
    optimizer = nnx.Optimizer(holder, tx, wrt=nnx.Param)

    def loss(net, scale):
        return jnp.sum((net(X) * scale - 1) ** 2)

    def step(holder, optimizer):
        grads = nnx.grad(lambda h: loss(h.net.value, h.scale.value))(holder)
        optimizer.update(holder, grads)

    pair, is_part = (net, jnp.ones(2)), eqx.is_inexact_array
    state = tx.init(eqx.filter(pair, is_part))
    step = nnx.jit(step) if jitted else step
    for _ in range(2):
        step(holder, optimizer)
        grads = eqx.filter_grad(lambda pair: loss(*pair))(pair)
        updates, state = tx.update(grads, state, eqx.filter(pair, is_part))
        pair = eqx.apply_updates(pair, updates)
    found = holder.net.value, holder.scale.value
    same(eqx.filter(found, eqx.is_array), eqx.filter(pair, eqx.is_array))
    assert found[0].activation is net.activation
    assert found[0].layers[1].bias.dtype == jnp.int32


def test_transforms_of_a_variable(mlp):
    holder = Holder(mlp)
    _, ys = nnx.scan(lambda h, x: (h, h(x)))(holder, jnp.ones((3, 2)))
    same(ys[2], mlp(X))
    axes = nnx.StateAxes({...: None})
    read = nnx.vmap(lambda h, x: h.net.value(x), in_axes=(axes, 0))
    same(read(holder, jnp.ones((3, 2)))[1], mlp(X))

    def up(holder):
        holder.net.value = bump(holder.net.value)

    nnx.cond(True, up, lambda h: None, holder)
    nnx.jit(lambda h: nnx.remat(up)(h), donate_state=True)(Holder(copied(mlp)))
    same(holder.net.value.layers[0].bias, mlp.layers[0].bias + 1)
    nnx.fori_loop(0, 3, lambda i, h: (h(X), h)[1], holder)
    assert int(holder.calls.value) == 6
    assert nnx.eval_shape(lambda h: h(X), holder).shape == (2,)


def test_a_step_that_raises_leaves_the_variable(mlp):
    holder = Holder(mlp)

    @nnx.jit
    def step(holder):
        holder.net.value = bump(holder.net.value)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        step(holder)
    assert holder.net.value is mlp


@pytest.mark.parametrize("abstract", [False, True])
def test_checkpoints_hold_the_arrays_of_a_module(mlp, tmp_path, abstract):
    def make():
        holder = Holder(copied(mlp))
        holder.attribute = copied(mlp)
        return holder

    holder = make()
    holder.net.value, holder.attribute = bump(holder.net.value), bump(holder.attribute)
    saving.save(tmp_path / "model", holder)
    other = nnx.eval_shape(make) if abstract else make()
    saving.restore(tmp_path / "model", other)
    for net in (other.net.value, other.attribute):
        assert eqx.tree_equal(net, bump(mlp))
        assert net.activation is mlp.activation


# Attributes


def test_as_an_attribute_its_arrays_are_leaves(mlp):
    class Model(nnx.Module):
        def __init__(self):
            self.net = mlp

    model = Model()
    paths = nnx.state(model).flat_state().paths
    assert ("net", "layers", 0, "weight") in paths and len(paths) == 4

    @nnx.jit
    def step(model, x):
        model.net = bump(model.net)
        return model.net(x)

    same(step(model, X), bump(mlp)(X))
    assert type(model.net) is eqx.nn.MLP
    assert model.net.layers[1].weight is mlp.layers[1].weight
    grads = nnx.grad(lambda m: m.net(X).sum(), wrt=...)(model)
    theirs = eqx.filter_grad(total)(model.net, X)
    same(grads["net"]["layers"][0]["weight"], theirs.layers[0].weight)


@pytest.mark.parametrize("jitted", [False, True])
def test_an_optimizer_updates_arrays_of_attributes(mlp, jitted):
    class Model(nnx.Module):
        def __init__(self):
            self.net = mlp
            self.scale = nnx.Param(jnp.ones(2))

    def wrt(path, x):
        return jnp.issubdtype(x.dtype, jnp.inexact)

    def step(model, optimizer):
        selected = nnx.DiffState(0, wrt)
        grads = nnx.grad(lambda m: (m.net(X) * m.scale).sum(), argnums=selected)(model)
        optimizer.update(model, grads)

    model, pair = Model(), (mlp, jnp.ones(2))
    tx = optax.adamw(1e-2)
    optimizer, state = nnx.Optimizer(model, tx, wrt=wrt), tx.init(arrays_of(pair))
    step = nnx.jit(step) if jitted else step
    for _ in range(2):
        step(model, optimizer)
        grads = eqx.filter_grad(lambda pair: (pair[0](X) * pair[1]).sum())(pair)
        updates, state = tx.update(grads, state, arrays_of(pair))
        pair = eqx.apply_updates(pair, updates)
    same(arrays_of((model.net, model.scale.value)), arrays_of(pair))


def test_an_update_that_fails_leaves_arrays_of_attributes():
    model = nnx.Dict(w=X)
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=...)
    grads = nnx.State({"w": X})

    def fail(x):
        optimizer.update(model, grads)  # the step count is of the outer trace

    with pytest.raises(nnx.TraceContextError):
        jax.jit(fail)(X)
    assert model.w is X and int(optimizer.step.value) == 0


def test_lists_in_a_module_that_is_an_attribute_stay_as_they_were():
    class Layers(eqx.Module):
        weights: list

    class Model(nnx.Module):
        def __init__(self):
            self.net = layers

    @nnx.jit
    def step(model):
        traces.append(0)
        weights = [w + 1 for w in model.net.weights]
        model.net = eqx.tree_at(lambda n: n.weights, model.net, weights)

    layers, traces = Layers([jnp.zeros(2), jnp.zeros(2)]), []
    model = Model()
    for _ in range(2):
        step(model)
    assert [w.tolist() for w in model.net.weights] == [[2.0, 2.0]] * 2
    assert [w.tolist() for w in layers.weights] == [[0.0, 0.0]] * 2
    assert len(traces) == 1


# What is kept of modules


def test_a_module_that_comes_again_is_freed_with_its_last_reference(mlp):
    net = copied(mlp)
    call = nnx.jit(lambda net: net(X))
    call(net), call(net)
    reference = weakref.ref(net)
    garbage.disable()
    try:
        del net
        assert reference() is None
    finally:
        garbage.enable()


def test_a_list_in_a_module_may_change_in_place():
    class Layers(eqx.Module):
        weights: list

    layers = Layers([jnp.ones(2)])
    call = nnx.jit(lambda layers: layers.weights[0])
    call(layers)
    layers.weights[0] = jnp.zeros(2)
    assert call(layers).tolist() == [0.0, 0.0]


def test_a_list_of_modules_may_change_in_place_after_many_calls(mlp):
    class Layers(eqx.Module):
        layers: list

        def __call__(self, x):
            for layer in self.layers:
                x = layer(x)
            return x

    class Holder(nnx.Module):
        def __init__(self, net):
            self.value, self.attribute = nnx.Param(net), net

    layers = Layers([*copied(mlp).layers, jax.nn.relu])
    holder = Holder(layers)
    call = nnx.jit(
        lambda net, holder: (net(X), holder.value.value(X), holder.attribute(X))
    )
    for _ in range(20):
        call(layers, holder)
    for layer in (jax.nn.sigmoid, eqx.nn.Lambda(jnp.sin), None):
        layers.layers[-1:] = [] if layer is None else [layer]
        for _ in range(20):
            for out in call(layers, holder):
                assert jnp.allclose(out, layers(X), atol=1e-6)


# The adapter


def run(source):
    code = textwrap.dedent(source)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_change_of_equinox_is_told():
    run("""
        import equinox as eqx, jax, graphcore as gc, nnx_transforms as nnx
        net = eqx.nn.Linear(2, 2, key=jax.random.key(0))
        def __setattr__(self, name, value): object.__setattr__(self, name, value)
        eqx.Module.__setattr__ = __setattr__
        for _ in range(2):
            try: nnx.jit(lambda net, x: net(x))(net, jax.numpy.ones(2))
            except gc.AdapterError as error: assert "0.13" in str(error), error
            else: raise AssertionError
    """)


def test_an_unknown_release_that_passes_warns_once_also_inside_a_trace():
    run("""
        import equinox as eqx, jax, warnings, nnx_transforms as nnx
        eqx.__version__ = "99.1"
        net = eqx.nn.Linear(2, 2, key=jax.random.key(0))
        def double(x):
            return nnx.jit(lambda net, x: net(x) * 2)(net, x)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2): jax.jit(double)(jax.numpy.ones(2))
        (warning,) = [w for w in caught if "99.1" in str(w.message)]
    """)


# Where modules stand


def test_a_dtype_in_a_module_is_static_in_loops(mlp):
    class Typed(eqx.Module):
        net: eqx.nn.MLP
        dtype: np.dtype

    net = Typed(mlp, jnp.dtype("float32"))

    def step(net, x):
        return net, net.net(x).astype(net.dtype)

    carried, ys = nnx.scan(step)(net, jnp.ones((3, 2)))
    assert carried.dtype == net.dtype
    same(ys[2], mlp(X))
    other = eqx.tree_at(lambda n: n.dtype, net, jnp.dtype("int32"))
    with pytest.raises(TypeError, match="carry/dtype: float32 -> int32"):
        nnx.scan(lambda n, x: (other, x))(net, jnp.ones((3, 2)))


def test_shapes_of_a_module_are_asked_for_by_the_rule_of_a_primitive(mlp):
    # JAX runs such a rule under no trace.
    def shapes(x):
        leaf = jax.ShapeDtypeStruct(x.shape, x.dtype)
        found = nnx.eval_shape(nnx.jit(lambda net, x: net(x)), mlp, leaf)
        return jax.core.ShapedArray(found.shape, found.dtype)

    primitive = jax.extend.core.Primitive("apply")
    primitive.def_abstract_eval(shapes)
    assert jax.eval_shape(primitive.bind, jnp.ones(2)).shape == (2,)


def test_derivatives_of_integers_in_a_module_are_arrays():
    class Counted(eqx.Module):
        w: jax.Array
        count: jax.Array

    net = Counted(X, jnp.array(2))
    gradient = jax.grad(lambda n: (n.w * n.count).sum(), allow_int=True)(net)
    assert gradient.count.dtype == jax.dtypes.float0

    def update(net, gradient):
        return eqx.tree_at(lambda n: n.w, net, net.w - gradient.w)

    same(nnx.jit(update)(net, gradient), eqx.filter_jit(update)(net, gradient))
    found = nnx.jit(lambda v, g: v.value.w + g.w)(nnx.Variable(gradient), gradient)
    same(found, 2 * gradient.w)
    with pytest.raises(TypeError, match="'count'"):
        nnx.jit(lambda n: n.w)(Counted(X, np.array(["text"])))


def test_the_tangent_of_a_static_number_is_not_lost():
    class Scale(eqx.Module):
        w: object
        n: object

    def scaled(scale):
        return scale.w * scale.n, scale

    scale = Scale(jnp.array(2.0), 3.0)
    apply = lambda scale: scaled(scale)[0]
    _, dot = nnx.jvp(apply, (scale,), (Scale(jnp.array(1.0), None),))
    assert float(dot) == 3.0
    for lost in (1.0, jnp.array(1.0)):
        with pytest.raises(TypeError, match=r"'0/n', where nothing is differentiated"):
            nnx.jvp(apply, (scale,), (Scale(jnp.array(1.0), lost),))
    traced = Scale(jnp.array(2.0), jnp.array(3.0))
    _, dot = nnx.jvp(apply, (traced,), (Scale(jnp.array(1.0), jnp.array(1.0)),))
    assert float(dot) == 5.0
    _, pull = nnx.vjp(scaled, scale)
    bar = Scale(jnp.array(1.0), None)
    assert float(pull((jnp.array(1.0), bar))[0].w) == 4.0
    with pytest.raises(TypeError, match="nothing is differentiated"):
        pull((jnp.array(1.0), Scale(jnp.array(1.0), 1.0)))
