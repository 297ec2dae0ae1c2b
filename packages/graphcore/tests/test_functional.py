import array
import copy
import pickle
from unittest import mock

import cloudpickle
import graph_strategies as gs
import graph_zoo as zoo
import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import graphcore as gc
from graphcore import editing

examples = settings(max_examples=80)


class Tied(gc.Object):
    def __init__(self):
        self.encode = gc.Param(jnp.ones((2, 3)))
        self.decode = self.encode
        self.count = gc.BatchStat(jnp.array(0))
        self.name = "tied"
        self.me = self
        self.layers = [gc.Param(jnp.zeros(2)), {"deep": gc.Param(jnp.zeros(1))}]


# Round trips


@examples
@given(gs.graphs())
def test_merge_inverts_split(root):
    twin = gc.merge(*gc.split(root))
    assert zoo.canonical(twin) == zoo.canonical(root)
    assert gc.graphdef(twin) == gc.graphdef(root)
    assert hash(gc.graphdef(twin)) == hash(gc.graphdef(root))
    assert gc.state(twin) == gc.state(root)


@examples
@given(gs.graphs())
def test_merge_makes_new_nodes_and_variables(root):
    before = {id(x) for x in zoo.reachable(root) if x is not None and x != ()}
    for twin in (gc.merge(*gc.split(root)), gc.clone(root)):
        found = [x for x in zoo.reachable(twin) if x is not None and x != ()]
        assert not any(id(x) in before for x in found)


@examples
@given(gs.graphs(), st.permutations([gc.Param, gc.BatchStat, gc.PathContains("a")]))
def test_merge_inverts_split_by_filters(root, filters):
    graphdef, *states = gc.split(root, *filters, ...)
    assert len(states) == 4
    assert zoo.canonical(gc.merge(graphdef, *states)) == zoo.canonical(root)
    total = sum(len(state.flat_state()) for state in states)
    assert total == len(gc.state(root).flat_state()) == len(zoo.leaves_of(root))


@examples
@given(gs.graphs())
def test_a_state_that_was_looked_at_merges_the_same(root):
    graphdef, state = gc.split(root)
    rebuilt = jax.tree.map(lambda x: x, state)
    assert jax.tree.structure(rebuilt) == jax.tree.structure(gc.state(root))
    assert zoo.canonical(gc.merge(graphdef, rebuilt)) == zoo.canonical(root)
    # With the definition of another, equal graph.
    other = gc.graphdef(gc.clone(root))
    assert zoo.canonical(gc.merge(other, gc.state(root))) == zoo.canonical(root)


@examples
@given(gs.graphs())
def test_unflatten_with_an_index_space_equals_merge(root):
    graphdef, state = gc.flatten(root)
    index_ref = {}
    twin = gc.unflatten(graphdef, state, index_ref=index_ref)
    assert zoo.canonical(twin) == zoo.canonical(root)
    own = zoo.variables_of(twin) + zoo.graph_nodes_of(twin)
    assert {id(x) for x in own} <= {id(x) for x in index_ref.values()}
    count = len(own) + len(zoo.bare_arrays_of(twin))
    assert sorted(index_ref) == list(range(count))


@examples
@given(gs.graphs())
@pytest.mark.parametrize("how", ["pickle", "cloudpickle", "deepcopy"])
def test_copies_keep_sharing(how, root):
    duplicate = {
        "pickle": lambda x: pickle.loads(pickle.dumps(x)),
        "cloudpickle": lambda x: pickle.loads(cloudpickle.dumps(x)),
        "deepcopy": copy.deepcopy,
    }[how]
    alias = root
    twin, twin_alias = duplicate((root, alias))
    assert twin is twin_alias
    assert twin is not root
    assert zoo.canonical(twin) == zoo.canonical(root)


@examples
@given(gs.graphs())
def test_definitions_and_states_survive_pickling(root):
    graphdef, state = gc.split(root)
    again, state_again = pickle.loads(pickle.dumps((graphdef, state)))
    assert again == graphdef
    assert hash(again) == hash(graphdef)
    assert state_again == state
    assert zoo.canonical(gc.merge(again, state_again)) == zoo.canonical(root)
    assert copy.deepcopy(graphdef) == graphdef


@examples
@given(gs.graphs(), st.lists(gs.edits, max_size=4))
def test_index_ref_cache_rebuilds_into_the_same_objects(root, edits):
    refs = gc.RefMap()
    gc.flatten(root, refs)
    cache = {index: x for x, index in refs.items()}
    twin = gc.clone(root)
    for edit in edits:
        gs.edit_variable(twin, edit)
    if any(isinstance(x, zoo.Cell) for x in zoo.variables_of(root)):
        return  # their metadata can't be changed
    graphdef, state = gc.flatten(twin)
    result = gc.unflatten(graphdef, state, index_ref_cache=cache)
    assert result is root
    assert zoo.canonical(root) == zoo.canonical(twin)
    again = gc.RefMap()
    gc.flatten(root, again)
    assert all(cache[index] is x for x, index in again.items())


@examples
@given(gs.graphs())
def test_two_flattens_share_an_index_space(root):
    refs = gc.RefMap()
    first, _ = gc.flatten(root, refs)
    count = len(refs)
    again, state = gc.flatten(root, refs)
    assert again == gc.NodeRef(type(root), 0)
    assert len(state) == 0
    assert len(refs) == count
    assert first == gc.graphdef(root)
    objects = zoo.variables_of(root) + zoo.graph_nodes_of(root)
    assert len(objects) + len(zoo.bare_arrays_of(root)) == count
    assert all(x in refs for x in objects)


def test_indices_are_consecutive_in_order_of_first_visit():
    shared = gc.Param(1)
    root = gc.Dict(a=gc.Dict(x=shared), b=shared, c=[gc.Param(2)])
    refs = gc.RefMap()
    gc.flatten(root, refs)
    assert [refs[x] for x in (root, root.a, shared, root.c[0])] == [0, 1, 2, 3]


def test_identity_is_decided_by_is_not_by_equality():
    class Same(gc.Object):
        def __eq__(self, other):
            return True

        def __hash__(self):
            return 1

    root = gc.Dict(a=Same(), b=Same(), v=gc.Param(1), w=gc.Param(1))
    assert root.v == root.w
    twin = gc.merge(*gc.split(root))
    assert twin.a is not twin.b
    assert twin.v is not twin.w


def test_a_cycle_through_a_graph_node_may_pass_plain_containers():
    node = gc.Dict()
    node.children = {"again": node, "list": [node]}
    twin = gc.clone(node)
    assert twin.children["again"] is twin
    assert twin.children["list"][0] is twin
    inner = {"node": zoo.Node()}
    inner["node"].up = inner
    twin = gc.clone(gc.Dict(inner=inner))
    assert twin.inner["node"].up["node"] is twin.inner["node"]


# The single calls


def test_split_without_filters_gives_one_state():
    graphdef, state = gc.split(Tied())
    assert isinstance(graphdef, gc.GraphDef)
    assert isinstance(state, gc.State)
    assert state.flat_state().paths == (
        ("count",),
        ("decode",),
        ("layers", 0),
        ("layers", 1, "deep"),
    )


def test_split_names_what_no_filter_selects():
    with pytest.raises(ValueError, match="count"):
        gc.split(Tied(), gc.Param)
    with pytest.raises(ValueError, match="last"):
        gc.split(Tied(), ..., gc.Param)


def test_state_selects_and_drops():
    node = Tied()
    assert list(gc.state(node, gc.BatchStat)) == ["count"]
    params, stats = gc.state(node, gc.Param, gc.BatchStat)
    assert len(params.flat_state()) == 3
    assert stats.count.value == 0


def test_state_selects_from_a_state():
    whole = gc.state(Tied())
    assert gc.state(whole) == whole
    assert gc.state(whole) is not whole
    assert list(gc.state(whole, gc.BatchStat)) == ["count"]
    params, stats = gc.state(whole, gc.Param, gc.BatchStat)
    assert (params, stats) == gc.state(Tied(), gc.Param, gc.BatchStat)


def test_split_divides_a_state_as_its_graph():
    node = Tied()
    node.parts = gc.Variable({"a": jnp.ones(2), "of": [3, jnp.zeros(1)]}, unit="m")
    definition, whole = gc.split(node)
    of_state, params, rest = gc.split(whole, gc.Param, ...)
    assert (params, rest) == gc.split(node, gc.Param, ...)[1:]
    assert gc.merge(of_state, params, rest) == whole
    assert gc.merge(*gc.split(whole)) == whole
    assert gc.state(gc.merge(definition, params, rest)) == whole


def test_split_of_a_state_of_live_variables_takes_snapshots():
    node = Tied()
    live = gc.variables(node)
    assert gc.split(live, gc.Param, ...)[1:] == gc.split(node, gc.Param, ...)[1:]
    assert gc.merge(gc.graphdef(live), live, copy=False).count is node.count


def test_a_state_is_a_snapshot():
    node = Tied()
    state = gc.state(node)
    node.count.value = jnp.array(9)
    assert state["count"].value == 0


def test_variables_are_live_and_listed_once_at_the_first_path():
    node = Tied()
    live = gc.variables(node)
    assert live.decode is node.encode
    assert "encode" not in live
    live.count.value = jnp.array(4)
    assert node.count.value == 4
    params, rest = gc.variables(node, gc.Param, ...)
    assert len(params.flat_state()) == 3
    assert list(rest) == ["count"]


def test_clone_has_its_own_variables():
    node = Tied()
    twin = gc.clone(node)
    twin.count.value = jnp.array(5)
    assert node.count.value == 0
    assert twin.encode is twin.decode
    assert twin.name == "tied"


@examples
@given(gs.graphs())
def test_iter_graph_lists_children_first_and_each_object_once(root):
    found = list(gc.iter_graph(root))
    assert found[-1] == ((), root) or found[-1][1] is root
    paths = [path for path, _ in found]
    position = {path: i for i, path in enumerate(paths)}
    for path in paths:
        if path:
            assert position[path[:-1]] > position[path]
    expected = [
        x for x in zoo.reachable(root) if zoo.is_variable(x) or zoo.is_graph_node(x)
    ]
    listed = [x for _, x in found if zoo.is_variable(x) or zoo.is_graph_node(x)]
    assert {id(x) for x in listed} == {id(x) for x in expected}
    assert len(listed) == len(expected)
    state_paths = gc.state(root).flat_state().paths
    assert set(state_paths) <= set(paths)


def test_iter_graph_of_a_leaf_and_of_a_container_that_holds_itself():
    variable = gc.Param(1)
    assert list(gc.iter_graph(variable)) == [((), variable)]
    loop = []
    loop.append(loop)
    with pytest.raises(ValueError, match="x/0"):
        list(gc.iter_graph(gc.Dict(x=loop)))


# update


@examples
@given(gs.graphs(foreign=False), st.booleans())
def test_update_with_a_state_of_the_same_structure(root, plain):
    twin = gc.clone(root)
    for variable in zoo.variables_of(twin):
        old = zoo.value_of(variable)
        gs.set_value(variable, jax.tree.map(lambda x: x + 1, old))
    state = gc.state(twin)
    before = zoo.reachable(root)
    if plain:
        gc.update(root, state.to_pure_dict())
    else:
        gc.update(root, state)
    assert zoo.canonical(root) == zoo.canonical(twin)
    assert all(a is b for a, b in zip(before, zoo.reachable(root), strict=True))


@pytest.mark.parametrize("planned", [True, False])
@pytest.mark.parametrize("mapped", [True, False])
def test_update_replaces_values_and_metadata(planned, mapped):
    node = Tied()
    node.count.unit = "steps"
    other = gc.clone(node)
    other.count.value = jnp.array(3)
    other.count.unit = "s"
    state = gc.state(other)
    if mapped:
        state = jax.tree.map(lambda x: x + 1, state)
    if planned:
        gc.graphdef(node)
    gc.update(node, state)
    assert node.count.value == 3 + mapped
    assert node.count.unit == "s"
    del other.count.unit
    gc.update(node, gc.state(other))
    assert node.count.get_metadata() == {}


def test_update_with_raw_values_keeps_metadata():
    node = gc.Dict(v=gc.Param(1, unit="m"))
    gc.update(node, {"v": 2})
    assert (node.v.value, node.v.unit) == (2, "m")


@pytest.mark.parametrize("make", [gc.Param.state, lambda x: x])
def test_update_takes_values_of_another_shape_and_dtype(make):
    node = gc.Dict(v=gc.Param(jnp.ones(2), unit="m"), w=gc.Param(1))
    gc.graphdef(node)
    gc.update(node, {"v": make(jnp.ones((3, 4), jnp.int8))})
    assert (node.v.value.shape, node.v.value.dtype) == ((3, 4), jnp.int8)


def test_update_of_a_state_replaces_its_leaves():
    node = gc.Dict(a=gc.Param(1, unit="m"), b=gc.Dict(c=gc.Param(2)))
    state = gc.state(node)
    gc.update(state, {"a": 5}, gc.state(gc.Dict(b=gc.Dict(c=gc.Param(6)))))
    assert (state.a.value, state.a.unit, state.b.c.value) == (5, "m", 6)
    assert (node.a.value, node.b.c.value) == (1, 2)
    with pytest.raises(ValueError, match="nobody"):
        gc.update(state, {"a": 7, "nobody": 1})
    assert state.a.value == 5


def test_update_takes_several_states_and_the_later_one_counts():
    node = gc.Dict(a=gc.Param(1), b=gc.Param(2))
    gc.update(node, {"a": 5, "b": 6}, {"b": 7})
    assert (node.a.value, node.b.value) == (5, 7)
    gc.update(node, gc.state(gc.Dict(a=gc.Param(3))), {"b": 4})
    assert (node.a.value, node.b.value) == (3, 4)


def test_a_state_of_the_same_structure_is_written_at_once():
    node, other = (gc.Dict(a=gc.Param(x), b=gc.Dict(c=gc.Param(x))) for x in (1, 2))
    gc.graphdef(node)
    states = [gc.state(other), gc.state(other), gc.state(other, gc.PathContains("c"))]
    assert states[1].b.c.value == 2  # it is made when it is looked at
    with mock.patch.object(editing, "undoing", side_effect=AssertionError):
        for state in states:
            node.b.c.value = 0
            gc.update(node, state)
            assert (node.a.value, node.b.c.value) == (2, 2)


def test_update_inside_a_trace_writes_what_was_made_there():
    outer = gc.Dict(w=gc.Param(jnp.ones(2)), x=jnp.ones(2))

    @jax.jit
    def run(x):
        node = gc.Dict(outer=outer, w=gc.Param(x), x=jnp.ones(2), captured=outer.w)
        gc.update(node, {"w": x + 1, "x": x + 2, "new": gc.Param.state(x + 3)})
        for refused in ({"captured": x}, {"outer": {"x": x}}, {"outer": {"y": x}}):
            with pytest.raises(gc.TraceContextError, match="different trace level"):
                gc.update(node, refused)
        return node.w.value, node.x, node.new.value

    assert [x.tolist() for x in run(jnp.zeros(1))] == [[1.0], [2.0], [3.0]]
    assert outer.w.value.tolist() == outer.x.tolist() == [1.0, 1.0]


def test_update_adds_what_a_planned_graph_has_not():
    node = gc.Dict(a=gc.Param(1))
    gc.graphdef(node)
    gc.update(node, {"a": gc.Param.state(2), "b": {"c": gc.Param.state(3)}})
    assert (node.a.value, node.b.c.value) == (2, 3)


def test_update_adds_keys_to_graph_nodes():
    node = gc.Dict(items=gc.List([gc.Param(0)]))
    gc.update(
        node,
        gc.State(
            {
                "new": gc.Param.state(1, unit="m"),
                "sub": {"x": gc.BatchStat.state(2)},
                "items": {2: gc.Param.state(4), 1: gc.Param.state(3)},
            }
        ),
    )
    assert (node.new.value, node.new.unit) == (1, "m")
    assert type(node.sub) is gc.Dict
    assert node.sub.x.value == 2
    assert [v.value for v in node["items"]] == [0, 3, 4]


def test_what_refuses_a_new_key_is_told_which():
    class Bag:
        pass

    def refuse(bag, key, child):
        raise RuntimeError("full")

    gc.register_graph_node_type(
        Bag,
        flatten=lambda bag: ([], None),
        set_key=refuse,
        pop_key=lambda bag, key: None,
        create_empty=lambda metadata: Bag(),
        clear=lambda bag: None,
        init=lambda bag, pairs: None,
    )
    node = gc.Dict(bag=Bag(), inner=gc.Dict(bag=Bag()))
    before = gc.graphdef(node)
    new = {"w": gc.Param.state(1)}
    state = {"a": new["w"], "bag": new, "inner": {"a": new["w"], "bag": new}, "z": 3}
    with pytest.raises(RuntimeError, match="full") as error:
        gc.update(node, {**state, "z": new["w"]})
    assert error.value.__notes__[0].endswith("bag/w'.")
    assert gc.graphdef(node) == before


def test_update_runs_past_the_hooks_and_reaches_every_alias():
    node = gc.Dict(a=gc.Param(1.0, on_set_value=zoo.double))
    node.b = node.a
    gc.update(node, {"a": 3.0})
    assert node.b.raw_value == 3.0
    gc.update(node, {"b": 4.0})
    assert node.a.raw_value == 4.0


@pytest.mark.parametrize("planned", [True, False])
@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"name": 1}, "static attribute 'name'"),
        ({"layers": 1}, "'layers'.*subgraph"),
        ({"layers": {0: {"x": gc.Param.state(1)}}}, "layers/0.*leaf"),
        (gc.State({"layers": {0: {"x": 1}}}), "layers/0.*leaf"),
        ({"layers": {0: {"x": 1}}}, "layers/0.*leaf"),
        ({"layers": {0: gc.BatchStat.state(1)}}, "layers/0.*BatchStat.*Param"),
        ({"layers": {5: gc.Param.state(1)}}, "layers/5.*pytree node"),
        ({"fresh": 3}, "fresh.*VariableState"),
    ],
)
def test_a_wrong_update_names_the_path_and_changes_nothing(state, message, planned):
    node = Tied()
    if planned:
        gc.graphdef(node)
    before = zoo.canonical(node)
    with pytest.raises(ValueError, match=message):
        gc.update(node, {"count": jnp.array(8), **state})
    with pytest.raises(ValueError, match=message):
        gc.update(node, state)
    assert zoo.canonical(node) == before


@pytest.mark.parametrize("key", [-1, 3])
def test_a_list_is_filled_in_order(key):
    items = gc.List([gc.Param(1)])
    with pytest.raises(ValueError, match=f"position {key}"):
        gc.update(items, {0: gc.Param.state(9), key: gc.Param.state(2)})
    assert [v.value for v in items] == [1]


def test_update_of_a_dict_valued_variable():
    node = gc.Dict(v=gc.Param({"x": 1.0}))
    gc.update(node, {"v": {"x": 2.0}})
    assert node.v.value == {"x": 2.0}


# pop


@examples
@given(gs.graphs(foreign=False))
def test_pop_removes_what_it_returns(root):
    paths = dict(gc.variables(root).flat_state())
    held_by_pytrees = any(
        isinstance(x, gc.Intermediate | gc.Param)
        for node in zoo.reachable(root)
        if not zoo.is_graph_node(node)
        for _, x in zoo.children(node) or ()
    )
    before = zoo.canonical(root)
    if held_by_pytrees:
        with pytest.raises(ValueError, match="pytree node"):
            gc.pop(root, gc.Param)
        assert zoo.canonical(root) == before
        return
    popped = gc.pop(root, gc.Param)
    assert not any(isinstance(x, gc.Param) for x in zoo.variables_of(root))
    expected = {p: v for p, v in paths.items() if isinstance(v, gc.Param)}
    assert set(popped.flat_state().paths) == set(expected)
    for path, leaf in popped.flat_state():
        assert leaf == expected[path].to_state()


def test_pop_with_several_filters():
    node = gc.Dict(a=gc.Param(1), b=gc.Cache(2), c=gc.BatchStat(3), d=gc.List([]))
    node.d.extend([gc.Cache(4), 5, node.b])
    caches, stats = gc.pop(node, gc.Cache, gc.BatchStat)
    assert caches.to_pure_dict() == {"b": 2, "d": {0: 4}}
    assert stats.to_pure_dict() == {"c": 3}
    assert list(node) == ["a", "d"]
    assert list(node.d) == [5]


def test_what_a_pytree_node_holds_cannot_be_popped():
    node = gc.Dict(a=gc.Cache(1), pair=(gc.Cache(2), 3))
    with pytest.raises(ValueError, match=r"Cannot remove 'pair/0'.*pytree node.*tuple"):
        gc.pop(node, gc.Cache)
    assert node.a.value == 1 and node.pair[0].value == 2


class Shelf:
    """A graph node type of somebody else, which may refuse to be changed."""

    def __init__(self, locked=False, **items):
        self.locked, self.items = locked, items

    def change(self):
        if self.locked:
            raise PermissionError("locked")
        return self.items


gc.register_graph_node_type(
    Shelf,
    flatten=lambda shelf: (sorted(shelf.items.items()), shelf.locked),
    set_key=lambda shelf, key, child: shelf.change().__setitem__(key, child),
    pop_key=lambda shelf, key: shelf.change().pop(key),
    create_empty=Shelf,
    clear=lambda shelf: shelf.change().clear(),
    init=lambda shelf, pairs: shelf.change().update(pairs),
    containers=["items"],
)


def test_a_refused_pop_gives_back_what_was_removed():
    # What is popped last stands first.
    shelf = Shelf(v=gc.Cache(2), w=gc.Param(3), u=gc.Cache(4))
    node = gc.Dict(a=Shelf(locked=True, w=gc.Cache(1)), b=shelf, c=gc.Cache(5))
    before = dict(shelf.items), list(node)
    with pytest.raises(PermissionError) as error:
        gc.pop(node, gc.Cache)
    assert not hasattr(error.value, "__notes__")
    assert (shelf.items, list(node)) == before
    assert list(shelf.items) == ["v", "w", "u"]
    paths = gc.variables(node).flat_state().paths
    assert paths == (("a", "w"), ("b", "u"), ("b", "v"), ("b", "w"), ("c",))


def test_pop_takes_leaves_out_of_a_state():
    node = gc.Dict(a=gc.Param(1), b=gc.Dict(c=gc.Cache(2), d=gc.Param(3)))
    state = gc.state(node)
    cache = gc.pop(state, gc.Cache)
    assert cache.to_pure_dict() == {"b": {"c": 2}}
    assert state.to_pure_dict() == {"a": 1, "b": {"d": 3}}
    params, rest = gc.pop(state, gc.Param, ...)
    assert params.to_pure_dict() == {"a": 1, "b": {"d": 3}} and not rest
    assert not state.flat_state()
    assert node.b.c.value == 2


def test_pop_needs_a_filter():
    with pytest.raises(ValueError, match="filter"):
        gc.pop(Tied())


# call and apply


class Count(gc.Object):
    def __init__(self):
        self.n = gc.Variable(jnp.array(1))

    def add(self, k, *, times=1):
        self.n.value += k * times
        return self.n.value

    def __call__(self, x):
        return self.n.value * x


def test_call_leaves_the_original_alone_and_returns_the_new_state():
    node = gc.Dict({"count": Count(), "list": gc.List([Count()])})
    pure = gc.split(node)
    out, (graphdef, state) = gc.call(pure)["count"].add(2, times=3)
    assert (out, state["count"].n.value, node["count"].n.value) == (7, 7, 1)
    out, _ = gc.call((graphdef, state))["list"][0](5)
    assert out == 5
    out, _ = gc.call(gc.split(node, gc.Param, ...)).list[0].add(1)
    assert out == 2


def test_apply_and_under_jit():
    graphdef, state = gc.split(Count())
    out, (graphdef, state) = jax.jit(lambda s: graphdef.apply(s).add(2))(state)
    assert (int(out), int(state.n.value)) == (3, 3)
    out, _ = graphdef.apply(state)(2)
    assert out == 6


# Errors


@pytest.mark.parametrize(
    "call",
    [
        gc.flatten,
        gc.split,
        gc.graphdef,
        gc.state,
        gc.variables,
        gc.clone,
        lambda x: gc.update(x, {}),
        lambda x: gc.pop(x, ...),
    ],
)
@pytest.mark.parametrize("x", [3, "text", object(), jnp.ones(2), gc.Param(1)])
def test_what_is_no_node_is_refused_by_its_type(call, x):
    with pytest.raises(ValueError, match=type(x).__name__):
        call(x)


def test_keys_that_cannot_be_sorted_are_refused_by_their_path():
    node = gc.Dict(x=[{1: gc.Param(1), "a": gc.Param(2)}])
    with pytest.raises(ValueError, match=r"x/0.*sort"):
        gc.split(node)


def test_mixed_keys_of_graph_nodes_are_fine():
    node = gc.Dict({"a": gc.Param(1), 10: gc.Param(2), 9: gc.Param(3)})
    assert gc.state(node).flat_state().paths == ((9,), (10,), ("a",))
    assert zoo.canonical(gc.clone(node)) == zoo.canonical(node)


def test_a_plain_container_that_holds_itself_is_refused_by_its_path():
    loop = {"x": []}
    loop["x"].append(loop)
    with pytest.raises(ValueError, match=r"d/x/0.*contains itself"):
        gc.split(gc.Dict(d=loop))
    with pytest.raises(ValueError, match="contains itself"):
        gc.split([loop, gc.Dict()])


def test_unhashable_static_values_are_refused_when_hashed_not_when_split():
    node = gc.Dict(inner=gc.Dict(options=array.array("i", [1])))
    graphdef, state = gc.split(node)
    assert gc.merge(graphdef, state).inner.options == array.array("i", [1])
    with pytest.raises(TypeError, match=r"inner/options.*hash"):
        hash(graphdef)
    with pytest.raises((TypeError, ValueError), match="inner/options"):
        jax.jit(lambda g, s: s, static_argnums=0)(graphdef, state)
    node.inner.options.append(3)
    assert gc.merge(*gc.split(node)).inner.options == array.array("i", [1, 3])


def test_unhashable_metadata_is_refused_by_the_path_of_its_variable():
    node = gc.Dict(inner=gc.Dict(v=gc.Param(1, axes=array.array("i"))))
    with pytest.raises(TypeError, match="inner/v"):
        hash(gc.graphdef(node))


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({}, r"Expected key 'w'.*'inner'"),
        ({"inner": {"w": 1, "z": 2}}, r"Unknown keys.*'inner'.*'z'"),
        ({"inner": {"w": 1}, "more": 2}, "Unknown keys.*more"),
        ({"inner": {"w": 1, "name": "x"}}, "static attribute 'inner/name'"),
        ({"inner": 3}, "leaf.*'inner'.*subgraph"),
        ({"inner": {"w": {"x": gc.Param.state(1)}}}, "nested state.*inner/w"),
        ({"inner": {"w": {"x": {"y": gc.Param(1)}}}}, "nested state.*inner/w"),
        (gc.State({"inner": {"w": {"x": 1}}}), "nested state.*inner/w"),
        ({"inner": {"w": gc.BatchStat.state(1)}}, "inner/w.*BatchStat.*Param"),
        ({"inner": {"w": 1, "again": 2}}, "Unknown keys.*again"),
        (3, "int"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_by_its_path(state, message):
    inner = gc.Dict(w=gc.Param(0), name="n")
    inner.again = inner
    graphdef = gc.graphdef(gc.Dict(inner=inner))
    with pytest.raises(ValueError, match=message):
        gc.merge(graphdef, state)
    with pytest.raises(ValueError, match=message):
        gc.unflatten(graphdef, state, index_ref={})


def test_a_merge_that_fails_changes_nothing():
    node = gc.Dict(a=gc.Param(1), b=gc.Dict(c=gc.Param(2)))
    refs = gc.RefMap()
    graphdef, state = gc.flatten(node, refs)
    cache = {index: x for x, index in refs.items()}
    before = zoo.canonical(node)
    index_ref = {}
    wrong = {**cache, 1: gc.BatchStat(1)}
    state.a = gc.Param.state(7)
    with pytest.raises(ValueError, match=r"'a'.*BatchStat.*Param"):
        gc.unflatten(graphdef, state, index_ref=index_ref, index_ref_cache=wrong)
    wrong = {**cache, 2: gc.List()}
    with pytest.raises(ValueError, match=r"'b'.*List.*Dict"):
        gc.unflatten(graphdef, state, index_ref=index_ref, index_ref_cache=wrong)
    del state.b.c
    with pytest.raises(ValueError, match="Expected key 'c'"):
        gc.unflatten(graphdef, state, index_ref=index_ref, index_ref_cache=cache)
    assert zoo.canonical(node) == before
    assert index_ref == {}


def test_a_reference_to_nowhere_is_refused():
    shared = gc.Param(1)
    refs = gc.RefMap()
    gc.flatten(gc.Dict(a=shared), refs)
    second, state = gc.flatten(gc.Dict(b=shared), refs)
    with pytest.raises(ValueError, match=r"'b'.*index 1"):
        gc.merge(second, state)
    node, refs = gc.Dict(a=shared), gc.RefMap()
    gc.flatten(node, refs)
    with pytest.raises(ValueError, match="refers to the object with index 0"):
        gc.merge(*gc.flatten(node, refs))
    with pytest.raises(ValueError, match="GraphDef"):
        gc.merge(3, {})


def test_index_ref_carries_objects_from_one_merge_to_the_next():
    shared = gc.Param(1)
    refs = gc.RefMap()
    first, second = gc.Dict(a=shared), gc.Dict(b=shared)
    one, two = gc.flatten(first, refs), gc.flatten(second, refs)
    index_ref = {}
    a = gc.unflatten(*one, index_ref=index_ref)
    b = gc.unflatten(*two, index_ref=index_ref)
    assert a.a is b.b


def test_leaves_of_a_state_may_be_variables_or_raw_values():
    node = gc.Dict(a=gc.Param(1, unit="m"), b=gc.Param(2, unit="m"))
    graphdef = gc.graphdef(node)
    twin = gc.merge(graphdef, {"a": gc.Param(5, unit="s"), "b": 6})
    assert (twin.a.value, twin.a.unit) == (5, "s")
    assert (twin.b.value, twin.b.unit) == (6, "m")
    assert zoo.canonical(gc.merge(graphdef, gc.variables(node))) == zoo.canonical(node)


def test_creation_hooks_do_not_run_on_merge():
    node = gc.Dict(v=gc.Param(1, on_create_value=zoo.double))
    assert node.v.raw_value == 2
    assert gc.clone(node).v.raw_value == 2


@examples
@given(gs.graphs())
def test_eval_shape_and_jit_carry_a_graph_through(root):
    graphdef, state = gc.split(root)
    out = jax.jit(lambda s: gc.split(gc.merge(graphdef, s))[1])(state)
    assert jax.tree.structure(out) == jax.tree.structure(state)
    abstract = jax.eval_shape(lambda s: s, state)
    merged = gc.merge(graphdef, abstract)
    assert gc.graphdef(merged) == graphdef


def test_keys_of_a_graph_node_that_cannot_be_sorted_are_refused_by_their_path():
    node = gc.Dict(inner=gc.Dict({object(): 1, object(): 2}))
    with pytest.raises(ValueError, match=r"'inner'.*sort"):
        gc.split(node)


def test_a_clone_with_the_variables_themselves():
    node = gc.Dict(a=gc.Param(1), b=[gc.Param(2)])
    twin = gc.clone(node, variables=False)
    assert twin is not node
    assert twin.a is node.a
    assert twin.b[0] is node.b[0]


def test_a_clone_with_arrays_of_its_own_survives_donation():
    node = gc.Dict(w=gc.Param(jnp.ones(2)), k=gc.Variable(jax.random.key(0)), n=3)
    twin = gc.clone(node, arrays=True)
    jax.jit(lambda s: jax.tree.map(lambda x: x, s), donate_argnums=0)(gc.state(node))
    assert node.w.value.is_deleted()
    assert twin.w.value.tolist() == [1.0, 1.0] and twin.n == 3
    assert twin.k.value == jax.random.key(0)


def test_a_definition_keeps_what_a_static_value_was():
    node = gc.Dict(w=gc.Param(1), s={1, 2})
    graphdef, state = gc.split(node)
    node.s.add(3)
    first = gc.merge(graphdef, state)
    assert first.s == {1, 2}
    first.s.add(4)
    assert gc.merge(graphdef, state).s == {1, 2}
    assert node.s == {1, 2, 3}


def test_existing_objects_of_another_trace_are_refused():
    node = gc.Dict(a=gc.Param(jnp.array(1.0)))
    graphdef, state = gc.split(node)

    @jax.jit
    def inside(state):
        gc.unflatten(graphdef, state, index_ref_cache={0: node, 1: node.a})

    with pytest.raises(gc.TraceContextError):
        inside(state)
    assert float(node.a.value) == 1.0


def test_keys_from_json_are_numbers_only_if_they_are_written_so():
    state = gc.state(gc.Dict(layers=[gc.Param(1), gc.Param(2)]))
    state.replace_by_pure_dict({"layers": {"1": 5}})
    assert state["layers"][1].value == 5
    with pytest.raises(ValueError, match="01"):
        state.replace_by_pure_dict({"layers": {"01": 6}})
    assert state["layers"][1].value == 5


def test_one_plain_container_at_two_places_is_no_cycle():
    shared = [gc.Param(1)]
    node = gc.Dict(a=shared, b=[shared, (shared, shared)])
    assert gc.state(node).flat_state().paths == (("a", 0),)
    assert gc.merge(*gc.split(node)).b[1][0][0] is not node.b[1][0][0]


@pytest.mark.parametrize("given", [None, (), "ab", gc.Dict(a=1), gc.Param])
def test_call_takes_a_definition_and_a_state(given):
    with pytest.raises(TypeError, match=r"call takes what split returns"):
        gc.call(given)
