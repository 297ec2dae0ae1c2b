"""Arrays in a graph without a variable around them: leaves with identity by place."""

import collections
import gc as garbage
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphcore as gc
from graphcore.authors import enter
from graphcore.cache.plans import kept_plan, plan_of

Point = collections.namedtuple("Point", ("x", "y"))


class Model(gc.Object):
    def __init__(self):
        self.kernel = gc.Param(jnp.ones(2))
        self.scale = jnp.arange(2.0)
        self.parts = [jnp.zeros(1), {"deep": np.ones(3)}]
        self.pair = (jnp.zeros(()), "static")
        self.point = Point(jnp.zeros(()), [jnp.ones(1)])


def call(f, *args, jit=lambda body: body):
    entry = enter(f, args)
    return entry.commit(*jit(entry.body)(*entry.values))


def test_they_are_leaves_of_the_state_as_they_are():
    model = Model()
    paths = gc.state(model).flat_state().paths
    assert paths == (
        ("kernel",),
        ("pair", 0),
        ("parts", 0),
        ("parts", 1, "deep"),
        ("point", "x"),
        ("point", "y", 0),
        ("scale",),
    )
    assert gc.state(model).scale is model.scale
    assert gc.state(model, gc.Param).flat_state().paths == (("kernel",),)
    assert gc.state(model, jax.Array)["scale"] is model.scale
    rest = gc.split(model, gc.Param, ...)[2]
    assert rest.flat_state().paths == paths[:0] + paths[1:]
    assert gc.variables(model).scale is model.scale


def test_what_is_no_array_for_jax_stays_static():
    node = gc.Dict(a=np.array(["text"]), b=np.float32(1), c=1.0)
    assert len(gc.state(node)) == 0


def test_arrays_beside_what_has_no_hash_are_read_and_written():
    node = gc.Dict(parts=[*map(jnp.float32, range(12)), {"a", "b"}])
    graphdef, state = gc.split(node)
    assert jax.tree.leaves(state) == [*range(12)]
    assert gc.merge(graphdef, state).parts[-1] == {"a", "b"}
    gc.update(node, jax.tree.map(lambda x: x + 1, state))
    assert node.parts == [*range(1, 13), {"a", "b"}]


def test_a_graph_is_put_together_with_other_arrays():
    model = Model()
    graphdef, state = gc.split(model)
    twin = gc.merge(graphdef, jax.tree.map(lambda x: x + 1, state))
    assert twin.scale.tolist() == [1.0, 2.0]
    assert twin.parts[1]["deep"].tolist() == [2.0] * 3
    assert twin.pair[0] == 1 and twin.pair[1] == "static"
    assert type(twin.point) is Point and twin.point.y[0].tolist() == [2.0]
    assert graphdef == gc.graphdef(twin) and hash(graphdef) == hash(gc.graphdef(twin))
    assert gc.clone(model).scale is model.scale
    model.weight = gc.Param(1)
    sharing = gc.clone(model, variables=False)
    assert sharing.weight is model.weight and sharing.scale is model.scale


def test_the_shapes_of_arrays_stand_for_them():
    abstract = jax.eval_shape(lambda: gc.split(Model())[1])
    twin = gc.merge(gc.graphdef(Model()), abstract)
    assert twin.scale == jax.ShapeDtypeStruct((2,), jnp.float32)
    assert gc.state(twin).scale is twin.scale


@pytest.mark.parametrize("jit", [lambda body: body, jax.jit])
def test_writes_reach_the_callers_objects_where_they_stand(jit):
    model = Model()
    parts, deep, kept, y = model.parts, model.parts[1], model.kernel, model.point.y

    def step(model, x):
        model.scale = model.scale + x
        model.parts[0] = model.parts[0] + x
        model.parts[1]["deep"] = model.parts[1]["deep"] + x
        model.pair = (model.pair[0] + x, *model.pair[1:])
        model.point = model.point._replace(x=model.point.x + x)
        model.point.y[0] = model.point.y[0] + x
        model.kernel.value += x

    call(step, model, 1.0, jit=jit)
    assert model.scale.tolist() == [1.0, 2.0]
    assert (model.parts[0].tolist(), deep["deep"].tolist()) == ([1.0], [2.0] * 3)
    assert (float(model.pair[0]), float(model.point.x)) == (1.0, 1.0)
    assert y[0].tolist() == [2.0]
    # The caller's own containers, wherever they can be changed.
    assert model.parts is parts and parts[1] is deep and model.point.y is y
    assert model.kernel is kept


def test_what_an_immutable_pytree_holds_is_made_anew():
    @jax.tree_util.register_pytree_node_class
    class Frozen:
        def __init__(self, parts):
            self.parts = parts

        def tree_flatten(self):
            return (self.parts,), None

        @classmethod
        def tree_unflatten(cls, _, children):
            return cls(*children)

    gc.register_filtered_type(Frozen, immutable=True)
    frozen = Frozen([jnp.zeros(()), {"deep": jnp.zeros(())}])
    node = gc.Dict(frozen=frozen)
    for n in (1.0, 2.0):
        gc.update(node, jax.tree.map(lambda x: x + 1, gc.state(node)))
        parts = node.frozen.parts
        assert (float(parts[0]), float(parts[1]["deep"])) == (n, n)
    # It may stand elsewhere, too.
    assert (float(frozen.parts[0]), float(frozen.parts[1]["deep"])) == (0.0, 0.0)


def test_what_is_only_read_keeps_its_very_array():
    model = Model()
    before = model.scale, model.parts[1]["deep"]
    call(lambda model: setattr(model, "pair", (model.pair[0] + 1, 2)), model)
    assert (model.scale, model.parts[1]["deep"]) == before
    assert model.scale is before[0] and model.parts[1]["deep"] is before[1]
    assert model.pair == (1.0, 2)


def test_written_arrays_do_not_make_a_function_trace_again():
    runs = []
    model = Model()

    def step(model):
        runs.append(1)
        model.scale = model.scale * 2
        model.pair = (model.pair[0] + 1, *model.pair[1:])
        model.point.y[0] = model.point.y[0] + 1

    for _ in range(12):
        call(step, model, jit=jax.jit)
        assert kept_plan(model).holds(model)  # nothing is walked again
    assert len(runs) == 1
    assert model.pair[0] == 12 and model.point.y[0].tolist() == [13.0]
    model.scale = jnp.ones(2)  # by the caller
    call(step, model, jit=jax.jit)
    assert len(runs) == 1 and model.scale.tolist() == [2.0, 2.0]
    model.scale = jnp.ones(3)
    call(step, model, jit=jax.jit)
    assert len(runs) == 2 and model.scale.shape == (3,)


@pytest.mark.parametrize("other", [None, 1.0, "text", gc.Param(1)])
def test_something_else_at_the_place_is_seen(other):
    model = Model()
    for _ in range(3):
        definition = plan_of(model).definition
    model.scale = other
    assert plan_of(model).definition != definition
    model.scale = jnp.ones(7)
    assert plan_of(model).definition == definition
    model.parts[0] = other
    assert plan_of(model).definition != definition
    model.parts[0] = jnp.ones(1)
    model.pair = (other, "static")
    assert plan_of(model).definition != definition
    model.pair = (jnp.ones(1), "other")
    assert plan_of(model).definition != definition


def test_arrays_come_go_and_move_inside():
    model = Model()

    def step(model):
        model.moved = model.scale
        del model.scale
        model.new = [jnp.ones(2) * 3]
        model.parts = [*model.parts, jnp.zeros(())]
        return gc.Dict(out=model.moved + 1)

    out = call(step, model, jit=jax.jit)
    assert model.moved.tolist() == [0.0, 1.0] and not hasattr(model, "scale")
    assert model.new[0].tolist() == [3.0, 3.0] and len(model.parts) == 3
    assert out.out.tolist() == [1.0, 2.0]


def test_one_array_at_two_places_is_two_leaves():
    array = jnp.ones(2)
    node = gc.Dict(a=array, b=array)
    call(lambda node: setattr(node, "a", node.a * 2), node)
    assert (node.a.tolist(), node.b.tolist()) == ([2.0, 2.0], [1.0, 1.0])


def test_update_writes_adds_and_refuses_what_does_not_fit():
    model = Model()
    gc.update(model, {"scale": jnp.full(2, 5.0), "parts": {1: {"deep": jnp.ones(1)}}})
    assert model.scale.tolist() == [5.0, 5.0]
    assert model.parts[1]["deep"].tolist() == [1.0]
    gc.update(model, gc.State({"added": jnp.zeros(1)}))
    assert model.added.tolist() == [0.0]
    with pytest.raises(ValueError, match=r"'scale'.*Param"):
        gc.update(model, gc.State({"scale": gc.Param.state(jnp.ones(2))}))
    assert model.scale.tolist() == [5.0, 5.0]


def test_pop_takes_them_out():
    model = gc.Dict(a=jnp.ones(1), n=gc.Variable(1), b=2)
    popped = gc.pop(model, jax.Array)
    assert popped.flat_state().paths == (("a",),)
    assert set(model) == {"n", "b"}


def test_another_trace_may_not_write_them():
    model = Model()

    def inside(x):
        gc.update(model, {"scale": x})

    with pytest.raises(gc.TraceContextError):
        jax.jit(inside)(jnp.ones(2))
    assert model.scale.tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    "reach",
    [lambda n: n, lambda n: gc.Dict(n=n), lambda n: [n]],
    ids=["itself", "Dict", "list"],
)
def test_another_trace_may_not_write_them_through_a_root_of_its_own(reach):
    """The node that an array is part of decides, not the one that `update` got."""
    node = gc.Dict(a=[jnp.zeros(2)])

    def inside(x):
        state = gc.state(reach(node))
        gc.update(reach(node), jax.tree.map(lambda leaf: leaf + x, state))

    with pytest.raises(gc.TraceContextError):
        jax.jit(inside)(jnp.ones(2))
    assert node.a[0].tolist() == [0.0, 0.0]


def test_a_failing_write_takes_the_others_back():
    class Bag:
        def __init__(self):
            self.items = {}

    def refuse(bag, key, child):
        raise KeyError(key)

    gc.register_graph_node_type(
        Bag,
        flatten=lambda bag: (sorted(bag.items.items()), None),
        set_key=refuse,
        pop_key=lambda bag, key: bag.items.pop(key),
        create_empty=lambda metadata: Bag(),
        clear=lambda bag: bag.items.clear(),
        init=lambda bag, pairs: bag.items.update(pairs),
    )
    node = gc.Dict(a=jnp.zeros(1), b=Bag())
    node.b.items["x"] = jnp.zeros(1)

    def step(node):
        node.a = node.a + 1
        node.b.items["x"] = node.b.items["x"] + 1

    with pytest.raises(KeyError):
        call(step, node)
    assert node.a.tolist() == [0.0] and node.b.items["x"].tolist() == [0.0]


def test_replaced_arrays_and_dropped_models_are_freed():
    garbage.disable()
    try:
        model = Model()
        for _ in range(3):
            call(lambda m: setattr(m, "scale", m.scale + 1), model)
        array = weakref.ref(model.scale)
        call(lambda m: setattr(m, "scale", m.scale + 1), model)
        assert array() is None
        array, node = weakref.ref(model.scale), weakref.ref(model)
        model = None
        assert node() is None and array() is None
    finally:
        garbage.enable()
