"""Faults that a run must find, planted in the library while it runs.

Each is of a kind that a change of the library could bring: what is known of a graph is
trusted for too long, a write does not come back, a tracer stays in an object of the
caller's, two names of one object become two objects, and what was written before an
error stays.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from graphcore import editing, functional, undo
from graphcore.boundary import change, entry, publishing
from graphcore.boundary.body import Body
from graphcore.cache.plans import Plan
from graphcore.cache.watching import Watch
from graphcore.graphdef.recipes import Recipe
from graphcore.variables.variable import Variable, set_raw_value

__all__ = ["PLANTS", "planted"]


@contextlib.contextmanager
def stale_plan() -> Iterator[None]:
    """A plan that was made once holds whatever is done to the graph."""
    with (
        mock.patch.object(Watch, "holds", return_value=True),
        mock.patch.object(Plan, "clear", return_value=None),
    ):
        yield


@contextlib.contextmanager
def lost_write() -> Iterator[None]:
    """Of several values that a function wrote, the last does not come back."""
    commit = entry.Entry.commit

    def losing(self: Any, groups: Any, out: Any, change: Any) -> Any:
        lost = None
        if change.is_in_place and len(change.positions) > 1:
            lost = self.variables[change.positions[-1]]
            before = lost.raw_value
        out = commit(self, groups, out, change)
        if lost is not None:
            lost.raw_value = before
        return out

    with mock.patch.object(entry.Entry, "commit", losing):
        yield


@contextlib.contextmanager
def leaked_tracer() -> Iterator[None]:
    """Where a function fails, the caller's first variable keeps a value from inside."""
    enter, run_inside, entered = entry.enter, Body.run_inside, []

    def remembering(*args: Any, **kwargs: Any) -> Any:
        found = enter(*args, **kwargs)
        entered[:] = [found]
        return found

    def leaking(self: Any, inside: Any, *args: Any) -> Any:
        outer = entered[0].variables if entered else []
        try:
            return run_inside(self, inside, *args)
        except Exception:
            for variable, inner in zip(outer, inside.variables, strict=False):
                if isinstance(variable, Variable):
                    set_raw_value(variable, inner.raw_value)
                    break
            raise

    with (
        mock.patch.object(Body, "run_inside", leaking),
        contextlib.ExitStack() as stack,
    ):
        for module in _users_of(enter):
            stack.enter_context(mock.patch.object(module, "enter", remembering))
        yield


def _users_of(function: Callable[..., Any]) -> list[Any]:
    return [
        module
        for name, module in [*sys.modules.items()]
        if name.startswith(("graphcore", "nnx_transforms"))
        and vars(module).get(function.__name__) is function
    ]


@contextlib.contextmanager
def wrong_alias() -> Iterator[None]:
    """A new graph gets a copy of a variable in the second place where it stands."""
    make = Recipe._make

    def splitting(self: Any, values: Any) -> list[Any]:
        things = make(self, values)
        layout = self._layout
        count = len(layout.definitions)
        for node in layout.nodes:
            own = vars(things[node.thing]) if node.thing in layout.plain else {}
            for key, child in zip(node.keys, node.children, strict=True):
                again = any(thing == child for _, thing in layout.references)
                if own and again and child < count:
                    own[key] = things[child].copy()
                    return things
        return things

    with mock.patch.object(Recipe, "_make", splitting):
        yield


@contextlib.contextmanager
def half_write() -> Iterator[None]:
    """What was written before an error is not taken back."""

    @contextlib.contextmanager
    def forgetting() -> Iterator[list[Any]]:
        yield []

    with (
        mock.patch.object(change, "undoing", forgetting),
        mock.patch.object(publishing, "undoing", forgetting),
        mock.patch.object(editing, "undoing", forgetting),
        mock.patch.object(functional, "undoing", forgetting),
        mock.patch.object(undo, "undoing", forgetting),
    ):
        yield


PLANTS = {
    "stale-plan": stale_plan,
    "lost-write": lost_write,
    "leaked-tracer": leaked_tracer,
    "wrong-alias": wrong_alias,
    "half-write": half_write,
}


def planted(name: str | None) -> contextlib.AbstractContextManager[None]:
    """Plants a fault while a block runs; none for None."""
    return contextlib.nullcontext() if name is None else PLANTS[name]()
