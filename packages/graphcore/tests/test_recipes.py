"""Graphs made by recipe: the same whatever form their state has."""

import jax
import jax.numpy as jnp
import pytest

import graphcore as gc


class Holder(gc.Object):
    def __init__(self, **attributes):
        for name, value in attributes.items():
            setattr(self, name, value)


def graph():
    shared = gc.Param(jnp.arange(3.0), unit="m")
    inner = Holder(w=shared, size=3, name="inner")
    return Holder(
        z=gc.BatchStat(jnp.ones(2)),
        a=inner,
        empty=Holder(rate=0.5),
        listed=[inner, gc.Cache(1), {"k": gc.Param(2.0)}],
        again=shared,
    )


def looked_at(state):
    jax.tree.leaves(state)
    return state


FORMS = {
    "lazy": lambda state: state,
    "looked at": looked_at,
    "mapped": lambda state: jax.tree.map(lambda x: x, state),
    "plain dicts": lambda state: dict(looked_at(state).raw_mapping),
    "values": lambda state: state.to_pure_dict(),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_merge_gives_the_same_graph_for_each_form_of_the_state(form):
    original = graph()
    graphdef, state = gc.split(original)
    made = gc.merge(graphdef, FORMS[form](state))
    assert gc.graphdef(made) == graphdef
    assert gc.state(made) == gc.state(original)
    assert made.listed[0] is made.a
    assert made.again is made.a.w
    assert made.a.w.unit == "m"
    assert list(vars(made)) == list(vars(gc.clone(original)))
    assert made.a.size == 3
    assert made.empty.rate == 0.5


def test_metadata_of_the_state_counts():
    graphdef, state = gc.split(gc.Dict(a=gc.Param(1, unit="m")))
    state["a"] = gc.Param.state(2, unit="s")
    made = gc.merge(graphdef, state)
    assert (made.a.value, made.a.unit) == (2, "s")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s.a.__delitem__("w"), "'w'"),
        (lambda s: s.a.__setitem__("v", gc.Param.state(1)), "'v'"),
        (lambda s: s.a.__setitem__("w", gc.Cache.state(1)), "Cache"),
        (lambda s: s.a.__setitem__("w", {"deeper": 1}), "nested"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(change, words):
    graphdef, state = gc.split(graph())
    looked_at(state)
    change(state)
    with pytest.raises(ValueError, match=words):
        gc.merge(graphdef, state)


def test_two_graphs_of_one_definition_share_nothing():
    graphdef, state = gc.split(graph())
    first, second = (gc.merge(graphdef, looked_at(state)) for _ in range(2))
    first.a.size = 4
    first.a.w.value = jnp.zeros(3)
    assert second.a.size == 3
    assert second.a.w.value[1] == 1
    assert first.listed is not second.listed
