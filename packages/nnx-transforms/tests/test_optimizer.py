import copy
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import graphcore as gc
import nnx_transforms as nnx
from nnx_transforms.layers import Linear
from nnx_transforms.modules.module import Module
from nnx_transforms.randomness.rngs import Rngs
from nnx_transforms.training.optimizer import Optimizer, OptState


class Model(Module):
    def __init__(self, seed=0):
        rngs = Rngs(seed)
        self.layers = [Linear(3, 4, rngs=rngs), Linear(4, 2, rngs=rngs)]
        self.tied = self.layers[0]
        self.calls = gc.BatchStat(jnp.array(0))

    def __call__(self, x):
        return self.layers[1](jnp.tanh(self.layers[0](x)))


def loss(model, x):
    return jnp.mean(model(x) ** 2)


def gradients(model, x, wrt=gc.Param):
    graphdef, selected, rest = gc.split(model, wrt, ...)
    return jax.grad(lambda s: loss(gc.merge(graphdef, s, rest), x))(selected)


X = jnp.asarray(np.random.default_rng(0).normal(size=(5, 3)), jnp.float32)
TRANSFORMATIONS = {
    "sgd": lambda: optax.sgd(0.1, momentum=0.9, nesterov=True),
    "adamw": lambda: optax.adamw(
        optax.cosine_decay_schedule(0.1, 10),
        mask=lambda params: jax.tree.map(lambda p: p.ndim > 1, params),
    ),
    "clipped": lambda: optax.chain(optax.clip_by_global_norm(0.1), optax.adam(0.1)),
    "adafactor": lambda: optax.adafactor(0.1, min_dim_size_to_factor=2),
    "injected": lambda: optax.inject_hyperparams(optax.rmsprop)(learning_rate=0.1),
    "accumulated": lambda: optax.MultiSteps(optax.adam(0.1), every_k_schedule=2),
    "masked": lambda: optax.partition(
        {"decay": optax.adam(0.1), "freeze": optax.set_to_zero()},
        lambda params: jax.tree_util.tree_map_with_path(
            lambda path, _: "freeze" if "bias" in str(path[-1]) else "decay", params
        ),
    ),
    "partly": lambda: optax.masked(
        optax.adam(0.1), lambda params: jax.tree.map(lambda p: p.ndim > 1, params)
    ),
    "finite": lambda: optax.apply_if_finite(optax.adam(0.1), max_consecutive_errors=2),
    "schedule free": lambda: optax.contrib.schedule_free_adamw(0.1, warmup_steps=2),
    "lbfgs": lambda: optax.lbfgs(0.1, memory_size=2, linesearch=None),
    "noisy": lambda: optax.noisy_sgd(0.1, key=jax.random.key(0)),
}


@pytest.mark.parametrize("name", TRANSFORMATIONS)
@pytest.mark.parametrize("with_model", [True, False])
def test_updates_are_those_of_optax(name, with_model):
    model, tx = Model(), TRANSFORMATIONS[name]()
    optimizer = Optimizer(model, tx)
    params = gc.state(model, gc.Param).to_pure_dict()
    opt_state = tx.init(params)
    for _ in range(3):
        grads = gradients(model, X)
        updates, opt_state = tx.update(grads.to_pure_dict(), opt_state, params)
        params = optax.apply_updates(params, updates)
        if with_model:
            optimizer.update(model, grads)
        else:
            optimizer.update(grads)
        ours = gc.state(model, gc.Param).to_pure_dict()
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
            ours,
            params,
        )
    leaves = jax.tree.leaves(optimizer.opt_state), jax.tree.leaves(opt_state)
    for mine, plain in zip(*leaves, strict=True):
        if jnp.issubdtype(mine.dtype, jnp.number):  # not the key of the noise
            np.testing.assert_allclose(mine, plain, rtol=1e-5, atol=1e-6)
    assert int(optimizer.step.value) == 3
    assert optimizer.step.value.dtype == jnp.uint32
    assert int(model.calls.value) == 0


def test_a_jitted_step_over_both_is_the_eager_one():
    def step(model, optimizer):
        optimizer.update(model, gradients(model, X))

    eager, lazy = ((m, Optimizer(m, optax.adam(0.1))) for m in (Model(), Model()))

    @jax.jit
    def pure(state):
        model, optimizer = gc.merge(graphdef, state)
        assert optimizer.model is model
        step(model, optimizer)
        return gc.state((model, optimizer))

    graphdef, state = gc.split(lazy)
    for _ in range(3):
        step(*eager)
        state = pure(state)
    gc.update(lazy, state)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5),
        gc.state(eager).to_pure_dict(),
        gc.state(lazy).to_pure_dict(),
    )
    assert gc.graphdef(lazy) == graphdef
    assert pure._cache_size() == 1


def test_training_lowers_the_loss():
    model = Model()
    optimizer = Optimizer(model, optax.adam(0.05))
    before = float(loss(model, X))
    for _ in range(30):
        optimizer.update(gradients(model, X))
    assert float(loss(model, X)) < before / 10


def test_wrt_selects_what_is_updated():
    model = Model()
    wrt = gc.All(gc.Param, gc.PathContains("bias"))
    optimizer = Optimizer(model, optax.sgd(1.0), wrt=wrt)
    kernel = model.tied.kernel.value
    optimizer.update(gradients(model, X, wrt))
    assert model.tied.kernel.value is kernel
    assert model.tied.bias.value.any()
    assert optimizer.wrt is wrt
    # Gradients of all parameters are fine as well: which are meant is known.
    before = model.tied.bias.value
    optimizer.update(gradients(model, X))
    assert model.tied.kernel.value is kernel
    assert (model.tied.bias.value != before).any()


def test_state_is_in_variables_where_optax_has_its_leaves():
    model = gc.Dict(layers=gc.List([gc.Param(jnp.ones(2))]))
    optimizer = Optimizer(model, optax.adam(0.1))
    assert type(optimizer.opt_state) is tuple
    assert type(optimizer.opt_state[0]) is optax.ScaleByAdamState
    assert optimizer.opt_state[1] == optax.EmptyState()
    paths = [("count",), ("mu", "layers", 0), ("nu", "layers", 0)]
    due = [*(("opt_state", 0, *path) for path in paths), ("step",)]
    assert list(gc.state(optimizer, OptState).flat_state().paths) == due
    assert [p for p, x in gc.iter_graph(optimizer) if type(x) is OptState] == due
    optimizer.update({"layers": {0: jnp.ones(2)}})
    assert optimizer.opt_state[0].mu["layers"][0].tolist() == pytest.approx([0.1, 0.1])


@pytest.mark.parametrize(
    ("init", "paths"),
    [
        (lambda params: (), []),
        (lambda params: None, []),
        (lambda params: jnp.array(0.0), [()]),
        (lambda params: params, [("w",)]),
        (lambda params: [{"of": [params, 0.0]}], [(0, "of", 0, "w"), (0, "of", 1)]),
    ],
)
def test_a_state_of_any_structure(init, paths):
    def update(grads, state, params):
        return grads, jax.tree.map(lambda x: x + 1.0, state)

    optimizer = Optimizer(
        gc.Dict(w=gc.Param(jnp.array(1.0))), optax.GradientTransformation(init, update)
    )

    @nnx.jit
    def step(optimizer):
        optimizer.update({"w": -1.0})

    before = jax.tree.map(jnp.asarray, init(gc.State({"w": jnp.array(1.0)})))
    step(optimizer)
    step(optimizer)
    assert float(optimizer.model.w.value) == -1.0
    found = jax.tree.map(lambda x: x.value, optimizer.opt_state, is_leaf=gc.is_variable)
    assert jax.tree.structure(found) == jax.tree.structure(before)
    for new, old in zip(jax.tree.leaves(found), jax.tree.leaves(before), strict=True):
        assert float(new) == float(old) + 2.0
    due = [("opt_state", *path) for path in paths]
    assert list(gc.state(optimizer, OptState).flat_state().paths) == [*due, ("step",)]


def test_names_with_slashes_and_names_of_methods():
    model = gc.Dict({"a/b": gc.Param(1.0), "a": gc.Dict(b=gc.Param(jnp.ones(2)))})
    for name in ("items", "keys", "update", "value", "_set_key"):
        model[name] = gc.Param(jnp.array(1.0))
    optimizer = Optimizer(model, optax.sgd(0.1, momentum=0.5))
    optimizer.update(jax.tree.map(jnp.ones_like, gc.state(model)))
    for leaf in jax.tree.leaves(gc.state(model)):
        np.testing.assert_allclose(leaf, 0.9, rtol=1e-6)


def test_keys_of_mixed_types_on_a_level():
    model = gc.Dict({0: gc.Param(jnp.array(1.0)), "a": gc.Param(jnp.array(2.0))})
    optimizer = Optimizer(model, optax.adam(0.1))
    optimizer.update(gc.State({0: jnp.array(1.0), "a": jnp.array(-1.0)}))
    assert float(model[0].value) == pytest.approx(0.9)
    assert float(model.a.value) == pytest.approx(2.1)


def test_state_of_a_parameter_takes_over_its_sharding():
    mesh = jax.make_mesh((1,), ("x",))
    model = gc.Dict(
        kernel=gc.Param(jnp.ones((2, 2)), sharding=("x", None), mesh=mesh, unit="m"),
        inner=gc.Dict(kernel=gc.Param(jnp.ones((2, 2)), sharding=(None, "x"))),
        scale=gc.Param(jnp.ones(2)),
    )
    count, mu, nu = Optimizer(model, optax.adam(0.1)).opt_state[0]
    expected = {"sharding": ("x", None), "mesh": mesh}
    assert mu["kernel"].get_metadata() == expected
    assert nu["kernel"].get_metadata() == expected
    assert mu["inner"]["kernel"].get_metadata() == {"sharding": (None, "x")}
    assert mu["scale"].get_metadata() == {}
    assert count.get_metadata() == {}


@pytest.mark.parametrize("name", ["sharding", "out_sharding"])
def test_the_optimizer_state_may_be_placed_elsewhere(name):
    w = gc.Param(jnp.ones((2, 2)), **{name: (None, "x")}, optimizer_sharding=("x",))
    moments = Optimizer(gc.Dict(w=w), optax.adam(0.1)).opt_state[0].mu
    assert moments["w"].get_metadata() == {name: ("x",)}


@pytest.mark.devices(2)
def test_the_optimizer_state_of_a_whole_parameter_may_be_divided():
    with jax.set_mesh(jax.make_mesh((2,), ("x",))):
        model = gc.Dict(w=gc.Param(jnp.ones((2, 2)), optimizer_sharding=("x",)))
        moments = Optimizer(model, optax.adam(0.1)).opt_state[0].mu
    assert moments["w"].sharding.shard_shape((2, 2)) == (1, 2)
    assert model.w.value.sharding.is_fully_replicated


def test_the_optax_state_can_be_read_and_set():
    model = gc.Dict(w=gc.Param(jnp.array(1.0)))
    tx = optax.inject_hyperparams(optax.sgd)(learning_rate=0.5)
    optimizer = Optimizer(model, tx)
    state = optimizer.opt_state
    state.hyperparams["learning_rate"] = jnp.array(0.0)
    optimizer.opt_state = state
    optimizer.update({"w": 1.0})
    assert float(model.w.value) == 1.0
    optimizer.opt_state.hyperparams["learning_rate"] = 1  # as the float that it was
    assert optimizer.opt_state.hyperparams["learning_rate"].dtype == jnp.float32
    optimizer.opt_state.hyperparams.update(learning_rate=0.25)
    optimizer.update(grads={"w": 1.0})
    assert float(model.w.value) == 0.75
    with pytest.raises(ValueError, match="changed its structure"):
        optimizer.opt_state = (1, 2)
    assert optimizer.tx is tx


def test_dicts_inside_the_optax_state_can_be_set():
    tx = optax.partition(
        {"slow": optax.inject_hyperparams(optax.sgd)(0.5)}, {"w": "slow"}
    )
    optimizer = Optimizer(gc.Dict(w=gc.Param(jnp.ones(2))), tx)
    before = gc.state(optimizer)
    parts = optimizer.opt_state.inner_states
    rates = parts["slow"].inner_state.hyperparams
    with pytest.raises(ValueError, match=r"nothing for .*place for \['0', '1'\]"):
        parts["slow"] = (1, 2)
    with pytest.raises(KeyError, match="rate"):
        rates["rate"] = 0.25
    assert gc.state(optimizer) == before
    rates["learning_rate"] = 0.25
    assert optax.tree.get(optimizer.opt_state, "learning_rate").value == 0.25
    assert rates["learning_rate"].value.dtype == jnp.float32
    parts["slow"] = optax.tree.set(parts["slow"], learning_rate=0.125)
    assert float(rates["learning_rate"].value) == 0.125
    optimizer.opt_state = jax.tree.map(jnp.zeros_like, optimizer.opt_state)
    assert float(rates["learning_rate"].value) == 0.0


def test_moments_can_be_replaced_by_what_is_keyed_alike():
    optimizer = Optimizer(Model(), optax.adam(0.1))
    kernel = optimizer.opt_state[0].mu.layers[0].kernel
    params = gc.state(optimizer.model, gc.Param)
    for moments in (params, params.to_pure_dict()):
        state = optimizer.opt_state[0]._replace(mu=jax.tree.map(jnp.cos, moments))
        optimizer.opt_state = (state, *optimizer.opt_state[1:])
        np.testing.assert_array_equal(
            kernel.value, jnp.cos(optimizer.model.tied.kernel.value)
        )
        assert isinstance(optimizer.opt_state[0].mu, gc.State)


def test_models_may_be_nested_deeply():
    model = gc.Dict(w=gc.Param(jnp.ones(1)))
    for _ in range(150):
        model = gc.Dict(a=model)
    optimizer = Optimizer(model, optax.sgd(0.5, momentum=0.9))
    optimizer.update(gc.state(model))
    (leaf,) = jax.tree.leaves(optimizer.opt_state)
    assert leaf.tolist() == [1.0]


def test_an_item_of_the_moments_can_be_set():
    optimizer = Optimizer(Model(), optax.adam(0.1))
    moments = optimizer.opt_state[0].mu
    kernel = moments.layers[0].kernel
    with pytest.raises(KeyError, match="lost"):
        moments["layers"]["lost"] = jnp.ones(2)
    with pytest.raises(ValueError, match="changed its structure"):
        moments.layers = jnp.ones(2)

    @nnx.jit
    def reset(optimizer):
        optimizer.opt_state[0].mu["layers"][0]["kernel"] = jnp.ones(kernel.shape)

    reset(optimizer)
    assert float(jnp.sum(kernel)) == kernel.size
    moments.layers[0] = jax.tree.map(jnp.zeros_like, moments.layers[0])
    assert float(jnp.sum(kernel)) == 0
    pure = map(nnx.as_pure, (moments, gc.state(optimizer.model, gc.Param)))
    assert len(set(map(jax.tree.structure, pure))) == 1


def test_the_optax_state_is_keyed_like_the_model():
    moments = Optimizer(Model(), optax.adam(0.1)).opt_state[0].mu
    assert moments.layers[0].kernel.shape == moments["layers"][0]["kernel"].shape


def test_a_line_search_evaluates_the_model():
    model = Model()
    optimizer = Optimizer(
        model, optax.lbfgs(linesearch=optax.scale_by_backtracking_linesearch(10))
    )
    graphdef, _, rest = gc.split(model, gc.Param, ...)
    value_fn = lambda params: loss(gc.merge(graphdef, params, rest), X)
    before = loss(model, X)
    for _ in range(2):
        grads = gradients(model, X)
        value = loss(model, X)
        optimizer.update(model, grads, grad=grads, value=value, value_fn=value_fn)
    assert float(loss(model, X)) < float(before)


def test_extra_arguments_reach_the_transformation():
    model = gc.Dict(w=gc.Param(jnp.array(1.0)))
    tx = optax.chain(
        optax.sgd(1.0), optax.contrib.reduce_on_plateau(factor=0.5, patience=1)
    )
    optimizer = Optimizer(model, tx)
    for _ in range(4):
        optimizer.update(model, {"w": 0.0}, value=jnp.array(1.0))
    assert float(optimizer.opt_state[1].scale) < 1


def test_a_parameter_keeps_its_dtype_and_hooks_are_passed_by():
    reads = []
    model = gc.Dict(
        w=gc.Param(
            jnp.ones(2, jnp.bfloat16),
            on_get_value=lambda v, x: reads.append(1) or x * 2,
            on_set_value=lambda v, x: x * 3,
        )
    )
    optimizer = Optimizer(model, optax.sgd(0.5))
    optimizer.update({"w": jnp.ones(2, jnp.float32)})
    assert model.w.raw_value.tolist() == [0.5, 0.5]
    assert model.w.raw_value.dtype == jnp.bfloat16
    assert not reads


def test_a_value_that_is_a_pytree():
    model = gc.Dict(w=gc.Param({"a": jnp.array(1.0), "b": (jnp.ones(2),)}))
    optimizer = Optimizer(model, optax.adam(0.1))
    grads = gc.State({"w": gc.Param.state(jax.tree.map(jnp.ones_like, model.w.value))})
    optimizer.update(grads)
    assert float(model.w.value["a"]) == pytest.approx(0.9)
    assert model.w.value["b"][0].tolist() == pytest.approx([0.9, 0.9])


def test_foreign_variables_are_updated():
    class Cell:
        def __init__(self, content):
            self.content = content

    gc.register_variable_type(
        Cell,
        get_value=lambda c: c.content,
        set_value=lambda c, v: setattr(c, "content", v),
        get_metadata=lambda c: {},
        create=lambda kind, value, metadata: kind(value),
    )
    model = gc.Dict(w=Cell(jnp.array(1.0)))
    Optimizer(model, optax.sgd(0.5), wrt=Cell).update({"w": 1.0})
    assert float(model.w.content) == 0.5


@pytest.mark.parametrize(
    ("grads", "error", "message"),
    [
        ({"w": jnp.ones(2)}, ValueError, r"none for \['b'\]"),
        (
            {"w": jnp.ones(2), "b": 1.0, "c": {"d": 1.0}},
            ValueError,
            r"superfluous ones for \['c/d'\]",
        ),
        ({"w": 1.0, "b": 1.0}, ValueError, r"'w' has shape \(\), expected.*\(2,\)"),
        (
            {"w": jnp.ones((3, 2)), "b": jnp.ones(3)},
            ValueError,
            r"update for '.' has shape \(3.*expected that",
        ),
        (jnp.ones(2), TypeError, "expected a State"),
    ],
)
def test_gradients_that_do_not_fit_change_nothing(grads, error, message):
    model = gc.Dict(w=gc.Param(jnp.ones(2)), b=gc.Param(jnp.array(0.0)))
    optimizer = Optimizer(model, optax.adam(0.1))
    before = gc.state((model, optimizer))
    with pytest.raises(error, match=message):
        optimizer.update(grads)
    assert gc.state((model, optimizer)) == before


def test_a_gradient_for_each_example():
    clipped = optax.contrib.differentially_private_aggregate(1.0, 0.0, key=0)
    model = gc.Dict(w=gc.Param(jnp.array([1.0, 2.0])), b=gc.Param(jnp.array(0.5)))
    optimizer = Optimizer(model, optax.chain(clipped, optax.sgd(0.5)))
    params = gc.state(model).to_pure_dict()
    each = {"w": jnp.array([[3.0, 4.0], [0.5, 0.0]]), "b": jnp.array([0.0, 0.5])}
    nnx.jit(lambda optimizer: optimizer.update(each))(optimizer)
    updates, _ = optimizer.tx.update(each, optimizer.tx.init(params), params)
    due = optax.apply_updates(params, updates)
    for name in params:
        np.testing.assert_allclose(model[name].value, due[name], rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        ("c", 1.0, r"\['0/mu/c', '0/nu/c'\]"),
        ("w", jnp.ones(3), r"\['0/mu/w', '0/nu/w'\]"),
    ],
)
def test_a_model_that_has_other_parameters_now(name, value, found):
    model = gc.Dict(w=gc.Param(jnp.ones(2)), b=gc.Param(jnp.array(0.0)))
    optimizer = Optimizer(model, optax.adam(0.1))
    model[name] = gc.Param(jnp.asarray(value))
    before = gc.state((model, optimizer))
    grads = jax.tree.map(jnp.ones_like, gc.state(model))
    with pytest.raises(ValueError, match=rf"not fit them at {found}. Make a new Opt"):
        optimizer.update(model, grads)
    assert gc.state((model, optimizer)) == before


def test_an_error_of_a_transformation_is_its_own():
    def update(*_):
        raise KeyError("its own")

    rule = optax.GradientTransformation(lambda p: jax.tree.map(np.asarray, p), update)
    model = gc.Dict(w=gc.Param(jnp.ones(2)))
    with pytest.raises(KeyError, match="its own"):
        Optimizer(model, rule).update(model, gc.state(model))


def test_no_gradients_no_parameters_no_transformation():
    model = gc.Dict(w=gc.Param(jnp.ones(2)))
    with pytest.raises(TypeError, match="no gradients"):
        Optimizer(model, optax.sgd(0.1)).update()
    with pytest.raises(ValueError, match="selects no variables of the Dict"):
        Optimizer(model, optax.sgd(0.1), wrt=gc.Cache)
    tx = optax.sgd(0.1)
    halves = (
        types.SimpleNamespace(init=tx.init),
        types.SimpleNamespace(update=tx.update),
    )
    for wrong in (0.1, *halves):
        with pytest.raises(TypeError, match=r"optax\.adam\(1e-3\)"):
            Optimizer(model, wrong)


def test_another_trace_is_refused_and_nothing_changes():
    model = gc.Dict(w=gc.Param(jnp.ones(2)))
    optimizer = Optimizer(model, optax.adam(0.1))
    before = gc.state(optimizer)

    @jax.jit
    def step(state):
        inner = gc.merge(graphdef, state)  # written first, and must be written back
        with pytest.raises(gc.TraceContextError):
            optimizer.update(inner, {"w": jnp.ones(2)})
        return gc.state(inner)

    graphdef, state = gc.split(model)
    assert step(state) == state
    assert gc.state(optimizer) == before


def test_copies_are_independent_and_share_what_is_compiled():
    optimizer = Optimizer(Model(), optax.adam(0.1))
    before = gc.state(optimizer)
    for twin in (gc.clone(optimizer), copy.deepcopy(optimizer)):
        assert gc.graphdef(twin) == gc.graphdef(optimizer)
        twin.update(gradients(twin.model, X))
        assert gc.state(optimizer) == before


def test_pickling_with_its_functions():
    cloudpickle = pytest.importorskip("cloudpickle")
    optimizer = Optimizer(Model(), optax.adam(0.1))
    optimizer.update(gradients(optimizer.model, X))
    twin = cloudpickle.loads(cloudpickle.dumps(optimizer))
    for o in (optimizer, twin):
        o.update(gradients(o.model, X))
    jax.tree.map(
        np.testing.assert_array_equal,
        gc.state(twin).to_pure_dict(),
        gc.state(optimizer).to_pure_dict(),
    )


def test_optimizers_made_alike_share_what_was_compiled():
    @nnx.jit
    def step(optimizer):
        optimizer.update(nnx.state(optimizer.model, nnx.Param))

    def new(tx, **arguments):
        return nnx.Optimizer(nnx.Dict(w=nnx.Param(jnp.ones(2))), tx, **arguments)

    adam = optax.adam(0.1)
    first, second = new(adam), new(adam)
    step(first)
    step(second)
    assert not nnx.explain_recompile(step)
    assert jnp.array_equal(first.model.w.value, second.model.w.value)
    for other in new(optax.adam(0.2)), new(adam, wrt=nnx.Not(nnx.BatchStat)):
        step(other)
        ((path, before, now),) = nnx.explain_recompile(step)
        assert path == "args/0/_rule"
        assert repr(before) != repr(now) and len(repr(now)) < 100  # one can read it


def test_gradients_that_are_a_module_need_no_model_beside_them():
    model = Linear(3, 2, rngs=Rngs(0))
    optimizer = Optimizer(model, optax.sgd(1.0))
    before = model.bias.value
    optimizer.update(jax.grad(loss)(model, X))
    assert not (model.bias.value == before).all()
    with pytest.raises(TypeError, match="no gradients"):
        optimizer.update(model)
