import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import graphcore as gc
import nnx_transforms as nnx
from nnx_transforms.transforms.mapped.metadata_axes import add_axis, remove_axis

MESH = Mesh(np.array(jax.devices()[:1]).reshape(1, 1, 1, 1), ("a", "b", "L", "M"))

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
)
def test_remove_undoes_add(entries, form, edits):
    variable = gc.Param(1.0, sharding=form(entries), unit="m")
    before = variable.get_metadata()
    for index, name in edits:
        add_axis(variable, index, name)
        entry = _entries(variable.sharding)[index : index + 1]
        assert entry == (name,)
    for index, name in reversed(edits):
        remove_axis(variable, index, name)
    assert variable.get_metadata() == before
    assert type(variable.sharding) is type(before["sharding"])


@settings(max_examples=200)
@given(entries=entries, form=forms, index=st.integers(0, 5))
def test_add_undoes_remove(entries, form, index):
    entries = (*entries[:index], "L", *entries[index:])
    index = entries.index("L")
    variable = gc.Param(1.0, sharding=form(entries))
    before = variable.get_metadata()
    remove_axis(variable, index, "L")
    assert "L" not in _entries(variable.sharding)
    add_axis(variable, index, "L")
    assert variable.get_metadata() == before


@given(entries=entries, index=st.integers(0, 5))
def test_add_undoes_remove_of_an_axis_that_is_not_sharded(entries, index):
    if index < len(entries) and entries[index] is not None:
        return
    variable = gc.Param(1.0, sharding=tuple(entries))
    before = variable.get_metadata()
    remove_axis(variable, index, None)
    add_axis(variable, index, None)
    assert variable.get_metadata() == before


def _entries(sharding):
    spec = sharding.spec if isinstance(sharding, NamedSharding) else sharding
    return tuple(spec)


def test_the_new_entry_stands_at_its_index():
    for names, index, due in ((("a", "b"), 1, ("a", "L", "b")), (("a",), 2, None)):
        v = gc.Param(1.0, sharding=names)
        add_axis(v, index, "L")
        assert v.sharding == (due or ("a", None, "L"))


def test_negative_indices_count_from_the_end():
    v = gc.Param(1.0, sharding=("a", "b"))
    add_axis(v, -1, "L")
    assert v.sharding == ("a", "b", "L")
    remove_axis(v, -1, "L")
    assert v.sharding == ("a", "b")
    with pytest.raises(ValueError, match="'x/kernel'"):
        add_axis(v, -4, "L", ("x", "kernel"))


def test_nothing_is_done_without_a_sharding():
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    for metadata in ({"unit": "m"}, {"sharding": device}):
        v = gc.Param(1.0, **metadata)
        add_axis(v, 0, "L")
        assert v.get_metadata() == metadata
        remove_axis(v, 0, "L")
        assert v.get_metadata() == metadata


def test_a_sharding_that_names_no_axis_has_any_axis_and_keeps_none():
    v = gc.Param(1.0, sharding=PartitionSpec())
    remove_axis(v, 0, "L")
    assert v.sharding == PartitionSpec()
    add_axis(v, 0, "L")
    assert v.get_metadata() == {"sharding": PartitionSpec()}


def test_a_sharding_that_names_no_axis_keeps_none_of_nested_ones():
    v = gc.Param(1.0, sharding=PartitionSpec())
    remove_axis(v, 0, "L")
    remove_axis(v, 0, "M")
    add_axis(v, 0, "M")
    assert v.sharding == PartitionSpec()
    add_axis(v, 0, "L")
    assert v.get_metadata() == {"sharding": PartitionSpec()}


def test_an_axis_that_is_not_there_is_an_error_and_changes_nothing():
    v = gc.Param(1.0, sharding=("a", "b"))
    with pytest.raises(ValueError, match=r"'m/k' has 'b' at axis 1.*'L'"):
        remove_axis(v, 1, "L", ("m", "k"))
    assert v.get_metadata() == {"sharding": ("a", "b")}


def test_hooks_are_called_with_index_and_name():
    calls = []
    v = gc.Param(
        1.0,
        sharding=("a",),
        on_add_axis=lambda v, i, n: calls.append(("add", i, n, v.sharding)),
        on_remove_axis=lambda v, i, n: calls.append(("remove", i, n, v.sharding)),
    )
    add_axis(v, 0, "L")
    remove_axis(v, 0, "L")
    assert calls == [("add", 0, "L", ("L", "a")), ("remove", 0, "L", ("L", "a"))]


def test_hooks_may_keep_metadata_of_their_own():
    def add(v, index, name):
        v.names = (*v.names[:index], name, *v.names[index:])

    class Named(gc.Variable):
        on_add_axis = add

        def on_remove_axis(self, index, name):
            self.names = self.names[:index] + self.names[index + 1 :]

    v = Named(1.0, names=("x",))
    add_axis(v, 1, "L")
    assert v.names == ("x", "L")
    remove_axis(v, 1, "L")
    assert v.names == ("x",)


def test_a_hook_that_raises_leaves_the_variable_as_it_was():
    def fail(v, index, name):
        v.unit = "other"
        raise RuntimeError

    v = gc.Param(jnp.ones(2), sharding=("a",), unit="m", on_remove_axis=fail)
    before = v.get_metadata()
    with pytest.raises(RuntimeError):
        nnx.vmap(lambda v: None, transform_metadata={nnx.PARTITION_NAME: "L"})(v)
    assert v.get_metadata() == before


def test_other_metadata_gets_entries_as_well():
    transform = {nnx.PARTITION_NAME: "layers", "nickname": "nick"}

    def make(x):
        return nnx.Param(x, sharding=("in",), nickname=("first",), unit="m")

    stack = nnx.vmap(make, transform_metadata=transform)(jnp.ones((2, 3)))
    assert (stack.sharding, stack.nickname) == (("layers", "in"), ("nick", "first"))

    def look(v):
        assert (v.sharding, v.nickname, v.unit) == (("in",), ("first",), "m")

    nnx.vmap(look, transform_metadata=transform)(stack)
    assert (stack.sharding, stack.nickname) == (("layers", "in"), ("nick", "first"))
    nnx.vmap(lambda v: None, transform_metadata={"nickname": "nick"})(stack)
    assert stack.nickname == ("nick", "first")


def test_alone_it_follows_filters_and_undoes_everything_after_an_error():
    m = gc.Dict(
        w=gc.Param(jnp.ones(2), sharding=("L", "a")), n=gc.Cache(0, sharding=())
    )
    axes = nnx.StateAxes({gc.Param: 0, ...: nnx.Carry})
    seen = []

    @nnx.transform_metadata(in_axes=(axes, None), out_axes=None, partition="L")
    def look(m, fails):
        seen.append((m.w.sharding, m.n.get_metadata("sharding")))
        m.n.value += 1
        if fails:
            raise KeyError
        m.new = gc.Param(jnp.ones(1), sharding=("b",))
        return m.w

    with pytest.raises(KeyError):
        look(m, fails=True)
    assert (m.w.sharding, m.n.value) == (("L", "a"), 0)
    with pytest.raises(ValueError, match="Inconsistent aliasing"):
        look(m, False)  # what is returned has the axis, too
    assert not hasattr(m, "new")


# States


def _by_vmap(f, axis):
    return nnx.vmap(f, 0, axis, transform_metadata={nnx.PARTITION_NAME: "L"})


def _by_vmap_with_an_axis_for_each_array(f, axis):
    def axis_of(_):
        return axis

    return nnx.vmap(f, 0, axis_of, transform_metadata={nnx.PARTITION_NAME: "L"})


def _by_pmap(f, axis):
    return nnx.pmap(f, out_axes=axis, transform_metadata={nnx.PARTITION_NAME: "L"})


def _by_scan(f, axis):
    name = {nnx.PARTITION_NAME: "L"}
    return nnx.scan(f, in_axes=0, out_axes=axis, transform_metadata=name)


def _alone(f, axis):
    return nnx.vmap(nnx.transform_metadata(f, out_axes=axis, partition="L"), 0, axis)


ways = pytest.mark.parametrize(
    "by", [_by_vmap, _by_vmap_with_an_axis_for_each_array, _by_pmap, _by_scan, _alone]
)


def _made(x):
    kernel = nnx.Param(jnp.ones((2, 3)) * x, sharding=("in", "out"))
    return gc.Dict(kernel=kernel, parts=nnx.Cache({"a": x, "b": x}, sharding=()))


@ways
@pytest.mark.parametrize("axis", [0, -1])
def test_states_get_the_entries_that_variables_get(by, axis):
    x = jnp.ones(1)
    if by is _by_vmap_with_an_axis_for_each_array:  # no objects there
        due = gc.state(_by_vmap(_made, axis)(x))
    else:
        due = gc.state(by(_made, axis)(x))
    assert due["kernel"].sharding == (("L", "in", "out"), ("in", "out", "L"))[axis]
    found, rest = by(lambda x: (gc.state(_made(x)), x), axis)(x)
    assert found == due and type(rest) is not gc.VariableState
    assert by(lambda x: [gc.state(_made(x))["kernel"]], axis)(x) == [due["kernel"]]


@ways
def test_states_have_no_mapped_axis_inside(by):
    state = gc.state(_by_vmap(_made, 0)(jnp.ones(1)))
    seen = []

    def look(state):
        seen.append(state["kernel"].sharding)
        return state

    assert by(look, 0)(state) == state
    assert set(seen) == {("in", "out")} and state["kernel"].sharding[0] == "L"


def test_states_by_keyword_and_those_without_an_axis():
    name = {nnx.PARTITION_NAME: "L"}
    state = gc.state(_by_vmap(_made, 0)(jnp.ones(2)))
    other = gc.state(_made(1.0))
    seen = []

    def look(other, state):
        seen.append((other["kernel"].sharding, state["kernel"].sharding))
        return other, state

    mapped = nnx.vmap(look, (None,), (None, 0), transform_metadata=name)
    assert mapped(other, state=state) == (other, state)
    carry = nnx.scan(look, transform_metadata=name)(other, state)
    assert carry == (other, state)
    assert set(seen) == {(("in", "out"), ("in", "out"))}


def test_maps_in_maps_name_two_axes_of_a_state():
    inner = nnx.vmap(
        lambda x: nnx.split(_made(x), nnx.Param, ...)[1],
        transform_metadata={nnx.PARTITION_NAME: "L"},
    )
    outer = nnx.vmap(inner, transform_metadata={nnx.PARTITION_NAME: "M"})
    assert outer(jnp.ones((2, 3)))["kernel"].sharding == ("M", "L", "in", "out")


def test_a_state_without_the_name_of_its_axis_is_refused_with_the_path():
    state = gc.State({"m": gc.state(_made(jnp.ones(())))})
    seen = nnx.vmap(lambda *args: 0, transform_metadata={nnx.PARTITION_NAME: "L"})
    with pytest.raises(ValueError, match=r"'1/m/kernel' has 'in' at axis 0"):
        seen(jnp.ones(2), state)
