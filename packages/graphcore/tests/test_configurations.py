"""Configurations of classes that treat attributes in ways of their own.

After those of the packages that people keep settings in: dicts whose items are
attributes, that make what they don't have, that know what holds them.
"""

import copy
import dataclasses
import functools
import sys
import types

import pytest

import graphcore as gc
from graphcore.cache.plans import plan_of


class Named(dict):
    """Raises an error of its own for an attribute that it does not have."""

    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__


class Endless(dict):
    """Has whatever it is asked for, made anew each time."""

    def __missing__(self, key):
        return Endless()

    __getattr__ = dict.__getitem__


class Growing(dict):
    """Keeps what it was asked for, as long as it is not special."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self.setdefault(name, Growing())


class Shown(dict):
    """Shows a copy of its items as its attributes."""

    times = 0

    @property
    def __dict__(self):
        Shown.times += 1
        return {key: copy.copy(value) for key, value in self.items()}


class Listed(dict):
    """Lists its items in a way of its own."""

    times = 0

    def __iter__(self):
        Listed.times += 1
        return iter(sorted(self.keys()))

    def items(self):
        return [(key, self[key]) for key in self]


KINDS = [Named, Endless, Growing, Shown, Listed]


def config(kind):
    return kind(width=1, inner=kind(names=["a"], depth=2))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "change",
    [
        lambda c: c.update(width=2),
        lambda c: c.update(more=2),
        lambda c: c.pop("width"),
        lambda c: c["inner"].update(depth=3),
        lambda c: c["inner"]["names"].append("b"),
    ],
)
def test_a_change_is_seen_and_nothing_else_is_one(kind, change):
    node = gc.Dict(w=gc.Param(1), config=config(kind))
    before = gc.graphdef(node)
    plan = plan_of(node)
    for _ in range(3):
        assert plan_of(node) is plan
        assert before == gc.graphdef(gc.Dict(w=gc.Param(1), config=config(kind)))
    assert [*dict.items(node.config)] == [*dict.items(config(kind))]
    change(node.config)
    assert gc.graphdef(node) != before
    other = config(kind)
    change(other)
    assert gc.graphdef(node) == gc.graphdef(gc.Dict(w=gc.Param(1), config=other))
    assert type(gc.merge(*gc.split(node)).config) is kind


@pytest.mark.parametrize("kind", [Shown, Listed])
def test_a_plan_holds_without_a_look_at_what_a_class_makes_of_its_items(kind):
    node = gc.Dict(w=gc.Param(1), config=config(kind))
    for _ in range(3):
        plan_of(node)
    times = kind.times
    for _ in range(10):
        plan_of(node)
    assert kind.times == times


@pytest.mark.parametrize("at_first", [{}, {"unit": "m"}], ids=["none", "one"])
def test_an_attribute_beside_the_items_is_seen_whatever_the_class_calls_so(at_first):
    def made(**attributes):
        found = config(Shown)
        for name, value in attributes.items():
            object.__setattr__(found, name, value)
        return gc.Dict(w=gc.Param(1), config=found)

    node = made(**at_first)
    for _ in range(3):
        before = gc.graphdef(node)
    assert before == gc.graphdef(made(**at_first))
    for value in ("s", "kg", ["kg"]):
        object.__setattr__(node.config, "unit", value)
        assert gc.graphdef(node) != before
        before = gc.graphdef(node)
        assert before == gc.graphdef(made(unit=value))
    value.append("s")
    assert gc.graphdef(node) != before


@pytest.mark.parametrize("kind", KINDS)
def test_printing_asks_a_static_value_for_nothing(kind):
    node = gc.Dict(config=config(kind))
    assert "names" in repr(node) and "names" in repr(gc.graphdef(node))
    assert [*dict.items(node.config)] == [*dict.items(config(kind))]


class Setting:
    """Equals others by its value, and knows what it is a part of."""

    def __init__(self, value, parent):
        self.value, self.parent = value, parent

    def __eq__(self, other):
        return isinstance(other, Setting) and self.value == other.value

    def __hash__(self):
        return hash(self.value)


class Settings:
    """Knows its parts, and has no hash."""

    def __init__(self, values):
        self.parts = [Setting(value, self) for value in values]

    def __eq__(self, other):
        return isinstance(other, Settings) and self.parts == other.parts


def calls_of(function):
    calls = []
    sys.setprofile(lambda frame, event, _: event == "call" and calls.append(frame))
    try:
        function()
    finally:
        sys.setprofile(None)
    return len(calls)


def test_the_work_grows_with_the_size_where_each_part_knows_the_whole():
    nodes = [gc.Dict(config=Settings(range(count))) for count in (20, 20, 40, 80)]
    _, small, _, large = (calls_of(functools.partial(plan_of, x)) for x in nodes)
    assert large < 6 * small
    nodes[-1].config.parts[3].value = "other"
    assert gc.graphdef(nodes[-1]) != gc.graphdef(gc.Dict(config=Settings(range(80))))


class Counted:
    """Counts how often it is looked at."""

    times = 0

    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        Counted.times += 1
        return isinstance(other, Counted) and self.value == other.value

    def __hash__(self):
        Counted.times += 1
        return hash(self.value)


@dataclasses.dataclass(eq=False)
class Twice:
    """Has each part in two places, as one that keeps a history of them."""

    now: object
    before: object

    def __eq__(self, other):
        return NotImplemented


def nested(depth):
    whole = Counted(0)
    for _ in range(depth):
        whole = Twice(whole, whole)
    return gc.Dict(w=gc.Param(1), config=whole)


def test_the_work_grows_with_the_parts_and_not_with_the_ways_to_them():
    def looks(depth):
        one, other = nested(depth), nested(depth)
        before = Counted.times
        plan_of(one), plan_of(one)
        assert gc.graphdef(one) == gc.graphdef(other)
        gc.clone(one)
        return Counted.times - before

    assert looks(12) < 3 * looks(6)
    changed = nested(6)
    plan_of(changed)
    changed.config.now.now.now.before = 1
    assert gc.graphdef(changed) != gc.graphdef(nested(6))


def test_what_is_in_several_places_equals_what_is_in_each_anew():
    once = gc.Dict(config=Twice([1], [1]))
    part = [1]
    assert gc.graphdef(gc.Dict(config=Twice(part, part))) == gc.graphdef(once)


def test_a_read_only_view_is_known_by_what_it_refers_to():
    def node(count):
        shown = {str(number): [number] for number in range(count)}
        return gc.Dict(w=gc.Param(1), config=[types.MappingProxyType(shown)]), shown

    def looks(count):
        root, _ = node(count)
        for _ in range(3):
            plan_of(root)
        return calls_of(functools.partial(plan_of, root))

    assert looks(3) == looks(100)
    for change in (lambda x: x["1"].append(0), lambda x: x.update(a=[0])):
        root, shown = node(3)
        before = gc.graphdef(root)
        plan_of(root)
        change(shown)
        assert gc.graphdef(root) != before
