import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import graphcore as gc
from nnx_transforms.metadata_axes import PARTITION_NAME, add_axis, remove_axis

MESH = Mesh(np.array(jax.devices()[:1]).reshape(1, 1, 1, 1), ("a", "b", "L", "M"))
LAYERS = {PARTITION_NAME: "L"}

forms = st.sampled_from(
    [tuple, list, lambda e: PartitionSpec(*e), lambda e: NamedSharding(MESH, _spec(e))]
)


def _spec(entries):
    return PartitionSpec(*entries)


entries = st.permutations([None, "a", "b", None]).flatmap(
    lambda p: st.integers(0, 4).map(lambda n: p[:n])
)


@settings(max_examples=200)
@given(
    entries=entries,
    form=forms,
    edits=st.lists(
        st.tuples(st.integers(0, 5), st.sampled_from(["L", "M", None])),
        max_size=2,
        unique_by=lambda edit: edit[1],
    ),
    as_state=st.booleans(),
)
def test_remove_undoes_add(entries, form, edits, as_state):
    variable = gc.Param(1.0, sharding=form(entries), unit="m")
    before = variable.get_metadata()
    subject = variable.to_state() if as_state else variable
    for index, name in edits:
        subject = add_axis(subject, index, {PARTITION_NAME: name})
        entry = _entries(subject.sharding)[index : index + 1]
        assert entry == (name,)
    for index, name in reversed(edits):
        subject = remove_axis(subject, index, {PARTITION_NAME: name})
    assert subject.get_metadata() == before
    assert type(subject.sharding) is type(before["sharding"])
    assert (subject is variable) != as_state


@settings(max_examples=200)
@given(entries=entries, form=forms, index=st.integers(0, 5), as_state=st.booleans())
def test_add_undoes_remove(entries, form, index, as_state):
    entries = (*entries[:index], "L", *entries[index:])
    index = entries.index("L")
    subject = gc.Param(1.0, sharding=form(entries))
    before = subject.get_metadata()
    subject = subject.to_state() if as_state else subject
    subject = remove_axis(subject, index, LAYERS)
    assert "L" not in _entries(subject.sharding)
    assert add_axis(subject, index, LAYERS).get_metadata() == before


@given(entries=entries, index=st.integers(0, 5))
def test_add_undoes_remove_of_an_axis_that_is_not_sharded(entries, index):
    metadata = {PARTITION_NAME: None}
    if index < len(entries) and entries[index] is not None:
        return
    variable = gc.Param(1.0, sharding=tuple(entries))
    before = variable.get_metadata()
    remove_axis(variable, index, metadata)
    add_axis(variable, index, metadata)
    assert variable.get_metadata() == before


def _entries(sharding):
    spec = sharding.spec if isinstance(sharding, NamedSharding) else sharding
    return tuple(spec)


def test_the_new_entry_stands_at_its_index():
    v = gc.Param(1.0, sharding=("a", "b"))
    assert add_axis(v, 1, LAYERS).sharding == ("a", "L", "b")
    assert add_axis(gc.Param(1.0, sharding=("a",)), 2, LAYERS).sharding == (
        "a",
        None,
        "L",
    )


def test_negative_indices_count_from_the_end():
    v = gc.Param(1.0, sharding=("a", "b"))
    assert add_axis(v, -1, LAYERS).sharding == ("a", "b", "L")
    assert remove_axis(v, -1, LAYERS).sharding == ("a", "b")
    with pytest.raises(ValueError, match="'x/kernel'"):
        add_axis(v, -4, LAYERS, ("x", "kernel"))


def test_nothing_is_done_without_a_name_or_a_sharding():
    for metadata, transform in (({"sharding": ("a",)}, {}), ({"unit": "m"}, LAYERS)):
        v = gc.Param(1.0, **metadata)
        assert add_axis(v, 0, transform) is v
        assert remove_axis(v, 0, transform).get_metadata() == metadata
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    assert add_axis(gc.Param(1.0, sharding=device), 0, LAYERS).sharding is device


def test_a_sharding_that_names_no_axis_has_any_axis_and_keeps_none():
    v = gc.Param(1.0, sharding=PartitionSpec())
    assert remove_axis(v, 0, LAYERS).sharding == PartitionSpec()
    assert add_axis(v, 0, LAYERS).get_metadata() == {"sharding": PartitionSpec()}


def test_an_axis_that_is_not_there_is_an_error_and_changes_nothing():
    v = gc.Param(1.0, sharding=("a", "b"))
    with pytest.raises(ValueError, match=r"'m/k' has 'b' at axis 1.*'L'"):
        remove_axis(v, 1, LAYERS, ("m", "k"))
    assert v.get_metadata() == {"sharding": ("a", "b")}


def test_hooks_are_called_with_index_and_name():
    calls = []
    v = gc.Param(
        1.0,
        sharding=("a",),
        on_add_axis=lambda v, i, n: calls.append(("add", i, n, v.sharding)),
        on_remove_axis=lambda v, i, n: calls.append(("remove", i, n, v.sharding)),
    )
    remove_axis(add_axis(v, 0, LAYERS), 0, LAYERS)
    assert calls == [("add", 0, "L", ("L", "a")), ("remove", 0, "L", ("L", "a"))]
    remove_axis(add_axis(v.to_state(), 0, LAYERS), 0, LAYERS)
    assert len(calls) == 4


def test_hooks_may_keep_metadata_of_their_own():
    def add(v, index, name):
        v.names = (*v.names[:index], name, *v.names[index:])

    class Named(gc.Variable):
        on_add_axis = add

        def on_remove_axis(self, index, name):
            self.names = self.names[:index] + self.names[index + 1 :]

    v = Named(1.0, names=("x",))
    assert add_axis(v, 1, LAYERS).names == ("x", "L")
    assert remove_axis(v.to_state(), 1, LAYERS).names == ("x",)


def test_a_hook_that_raises_leaves_the_variable_as_it_was():
    def fail(v, index, name):
        v.unit = "other"
        raise RuntimeError

    v = gc.Param(1.0, sharding=("a",), unit="m", on_add_axis=fail)
    before = v.get_metadata()
    with pytest.raises(RuntimeError):
        add_axis(v, 0, LAYERS)
    assert v.get_metadata() == before


def test_another_trace_is_refused():
    v = gc.Param(jnp.ones(2), sharding=("a",))
    with pytest.raises(gc.TraceContextError):
        jax.jit(lambda: add_axis(v, 0, LAYERS) and None)()
    assert v.sharding == ("a",)
