"""Calls whose objects are taken apart: what is shown of them, and what is refused."""

import dataclasses

import graph_zoo as zoo
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphcore as gc
from graphcore.authors import Bodies, enter


class Unsorted:
    """Lists its children in the order in which they were made."""

    def __init__(self, **children):
        vars(self).update(children)


gc.register_graph_node_type(
    Unsorted,
    flatten=lambda node: ([*vars(node).items()], None),
    set_key=setattr,
    pop_key=lambda node, key: vars(node).pop(key),
    create_empty=lambda metadata: Unsorted(),
    clear=lambda node: vars(node).clear(),
    init=lambda node, pairs: vars(node).update(pairs),
    give_state=lambda state: {"/".join(p): x.value for p, x in state.flat_state()},
)


@dataclasses.dataclass(frozen=True)
class Chosen(gc.PrefixMapping):
    by: gc.Filter
    settings = (True, False)

    def map_prefix(self, path, variable):
        return bool(gc.to_predicate(self.by)(path, variable))


def slopes(f, *args, wrt=gc.Param):
    settings = (Chosen(wrt),) * len(args)
    entry = enter(f, args, settings=settings, out_settings=False)
    (chosen, others), *rest = entry.values

    def loss(chosen):
        written, out, change = entry.body([chosen, others], *rest)
        return out, (written, change)

    found, (written, change) = jax.grad(loss, has_aux=True)(chosen)
    entry.commit(written, None, change)
    return entry.states(True, found)


def param(value):
    return gc.Param(jnp.array(value))


def test_states_have_the_paths_of_before_the_call():
    def loss(model):
        total = 3 * model.b.value + 5 * model.c.value
        model.a = param(0.0)
        del model.b
        return total

    model = gc.Dict(b=param(1.0), c=param(1.0))
    (state,) = slopes(loss, model)
    assert {path: x.value for path, x in state.flat_state()} == {("b",): 3, ("c",): 5}
    assert [*model] == ["c", "a"]


def test_states_are_what_the_types_of_objects_give():
    model = Unsorted(z=param(1.0), a=param(2.0), n=gc.BatchStat(0.0))
    other = gc.Dict(tied=model.a, own=param(3.0))

    def loss(model, other):
        return 3 * model.z.value + 5 * other.tied.value * other.own.value

    of_model, of_other = slopes(loss, model, other)
    assert of_model == {"z": 3, "a": 15}
    assert [(path, x.value) for path, x in of_other.flat_state()] == [(("own",), 10)]
    (of_variable,) = slopes(lambda w: 7 * w.value, param(1.0))
    assert type(of_variable) is gc.VariableState and of_variable.value == 7
    assert slopes(lambda node: 1.0, other, wrt=gc.Cache) == [gc.State({})]


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Scaled:
    """A pytree of JAX's with something static."""

    part: object
    by: object = dataclasses.field(metadata={"static": True})


def test_what_is_static_around_an_object_is_that_of_the_call():
    found = []

    def note(scaled):
        found.append(scaled.by)
        return scaled

    given = [1, 1.0, True, 0.0, -0.0, False, (1,), (True,)]
    given += ["float32", np.dtype("float32"), ("float32",), (np.dtype("float32"),)]
    for by in given:
        entry = enter(note, (Scaled(gc.Param(2), by),))
        found.append(entry.commit(*jax.jit(entry.body)(*entry.values)).by)
    assert repr(found[::2]) == repr(given) == repr(found[1::2])


def test_static_arguments_may_come_last():
    def f(n, x, mode="add", by=1):
        return n.value + x * by if mode == "add" else n.value * x

    n = gc.Variable(2)

    def run(args, statics):
        entry = enter(f, args, statics=statics)
        return entry.commit(*entry.body(*entry.values))

    assert run((n, 3), {}) == 5
    assert run((n, 3), {2: "times"}) == 6
    assert run((n, 3), {2: "add", 3: 2}) == 8
    assert run((n, 3, None), {2: "times"}) == 6
    assert run((n, 3), {"mode": "times"}) == 6
    for position in (3, -1):
        with pytest.raises(ValueError, match=f"position {position}, but the call has"):
            enter(f, (n, 3), statics={position: "times"})


def test_objects_behind_a_container_of_arrays_are_found():
    one = param(1.0)
    entry = enter(lambda xs, model: None, ([jnp.ones(2)], {"n": one}))
    assert entry.roots == [one]
    assert len(jax.tree.leaves(entry.args)) == 1


class Known(Unsorted):
    """A foreign node that JAX takes for a pytree."""


class Box:
    """A foreign variable that JAX takes for a pytree."""

    def __init__(self, value):
        self.value = value


gc.register_graph_node_type(
    Known,
    flatten=lambda node: (sorted(vars(node).items()), None),
    set_key=setattr,
    pop_key=lambda node, key: vars(node).pop(key),
    create_empty=lambda metadata: Known(),
    clear=lambda node: vars(node).clear(),
    init=lambda node, pairs: vars(node).update(pairs),
)
gc.register_variable_type(
    Box,
    get_value=lambda box: box.value,
    set_value=lambda box, value: setattr(box, "value", value),
    get_metadata=lambda box: {},
    create=lambda kind, value, metadata: kind(value),
)
for kind in (Known, Box):
    jax.tree_util.register_pytree_node(
        kind,
        lambda x: (tuple(vars(x).values()), tuple(vars(x))),
        lambda names, values, kind=kind: kind(**dict(zip(names, values, strict=True))),
    )


def test_objects_that_jax_takes_for_pytrees_are_found_in_pytrees():
    node, box = Known(n=param(1.0)), Box(jnp.array(2.0))
    node.itself = node  # JAX would find no end of it.
    for x in (node, box):
        for _ in range(2):
            assert enter(len, (zoo.JaxPair(x, 1),)).roots == [x]


@pytest.mark.parametrize("groups", [[], [[]], [[1, 2]]])
def test_values_must_be_those_that_were_written(groups):
    def write(n):
        n.value += 1

    n = gc.Variable(1)
    entry = enter(write, (n,))
    _, out, change = entry.body(*entry.values)
    with pytest.raises(ValueError, match="'write' wrote or made 1 variables"):
        entry.commit(groups, out, change)
    assert n.value == 1


def test_a_variable_is_no_node():
    with pytest.raises(ValueError, match="a variable is none"):
        gc.split(gc.Param(1))


def test_a_mapping_that_answers_with_what_it_does_not_name():
    class Halved(gc.PrefixMapping):
        settings = ("whole",)

        def map_prefix(self, path, variable):
            return "half" if path == ("new",) else "whole"

    def f(m):
        m.new = gc.Param(m.w.value)

    node = gc.Dict(w=gc.Param(1.0), v=gc.Param(2.0))
    entry = enter(f, (node,), settings=(Halved(),), out_settings="out")
    with pytest.raises(ValueError, match=r"at 'new', has the setting 'half'"):
        entry.body(*entry.values)


def test_values_must_be_one_list_a_setting():
    def f(m):
        m.w.value += 1

    node = gc.Dict(w=gc.Param(1.0), v=gc.BatchStat(2.0))
    entry = enter(f, (node,), settings=(Chosen(gc.Param),))
    for groups in ([[1.0]], [[1.0, 2.0], []], [[1.0, 2.0]]):
        with pytest.raises(ValueError, match=r"one list of values for each of the set"):
            entry.body(groups, *entry.values[1:])
    for setting, values in ((True, [1, 2]), (None, [1])):
        with pytest.raises(ValueError, match=rf"the setting {setting}, but there are"):
            entry.states(setting, values)
    assert entry.states(None, []) == [gc.State({})]
    one = enter(f, (node,))
    with pytest.raises(ValueError, match=r"\[2\] long; got lists of \[1\]"):
        one.body([[1.0]], *one.values[1:])


def test_options_must_be_hashable():
    with pytest.raises(ValueError, match=r"options of 'len' is not hashable: \["):
        enter(len, (gc.Dict(a=gc.Param(1)),), options=["unroll"])


def test_settings_that_are_not_hashable_are_named():
    @dataclasses.dataclass
    class Thawed(gc.PrefixMapping):
        answer: object = 0

        def map_prefix(self, path, variable):
            return self.answer

    node = gc.Dict(a=gc.Param(1))
    with pytest.raises(ValueError, match=r"setting of 'len' is not hashable: .*Thawed"):
        enter(len, (node,), settings=Thawed(), out_settings=0, cache=Bodies(1))
    with pytest.raises(ValueError, match=r"setting of 'len' is not hashable: \[0\]"):
        enter(len, (node,), settings=Thawed([0]), out_settings=0)
