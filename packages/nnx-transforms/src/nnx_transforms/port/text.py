"""A source text that is edited in places which a syntax tree tells."""

from __future__ import annotations

import ast
import re

__all__ = ["Node", "Text"]

Node = ast.expr | ast.stmt | ast.alias | ast.arg


class Text:
    """A source text and its edits, which are made all at once.

    Places are counted in bytes of UTF-8, as syntax trees do.

    Args:
        source: the text.

    Example:
        >>> import ast
        >>> from nnx_transforms.port.text import Text
        >>> text = Text('a = b')
        >>> text.replace(ast.parse('a = b').body[0].value, 'c')
        >>> text.edited()
        'a = c'
    """

    def __init__(self, source: str) -> None:
        self._data = source.encode()
        # Python ends lines at these, unlike str.splitlines.
        ends = re.finditer(rb"\r\n?|\n", self._data)
        self._starts = [0, *(end.end() for end in ends)]
        self._edits: list[tuple[int, int, bytes]] = []
        self.newline = "\r\n" if "\r\n" in source else "\n"

    def span(self, node: Node) -> tuple[int, int]:
        """Where a node starts, and where it ends."""
        end = self._starts[(node.end_lineno or node.lineno) - 1]
        start = self._starts[node.lineno - 1]
        return start + node.col_offset, end + (node.end_col_offset or 0)

    def between(self, start: int, end: int) -> str:
        """The characters from `start` to before `end`."""
        return self._data[start:end].decode()

    def line(self, place: int) -> tuple[str, str]:
        """The characters of a line before and after a place."""
        before = re.split(rb"[\r\n]", self._data[:place])[-1]
        after = re.split(rb"[\r\n]", self._data[place:], maxsplit=1)[0]
        return before.decode(), after.decode()

    def replace(self, node: Node, new: str) -> None:
        """Notes that a node becomes `new`."""
        self.replace_between(*self.span(node), new)

    def replace_between(self, start: int, end: int, new: str) -> None:
        """Notes that what is from `start` to before `end` becomes `new`."""
        self._edits.append((start, end, new.encode()))

    def edited(self) -> str:
        """The text with all edits."""
        out, last = [], 0
        # Of edits at one place, those that only insert come first, in their order.
        for start, end, new in sorted(self._edits, key=lambda edit: edit[:2]):
            out += [self._data[last:start], new]
            last = end
        return b"".join([*out, self._data[last:]]).decode()
