import collections
import dataclasses
import gc as collector
import subprocess
import sys
import weakref

import graph_zoo as zoo
import jax
import jax.numpy as jnp
import pytest

import graphcore as gc


def test_questions():
    cases = [
        # value, node, graph node, pytree node
        (gc.Dict(), True, True, False),
        (zoo.Bag(), True, True, False),
        (zoo.Pair(1, 2), True, False, True),
        (zoo.JaxPair(1, 2), True, False, True),
        (zoo.Point(1, 2), True, False, True),
        (collections.OrderedDict(a=1), True, False, True),
        ([], True, False, True),
        ((), True, False, True),
        ({}, True, False, True),
        (None, True, False, True),
        (gc.State({}), True, False, True),
        (gc.Param(1), False, False, False),
        (zoo.Cell(1), False, False, False),
        (1, False, False, False),
        ("x", False, False, False),
        (jnp.ones(1), False, False, False),
        (object(), False, False, False),
        (zoo.Node, False, False, False),
    ]
    for x, is_node, is_graph_node, is_pytree_node in cases:
        assert gc.is_node(x) == is_node, x
        assert gc.is_graph_node(x) == is_graph_node, x
        assert gc.is_pytree_node(x) == is_pytree_node, x
        assert gc.is_node_type(type(x)) == is_node, x
    with pytest.raises(ValueError, match="got the class Node"):
        gc.state(zoo.Node)  # an instance was meant


def test_implementations_are_frozen():
    impl = gc.get_node_impl(zoo.Bag())
    assert isinstance(impl, gc.GraphNodeImpl)
    assert impl is gc.get_node_impl_for_type(zoo.Bag)
    assert isinstance(gc.get_node_impl([]), gc.PytreeNodeImpl)
    for x in (impl, gc.get_node_impl([])):
        with pytest.raises(dataclasses.FrozenInstanceError):
            x.type = int
    with pytest.raises(ValueError, match="object"):
        gc.get_node_impl(object())
    with pytest.raises(ValueError, match="int"):
        gc.get_node_impl_for_type(int)


def test_types_are_registered_once():
    nothing = dict.fromkeys(
        ("flatten", "set_key", "pop_key", "create_empty", "clear", "init")
    )
    for kind in (zoo.Bag, zoo.Pair, list, gc.Dict):
        with pytest.raises(ValueError, match=kind.__name__):
            gc.register_graph_node_type(kind, **nothing)
        with pytest.raises(ValueError, match=kind.__name__):
            gc.register_pytree_node_type(kind, None, None)


def test_subclasses_of_foreign_types_are_registered_on_their_own():
    class SubBag(zoo.Bag):
        pass

    assert not gc.is_node(SubBag())


def test_a_foreign_graph_node_can_be_a_root_and_is_changed_in_place():
    bag = zoo.Bag("label")
    bag.items = {2: gc.Param(jnp.array(1)), "a": zoo.Node(), 1: "x"}
    bag.items["a"].bag = bag
    with gc.update_context("test") as ctx:
        inner = ctx.merge(*ctx.split(bag))
        assert inner.label == "label"
        inner.items["new"] = gc.Param(jnp.array(2))
        del inner.items[1]
        assert ctx.merge(*ctx.split(inner)) is bag
    assert list(bag.items) == [2, "a", "new"]
    gc.update(bag, {"more": gc.Param.state(3)})
    assert bag.items["more"].value == 3
    assert set(gc.pop(bag, gc.Param)) == {2, "new", "more"}
    assert list(bag.items) == ["a"]


@jax.tree_util.register_pytree_node_class
class NoKeys:
    def __init__(self, a, b):
        self.a, self.b = a, b

    def tree_flatten(self):
        return (self.a, self.b), None

    @classmethod
    def tree_unflatten(cls, aux, children):
        return cls(*children)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Data:
    x: object
    y: object = None
    static: str = dataclasses.field(default="s", metadata={"static": True})


def test_every_kind_of_jax_pytree_is_a_node():
    node = gc.Dict(
        a=NoKeys(gc.Param(1), [gc.Param(2)]),
        b=Data(gc.Param(3), static="t"),
        c=collections.OrderedDict(z=gc.Param(4), y=gc.Param(5)),
        d=collections.defaultdict(list, k=gc.Param(6)),
        e=jax.tree_util.Partial(abs, gc.Param(7)),
        f=zoo.Point(gc.Param(8), None),
        g=gc.State({"s": gc.Param(9)}),
    )
    twin = gc.clone(node)
    assert (twin.a.a.value, twin.a.b[0].value) == (1, 2)
    assert (twin.b.x.value, twin.b.static) == (3, "t")
    assert list(twin.c) == ["z", "y"]
    assert twin.d.default_factory is list
    assert twin.e.args[0].value == 7
    assert type(twin.f) is zoo.Point
    assert twin.g.s.value == 9
    assert gc.graphdef(node) == gc.graphdef(twin)
    assert len(gc.state(node).flat_state()) == 9
    node.b.static = "u"
    assert gc.graphdef(node) != gc.graphdef(twin)
    assert gc.state(node)["a"].flat_state().paths[0] == (0,)


def test_lists_and_dicts_of_other_types_are_static():
    class Sub(list):
        pass

    node = gc.Dict(x=Sub([1]))
    assert gc.clone(node).x is node.x
    before = gc.graphdef(node)
    assert hash(before) == hash(gc.graphdef(gc.Dict(x=Sub([1]))))
    node.x.append(2)
    assert gc.graphdef(node) != before


def test_types_that_jax_knows_are_known_without_an_instance():
    @jax.tree_util.register_pytree_node_class
    class Unseen:
        def __init__(self):
            raise AssertionError

        def tree_flatten(self):
            raise AssertionError

        @classmethod
        def tree_unflatten(cls, aux, children):
            raise AssertionError

    class Unregistered:
        pass

    pair = collections.namedtuple("pair", "a b")
    for kind in (Unseen, pair, collections.OrderedDict, collections.defaultdict):
        assert gc.is_node_type(kind)
        assert isinstance(gc.get_node_impl_for_type(kind), gc.PytreeNodeImpl)
    for kind in (Unregistered, set, jax.Array, gc.Param, type, str):
        assert not gc.is_node_type(kind)


def test_definitions_with_jax_pytrees_can_be_merged_in_another_process():
    code = (
        "import collections, pickle, sys, graphcore as gc;"
        "node = gc.Dict(o=collections.OrderedDict(b=gc.Param(1), a=gc.Param(2)));"
    )
    dump = "sys.stdout.buffer.write(pickle.dumps(gc.graphdef(node)))"
    load = (
        "g = pickle.loads(sys.stdin.buffer.read());"
        "assert list(gc.merge(g, {'o': {'a': 3, 'b': 4}}).o) == ['b', 'a']"
    )
    made = subprocess.run(
        [sys.executable, "-c", code + dump], capture_output=True, check=True
    )
    fresh = "import pickle, sys, graphcore as gc;" + load
    subprocess.run([sys.executable, "-c", fresh], input=made.stdout, check=True)


@pytest.mark.parametrize(
    "register",
    [
        gc.register_dataclass,
        gc.register_filtered_type,
        gc.register_immutable_type,
        gc.variable_name_from_type,
        lambda x: gc.register_variable_name_type_pair("name", x),
    ],
)
@pytest.mark.parametrize("given", [None, "Param", 3, gc.Param(1)])
def test_what_is_no_class_is_refused(register, given):
    with pytest.raises(TypeError, match=r"takes a class, but got"):
        register(given)


def test_an_adapter_that_fails_keeps_nothing_of_its_callers(tmp_path, monkeypatch):
    (tmp_path / "odd_library.py").write_text("class Odd: pass\n")
    (tmp_path / "odd_adapter.py").write_text("raise ImportError('too odd')\n")
    monkeypatch.syspath_prepend(tmp_path)
    gc.register_adapter("odd_library", "odd_adapter")
    import odd_library

    def meets_it():
        node = gc.Dict(a=1)
        with pytest.raises((ImportError, gc.AdapterError), match="too odd"):
            gc.is_node(odd_library.Odd())
        return weakref.ref(node)

    references = [meets_it(), meets_it()]
    collector.collect()
    assert [reference() for reference in references] == [None, None]


def test_an_adapter_for_a_library_that_was_met_is_loaded_at_once(tmp_path, monkeypatch):
    (tmp_path / "late_library.py").write_text("class Late: pass\nloaded = []\n")
    for name in ("late_one", "late_two"):
        text = f"import late_library\nlate_library.loaded.append({name!r})\n"
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    gc.register_adapter("late_library", "late_one")
    import late_library

    assert late_library.loaded == []
    assert not gc.is_node(late_library.Late())
    assert late_library.loaded == ["late_one"]
    gc.register_adapter("late_library", "late_two")
    assert late_library.loaded == ["late_one", "late_two"]


def test_what_runs_outside_is_known_also_if_the_first_import_was_in_a_trace():
    code = """
import jax

@jax.jit
def traced(x):
    from graphcore.authors import OUTSIDE, current_trace
    assert current_trace() != OUTSIDE
    return x

traced(1.0)
from graphcore.authors import OUTSIDE, current_trace
assert current_trace() is OUTSIDE
"""
    subprocess.run([sys.executable, "-c", code], check=True)
