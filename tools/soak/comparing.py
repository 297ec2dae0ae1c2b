"""Whether a graph of live objects is what its plain twin says, object by object."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from tools.soak.kits import Live, Plain, form

__all__ = ["Different", "Twins", "abstract"]

LIVE, PLAIN = Live(), Plain()


class Different(AssertionError):
    """A live graph is not what it should be."""


class Twins:
    """Which live object is which plain one.

    Objects that were seen once must stay together: so a live object of the caller's is
    never replaced by one that looks the same.
    """

    def __init__(self) -> None:
        self._plain_of: dict[int, Any] = {}
        self._live_of: dict[int, Any] = {}

    def check(self, live: Sequence[Any], plain: Sequence[Any]) -> None:
        """Compares all that is reached from some roots, and forgets all the rest.

        Args:
            live: Live roots.
            plain: As many plain ones.

        Raises:
            Different: If they are not the same, with the path and what differs.
        """
        old = self._plain_of, self._live_of
        self._plain_of, self._live_of = {}, {}
        try:
            for number, pair in enumerate(zip(live, plain, strict=True)):
                self._check((number,), *pair, old)
        except RecursionError:
            raise Different("one of the graphs is endless") from None

    def _check(self, path: Any, live: Any, plain: Any, old: Any) -> None:
        kind = _kind(PLAIN, plain)
        if (found := _kind(LIVE, live)) != kind:
            raise Different(f"{path}: a {found} ({live!r}), not a {kind}")
        if PLAIN.is_variable(plain) or PLAIN.is_node(plain):
            known = self._plain_of.get(id(live)), self._live_of.get(id(plain))
            if known == (None, None):
                before = old[0].get(id(live)), old[1].get(id(plain))
                if before != (None, None) and (
                    before[0] is not plain or before[1] is not live
                ):
                    raise Different(f"{path}: not the object that was there before")
            elif known[0] is not plain or known[1] is not live:
                raise Different(f"{path}: another object is shared, or none is")
            else:
                return
            self._plain_of[id(live)], self._live_of[id(plain)] = plain, live
        if PLAIN.is_variable(plain):
            notes = LIVE.notes(live), PLAIN.notes(plain)
            if _typed(notes[0]) != _typed(notes[1]):
                raise Different(f"{path}: metadata {notes[0]}, not {notes[1]}")
            self._check_values(path, live.raw_value, plain.value)
        elif PLAIN.is_array(plain):
            self._check_values(path, live, plain)
        elif (children := PLAIN.children(plain)) is not None:
            own = LIVE.children(live) or []
            if (names := [k for k, _ in own]) != [k for k, _ in children]:
                raise Different(f"{path}: {names}, not {[k for k, _ in children]}")
            for (key, a), (_, b) in zip(own, children, strict=True):
                self._check((*path, key), a, b, old)
        elif _typed(live) != _typed(plain):
            raise Different(f"{path}: {live!r}, not {plain!r}")

    @staticmethod
    def _check_values(path: Any, live: Any, plain: Any) -> None:
        one, two = jax.tree.flatten(live), jax.tree.flatten(plain)
        if one[1] != two[1]:
            raise Different(f"{path}: a value of {one[1]}, not of {two[1]}")
        for a, b in zip(one[0], two[0], strict=True):
            if isinstance(a, jax.core.Tracer):
                raise Different(f"{path}: a tracer was left behind: {a}")
            if not PLAIN.is_array(b):
                if a is not b:
                    raise Different(f"{path}: {a!r}, not {b!r}")
                continue
            a, b = np.asarray(a), np.asarray(b)
            if (a.shape, a.dtype) != (b.shape, b.dtype) or not np.array_equal(a, b):
                raise Different(f"{path}: {a!r}, not {b!r}")


def _kind(kit: Any, x: Any) -> str:
    if kit.is_variable(x) or kit.is_node(x):
        kind: str = kit.kind(x)
        return kind
    return "array" if kit.is_array(x) else type(x).__name__


def _typed(x: Any) -> Any:
    """Tells 1, 1.0 and True apart."""
    if isinstance(x, dict):
        return {key: _typed(value) for key, value in x.items()}
    return (*map(_typed, x),) if type(x) is tuple else (type(x), x)


def abstract(roots: Sequence[Any]) -> Any:
    """All of a plain graph but the numbers in its arrays: what a trace depends on.

    Args:
        roots: Plain nodes.

    Returns:
        Something hashable.
    """
    numbers: dict[int, int] = {}

    def visit(x: Any) -> Any:
        if id(x) in numbers:
            return "again", numbers[id(x)]
        if PLAIN.is_variable(x) or PLAIN.is_node(x):
            numbers[id(x)] = len(numbers)
        if PLAIN.is_variable(x):
            return x.kind, repr(sorted(_typed(x.notes).items())), form(x.value)
        if PLAIN.is_array(x):
            return form(x)
        children = PLAIN.children(x)
        if children is not None:
            return _kind(PLAIN, x), *((key, visit(child)) for key, child in children)
        return repr(sorted(x)) if type(x) is set else repr(_typed(x))

    return (*map(visit, roots),)
