"""Copies of many dicts that lie side by side in memory.

To compare thousands of dicts is mostly to wait for them, where they lie in the gaps
that a compilation left in the heap. Nobody can tell Python where an object shall go;
but it fills the gaps first, so that after enough copies the next ones follow one
another.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

# At most so many copies of all dicts, each 0.5 us a dict. For 6,001 variables two to
# five were enough to fill the gaps that compiling leaves.
_MOST = 32
# From one dict to the next, in bytes, with some room for what lies between them.
_NEAR = 128


def copies_side_by_side(dicts: Sequence[dict[Any, Any]]) -> list[dict[Any, Any]]:
    """Copies dicts until the copies lie next to each other.

    Args:
        dicts: Any dicts.

    Returns:
        A copy of each, in the same order. With few dicts, or a heap with more gaps than
        can be filled in reasonable time, they lie where they may.

    Example:
        >>> copies_side_by_side([{'a': 1}, {'b': 2}])
        [{'a': 1}, {'b': 2}]
    """
    copies = [each.copy() for each in dicts]
    in_gaps = []  # kept until the end, so that the gaps stay filled
    for _ in range(_MOST):
        if _lie_side_by_side(copies):
            break
        in_gaps.append(copies)
        copies = [each.copy() for each in dicts]
    return copies


def _lie_side_by_side(dicts: Sequence[dict[Any, Any]]) -> bool:
    steps = (after - before for before, after in pairwise(map(id, dicts)))
    near = sum(0 < step <= _NEAR for step in steps)
    return near >= 0.9 * (len(dicts) - 1)
