import pytest
from hypothesis import given
from hypothesis import strategies as st

import linen_lift as nn
from linen_lift.errors import InvalidFilterError
from linen_lift.scope import (
    DenyList,
    filter_to_set,
    group_collections,
    in_filter,
    intersect_filters,
    is_filter_empty,
    subtract_filters,
    union_filters,
)

# One is the beginning of another.
NAMES = ["params", "params_axes", "cache", "intermediates"]
names = st.sampled_from(NAMES)
plain = st.one_of(
    st.booleans(),
    names,
    st.lists(names),
    st.sets(names),
    st.frozensets(names),
    st.lists(names).map(tuple),
)
filters = st.recursive(plain, lambda inner: inner.map(DenyList), max_leaves=3)


@given(filters, filters, names)
def test_set_operations_are_those_of_sets(a, b, name):
    in_a, in_b = in_filter(a, name), in_filter(b, name)
    assert in_filter(union_filters(a, b), name) == (in_a or in_b)
    assert in_filter(intersect_filters(a, b), name) == (in_a and in_b)
    assert in_filter(subtract_filters(a, b), name) == (in_a and not in_b)


@given(filters)
def test_deny_list_is_the_complement(a):
    for name in [*NAMES, "another"]:
        assert in_filter(DenyList(a), name) != in_filter(a, name)


@given(filters)
def test_empty_filters_select_nothing(a):
    if is_filter_empty(a):
        assert not any(in_filter(a, name) for name in [*NAMES, "another"])


@given(filters)
def test_an_intersection_with_nothing_is_empty(a):
    assert is_filter_empty(intersect_filters(a, False))
    assert is_filter_empty(subtract_filters(a, True))


@given(st.lists(filters, max_size=4), st.sets(names))
def test_groups_take_the_first_match(choices, present):
    variables = {name: object() for name in present}
    groups = group_collections(variables, choices)
    assert len(groups) == len(choices)
    for name in present:
        matching = [i for i, f in enumerate(choices) if in_filter(f, name)]
        holding = [i for i, group in enumerate(groups) if name in group]
        assert holding == matching[:1]


@given(st.one_of(st.just(False), names, st.lists(names)))
def test_filter_to_set_lists_the_names(a):
    assert {n for n in NAMES if in_filter(a, n)} == filter_to_set(a)


def test_deny_lists_are_equal_and_hash_alike():
    assert hash(DenyList(["a", "b"])) == hash(DenyList(["a", "b"]))
    assert nn.DenyList is DenyList


@pytest.mark.parametrize("bad", [3, None, object()])
@pytest.mark.parametrize(
    "use",
    [
        lambda f: in_filter(f, "params"),
        lambda f: in_filter(DenyList(f), "params"),
        filter_to_set,
        is_filter_empty,
        lambda f: union_filters(f, "params"),
    ],
)
def test_what_is_no_filter_is_refused(bad, use):
    with pytest.raises(InvalidFilterError, match="not a collection filter"):
        use(bad)


@pytest.mark.parametrize("endless", [True, DenyList("a")])
def test_endless_filters_have_no_set(endless):
    with pytest.raises(InvalidFilterError):
        filter_to_set(endless)
