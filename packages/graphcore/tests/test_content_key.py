"""A hashable stand-in for static values that can't be hashed."""

import array
import collections
import dataclasses
import gc as garbage
import types
import typing
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import graphcore as gc
from graphcore.content_key import UnhashableContent, content_key, copied

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 2), st.floats(width=16), st.text("ab")
)
contents = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.text("ab", max_size=2), inner, max_size=3),
        st.tuples(inner, inner),
        st.sets(st.integers(0, 3), max_size=3),
        st.builds(np.array, st.lists(st.floats(width=16), max_size=3)),
        st.builds(types.SimpleNamespace, x=inner),
        st.builds(
            types.MappingProxyType,
            st.dictionaries(st.text("ab", max_size=2), inner, max_size=3),
        ),
    ),
    max_leaves=8,
)


@given(contents)
def test_copies_have_the_same_stand_in(value):
    key = content_key(value)
    assert content_key(copied(value, {})) == key
    assert content_key(value, keep=True) == key
    assert hash(content_key(copied(value, {}))) == hash(key)


@given(contents, contents)
def test_what_writes_differently_has_another_one(a, b):
    # A text of every type and value in it; a set has no order.
    def written(x):
        if isinstance(x, set):
            return f"set{sorted(x)}"
        if isinstance(x, np.ndarray):
            return f"{x.dtype}{x.tobytes()}"
        if isinstance(x, list | tuple):
            return f"{type(x)}{[written(y) for y in x]}"
        if isinstance(x, dict | types.MappingProxyType):
            return f"{type(x)}{[(k, written(y)) for k, y in x.items()]}"
        if isinstance(x, types.SimpleNamespace):
            return f"ns{written(x.x)}"
        return f"{type(x)}{x!r}"

    assert (content_key([a]) == content_key([b])) == (written(a) == written(b))


class Slotted:
    __slots__ = ("__dict__", "seen")
    __hash__ = None

    def __init__(self):
        self.seen = [1]


class Named(typing.NamedTuple):
    items: list


class Hidden(array.array):
    """Its elements are in C, beside a `__dict__`."""


@dataclasses.dataclass(slots=True)
class Config:
    names: list


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (lambda: [[1], 2], lambda x: x[0].append(1)),
        (lambda: {"a": {"b": []}}, lambda x: x["a"]["b"].append(1)),
        (lambda: {"a": 1, "b": 2}, lambda x: x.update(a=x.pop("a"))),
        (lambda: [{1}], lambda x: x[0].add(2)),
        (lambda: [bytearray(b"a")], lambda x: x[0].extend(b"b")),
        (lambda: [np.zeros(2)], lambda x: x[0].__setitem__(0, -0.0)),
        (lambda: np.array([{}, None]), lambda x: x[0].update(a=1)),
        (Slotted, lambda x: x.seen.append(2)),
        (Slotted, lambda x: setattr(x, "more", [2])),
        (lambda: Named([1]), lambda x: x.items.append(2)),
        (lambda: Config([1]), lambda x: x.names.append(2)),
        (lambda: collections.deque([1]), lambda x: x.append(2)),
        (
            lambda: [collections.deque([1], maxlen=2)],
            lambda x: x.__setitem__(0, collections.deque([1])),
        ),
        (
            lambda: collections.defaultdict(list),
            lambda x: setattr(x, "default_factory", dict),
        ),
        (lambda: types.SimpleNamespace(a=[]), lambda x: x.a.append(1)),
    ],
)
def test_a_change_in_place_is_seen(make, change):
    value = make()
    before = content_key(value)
    assert content_key(value) == before == content_key(make())
    change(value)
    assert content_key(value) != before


def test_what_a_read_only_view_shows_is_copied_and_seen():
    shown = {"rate": 0.5, "inner": types.MappingProxyType({"names": ["a"]})}
    node = gc.Dict(config=types.MappingProxyType(shown))
    definition, state = gc.split(node)
    shown["inner"]["names"].append("b")
    shown["rate"] = 1.0
    assert gc.graphdef(node) != definition
    before = gc.merge(definition, state).config
    assert before == {"rate": 0.5, "inner": {"names": ["a"]}}
    assert type(before["inner"]) is types.MappingProxyType
    assert node.config["inner"]["names"] == ["a", "b"]


def test_a_view_is_of_its_mapping_which_may_look_items_up_in_its_own_way():
    class Doubled(dict):
        def __getitem__(self, key):
            return 2 * super().__getitem__(key)

    kinds = dict, Doubled, collections.OrderedDict
    assert len({content_key(types.MappingProxyType(k(a=1))) for k in kinds}) == 3
    counts = types.MappingProxyType(collections.defaultdict(list, a=[1]))
    for view in copied(counts, {}), copied([counts], {})[0]:
        assert view["a"] == [1] and view["a"] is not counts["a"]
        assert view["b"] == []


@pytest.mark.parametrize("is_first", [False, True])
def test_views_in_views_are_copied_in_any_order(is_first):
    view = types.MappingProxyType({"a": [1]})
    other = types.MappingProxyType({"view": view})
    given = (view, other) if is_first else (other, view)
    copies = copied(types.MappingProxyType({"all": given}), {})["all"]
    one, two = copies if is_first else copies[::-1]
    assert two["view"] is one is not view and one["a"] is not view["a"]


def test_a_view_of_a_mapping_that_holds_it_has_content():
    loops = [{"a": number} for number in (1, 1, 2)]
    for loop in loops:
        loop["self"] = types.MappingProxyType(loop)
    one, same, other = (content_key(loop["self"], keep=True) for loop in loops)
    assert one == same != other


def test_what_a_view_shows_is_blamed_by_its_place():
    view = types.MappingProxyType({"a": {"b": array.array("i")}})
    with pytest.raises(UnhashableContent, match=r"at 'a/b' in it is a array"):
        content_key(view)


def test_arrays_and_keys_of_jax_have_content():
    same = [content_key([jnp.arange(3), jax.random.key(1)]) for _ in range(2)]
    assert same[0] == same[1]
    assert content_key([jnp.arange(3), jax.random.key(2)]) != same[0]
    assert content_key([jnp.arange(3)]) != content_key([np.arange(3)])


class Mutable:
    """Is hashed and compared by what may change."""

    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return isinstance(other, Mutable) and self.value == other.value

    def __hash__(self):
        return hash(self.value)


@pytest.mark.parametrize("is_first", [False, True])
def test_what_was_kept_stays_so_whatever_it_was_compared_with(is_first):
    live, other = [Mutable(1)], [Mutable(1)]
    key, kept = content_key(live), content_key(other, keep=True)
    assert key == kept if is_first else kept == key
    live[0].value = other[0].value = 2
    assert kept == content_key([Mutable(1)]) != content_key(live)


def test_cycles_have_an_end():
    loops = []
    for _ in range(2):
        loop = [1]
        loop.append(loop)
        loops.append(loop)
    assert content_key(loops[0]) == content_key(loops[1])
    loops[0][0] = 2
    assert content_key(loops[0]) != content_key(loops[1])


@pytest.mark.parametrize("value", [array.array("i"), Hidden("i", [1])])
def test_what_hides_its_content_is_refused_by_its_path(value):
    node = gc.Dict(inner=gc.Dict(config=Config([{"table": value}])))
    with pytest.raises(TypeError, match=r"'inner/config'.*'names/0/table'.*immutable"):
        hash(gc.graphdef(node))
    with pytest.raises(UnhashableContent):
        content_key(value)
    with pytest.raises(TypeError, match=r"'config'.*'names/0/table'.*immutable"):
        jax.tree.structure(node.inner)


def test_a_type_can_be_declared_immutable():
    @gc.register_immutable_type
    class Table(array.array):
        pass

    one, two = (gc.Dict(config=[Table("i", [1]), Config([n])]) for n in (1, 1))
    assert hash(gc.graphdef(one)) == hash(gc.graphdef(one))
    assert gc.graphdef(one) == gc.graphdef(one)
    assert gc.graphdef(one) != gc.graphdef(two)
    table = Table("i", [1])
    same, too, other = (gc.Dict(table=t) for t in (table, table, Table("i", [1])))
    assert gc.graphdef(same) == gc.graphdef(too) != gc.graphdef(other)


@pytest.mark.parametrize("around", [lambda x: x, lambda x: (x, 1), lambda x: [x]])
def test_of_what_is_equal_by_content_and_hashed_by_identity_the_content_counts(around):
    @dataclasses.dataclass
    class Config:
        width: int

        def __hash__(self):
            return id(self)

    config = Config(3)
    node = gc.Dict(config=around(config))
    before = gc.graphdef(node)
    for _ in range(2):
        assert gc.graphdef(node) == before
        assert hash(gc.graphdef(node)) == hash(before)
    assert gc.graphdef(gc.Dict(config=around(Config(3)))) == before
    config.width = 4
    assert gc.graphdef(node) != before
    assert gc.graphdef(gc.Dict(config=around(Config(4)))) != before


class Refusing:
    """It can be hashed, and raises if it is compared with another one."""

    def __init__(self, width):
        self.width = width

    def __eq__(self, other):
        raise NotImplementedError

    def __hash__(self):
        return 1


@dataclasses.dataclass
class Tabulated:
    """It can be hashed, and equals another one by an array."""

    width: int
    table: np.ndarray = dataclasses.field(default_factory=lambda: np.ones(2))

    def __hash__(self):
        return 1


@pytest.mark.parametrize("kind", [Refusing, Tabulated])
def test_of_what_can_be_hashed_and_has_no_equality_the_content_counts(kind):
    config = kind(3)
    node = gc.Dict(config=[config], other=config)
    before = gc.graphdef(node)
    for same in node, gc.Dict(config=[kind(3)], other=kind(3)):
        assert gc.graphdef(same) == before
        assert hash(gc.graphdef(same)) == hash(before)
    config.width = 4
    assert gc.graphdef(node) != before


def test_what_can_neither_be_compared_nor_copied_equals_itself():
    class Single(Refusing):
        def __deepcopy__(self, memo):
            raise NotImplementedError

    node = gc.Dict(config=Single(3))
    assert gc.graphdef(node) == gc.graphdef(node)


def test_definitions_compare_metadata_by_content():
    values = [gc.Param(0, axes=[np.array([np.nan]), {"a"}]) for _ in range(2)]
    one, two = (gc.graphdef(gc.Dict(v=v)) for v in values)
    assert (one, hash(one)) == (two, hash(two))
    values[0].axes[1].add("b")
    assert gc.graphdef(gc.Dict(v=values[0])) != two


class Words(list):
    """A static list, with what it tells of its changes to."""


def test_what_compares_by_identity_is_not_copied():
    class Program:
        def __deepcopy__(self, memo):
            raise AssertionError("copied")

    program = Program()
    words = Words([program, [program]])
    words.owner = program
    node = gc.Dict(words=words)
    definition, state = gc.split(node)
    words[1].append(program)
    words.append(program)
    made = gc.merge(definition, state)
    assert (len(made.words), len(made.words[1])) == (2, 1)
    assert made.words[0] is made.words[1][0] is made.words.owner is program
    assert len(gc.merge(*gc.split(node)).words) == 3


def test_objects_in_an_array_are_not_copied_and_the_array_is():
    program = object()
    table = types.SimpleNamespace(cells=np.array([program, 1], dtype=object))
    definition, state = gc.split(gc.Dict(table=table))
    table.cells[1] = 2
    assert gc.merge(definition, state).table.cells.tolist() == [program, 1]


@pytest.mark.parametrize("slots", [(), ("a",)])
def test_a_class_goes_whose_instances_were_compared(slots):
    kind = type("Kind", (), {"__slots__": slots, "__hash__": None})
    for _ in range(2):
        content_key(kind())
    alive = weakref.ref(kind)
    del kind
    garbage.collect()
    assert alive() is None


def test_classes_are_compared_by_identity_whatever_their_metaclass_says():
    class Meta(type):
        def __eq__(cls, other):
            return isinstance(other, Meta)

    one, other = Meta("One", (), {}), Meta("Other", (), {})
    graphdefs = [gc.graphdef(gc.Dict(kind=kind)) for kind in (one, one, other)]
    assert graphdefs[0] == graphdefs[1] != graphdefs[2]
    assert hash(graphdefs[0]) == hash(graphdefs[1])
