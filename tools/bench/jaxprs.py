"""Comparing jaxprs: whether two functions compute the same with the same equations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any


def equations(jaxpr: Any) -> Counter[tuple[str, ...]]:
    """Counts the equations of a jaxpr and of all jaxprs inside of it.

    Args:
        jaxpr: What `jax.make_jaxpr` returned.

    Returns:
        How often each primitive occurs with the same types of results.
    """
    found: Counter[tuple[str, ...]] = Counter()
    pending = [jaxpr]
    while pending:
        current = pending.pop()
        current = getattr(current, "jaxpr", current)
        for equation in current.eqns:
            # In any order: a dict and an object may have the same things otherwise.
            results = sorted(v.aval.str_short() for v in equation.outvars)
            found[equation.primitive.name, *results] += 1
            for value in equation.params.values():
                pending += _inner(value)
    return found


def _inner(value: Any) -> Iterator[Any]:
    """The jaxprs in a parameter of an equation."""
    if isinstance(value, tuple | list):
        for entry in value:
            yield from _inner(entry)
    elif hasattr(value, "eqns") or hasattr(value, "jaxpr"):
        yield value


def difference(ours: Any, by_hand: Any) -> tuple[int, str]:
    """Compares two jaxprs.

    Args:
        ours: The one that may do too much.
        by_hand: The one to compare with.

    Returns:
        How many equations only one of them has, and which: `+3 copy` if the first one
        has three more.
    """
    mine, other = equations(ours), equations(by_hand)
    changes: Counter[tuple[str, bool]] = Counter()
    for key in mine.keys() | other.keys():
        if delta := mine[key] - other[key]:
            changes[key[0], delta > 0] += abs(delta)
    words = [
        f"{'+' if more else '-'}{n} {name}"
        for (name, more), n in sorted(changes.items())
    ]
    return sum(changes.values()), ", ".join(words)
