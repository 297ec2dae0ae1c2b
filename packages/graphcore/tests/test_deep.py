"""Graphs of 2,000 nested nodes, far beyond the depth to which Python can recurse."""

import copy
import pickle

import cloudpickle
import graph_zoo as zoo
import jax
import jax.numpy as jnp
import pytest

import graphcore as gc

DEPTH = 2_000


def chain(depth=DEPTH, wrap=lambda node: node):
    root = node = zoo.Node()
    for number in range(depth):
        node.name = number
        node.weight = gc.Param(jnp.array(1.0 + number))
        child = zoo.Node()
        node.inner = wrap(child)
        node = child
    return root


def nodes_of(root):
    found = [root]
    while hasattr(found[-1], "inner"):
        inner = found[-1].inner
        found.append(inner[0]["x"] if isinstance(inner, list) else inner)
    return found


def assert_same(twin, root):
    ours, theirs = nodes_of(root), nodes_of(twin)
    assert len(ours) == len(theirs) == DEPTH + 1
    for a, b in zip(ours[:-1], theirs[:-1], strict=True):
        assert a is not b
        assert a.name == b.name
        assert a.weight is not b.weight
        assert float(a.weight.value) == float(b.weight.value)


@pytest.fixture(scope="module")
def root():
    return chain()


@pytest.mark.parametrize(
    "duplicate",
    [
        gc.clone,
        lambda x: gc.merge(*gc.split(x)),
        lambda x: gc.merge(*gc.split(x, gc.Param, ...)),
        lambda x: gc.merge(gc.graphdef(x), gc.state(x).to_pure_dict()),
        lambda x: gc.unflatten(*gc.flatten(x), index_ref={}),
        lambda x: gc.merge(*pickle.loads(pickle.dumps(gc.split(x)))),
        lambda x: gc.merge(*copy.deepcopy(gc.split(x))),
        lambda x: gc.from_tree(gc.to_tree((x,)))[0],
        copy.deepcopy,
        lambda x: pickle.loads(pickle.dumps(x)),
        lambda x: pickle.loads(cloudpickle.dumps(x)),
    ],
)
@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: [{"x": x}]])
def test_deep_graphs_are_duplicated(duplicate, wrap):
    root = chain(wrap=wrap)
    root.end = nodes_of(root)[-1]
    twin = duplicate(root)
    assert_same(twin, root)
    assert twin.end is nodes_of(twin)[-1]


def test_deep_definitions_are_compared_hashed_and_shown(root):
    one, two = gc.graphdef(root), gc.graphdef(gc.clone(root))
    assert one == two
    assert hash(one) == hash(two)
    assert pickle.loads(pickle.dumps(one)) == one
    assert "Node" in repr(one)
    assert "Node" in repr(root)
    assert "weight" in repr(gc.state(root))
    other = gc.clone(root)
    nodes_of(other)[-1].more = 1
    assert gc.graphdef(other) != one


def test_deep_states_are_pytrees(root):
    state = gc.state(root)
    leaves, structure = jax.tree.flatten(state)
    assert len(leaves) == DEPTH
    again = jax.tree.unflatten(structure, leaves)
    assert again == state
    more = jax.tree.map(lambda x: x + 1, state)
    assert jax.tree.structure(more) == structure
    assert len(jax.tree_util.tree_leaves_with_path(state)) == DEPTH
    twin = gc.clone(root)
    gc.update(twin, more)
    assert float(nodes_of(twin)[-2].weight.value) == DEPTH + 1
    gc.update(twin, state.to_pure_dict())
    assert float(nodes_of(twin)[-2].weight.value) == DEPTH
    assert state - state == gc.State({})
    assert pickle.loads(pickle.dumps(state)) == state


def test_deep_states_whose_keys_jax_does_not_sort_are_pytrees():
    nested = {"x": 1.0}
    for number in range(DEPTH):
        nested = {"x": nested, 0: number}
    state = gc.State(nested)
    leaves, structure = jax.tree.flatten(state)
    assert leaves == [*reversed(range(DEPTH)), 1.0]
    assert jax.tree.unflatten(structure, leaves) == state


def test_deep_graphs_are_searched_and_edited(root):
    assert len(gc.variables(root).flat_state()) == DEPTH
    assert sum(1 for _ in gc.iter_graph(root)) == 3 * DEPTH + 1
    twin = gc.clone(root)
    popped = gc.pop(twin, gc.Param)
    assert len(popped.flat_state()) == DEPTH
    assert len(gc.state(twin)) == 0
    gc.update(twin, popped)
    assert_same(twin, root)


def test_deep_graphs_pass_through_a_compiled_function():
    root = chain()
    last = nodes_of(root)[-2]

    @jax.jit
    def inside(graphdef, state):
        ctx = gc.current_update_context("deep")
        node = ctx.merge(graphdef, state)
        end = nodes_of(node)[-2]
        end.weight.value += 1
        end.up = node
        return ctx.split(node)

    with gc.update_context("deep") as ctx:
        assert ctx.merge(*inside(*ctx.split(root))) is root
    assert last.up is root
    assert float(last.weight.value) == DEPTH + 1


class OwnState(gc.Object):
    """Says itself what of it is copied."""

    def __getstate__(self):
        return {k: v for k, v in super().__getstate__().items() if k != "cache"}


def test_several_deep_graphs_are_pickled_together():
    roots = [gc.Dict(), gc.Dict()]
    for _ in range(DEPTH):
        roots = [gc.Dict(inner=root) for root in roots]
    for twin in pickle.loads(pickle.dumps(roots)):
        assert len(nodes_of(twin)) == DEPTH + 1


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_deep_graphs_of_classes_with_a_state_of_their_own_are_duplicated(duplicate):
    root = node = OwnState()
    for i in range(1000):
        node.next = OwnState() if i % 2 else gc.Dict()
        node.cache = [lambda: None]  # what can't be pickled, where it is left out
        if not isinstance(node, OwnState):
            del node.cache
        node = node.next
    twin, length = duplicate(root), 0
    while hasattr(twin, "next"):
        assert not hasattr(twin, "cache")
        twin, length = twin.next, length + 1
    assert length == 1000
