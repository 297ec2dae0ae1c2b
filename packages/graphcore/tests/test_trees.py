import threading

import graph_strategies as gs
import graph_zoo as zoo
import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import graphcore as gc


@settings(max_examples=60)
@given(gs.graphs(), st.data())
def test_from_tree_inverts_to_tree(root, data):
    objects = zoo.graph_nodes_of(root) + zoo.variables_of(root)
    a, b = data.draw(st.tuples(st.sampled_from(objects), st.sampled_from(objects)))
    tree = {"a": (a, 1), "b": [b, None, "text"], "c": a}
    pure = gc.to_tree(tree)
    assert not any(
        zoo.is_variable(x) or zoo.is_graph_node(x) for x in jax.tree.leaves(pure)
    )
    twin = gc.from_tree(pure)
    assert twin["a"][0] is twin["c"]
    assert zoo.canonical((a, b)) == zoo.canonical((twin["a"][0], twin["b"][0]))
    assert (twin["a"][1], twin["b"][1:]) == (1, [None, "text"])


def test_node_states():
    node = gc.Dict(a=gc.Param(1), b=gc.BatchStat(2))
    tree = gc.to_tree([node])
    (states,) = tree
    assert isinstance(states, gc.NodeStates)
    assert states.graphdef == gc.graphdef(node)
    assert states.state.a.value == 1
    assert states.metadata is None
    graphdef, params, rest = gc.split(node, gc.Param, ...)
    two = gc.NodeStates.from_split(graphdef, params, rest, metadata="m")
    assert (len(two.states), two.metadata) == (2, "m")
    with pytest.raises(ValueError, match="2"):
        _ = two.state
    bare = gc.NodeStates.from_states(params)
    assert list(bare.state) == ["a"]
    with pytest.raises(ValueError, match="definition"):
        _ = bare.graphdef
    leaves, structure = jax.tree.flatten(two)
    assert leaves == [1, 2]
    again = jax.tree.unflatten(structure, leaves)
    assert again.graphdef == graphdef
    assert again.metadata == "m"
    assert structure == jax.tree.structure(
        gc.NodeStates.from_split(*gc.split(gc.clone(node), gc.Param, ...), metadata="m")
    )


def test_node_states_of_prefixes_are_a_tree_prefix():
    node = gc.Dict(a=gc.Param(jnp.ones((2, 3))), b=gc.BatchStat(jnp.ones(4)))
    states = gc.NodeStates.from_split(*gc.split(node, gc.Param, ...))
    axes = gc.NodeStates.from_prefixes([0, None])

    def f(states):
        inner = gc.from_tree(states)
        return inner.a.value.sum() + inner.b.value.sum()

    assert jax.vmap(f, in_axes=(axes,))(states).tolist() == [7.0, 7.0]


def test_a_tree_with_nodes_passes_through_jit():
    shared = gc.Param(jnp.array(1.0))
    one, two = gc.Dict(p=shared), gc.List([shared])

    @jax.jit
    def inside(tree):
        one, (two, x) = gc.from_tree(tree, ctxtag="trees")
        assert one.p is two[0]
        one.p.value += x
        two.append(one)
        return gc.to_tree((one, two, x), ctxtag="trees")

    with gc.update_context("trees"):
        tree = gc.to_tree((one, (two, 2.0)), ctxtag="trees")
        out = gc.from_tree(inside(tree), ctxtag="trees")
    assert out[0] is one and out[1] is two and two[1] is one
    assert float(shared.value) == 3.0


def test_split_and_merge_functions_get_path_prefix_and_node():
    calls = []

    def split_fn(ctx, path, prefix, leaf):
        calls.append((jax.tree_util.keystr(path), prefix))
        if gc.is_graph_node(leaf):
            return gc.NodeStates.from_split(*ctx.split(leaf), metadata=prefix)
        return leaf

    node = gc.Dict(a=gc.Param(1))
    tree = {"x": node, "y": (1, gc.Dict(b=gc.Param(2)))}
    pure = gc.to_tree(tree, prefix={"x": "X", "y": "Y"}, split_fn=split_fn)
    assert calls == [("['x']", "X"), ("['y'][1]", "Y")]
    assert pure["x"].metadata == "X"
    calls.clear()
    gc.to_tree(
        tree, prefix={"x": 0, "y": None}, split_fn=split_fn, map_non_graph_nodes=True
    )
    assert calls == [("['x']", 0), ("['y'][0]", None), ("['y'][1]", None)]
    seen = []

    def merge_fn(ctx, path, prefix, leaf):
        seen.append((jax.tree_util.keystr(path), prefix, type(leaf).__name__))
        if isinstance(leaf, gc.NodeStates):
            return ctx.merge(leaf.graphdef, *leaf.states)
        return leaf

    back = gc.from_tree(pure, prefix={"x": 0, "y": 1}, merge_fn=merge_fn)
    assert seen == [("['x']", 0, "NodeStates"), ("['y'][1]", 1, "NodeStates")]
    assert back["x"].a.value == 1
    seen.clear()
    gc.from_tree(pure, merge_fn=merge_fn, map_non_graph_nodes=True)
    assert [name for _, _, name in seen] == ["NodeStates", "int", "NodeStates"]


def test_is_node_leaf_and_is_leaf_can_be_chosen():
    marked = {"mark": 5}
    out = gc.from_tree(
        [marked, 1],
        merge_fn=lambda ctx, path, prefix, leaf: leaf["mark"] * 2,
        is_node_leaf=lambda x: isinstance(x, dict),
        is_leaf=lambda x: isinstance(x, dict),
    )
    assert out == [10, 1]


class ByPath(gc.PrefixMapping):
    def __init__(self, **axes):
        self.axes = axes

    def map_prefix(self, path, variable):
        return self.axes[path[-1]]

    def __eq__(self, other):
        return isinstance(other, ByPath)

    __hash__ = None


def test_aliases_under_different_prefixes_are_refused_with_all_paths():
    shared = gc.Param(1)
    one, two = gc.Dict(p=shared), gc.Dict(q=[shared])
    with pytest.raises(ValueError, match=r"^Inconsistent aliasing detected") as error:
        gc.to_tree([one, two, (shared, shared)], prefix=[0, 1, (0, None)])
    paths = str(error.value).splitlines()[1:-1]
    assert paths == ["  0/p: 0", "  1/q/0: 1", "  2/0: 0", "  2/1: None"]
    with pytest.raises(ValueError, match="Inconsistent aliasing"):
        gc.to_tree((one, one), prefix=(0, None))
    with pytest.raises(ValueError, match="Inconsistent aliasing"):
        gc.to_tree((shared, one), prefix=(1, True))
    gc.to_tree((one, two), prefix=0)
    gc.to_tree((one, two), prefix=(0, 1), check_aliasing=False)


def test_prefix_mappings_are_asked_for_each_variable():
    shared = gc.Param(1)
    node = gc.Dict(a=shared, b=shared)
    gc.to_tree((node,), prefix=(ByPath(a=0, b=0),))
    with pytest.raises(ValueError, match="Inconsistent aliasing") as error:
        gc.to_tree((node,), prefix=(ByPath(a=0, b=1),))
    assert "0/a: 0" in str(error.value)
    assert "0/b: 1" in str(error.value)
    with pytest.raises(TypeError):
        gc.PrefixMapping()


@pytest.mark.parametrize(
    "make", [lambda: gc.Dict(v=gc.Param(1.0)), lambda: gc.Param(1.0)]
)
def test_a_node_of_another_trace_level_is_refused(make):
    outer = make()
    before = zoo.canonical(outer)

    def f(x):
        return gc.to_tree({"n": outer}) and x

    for transform in (jax.jit, jax.grad):
        with pytest.raises(ValueError, match="different trace level"):
            transform(f)(1.0)
    kept = []
    jax.jit(lambda x: kept.append(make()) or x)(1.0)
    with pytest.raises(gc.TraceContextError, match="different trace level"):
        gc.to_tree(kept)
    mixed = gc.Dict(inner=[kept[0]])
    with pytest.raises(gc.TraceContextError, match=r"inner/0.*different trace level"):
        gc.to_tree((mixed,))
    assert zoo.canonical(outer) == before


def test_broadcast_prefix():
    tree = ({"a": 1, "b": (2, 3)}, [4, None])
    assert gc.broadcast_prefix(0, tree) == [0, 0, 0, 0]
    assert gc.broadcast_prefix((0, 1), tree) == [0, 0, 0, 1]
    assert gc.broadcast_prefix(({"a": 0, "b": 1}, 2), tree) == [0, 1, 1, 2]
    assert gc.broadcast_prefix((None, 1), tree, prefix_is_leaf=lambda x: x is None) == [
        None,
        None,
        None,
        1,
    ]
    whole = gc.broadcast_prefix(
        (0, 1), tree, tree_is_leaf=lambda x: isinstance(x, dict)
    )
    assert whole == [0, 1]
    with pytest.raises(ValueError):
        gc.broadcast_prefix((0, 1, 2), tree)


def test_clear_non_graph_nodes():
    node = gc.Dict()
    out = gc.clear_non_graph_nodes({"a": node, "b": (1, [gc.Param(2)])})
    assert out["a"] is node
    assert out["b"][0] is None
    assert isinstance(out["b"][1][0], gc.Param)


def test_broadcast_states_are_a_stack_of_one_thread():
    with gc.broadcast_state("tag", 1):
        with gc.broadcast_state("tag", 2), gc.broadcast_state("other", 3):
            assert gc.get_broadcast_state("tag") == 2
            assert gc.get_broadcast_state("other") == 3
        assert gc.get_broadcast_state("tag") == 1
        errors = []

        def other():
            try:
                gc.get_broadcast_state("tag")
            except ValueError as error:
                errors.append(error)

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert len(errors) == 1
    with pytest.raises(ValueError, match="'tag'"):
        gc.get_broadcast_state("tag")
    with pytest.raises(RuntimeError), gc.broadcast_state("tag", 1):
        raise RuntimeError
    with pytest.raises(ValueError, match="'tag'"):
        gc.get_broadcast_state("tag")


def test_errors_in_split_functions_leave_the_context_usable():
    node = gc.Dict(n=gc.Param(1))

    def broken(ctx, path, prefix, leaf):
        raise RuntimeError

    with gc.update_context("trees"):
        with pytest.raises(RuntimeError):
            gc.to_tree((node,), split_fn=broken, ctxtag="trees")
        (inner,) = gc.from_tree(gc.to_tree((node,), ctxtag="trees"), ctxtag="trees")
        inner.n.value = 2
        out = gc.from_tree(gc.to_tree((inner,), ctxtag="trees"), ctxtag="trees")
    assert out[0] is node
    assert node.n.value == 2
