"""JAX takes variables and modules as pytrees, by value."""

import copy
import dataclasses

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import graphcore as gc
import nnx_transforms as nnx

READ_ONLY = "the caller would not see the change"


class Block(nnx.Module):
    def __init__(self, key=0):
        self.dense = nnx.Linear(2, 2, rngs=nnx.Rngs(key))
        self.parts = [nnx.Param(jnp.ones(2)), 3, "relu", None]
        self.scale = jnp.ones(2)
        self.shape, self.act, self.options = (2, 2), jnp.tanh, {"a": 1}
        self.count = nnx.Variable(jnp.array(0.0))

    def __call__(self, x):
        return self.act(self.dense(x) * self.parts[0]) * self.scale

    def tick(self):
        self.count.value = self.count.value + 1
        return self


X = jnp.ones((1, 2))


def loss(block):
    return block(X).sum()


# Variables


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (jnp.sin, ("v",)),
        (jnp.dot, ("x", "v")),
        (jnp.sum, ("v",)),
        (jax.nn.relu, ("v",)),
        (lambda v, w: jnp.where(jnp.array([True, False]), v, w), ("v", "w")),
        (lambda v, w: jnp.concatenate([v, w]), ("v", "w")),
        (jax.jit(lambda v: v + 1), ("v",)),
        (jax.vmap(lambda v: v * 2), ("v",)),
        (jax.jit(lambda d: d["a"] * d["b"][0]), ({"a": "v", "b": ["w"]},)),
    ],
)
def test_functions_of_arrays_take_variables(function, args):
    arrays = {"v": jnp.array([-1.0, 2.0]), "w": jnp.array([3.0, 4.0]), "x": jnp.ones(2)}
    of_arrays = jax.tree.map(arrays.get, args)
    of_variables = jax.tree.map(
        lambda name: arrays[name] if name == "x" else nnx.Param(arrays[name]), args
    )
    np.testing.assert_array_equal(function(*of_variables), function(*of_arrays))


@pytest.mark.parametrize("function", [jax.lax.neg, jax.lax.exp, jax.lax.cumsum])
def test_primitives_take_the_value_of_a_variable(function):
    # A variable itself they take in no library.
    v = nnx.Param(jnp.array([1.0, 2.0]))
    assert function(v[...]).tolist() == function(jnp.array([1.0, 2.0])).tolist()
    with pytest.raises((TypeError, ValueError)):  # JAX says how to convert it
        function(v)


def test_the_gradient_of_a_variable_is_one():
    gradient = jax.grad(lambda v: jnp.sum(v**2))(nnx.Param(jnp.ones(2), unit="m"))
    assert type(gradient) is nnx.Param
    assert gradient.unit == "m"
    assert gradient.value.tolist() == [2.0, 2.0]


def test_hooks_run_once_where_the_variable_is_read():
    v = nnx.Param(jnp.ones(2), on_get_value=lambda v, x: 3 * x)
    assert jnp.exp(jnp.log(v)).tolist() == pytest.approx([3.0, 3.0])
    assert jax.jit(lambda v: v.raw_value)(v).tolist() == [1.0, 1.0]


def test_equal_metadata_gives_equal_structures_and_one_trace():
    traces = []
    f = jax.jit(lambda v: traces.append(1) or v + 1)
    for axes in (["a"], ["a"], ["b"]):
        f(nnx.Param(1.0, axes=axes))
    f(nnx.BatchStat(1.0, axes=["b"]))
    assert len(traces) == 3
    one, two = (jax.tree.structure(nnx.Param(0, a=1, b="x")) for _ in range(2))
    assert one == two
    assert hash(one) == hash(two)
    assert one != jax.tree.structure(nnx.Param(0, a=True, b="x"))


def test_our_transforms_see_variables_in_containers_as_objects():
    v = nnx.Variable(jnp.array(1.0))

    def add(tree):
        tree["a"][0].value += 1
        assert tree["a"][0] is tree["b"]
        return tree["b"]

    assert nnx.jit(add)({"a": [v], "b": v}) is v
    assert float(v.value) == 2.0
    grads = nnx.grad(lambda vs: vs[0] * vs[1])([nnx.Param(2.0), nnx.Param(3.0)])
    assert [float(g.value) for g in grads] == [3.0, 2.0]


def test_the_tree_of_variables_maps_their_values():
    block = Block()
    doubled = jax.tree.map(lambda x: 2 * x, nnx.variables(block, nnx.Param))
    assert doubled["parts"][0] is not block.parts[0]
    assert doubled["parts"][0].value.tolist() == [2.0, 2.0]
    leaves = jax.tree.leaves(nnx.variables(block), is_leaf=gc.is_variable)
    assert any(leaf is block.count for leaf in leaves)


def test_optax_takes_states_and_modules():
    block = Block()
    tx = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.masked(optax.adamw(0.1), lambda p: jax.tree.map(lambda x: True, p)),
    )
    for params, grads in [
        (nnx.state(block, nnx.Param), nnx.grad(loss)(block)),
        (block, jax.grad(loss)(block)),
    ]:
        updates, _ = tx.update(grads, tx.init(params), params)
        new = optax.apply_updates(params, updates)
        assert type(new) is type(params)
        assert jax.tree.structure(new) == jax.tree.structure(params)
        assert not np.array_equal(new.dense.kernel[...], block.dense.kernel[...])


# Modules


def test_the_children_are_what_holds_data():
    paths = [
        jax.tree_util.keystr(path)
        for path, _ in jax.tree_util.tree_flatten_with_path(Block())[0]
    ]
    assert paths == [
        *(".count.value", ".dense.bias.value", ".dense.kernel.value"),
        *(".parts[0].value", ".scale"),
    ]
    entries = jax.tree_util.tree_leaves_with_path(nnx.Dict(a=nnx.List([nnx.Param(1)])))
    assert jax.tree_util.keystr(entries[0][0]) == "['a'][0].value"


def test_a_mapped_module_is_a_new_writable_one():
    block = Block()
    twice = jax.tree.map(lambda x: 2 * x, block)
    assert twice.parts[1:] == [3, "relu", None]
    assert (twice.shape, twice.act, twice.options) == ((2, 2), jnp.tanh, {"a": 1})
    assert twice.scale.tolist() == [2.0, 2.0]
    twice.tick().extra = 1
    assert float(block.count.value) == 0.0
    assert jax.device_put(block, jax.devices()[0]).tick().count[...] == 1.0


def test_whatever_stands_for_the_data_the_structure_is_the_same():
    block = Block()
    structure = jax.tree.structure(block)
    for stand_in in (True, "text", object()):
        mapped = jax.tree.map(lambda x, y=stand_in: y, block)
        assert jax.tree.leaves(mapped) == [stand_in] * structure.num_leaves
        assert jax.tree.structure(jax.tree.map(lambda x: 0.0, mapped)) == structure


def test_transformations_of_jax_take_and_make_modules():
    block = Block()
    assert jax.jit(lambda m, x: m(x))(block, X) == pytest.approx(block(X))
    gradient = jax.grad(loss)(block)
    assert type(gradient) is Block
    expected = nnx.grad(loss)(block)
    np.testing.assert_allclose(gradient.dense.kernel, expected.dense.kernel, 1e-6)
    many = jax.vmap(Block)(jnp.arange(3))
    assert many.dense.kernel.shape == (3, 2, 2)
    assert many.tick().count.shape == (3,)
    assert jax.vmap(lambda m, x: m(x), in_axes=(0, None))(many, X).shape == (3, 1, 2)
    assert jax.eval_shape(Block, jnp.array(0)).scale.shape == (2,)
    assert jax.eval_shape(loss, block).shape == ()


def test_a_compiled_function_is_traced_once_for_equal_modules():
    traces = []
    f = jax.jit(lambda m: traces.append(1) or m.scale)
    f(Block(0)), f(Block(1))
    other = Block()
    other.options["a"] = 2
    f(other), f(other)
    assert len(traces) == 2


@pytest.mark.parametrize(
    "model", [nnx.Dict(w=nnx.Param(jnp.ones(2))), nnx.List([jnp.ones(2), 3])]
)
def test_the_rule_of_a_primitive_puts_a_module_together(model):
    # JAX asks it for shapes under no trace.
    leaves, structure = jax.tree.flatten(model)

    def shapes(*leaves):
        again = jax.tree.unflatten(structure, leaves)
        assert type(again) is type(model)
        (leaf,) = jax.tree.leaves(again)
        return jax.core.ShapedArray(leaf.shape, leaf.dtype)

    primitive = jax.extend.core.Primitive("apply")
    primitive.def_abstract_eval(shapes)
    assert jax.eval_shape(primitive.bind, *leaves).shape == (2,)


def test_a_class_can_refuse_to_be_a_pytree():
    class Leaf(nnx.Module, pytree=False):
        pass

    class Below(Leaf):
        pass

    class Again(Leaf, pytree=True):
        pass

    below = Below()
    assert jax.tree.leaves(below) == [below]
    assert jax.tree.leaves(Again()) == []


# Sharing


def test_sharing_below_a_module_is_refused_with_both_paths():
    model = nnx.Dict(a=Block(), b=nnx.Dict())
    model.b.again = model.a.dense
    for use in (jax.tree.leaves, jax.jit(loss), jax.grad(loss)):
        with pytest.raises(ValueError, match=r"Linear at 'a/dense'.*'b/again'.*split"):
            use(model)
    assert len(jax.tree.leaves(model.b)) == 2  # there is none below this one
    model.b = model
    with pytest.raises(ValueError, match=r"'<root>'.*'b'"):
        jax.tree.structure(model)
    # Looked for anew at each use, also where nothing reports the change.
    blocks = nnx.Dict(layers=[Block()])
    jax.tree.leaves(blocks)
    blocks.layers.append(blocks.layers[0].dense)
    with pytest.raises(ValueError, match="layers/1"):
        jax.tree.leaves(blocks)
    with pytest.raises(ValueError, match="layers/1"):
        jax.tree.leaves((1, blocks))


def test_each_subtree_is_not_walked_again(monkeypatch):
    model = nnx.Dict(w=nnx.Param(1.0))
    for _ in range(20):
        model = nnx.Dict(below=model)
    walks = []
    looked = gc.nodes.pytrees._refuse_sharing
    monkeypatch.setattr(
        gc.nodes.pytrees, "_refuse_sharing", lambda x: walks.append(x) or looked(x)
    )
    jax.tree.leaves(model)
    jax.tree_util.tree_flatten_with_path([model])
    assert walks == [model, model]


def test_siblings_that_share_are_copied():
    block = Block()
    a, b = jax.tree.map(lambda x: x, (block, block.dense))
    assert a.dense is not b


def test_a_trainer_whose_optimizer_holds_the_model_is_refused():
    class Trainer(nnx.Module):
        def __init__(self):
            self.model = Block()
            self.optimizer = nnx.Optimizer(self.model, optax.sgd(0.1))

    with pytest.raises(ValueError, match=r"'model' of Trainer.*'optimizer/model'"):
        jax.tree.leaves(Trainer())


# Writes


def _assign(m):
    m.extra = 1
    return m


def _update(m):
    gc.update(m, {"scale": jnp.zeros(2)})
    return m


def _restore(m):
    gc.update(m.dense, gc.state(m.dense))
    return m


def _array(m):
    m.scale = m.scale + 1
    return m


@pytest.mark.parametrize("write", [Block.tick, _assign, _update, _restore, _array])
@pytest.mark.parametrize(
    "transform",
    [
        jax.jit,
        jax.checkpoint,
        lambda f: lambda m: jax.eval_shape(f, m),
        lambda f: lambda m: jax.vmap(f, axis_size=2, in_axes=None)(m),
        lambda f: lambda m: jax.jvp(f, (m,), (m,)),
        lambda f: lambda m: jax.lax.scan(lambda m, _: (f(m), 0), m, None, 2),
    ],
)
def test_a_write_that_nobody_would_see_is_refused(write, transform):
    block = Block()
    with pytest.raises(nnx.TraceContextError, match=READ_ONLY):
        transform(write)(block)
    if write is not _assign:  # what comes back has the structure of what went in
        transform(lambda m: write(nnx.by_value(m)))(block)
        transform(lambda m: write(nnx.clone(m)))(block)
        transform(lambda m: write(nnx.merge(*nnx.split(m))))(block)
        transform(lambda m: write(jax.tree.map(lambda x: x * 1, m)))(block)
    assert float(block.count.value) == 0.0


@pytest.mark.parametrize("write", [Block.tick, _assign, _update, _restore, _array])
def test_nor_would_anybody_see_what_is_written_to_a_copy_with_the_same_values(write):
    """Libraries make one for themselves where they take their arguments apart."""
    block = Block()

    def copied(m, change=lambda x: x):
        return jax.tree.map(change, m)

    def completed(m):
        first = copied(m, lambda x: x if x.ndim == 0 else None)
        second = copied(m, lambda x: None if x.ndim == 0 else x)
        return jax.tree.map(
            lambda a, b: b if a is None else a,
            first,
            second,
            is_leaf=lambda x: x is None,
        )

    for function in (
        lambda m: write(copied(m)) and 0,
        lambda m: write(copied(copied(m))) and 0,
        lambda m: write(completed(m)) and 0,
        lambda _: write(copied(block)) and 0,
        lambda m: jax.lax.cond(True, lambda: write(copied(m)) and 0, lambda: 0),
    ):
        with pytest.raises(nnx.TraceContextError, match=READ_ONLY):
            jax.jit(function)(block)
    for function in (
        lambda m: write(nnx.by_value(copied(m))),
        lambda m: copied(nnx.by_value(m)).tick(),
        lambda m: copied(nnx.clone(m)).tick(),
        lambda m: jax.lax.cond(True, lambda m: m, lambda m: m, copied(m)).tick(),
    ):
        if write is not _assign:
            jax.jit(function)(block)
    nnx.jit(lambda m: write(copied(m)) and 0)(block)  # a copy of what it may write
    copied(block).tick()
    assert float(block.count.value) == 0.0


def test_where_a_part_is_another_value_only_the_rest_is_the_same():
    def f(block):
        m = jax.tree.map(lambda x: x * 2 if x.ndim else x, block)
        m.parts[0].value = m.parts[0] + 1
        m.scale = m.scale + 1
        with pytest.raises(nnx.TraceContextError, match=READ_ONLY):
            m.tick()
        return m

    assert jax.jit(f)(Block()).scale.tolist() == [3, 3]


def test_also_if_it_is_in_an_object_that_may_be_written():
    def f(block, permitted):
        holder = nnx.Dict(block=nnx.by_value(block) if permitted else block)
        gc.update(holder, {"block": {"scale": jnp.zeros(2)}})
        return holder.block.scale

    block = Block()
    with pytest.raises(nnx.TraceContextError, match=READ_ONLY):
        jax.jit(f, static_argnums=1)(block, False)
    assert jax.jit(f, static_argnums=1)(block, True).tolist() == [0, 0]


def test_also_if_a_transformation_of_ours_would_write():
    block = Block()

    def step(m):
        grads = nnx.grad(lambda m: loss(m.tick()))(m)
        return grads.dense.kernel[...]

    with pytest.raises(nnx.TraceContextError, match=READ_ONLY):
        jax.jit(step)(block)
    with pytest.raises(nnx.TraceContextError, match=READ_ONLY):
        jax.jit(lambda m: nnx.jit(_array)(m) and 0)(block)
    with pytest.raises(nnx.TraceContextError, match=READ_ONLY):
        jax.jit(lambda m: nnx.jit(_assign)(m) and 0)(block)
    reading = jax.jit(lambda m: nnx.grad(loss)(m).dense.kernel[...])(block)
    expected = nnx.grad(loss)(block).dense.kernel
    np.testing.assert_allclose(reading, expected, rtol=1e-6)
    counted = jax.jit(lambda m: nnx.jit(Block.tick)(nnx.by_value(m)))(block)
    assert float(counted.count) == 1.0


def test_what_a_transformation_returns_is_writable_at_any_depth():
    @jax.jit
    def outer(keys):
        many = jax.vmap(Block)(keys).tick()
        one = jax.jit(lambda: Block())().tick()
        gradient = jax.grad(loss)(one).tick()
        final, _ = jax.lax.scan(lambda m, _: (nnx.by_value(m).tick(), 0), one, None, 2)
        return many.count, one.count, gradient.count, final.tick().count

    counts = [c.value.tolist() for c in outer(jnp.arange(2))]
    assert counts == [[1.0, 1.0], 1.0, 1.0, 4.0]


def test_a_module_made_in_a_trace_is_taken_by_value_below_it():
    @jax.jit
    def outer(x):
        block = Block()
        jax.grad(lambda m: loss(m.tick()))(block)
        return x

    with pytest.raises(nnx.TraceContextError, match=READ_ONLY):
        outer(1.0)


def test_cases_that_the_rule_misjudges_are_errors_with_a_way_out():
    block = Block()
    _, pull = jax.vjp(loss, block)
    assert pull(1.0)[0].tick()  # in the trace that took it apart

    def below(g, permitted):
        cotangent = pull(g)[0]  # new, but put together below that trace
        return (nnx.by_value(cotangent) if permitted else cotangent).tick().count

    with pytest.raises(nnx.TraceContextError, match=READ_ONLY):
        jax.jit(below, static_argnums=1)(1.0, False)
    assert float(jax.jit(below, static_argnums=1)(1.0, True).value) == 1.0

    kept = []

    @jax.jit
    def leaking(keys, permitted):
        # Something keeps the inner trace alive, so it does not seem to be over.
        many = jax.vmap(lambda key: kept.append(key) or Block(key))(keys)
        return (nnx.by_value(many) if permitted is None else many).tick().count

    with pytest.raises(nnx.TraceContextError, match=READ_ONLY):
        leaking(jnp.arange(2), 0)
    assert leaking(jnp.arange(2), None).shape == (2,)


def test_streams_by_value_refuse_to_draw():
    with pytest.raises(nnx.TraceContextError, match=READ_ONLY):
        jax.jit(lambda rngs: rngs.params())(nnx.Rngs(0))
    key = jax.jit(lambda rngs: nnx.by_value(rngs).params())(nnx.Rngs(0))
    assert key == nnx.Rngs(0).params()


# Static attributes, and a state as an attribute


@dataclasses.dataclass
class Config:
    width: int = 2
    names: list = dataclasses.field(default_factory=lambda: ["a"])
    options: dict = dataclasses.field(default_factory=dict)
    table: object = None
    rate: float = float("nan")


class Opaque:
    __slots__ = ("values",)
    __hash__ = None

    def __init__(self):
        self.values = {1}

    def __eq__(self, other):
        return NotImplemented


class Configured(nnx.Module):
    def __init__(self, config):
        self.config = config
        self.w = nnx.Param(jnp.ones(2))


@pytest.mark.parametrize("jit", [nnx.jit, jax.jit])
def test_a_configuration_is_compared_by_what_it_holds(jit):
    traces = []
    f = jit(lambda m: traces.append(1) or m.w * m.config.width)
    table = np.array([1.0, np.nan])
    config = Config(options={"opaque": Opaque()}, table=table)
    config.options["me"] = config
    model = Configured(config)
    f(model), f(model), f(model)
    assert len(traces) == 1
    for change in (
        lambda: config.names.append("b"),
        lambda: config.options.update(c=(1, [2])),
        lambda: config.options["c"][1].append(3),
        lambda: config.options["opaque"].values.add(2),
        lambda: table.__setitem__(0, -0.0),
        lambda: table.__setitem__(0, 0.0),
        lambda: setattr(config, "width", 1),
        lambda: setattr(config, "width", True),
    ):
        before = len(traces)
        change()
        f(model), f(model)
        assert len(traces) == before + 1
    f(Configured(Config())), f(Configured(Config()))
    assert len(traces) == before + 2


@pytest.mark.parametrize("table", [None, np.arange(3)], ids=["plain", "array"])
def test_a_trace_sees_the_configuration_that_it_is_kept_for(table):
    seen = []
    f = nnx.jit(lambda m, x: seen.append([*m.config.names]) or x)
    changed, same = (Configured(Config(table=copy.copy(table))) for _ in range(2))
    f(changed, jnp.ones(1))
    changed.config.names.append("b")
    f(same, jnp.ones(1)), f(same, jnp.ones(2)), f(changed, jnp.ones(2))
    assert seen == [["a"], ["a"], ["a", "b"]]
    other = Configured(Config(width=7))
    assert gc.clone(other).config is other.config


def test_a_state_as_an_attribute_accumulates_gradients():
    class Trainer(nnx.Module):
        def __init__(self):
            self.model = Block()
            self.total = jax.tree.map(jnp.zeros_like, nnx.state(self.model, nnx.Param))

    @nnx.jit
    def step(trainer):
        grads = nnx.grad(loss)(trainer.model)
        trainer.total = jax.tree.map(jnp.add, trainer.total, grads)

    trainer = Trainer()
    step(trainer), step(trainer)
    expected = nnx.grad(loss)(trainer.model).dense.kernel.value
    np.testing.assert_allclose(trainer.total.dense.kernel, 2 * expected, rtol=1e-6)
    graphdef, state = nnx.split(trainer)
    again = nnx.merge(graphdef, state).total
    assert type(again) is nnx.State
    assert again.dense.kernel.type is nnx.Param


# data and static


def test_a_type_that_is_to_be_data_must_be_a_pytree():
    @nnx.register_data_type
    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class Pair:
        a: jax.Array

    module = nnx.Module()
    module.pair = Pair(jnp.ones(2))
    assert list(nnx.state(module).flat_state().paths) == [("pair", "a")]
    with pytest.raises(TypeError, match=r"Plain can't be data.*register_dataclass"):
        nnx.register_data_type(type("Plain", (), {}))


def test_data_and_static_say_what_an_attribute_is():
    @nnx.dataclass
    class Schedule(nnx.Pytree):
        rate: float = nnx.data(default=0.5)
        steps: int = nnx.data(default=1)
        name: str = nnx.static(default="constant", metadata={"help": "its name"})

    schedule = Schedule()
    assert [x.dtype.kind for x in jax.tree.leaves(schedule)] == ["f", "i"]
    assert schedule == schedule
    assert schedule != Schedule()
    with pytest.raises(ValueError, match=r"Array.* at \[0\].*static"):
        Schedule(name=[jnp.ones(1)])
    assert nnx.is_data(nnx.Rngs(0))
    assert not nnx.is_data([jnp.ones(1)])
    names = np.array(["a", "b"])  # no array of JAX
    assert not nnx.is_data(names)
    assert nnx.static(names) is names


def test_a_shape_is_data_and_a_dataclass_makes_it_static():
    spec = {"x": jax.ShapeDtypeStruct((2,), "float32")}
    with pytest.raises(ValueError, match=r"ShapeDtypeStruct at \['x'\].*what is const"):
        nnx.static(spec)

    @dataclasses.dataclass
    class Spec:
        fields: dict

    class Buffer(nnx.Module):
        def __init__(self):
            self.spec = Spec(spec)
            self.values = nnx.Variable(jnp.zeros(3))

        def fill(self):
            self.values.value += jnp.ones((), self.spec.fields["x"].dtype)

    buffer = Buffer()
    assert list(nnx.state(buffer)) == ["values"]
    nnx.jit(lambda b: nnx.cond(True, Buffer.fill, lambda b: None, b))(buffer)
    assert buffer.values.value.tolist() == [1.0, 1.0, 1.0]


def test_an_annotation_makes_a_field_of_a_dataclass_data():
    @nnx.dataclass
    class Scaled(nnx.Module):
        factor: nnx.Data[float]
        other: "nnx.Data[int]"
        name: str = "plain"

    scaled = Scaled(2.0, 3)
    assert [float(x) for x in jax.tree.leaves(scaled)] == [2.0, 3.0]
    assert float(jax.jit(lambda s: s.factor * s.other)(scaled)) == 6.0


def test_numbers_in_containers_that_are_data_are_settings():
    class Windows(nnx.Module):
        def __init__(self):
            self.sizes = nnx.data([(64, 0), (32, 0)])
            self.options = nnx.data({"first": True, "bias": jnp.ones(2)})

    def call(module, x):
        return x + module.options["bias"] if module.sizes[0][0] > x.size else x

    model, x = Windows(), jnp.zeros(2)
    for transform in (nnx.jit, nnx.remat, jax.jit):
        assert transform(call)(model, x).tolist() == [1.0, 1.0]
    assert jax.jit(lambda x: call(model, x))(x).tolist() == [1.0, 1.0]
    model.sizes = nnx.data([(1, 0)])
    assert nnx.jit(call)(model, x).tolist() == [0.0, 0.0]
    assert list(nnx.state(model)) == ["options"]


def test_declared_fields_of_a_frozen_dataclass():
    @nnx.dataclass(frozen=True)
    class Schedule(nnx.Pytree):
        rate: float = nnx.data(default=0.5)
        name: str = nnx.static(default="constant")

    schedule = Schedule()
    assert [float(x) for x in jax.tree.leaves(schedule)] == [0.5]
    with pytest.raises(dataclasses.FrozenInstanceError):
        schedule.rate = 1.0
