"""Several roots in one index space: what is made of their layout is what they were."""

import gc as garbage
import weakref
from operator import is_, itemgetter

import graph_strategies as gs
import graph_zoo as zoo
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_plans import fresh

import graphcore as gc
from graphcore.graphdef.build import Builder
from graphcore.graphdef.joint import joint_of
from graphcore.graphdef.layouts import layout_of
from graphcore.graphdef.recipes import recipe_of
from graphcore.graphdef.walk import Visit, walk
from graphcore.state.leaves import given_to
from graphcore.state.nesting import nested_from_flat
from graphcore.variables.impl import is_variable


def walked(roots):
    """Definitions, paths and objects in order of index, found by walks alone."""
    refs, definitions, paths = gc.RefMap(), [], []
    for number, root in enumerate(roots):
        visit = Visit(refs=refs)
        definitions.append(walk(root, visit))
        paths += [(number, *leaf.path) for leaf in visit.leaves]
    objects = [x for x, _ in sorted(refs.items(), key=itemgetter(1))]
    return tuple(definitions), tuple(paths), objects


def canonical(roots):
    return zoo.canonical(gc.List(roots))


@st.composite
def several_roots(draw):
    """Nodes and variables of two graphs, each once; some are parts of others."""
    graphs = draw(gs.graphs()), draw(gs.graphs())
    found = [x for g in graphs for x in (*zoo.graph_nodes_of(g), *zoo.variables_of(g))]
    places = st.integers(0, len(found) - 1)
    chosen = draw(st.lists(places, min_size=1, max_size=4, unique=True))
    return [found[place] for place in chosen]


@settings(max_examples=150)
@given(several_roots())
def test_several_roots_are_built_as_they_were(roots):
    joint, plans = joint_of(roots)
    definitions, paths, objects = walked(roots)
    assert joint.definitions == definitions
    assert joint.paths == paths
    assert list(filter(is_variable, objects)) == joint.variables(plans)
    built_objects, built, variables = joint.build(
        joint.layout.values(joint.variables(plans))
    )
    assert canonical(built) == canonical(roots)
    assert walked(built)[0] == definitions
    in_order = walked(built)[2]
    assert len(in_order) == len(built_objects) == len(joint.identity)
    assert all(map(is_, built_objects, in_order))
    assert list(map(id, filter(is_variable, in_order))) == list(map(id, variables))
    assert not {*map(id, objects)} & {*map(id, in_order)}


@settings(max_examples=100)
@given(several_roots())
def test_one_definition_after_the_other_gives_the_same(roots):
    joint, plans = joint_of(roots)
    values = joint.layout.values(joint.variables(plans))
    leaves = {
        d.index: (value, None)
        for d, value in zip(joint.variable_definitions, values, strict=True)
    }
    objects = {}
    builder = Builder(leaves, objects, {})
    built = [builder.build(definition) for definition in joint.definitions]
    assert canonical(built) == canonical(roots)
    assert sorted(objects) == list(range(len(joint.identity)))
    assert all(map(is_, walked(built)[2], map(objects.__getitem__, sorted(objects))))


@settings(max_examples=100)
@given(several_roots(), st.lists(st.tuples(st.booleans(), gs.edits), max_size=2))
def test_several_roots_are_recognized_while_they_are_the_same(roots, edits):
    joint, plans = joint_of(roots)
    if joint.pattern is None:
        return
    objects, built, _ = joint.build(joint.layout.values(joint.variables(plans)))
    is_known = joint.pattern.is_made_of(built, objects)
    assert is_known or not joint.pattern.is_watched
    for behind, edit in edits:
        (gs.edit_behind if behind else gs.edit_structure)(gc.List(built), edit)
    definitions, _, now = walked(built)
    is_same = definitions == joint.definitions and all(map(is_, now, objects))
    assert joint.pattern.is_made_of(built, objects) is (is_known and is_same)


@settings(max_examples=100)
@given(gs.graphs())
def test_leaves_are_found_where_they_were_nested(root):
    definition, visit = fresh(root)
    layout = layout_of([definition])
    leaves = list(range(len(visit.leaves)))
    nested = layout.nest(leaves)
    assert nested == nested_from_flat(
        zip((leaf.path for leaf in visit.leaves), leaves, strict=True)
    )
    state = gc.State.from_flat_path((leaf.path, leaf.state()) for leaf in visit.leaves)
    given = given_to(definition, [state])
    assert given.values.keys() == set(leaves)
    assert not given.metadata and not given.others
    assert all(
        given.values[i] is leaf.impl.get_value(leaf.variable)
        for i, leaf in enumerate(visit.leaves)
    )
    more = given_to(definition, [state, {"one more": gc.Param.state(0)}])
    assert [path for path, _ in more.others] == [("one more",)]
    for path, _ in state.flat_state():
        part = state.filter(gc.Not(gc.PathIn(path)))
        assert len(given_to(definition, [part]).values) == len(leaves) - 1
        both = given_to(definition, [part, state])
        assert both.values.keys() == set(leaves)


def test_what_refers_to_something_outside_needs_it():
    shared = gc.Param(1)
    joint, _ = joint_of([gc.Dict(a=shared), gc.Dict(b=shared, c=shared)])
    first, second = joint.definitions
    assert not layout_of([first]).outside
    assert layout_of([second]).outside
    with pytest.raises(ValueError, match=r"'b' refers to the object with index 1"):
        gc.unflatten(second, {})
    objects = {1: shared}
    assert gc.unflatten(second, {}, index_ref=objects).c is shared


def test_a_definition_keeps_its_layout_and_is_not_kept_by_it():
    definition = gc.graphdef(gc.Dict(a=gc.Param(1), only="here"))
    layout = layout_of([definition])
    assert layout_of([definition]) is layout
    assert recipe_of(layout) is recipe_of(layout)
    reference = weakref.ref(definition)
    del definition
    assert reference() is None


class Layer(gc.Object):
    def __init__(self):
        self.w = gc.Param(1)


def test_a_recognized_structure_keeps_nothing_that_it_was_used_with():
    class Tokenizer:
        pass

    for _ in range(3):
        gc.graphdef(Layer())
    layer, other = Layer(), gc.Dict(tokenizer=Tokenizer(), v=gc.Param(1))
    joint, plans = joint_of([layer, other])
    assert joint.layout is layout_of(joint.definitions)
    assert joint.pattern is joint.pattern is not None
    reference = weakref.ref(other.tokenizer)
    del joint, plans, layer, other
    garbage.collect()
    assert reference() is None
