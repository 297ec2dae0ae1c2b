import ast
import dataclasses
import functools
import threading
import typing

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import graphcore as gc
from graphcore.display.printing import (
    MAX_DEPTH,
    MAX_ITEMS,
    WIDTH,
    leaf_text,
    one_line,
    text,
)


class Linear(gc.Object):
    def __init__(self, n):
        self.kernel = gc.Param(jnp.ones((n, n)))
        self.features = n


# Leaves


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (lambda: jnp.ones((2, 3)), "Param(float32[2,3])"),
        (lambda: jnp.zeros((0,), jnp.bfloat16), "Param(bfloat16[0])"),
        (lambda: jnp.array(3), "Param(int32[] 3)"),
        (lambda: np.ones((4,), np.float64), "Param(float64[4] (numpy))"),
        (lambda: np.float32(1.5), "Param(np.float32(1.5))"),
        (lambda: jax.ShapeDtypeStruct((2,), jnp.int8), "Param(int8[2] (abstract))"),
        (lambda: jax.random.key(0), "Param(key<fry>[])"),
        (lambda: 1.5, "Param(1.5)"),
        (lambda: None, "Param(None)"),
        (lambda: {"w": jnp.ones(2)}, "Param({'w': float32[2]})"),
        (lambda: (jnp.ones(2),), "Param((float32[2],))"),
        (lambda: object(), "Param(<object object>)"),
    ],
)
def test_values_show_shape_and_dtype(value, expected):
    assert repr(gc.Param(value())) == expected


def test_contents_of_arrays_are_not_shown():
    assert "1234" not in repr(gc.Param(jnp.full((2,), 1234.0)))
    assert "1234" not in repr(gc.Param(np.full((2,), 1234.0)))
    many = "x" * 10_000
    assert len(repr(gc.Variable(many))) < 2 * WIDTH


def test_deleted_array():
    x = jnp.ones(2)
    x.delete()
    y = jnp.array(1)
    y.delete()
    assert repr(gc.Param(x)) == "Param(float32[2] (deleted))"
    assert repr(gc.Param(y)) == "Param(int32[] (deleted))"


def test_tracers():
    seen = []

    @jax.jit
    def f(x):
        seen.append(repr(gc.Param(x)))
        jax.grad(lambda y: seen.append(repr(gc.Param(y))) or y.sum())(x)
        jax.vmap(lambda y: seen.append(repr(gc.Param(y))) or y)(x)
        return x

    f(jnp.ones((2,)))
    assert seen[0] == seen[1] == "Param(float32[2] (traced))"
    assert seen[2] == "Param(float32[] (traced))"


def test_looking_does_not_run_hooks():
    def fail(variable, value):
        raise RuntimeError

    assert "float32[2]" in repr(gc.Param(jnp.ones(2), on_get_value=fail))


class _Broken:
    def __repr__(self):
        raise RuntimeError("no")


class _BrokenAll:
    def __getattribute__(self, name):
        raise RuntimeError("no")

    def __hash__(self):
        return 0


class _NoText:
    def __repr__(self):
        return None  # type: ignore[return-value]


def test_never_fails():
    for broken in (_Broken(), _BrokenAll(), _NoText()):
        for shown in (broken, [broken], gc.Dict(a=broken), {"a": broken}):
            assert "unreadable" in text(shown)
    assert repr(gc.Variable(_Broken())) == "Variable(<_Broken, unreadable>)"
    assert "unreadable" in text({_Broken(): 1})
    assert "unreadable" in repr(gc.Variable(1, note=_Broken()))


def test_static_values_have_no_addresses():
    def function():
        pass

    class Plain:
        pass

    x = gc.Dict(f=function, t=Plain, p=Plain(), m=gc.Dict().items, r=jax.nn.relu)
    assert "0x" not in repr(x)
    assert "'f': <function function>" in repr(x)
    assert "'t': Plain" in repr(x)
    assert "relu" in repr(x)


def test_long_lines_are_cut():
    assert len(leaf_text("a" * 500)) <= 100
    assert leaf_text("a  b") == "'a  b'"
    assert one_line({"a": jnp.ones(2), "b": [1] * 1000}, 30) == (
        "{'a': float32[2], 'b': [1, ..."
    )


# Objects


def test_variable_with_metadata():
    v = gc.Param(jnp.ones(2), sharding=("data", None), unit="m")
    assert repr(v) == "Param(float32[2], sharding=('data', None), unit='m')"
    assert repr(v.to_state()) == (
        "VariableState(Param, float32[2], sharding=('data', None), unit='m')"
    )


def test_objects_are_nested_and_indented():
    class Model(gc.Object):
        def __init__(self):
            self.layers = [Linear(2), Linear(3)]
            self.note = "short"
            self.options = {"deep": (1, 2)}
            self.table = gc.Dict(a=1)
            self.items = gc.List([1, "two"])

    assert repr(Linear(2)) == "Linear(features=2, kernel=Param(float32[2,2]))"
    assert repr(Model()) == "\n".join(
        [
            "Model(",
            "  items=List([1, 'two']),",
            "  layers=[",
            "    Linear(features=2, kernel=Param(float32[2,2])),",
            "    Linear(features=3, kernel=Param(float32[3,3])),",
            "  ],",
            "  note='short',",
            "  options={'deep': (1, 2)},",
            "  table=Dict({'a': 1}),",
            ")",
        ]
    )


def test_shared_and_cyclic_references_are_numbered():
    x = gc.Dict(a=gc.Param(1), b=gc.Param(2))
    x.c, x.d, x.e = x.b, [x.a, x.b], gc.Dict(up=x)
    assert text(x, width=40) == "\n".join(
        [
            "Dict#1({",
            "  'a': Param#2(1),",
            "  'b': Param#3(2),",
            "  'c': <Param#3, shared>,",
            "  'd': [",
            "    <Param#2, shared>,",
            "    <Param#3, shared>,",
            "  ],",
            "  'e': Dict({'up': <Dict#1, cycle>}),",
            "})",
        ]
    )


def test_equal_but_distinct_variables_are_not_shown_as_shared():
    assert repr(gc.List([gc.Param(1), gc.Param(1)])) == "List([Param(1), Param(1)])"


def test_foreign_types():
    class Cell:
        def __init__(self, content):
            self.content = content

    class Bag:
        def __init__(self, **items):
            self.items = items

    gc.register_variable_type(
        Cell,
        get_value=lambda cell: cell.content,
        set_value=lambda cell, value: setattr(cell, "content", value),
        get_metadata=lambda cell: {"unit": "m"},
        create=lambda kind, value, metadata: kind(value),
    )
    gc.register_graph_node_type(
        Bag,
        flatten=lambda bag: (sorted(bag.items.items()), None),
        set_key=lambda bag, key, child: bag.items.__setitem__(key, child),
        pop_key=lambda bag, key: bag.items.pop(key),
        create_empty=lambda metadata: Bag(),
        clear=lambda bag: bag.items.clear(),
        init=lambda bag, pairs: bag.items.update(pairs),
    )
    bag = Bag(cell=Cell(jnp.ones(2)))
    bag.items["me"] = bag
    assert text(bag) == "Bag#1(cell=Cell(float32[2], unit='m'), me=<Bag#1, cycle>)"


def test_states():
    s = gc.State({"b": {"c": gc.Param.state(jnp.ones(2)), 1: 2}, "a": 1})
    assert (
        repr(s) == "State({'a': 1, 'b': {1: 2, 'c': VariableState(Param, float32[2])}})"
    )
    assert repr(s.flat_state()) == (
        "FlatState({('a',): 1, ('b', 1): 2, ('b', 'c'): "
        "VariableState(Param, float32[2])})"
    )
    assert repr(gc.State({})) == "State({})"


def test_definitions():
    x = Linear(2)
    x.tied, x.me = x.kernel, x
    graphdef, state = gc.split(x)
    assert repr(graphdef) == "\n".join(
        [
            "NodeDef(Linear, index=0, {",
            "  'features': 2,",
            "  'kernel': VariableDef(Param, index=1),",
            "  'me': NodeRef(Linear, index=0),",
            "  'tied': NodeRef(Param, index=1),",
            "})",
        ]
    )
    static, leaf, cycle, _ = graphdef.attributes
    assert repr(static) == "StaticAttribute('features', 2)"
    assert repr(leaf) == "LeafAttribute('kernel', VariableDef(Param, index=1))"
    assert repr(cycle) == "SubGraphAttribute('me', NodeRef(Linear, index=0))"
    mapped = gc.graphdef(gc.Dict()).with_index_mapping(gc.HashableMapping({0: 3}))
    assert repr(mapped) == (
        "NodeDef(Dict, index=0, index_mapping=HashableMapping({0: 3}), {})"
    )
    states = gc.NodeStates.from_split(graphdef, state, metadata="note")
    assert repr(states).startswith("NodeStates(\n  graphdef=NodeDef(Linear, index=0, {")
    assert "  state=State({'kernel': VariableState(Param, float32[2,2])})," in repr(
        states
    )
    assert repr(states).endswith("  metadata='note',\n)")


def test_node_states_without_a_definition():
    empty = gc.State({})
    assert repr(gc.NodeStates.from_states(empty)) == "NodeStates(state=State({}))"
    assert repr(gc.NodeStates.from_states(empty, empty)) == (
        "NodeStates(states=(State({}), State({})))"
    )
    assert repr(gc.NodeStates.from_prefixes([0, None], metadata="m")) == (
        "NodeStates(states=(0, None), metadata='m')"
    )


def test_mappings_and_static():
    v = gc.Param(1)
    assert text(gc.RefMap([(v, 0), (v, 1)])) == "RefMap([(Param(1), 1)])"
    assert text(gc.HashableMapping({"a": 1})) == "HashableMapping({'a': 1})"
    assert text(gc.Static("x")) == "Static('x')"
    metadata = gc.VariableMetadata(jnp.ones(2), metadata={"unit": "m"})
    assert text(metadata) == "VariableMetadata(float32[2], unit='m')"


def test_named_tuples_and_pytrees_show_their_fields():
    class Point(typing.NamedTuple):
        x: object
        y: object

    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class Pair:
        a: object
        b: object

    assert text(Point(1, jnp.ones(2))) == "Point(x=1, y=float32[2])"
    assert text(Pair(1, jnp.ones(2))) == "Pair(a=1, b=float32[2])"
    assert text({3, 1, 2}) == "{1, 2, 3}"
    assert text(set()) == "set()"
    assert text(frozenset({1})) == "frozenset({1})"


# Safety


def test_plain_containers_that_contain_themselves():
    x = [1]
    x.append(x)
    assert text(x) == "[1, [...]]"


def test_objects_whose_repr_leads_back():
    class Holder:
        def __init__(self, held):
            self.held = held

        def __repr__(self):
            return f"Holder({self.held!r})"

    x = gc.Dict()
    x.partial = functools.partial(print, x)
    x.method = x.items
    x.holder = Holder(x)
    assert "Holder(<Dict>)" in repr(x)
    assert repr(x) == repr(x)
    assert repr(Holder(gc.Dict(a=1))) == "Holder(Dict({'a': 1}))"


def test_a_failed_repr_leaves_the_next_one_alone():
    class Interrupting:
        def __repr__(self):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        repr(gc.Variable(Interrupting()))
    assert repr(gc.Variable(1)) == "Variable(1)"


def test_deep_graphs():
    root = node = gc.Dict()
    for _ in range(5000):
        node.next = gc.Dict(w=gc.Param(jnp.ones(2)))
        node = node.next
    shown = repr(root)
    assert "Dict({...})" in shown
    assert len(shown.splitlines()) < 4 * MAX_DEPTH
    assert "NodeDef" in repr(gc.graphdef(root))
    assert len(repr(gc.state(root))) < 20_000


def test_deep_plain_containers():
    x = []
    for _ in range(100_000):
        x = [x]
    assert "[...]" in text(x)


def test_wide_graphs_are_elided():
    x = gc.List([gc.Param(i) for i in range(10 * MAX_ITEMS)])
    lines = repr(x).splitlines()
    assert len(lines) <= MAX_ITEMS + 2
    shown = sum("Param(" in line for line in lines)
    assert lines[-2] == f"  ... {10 * MAX_ITEMS - shown} more,"


def test_containers_that_share_containers_do_not_explode():
    x = []
    for _ in range(80):
        x = [x, x]
    assert len(text(x)) < 100 * MAX_ITEMS * MAX_DEPTH


def test_threads_do_not_see_each_other():
    entered, go_on = threading.Event(), threading.Event()

    class Waiting:
        def __repr__(self):
            entered.set()
            go_on.wait(10)
            return "Waiting()"

    results = []
    slow = gc.Variable(Waiting())
    thread = threading.Thread(target=lambda: results.append(repr(slow)))
    thread.start()
    assert entered.wait(10)
    results.append(repr(gc.Variable(1)))
    go_on.set()
    thread.join()
    assert results == ["Variable(1)", "Variable(Waiting())"]


def _literals():
    # Up to ten characters each when escaped: short enough to be shown in full.
    atoms = st.none() | st.booleans() | st.integers() | st.text(max_size=9)
    return st.recursive(
        atoms,
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.tuples(inner)
            | st.tuples(inner, inner)
            | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=4)
        ),
        max_leaves=20,
    )


@given(_literals(), st.integers(1, 120))
def test_plain_containers_read_back(value, width):
    shown = text(value, width=width)
    assert ast.literal_eval(shown) == value
    assert len(one_line(value, 30)) <= 30
    assert "\n" not in one_line(value, 1000)


@given(_literals(), st.integers(20, 120))
def test_only_leaves_exceed_the_width(value, width):
    for line in text(value, width=width).splitlines():
        if len(line) > width:
            # One entry, without anything that could stand on lines of its own.
            content = line.strip().removesuffix(",")
            assert content[-1] not in "]})" or content[-2:] in ("[]", "{}", "()")
