"""A plan is trusted only while walking the graph again would give the same."""

import collections
import dataclasses
import functools
import gc as garbage
import sys
import types
import weakref
from typing import NamedTuple
from unittest import mock

import graph_strategies as gs
import graph_zoo as zoo
import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import graphcore as gc
from graphcore.cache import kept_beside, watching
from graphcore.cache.plans import plan_of
from graphcore.graphdef.joint import joint_of
from graphcore.graphdef.walk import Visit, walk


def fresh(root):
    visit = Visit()
    return walk(root, visit), visit


def assert_plan_is_right(root):
    definition, visit = fresh(root)
    plan = plan_of(root)
    assert plan.definition == definition
    assert hash(plan.definition) == hash(definition)
    assert plan.layout.paths == tuple(leaf.path for leaf in visit.leaves)
    assert plan.layout.definitions == tuple(leaf.definition for leaf in visit.leaves)
    assert len(plan.variables) == len(visit.leaves)
    assert all(
        a is b.variable for a, b in zip(plan.variables, visit.leaves, strict=True)
    )
    # The public functions, against what is independent of the package.
    expected = zoo.canonical(root)
    assert zoo.canonical(gc.merge(*gc.flatten(root))) == expected
    assert zoo.canonical(gc.clone(root)) == expected
    live = [leaf for _, leaf in gc.variables(root).flat_state()]
    assert {id(x) for x in live} == {id(x) for x in zoo.leaves_of(root)}
    assert len(live) == len(zoo.leaves_of(root))


# A plan that is used often is kept in another way than one that is used once.
uses = st.sampled_from([0, 1, 20])


@settings(max_examples=150)
@given(gs.graphs(), st.lists(st.tuples(uses, st.booleans(), gs.edits), max_size=8))
def test_a_plan_equals_a_fresh_walk_after_any_edit(root, edits):
    assert_plan_is_right(root)
    for times, behind, edit in edits:
        for _ in range(times):
            plan_of(root)
        (gs.edit_behind if behind else gs.edit_structure)(root, edit)
        assert_plan_is_right(root)


@settings(max_examples=100)
@given(gs.graphs(), st.lists(st.tuples(st.booleans(), gs.edits), max_size=5))
def test_plans_of_all_inner_nodes_hold_as_long_as_they_may(root, edits):
    for behind, edit in edits:
        for node in zoo.graph_nodes_of(root):
            plan_of(node)
        (gs.edit_behind if behind else gs.edit_structure)(root, edit)
    for node in zoo.graph_nodes_of(root):
        assert plan_of(node).definition == fresh(node)[0]


@settings(max_examples=50)
@given(gs.graphs(foreign=False), gs.edits)
def test_an_older_definition_does_not_follow_later_edits(root, edit):
    before = zoo.canonical(root)
    definition = gc.graphdef(root)
    gs.edit_behind(root, edit)
    after = zoo.canonical(root)
    now = gc.graphdef(root)
    if now == definition:
        assert zoo.canonical(gc.merge(now, gc.state(root))) == after
        strip = functools.partial(zoo.canonical, label=lambda x: None)
        assert strip(gc.merge(definition, gc.state(root))) == after
    else:
        assert before != after


def test_an_unchanged_graph_keeps_its_plan():
    node = gc.Dict(a=gc.Param(1), b=[gc.Param(2), {"c": gc.BatchStat(3)}])
    plan = plan_of(node)
    node.a.value = 5
    node.b[0].raw_value = 6
    assert plan_of(node) is plan
    assert gc.state(node).a.value == 5
    assert gc.state(node)["b"][0].value == 6


@pytest.mark.parametrize("is_foreign", [False, True])
def test_a_plan_stays_what_it_is_while_another_thread_edits_the_graph(is_foreign):
    inner = gc.Dict(w=gc.Param(1))
    root = zoo.Bag() if is_foreign else gc.Dict(inner=inner)
    if is_foreign:
        root.items["inner"] = inner
    plan = plan_of(root)
    assert plan.holds(root)
    inner.step = 1  # between the question and the use of the answer
    assert plan.values() == [1] and not plan.holds(root)
    old = weakref.ref(plan)
    del plan
    assert old() is None and plan_of(root).holds(root)


def test_cached_property_is_seen():
    class Lazy(gc.Object):
        @functools.cached_property
        def table(self):
            return gc.Param(jnp.ones(2))

    outer = gc.Dict(inner=Lazy())
    assert len(gc.state(outer)) == 0
    _ = outer.inner.table
    assert gc.state(outer).flat_state().paths == (("inner", "table"),)


def test_a_property_setter_runs_on_a_planned_object():
    class Counted(gc.Object):
        def __init__(self):
            self.sets = 0
            self.__dict__["size"] = 1

        @property
        def size(self):
            return self.__dict__["size"]

        @size.setter
        def size(self, value):
            self.__dict__["size"] = value
            self.sets += 1

    node = Counted()
    gc.graphdef(node)
    node.size = 1
    assert node.sets == 1


def test_a_type_that_becomes_a_node_type_is_seen():
    class Later:
        def __init__(self):
            self.weight = gc.Param(1)

    node = gc.Dict(later=Later())
    assert len(gc.state(node)) == 0
    gc.register_pytree_node_type(
        Later,
        flatten=lambda x: ([("weight", x.weight)], None),
        unflatten=lambda pairs, metadata: Later(),
    )
    assert gc.state(node).flat_state().paths == (("later", "weight"),)


def test_a_type_that_becomes_a_variable_type_is_seen():
    class LaterVariable:
        pass

    node = gc.Dict(later=LaterVariable())
    assert len(gc.state(node)) == 0
    gc.register_variable_type(
        LaterVariable,
        get_value=lambda x: 1,
        set_value=lambda x, value: None,
        get_metadata=lambda x: {},
        create=lambda kind, value, metadata: kind(),
    )
    assert gc.state(node).flat_state().paths == (("later",),)


def test_metadata_that_is_computed_each_time_keeps_the_plan_and_is_compared():
    class Measured:
        unit = "m"

    gc.register_variable_type(
        Measured,
        get_value=lambda x: 1,
        set_value=lambda x, value: None,
        get_metadata=lambda x: {"unit": x.unit},
        create=lambda kind, value, metadata: kind(),
    )
    node = gc.Dict(length=Measured())
    plan = plan_of(node)
    assert plan_of(node) is plan
    node.length.unit = "km"
    assert plan_of(node).definition == fresh(node)[0] != plan.definition


class Computed:
    """A variable whose metadata is made anew at each look."""

    def __init__(self, **notes):
        self.notes = notes


class ComputedToo(Computed):
    pass


gc.register_variable_type(
    Computed,
    get_value=lambda x: 1,
    set_value=lambda x, value: None,
    get_metadata=lambda x: dict(x.notes),
    create=lambda kind, value, metadata: kind(**metadata),
)


def rename(x):
    x.notes["name"] = x.notes.pop("unit")


def retag(x):
    x.notes["tag"].word = "b"


@pytest.mark.parametrize(
    "edit",
    [
        rename,
        retag,
        lambda x: x.notes.update(more=None),
        lambda x: x.notes.update(count=True),  # was 1
        lambda x: x.notes.pop("count"),
        lambda x: x.notes.clear(),
        lambda x: setattr(x, "__class__", ComputedToo),
    ],
)
def test_each_change_of_metadata_that_is_computed_is_seen(edit):
    tagged = {"tag": zoo.Tag("a")} if edit is retag else {}  # it can change in place
    variables = [Computed(unit="m", count=1, **tagged), Computed(), Computed()]
    node = gc.List([*variables, gc.Param(1)])
    definition = gc.graphdef(node)
    plan = plan_of(node)
    assert plan_of(node) is plan
    edit(variables[0])
    assert gc.graphdef(node) == fresh(node)[0] != definition
    changed = plan_of(node)
    variables[2].notes["unit"] = "s"
    assert plan_of(node).definition == fresh(node)[0] != changed.definition


def test_a_static_value_that_changes_its_class_is_seen():
    class Before:
        pass

    class After:
        pass

    thing = Before()
    node = gc.Dict(thing=thing)
    before = gc.graphdef(node)
    thing.__class__ = After
    after = gc.graphdef(node)
    assert after == fresh(node)[0]
    assert before != after


def test_a_subclass_of_an_immutable_type_may_compare_by_something_mutable():
    class Name(str):
        version = 0

        def __eq__(self, other):
            return type(other) is Name and self.version == other.version

        def __hash__(self):
            return hash(self.version)

    name = Name("x")
    node = gc.Dict(name=name)
    before = gc.graphdef(node)
    name.version = 1
    assert gc.graphdef(node) != before


def test_metadata_of_a_foreign_node_changed_in_place_is_seen():
    class Options:
        def __init__(self):
            self.words = zoo.Tag("a")

    gc.register_graph_node_type(
        Options,
        flatten=lambda x: ((), x.words),
        set_key=lambda x, k, v: None,
        pop_key=lambda x, k: None,
        create_empty=lambda metadata: Options(),
        clear=lambda x: None,
        init=lambda x, pairs: None,
    )
    node = gc.Dict(options=Options())
    before = gc.graphdef(node)
    node.options.words.word = "b"
    assert gc.graphdef(node) != before


@pytest.mark.parametrize(
    ("before", "after"),
    [
        *(("m", "km"), (1, True), (True, 1.0), (0.0, -0.0), ((1,), (True,))),
        (zoo.Tag("a"), zoo.Tag("b")),  # can change in place
    ],
)
def test_metadata_of_a_foreign_variable_changed_behind_is_seen(before, after):
    cell = zoo.Cell(1, {"unit": before})
    node = gc.Dict(a=zoo.Cell(1), b=cell, c=gc.Param(1))
    definition = gc.graphdef(node)
    cell.notes["unit"] = before
    assert gc.graphdef(node) == definition
    cell.notes["unit"] = after
    assert gc.graphdef(node) == fresh(node)[0] != definition
    del cell.notes["unit"]
    assert gc.graphdef(node) == fresh(node)[0] != definition
    cell.notes["unit"] = before
    assert gc.graphdef(node) == definition


def test_metadata_that_are_the_attributes_of_an_object_are_told_apart():
    class Notes:
        unit = 2

    # From Python 3.13 on, the collector lists nothing of such a `__dict__`.
    notes = Notes()
    notes.unit = True
    cell = zoo.Cell(1)
    cell.notes = vars(notes)
    node = gc.Dict(a=cell, b=zoo.Cell(1))
    definition = gc.graphdef(node)
    assert gc.graphdef(node) == definition
    notes.unit = 1
    assert gc.graphdef(node) == fresh(node)[0] != definition


def test_a_foreign_variable_that_changes_its_class_is_seen():
    node = gc.Dict(a=zoo.Cell(1), b=zoo.Cell(1))
    definition = gc.graphdef(node)
    node.b.__class__ = zoo.OtherCell
    assert gc.graphdef(node) == fresh(node)[0] != definition
    _, state = gc.split(node)
    assert state.b.type is zoo.OtherCell


def test_metadata_changed_in_place_reaches_definitions_and_states():
    tag = zoo.Tag("a")
    node = gc.Dict(v=gc.Param(1, tag=tag))
    before = gc.split(node)
    with gc.split_context() as ctx:
        in_context = ctx.split(node)
    snapshot = node.v.to_state()
    tag.word = "b"
    after = gc.split(node)
    assert before[0] != after[0]
    assert before[1].v.tag.word == "a"
    assert after[1].v.tag.word == "b"
    assert in_context[1].v.tag.word == "a"
    assert snapshot.tag.word == "a"
    assert node.v.tag is tag


# What a plan keeps alive


def test_a_plan_does_not_keep_its_root():
    node = zoo.Node()
    node.w = gc.Param(jnp.ones(3))
    node.inner = zoo.Node()
    plan = plan_of(node)
    root, variable = weakref.ref(node), weakref.ref(node.w)
    del node
    assert root() is None
    del plan
    garbage.collect()
    assert variable() is None


@pytest.mark.parametrize("times", [1, 20])
@pytest.mark.parametrize("how", ["setattr", "delattr", "List", "Dict", "pop", "update"])
def test_a_detached_child_is_collected_while_its_planned_root_lives(how, times):
    root = zoo.Node()
    root.mid = zoo.Node()
    root.mid.items = gc.List([zoo.Node(), zoo.Node()])
    root.mid.table = gc.Dict(x=zoo.Node())
    child = zoo.Node()
    child.w = gc.Param(jnp.ones(3))
    child.up = root
    owner = root.mid
    if how in ("setattr", "delattr", "pop", "update"):
        owner.child = child
    elif how == "List":
        owner.items[1] = child
    else:
        owner.table["x"] = child
    for _ in range(times):
        gc.split(root)
        gc.split(root.mid)
    found = weakref.ref(child)
    array = weakref.ref(child.w.value)
    if how == "setattr":
        owner.child = None
    elif how in ("delattr", "update"):
        del owner.child
    elif how == "pop":
        gc.pop(root, gc.Param)
        del owner.child
    elif how == "List":
        del owner.items[1]
    else:
        del owner.table["x"]
    del child, owner
    garbage.collect()
    assert found() is None
    assert array() is None


def test_a_child_detached_from_a_plain_list_goes_at_the_next_use():
    root = zoo.Node()
    root.layers = [gc.Param(jnp.ones(2)), gc.Param(jnp.ones(2))]
    gc.split(root)
    found = weakref.ref(root.layers.pop())
    gc.graphdef(root)
    garbage.collect()
    assert found() is None


def test_dropping_a_graph_with_cycles_frees_everything():
    root = gc.Dict(l=gc.List([gc.Param(jnp.ones(2))]))
    root.me = root
    root.l.up = root
    for _ in range(3):
        gc.split(root), gc.clone(root), gc.graphdef(root.l)
    found = [weakref.ref(x) for x in (root, root.l, root.l[0], root.l[0].value)]
    del root
    garbage.collect()
    assert [f() for f in found] == [None] * 4


class Whimsical(gc.Variable):
    """A variable that claims to equal everything."""

    def __eq__(self, other):
        return True

    __hash__ = None


def test_the_type_of_a_variable_changed_in_any_way_is_seen():
    node = gc.Dict(v=gc.Param(1))
    gc.graphdef(node)
    node.v.__class__ = gc.BatchStat
    assert gc.state(node).v.type is gc.BatchStat
    object.__setattr__(node.v, "__class__", gc.Cache)
    assert gc.state(node).v.type is gc.Cache
    assert isinstance(node.v, gc.Cache)
    assert node.v.__class__ is gc.Cache


@pytest.mark.parametrize("first", [gc.Variable, Whimsical])
@pytest.mark.parametrize("second", [gc.Variable, Whimsical])
def test_variables_are_told_apart_even_if_they_claim_to_be_equal(first, second):
    node = gc.Dict(v=first(1), l=[first(2)])
    gc.graphdef(node)
    for new in (second(3), second(4)):
        vars(node)["v"] = new
        node["l"][0] = new
        assert gc.variables(node).flat_state().leaves[0] is new
        assert gc.graphdef(node).attributes[0].key == "l"
        assert len(gc.state(node).flat_state()) == 1


@pytest.mark.parametrize("kind", [gc.Dict, gc.List, dict, list])
def test_what_claims_to_equal_everything_is_no_variable(kind):
    key = 0 if issubclass(kind, list | gc.List) else "w"
    inner = kind([gc.Param(1)]) if key == 0 else kind(w=gc.Param(1))
    node = gc.Dict(inner=inner)
    assert len(gc.state(node)) == 1
    storage = vars(inner) if kind is gc.Dict else inner
    if kind is gc.List:
        storage = inner._node__items
    for stranger in (mock.ANY, jnp.zeros(2)):
        storage[key] = stranger
        if stranger is mock.ANY:
            assert len(gc.state(node)) == 0
        else:
            assert jax.tree.leaves(gc.state(node))[0] is stranger


class Shelf:
    """A graph node type of somebody else that says where its children are."""

    def __init__(self):
        self.items = {}


gc.register_graph_node_type(
    Shelf,
    flatten=lambda shelf: (sorted(shelf.items.items()), None),
    set_key=lambda shelf, key, child: shelf.items.__setitem__(key, child),
    pop_key=lambda shelf, key: shelf.items.pop(key),
    create_empty=lambda metadata: Shelf(),
    clear=lambda shelf: shelf.items.clear(),
    init=lambda shelf, pairs: shelf.items.update(pairs),
    containers=["items"],
)


def shelf(**items):
    made = Shelf()
    made.items.update(items)
    return made


def bag(**items):
    made = zoo.Bag()
    made.items.update(items)
    return made


WATCHED = {
    "a foreign node that says nothing of its containers": lambda: gc.Dict(
        a=bag(w=gc.Param(1))
    ),
    "a set": lambda: gc.Dict(w=gc.Param(1), s={1, 2}),
    "a static of some class": lambda: gc.Dict(w=gc.Param(1), s=zoo.Tag("x")),
    "metadata that can change": lambda: gc.Dict(w=gc.Param(1, notes=[1])),
    "a foreign variable": lambda: gc.Dict(w=zoo.Cell(1, {"unit": "m"})),
    "a foreign node": lambda: gc.Dict(a=shelf(w=gc.Param(1))),
    "a foreign root": lambda: shelf(w=gc.Param(1), s="m"),
    "an array in a tuple in a tuple": lambda: gc.Dict(t=((jnp.ones(2), "s"), 1)),
    "a foreign root of foreign variables": lambda: shelf(w=zoo.Cell(1, {"unit": "m"})),
    "a foreign root that shares": lambda: shelf(w=(w := gc.Param(1)), v=w),
    "a bare array in a foreign node": lambda: gc.Dict(a=shelf(w=jnp.ones(2))),
}


@pytest.mark.parametrize("make", WATCHED.values(), ids=WATCHED)
def test_a_plan_is_kept_as_long_as_nothing_changes(make):
    node = make()
    plan = plan_of(node)
    assert plan_of(node) is plan
    inner = getattr(node, "a", None)
    if isinstance(inner, Shelf) and isinstance(inner.items["w"], jax.Array):
        inner.items["w"] = jnp.zeros(3)  # a value, not the structure
        assert plan_of(node) is plan


def test_plans_of_living_roots_outlast_many_others():
    first = shelf(w=gc.Param(1))
    plan, others = plan_of(first), [shelf(w=gc.Param(1)) for _ in range(200)]
    assert len({id(plan_of(other)) for other in others}) == 200
    assert plan_of(first) is plan


def test_metadata_of_a_foreign_variable_that_changes_in_place_is_seen():
    cell = zoo.Cell(1, {"tags": ["a"]})
    node = gc.Dict(cell=cell)
    before = gc.graphdef(node)
    assert gc.graphdef(node) == before
    cell.notes["tags"].append("b")
    assert gc.graphdef(node) != before


def test_what_changes_in_a_foreign_root_is_seen():
    node = shelf(w=gc.Param(1), s="m")
    assert gc.state(node).flat_state().paths == (("w",),)
    for _ in range(3):
        node.items["s"] = gc.Param(2)
        assert gc.state(node).flat_state().paths == (("s",), ("w",))
        node.items["s"] = "km"
        assert gc.merge(*gc.split(node)).items["s"] == "km"


def test_a_static_value_that_refuses_to_be_compared_is_no_error():
    class Refusing:
        def __init__(self):
            self.error = None

        def __hash__(self):
            if self.error is not None:
                raise self.error
            return 1

    node = gc.Dict(w=gc.Param(1), s=[Refusing()])
    plan = plan_of(node)
    node.s[0].error = TypeError("not now")
    assert plan_of(node) is not plan


class Moody:
    """Equals all of its kind until it refuses to be compared."""

    refuses = False

    def __eq__(self, other):
        if self.refuses:
            raise TypeError("not now")
        return type(other) is Moody

    def __hash__(self):
        return hash(self.refuses)


class MoodyBag(zoo.Bag):
    pass


gc.register_graph_node_type(
    MoodyBag,
    flatten=lambda bag: (sorted(bag.items.items()), Moody()),
    set_key=lambda bag, key, child: bag.items.__setitem__(key, child),
    pop_key=lambda bag, key: bag.items.pop(key),
    create_empty=lambda metadata: MoodyBag(),
    clear=lambda bag: bag.items.clear(),
    init=lambda bag, pairs: bag.items.update(pairs),
)


def test_what_refuses_to_be_compared_hides_no_change(monkeypatch):
    inner = MoodyBag()
    inner.items["w"] = gc.Param(1)
    node = gc.Dict(a=inner)
    for _ in range(3):
        assert gc.variables(node).flat_state().paths == (("a", "w"),)
    monkeypatch.setattr(Moody, "refuses", True)
    inner.items["v"] = inner.items.pop("w")
    assert gc.variables(node).flat_state().paths == (("a", "v"),)


@pytest.mark.parametrize(
    "capture",
    [
        lambda root: lambda: root,
        lambda root: lambda x=root: x,
        lambda root: lambda *, x=root: x,
        lambda root: functools.partial(abs, root),
        lambda root: functools.partial(abs, x=[root]),
        lambda root: types.MethodType(repr, (1, root)),
    ],
)
def test_a_foreign_root_that_a_static_function_captures_is_freed(capture):
    root = shelf(w=gc.Param(1))
    root.items["f"] = capture(root)
    for _ in range(2):
        gc.graphdef(root)
    alive = weakref.ref(root)
    del root
    garbage.collect()
    assert alive() is None


@pytest.mark.parametrize(
    "make",
    [
        lambda: bag(w=gc.Param(1)),
        lambda: bag(w=jnp.ones(2), s={1}),
        lambda: shelf(inner=bag(w=zoo.Cell(1))),
        lambda: zoo.Cell(1),
    ],
)
def test_a_foreign_root_is_freed(make):
    root = make()
    for _ in range(2):
        plan_of(root)
    alive = weakref.ref(root)
    del root
    garbage.collect()
    assert alive() is None


def test_a_plan_that_is_used_often_is_arranged_for_it_once():
    node = gc.Dict(a=gc.Param(1))
    with mock.patch.object(
        watching, "copies_side_by_side", wraps=watching.copies_side_by_side
    ) as arrange:
        for _ in range(3):
            plan_of(node)
        assert not arrange.called
        for _ in range(30):
            plan_of(node)
    assert arrange.call_count == 1


def test_static_values_whose_hashes_are_equal_are_told_apart():
    node = gc.Dict(w=gc.Param(1), s=[-1], t={-1})
    before = gc.graphdef(node)
    node.s[0] = -2
    assert hash(-1) == hash(-2)
    between = gc.graphdef(node)
    assert between != before
    node.t.remove(-1)
    node.t.add(-2)
    assert gc.graphdef(node) != between


def test_the_plan_of_a_root_inside_another_one_is_not_looked_at():
    inner = gc.Dict(a=gc.Param(1))
    roots = [gc.Dict(inner=inner, b=gc.Param(2)), inner]
    for order in (roots, roots[::-1]):
        joint, known = joint_of(order)
        for plan in known:
            plan.holds = mock.Mock(wraps=plan.holds)
        assert joint_of(order)[0] is joint
        asked = [call.args[0] for plan in known for call in plan.holds.call_args_list]
        assert asked == roots[:1]
        inner.c = gc.Param(3)  # what happens to it is seen all the same
        assert joint_of(order)[0] is not joint
        del inner.c


def test_a_foreign_root_of_a_trace_is_not_kept():
    def f(x):
        root = shelf(w=gc.Param(x))
        assert plan_of(root) is not plan_of(root)
        return x

    jax.jit(f)(1.0)


def test_a_child_that_a_foreign_node_has_anew_is_seen():
    inner = bag(w=gc.Param(1))
    node = gc.Dict(a=inner)
    for _ in range(3):
        assert gc.variables(node).a.w is inner.items["w"]
        inner.items["w"] = gc.Param(1)


def test_metadata_that_is_what_it_was_leaves_the_plan():
    node = gc.Dict(w=gc.Param(1, unit="m"))
    plan = plan_of(node)
    node.w.unit = "s"
    node.w.unit = "m"
    assert plan_of(node) is plan


def test_of_what_containers_tell_nothing_is_looked_at_again():
    node = gc.Dict(a=[gc.Param(1), (gc.Param(2), None)], b={"c": (1, "x")}, d=None)
    for _ in range(20):
        plan_of(node)
    names = []

    def note(frame, event, argument):
        if event == "call":
            names.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        plan_of(node)
    finally:
        sys.setprofile(None)
    assert names[:2] == ["plan_of", "kept_plan"]
    assert not [name for name in names if name == "walk" or name.endswith("_hold")]


def test_arrays_in_tuples_are_values_and_what_is_beside_them_is_not():
    node = gc.Dict(t=((jnp.ones(2), "s"), 1))
    plan = plan_of(node)
    vars(node)["t"] = ((jnp.zeros(3), "s"), 1)  # as a transformation writes it
    assert plan_of(node) is plan
    for other in ((jnp.zeros(3), "z"), 1), ((jnp.zeros(3), "s"), 2), ((2, "s"), 1):
        vars(node)["t"] = other
        assert plan_of(node).definition == fresh(node)[0] != plan.definition


def test_metadata_of_a_foreign_variable_may_hold_what_can_change():
    cell = zoo.Cell(1, {"notes": [1]})
    node = gc.Dict(a=cell)
    before = gc.graphdef(node)
    cell.notes["notes"].append(2)
    assert gc.graphdef(node) != before


def test_a_plan_that_failed_for_a_container_holds_for_others_of_its_structure():
    node = gc.Dict(p={"w": jnp.ones(2), "l": [jnp.ones(2)], "name": "a"})
    first, arrays = plan_of(node), []

    def replace(**more):
        arrays.append(weakref.ref(node.p["w"]))
        made = {"w": jnp.ones(2), "l": [jnp.ones(2)], "name": "a", **more}
        node._node__container_of("p")["p"] = made  # as jit does: not through the node

    replace()
    second = plan_of(node)
    assert second is not first
    first = None
    for _ in range(2):
        replace()
        assert plan_of(node) is second
    garbage.collect()
    assert not any(array() for array in arrays)
    for change in (
        lambda: replace(name="b"),
        lambda: replace(more=jnp.ones(2)),
        lambda: node.p["l"].append(jnp.ones(2)),
        lambda: node.p.update(w=1.0),
    ):
        change()
        assert plan_of(node) is not second
        assert plan_of(node).definition == gc.split(node)[0]
        second = plan_of(node)


def test_a_plan_holds_for_other_containers_of_many_arrays_of_the_same_structure():
    def made(count=9, **more):
        return {"l": [jnp.ones(2) for _ in range(count)], "name": "a", **more}

    node = gc.Dict(p=made())
    first = plan_of(node)
    for _ in range(2):
        node._node__container_of("p")["p"] = made()  # as jit does: not through the node
        assert plan_of(node) is first
    for other in (made(10), made(name="b"), made(more=jnp.ones(2)), made(l=[1.0] * 9)):
        node._node__container_of("p")["p"] = other
        assert plan_of(node) is not first
        assert plan_of(node).definition == fresh(node)[0]
        first = plan_of(node)


class Config:
    def __init__(self, **fields):
        vars(self).update(fields)

    def __eq__(self, other):
        return vars(self) == vars(other)


def config():
    inner = types.SimpleNamespace(depth=2, names=["a"])
    more = {"lr": 0.1, "shape": (1, [2]), "table": {"b": 1, "d": 1, 1: 1}}
    more["flags"] = {"x": None, "y": None}
    more |= {"pair": Pair([1], [2]), "slotted": Slotted([1], [2]), "words": {"a", 1}}
    more |= {"queue": collections.deque([[1], [2]]), "own": OwnDict(a=[1], b=[2])}
    more["lists"] = collections.defaultdict(list, {"a": [1], "b": [2]})
    more["ordered"] = collections.OrderedDict(a=[1], b=[2])
    more["own"].unit = "s"
    return Config(width=1, inner=inner, **more)


class Pair(NamedTuple):
    first: list
    second: list


@dataclasses.dataclass(slots=True)
class Slotted:
    first: list
    second: list


class OwnDict(dict):
    pass


def moved(old, new):
    """Moves an item from one list to another that comes after it."""
    new.insert(0, old.pop())


class OtherConfig(Config):
    pass


IN_PLACE = {
    "an equal number of another type": lambda c: setattr(c, "width", True),
    "a number": lambda c: setattr(c, "lr", 0.2),
    "another attribute": lambda c: setattr(c, "more", None),
    "one attribute less": lambda c: delattr(c, "lr"),
    "the name of an attribute": lambda c: vars(c).update(x=vars(c).pop("lr")),
    "within an object": lambda c: setattr(c.inner, "depth", 3),
    "within a list": lambda c: c.inner.names.append("b"),
    "within a tuple": lambda c: c.shape[1].append(3),
    "a key": lambda c: c.table.update(c=c.table.pop("b")),
    "the type of a key": lambda c: c.table.update({True: c.table.pop(1)}),
    "the order": lambda c: c.table.update(b=c.table.pop("b")),
    "the order of names": lambda c: c.flags.update(x=c.flags.pop("x")),
    "the class": lambda c: setattr(c, "__class__", OtherConfig),
    "all attributes": lambda c: setattr(c, "__dict__", {"width": 1}),
    "an attribute to what is looked into": lambda c: setattr(c, "lr", {1, 2}),
    "within a named tuple": lambda c: c.pair.first.append(3),
    "from one list to the next": lambda c: moved(*c.pair),
    "a slot": lambda c: setattr(c.slotted, "first", [3]),
    "which slot is empty": lambda c: delattr(c.slotted, "second"),
    "within a slot": lambda c: c.slotted.second.append(3),
    "a set": lambda c: c.words.add("b"),
    "the type of a member": lambda c: (c.words.remove(1), c.words.add(True)),
    "a queue": lambda c: c.queue.rotate(),
    "within a queue": lambda c: c.queue[0].append(3),
    "what a dict makes": lambda c: setattr(c.lists, "default_factory", dict),
    "an entry that a dict makes": lambda c: c.lists["c"],
    "an ordered dict": lambda c: c.ordered.move_to_end("a"),
    "a dict of one's own": lambda c: c.own.update(c=3),
    "an attribute of a dict": lambda c: setattr(c.own, "unit", "m"),
    "its order": lambda c: c.own.update(a=c.own.pop("a")),
}


@pytest.mark.parametrize("change", IN_PLACE.values(), ids=IN_PLACE)
def test_a_change_in_a_static_configuration_is_seen(change):
    node = gc.Dict(a=gc.Dict(w=gc.Param(1)))
    node.a.config = config()
    for _ in range(2):
        before = plan_of(node)
    change(node.a.config)
    after = plan_of(node)
    assert after is not before and after.own != before.own
    assert after.definition == fresh(node)[0]
    assert plan_of(node) is after
    other = config()
    change(other)
    node.a.config = other
    assert plan_of(node).definition == after.definition


@pytest.mark.parametrize(
    ("base", "items"),
    [
        (list, [[1]]),
        (tuple, [[1]]),
        (collections.deque, [[1]]),
        (dict, {0: [1]}),
        (collections.OrderedDict, {0: [1]}),
        (collections.UserList, [[1]]),
        (collections.UserDict, {0: [1]}),
    ],
)
def test_a_change_within_a_container_of_ones_own_is_seen(base, items):
    kind = type(base.__name__, (base,), {"__hash__": None})
    node = gc.Dict(w=gc.Param(1), config=kind(items))
    for _ in range(3):
        before = plan_of(node)
    node.config[0].append(2)
    assert plan_of(node) is not before
    assert plan_of(node).definition == fresh(node)[0] != before.definition


def test_a_static_configuration_with_equal_content_leaves_the_plan():
    node = gc.Dict(w=gc.Param(1), config=config())
    before = plan_of(node)
    for _ in range(3):
        node.config.inner.names = ["a"]
        node.config.lr = float("0.1")
        assert plan_of(node) is before
    for _ in range(20):
        plan_of(node)
    names = []
    sys.setprofile(lambda frame, event, _: names.append(frame.f_code.co_name))
    try:
        plan_of(node)
    finally:
        sys.setprofile(None)
    assert "content_key" not in names


def test_the_number_of_kept_combinations_is_bounded():
    node = gc.Dict(a=gc.Param(1))
    for _ in range(50):
        joint_of((node, gc.Dict(b=gc.Param(2))))
    assert 1 < len(plan_of(node).combined) <= 17


def test_what_left_a_graph_with_foreign_nodes_is_freed_at_once():
    garbage.disable()
    try:
        node = gc.Dict(a=shelf(w=gc.Param(1)), b=gc.Param(2))
        plan_of(node)
        alive = weakref.ref(node.a)
        del node.a
        assert alive() is None
    finally:
        garbage.enable()


def test_a_foreign_node_that_tells_its_trace_is_asked():
    class Traced:
        trace = object()

    gc.register_graph_node_type(
        Traced,
        flatten=lambda x: ([], None),
        set_key=lambda x, key, child: None,
        pop_key=lambda x, key: None,
        create_empty=lambda metadata: Traced(),
        clear=lambda x: None,
        init=lambda x, pairs: None,
        get_trace=lambda x: x.trace,
    )
    node = gc.Dict(a=Traced(), b=bag())
    _, visit = fresh(node)
    told = {id(x): trace for _, x, trace in visit.traces()}
    assert told[id(node.a)] is Traced.trace
    assert id(node.b) not in told


def test_roots_may_be_collected_while_old_plans_are_looked_through(monkeypatch):
    monkeypatch.setattr(kept_beside._Limit, "at", 10**6)
    before = garbage.get_threshold()
    garbage.collect()
    try:
        garbage.set_threshold(10**6)
        for _ in range(3_000):
            node = shelf(n=1)
            node.me = node  # only the garbage collector can tell that it is gone
            gc.graphdef(node)
        monkeypatch.setattr(kept_beside._Limit, "at", 0)
        garbage.set_threshold(garbage.get_count()[0] + 1_000)
        assert gc.graphdef(shelf(n=1)) == gc.graphdef(node)
    finally:
        garbage.set_threshold(*before)
