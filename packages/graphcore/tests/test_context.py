import gc as garbage
import threading
import weakref

import graph_strategies as gs
import graph_zoo as zoo
import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import graphcore as gc


def identities(root):
    """Names the objects of a graph; others are new."""
    # The objects are kept, so that no new one can have the id of one that was dropped.
    known = {
        id(x): (number, x)
        for number, x in enumerate(zoo.reachable(root))
        if zoo.is_graph_node(x) or zoo.is_variable(x)
    }
    return lambda x: known.get(id(x), ("new",))[0]


def unchangeable(root):
    """Whether something in a graph has metadata that nobody can set."""
    return any(isinstance(x, zoo.Cell | zoo.Bag) for x in zoo.reachable(root))


def run(function, root):
    with gc.update_context("test") as ctx:
        graphdef, state = ctx.split(root)
        result = ctx.merge(*function(graphdef, state))
    assert ctx._inner is None
    assert ctx._outer == {}
    return result


def edited(edits, compile):
    def inside(graphdef, state):
        ctx = gc.current_update_context("test")
        node = ctx.merge(graphdef, state)
        for edit in edits:
            gs.edit_structure(node, edit)
        return ctx.split(node)

    return jax.jit(inside, static_argnums=0) if compile else inside


def assert_edits_reach_the_outer_objects(root, edits, compile):
    # What the edits do to a copy, and which of its objects were there before.
    twin = gc.clone(root)
    names = identities(twin)
    for edit in edits:
        gs.edit_structure(twin, edit)
    expected = zoo.canonical(twin, names)
    names = identities(root)
    result = run(edited(edits, compile), root)
    assert result is root
    assert zoo.canonical(root, names) == expected


@settings(max_examples=150)
@given(gs.graphs(), st.lists(gs.edits, max_size=6))
def test_any_edit_inside_reaches_the_outer_objects(root, edits):
    assert_edits_reach_the_outer_objects(root, edits, compile=False)


@settings(max_examples=60)
@given(gs.graphs(foreign=False), st.lists(gs.edits, max_size=5))
def test_any_edit_inside_a_compiled_function_reaches_the_outer_objects(root, edits):
    # Everything that passes through a compiled call becomes a JAX array.
    for variable in zoo.variables_of(root):
        gs.set_value(variable, jax.tree.map(jnp.asarray, zoo.value_of(variable)))
    gc.update(root, jax.tree.map(jnp.asarray, gc.state(root)))
    assert_edits_reach_the_outer_objects(root, edits, compile=True)


@settings(max_examples=60)
@given(gs.graphs())
def test_an_unchanged_graph_keeps_all_of_its_objects(root):
    containers = zoo.reachable(root)
    run(lambda *gs: run_inside(gs), root)
    assert all(a is b for a, b in zip(containers, zoo.reachable(root), strict=True))


def run_inside(graphdef_and_state):
    ctx = gc.current_update_context("test")
    return ctx.split(ctx.merge(*graphdef_and_state))


def test_a_second_compiled_call_does_not_run_the_function_again():
    runs = []

    @jax.jit
    def inside(graphdef, state):
        runs.append(1)
        ctx = gc.current_update_context("test")
        node = ctx.merge(graphdef, state)
        node.n.value += 1
        node.extra = gc.Param(node.n.value * 2)
        del node.gone
        return ctx.split(node)

    for start in (1, 10):
        node = gc.Dict(n=gc.Variable(jnp.array(start)), gone=3)
        n = node.n
        assert run(inside, node) is node
        assert node.n is n
        assert (int(n.value), int(node.extra.value)) == (start + 1, 2 * start + 2)
        assert "gone" not in node
    assert len(runs) == 1


def test_objects_can_be_swapped_and_made_cyclic_inside():
    outer = gc.Dict(a=gc.Param(jnp.array(1)), b=gc.Param(jnp.array(2)), c=zoo.Node())
    a, b, c = outer.a, outer.b, outer.c

    @jax.jit
    def inside(graphdef, state):
        ctx = gc.current_update_context("test")
        d = ctx.merge(graphdef, state)
        d.a, d.b = d.b, d.a
        d.c.up = d
        d.new = zoo.Node()
        d.new.old = d.c
        return ctx.split(d)

    run(inside, outer)
    assert outer.a is b and outer.b is a and outer.c is c
    assert c.up is outer and outer.new.old is c
    assert (int(a.value), int(b.value)) == (1, 2)


def test_the_order_of_attributes_is_kept():
    outer = gc.Dict(z=gc.Param(1), b=2, a=3)

    def inside(graphdef, state):
        ctx = gc.current_update_context("test")
        d = ctx.merge(graphdef, state)
        d.c = 4
        del d.b
        return ctx.split(d)

    run(inside, outer)
    assert list(outer) == ["z", "a", "c"]


def test_index_mapping_says_what_comes_from_where():
    outer = gc.Dict(a=gc.Param(1), b=gc.Param(2))
    with gc.update_context("test") as ctx:
        first, state = ctx.split(outer)
        assert first.index_mapping is None
        inner = ctx.merge(first, state)
        del inner.a
        second, state = ctx.split(inner)
        assert second.index_mapping == gc.HashableMapping({0: 0, 1: 2})


def test_split_by_filters_in_a_context():
    outer = gc.Dict(a=gc.Param(1), b=gc.BatchStat(2))
    with gc.update_context("test") as ctx:
        inner = ctx.merge(*ctx.split(outer, gc.Param, ...))
        inner.b.value = 5
        assert ctx.merge(*ctx.split(inner, gc.Param, ...)) is outer
    assert outer.b.value == 5


@pytest.mark.parametrize("step", [1, 2, 3, 4])
def test_an_error_at_any_step_leaves_everything_as_it_was(step):
    outer = gc.Dict(a=gc.Param(1), b=gc.List([gc.Param(2)]))
    before = zoo.canonical(outer)
    with (  # noqa: PT012
        pytest.raises(KeyboardInterrupt),
        gc.update_context("test") as ctx,
    ):
        graphdef, state = ctx.split(outer)
        if step == 1:
            raise KeyboardInterrupt
        inner = ctx.merge(graphdef, state)
        inner.a.value = 5
        inner.b.append(inner)
        if step == 2:
            raise KeyboardInterrupt
        graphdef, state = ctx.split(inner)
        if step == 3:
            raise KeyboardInterrupt
        inner.boom = Boom()
        graphdef, state = ctx.split(inner)
        outer.boom = Boom()
        del outer.boom
        ctx.merge(graphdef, state)
        raise AssertionError
    if step == 4:
        return
    assert zoo.canonical(outer) == before
    assert ctx._outer == {}
    with pytest.raises(ValueError, match="test"):
        gc.current_update_context("test")


class Boom:
    """A graph node that can be described, but not made."""


gc.register_graph_node_type(
    Boom,
    flatten=lambda x: ((), None),
    set_key=lambda x, k, v: None,
    pop_key=lambda x, k: None,
    create_empty=lambda metadata: (_ for _ in ()).throw(KeyboardInterrupt),
    clear=lambda x: None,
    init=lambda x, pairs: None,
)


class Fragile:
    """A variable type whose instances refuse a value."""

    def __init__(self, content, error=None):
        self.content = content
        self.error = error

    def set(self, value):
        if self.error is not None:
            raise self.error
        self.content = value


gc.register_variable_type(
    Fragile,
    get_value=lambda x: x.content,
    set_value=lambda x, value: x.set(value),
    get_metadata=lambda x: {},
    create=lambda kind, value, metadata: kind(value),
)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("how", ["context", "cache", "update"])
def test_a_write_that_fails_halfway_is_taken_back(error, how):
    outer = gc.Dict(
        z=gc.Param(1), a=gc.Param(2), m=Fragile(3), n=gc.Param(4), b=gc.Dict(x=1)
    )
    outer.bag = zoo.Bag()
    outer.bag.items["v"] = gc.Param(0)
    refs = gc.RefMap()
    gc.flatten(outer, refs)
    names = identities(outer)

    def describe():
        return zoo_canonical(outer, names), list(outer)

    before = describe()
    inner = gc.clone(outer)
    for variable in (inner.z, inner.a, inner.n, inner.bag.items["v"]):
        variable.value += 10
    inner.m.content = 13
    if how != "update":
        inner.b.y = 2
        inner.new = gc.Param(5)
        inner.bag.items["w"] = 6
    outer.m.error = error("no")
    with pytest.raises(error):  # noqa: PT012
        if how == "cache":
            cache = {index: x for x, index in refs.items()}
            inner_refs = gc.RefMap()
            gc.flatten(inner, inner_refs)
            graphdef, state = gc.flatten(inner)
            mapping = same_paths(graphdef, gc.graphdef(outer))
            gc.unflatten(
                graphdef, state, index_ref_cache={i: cache[j] for i, j in mapping}
            )
        elif how == "update":
            gc.update(outer, gc.state(inner))
        else:
            with gc.update_context("test") as ctx:
                twin = ctx.merge(*ctx.split(outer))
                for variable in (twin.z, twin.a, twin.n):
                    variable.value += 10
                twin.b.y = 2
                twin.new = gc.Param(5)
                ctx.merge(*ctx.split(twin))
    assert describe() == before
    outer.m.error = None
    gc.update(outer, {"m": 8})
    assert outer.m.content == 8


def same_paths(graphdef, other):
    from graphcore.graphdef.definition import definition_paths

    index = {p: d.index for p, d in definition_paths(other) if hasattr(d, "index")}
    return [
        (d.index, index[p])
        for p, d in definition_paths(graphdef)
        if hasattr(d, "index") and p in index and d.index != -1
    ]


def zoo_canonical(root, names):
    cells = [x for x in vars(root).values() if type(x) is Fragile]
    shown = gc.Dict({k: v for k, v in vars(root).items() if type(v) is not Fragile})
    return zoo.canonical(shown, names), [x.content for x in cells]


def test_metadata_that_cannot_be_set_is_refused_and_nothing_changes():
    bag = zoo.Bag("one")
    outer = gc.Dict(bag=bag, v=gc.Param(1))

    def inside(graphdef, state):
        ctx = gc.current_update_context("test")
        d = ctx.merge(graphdef, state)
        d.v.value = 2
        d.bag.label = "two"
        return ctx.split(d)

    with pytest.raises(ValueError, match=r"Bag at 'bag'.*one.*two"):
        run(inside, outer)
    assert (bag.label, outer.v.value) == ("one", 1)


def test_a_context_can_be_used_again_after_an_error_inside():
    outer = gc.Dict(n=gc.Variable(1))
    with gc.update_context("test") as ctx:
        inner = ctx.merge(*ctx.split(outer))
        inner.n.value = 100  # and then something fails
        inner = ctx.merge(*ctx.split(outer))
        inner.n.value = 2
        assert ctx.merge(*ctx.split(inner)) is outer
        inner = ctx.merge(*ctx.split(outer))
        inner.n.value += 1
        assert ctx.merge(*ctx.split(inner)) is outer
    assert outer.n.value == 3


# Tags, nesting, threads


def test_the_innermost_context_of_a_tag_counts():
    with gc.update_context("a") as first, gc.update_context("b") as other:
        with gc.update_context("a") as second:
            assert gc.current_update_context("a") is second
            assert gc.current_update_context("b") is other
        assert gc.current_update_context("a") is first
    with pytest.raises(ValueError, match="'a'"):
        gc.current_update_context("a")


def test_as_a_decorator_each_call_has_its_own_context():
    seen = []

    @gc.update_context("deco")
    def f(depth):
        seen.append(gc.current_update_context("deco"))
        if depth:
            f(depth - 1)

    f(2)
    assert len({id(x) for x in seen}) == 3
    assert isinstance(seen[0], gc.UpdateContext)


def test_contexts_are_of_one_thread():
    errors = []

    def other():
        try:
            gc.current_update_context("test")
        except ValueError as error:
            errors.append(error)

    with gc.update_context("test"):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert len(errors) == 1


def test_a_context_forgets_everything():
    class Thing(gc.Object):
        pass

    outer = Thing()
    outer.v = gc.Param(jnp.ones(2))
    found = [weakref.ref(outer), weakref.ref(outer.v)]

    @jax.jit
    def inside(graphdef, state):
        ctx = gc.current_update_context("test")
        inner = ctx.merge(graphdef, state)
        found.extend([weakref.ref(inner), weakref.ref(inner.v)])
        inner.v.value += 1
        return ctx.split(inner)

    with gc.update_context("test") as ctx:
        ctx.merge(*inside(*ctx.split(outer)))
        del outer
        garbage.collect()
        assert [f() for f in found] == [None] * 4

    outer = Thing()
    found = [weakref.ref(outer)]
    with pytest.raises(RuntimeError), gc.update_context("test") as ctx:  # noqa: PT012
        ctx.merge(*ctx.split(outer))
        raise RuntimeError
    del outer
    garbage.collect()
    assert found[0]() is None


# Several nodes in one index space


@settings(max_examples=60)
@given(gs.graphs(), st.data())
def test_split_and_merge_contexts_share_an_index_space(root, data):
    nodes = zoo.graph_nodes_of(root)
    chosen = data.draw(st.lists(st.sampled_from(nodes), min_size=1, max_size=3))
    with gc.split_context() as ctx:
        parts = [ctx.split(node) for node in chosen]
    with gc.merge_context() as ctx:
        merged = [ctx.merge(*part) for part in parts]
    assert zoo.canonical(tuple(merged)) == zoo.canonical(tuple(chosen))


def test_variables_as_roots():
    shared = gc.Param(1, unit="m")
    with gc.split_context() as ctx:
        assert isinstance(ctx, gc.SplitContext)
        one, two, three = (
            ctx.split(shared),
            ctx.split(gc.Dict(a=shared)),
            ctx.split(shared),
        )
    assert one[1] == shared.to_state()
    assert len(two[1]) == 0
    with gc.merge_context() as ctx:
        assert isinstance(ctx, gc.MergeContext)
        first, second, third = (ctx.merge(*x) for x in (one, two, three))
    assert first is second.a is third
    assert (first.value, first.unit) == (1, "m")


def test_contexts_for_several_nodes_serve_as_the_four_steps():
    shared = gc.Param(jnp.array(1))
    lone = gc.BatchStat(jnp.array(5))
    first, second = gc.Dict(a=shared), gc.Dict(b=shared)

    @jax.jit
    def inside(parts):
        with gc.merge_context("test") as ctx:
            one, two, variable = (ctx.merge(*part) for part in parts)
        two.b.value += 1
        one.c = two
        variable.value *= 2
        with gc.split_context("test") as ctx:
            return tuple(ctx.split(x) for x in (one, two, variable))

    with gc.update_context("test"):
        with gc.split_context("test") as ctx:
            parts = tuple(ctx.split(x) for x in (first, second, lone))
        parts = inside(parts)
        with gc.merge_context("test") as ctx:
            out = tuple(ctx.merge(*part) for part in parts)
    assert out[0] is first and out[1] is second and out[2] is lone
    assert first.c is second
    assert (int(shared.value), int(lone.value)) == (2, 10)


def test_a_split_that_fails_leaves_no_trace_in_its_context():
    good, bad = gc.Dict(a=gc.Param(1)), gc.Dict(b=gc.Param(2), x={1: 1, "a": 2})
    with gc.split_context() as ctx:
        with pytest.raises(ValueError, match="'x'"):
            ctx.split(bad)
        with pytest.raises(ValueError, match="leaves at a "):
            ctx.split(good, gc.BatchStat)
        graphdef, state = ctx.split(good)
    assert (graphdef.index, len(state)) == (0, 1)


def test_a_tag_without_a_context_is_refused():
    for context in (gc.split_context, gc.merge_context):
        with pytest.raises(ValueError, match="nobody"):
            with context("nobody"):
                pass


def test_who_says_which_merge_is_the_inner_one_is_heard():
    node = gc.Dict(a=gc.Param(1))
    with gc.update_context("test"):
        with gc.split_context("test") as ctx:
            pure = ctx.split(node)
        with gc.merge_context("test", inner=True) as ctx:
            inner = ctx.merge(*pure)
        inner.b = gc.Param(2)
        with gc.split_context("test") as ctx:
            pure = ctx.split(inner)
        with gc.merge_context("test", False) as ctx:
            assert ctx.merge(*pure) is node
    assert node.b.value == 2


def test_one_filter_gives_one_state_in_a_context_as_well():
    with gc.split_context() as ctx:
        graphdef, state = ctx.split(gc.Dict(a=gc.Param(1)), gc.Param)
    assert state.a.value == 1
    assert gc.merge(graphdef, state).a.value == 1


def test_a_context_tells_its_tag():
    with gc.update_context("tagged"):
        assert gc.current_update_context("tagged").tag == "tagged"


def test_a_context_that_was_left_keeps_nothing():
    class Tag:
        pass

    tag = Tag()
    with gc.update_context(tag):
        pass
    alive = weakref.ref(tag)
    del tag
    garbage.collect()
    assert alive() is None


def test_a_step_looks_for_its_context_where_it_begins():
    step = gc.split_context("later")
    with gc.update_context("later"), step as splitter:
        graphdef, _ = splitter.split(gc.Dict(a=gc.Param(1)))
    assert graphdef.type is gc.Dict
