"""What Python calls equal is not always the same: neither is what is kept for it."""

import collections
import collections.abc
import dataclasses
import datetime as dt
import decimal
import enum
import functools
import types

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import graphcore as gc
from graphcore.authors import enter


class Tagged(tuple):
    pass


class Name(enum.StrEnum):
    TEXT = "text"


Pair = collections.namedtuple("Pair", "a b")


@dataclasses.dataclass(frozen=True)
class Scale:
    by: object
    note: str = dataclasses.field(default="", compare=False)


@dataclasses.dataclass(frozen=True)
class Rough:
    """Equal by what it says itself."""

    by: float

    def __eq__(self, other):
        return isinstance(other, Rough) and round(self.by) == round(other.by)

    def __hash__(self):
        return hash(round(self.by))


def at(hour, *, east):
    return dt.datetime(2020, 1, 1, hour, tzinfo=dt.timezone(dt.timedelta(hours=east)))


ALIKE = [
    (Tagged((1,)), Tagged((1.0,))),
    ((Pair(1, 2),), (Pair(True, 2),)),
    (range(0, 3, 2), range(0, 4, 2)),
    (decimal.Decimal("1.0"), decimal.Decimal("1.00")),
    (at(12, east=0), at(13, east=1)),
    (np.datetime64("2020-01-01", "D"), np.datetime64("2020-01-01", "s")),
    (Scale(1), Scale(1.0)),
    (Scale(0.0), Scale(-0.0)),
    (Scale((1, Scale(True))), Scale((1, Scale(1)))),
    (types.MappingProxyType({"a": 1}), types.MappingProxyType({"a": True})),
    (slice(0, 1), slice(False, 1.0)),
]


def shown(x):
    return [type(x), repr(x)]


@pytest.mark.parametrize(("a", "b"), ALIKE, ids=repr)
def test_a_copy_has_the_static_value_of_its_model_and_not_an_equal_one(a, b):
    assert a == b or isinstance(a, slice)
    one, other = gc.Dict(x=a), gc.Dict(x=b)
    for node, value in ((one, a), (other, b), (one, a)):
        assert shown(gc.merge(*gc.split(node)).x) == shown(value)
    assert gc.graphdef(one) != gc.graphdef(other)
    assert gc.graphdef(one) == gc.graphdef(gc.Dict(x=a))
    assert [d.kind for d in gc.diff(one, other)] == ["static"]


def test_values_decide_themselves_what_they_equal():
    assert gc.graphdef(gc.Dict(x=Rough(1.1))) == gc.graphdef(gc.Dict(x=Rough(1.2)))
    pair = Scale(1, note="a"), Scale(1, note="b")
    assert gc.graphdef(gc.Dict(x=pair[0])) == gc.graphdef(gc.Dict(x=pair[1]))


def test_a_static_part_of_a_pytree_is_compared_with_its_type():
    assert gc.Static(1) != gc.Static(True) and gc.Static(1) == gc.Static(1)
    assert gc.Static((float("nan"),)) == gc.Static((float("nan"),))


def keys_in(holder):
    return [(type(key), value.value) for key, value in holder.inner.items()]


@pytest.mark.parametrize("keys", [(1, True), ("text", Name.TEXT), ((1,), (1.0,))])
@pytest.mark.parametrize("kind", [dict, gc.Dict])
def test_keys_that_are_equal_are_not_the_same(keys, kind):
    if kind is gc.Dict and type(keys[0]) is tuple:
        return  # it takes no such keys
    holders = [gc.Dict(inner=kind({key: gc.Param(1.0)})) for key in keys]
    for holder, key in zip(holders * 2, keys * 2, strict=True):
        assert keys_in(gc.clone(holder)) == [(type(key), 1.0)]
        assert enter(keys_in, (holder,)).body.structure.joint.definitions == (
            gc.graphdef(holder),
        )
    assert gc.graphdef(holders[0]) != gc.graphdef(holders[1])
    (found,) = gc.diff(*holders)
    assert (found.path, found.kind) == (("inner",), "keys")
    assert [*map(shown, found.old + found.new)] == [*map(shown, keys)]


@pytest.mark.parametrize("keys", [(1, True), ("text", Name.TEXT)])
def test_keys_in_a_structure_that_is_met_often_are_told_from_equal_ones(keys):
    for key in (keys[0], keys[0], *keys, *keys):
        made = gc.clone(gc.Dict(inner=gc.Dict({key: gc.Param(1.0)})))
        assert keys_in(made) == [(type(key), 1.0)]


def test_a_key_that_takes_the_place_of_an_equal_one_is_seen():
    holder = gc.Dict(inner={1: gc.Param(1.0)})
    for key in (1, True, 1):
        holder.inner[key] = holder.inner.pop(1)
        assert keys_in(gc.clone(holder)) == [(type(key), 1.0)]


class Layer(gc.Object):
    def __init__(self, w):
        self.w = gc.Param(w)


class Greedy(Layer):
    """Equal to every layer; and Python asks a subclass first."""

    def __eq__(self, other):
        return isinstance(other, Layer)

    __hash__ = object.__hash__


class GreedyParam(gc.Param):
    def __eq__(self, other):
        return isinstance(other, gc.Param)

    __hash__ = object.__hash__


@pytest.mark.parametrize("change", ["in a list", "in a dict", "past the object"])
def test_a_child_that_claims_to_equal_the_one_before_is_another_one(change):
    model = gc.Dict(layers=[Layer(1.0)], named={"a": Layer(1.0)}, child=Layer(1.0))
    assert gc.state(model).layers[0].w.value == 1.0
    greedy = Greedy(2.0)
    if change == "in a list":
        model.layers[0] = greedy
    elif change == "in a dict":
        model.named["a"] = greedy
    else:
        vars(model)["child"] = greedy
    found = gc.state(model)
    values = found.layers[0].w, found.named["a"].w, found.child.w
    assert sorted(x.value for x in values) == [1.0, 1.0, 2.0]
    assert greedy == Layer(3.0) and Layer(3.0) == greedy


def test_a_variable_that_claims_to_equal_the_one_before_is_another_one():
    model = gc.Dict(layers=[gc.Param(1.0)])
    assert gc.state(model).layers[0].value == 1.0
    model.layers[0] = GreedyParam(2.0)
    assert gc.state(model).layers[0].value == 2.0


class Cell:
    """Hashable by content, and changed in place nevertheless."""

    def __init__(self, n):
        self.n = n

    def __eq__(self, other):
        return isinstance(other, Cell) and self.n == other.n

    def __hash__(self):
        return hash(self.n)


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["w", "leaf"], meta_fields=["field"]
)
@dataclasses.dataclass(frozen=True)
class Functional:
    w: object
    leaf: object
    field: object


gc.register_filtered_type(Functional, immutable=True)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 4)), max_size=6))
def test_a_static_part_that_is_changed_in_place_is_seen(edits):
    cells = Cell(2), Cell(3)
    module = Functional(jnp.array(1.0), *cells)
    holder = gc.Dict(part=gc.Param(module))

    def inside(holder, module):
        parts = holder.part.value, module
        return [(part.leaf.n, part.field.n) for part in parts]

    for which, n in [(True, 2), *edits]:
        cells[which].n = n
        entry = enter(inside, (holder, module))
        now = tuple(cell.n for cell in cells)
        assert entry.body(*entry.values)[1] == [now, now]
        same = enter(inside, (holder, module))
        assert same.body is entry.body


@dataclasses.dataclass
class Marked:
    tag: str


def test_a_tag_is_that_of_the_variable_and_not_of_its_value():
    class Slow(gc.Param):
        tag = "slow"

    node = gc.Dict(
        a=gc.Param(1, tag="slow"), b=gc.Param(Marked("slow")), c=Slow(Marked("fast"))
    )
    assert sorted(gc.state(node, "slow")) == ["a", "c"]
    node.b.value.tag = "fast"
    assert sorted(gc.state(node, "slow")) == ["a", "c"]


def test_filters_are_asked_in_the_order_in_which_they_stand():
    def is_large(path, x):
        return x.value > 1  # which only numbers can tell

    class Text(gc.Variable):
        pass

    node = gc.Dict(a=gc.Param(2), b=Text("words"), c=gc.Param(1))
    for _ in range(9):  # filters that are functions have other addresses each time
        checks = [lambda path, x, f=is_large: f(path, x) for _ in range(5)]
        assert list(gc.state(node, gc.All(gc.Param, *checks))) == ["a"]
        assert list(gc.state(node, gc.Any(Text, *checks))) == ["a", "b"]
    assert gc.All(gc.Param, is_large) == gc.All(is_large, gc.Param)


@dataclasses.dataclass(frozen=True)
class Unset:
    name: str
    later: int = dataclasses.field(init=False)

    def __hash__(self):
        return hash(self.name)


class Lazy(collections.abc.Mapping):
    """A mapping of what may not be there."""

    def __getitem__(self, key):
        raise FileNotFoundError(key)

    def __iter__(self):
        return iter(["a"])

    def __len__(self):
        return 1

    def __eq__(self, other):
        return self is other

    __hash__ = object.__hash__


@pytest.mark.parametrize("value", [Unset("a"), Lazy()], ids=["field", "mapping"])
def test_what_does_not_show_what_it_holds_is_compared_as_it_says(value):
    node = gc.Dict(x=value)
    assert gc.graphdef(node) == gc.graphdef(gc.Dict(x=value))
    assert gc.clone(node).x is value
    assert gc.graphdef(node) != gc.graphdef(gc.Dict(x=type(value)))


@dataclasses.dataclass(frozen=True)
class Apart:
    """Has a hash by a part of what it holds."""

    n: int
    rest: list = dataclasses.field(default_factory=list, hash=False)


def test_what_has_a_hash_is_hashable():
    record = np.zeros(1, [("a", "i4")])[0]  # has none: it can be written
    assert len({gc.graphdef(gc.Dict(x=Apart(n, [n]))) for n in (1, 1, 2)}) == 2
    with pytest.raises(TypeError, match="not hashable"):
        hash(gc.graphdef(gc.Dict(x=record)))


def test_dataclasses_compare_by_their_own_fields():
    @dataclasses.dataclass
    class Base(gc.Object):
        x: int

        def __eq__(self, other):
            return isinstance(other, Base)

    @dataclasses.dataclass
    class Derived(Base):
        y: int

    assert Base(1) == Base(2) and Derived(1, 2) == Derived(1, 2) != Derived(1, 3)


def test_classes_with_an_equality_of_their_own_are_pickled_by_value():
    namespace = {"__module__": "__main__", "__eq__": lambda a, b: type(a) is type(b)}
    kind = type("Local", (gc.Object,), namespace)
    kind.__qualname__ = "not.to.be.found"
    made = cloudpickle.loads(cloudpickle.dumps(kind()))
    assert type(made).__name__ == "Local" and made == type(made)()
