"""What objects refer to is the same exactly if every reference is."""

import types

import pytest
from hypothesis import given
from hypothesis import strategies as st

import graphcore as gc
from graphcore.cache import identities
from graphcore.cache.identities import Identities


class Slotted:
    __slots__ = ("held",)

    def __init__(self, held):
        self.held = held


class Asked:
    def __init__(self, held):
        self._held = [held]

    held = property(lambda self: self._held[0])


class Box:
    def __init__(self, **attributes):
        vars(self).update(attributes)


class OtherBox(Box):
    pass


@pytest.fixture(params=["direct", "portable"], autouse=True)
def reader(request, monkeypatch):
    if request.param == "direct" and not identities._is_known:
        pytest.skip("not on this interpreter")
    monkeypatch.setattr(
        identities, "_reader", getattr(identities, f"_{request.param}_reader")
    )


EQUALS = [1, True, 1.0, 0, False, None, "a", (1,), (True,)]


@given(
    before=st.lists(st.sampled_from(EQUALS), min_size=1),
    place=st.integers(min_value=0),
    value=st.sampled_from(EQUALS),
    is_dict=st.booleans(),
)
def test_one_reference_is_replaced(before, place, value, is_dict):
    place %= len(before)
    box = Box(held=dict(enumerate(before)) if is_dict else list(before))
    seen = Identities([(box, ("__dict__",))], [vars(box), box.held])
    assert seen.hold()
    old = box.held[place]
    box.held[place] = value
    assert seen.hold() == (value is old)
    box.held[place] = old
    assert seen.hold()


EDITS = {
    "another class": lambda x: setattr(x, "__class__", OtherBox),
    "another container": lambda x: setattr(x, "__dict__", dict(vars(x))),
    "a new child": lambda x: setattr(x, "b", None),
    "a child less": lambda x: delattr(x, "a"),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_edits_of_a_node(edit):
    box = Box(a=1)
    seen = Identities([(box, ("__dict__",))], [vars(box)])
    assert seen.hold()
    edit(box)
    assert not seen.hold()


@pytest.mark.parametrize("kind", [Slotted, Asked])
def test_containers_wherever_an_object_has_them(kind):
    x = kind([1])
    seen = Identities([(x, ("held",))], [x.held])
    assert seen.hold()
    if kind is Slotted:
        x.held = [1]
    else:
        x._held[0] = [1]
    assert not seen.hold()


def test_a_dict_in_the_place_of_the_dict_that_holds_it():
    box = Box(a={"b": 1})
    seen = Identities([(box, ("__dict__",))], [vars(box)])
    box.__dict__ = box.a
    assert not seen.hold()


def test_nothing_is_asked_that_the_collector_lists():
    # From Python 3.13 on it lists attributes with their object, not with `__dict__`.
    boxes = [Box(a=i, b=object(), c=[i]) for i in range(3)]
    nodes = [(box, ("__dict__",)) for box in boxes]
    seen = Identities(nodes, [c for box in boxes for c in (vars(box), box.c)])
    assert not seen._getters
    assert not seen._containers
    boxes[1].b = object()
    assert not seen.hold()


def test_attributes_of_an_object_that_is_not_among_the_nodes():
    # The root of a plan, which must not be kept alive.
    box, other = Box(a=1), Box(a=1, b=2)
    seen = Identities([(other, ("__dict__",))], [vars(box), vars(other)])
    assert seen.hold()
    box.a = True
    assert not seen.hold()


def test_what_is_apart_may_change():
    one, other, held = object(), object(), [1, 2]
    held.append(one)
    seen = Identities([], [held], apart={id(one)})
    held[2] = other
    assert seen.hold()
    held[1] = 2.0
    assert not seen.hold()


def test_a_container_that_the_collector_does_not_go_through(monkeypatch):
    monkeypatch.setattr(
        identities,
        "gc",
        types.SimpleNamespace(get_referents=lambda *objects: []),
    )
    box = Box(a=1)
    seen = Identities([(box, ("__dict__",))], [vars(box)])
    assert seen.hold()
    box.a = True
    assert not seen.hold()


def test_what_is_listed_anew_each_time():
    box = Box(a=1)
    seen = Identities([], [], [lambda: [box.a]])
    assert seen.hold()
    box.a = True
    assert not seen.hold()


def test_where_there_is_nothing_to_compare():
    empty, held = {}, [object()]
    seen = Identities([], [empty]), Identities([], [held], apart={id(held[0])})
    assert all(each.hold() for each in seen)
    empty["a"], held[:] = 1, []
    assert not any(each.hold() for each in seen)


def test_a_node_without_attributes():
    class Empty:
        pass

    gc.register_graph_node_type(
        Empty,
        flatten=lambda node: (sorted(vars(node).items()), None),
        set_key=setattr,
        pop_key=lambda node, key: vars(node).pop(key),
        create_empty=lambda metadata: Empty(),
        clear=lambda node: vars(node).clear(),
        init=lambda node, pairs: vars(node).update(pairs),
        containers=("__dict__",),
    )
    node = Empty()
    assert gc.graphdef(node) == gc.graphdef(node)
    node.a = gc.Param(1)
    assert gc.state(node).a.value == 1
