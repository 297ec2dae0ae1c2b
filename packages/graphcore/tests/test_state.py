import collections
import copy
import enum
import json
import pickle
import sys

import graph_strategies as gs
import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

import graphcore as gc
from graphcore.authors import taken_state

keys = st.one_of(st.integers(-3, 12), st.sampled_from(["a", "b", "c", "10", "x_1"]))
leaves = st.one_of(
    st.integers(0, 9),
    st.builds(gc.Param.state, st.integers(0, 9)),
    st.builds(gc.BatchStat.state, st.integers(0, 9)),
)
trees = st.recursive(
    st.dictionaries(keys, leaves, min_size=1, max_size=3),
    lambda inner: st.dictionaries(
        keys, st.one_of(leaves, inner), min_size=1, max_size=3
    ),
    max_leaves=8,
)


def flat(tree, path=()):
    """The leaves of nested dicts, sorted by path with integers first."""
    found = []
    for key in sorted(tree, key=lambda k: (isinstance(k, str), k)):
        x = tree[key]
        found += flat(x, (*path, key)) if isinstance(x, dict) else [((*path, key), x)]
    return found


def pure(x):
    return x.value if isinstance(x, gc.VariableState) else x


@given(trees)
def test_flat_state_is_sorted_with_integers_first(tree):
    state = gc.State(tree)
    found = state.flat_state()
    assert isinstance(found, gc.FlatState)
    assert list(found) == flat(tree)
    assert found.paths == tuple(path for path, _ in flat(tree))
    assert found.leaves == tuple(leaf for _, leaf in flat(tree))
    assert (len(found), found[0], found[:1]) == (
        len(flat(tree)),
        flat(tree)[0],
        flat(tree)[:1],
    )
    assert gc.FlatState(reversed(flat(tree))) == found


@given(trees, st.randoms())
def test_from_flat_path_inverts_flat_state(tree, random):
    pairs = flat(tree)
    random.shuffle(pairs)
    state = gc.State(tree)
    assert gc.State.from_flat_path(pairs) == state
    assert gc.State.from_flat_path(dict(pairs)) == state
    assert gc.State.from_flat_path(state.flat_state()) == state


@given(trees)
def test_states_are_mappings(tree):
    state = gc.State(tree)
    assert list(state) == sorted(tree, key=lambda k: (isinstance(k, str), k))
    assert len(state) == len(tree)
    for key, x in tree.items():
        assert key in state
        assert state[key] == (gc.State(x) if isinstance(x, dict) else x)
        if isinstance(key, str):
            assert getattr(state, key) == state[key]
    assert gc.State(list(tree.items())) == state
    assert gc.State(state) == state


def test_nested_states_share_and_copies_do_not():
    state = gc.State({"a": {"b": 1}})
    state["a"]["b"] = 2
    state.a.c = {"d": 3}
    assert state.to_pure_dict() == {"a": {"b": 2, "c": {"d": 3}}}
    assert state.raw_mapping["a"]["b"] == 2
    twin = gc.State(state)
    twin.a.b = 9
    assert state.a.b == 2
    del state.a.c
    del state["a"]["b"]
    assert state.to_pure_dict() == {}
    source = {"x": {"y": 1}}
    gc.State(source).x.y = 2
    assert source == {"x": {"y": 1}}


def test_missing_keys():
    state = gc.State({"a": 1})
    with pytest.raises(KeyError):
        state["z"]
    with pytest.raises(AttributeError, match=r"'z'.*'a'"):
        _ = state.z
    with pytest.raises(AttributeError, match="'z'"):
        del state.z


def test_paths_that_clash_are_refused():
    for pairs in (
        [(("a",), 1), (("a", "b"), 2)],
        [(("a", "b"), 2), (("a",), 1)],
        [((), 1)],
    ):
        with pytest.raises(ValueError):
            gc.State.from_flat_path(pairs)
    with pytest.raises(ValueError, match=r"^'a/b' is a leaf as well as a subtree"):
        gc.State.from_flat_path([(("a", "b"), 1), (("a", "b", "c", "d"), 2)])


def test_jax_visits_nested_states_without_calling_python():
    state, calls = gc.State({"a": {"b": {"c": 1}}, "d": {0: 2, 1: {"e": 3}}}), []

    def note(frame, event, argument):
        if event == "call" and "flatten" in frame.f_code.co_name:
            calls.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        assert jax.tree_util.tree_structure(state).num_leaves == 3
    finally:
        sys.setprofile(None)
    assert calls.count("_state_flatten") == 1


@given(trees)
def test_split_filter_and_merge(tree):
    state = gc.State(tree)
    params, stats, rest = state.split(gc.Param, gc.BatchStat, ...)
    for path, leaf in params.flat_state():
        assert leaf.type is gc.Param
        assert (path, leaf) in flat(tree)
    assert gc.State.merge(params, stats, rest) == state
    assert gc.State.merge(rest, params, stats) == state
    assert params | stats | rest == state
    assert state - params == gc.State.merge(stats, rest)
    assert state.filter(gc.Param) == params
    assert state.filter(gc.Param, gc.BatchStat) == (params, stats)
    assert state.split(...) == state
    if len(rest.flat_state()):
        with pytest.raises(ValueError) as error:
            state.split(gc.Param, gc.BatchStat)
        for path in rest.flat_state().paths:
            assert "/".join(map(str, path)) in str(error.value)


def test_merge_takes_no_state_but_its_arguments():
    one, two = gc.State({"a": gc.Param.state(1)}), gc.State({"b": gc.Param.state(2)})
    assert one.merge(two) == gc.State.merge(two) == two


@given(trees, trees)
def test_union_and_difference(one, two):
    a, b = gc.State(one), gc.State(two)
    ours, theirs = dict(flat(one)), dict(flat(two))
    assert dict((a - b).flat_state()) == {
        p: x for p, x in ours.items() if p not in theirs
    }
    try:
        union = a | b
    except ValueError:
        return  # a leaf of one is a subtree of the other
    assert dict(union.flat_state()) == {**ours, **theirs}
    assert (a | two) == union
    assert gc.State.merge(a, b) == a.merge(a, b) == union


@given(trees)
def test_map_and_pure_dicts(tree):
    state = gc.State(tree)
    seen = []

    def f(path, leaf):
        seen.append((path, leaf))
        return pure(leaf) + 1

    mapped = state.map(f)
    assert seen == flat(tree)
    assert dict(mapped.flat_state()) == {p: pure(x) + 1 for p, x in flat(tree)}
    assert mapped.to_pure_dict() == mapped.raw_mapping
    values = state.to_pure_dict()
    assert flat(values) == [(p, pure(x)) for p, x in flat(tree)]
    target = gc.State(tree)
    target.replace_by_pure_dict(mapped.to_pure_dict())
    assert target.to_pure_dict() == mapped.to_pure_dict()
    for path, leaf in target.flat_state():
        old = dict(flat(tree))[path]
        assert getattr(leaf, "type", None) is getattr(old, "type", None)
    target.replace_by_pure_dict(values)
    assert target == state


def test_pure_dicts_may_come_from_json_and_be_partial():
    state = gc.State({"layers": {0: {"w": gc.Param.state(1)}, -1: {"w": 2}}, "b": 3})
    dumped = json.loads(json.dumps(state.to_pure_dict()))
    dumped["layers"]["0"]["w"] = 5
    dumped["layers"]["-1"]["w"] = 6
    del dumped["b"]
    state.replace_by_pure_dict(dumped)
    assert state.to_pure_dict() == {"layers": {-1: {"w": 6}, 0: {"w": 5}}, "b": 3}
    both = gc.State({"0": 1, 0: 2})
    both.replace_by_pure_dict({"0": 5})
    assert both.to_pure_dict() == {0: 2, "0": 5}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"z": 1}, "'z'"),
        ({"b": {"z": 1}}, "'b/z'"),
        ({"b": 1}, "'b'.*subtree"),
        ({"a": {"x": 1}}, "'a'.*leaf"),
        ({"b": {"c": {"x": 1}}}, "'b/c'.*leaf"),
    ],
)
def test_a_wrong_pure_dict_changes_nothing(wrong, message):
    state = gc.State({"a": gc.Param.state(1), "b": {"c": 2, "d": 3}})
    before = copy.deepcopy(state)
    with pytest.raises(ValueError, match=message):
        state.replace_by_pure_dict({"b": {"d": 9}, **wrong})
    with pytest.raises(ValueError, match=message):
        state.replace_by_pure_dict(wrong)
    assert state == before


def test_pure_dicts_of_values_that_are_dicts():
    state = gc.State({"a": gc.Param.state({"x": 1})})
    state.replace_by_pure_dict({"a": {"x": 2}})
    assert state.a.value == {"x": 2}


# As a pytree


@given(trees)
def test_a_state_is_a_pytree_in_sorted_order_with_key_paths(tree):
    state = gc.State(tree)
    assert jax.tree.leaves(state) == [pure(x) for _, x in flat(tree)]
    found = jax.tree_util.tree_leaves_with_path(state)
    for (path, _), (expected, leaf) in zip(found, flat(tree), strict=True):
        names = [getattr(entry, "key", None) for entry in path[: len(expected)]]
        assert tuple(names) == expected
        assert len(path) == len(expected) + isinstance(leaf, gc.VariableState)
    doubled = jax.tree.map(lambda x: 2 * x, state)
    assert doubled == state.map(
        lambda path, x: (
            x.replace(2 * x.value) if isinstance(x, gc.VariableState) else 2 * x
        )
    )
    leaves, structure = jax.tree.flatten(state)
    assert jax.tree.unflatten(structure, leaves) == state
    assert structure == jax.tree.structure(gc.State(reversed(tree.items())))
    assert hash(structure) == hash(jax.tree.structure(doubled))
    assert pickle.loads(pickle.dumps(state)) == state
    assert copy.deepcopy(state) == state
    flat_state = state.flat_state()
    leaves, structure = jax.tree.flatten(flat_state)
    assert jax.tree.unflatten(structure, leaves) == flat_state
    assert leaves == jax.tree.leaves(state)


@pytest.mark.parametrize("keys", [("a", "b"), (0, 1), ("a", 1)])
def test_leaves_may_be_mapped_to_states_and_dicts(keys):
    one, two = keys
    state = gc.State({one: {two: {one: gc.Param.state(1.0)}}, two: gc.Param.state(2.0)})
    given = {"in": gc.State({"inner": 3.0})}
    mapped = jax.tree.map(
        lambda x: given, state, is_leaf=lambda x: isinstance(x, gc.VariableState)
    )
    plain = {"in": {"inner": 3.0}}
    assert mapped == gc.State({one: {two: {one: plain}}, two: plain})
    assert jax.tree.structure(mapped) == jax.tree.structure(
        gc.State({one: {two: {one: plain}}, two: plain})
    )
    assert isinstance(given["in"], gc.State)


@given(gs.graphs())
def test_a_state_nobody_looked_at_is_the_same_pytree(root):
    looked_at = gc.state(root)
    _ = looked_at.raw_mapping
    assert jax.tree.structure(gc.state(root)) == jax.tree.structure(looked_at)
    for a, b in zip(
        jax.tree.leaves(gc.state(root)), jax.tree.leaves(looked_at), strict=True
    ):
        assert a is b
    assert gc.state(root) == looked_at
    refs = gc.RefMap()
    walked = gc.flatten(root, refs)[1]
    assert jax.tree.structure(walked) == jax.tree.structure(looked_at)


def test_a_state_may_be_a_prefix():
    state = gc.State({"a": {"x": jnp.ones(2), "y": jnp.ones((2, 3))}, "b": jnp.ones(3)})
    axes = gc.State({"a": 0, "b": None})
    out = jax.vmap(lambda s: s.a.x + s.a.y.sum() + s.b.sum(), in_axes=(axes,))(state)
    assert out.tolist() == [7.0, 7.0]


def test_jit_compiles_once_for_equal_states():
    runs = []

    @jax.jit
    def f(state):
        runs.append(1)
        return jax.tree.map(lambda x: x + 1, state)

    node = gc.Dict({"a": gc.Param(1.0, unit="m"), 3: gc.Param(2.0)})
    for state in (gc.state(node), gc.State(gc.state(node)), gc.state(gc.clone(node))):
        assert f(state).a.value == 2.0
    assert len(runs) == 1
    node.a.unit = "s"
    f(gc.state(node))
    assert len(runs) == 2


def test_equality_is_by_content():
    one = gc.State({"a": gc.Param.state(jnp.ones(2)), "b": 1})
    assert one == gc.State({"a": gc.Param.state(jnp.ones(2)), "b": 1})
    assert one != gc.State({"a": gc.Param.state(jnp.zeros(2)), "b": 1})
    assert one != gc.State({"a": gc.BatchStat.state(jnp.ones(2)), "b": 1})
    assert one != gc.State({"a": gc.Param.state(jnp.ones(2)), "b": True})
    assert one != {"a": 1}
    for scalar in (1.0, 1):  # an array of the same value is something else
        assert gc.State({"a": jnp.ones(())}) != gc.State({"a": scalar})
        assert gc.State({"a": scalar}) != gc.State({"a": jnp.ones(())})
    with pytest.raises(TypeError):
        hash(one)


def test_create_path_filters():
    nested = {"a": 0, "b": {"c": 0, "d": None}, "e": gc.Param.state(1)}
    filters = gc.create_path_filters(gc.State(nested))
    assert filters == gc.create_path_filters(nested)
    assert filters == {
        gc.PathIn(("a",), ("b", "c")): 0,
        gc.PathIn(("b", "d")): None,
        gc.PathIn(("e",)): 1,
    }


class Theirs(collections.UserDict):
    """The state of another library: a registered mapping, nested in itself."""


gc.register_pytree_node_type(
    Theirs,
    flatten=lambda theirs: (sorted(theirs.data.items()), None),
    unflatten=lambda pairs, metadata: Theirs(pairs),
    containers=["data"],
)


def test_a_registered_mapping_is_taken_for_a_state():
    leaves = gc.Param(1), gc.Cache.state(2)
    taken = taken_state(Theirs(a=Theirs(b=leaves[0]), c={"d": leaves[1]}))
    assert type(taken) is gc.State
    assert taken == gc.State({"a": {"b": gc.Param.state(1)}, "c": {"d": leaves[1]}})
    assert taken_state({"a": 1}) == {"a": 1}


def test_interactive_shells_complete_keys():
    state = gc.state(gc.Dict(head=gc.Param(1), layers=[gc.Param(2)]))
    assert {"head", "layers", "flat_state"} <= {*dir(state)}
    assert state._ipython_key_completions_() == ["head", "layers"]
    assert state.layers._ipython_key_completions_() == [0]
    assert all(isinstance(name, str) for name in dir(state.layers))


def test_keys_are_no_special_methods():
    state = gc.State({"__array__": 1, "a": 2})
    assert state["__array__"] == 1 and state.a == 2
    assert not hasattr(state, "__array__")
    assert gc.State[str, int]({"a": 1}) == gc.State({"a": 1})


@pytest.mark.parametrize("paths", [{"a": 1}, {"a/b": 1}, [("a", 1)], {3: 1}])
def test_a_flat_path_is_a_tuple(paths):
    with pytest.raises(TypeError, match=r"A path is a tuple of keys, .* but got"):
        gc.State.from_flat_path(paths)


def test_a_state_may_stand_for_pure_dicts():
    old, new = (gc.state(gc.Dict(a=gc.Param(n), b=[gc.Cache(n)])) for n in (1, 2))
    old.replace_by_pure_dict(new)
    assert old == new
    assert old.to_pure_dict() == {"a": 2, "b": {0: 2}}


def test_a_shallow_copy_is_another_mapping():
    state = gc.state(gc.Dict(a=gc.Param(1), b=gc.Dict(c=gc.Param(2))))
    twin = copy.copy(state)
    twin.a, twin.b.c = 3, 4
    del twin["a"]
    assert list(state) == ["a", "b"] and state.a.value == 1
    assert state.b.c == 4  # as in a copy of a dict


class Part(enum.Enum):
    ENCODER = 1
    DECODER = 2


def test_states_whose_keys_have_no_order_are_copied():
    state = gc.State({Part.ENCODER: 1, Part.DECODER: {Part.ENCODER: 2}})
    for twin in (copy.copy(state), copy.deepcopy(state)):
        assert twin.raw_mapping == state.raw_mapping
    assert pickle.loads(pickle.dumps(state)).raw_mapping == state.raw_mapping


def test_what_is_left_of_a_state_has_its_leaves():
    state = gc.state(gc.Dict(a=gc.Param(1), b=gc.Param(2)))
    rest = state - {"a": 0}
    rest["b"].value = 9
    assert state["b"].value == 9


def test_metadata_may_have_the_name_of_a_field():
    leaf = gc.VariableState.from_variable(gc.Param(1.0, _kind="x")).replace(unit="m")
    assert leaf.type is gc.Param and leaf.get_metadata() == {"_kind": "x", "unit": "m"}
    assert jax.tree.map(lambda x: x + 1, leaf) == leaf.replace(2.0)


def test_a_state_of_nothing_is_refused():
    with pytest.raises(TypeError, match="type and a value"):
        gc.VariableState()


class CountedKey(str):
    """A key that counts how often it is compared."""

    compared = 0
    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other):
        CountedKey.compared += 1
        return str.__eq__(self, other)


def test_a_path_is_looked_up_without_comparing_it_with_all_others():
    keys = [CountedKey(f"layer{i}") for i in range(200)]
    state = gc.State({key: {"w": i} for i, key in enumerate(keys)})
    paths = [(str(key), "w") for key in keys]
    CountedKey.compared = 0
    flat = state.flat_state()
    assert [flat[path] for path in paths] == [*range(200)]
    assert all(path in flat for path in paths)
    assert dict(flat).keys() == set(flat.paths)
    assert gc.State.merge(state, state) == state
    assert CountedKey.compared < 100 * len(keys)


def test_what_is_no_path_is_not_in_a_flat_state():
    flat = gc.FlatState([(("a",), jnp.ones(2))])
    assert ("a",) in flat
    assert ("b",) not in flat
    assert [1] not in flat
    assert next(iter(flat)) not in flat  # a pair with an array can't be hashed
    with pytest.raises(KeyError):
        flat["b",]
