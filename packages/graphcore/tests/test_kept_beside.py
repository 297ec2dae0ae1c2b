"""Plans of roots of other libraries, whose static values hold graph nodes."""

import functools
import gc as garbage
import pickle
import threading
import weakref

import pytest

import graphcore as gc
from graphcore.cache.plans import make_plan, plan_of


class Box:
    """A graph node type of somebody else, with children among its attributes."""


gc.register_graph_node_type(
    Box,
    flatten=lambda box: (sorted(vars(box).items()), None),
    set_key=setattr,
    pop_key=lambda box, key: vars(box).pop(key),
    create_empty=lambda metadata: Box(),
    clear=lambda box: vars(box).clear(),
    init=lambda box, pairs: vars(box).update(pairs),
    containers=["__dict__"],
)


def box(**items):
    made = Box()
    vars(made).update(items)
    return made


HELD = {
    "cell": lambda x: lambda: x,
    "default": lambda x: lambda y=x: y,
    "partial": lambda x: functools.partial(abs, frozenset([x])),
}


def held(capture="cell", **items):
    """A root that a static function among its attributes holds."""
    root = box(n=1, w=gc.Param(1), inner=box(v=gc.Param(2)), **items)
    root.build = HELD[capture](root)
    return root


@pytest.fixture
def no_collector():
    garbage.collect()
    garbage.disable()
    yield
    garbage.enable()


@pytest.mark.parametrize("capture", HELD)
def test_a_root_that_its_definition_holds_has_its_plan_as_long_as_that_one(capture):
    root = held(capture)
    definition = gc.graphdef(root)
    number = plan_of(root).number
    garbage.collect()
    assert plan_of(root).number == number
    assert vars(root).keys() == {"n", "w", "inner", "build"}
    alive = weakref.ref(root)
    del root
    garbage.collect()
    assert alive() is not None  # the definition has the function, and that has it
    del definition
    garbage.collect()
    assert alive() is None


def remove(root):
    del root.inner


@pytest.mark.parametrize(
    "edit",
    [
        lambda root: setattr(root, "n", True),
        lambda root: setattr(root.inner, "v", gc.BatchStat(2)),
        lambda root: setattr(root.inner, "more", gc.Param(3)),
        lambda root: setattr(root.w, "sharding", ("x",)),
        lambda root: setattr(root, "w", root.inner.v),
        lambda root: setattr(root, "build", lambda: root),
        remove,
    ],
)
def test_edits_of_a_root_that_its_definition_holds_are_seen(edit):
    root = held()
    definitions = [gc.graphdef(root)]
    edit(root)
    definitions.append(gc.graphdef(root))
    plan = plan_of(root)
    assert definitions[0] != definitions[1] == plan.definition
    assert [*map(id, plan.variables)] == [*map(id, make_plan(root).variables)]
    assert plan_of(root).number == plan.number


@pytest.mark.parametrize("into", [gc.Param(3), gc.BatchStat(3), gc.Dict(a=1)])
def test_what_left_a_root_that_its_definition_holds_goes_at_the_next_use(
    no_collector, into
):
    root = held()
    definition = gc.graphdef(root)
    left = weakref.ref(root.w)
    root.w = into
    assert (gc.graphdef(root) == definition) == isinstance(into, gc.Param)
    assert left() is None


def test_roots_of_the_same_definition_have_plans_of_their_own():
    roots = [box(w=gc.Param(n)) for n in range(2)]
    both = functools.partial(abs, frozenset(roots))
    for root in roots:
        root.build = both
    kept = gc.graphdef(roots[0])
    for _ in range(2):
        for root in roots:
            plan = plan_of(root)
            assert plan.definition == kept and plan.variables == [root.w]


def test_a_static_value_that_holds_an_inner_node_leaves_the_plan():
    inner = box(v=gc.Param(1))
    root = box(inner=inner, build=lambda: inner)
    number = plan_of(root).number
    garbage.collect()
    assert plan_of(root).number == number
    alive = weakref.ref(root)
    del root
    assert alive() is None  # at once


def test_a_static_value_that_holds_another_graph_keeps_no_root():
    def planned():
        other = box()
        other.root = root = box(w=gc.Param(1), build=lambda: other)
        plan_of(root)
        return weakref.ref(root)

    alive = planned()
    garbage.collect()
    assert alive() is None


def test_a_pickled_definition_is_without_the_plan():
    root = box(w=gc.Param(1))
    root.build = functools.partial(Box, frozenset([root]))
    definition = gc.graphdef(root)
    before = pickle.dumps(definition)
    plan_of(root)
    assert pickle.dumps(definition) == before


def test_threads_that_edit_and_describe_a_root_that_its_definition_holds():
    root, wrong = held(), []
    definitions = [gc.graphdef(root)]

    def work(number):
        for step in range(200):
            if number == 0:
                root.n = step % 3
            found = plan_of(root)
            if [*map(id, found.variables)] != [id(root.inner.v), id(root.w)]:
                wrong.append(found)
            definitions.append(gc.graphdef(root))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and len({*definitions}) <= 4
    assert plan_of(root).definition == gc.graphdef(root)
