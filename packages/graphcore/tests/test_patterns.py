"""Graphs that are recognized at a glance are what a walk would say they are."""

import gc as garbage
import weakref
from operator import is_, itemgetter

import graph_strategies as gs
import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_plans import assert_plan_is_right, fresh

import graphcore as gc
from graphcore.authors import enter
from graphcore.cache.patterns import Pattern, known_patterns
from graphcore.cache.plans import plan_of
from graphcore.graphdef.layouts import layout_of
from graphcore.graphdef.walk import Visit, walk


def pattern_of(definition):
    try:
        return Pattern([definition])
    except ValueError:  # something in it can change in place
        return None


def in_order(root):
    visit = Visit()
    walk(root, visit)
    return [x for x, _ in sorted(visit.refs.items(), key=itemgetter(1))]


@settings(max_examples=150)
@given(gs.graphs(), st.lists(st.tuples(st.booleans(), gs.edits), max_size=3))
def test_a_match_is_what_a_walk_finds(root, edits):
    definition, _ = fresh(root)
    pattern = pattern_of(definition)
    if pattern is None:
        return
    before = in_order(root)
    for behind, edit in edits:
        (gs.edit_behind if behind else gs.edit_structure)(root, edit)
    found = pattern.match([root])
    visit = Visit()
    now, refs = walk(root, visit), visit.refs
    after = in_order(root)
    is_same = now == definition and all(map(is_, before, after))
    assert pattern.is_made_of([root], before) is (found is not None and is_same)
    if found is None:
        assert edits or not pattern.is_watched
    else:
        assert now == definition
        objects = [found[thing] for thing in layout_of([definition]).indices.values()]
        assert len(refs) == len(objects) == pattern.count
        assert all(refs[x] == index for index, x in enumerate(objects))


@settings(max_examples=100)
@given(gs.graphs(), st.lists(st.tuples(st.booleans(), gs.edits), max_size=2))
def test_plans_of_copies_are_right_from_the_first_to_the_last(root, edits):
    for _ in range(4):  # the first ones are walked, later ones may be recognized
        twin = gc.clone(root)
        for behind, edit in edits:
            (gs.edit_behind if behind else gs.edit_structure)(twin, edit)
        assert_plan_is_right(twin)
        plan_of(gc.clone(root))


class Layer(gc.Object):
    def __init__(self, size=3):
        self.w = gc.Param(jnp.ones(size), unit="m")
        self.size = size
        self.inner = gc.Dict(b=gc.Param(jnp.zeros(size)), name="inner")


def test_a_structure_that_is_met_again_is_recognized():
    class Met(Layer):
        """Of which no other test has instances."""

    for _ in range(3):
        gc.graphdef(Met())
    (pattern, definition), *_ = known_patterns(Met)
    layer = Met()
    assert pattern.match([layer]) is not None
    assert plan_of(layer).definition is definition
    assert plan_of(layer) is plan_of(layer)
    assert plan_of(Met(4)).definition is not definition


def make_strange(layer):
    layer.w, layer.inner.b = layer.inner.b, layer.w


def tie(layer):
    layer.inner.b = layer.w


def replace_attributes(layer):
    layer.__dict__ = {**vars(layer), "more": 1}


def replace_attributes_behind(layer):
    object.__setattr__(layer, "__dict__", {**vars(layer), "size": 4})


def change_metadata(layer):
    layer.w.unit = "s"


def change_type_of_number(layer):
    vars(layer)["size"] = 3.0


@pytest.mark.parametrize(
    "edit",
    [
        *(make_strange, tie, replace_attributes, replace_attributes_behind),
        *(change_metadata, change_type_of_number),
    ],
)
def test_what_is_almost_the_same_is_not_taken_for_it(edit):
    for _ in range(3):
        gc.graphdef(Layer())
    layer = Layer()
    before = gc.graphdef(layer)
    edit(layer)
    assert gc.graphdef(layer) == fresh(layer)[0]
    assert gc.graphdef(layer) != before
    again = Layer()  # without a plan from before the edit
    edit(again)
    assert gc.graphdef(again) == gc.graphdef(layer)


def test_objects_made_in_a_trace_are_recognized_and_belong_to_it():
    for _ in range(3):
        gc.graphdef(Layer())

    def f(x):
        layer = Layer()
        layer.w.value = x * layer.w.value
        graphdef, state = gc.split(layer)
        assert graphdef == gc.graphdef(Layer())
        return gc.merge(graphdef, state).w.value

    assert jax.jit(f)(2.0).tolist() == [2.0, 2.0, 2.0]

    kept = []
    jax.jit(lambda x: kept.append(Layer()) or x)(1.0)
    with pytest.raises(gc.TraceContextError):
        gc.update(kept[0], {"w": jnp.zeros(3)})
    with pytest.raises(gc.TraceContextError):
        enter(lambda layer: None, (kept[0],))


def test_a_recognized_structure_keeps_nothing_alive():
    class Tokenizer:
        pass

    class Local(gc.Object):
        def __init__(self, tokenizer, metadata):
            self.w = gc.Param(jnp.ones(1), **metadata)
            vars(self).update(tokenizer)

    tokenizer = Tokenizer()
    for parts in ({"tokenizer": tokenizer}, {}), ({}, {"tokenizer": tokenizer}):
        for _ in range(4):
            gc.graphdef(Local(*parts))
            gc.graphdef(gc.Dict(a=Local(*parts)))
    reference = weakref.ref(tokenizer)
    del tokenizer, parts
    garbage.collect()
    assert reference() is None


def test_what_cannot_be_told_at_a_glance_has_no_pattern():
    for node in (
        gc.Dict(w=jnp.ones(1)),
        gc.Dict(w=gc.Param(1), s={1, 2}),
        gc.Dict(w=gc.Param(1, notes=[1])),
    ):
        assert pattern_of(gc.graphdef(node)) is None


def test_a_variable_of_another_trace_in_a_known_structure_is_seen():
    for _ in range(3):
        gc.graphdef(Layer())
    outside = gc.Param(jnp.ones(3), unit="m")

    def f(x):
        layer = Layer()
        vars(layer)["w"] = outside
        enter(lambda layer: None, (layer,))
        return x

    with pytest.raises(gc.TraceContextError):
        jax.jit(f)(1.0)


class Unit:
    """A static value of a type of this module, which could become that of a node."""


def test_static_values_of_other_types_do_not_hide_a_structure():
    unit = Unit()
    node = gc.Dict(w=gc.Param(1), unit=unit, kind=Unit)
    pattern = Pattern([gc.graphdef(node)])
    twin = gc.Dict(w=gc.Param(2), unit=unit, kind=Unit)
    assert pattern.match([twin]) is not None
    assert pattern.match([gc.Dict(w=gc.Param(2), unit=Unit(), kind=Unit)]) is None


class Stack(gc.Object):
    def __init__(self):
        self.first = gc.Param(jnp.ones(1), sharding=("in", None))
        self.blocks = [gc.Param(jnp.ones(1)), (gc.Param(jnp.ones(2)), {"x": None})]
        self.axes = "a", (1, jnp.tanh)


def test_lists_and_static_tuples_are_no_obstacle():
    for _ in range(3):
        gc.graphdef(Stack())
    (pattern, _), *_ = known_patterns(Stack)
    assert pattern.match([Stack()]) is not None
    other = Stack()
    other.blocks[1] = list(other.blocks[1])
    assert pattern.match([other]) is None
