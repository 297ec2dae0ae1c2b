"""What can be wrong with a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

_MAX_LINES = 20


class DamagedCheckpointError(ValueError):
    """A checkpoint that is not whole: cut off, or its saving did not finish.

    Example:
        >>> issubclass(DamagedCheckpointError, ValueError)
        True
    """


class Difference(NamedTuple):
    """One way in which a file and a graph differ.

    Args:
        path: Where.
        kind: In what respect: `missing` in the file, `new` in the file, variable
            `type`, `shape`, `dtype`, or `sharing`.
        graph: What the graph has there.
        file: What the file has.

    Example:
        >>> print(Difference('layers/0/kernel', 'shape', (2, 3), (2, 4)))
        layers/0/kernel: shape (2, 3) in the graph, (2, 4) in the file
    """

    path: str
    kind: str
    graph: Any
    file: Any

    def __str__(self) -> str:
        if self.kind == "missing":
            return f"{self.path}: {self.graph} in the graph, missing in the file"
        if self.kind == "new":
            return f"{self.path}: {self.file} in the file, not in the graph"
        sides = f"{self.graph} in the graph, {self.file} in the file"
        return f"{self.path}: {self.kind} {sides}"


class DifferentGraphError(ValueError):
    """A checkpoint of another graph; nothing was changed.

    Args:
        differences: All of them.
        file: The checkpoint.

    Attributes:
        differences: A tuple of `Difference`s.

    Example:
        >>> print(DifferentGraphError([Difference('w', 'shape', (2,), (3,))], 'run'))
        The checkpoint 'run' does not fit the graph; nothing was changed:
          w: shape (2,) in the graph, (3,) in the file
        Restore a part with `filter=`, or make the graph as it was when it was saved.
    """

    differences: tuple[Difference, ...]

    def __init__(self, differences: Sequence[Difference], file: str) -> None:
        self.differences = tuple(differences)
        self._file = file
        super().__init__(self.differences, file)

    def __str__(self) -> str:
        lines = [f"  {difference}" for difference in self.differences[:_MAX_LINES]]
        if len(self.differences) > len(lines):
            lines.append(f"  ... {len(self.differences) - len(lines)} more")
        return (
            f"The checkpoint {self._file!r} does not fit the graph; nothing was "
            "changed:\n"
            + "\n".join(lines)
            + "\nRestore a part with `filter=`, or make the graph as it was when it "
            "was saved."
        )
