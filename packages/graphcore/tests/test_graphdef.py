import array
import copy
import dataclasses
import math
import pickle
import subprocess
import sys
import weakref

import graph_strategies as gs
import graph_zoo as zoo
import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import graphcore as gc


def test_the_parts_of_a_definition():
    shared = gc.Param(1, unit="m")
    node = gc.Dict(a=shared, b=[shared, 2], c=gc.List([shared]))
    node.d = node
    graphdef = gc.graphdef(node)
    assert isinstance(graphdef, gc.NodeDef) and isinstance(graphdef, gc.GraphDef)
    assert (graphdef.type, graphdef.index, graphdef.index_mapping) == (gc.Dict, 0, None)
    a, b, c, d = graphdef.attributes
    assert a == gc.LeafAttribute(
        "a", gc.VariableDef(gc.Param, 1, gc.HashableMapping({"unit": "m"}))
    )
    assert isinstance(b, gc.SubGraphAttribute)
    assert (b.value.type, b.value.index) == (list, -1)
    assert b.value.attributes == (
        gc.LeafAttribute(0, gc.NodeRef(gc.Param, 1)),
        gc.StaticAttribute(1, 2),
    )
    assert (c.value.index, c.value.attributes[0].value.index) == (2, 1)
    assert d == gc.SubGraphAttribute("d", gc.NodeRef(gc.Dict, 0))


@given(gs.graphs(), gs.graphs())
def test_definitions_are_equal_exactly_if_the_graphs_are_but_for_values(one, two):
    def skeleton(root):
        twin = gc.clone(root)
        for variable in zoo.variables_of(twin):
            gs.set_value(variable, 0)
        # Bare arrays have values as well.
        gc.update(twin, jax.tree.map(lambda _: np.zeros(()), gc.state(twin)))
        return zoo.canonical(twin)

    a, b = gc.graphdef(one), gc.graphdef(two)
    assert (a == b) == (skeleton(one) == skeleton(two))
    if a == b:
        assert hash(a) == hash(b)


@given(gs.statics, gs.statics)
def test_static_values_are_compared_strictly(x, y):
    a, b = gc.StaticAttribute("k", x), gc.StaticAttribute("k", y)
    same = zoo.constant(x) == zoo.constant(y) and type(x) is type(y)
    assert (a == b) == same
    if a == b:
        assert hash(a) == hash(b)


@pytest.mark.parametrize(
    ("one", "two", "same"),
    [
        (1, True, False),
        (1, 1.0, False),
        (0.0, -0.0, False),
        (math.nan, float("nan"), True),
        ((1, 2.0), (1, 2), False),
        (np.float32(0.0), np.float32(-0.0), False),
        (np.float32(1), np.float64(1), False),
        (np.float32("nan"), np.float32("nan"), True),
        (frozenset([1]), frozenset([1.0]), False),
        (complex(0, -0.0), 0j, False),
    ],
)
def test_strange_static_values(one, two, same):
    a = gc.graphdef(gc.Dict(x=gc.Static(one), y=one))
    b = gc.graphdef(gc.Dict(x=gc.Static(one), y=two))
    assert (a == b) is same
    v, w = gc.Param(0, m=one), gc.Param(0, m=two)
    assert (gc.graphdef(gc.Dict(v=v)) == gc.graphdef(gc.Dict(v=w))) is same


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Scaled:
    """A pytree of JAX's with something static."""

    part: object
    by: object = dataclasses.field(metadata={"static": True})


EQUAL = [1, 1.0, True, np.int32(1), (1,), (True,)], [0.0, -0.0, False], [[1], [1.0]]


@pytest.mark.parametrize("equal", EQUAL)
def test_what_is_static_in_a_pytree_is_compared_strictly(equal):
    nodes = [gc.Dict(all=[Scaled(gc.Param(2), x)]) for x in equal]
    definitions = [*map(gc.graphdef, nodes)]
    for node, definition, x in zip(nodes, definitions, equal, strict=True):
        assert [d == definition for d in definitions].count(True) == 1
        assert repr(gc.clone(node).all[0].by) == repr(x)
    node = nodes[0]
    node.all = [Scaled(gc.Param(2), equal[1])]
    assert gc.graphdef(node) == definitions[1]


def test_a_definition_keeps_comparing_as_it_did():
    tag = zoo.Tag("a")
    node = gc.Dict(tag=tag)
    before, known = gc.graphdef(node), {}
    known[before] = "compiled"
    tag.word = "b"
    after = gc.graphdef(node)
    assert after != before
    assert known[before] == "compiled"
    assert after not in known
    tag.word = "a"
    assert known[gc.graphdef(node)] == "compiled"


def test_graphs_of_one_structure_share_their_definition():
    one, two = (gc.Dict(a=gc.Param(1), b=[2, gc.Dict(c="x")]) for _ in range(2))
    assert gc.graphdef(one) is gc.graphdef(two)


def test_definitions_that_cannot_be_hashed_are_told_apart_by_their_keys():
    hidden = array.array("i", [1])
    one, same = (gc.Dict(hidden=hidden, x=gc.Dict()) for _ in range(2))
    other = gc.Dict(hidden=hidden, y=gc.Dict())
    assert gc.graphdef(one) == gc.graphdef(same) != gc.graphdef(other)


def test_definitions_are_static_pytrees():
    graphdef = gc.graphdef(gc.Dict(a=gc.Param(1), b=2))
    for x in (
        graphdef,
        graphdef.attributes[0],
        graphdef.attributes[1],
        graphdef.attributes[0].value,
        gc.NodeRef(gc.Dict, 0),
        gc.SubGraphAttribute("k", graphdef),
        gc.Static("name"),
    ):
        leaves, structure = jax.tree.flatten(x)
        assert leaves == []
        assert jax.tree.unflatten(structure, []) == x
        assert hash(x) == hash(copy.copy(x))
        assert pickle.loads(pickle.dumps(x)) == x
        assert repr(x)
    runs = []

    @jax.jit
    def f(g, x):
        runs.append(g)
        return x

    f(graphdef, 1.0)
    f(gc.graphdef(gc.Dict(a=gc.Param(5), b=2)), 1.0)
    assert len(runs) == 1
    f(gc.graphdef(gc.Dict(a=gc.Param(5), b=3)), 1.0)
    assert len(runs) == 2


def test_pickled_definitions_hash_right_in_another_process():
    graphdef = gc.graphdef(gc.Dict(a=gc.Param(1, unit="m"), b=["x", {"k": None}]))
    hash(graphdef)
    program = (
        "import sys, pickle, graphcore as gc;"
        "old = pickle.loads(sys.stdin.buffer.read());"
        "new = gc.graphdef(gc.Dict(a=gc.Param(2, unit='m'), b=['x', {'k': None}]));"
        "assert old == new and hash(old) == hash(new);"
        "assert gc.merge(old, {'a': 3}).a.unit == 'm'"
    )
    subprocess.run(
        [sys.executable, "-c", program], input=pickle.dumps(graphdef), check=True
    )


# HashableMapping


keys = st.one_of(st.integers(), st.text(max_size=2), st.tuples(st.integers()))


@given(st.dictionaries(keys, st.integers()), st.randoms())
def test_hashable_mappings_ignore_order(d, random):
    items = list(d.items())
    random.shuffle(items)
    a, b = gc.HashableMapping(d), gc.HashableMapping(items)
    assert a == b
    assert hash(a) == hash(b)
    assert dict(a) == d
    assert len(a) == len(d)
    assert all(k in a and a[k] == v for k, v in items)
    assert pickle.loads(pickle.dumps(a)) == a
    assert repr(a).startswith("HashableMapping(")


def test_hashable_mappings_are_immutable_and_strict():
    source = {"a": 1}
    mapping = gc.HashableMapping(source)
    source["a"] = 2
    assert mapping["a"] == 1
    with pytest.raises(TypeError):
        mapping["a"] = 2
    assert mapping != gc.HashableMapping({"a": True})
    assert mapping != gc.HashableMapping({"b": 1})
    assert mapping != {"a": 1}
    assert hash(gc.HashableMapping({"a": []})) == hash(gc.HashableMapping({"a": []}))
    assert gc.HashableMapping({"a": []}) != gc.HashableMapping({"a": [1]})


def test_metadata_of_a_node_that_nothing_is_known_of_is_refused_with_its_path():
    node = gc.Dict(inner=zoo.Bag(label=array.array("i")))
    with pytest.raises(TypeError, match="Bag at 'inner'"):
        hash(gc.graphdef(node))


def test_places_in_an_index_space_tell_definitions_apart():
    with gc.split_context() as ctx:
        first, second = (ctx.split(gc.Dict(x=1))[0] for _ in range(2))
    assert first != second
    assert second != first


def test_a_weak_proxy_says_to_hold_the_object():
    class Parent(gc.Object):
        def __init__(self):
            self.child = gc.Dict(parent=weakref.proxy(self))

    parent = Parent()
    with pytest.raises(TypeError, match=r"at 'child/parent' .*graphs may have cycles"):
        hash(gc.graphdef(parent))
    parent.child.parent = parent
    assert hash(gc.graphdef(parent)) == hash(gc.graphdef(gc.clone(parent)))


class Elementwise:
    def __init__(self, values):
        self.values = np.array(values)

    def __eq__(self, other):
        return self.values == other.values

    def __hash__(self):
        return 0

    def __deepcopy__(self, memo):
        raise TypeError("Else its content would tell.")


def test_a_static_value_without_a_clear_answer_is_named():
    node, twin = gc.Dict(table=Elementwise([1, 2])), gc.Dict(table=Elementwise([1, 2]))
    with pytest.raises(ValueError, match="truth value") as raised:
        gc.graphdef(node) == gc.graphdef(twin)  # noqa: B015
    assert "static attribute 'table' of type Elementwise" in raised.value.__notes__[0]
