import html
import re
import sys
import types

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import graphcore as gc


class Layer(gc.Object):
    def __init__(self):
        self.kernel = gc.Param(jnp.ones((2, 3)), sharding=("data", None))
        self.features = 3
        self.sizes = (1, 2)
        self.bias = None


# Strict readers of the two languages, for the part of them that is used. Each returns
# boxes as {name: (shape, label lines)} and arrows as [(from, label, to, is dashed)].

_MERMAID_TEXT = r'"((?:[^"#<>&`\n]|<br/>|#\d+;)*)"'
_MERMAID_BOX = re.compile(
    rf"  (\w+)(?:\[{_MERMAID_TEXT}\]|\(\[{_MERMAID_TEXT}\]\)|\[/{_MERMAID_TEXT}/\])"
)
_MERMAID_ARROW = re.compile(rf"  (\w+) (-->|-\.->)\|{_MERMAID_TEXT}\| (\w+)")


def _mermaid_lines(label):
    for line in label.split("<br/>"):
        assert not re.match(r"[-+=*>]|\d+[.)](\s|$)", line), "a Markdown list"
        assert not re.search(r"(?<![^\W_])_|_(?![^\W_])", line), "emphasis"
    return [
        re.sub(r"#(\d+);", lambda found: chr(int(found[1])), line)
        for line in label.split("<br/>")
    ]


def read_mermaid(content):
    first, *lines = content.split("\n")
    assert first == "flowchart TD"
    boxes, arrows = {}, []
    for line in lines:
        if box := _MERMAID_BOX.fullmatch(line):
            name, *labels = box.groups()
            assert name not in boxes
            shape = next(i for i, label in enumerate(labels) if label is not None)
            shape = ("node", "variable", "container")[shape]
            boxes[name] = (shape, _mermaid_lines(labels[box.lastindex - 2]))
        else:
            arrow = _MERMAID_ARROW.fullmatch(line)
            assert arrow, line
            start, stroke, label, end = arrow.groups()
            assert start in boxes and end in boxes
            (label,) = _mermaid_lines(label)
            arrows.append((start, label, end, stroke == "-.->"))
    return boxes, arrows


_DOT_TEXT = r'"((?:[^"\\\n]|\\["\\n])*)"'
_DOT_BOX = re.compile(rf"  (\w+) \[shape=(\w+), label={_DOT_TEXT}\];")
_DOT_ARROW = re.compile(rf"  (\w+) -> (\w+) \[label={_DOT_TEXT}(, style=dashed)?\];")
_DOT_SHAPES = {"box": "node", "ellipse": "variable", "parallelogram": "container"}


def _dot_lines(label):
    assert not re.search(r"&(?!amp;)", label), "an entity"
    parts = re.split(r"(\\.)", label)
    whole = "".join({"\\n": "\n", '\\"': '"', "\\\\": "\\"}.get(p, p) for p in parts)
    return html.unescape(whole).split("\n")


def read_dot(content):
    first, *lines, last = content.split("\n")
    assert (first, last) == ("digraph {", "}")
    boxes, arrows = {}, []
    for line in lines:
        if box := _DOT_BOX.fullmatch(line):
            name, shape, label = box.groups()
            assert name not in boxes
            boxes[name] = (_DOT_SHAPES[shape], _dot_lines(label))
        else:
            arrow = _DOT_ARROW.fullmatch(line)
            assert arrow, line
            start, end, label, dashed = arrow.groups()
            assert start in boxes and end in boxes
            (label,) = _dot_lines(label)
            arrows.append((start, label, end, dashed is not None))
    return boxes, arrows


def drawings(node):
    """What both languages say, which must be the same."""
    found = read_dot(gc.to_dot(node))
    assert read_mermaid(gc.to_mermaid(node)) == found
    return found


# Drawings


def test_a_box_says_what_its_object_is():
    assert drawings(Layer()) == (
        {
            "n0": (
                "node",
                ["Layer", "bias = None", "features = 3", "sizes = (1, 2)"],
            ),
            "n1": ("variable", ["Param", "float32[2,3]", "sharding = ('data', None)"]),
        },
        [("n0", "kernel", "n1", False)],
    )


def test_shared_variables_are_drawn_once_and_cycles_are_back_edges():
    x = gc.Dict(a=gc.Param(1))
    x.b, x.me, x.inner = x.a, x, gc.Dict(up=x, c=x.a)
    boxes, arrows = drawings(x)
    assert [lines[0] for _, lines in boxes.values()] == ["Dict", "Param", "Dict"]
    assert arrows == [
        ("n0", "a", "n1", False),
        ("n0", "b", "n1", False),
        ("n0", "inner", "n2", False),
        ("n0", "me", "n0", True),
        ("n2", "c", "n1", False),
        ("n2", "up", "n0", True),
    ]


def test_containers_have_a_box_if_there_is_something_in_them():
    layer = Layer()
    x = gc.Dict(
        full=[layer, {"again": layer}], plain=[1, (2, {"a": 3})], empty=[], none=None
    )
    x.same = x.plain
    boxes, arrows = drawings(x)
    assert [(shape, lines[0]) for shape, lines in boxes.values()] == [
        ("node", "Dict"),
        ("container", "list"),
        ("node", "Layer"),
        ("variable", "Param"),
        ("container", "dict"),
    ]
    assert boxes["n0"][1][1:] == [
        "empty = []",
        "none = None",
        "plain = [1, (2, {'a': 3})]",
        "same = [1, (2, {'a': 3})]",
    ]
    assert ("n4", "again", "n2", False) in arrows


def test_roots():
    assert drawings(gc.Param(1)) == ({"n0": ("variable", ["Param", "1"])}, [])
    assert drawings([]) == ({"n0": ("container", ["list"])}, [])
    assert drawings((gc.Param(1),))[1] == [("n0", "0", "n1", False)]
    for draw in (gc.to_dot, gc.to_mermaid):
        with pytest.raises(ValueError, match="int"):
            draw(3)


def test_containers_that_contain_themselves():
    x = [1]
    x.append(x)
    assert drawings(x)[1] == [("n0", "1", "n0", True)]
    y = [1]
    for _ in range(80):
        y = [y, y]
    assert len(drawings(gc.Dict(y=y))[0]) == 1
    z = [gc.Param(1)]
    for _ in range(80):
        z = [z, z]
    assert len(drawings(gc.Dict(z=z))[0]) == 83


def test_deep_graphs_are_drawn_whole():
    root = node = gc.Dict()
    for _ in range(3000):
        node.next = gc.Dict(w=gc.Param(1))
        node = node.next
    node.next = root
    boxes, arrows = drawings(root)
    assert (len(boxes), len(arrows)) == (6001, 6001)
    assert [arrow for arrow in arrows if arrow[3]] == [("n3000", "next", "n0", True)]


class _Odd:
    def __init__(self, shown):
        self.shown = shown

    def __repr__(self):
        return self.shown


AWKWARD = [
    'a"b',
    "<b>&amp;</b>",
    "back\\slash\\n\\",
    "`code` **bold** __init__ _x_",
    "1. first",
    "- item",
    "[link](target) http://x.org fa:fa-car",
    "#35; #quot;",
    "ünïcode 日本 🎉",
    "{curly|bar}",
    ";",
    "end",
]


@pytest.mark.parametrize("awkward", AWKWARD)
def test_awkward_text(awkward):
    x = gc.Dict(shown=_Odd(awkward))
    x[awkward] = gc.Param(1)
    boxes, arrows = drawings(x)
    assert boxes["n0"][1] == ["Dict", f"shown = {awkward}"]
    assert arrows == [("n0", awkward, "n1", False)]


def test_what_cannot_be_printed():
    x = gc.Dict(shown=_Odd("a\n\tb\x00\ud800"))
    x["new\nline\x7f"] = gc.Param(1)
    boxes, arrows = drawings(x)
    assert boxes["n0"][1] == ["Dict", r"shown = a b\x00\ud800"]
    assert arrows == [("n0", r"new line\x7f", "n1", False)]
    gc.to_dot(x).encode()
    gc.to_mermaid(x).encode()


@given(st.text(max_size=30), st.text(max_size=30))
def test_any_text(key, shown):
    x = gc.Dict(shown=_Odd(shown))
    x[f"k{key}"] = gc.Param(1)
    boxes, arrows = drawings(x)
    assert len(boxes) == 2
    assert len(arrows) == 1


@st.composite
def graphs(draw):
    variables = [gc.Param(np.zeros(draw(st.integers(0, 3)))) for _ in range(3)]
    nodes = [gc.Dict(id=i) for i in range(4)]
    for node in nodes:
        for key in draw(st.sets(st.sampled_from("abcd"))):
            child = draw(st.sampled_from([*nodes, *variables, 1, None, (1, 2)]))
            in_list = draw(st.booleans())
            node[key] = [child, draw(st.sampled_from(variables))] if in_list else child
    return nodes[0]


@given(graphs())
def test_each_node_and_variable_is_drawn_once(root):
    boxes, arrows = drawings(root)
    shapes = [shape for shape, _ in boxes.values()]
    reached = [value for _, value in gc.iter_graph(root)]
    assert shapes.count("node") == sum(map(gc.is_graph_node, reached))
    assert shapes.count("variable") == sum(map(gc.is_variable, reached))
    # Without the dashed arrows there is no cycle.
    below = {
        name: {end for s, _, end, back in arrows if s == name and not back}
        for name in boxes
    }
    while done := {name for name, ends in below.items() if not ends}:
        below = {n: ends - done for n, ends in below.items() if n not in done}
    assert not below


@given(graphs())
def test_arrows_and_listed_attributes_are_all_children(root):
    boxes, arrows = drawings(root)
    for name, (shape, lines) in boxes.items():
        if shape == "node":
            out = [label for start, label, _, _ in arrows if start == name]
            listed = [line.partition(" = ")[0] for line in lines[1:]]
            number = int(lines[[*listed, "id"].index("id") + 1].partition(" = ")[2])
            node = next(
                value
                for _, value in gc.iter_graph(root)
                if gc.is_graph_node(value) and value.id == number
            )
            assert sorted(out + listed) == sorted(node)


# display

# It looks at all of numpy, deprecated parts included.
TREESCOPE_WARNS = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def test_display_prints(capsys):
    gc.display(gc.Dict(a=gc.Param(jnp.ones(2))), [1, 2])
    assert capsys.readouterr().out == "Dict({'a': Param(float32[2])})\n[1, 2]\n"
    gc.display()
    assert capsys.readouterr().out == ""


@pytest.fixture
def notebook(monkeypatch):
    """Makes this process look like a notebook's; returns what treescope is shown."""
    treescope = pytest.importorskip("treescope")
    ipython = types.ModuleType("IPython")
    ipython.shell = types.SimpleNamespace(kernel=object())
    ipython.get_ipython = lambda: ipython.shell
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    shown = []

    def display(value, ignore_exceptions=False):
        shown.append(treescope.render_to_text(value))

    monkeypatch.setattr(treescope, "display", display)
    return shown


@TREESCOPE_WARNS
def test_display_in_a_notebook(notebook, capsys):
    shared = gc.Param(jnp.ones((2, 3)), unit="m")
    node = gc.Dict(a=shared, layer=Layer(), list=[shared, 1])
    graphdef, state = gc.split(node)
    gc.display(node, graphdef, state)
    assert capsys.readouterr().out == ""
    node_text, graphdef_text, state_text = notebook
    assert "Dict({" in node_text and "Param(" in node_text and "unit='m'" in node_text
    assert "Layer(" in node_text and "features=3" in node_text
    assert "NodeDef(Dict, index=0, {" in graphdef_text
    assert "State({" in state_text and "VariableState(" in state_text


@TREESCOPE_WARNS
def test_display_of_a_foreign_variable_in_a_notebook(notebook):
    class Cell:
        def __init__(self, content):
            self.content = content

    gc.register_variable_type(
        Cell,
        get_value=lambda cell: cell.content,
        set_value=lambda cell, value: setattr(cell, "content", value),
        get_metadata=lambda cell: {"unit": "m"},
        create=lambda kind, value, metadata: kind(value),
    )
    gc.display(Cell(1))
    assert "unit='m'" in notebook[0]


def test_display_in_a_terminal_ipython_prints(notebook, capsys):
    del sys.modules["IPython"].shell.kernel
    gc.display(gc.Param(1))
    assert capsys.readouterr().out == "Param(1)\n"
    assert not notebook


def test_display_in_a_notebook_without_treescope_prints(notebook, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "treescope", None)
    gc.display(gc.Param(1))
    assert capsys.readouterr().out == "Param(1)\n"
