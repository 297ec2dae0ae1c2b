"""What JAX sees of an object, also where it was looked at before."""

from unittest import mock

import graph_strategies as gs
import graph_zoo as zoo
import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import graphcore as gc
from graphcore.nodes import pytrees


def seen(root):
    """The leaves and the structure, or the error."""
    try:
        return jax.tree.flatten(root)
    except (TypeError, ValueError) as error:
        return [], str(error)


def seen_anew(root):
    with mock.patch.object(pytrees, "_known_parts", return_value={}):
        return seen(root)


@settings(max_examples=150)
@given(
    gs.graphs(),
    st.lists(st.tuples(st.integers(0, 3), st.booleans(), gs.edits), max_size=6),
)
def test_it_is_what_is_there_after_any_edit(root, edits):
    for times, behind, edit in edits:
        for _ in range(times):
            seen(root)
        (gs.edit_behind if behind else gs.edit_structure)(root, edit)
        for node in [root, *zoo.graph_nodes_of(root)]:
            (leaves, structure), (due, due_structure) = seen(node), seen_anew(node)
            assert list(map(id, leaves)) == list(map(id, due))
            assert structure == due_structure


@settings(max_examples=100)
@given(gs.graphs(), st.lists(st.tuples(st.booleans(), gs.edits), max_size=3))
def test_it_is_what_is_there_also_if_others_like_it_were_seen(root, edits):
    for each in [None, *edits]:
        if each is not None:
            behind, edit = each
            (gs.edit_behind if behind else gs.edit_structure)(root, edit)
        for make in (gc.clone, lambda x: jax.tree.map(lambda leaf: leaf, x)):
            try:
                twins = [make(root) for _ in range(4)]
            except (TypeError, ValueError):  # shared, or static values of no use
                continue
            for twin in twins:
                (leaves, structure), (due, due_structure) = seen(twin), seen_anew(twin)
                assert list(map(id, leaves)) == list(map(id, due))
                assert structure == due_structure


def test_children_stay_children_whatever_stands_there_and_whatever_was_seen():
    def with_seven():
        return gc.Dict(inner=gc.Dict(weight=7, size=2))

    def axes():
        layer = gc.Dict(inner=gc.Dict(weight=gc.Param(jnp.ones(2)), size=2))
        return jax.tree.map(lambda _: 7, layer, is_leaf=gc.is_variable)

    for _ in range(4):
        assert jax.tree.leaves(with_seven()) == []
    for _ in range(4):
        assert jax.tree.leaves(axes()) == [7]
    assert jax.tree.leaves(with_seven()) == []


def test_the_first_of_its_kind_may_hold_something_else_in_the_place_of_children():
    def with_text():
        return gc.Dict(inner=gc.Dict(weight="w", size=3))

    def names():
        layer = gc.Dict(inner=gc.Dict(weight=gc.Param(jnp.ones(2)), size=3))
        return jax.tree.map(lambda _: "w", layer, is_leaf=gc.is_variable)

    for _ in range(2):
        gc.flatten(with_text())
    assert jax.tree.leaves(names()) == ["w"]
    assert jax.tree.leaves(with_text()) == []


def test_static_values_in_containers_are_no_leaves_whatever_was_seen():
    for step in range(4):
        node = gc.Dict(parts=[3, gc.Param(step), "text"], none=[0])
        assert jax.tree.leaves(node) == [step]
        assert jax.tree.map(lambda x: x, node).none == [0]


def test_what_changes_while_the_structure_stays_is_seen():
    inner = gc.Dict(list=[jnp.zeros(2), 3], w=gc.Param(0))
    node = gc.Dict(scale=jnp.zeros(2), inner=inner)
    for step in range(1, 5):
        gc.update(node, jax.tree.map(lambda x: x + 1, gc.state(node)))
        found = jax.tree.map(lambda x: x, node)
        assert found.scale.tolist() == found.inner.list[0].tolist() == [step] * 2
        assert (found.inner.list[1], found.inner.w.value) == (3, step)


def test_one_structure_comes_back_in_the_order_of_the_graph():
    node = gc.Dict({"b": gc.Param(1), 2: "x", "a": 3, 1: gc.Param(2)})
    for _ in range(3):
        again = jax.tree.map(lambda x: x, node)
        assert list(again) == [1, 2, "a", "b"]
        assert jax.tree.structure(again) == jax.tree.structure(node)
        assert hash(jax.tree.structure(again)) == hash(jax.tree.structure(node))


def test_along_a_structure_each_subtree_is_walked_once(monkeypatch):
    def chain(length):
        node = gc.Dict(w=gc.Param(1.0))
        for _ in range(length):
            node = gc.Dict(below=node)
        return node

    first, second = chain(20), chain(20)
    walks = []
    looked = pytrees._refuse_sharing
    monkeypatch.setattr(
        pytrees, "_refuse_sharing", lambda x: walks.append(x) or looked(x)
    )
    jax.tree.map(lambda a, b: a + b, first, second)
    assert walks == [first, second]


@pytest.mark.parametrize("times", [1, 4])  # from then on the structure is known
def test_sharing_that_an_edit_makes_is_refused_though_the_rest_was_seen(times):
    for _ in range(times):
        inner = gc.Dict(a=gc.Param(1.0), b=gc.Param(2.0))
        node = gc.Dict(inner=inner)
        # JAX asks for the inner object after it has left the outer one.
        jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda x: x is inner)
    inner.b = inner.a
    leaves, error = seen(inner)
    assert not leaves
    assert "is also at" in error


def test_another_object_that_is_flattened_in_between_is_looked_at_as_well():
    one = gc.Param(1.0)
    shared = gc.Dict(a=one, b=one)
    node = gc.Dict(x=gc.Dict(w=gc.Param(1.0)), y=gc.Dict(w=gc.Param(2.0)))
    errors = []

    def is_leaf(_):
        errors.append(seen(shared)[1])
        return False

    for _ in range(3):  # at first, again, and from what is known by then
        assert jax.tree.leaves(node, is_leaf=is_leaf) == [1.0, 2.0]
    assert len(errors) > 3
    assert all("is also at" in str(error) for error in errors)
