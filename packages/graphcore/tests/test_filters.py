import importlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

import graphcore as gc
from graphcore.graphdef.layouts import layout_of

TYPES = [gc.Param, gc.BatchStat, gc.Intermediate, gc.Variable, int]
PATHS = [(), ("a",), ("a", 0), ("b", "a"), (1,)]
VALUES = [
    gc.Param(1),
    gc.Param.state(1, tag="slow"),
    gc.BatchStat(2, tag="fast"),
    gc.Perturbation.state(3),
    4,
    "slow",
]
PAIRS = [(path, value) for path in PATHS for value in VALUES]


def by_hand(path, value):
    return len(path) == 1


leaf_filters = st.one_of(
    st.sampled_from(TYPES),
    st.sampled_from(["slow", "fast"]),
    st.sampled_from([..., True, False, None, by_hand]),
    st.builds(gc.PathContains, st.sampled_from(["a", 0, "b"])),
    st.lists(st.sampled_from(PATHS), max_size=2).map(lambda p: gc.PathIn(*p)),
)
filters = st.recursive(
    leaf_filters,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.lists(inner, max_size=3).map(lambda f: gc.Any(*f)),
        st.lists(inner, max_size=3).map(lambda f: gc.All(*f)),
        inner.map(gc.Not),
    ),
    max_leaves=6,
)


def selects(f, path, value):
    """What the table in the documentation says."""
    if f is ... or f is True:
        return True
    if f is None or f is False:
        return False
    if isinstance(f, type):
        return isinstance(value, f) or issubclass(getattr(value, "type", object), f)
    if isinstance(f, str):
        return getattr(value, "tag", None) == f
    if isinstance(f, list | tuple):
        return any(selects(x, path, value) for x in f)
    if isinstance(f, gc.Any):
        return any(selects(x, path, value) for x in f.predicates)
    if isinstance(f, gc.All):
        return all(selects(x, path, value) for x in f.predicates)
    if isinstance(f, gc.Not):
        return not selects(f.predicate, path, value)
    if isinstance(f, gc.PathContains):
        return f.key in path
    if isinstance(f, gc.PathIn):
        return path in f.paths
    if isinstance(f, gc.OfType):
        return selects(f.type, path, value)
    if isinstance(f, gc.WithTag):
        return selects(f.tag, path, value)
    if isinstance(f, gc.Everything | gc.Nothing):
        return isinstance(f, gc.Everything)
    return f(path, value)


@given(filters)
def test_predicates_select_what_the_filters_say(f):
    predicate = gc.to_predicate(f)
    for path, value in PAIRS:
        assert bool(predicate(path, value)) == selects(f, path, value)


@given(filters, filters)
def test_equal_filters_hash_alike_and_select_the_same(f, g):
    p, q = gc.to_predicate(f), gc.to_predicate(g)
    if p == q:
        assert hash(p) == hash(q)
        assert all(p(*pair) == q(*pair) for pair in PAIRS)
    assert gc.to_predicate(p) == p
    assert hash(gc.to_predicate(f)) == hash(p)
    assert repr(p)


@given(st.lists(filters, min_size=2, max_size=4), st.randoms())
def test_order_and_nesting_do_not_change_the_meaning(fs, random):
    shuffled = list(fs)
    random.shuffle(shuffled)
    assert gc.Any(*fs) == gc.Any(*shuffled) == gc.Any(gc.Any(*fs), fs[0])
    assert gc.All(*fs) == gc.All(*shuffled) == gc.All(gc.All(*fs), fs[0])
    assert gc.to_predicate(fs) == gc.Any(*fs)
    assert gc.Any(*fs) != gc.All(*fs)


def test_the_written_forms():
    assert gc.to_predicate(gc.Param) == gc.OfType(gc.Param)
    assert gc.to_predicate("slow") == gc.WithTag("slow")
    assert gc.to_predicate(...) == gc.to_predicate(True) == gc.Everything()
    assert gc.to_predicate(None) == gc.to_predicate(False) == gc.Nothing()
    assert gc.to_predicate(by_hand) is by_hand
    assert gc.PathIn(("a",), ("b",)) == gc.PathIn(("b",), ("a",))
    assert gc.WithTag("a") != gc.WithTag("b")
    for wrong in 3, gc.Param(3):  # not its value's class, and not what that does
        with pytest.raises(TypeError, match=r"3.* is not a filter"):
            gc.to_predicate(wrong)


def test_a_type_of_a_value_is_not_the_type_of_its_variable():
    class Typed:
        type = gc.BatchStat

    assert not gc.OfType(gc.BatchStat)((), gc.Param(Typed()))


def test_everything_may_only_stand_last():
    assert gc.filters_to_predicates([gc.Param, ..., True]) == (
        gc.OfType(gc.Param),
        gc.Everything(),
        gc.Everything(),
    )
    for wrong in ([..., gc.Param], [True, None], [gc.Param, ..., gc.Cache, ...]):
        with pytest.raises(ValueError, match="last"):
            gc.filters_to_predicates(wrong)
    assert gc.filters_to_predicates([]) == ()


@given(st.lists(leaf_filters, max_size=3))
def test_splitting_a_looked_at_state_equals_splitting_a_fresh_one(fs):
    fs = [*(f for f in fs if f not in (..., True)), ...]
    node = gc.Dict(a=gc.Param(1, tag="slow"), b=gc.Dict(a=gc.BatchStat(2)))
    node[1] = gc.Intermediate(3, tag="fast")
    looked_at = gc.state(node)
    _ = looked_at.a
    fresh = gc.state(node).split(*fs)
    again = gc.state(node).split(*fs)
    expected = looked_at.split(*fs)
    if len(fs) == 1:
        fresh, again, expected = (fresh,), (again,), (expected,)
    assert list(fresh) == list(again) == list(expected)
    merged = gc.merge(gc.graphdef(node), *gc.state(node, *fs)) if len(fs) > 1 else node
    assert gc.state(merged) == gc.state(node)


def test_a_part_of_a_key_selects_where_that_is_asked_for():
    node = gc.Dict(head_1=gc.Param(1), tail=[gc.Param(2), gc.Param(3)])
    part = gc.PathContains("head", exact=False)
    assert list(gc.state(node, part)) == ["head_1"]
    assert not gc.state(node, gc.PathContains("head"))
    assert gc.state(node, gc.PathContains(1, exact=False)).flat_state().paths == (
        ("head_1",),
        ("tail", 1),
    )
    assert part != gc.PathContains("head")
    assert repr(part) == "PathContains('head', exact=False)"


def test_what_filters_select_is_looked_up_while_it_depends_on_no_value():
    node = gc.Dict(a=gc.Param(1), b=gc.Dict(c=gc.BatchStat(2), a=gc.Param(3)))
    selections = layout_of((gc.graphdef(node),)).selections
    by_path = gc.PathContains("b"), ...
    for _ in range(2):
        inside, outside = gc.state(node).split(*by_path)
        assert len(inside.flat_state()) == 2 and outside.a.value == 1
    assert len(selections) == 1
    # Of a part, other leaves stand at the same positions.
    params, _ = gc.state(node).split(gc.Param, ...)
    inside, outside = params.split(*by_path)
    assert inside.flat_state().paths == (("b", "a"),)
    assert outside.flat_state().paths == (("a",),)
    for number in range(50):
        gc.state(node).split(gc.PathContains(number), ...)
    assert len(selections) <= 16


def test_filters_are_written_as_they_are_made():
    made = gc.to_predicate(...), gc.to_predicate(None), gc.WithTag("slow")
    assert [*map(repr, made)] == ["Everything()", "Nothing()", "WithTag('slow')"]


def test_filters_of_a_library_are_understood_from_the_first_on(tmp_path, monkeypatch):
    (tmp_path / "their_library.py").write_text(
        "class Tagged:\n"
        "    def __init__(self, tag): self.tag = tag\n"
        "    def __call__(self, path, value): raise NotImplementedError\n"
    )
    (tmp_path / "their_adapter.py").write_text(
        "import graphcore as gc, their_library\n"
        "from graphcore.state.filters import add_filter_type\n"
        "add_filter_type(their_library.Tagged, lambda x: gc.WithTag(x.tag))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    gc.register_adapter("their_library", "their_adapter")
    theirs = importlib.import_module("their_library").Tagged("slow")
    state = gc.State({"a": gc.Param.state(1, tag="slow"), "b": gc.Param.state(2)})
    assert list(state.filter(theirs)) == ["a"]


def test_a_filter_that_a_program_names_may_have_a_docstring():
    frozen = gc.Any(gc.Cache, gc.PathContains("frozen"))
    frozen.__doc__ = "What is not trained."
    assert frozen == gc.Any(gc.PathContains("frozen"), gc.Cache)
