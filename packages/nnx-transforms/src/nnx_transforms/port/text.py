"""A source text that is edited in places which a syntax tree tells."""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["Position", "Text"]


class Position(NamedTuple):
    """A place in a source text, as syntax trees count it.

    Args:
        line: the number of the line, from 1 on.
        column: the number of bytes before it in UTF-8.
    """

    line: int
    column: int


class Text:
    """A source text and its edits, which are made all at once.

    Args:
        source: the text.

    Example:
        >>> from nnx_transforms.port.text import Position, Text
        >>> text = Text('a = b')
        >>> text.replace(Position(1, 4), Position(1, 5), 'c')
        >>> text.edited()
        'a = c'
    """

    def __init__(self, source: str) -> None:
        self.source = source
        # Python ends lines at these, unlike str.splitlines.
        self._lines = re.split(r"(?<=\n)|(?<=\r)(?!\n)", source)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))
        self._edits: list[tuple[int, int, str]] = []
        self.newline = "\r\n" if "\r\n" in source else "\n"

    def offset(self, position: Position) -> int:
        """The number of characters before a position."""
        line = self._lines[position.line - 1]
        before = line.encode("utf-8")[: position.column].decode("utf-8")
        return self._starts[position.line - 1] + len(before)

    def between(self, start: Position, end: Position) -> str:
        """The characters from `start` to before `end`."""
        return self.source[self.offset(start) : self.offset(end)]

    def indent(self, line: int) -> str:
        """The white space that a line starts with."""
        match = re.match(r"[ \t\f]*", self._lines[line - 1])
        return match.group() if match else ""

    def line_end(self, position: Position) -> Position:
        """The end of a line, before what ends it, from a position on."""
        line = self._lines[position.line - 1].rstrip("\r\n")
        return Position(position.line, len(line.encode("utf-8")))

    def replace(self, start: Position, end: Position, new: str) -> None:
        """Notes an edit.

        Args:
            start: where it starts.
            end: before what it ends.
            new: the characters to put there.
        """
        self.replace_at(self.offset(start), self.offset(end), new)

    def replace_at(self, start: int, end: int, new: str) -> None:
        """`replace`, between offsets."""
        self._edits.append((start, end, new))

    def edited(self) -> str:
        """The text with all edits."""
        out, last = [], 0
        # Of edits at one place, those that only insert come first, in their order.
        for start, end, new in sorted(self._edits, key=lambda edit: edit[:2]):
            out += [self.source[last:start], new]
            last = end
        return "".join([*out, self.source[last:]])
