"""What the scopes of one tree share: variables, streams, and a trace."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax

from graphcore.authors import OUTSIDE, current_trace

from .errors import JaxTransformError, NameInUseError
from .filters import CollectionFilter
from .frozen_dict import unfreeze
from .rng import ROOT, Origin, Path
from .traces import is_within

MISSING: Any = object()


class Lifetime:
    """How long scopes may be used: until the call that made them returns."""

    over = False


@dataclasses.dataclass(slots=True, eq=False)
class Tree:
    """What all scopes of one tree have in common.

    Args:
        variables: `{collection: nested dict}`; dicts where they may be written.
        rngs: root keys by stream.
        mutable: which collections may be written.
        flags: see `Scope.get_flag`.
        depth: how many names the path of the topmost scope has.
        entry: what came in, to tell later what was changed.
        origin: where numbers of paths start: outside of a compiled function.
        trace: the trace in which the tree was made.
        lifetime: whether it may still be used.
        adopted: modules from outside, by identity, and their clones that live in this
            tree; nothing but their parents keeps these alive.
        pending: variables first declared inside a JAX transform that is not lifted, and
            whose values belong to it, by collection, path and name: what makes them.
    """

    variables: dict[str, Any]
    rngs: dict[str, Any]
    mutable: CollectionFilter
    flags: Mapping[Any, Any]
    depth: int = 0
    entry: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    origin: Origin = ROOT
    trace: Any = dataclasses.field(default_factory=current_trace)
    lifetime: Lifetime = dataclasses.field(default_factory=Lifetime)
    adopted: dict[int, tuple[Any, Any]] = dataclasses.field(default_factory=dict)
    pending: dict[Any, Callable[[], Any]] = dataclasses.field(default_factory=dict)

    def find(self, col: str, path: Path, *name: str) -> Any:
        """What is at a path of a collection, or `MISSING`.

        Args:
            col: the collection.
            path: the path of a scope.
            name: further names.
        """
        return found_at(self.variables.get(col), path[self.depth :] + name)

    def put(self, col: str, path: Path, name: str, value: Any) -> None:
        """Stores a value at the path of a scope; a dict joins one that is there."""
        node = self.variables.setdefault(col, {})
        for i, part in enumerate(path[self.depth :], self.depth):
            inner = node.get(part)
            if not isinstance(inner, dict):
                if inner is not None and not isinstance(inner, Mapping):
                    raise NameInUseError("submodule", part, "/" + "/".join(path[:i]))
                inner = node[part] = unfreeze(inner or {})
            node = inner
        node[name] = joined(node.get(name), value)

    def seen(self) -> Tree:
        """The tree as it is now, with what is pending made in the running trace."""
        self.settle()
        if not self.pending:
            return self
        cols = {col for col, _, _ in self.pending}
        copies = {col: unfreeze(self.variables.get(col, {})) for col in cols}
        variables = {**self.variables, **copies}
        new = dataclasses.replace(self, variables=variables, pending={})
        for (col, path, name), make in self.pending.items():
            new.put(col, path, name, make())
        return new

    def awaits(self, col: str) -> bool:
        """Whether variables of a collection are pending."""
        return any(each == col for each, _, _ in self.pending)

    def forget(self, col: str, path: Path, value: Any) -> None:
        """Drops pending variables for which there is a value at a path, or below."""
        for place in [*self.pending]:
            full = (*place[1], place[2])
            below = place[0] == col and full[: len(path)] == path
            if below and found_at(value, full[len(path) :]) is not MISSING:
                del self.pending[place]

    def leaks(self, value: Any) -> bool:
        """Whether a value must not be stored now, in a transform inside of the trace.

        Args:
            value: a pytree; what belongs to the tree's trace, or to one around it, does
                no harm.
        """
        if current_trace() == self.trace:
            return False
        return any(not is_within(x, self.trace) for x in _tracers(value))

    def settle(self) -> None:
        """Makes pending variables, if the transform that declared them is over.

        Their values are made anew, in the trace of the tree, so that nothing of the
        transform's trace is stored.

        Raises:
            JaxTransformError: if a value depends on what the transform passed in.
        """
        if not self.pending or current_trace() != self.trace:
            return
        pending, self.pending = self.pending, {}
        for (col, path, name), make in pending.items():
            at = "/" + "/".join(path)
            try:
                value, sources = make(), _sources(make)
            except jax.errors.UnexpectedTracerError as error:
                raise JaxTransformError(col, name, at) from error
            known = [is_within(x, self.trace) for x in _tracers((value, sources))]
            if False in known or (known and self.trace == OUTSIDE):
                raise JaxTransformError(col, name, at)
            self.put(col, path, name, value)


def found_at(tree: Any, names: Path) -> Any:
    """What nested mappings have under some names, or `MISSING`.

    Args:
        tree: the mappings.
        names: one for each level.
    """
    try:
        for name in names:
            tree = tree[name]
    except (KeyError, TypeError, IndexError):
        return MISSING  # also where a variable is in the place of a scope
    return tree


def _sources(make: Callable[[], Any]) -> list[Any]:
    """The tracers that a function closes over and computes with.

    An operation takes a tracer of a compiled function that is over; JAX tells of it
    when the function around is compiled, and then without a name.
    """
    return jax.make_jaxpr(lambda: _tracers(make()))().consts


def _tracers(value: Any) -> list[Any]:
    return [x for x in jax.tree.leaves(value) if isinstance(x, jax.core.Tracer)]


def joined(old: Any, new: Any) -> Any:
    """Nested mappings with the entries of both; those of `new` count.

    Args:
        old: a nested mapping.
        new: another; anything else is what it is, and nothing of `old` is left.
    """
    if not (isinstance(old, Mapping) and isinstance(new, Mapping)):
        return new
    return {**old, **{k: joined(old.get(k), value) for k, value in new.items()}}
