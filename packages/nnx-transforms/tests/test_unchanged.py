"""Whether a function left its objects alone, told at a glance."""

import jax.numpy as jnp
import pytest
from derivative_programs import pairs_of_models
from hypothesis import given, settings
from hypothesis import strategies as st

import graphcore as gc
from graphcore.cache.patterns import Pattern
from graphcore.graphdef.build import Builder
from graphcore.graphdef.joint import joint_of
from nnx_transforms import BatchStat, Dict, List, Module, Param


def build(*roots):
    """Builds the same again, as transformations do."""
    joint, plans = joint_of(roots)
    leaves = {
        d.index: (value, None)
        for d, value in zip(
            joint.variable_definitions,
            joint.layout.values(joint.variables(plans)),
            strict=True,
        )
    }
    objects = {}
    builder = Builder(leaves, objects, {})
    built = [builder.build(d) for d in joint.definitions]
    return joint.definitions, objects, built


def is_unchanged(definitions, objects, built):
    try:
        pattern = Pattern(definitions)
    except ValueError:
        return False
    return pattern.is_made_of(built, [objects[i] for i in sorted(objects)])


def add(m):
    m.new = 1


def rewire(m):
    m.listed = List(list(m.listed))


def replace(m):
    m.own = Param(m.own.value)


def change_type(m):
    m.own = BatchStat(m.own.value)


def change_metadata(m):
    m.own.unit = "m"


def edit_container(m):
    m.plain["k"].append(m.own)


def replace_container(m):
    m.plain = {"k": m.plain["k"], "t": [*m.plain["t"]]}


def rate(m):
    m.rate = 1.5


def grow(m):
    m.listed.append(m.own)


def cycle(m):
    m.listed.append(m)


def past_setattr(m):
    vars(m)["hidden"] = 3


def remove(m):
    del m.rate


CHANGES = [
    *(add, rewire, replace, change_type, change_metadata, edit_container),
    *(replace_container, rate, grow, cycle, past_setattr, remove),
]


@settings(max_examples=60, deadline=None)
@given(pairs_of_models(), st.sampled_from(CHANGES), st.integers(0, 1))
def test_changes_are_seen(models, change, number):
    definitions, objects, built = build(*models)
    assert is_unchanged(definitions, objects, built)
    built[0].own.value = jnp.zeros(2)
    assert is_unchanged(definitions, objects, built)
    change(built[number])
    assert not is_unchanged(definitions, objects, built)


@settings(max_examples=40, deadline=None)
@given(pairs_of_models(), st.lists(st.sampled_from(CHANGES), max_size=3))
def test_never_in_disagreement_with_a_walk(models, changes):
    definitions, objects, built = build(*models)
    for change in changes:
        if change is not remove or hasattr(built[0], "rate"):
            change(built[0])
    if is_unchanged(definitions, objects, built):
        assert gc.split(List(built))[0] == gc.split(List(models))[0]


@pytest.mark.parametrize("value", [(1, [2]), {"a": 1}])
def test_static_values_that_may_change_in_place(value):
    class Config:
        def __init__(self):
            self.items = value

        def __eq__(self, other):
            return self.items == other.items

        def __hash__(self):
            return 0

    class Holder(Module):
        def __init__(self):
            self.config = Config()
            self.p = Param(jnp.ones(1))

    definitions, objects, built = build(Holder())
    # It need not be quick about what it cannot watch, and must not be wrong.
    assert not is_unchanged(definitions, objects, built)


def test_variables_as_roots():
    definitions, objects, built = build(Param(jnp.ones(2)), Dict())
    v = built[0]
    assert is_unchanged(definitions, objects, built)
    v.unit = "m"
    assert not is_unchanged(definitions, objects, built)
