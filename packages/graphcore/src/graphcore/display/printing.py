"""Readable text for any object: nested, indented, bounded, and safe from cycles.

`parts` says what stands inside an object; `text` lays it out. This module knows arrays
and Python's own containers only. Types of this package tell what is inside them by a
method `__parts__`; for nodes and variables of any type, `descriptions` does.

The layout never shows more than `MAX_DEPTH` levels and `MAX_ITEMS` entries, so that a
look at a large graph stays cheap and readable.
"""

from __future__ import annotations

import contextvars
import functools
import re
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np

WIDTH = 88
MAX_DEPTH = 24
MAX_ITEMS = 2000
MAX_LEAF = 100
_INDENT = "  "
_CONTAINERS = (list, tuple, dict, set, frozenset)
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType)
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


class Parts(NamedTuple):
    """What is inside an object, for the layout.

    Args:
        name: What stands before the opening bracket.
        children: Labels, such as `kernel=`, with what they label.
        brackets: The opening and the closing one.
        has_identity: Whether the object is shown once, and by number after that.

    Example:
        >>> Parts('Point', [('x=', 1), ('y=', 2)]).brackets
        ('(', ')')
    """

    name: str
    children: Sequence[tuple[str, Any]]
    brackets: tuple[str, str] = ("(", ")")
    has_identity: bool = False


def parts(x: Any) -> Parts | None:
    """Returns what is inside an object; None if it is to be shown as a leaf.

    Args:
        x: Any object.

    Returns:
        Its parts.

    Example:
        >>> parts([True]).children, parts(True)
        ([('', True)], None)
    """
    kind = type(x)
    if kind is list:
        return Parts("", [("", v) for v in x], ("[", "]"))
    if kind is tuple:
        return Parts("", [("", v) for v in x], ("(", ",)" if len(x) == 1 else ")"))
    if kind is dict:
        return mapping_parts("", x.items())
    if kind in (set, frozenset):
        # Sorted by text, as the order of a set differs between processes.
        children = [("", v) for v in sorted(x, key=leaf_text)]
        if kind is set and x:
            return Parts("", children, ("{", "}"))
        return Parts(kind.__name__, children, ("({", "})") if x else ("(", ")"))
    if not issubclass(kind, _CONTAINERS):
        return parts_of_object(x)
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):  # a named tuple
        return call_parts(x, (), dict(zip(kind._fields, x, strict=True)))
    return None  # Other subclasses of containers may have a repr of their own.


def parts_of_object(x: Any) -> Parts | None:
    """As `parts`, for what is no container; `descriptions` replaces it."""
    return None


def mapping_parts(
    name: str,
    items: Iterable[tuple[Any, Any]],
    brackets: tuple[str, str] | None = None,
) -> Parts:
    """The parts of something that is shown like a dict, or like a call with one."""
    usual = ("({", "})") if name else ("{", "}")
    children = [(f"{leaf_text(key)}: ", value) for key, value in items]
    return Parts(name, children, brackets or usual)


def label(key: Any) -> str:
    """What stands before a child: `name=`, or the text of another key."""
    is_name = isinstance(key, str) and key.isidentifier()
    return f"{key}=" if is_name else f"{leaf_text(key)}: "


def call_parts(x: Any, values: Sequence[Any], named: Mapping[Any, Any]) -> Parts:
    """The parts of something that is shown like a call of its type."""
    fields = [(label(key), value) for key, value in named.items()]
    return Parts(type(x).__name__, [*(("", value) for value in values), *fields])


# Leaves


def array_text(x: Any) -> str:
    """Writes shape and dtype of an array, and the value of a concrete scalar.

    Args:
        x: Anything with a shape and a dtype: an array, a tracer, a random key, a
            `jax.ShapeDtypeStruct`.

    Returns:
        Such as `float32[2,3]`, with a remark for what is not a live `jax.Array`.

    Example:
        >>> import jax.numpy as jnp
        >>> array_text(jnp.ones((2, 3))), array_text(jnp.array(3))
        ('float32[2,3]', 'int32[] 3')
    """
    kind = f"{getattr(x.dtype, 'name', x.dtype)}[{','.join(map(str, x.shape))}]"
    if isinstance(x, jax.core.Tracer):
        return f"{kind} (traced)"
    if isinstance(x, jax.ShapeDtypeStruct):
        return f"{kind} (abstract)"
    if isinstance(x, jax.Array) and x.is_deleted():
        return f"{kind} (deleted)"
    if isinstance(x, jax.Array | np.ndarray) and x.shape == ():
        kind += _scalar_text(x)
    return f"{kind} (numpy)" if isinstance(x, np.ndarray) else kind


def _scalar_text(x: Any) -> str:
    # A random key has no such value, an array of another process no value here, and
    # the computation behind one may have failed: all of these raise.
    try:
        return f" {_cut(str(np.asarray(x)))}"
    except Exception:
        return ""


def _cut(line: str, width: int = MAX_LEAF) -> str:
    return line if len(line) <= width else f"{line[: width - 3]}..."


def leaf_text(x: Any) -> str:
    """Writes an object on one line of bounded length, whatever it is.

    Args:
        x: Any object.

    Returns:
        Shape and dtype of an array, the name of a class or function, else the `repr`,
        without line breaks and cut where it is long. If that raises, the type.

    Example:
        >>> leaf_text(print), leaf_text('a' * 1000)[-5:]
        ('<function print>', 'aa...')
    """
    try:
        return _leaf_text(x)
    except Exception:
        return f"<{type(x).__name__}, unreadable>"


def _leaf_text(x: Any) -> str:
    if isinstance(x, type):
        return x.__name__
    # The repr of a function shows an address, that of a method the whole object.
    name = getattr(x, "__name__", None) if callable(x) else None
    if isinstance(name, str):
        kind = "function" if isinstance(x, _FUNCTIONS) else type(x).__name__
        return _cut(f"<{kind} {name}>")
    is_array = isinstance(x, jax.Array | np.ndarray | jax.ShapeDtypeStruct)
    if is_array or (isinstance(x, jax.core.Tracer) and hasattr(x, "shape")):
        return array_text(x)
    if isinstance(x, str | bytes):
        return _cut(repr(x[: MAX_LEAF + 1]))
    return _cut(" ".join(_ADDRESS.sub("", repr(x)).split()))


# The layout


@dataclass(eq=False)
class _Item:
    """One line of the layout, or the two that hold its children."""

    label: str
    value: Any = None  # kept alive, so that its id stays unique during the walk
    head: str = ""  # the whole text of a leaf, or the opening bracket
    name: str = ""
    close: str = ""
    children: list[_Item] = field(default_factory=list)
    is_referenced: bool = False
    number: str = ""
    target: _Item | None = None

    @property
    def opening(self) -> str:
        if self.target is not None:
            return f"{self.label}<{self.name}{self.target.number}, {self.head}>"
        return f"{self.label}{self.name}{self.number}{self.head}"

    @functools.cached_property
    def flat(self) -> str:
        inside = ", ".join([child.flat for child in self.children])
        return f"{self.opening}{inside}{self.close}"

    def lines(self, width: float, margin: str = "", tail: str = "") -> Iterator[str]:
        line = f"{margin}{self.flat}{tail}"
        if len(line) <= width or not self.children:
            yield line
            return
        yield f"{margin}{self.opening}"
        for child in self.children:
            yield from child.lines(width, margin + _INDENT, ",")
        yield f"{margin}{self.close.removeprefix(',')}{tail}"


def _safe_parts(x: Any) -> Parts | None:
    try:
        is_leaf = isinstance(x, type | jax.Array | np.ndarray)
        return None if is_leaf else parts(x)
    except Exception:
        return None


class _Walk:
    """Makes items of what is shown, parents first, and numbers what is shared."""

    def __init__(self, root: Any, max_items: int) -> None:
        self.left = max_items
        self.seen: dict[int, _Item] = {}
        self.open: set[int] = set()
        self.root = self.visit("", root)
        referenced = [item for item in self.seen.values() if item.is_referenced]
        for number, item in enumerate(referenced, 1):
            item.number = f"#{number}"

    def visit(self, label: str, value: Any) -> _Item:
        item = _Item(label, value)
        self.left -= 1
        target = self.seen.get(id(value))
        if target is not None:
            target.is_referenced = True
            item.target, item.name = target, target.name
            item.head = "cycle" if id(value) in self.open else "shared"
            return item
        inside = _safe_parts(value)
        if inside is None:
            item.head = leaf_text(value)
            return item
        item.name = inside.name
        item.head, item.close = inside.brackets
        if inside.has_identity:
            self.seen[id(value)] = item
        if not inside.children:
            return item
        if id(value) in self.open or len(self.open) >= MAX_DEPTH:
            item.head += "..."
            return item
        self.open.add(id(value))
        for shown, child in enumerate(inside.children):
            if self.left <= 0:
                rest = f"... {len(inside.children) - shown} more"
                item.children.append(_Item("", head=rest))
                break
            item.children.append(self.visit(*child))
        self.open.discard(id(value))
        return item


# Whether this thread is inside `text`.
_busy = contextvars.ContextVar("_busy", default=False)


def text(x: Any, *, width: float = WIDTH) -> str:
    """Writes an object with everything inside it, in a form for reading.

    An object with identity that is reached again is shown by its number: `shared` if
    it was complete by then, `cycle` if it is around the place that refers to it.
    Arrays are shown by dtype and shape.

    Args:
        x: Any object.
        width: What fits in so many columns stays on one line.

    Returns:
        The text; never longer than a bound, however large the object is.

    Example:
        >>> import graphcore as gc, jax.numpy as jnp
        >>> tied = gc.Dict(encode=gc.Param(jnp.ones((2, 3))))
        >>> tied.decode, tied.me = tied.encode, tied
        >>> print(text(tied, width=50))
        Dict#1({
          'decode': Param#2(float32[2,3]),
          'encode': <Param#2, shared>,
          'me': <Dict#1, cycle>,
        })
    """
    # The repr of a foreign object may come back here with an object of ours, even one
    # that is being shown. Names are enough then.
    if _busy.get():
        return f"<{type(x).__name__}>"
    token = _busy.set(True)
    try:
        return "\n".join(_Walk(x, MAX_ITEMS).root.lines(width))
    finally:
        _busy.reset(token)


def one_line(x: Any, width: int = MAX_LEAF) -> str:
    """Writes an object as `text` does, but on one line, cut where it is too long.

    Args:
        x: Any object.
        width: The bound of the length.

    Returns:
        The line.

    Example:
        >>> one_line({'a': list(range(100))}, width=20)
        "{'a': [0, 1, 2, 3..."
    """
    # Each entry takes a column at least, so more of them can't be seen.
    return _cut(_Walk(x, width).root.flat, width)


def treescope_repr(x: Any, path: str | None, subtree_renderer: Any) -> Any:
    """Renders an object for treescope; what a `__treescope_repr__` may return.

    Args:
        x: An object that `parts` knows.
        path: As treescope passes it.
        subtree_renderer: As treescope passes it.

    Returns:
        A rendering; `NotImplemented` if there is nothing inside the object.
    """
    from treescope import rendering_parts

    inside = parts(x)
    if inside is None:
        return NotImplemented
    children = [
        rendering_parts.siblings_with_annotations(
            before, subtree_renderer(value, path=_child_path(path, before))
        )
        for before, value in inside.children
    ]
    return rendering_parts.build_foldable_tree_node_from_children(
        f"{inside.name}{inside.brackets[0]}",
        children,
        inside.brackets[1].removeprefix(","),
        comma_separated=True,
        path=path,
    )


def _child_path(path: str | None, label: str) -> str | None:
    if path is None:
        return None
    if label.endswith("="):
        return f"{path}.{label[:-1]}"
    return f"{path}[{label[:-2]}]" if label.endswith(": ") else None
