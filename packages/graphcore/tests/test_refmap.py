import copy
import gc as garbage
import pickle
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

import graphcore as gc


def test_keys_are_compared_by_identity_and_need_not_be_hashable():
    a, b = [1], [1]
    refs = gc.RefMap([(a, "a")])
    refs[b] = "b"
    assert (refs[a], refs[b], len(refs)) == ("a", "b", 2)
    assert [1] not in refs
    assert refs.get([1], "none") == "none"
    with pytest.raises(KeyError):
        refs[[1]]
    with pytest.raises(KeyError):
        del refs[[1]]
    del refs[a]
    assert a not in refs
    assert refs.pop(b) == "b"
    assert not refs


@given(st.lists(st.integers(0, 5)))
def test_it_behaves_like_a_dict_of_ids(operations):
    keys = [[i] for i in range(6)]
    refs, model = gc.RefMap(), {}
    for step, i in enumerate(operations):
        if step % 3 == 2 and i in model:
            del refs[keys[i]], model[i]
        else:
            refs[keys[i]] = step
            model[i] = step
        assert [key[0] for key in refs] == list(model)
        assert list(refs.values()) == list(model.values())
        assert len(refs) == len(model)
    assert gc.RefMap(refs) == refs
    assert gc.RefMap(list(refs.items())) == refs


def test_it_keeps_its_keys_alive():
    class Thing:
        pass

    thing = Thing()
    found = weakref.ref(thing)
    refs = gc.RefMap([(thing, 1)])
    del thing
    garbage.collect()
    assert found() is not None
    refs.clear()
    garbage.collect()
    assert found() is None


def test_changing_a_map_while_iterating_over_it():
    refs = gc.RefMap([([i], i) for i in range(3)])
    for key in refs:
        del refs[key]
    assert len(refs) == 0


def test_copies_know_their_keys():
    a = [1]
    refs = gc.RefMap([(a, 1)])
    for twin in (copy.deepcopy(refs), pickle.loads(pickle.dumps(refs))):
        (key,) = twin
        assert key == [1]
        assert key in twin
        assert a not in twin
    shallow = copy.copy(refs)
    shallow[[2]] = 2
    assert (shallow[a], len(refs)) == (1, 1)


def test_compositions_drop_what_does_not_continue():
    ab, bc = {"x": 1, "y": 2}, {1: "one", 3: "three"}
    assert gc.compose_mapping(ab, bc) == {"x": "one"}
    assert gc.compose_mapping_reversed(ab, bc) == {"one": "x"}
    a, c = [1], [2]
    composed = gc.compose_mapping(gc.RefMap([(a, 1)]), {1: c})
    assert composed[a] is c
    reverse = gc.compose_mapping_reversed(gc.RefMap([(a, 1)]), {1: c})
    assert reverse[c] is a
    assert "RefMap" in repr(composed)
