"""Looking at a graph: in a notebook, as text, and as a drawing.

A drawing has a box for each graph node and each variable, so what is shared is drawn
once, with several arrows. A container without identity, such as a list, has a box if
there is a node or variable in it; else it is listed in the box of its owner, as static
attributes are.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import graphcore.display.descriptions  # noqa: F401  (tells what is inside our objects)
from graphcore.display.printing import leaf_text, one_line, text, treescope_repr
from graphcore.nodes.registry import GraphNodeImpl, Pairs, find_impl, is_graph_node
from graphcore.variables.impl import VariableImpl, is_variable

__all__ = ["display", "to_dot", "to_mermaid"]


def display(*nodes: Any) -> None:
    """Shows objects: as an interactive tree in a notebook, else as printed text.

    The tree needs treescope, which `pip install graphcore[display]` brings along.

    Args:
        *nodes: Any objects.

    Example:
        >>> import graphcore as gc, jax.numpy as jnp
        >>> display(gc.Dict(kernel=gc.Param(jnp.ones((2, 3)))))
        Dict({'kernel': Param(float32[2,3])})
    """
    treescope = _treescope()
    if treescope is None:
        for node in nodes:
            print(text(node))
        return
    renderer = treescope.active_renderer.get().extended_with(handlers=[_render])
    with treescope.active_renderer.set_scoped(renderer):
        for node in nodes:
            treescope.display(node, ignore_exceptions=True)


def _treescope() -> Any:
    """Treescope, if it is there and this is a notebook."""
    # Whoever is in a notebook has imported IPython already.
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if not hasattr(shell, "kernel"):  # only the shell of a notebook has one
        return None
    try:
        import treescope
    except ImportError:
        return None
    return treescope


def _render(node: Any, path: str | None, subtree_renderer: Any) -> Any:
    """A handler for treescope, which knows Python's containers well enough itself."""
    is_ours = hasattr(type(node), "__parts__")
    if is_ours or is_variable(node) or is_graph_node(node):
        return treescope_repr(node, path, subtree_renderer)
    return NotImplemented


@dataclass(slots=True, eq=False)
class _Box:
    """A node or variable in a drawing."""

    value: Any  # kept alive, so that its id stays unique during the walk
    kind: str  # "node", "variable", or "container" for one without identity
    lines: list[str]
    # The key, what the arrow leads to, and whether that is around this box.
    arrows: list[tuple[Any, _Box, bool]] = field(default_factory=list)
    name: str = ""


def _boxes(root: Any) -> list[_Box]:
    """The boxes of all that can be reached from a node, in order of first visit."""
    boxes: dict[int, _Box] = {}
    listed: set[_Box] = set()  # in the boxes of their owners
    open_ids: set[int] = set()
    stack: list[tuple[_Box, Pairs, Iterator[tuple[Any, Any]]]] = []

    def visit(value: Any) -> None:
        box = _Box(value, "variable", [type(value).__name__])
        impl = find_impl(value)
        if isinstance(impl, VariableImpl):
            box.lines.append(one_line(impl.get_value(value)))
            metadata = impl.get_metadata(value)
            box.lines += [f"{key} = {one_line(v)}" for key, v in metadata.items()]
        elif impl is not None:
            box.kind = "node" if isinstance(impl, GraphNodeImpl) else "container"
            children, _ = impl.flatten(value)
            open_ids.add(id(value))
            stack.append((box, children, iter(children)))
        else:
            return  # static
        boxes[id(value)] = box

    visit(root)
    if not boxes:
        raise ValueError(
            f"Cannot draw an object of type {type(root).__name__}: expected a graph "
            "node, a pytree node or a variable."
        )
    while stack:
        box, children, pending = stack[-1]
        for _, child in pending:
            if id(child) not in boxes:
                visit(child)
                if stack[-1][0] is not box:
                    break
        else:
            # All boxes below are complete, except those that arrows lead back to.
            for key, child in children:
                target = boxes.get(id(child))
                if target is None:
                    box.lines.append(f"{key} = {leaf_text(child)}")
                elif target in listed:
                    box.lines.append(f"{key} = {one_line(child)}")
                else:
                    box.arrows.append((key, target, id(child) in open_ids))
            stack.pop()
            open_ids.discard(id(box.value))
            if box.kind == "container" and stack and not box.arrows:
                listed.add(box)
    drawn = [box for box in boxes.values() if box not in listed]
    for number, box in enumerate(drawn):
        box.name = f"n{number}"
    return drawn


def _clean(line: str) -> str:
    """A label without line breaks, and with escapes for what can't be printed."""
    line = " ".join(line.split())
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)


# Mermaid

# Renderers read labels as Markdown, even outside backquotes: what could be taken for a
# list, a link, emphasis, an icon, or markup is written as a character code.
_MERMAID_SPECIAL = re.compile(
    r"[^\w .,:=/+'()\[\]{}-]"
    r"|^[-+=]|(?<=\])\(|:(?! )"
    r"|(?<![^\W_])_|_(?![^\W_])"
    r"|(?<=^\d)[.)](?=\s|$)|(?<=^\d\d)[.)](?=\s|$)"
)
_MERMAID_SHAPES = {"node": '["{}"]', "container": '[/"{}"/]', "variable": '(["{}"])'}


def to_mermaid(node: Any, /) -> str:
    """Writes an object graph as a Mermaid flowchart.

    Nodes are rectangles, variables rounded, containers without identity slanted. A
    shared node or variable stands there once. An arrow back to a node that contains
    its origin, which closes a cycle, is dashed.

    Args:
        node: A graph node, a pytree node, or a variable.

    Returns:
        The text of the diagram; see https://mermaid.js.org/syntax/flowchart.html.

    Raises:
        ValueError: If it is neither a node nor a variable.

    Example:
        >>> import graphcore as gc, jax.numpy as jnp
        >>> tied = gc.Dict(encode=gc.Param(jnp.ones((2, 3))), rate=0.1)
        >>> tied.decode, tied.me = tied.encode, tied
        >>> print(to_mermaid(tied))
        flowchart TD
          n0["Dict<br/>rate = 0.1"]
          n1(["Param<br/>float32[2,3]"])
          n0 -->|"decode"| n1
          n0 -->|"encode"| n1
          n0 -.->|"me"| n0
    """
    boxes = _boxes(node)
    lines = ["flowchart TD"]
    for box in boxes:
        label = "<br/>".join(map(_mermaid_label, box.lines))
        lines.append(f"  {box.name}{_MERMAID_SHAPES[box.kind].format(label)}")
    for box in boxes:
        for key, target, is_back in box.arrows:
            line, label = "-.->" if is_back else "-->", _mermaid_label(key)
            lines.append(f'  {box.name} {line}|"{label}"| {target.name}')
    return "\n".join(lines)


def _mermaid_label(content: Any) -> str:
    line = _clean(str(content))
    return _MERMAID_SPECIAL.sub(lambda found: f"#{ord(found[0])};", line) or " "


# DOT

_DOT_SHAPES = {"node": "box", "container": "parallelogram", "variable": "ellipse"}


def to_dot(node: Any, /) -> str:
    r"""Writes an object graph in Graphviz's DOT language.

    Nodes are boxes, variables ellipses, containers without identity slanted. A shared
    node or variable stands there once. An arrow back to a node that contains its
    origin, which closes a cycle, is dashed.

    Args:
        node: A graph node, a pytree node, or a variable.

    Returns:
        The text of the graph; see https://graphviz.org/doc/info/lang.html.

    Raises:
        ValueError: If it is neither a node nor a variable.

    Example:
        >>> import graphcore as gc, jax.numpy as jnp
        >>> tied = gc.Dict(encode=gc.Param(jnp.ones((2, 3))), rate=0.1)
        >>> tied.decode, tied.me = tied.encode, tied
        >>> print(to_dot(tied))
        digraph {
          n0 [shape=box, label="Dict\nrate = 0.1"];
          n1 [shape=ellipse, label="Param\nfloat32[2,3]"];
          n0 -> n1 [label="decode"];
          n0 -> n1 [label="encode"];
          n0 -> n0 [label="me", style=dashed];
        }
    """
    boxes = _boxes(node)
    lines = ["digraph {"]
    for box in boxes:
        label = r"\n".join(map(_dot_label, box.lines))
        lines.append(f'  {box.name} [shape={_DOT_SHAPES[box.kind]}, label="{label}"];')
    for box in boxes:
        for key, target, is_back in box.arrows:
            style = ", style=dashed" if is_back else ""
            label = _dot_label(key)
            lines.append(f'  {box.name} -> {target.name} [label="{label}"{style}];')
    lines.append("}")
    return "\n".join(lines)


def _dot_label(content: Any) -> str:
    line = _clean(str(content)).replace("\\", "\\\\").replace('"', '\\"')
    return line.replace("&", "&amp;")  # entities are replaced in labels
