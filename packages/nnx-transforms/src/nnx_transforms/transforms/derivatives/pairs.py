"""Functions that must return two things."""

from __future__ import annotations

import reprlib
from typing import Any


def is_pair(x: Any) -> bool:
    """Whether something counts as two things where JAX asks for a pair."""
    return isinstance(x, tuple | list) and len(x) == 2


def pair_of(pair: Any, what: str, due: str) -> tuple[Any, Any]:
    """Checks that a function returned two things.

    Args:
        pair: What it returned.
        what: What the function is called in messages.
        due: What it must return.

    Returns:
        The two.

    Raises:
        TypeError: If it returned anything else.
    """
    if not is_pair(pair):
        found = reprlib.repr(pair)
        raise TypeError(f"{what} must return a pair {due}, but returned {found}.")
    return pair[0], pair[1]
