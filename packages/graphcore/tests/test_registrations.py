"""Registrations that are refused, and functions in them that do not fit."""

import operator

import pytest

import graphcore as gc
from graphcore.authors import enter


def register_node(kind, **given):
    functions = {
        "flatten": lambda node: ([*vars(node).items()], None),
        "set_key": setattr,
        "pop_key": lambda node, key: vars(node).pop(key),
        "create_empty": lambda metadata: kind(),
        "clear": lambda node: vars(node).clear(),
        "init": lambda node, pairs: vars(node).update(pairs),
    }
    gc.register_graph_node_type(kind, **(functions | given))


def register_variable(kind, **given):
    functions = {
        "get_value": lambda x: x.held,
        "set_value": lambda x, value: setattr(x, "held", value),
        "get_metadata": lambda x: {},
        "create": lambda kind, value, metadata: kind(value),
    }
    gc.register_variable_type(kind, **(functions | given))


def node_class():
    return type("Node", (), {})


def cell_class(*bases):
    return type("Cell", bases, {"__init__": lambda x, held: setattr(x, "held", held)})


def test_a_type_is_one_of_nodes_or_of_variables():
    node, cell = node_class(), cell_class()
    register_node(node)
    with pytest.raises(ValueError, match="is a node type"):
        register_variable(node)
    register_variable(cell)
    with pytest.raises(ValueError, match="is a variable type"):
        register_node(cell)
    base = node_class()
    register_node(
        base, subclasses=True, create_empty=lambda _, **given: given["type"]()
    )
    with pytest.raises(ValueError, match="is a node type"):
        register_variable(type("Below", (base,), {}))


@pytest.mark.parametrize("register", [register_node, register_variable])
def test_static_values_and_what_is_no_class_are_refused(register):
    for kind in (int, float, complex, str):
        with pytest.raises(ValueError, match=f"^{kind.__name__} can't be a"):
            register(kind)
    with pytest.raises(TypeError, match="takes a class"):
        register("Node")


def test_a_subclass_of_a_variable_type_can_have_functions_of_its_own():
    base = cell_class()
    below = cell_class(base)
    register_variable(base)
    assert gc.state(gc.Dict(x=below(1)))["x"].value == 1
    register_variable(below, get_value=lambda x: -x.held)
    assert gc.state(gc.Dict(x=below(1), y=base(1))).to_pure_dict() == {"x": -1, "y": 1}
    for kind in (base, below, gc.Param, type("Own", (gc.Param,), {})):
        with pytest.raises(ValueError, match="is a variable type already"):
            register_variable(kind)


def test_counterparts_are_for_subclasses():
    cell = cell_class()
    with pytest.raises(ValueError, match=r"\['int'\], which are no subclasses"):
        register_variable(cell, counterparts={int: gc.Param})
    assert not gc.is_variable(cell(1))


def test_a_state_of_counterparts_gives_values():
    weight = cell_class()
    register_variable(weight)
    gc.register_counterparts(weight, gc.Param)
    ours, theirs = gc.Dict(w=gc.Param(1, unit="m")), gc.Dict(w=weight(2))
    gc.update(ours, gc.state(theirs))
    assert (ours.w.value, ours.w.unit) == (2, "m")
    merged = gc.merge(gc.graphdef(ours), gc.state(gc.Dict(w=weight(3))))
    assert (type(merged.w), merged.w.value, merged.w.unit) == (gc.Param, 3, "m")
    gc.update(theirs, gc.state(gc.Dict(w=gc.Param(4, unit="s"))))
    assert theirs.w.held == 4
    assert gc.variable_name_from_type(weight) == "params"
    with pytest.raises(ValueError, match="of a Param, but there is a Cache"):
        gc.update(gc.Dict(w=gc.Cache(1)), gc.state(ours))


def test_a_registered_variable_is_no_value_of_another():
    cell = cell_class()
    register_variable(cell)
    ours = gc.Param(1)
    for value in (cell(1), gc.state(gc.Dict(w=cell(1)))["w"]):
        with pytest.raises(ValueError, match="cannot be a variable itself, got a "):
            ours.value = value
        with pytest.raises(ValueError, match="cannot be a variable itself, got a "):
            gc.Param(value)
    assert ours.value == 1
    ours.value = [cell(1)]  # below, it is a part of a pytree
    assert ours.value[0].held == 1


def test_types_of_one_name_are_told_apart():
    class Param(gc.Variable):
        pass

    here = r".*test_registrations.*\.<locals>\.Param"
    there = r"graphcore\.variables\.variable\.Param"
    state = gc.state(gc.Dict(w=Param(1)))
    with pytest.raises(ValueError, match=f"of a {here}, but there is a {there}"):
        gc.update(gc.Dict(w=gc.Param(1)), state)
    with pytest.raises(ValueError, match=f"into a {there} from a {here}"):
        gc.Param(1).copy_from(Param(2))


def test_containers_are_names():
    with pytest.raises(TypeError, match=r"write \['__dict__'\]"):
        register_node(node_class(), containers="__dict__")
    with pytest.raises(TypeError, match=r"write \['__dict__'\]"):
        gc.register_pytree_node_type(node_class(), None, None, containers="__dict__")


@pytest.mark.parametrize(
    ("flattened", "error", "message"),
    [
        ({"a": 1}, TypeError, "expected a tuple of two"),
        ([("a", 1)], TypeError, "expected a tuple of two"),
        (None, TypeError, "expected a tuple of two"),
        (([1, 2], None), TypeError, "pairs of a hashable key and a child"),
        (([([1], 2)], None), TypeError, "pairs of a hashable key and a child"),
        (([("a", 1), ("a", 2)], None), ValueError, "two children with the key 'a'"),
        (([(0, 1), (False, 2)], None), ValueError, "two children with the key False"),
    ],
)
def test_what_flatten_returns_is_checked(flattened, error, message):
    node = node_class()
    register_node(node, flatten=lambda _: flattened)
    for root, place in ((gc.Dict(here=node()), "'here'"), (node(), "'<root>'")):
        with pytest.raises(error, match=message) as found:
            gc.split(root)
        assert "Node" in str(found.value)
        assert place in str(found.value)


def test_children_from_a_generator():
    node = node_class()
    register_node(node, flatten=lambda x: (((k, v) for k, v in vars(x).items()), None))
    x = node()
    x.w = gc.Param(1.0)
    assert gc.clone(gc.Dict(x=x)).x.w.value == 1.0


def test_what_makes_objects_is_checked():
    node, cell = node_class(), cell_class()
    register_node(node, create_empty=lambda metadata: None)
    register_variable(cell, create=lambda kind, value, metadata: None)
    with pytest.raises(TypeError, match=r"`create_empty` that Node .* a NoneType"):
        gc.clone(gc.Dict(x=node()))
    with pytest.raises(TypeError, match=r"`create` that Cell .* variable at 'x'"):
        gc.clone(gc.Dict(x=cell(1.0)))


def test_there_is_metadata_for_each_variable():
    class Cell:
        def __init__(self, held):
            self.held, self.metadata = held, {}

    register_variable(
        Cell,
        get_metadata=operator.attrgetter("metadata"),
        get_all_metadata=lambda xs: [x.metadata for x in xs][:-1],
    )
    with pytest.raises(ValueError, match="1 mappings for 2 variables"):
        gc.split(gc.Dict(a=Cell(1.0), b=Cell(2.0)))


def test_arguments_are_given_as_a_tuple():
    with pytest.raises(TypeError, match=r"got a Dict: write `enter\(f, \(x,\)\)`"):
        enter(len, gc.Dict())
