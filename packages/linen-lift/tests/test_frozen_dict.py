import collections
import copy
import pickle

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

import linen_lift as nn

trees = st.recursive(
    st.dictionaries(st.text("abc", min_size=1, max_size=3), st.integers(), max_size=3),
    lambda inner: st.dictionaries(
        st.text("abc", min_size=1, max_size=3), st.one_of(st.integers(), inner)
    ),
    max_leaves=6,
)


@given(trees)
def test_freeze_and_unfreeze_are_inverse(tree):
    frozen = nn.freeze(tree)
    assert nn.unfreeze(frozen) == tree
    assert type(nn.unfreeze(frozen)) is dict
    assert frozen == nn.freeze(copy.deepcopy(tree))
    assert hash(frozen) == hash(nn.freeze(copy.deepcopy(tree)))


@given(trees)
def test_leaves_are_those_of_the_dict(tree):
    assert jax.tree.leaves(nn.freeze(tree)) == jax.tree.leaves(tree)
    keys = [k for k, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]
    frozen = [k for k, _ in jax.tree_util.tree_flatten_with_path(nn.freeze(tree))[0]]
    assert keys == frozen
    assert jax.tree.map(lambda x: x, nn.freeze(tree)) == nn.freeze(tree)


def test_nothing_outside_can_change_it():
    inner = {"b": 1}
    frozen = nn.freeze({"a": inner})
    inner["b"] = 2
    nn.unfreeze(frozen)["a"]["b"] = 3
    assert frozen["a"]["b"] == 1
    with pytest.raises(ValueError, match="'a' cannot be set"):
        frozen["a"] = 1
    with pytest.raises(ValueError, match="'b' cannot be set"):
        frozen["a"]["b"] = 1
    assert isinstance(next(iter(frozen.values())), nn.FrozenDict)
    assert isinstance(next(iter(frozen.items()))[1], nn.FrozenDict)


class Derived(nn.FrozenDict):
    """A class of one's own."""


@pytest.mark.parametrize("make", [dict, nn.FrozenDict, Derived])
def test_copy_and_pop_leave_the_original(make):
    original = make({"a": 1, "b": 2})
    assert nn.copy(original) == original
    assert type(nn.copy(original)) is type(original)
    assert dict(nn.copy(original, {"b": 3, "c": 4})) == {"a": 1, "b": 3, "c": 4}
    rest, value = nn.pop(original, "a")
    assert (dict(rest), value) == ({"b": 2}, 1)
    assert type(rest) is type(original)
    assert dict(original) == {"a": 1, "b": 2}


@pytest.mark.parametrize("use", [nn.copy, lambda x: nn.pop(x, 0)])
def test_copy_and_pop_take_dicts_only(use):
    with pytest.raises(TypeError, match="Expected a dict or a FrozenDict, found list"):
        use([1])


def test_pickling_and_printing():
    frozen = nn.freeze({"a": {"b": 1}})
    assert pickle.loads(pickle.dumps(frozen)) == frozen
    assert repr(frozen) == "FrozenDict({'a': {'b': 1}})"
    assert "    a: {\n        b: 1,\n" in frozen.pretty_repr()


def test_pretty_repr_indents_dicts_of_any_kind():
    tree = {"a": collections.OrderedDict(b=[1], c={})}
    text = "{\n  a: {\n    b: [1],\n    c: {},\n  },\n}"
    assert nn.pretty_repr(tree, 2) == text
    assert nn.pretty_repr(nn.freeze(tree), 2) == f"FrozenDict({text})"
    assert nn.pretty_repr("text") == "'text'"


@pytest.mark.parametrize("x", [None, 3, [{"a": 1}]])
def test_what_is_no_mapping_is_not_unfrozen(x):
    assert nn.unfreeze(x) is x


def test_what_a_map_over_leaves_freezes_is_frozen_with_the_whole():
    nested = jax.tree.map(lambda x: nn.freeze({"b": x}), nn.freeze({"a": 1}))
    whole = nn.freeze({"a": {"b": 1}})
    assert nested == whole and repr(nested) == repr(whole)
    assert jax.tree.structure(nested) == jax.tree.structure(whole)


def test_accepted_wherever_variables_are():
    model, x = nn.Dense(2), jnp.ones(3)
    variables = model.init(jax.random.key(0), x)
    assert type(variables) is dict and type(variables["params"]) is dict
    frozen = nn.freeze(variables)
    assert (model.apply(frozen, x) == model.apply(variables, x)).all()
    _, updated = model.apply(frozen, x, mutable=["params"])
    assert type(updated["params"]) is dict
    for lifted in (nn.remat(nn.Dense)(2), nn.jit(nn.Dense)(2)):
        assert (lifted.apply(frozen, x) == model.apply(variables, x)).all()
    assert model.bind(frozen).variables == variables
