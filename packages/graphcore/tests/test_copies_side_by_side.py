"""Copies of dicts are right, and lie side by side in a heap full of gaps as well."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphcore.cache.watching import copies_side_by_side


@given(st.lists(st.dictionaries(st.text() | st.integers(), st.integers())))
def test_copies_equal_their_originals_and_are_others(dicts):
    copies = copies_side_by_side(dicts)
    assert copies == dicts
    for original, copy in zip(dicts, copies, strict=True):
        assert copy is not original
        assert list(copy) == list(original)
        assert all(copy[key] is original[key] for key in original)


@pytest.mark.skipif(
    not getattr(sys, "_is_gil_enabled", lambda: True)(),
    reason="without the lock, Python has another allocator",
)
def test_copies_lie_side_by_side_in_a_heap_full_of_gaps():
    # In a process of its own: that of the tests has gaps from what ran before.
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)


PROGRAM = """
import random
from itertools import pairwise
from graphcore.cache.watching import copies_side_by_side

COUNT = 2000

def share_of_neighbours(dicts):
    steps = [after - before for before, after in pairwise(map(id, dicts))]
    return sum(0 < step <= 128 for step in steps) / len(steps)

dicts = [{"a": object(), "b": object()} for _ in range(COUNT)]
made = [{"a": 1} for _ in range(6 * COUNT)]
random.Random(0).shuffle(made)
del made[COUNT:]
in_gaps = [each.copy() for each in dicts]
assert share_of_neighbours(in_gaps) < 0.5
assert share_of_neighbours(copies_side_by_side(dicts)) > 0.8
"""
