"""`pack`: the one primitive that every lifted transform is built on.

A JAX transform takes a pure function; a scope function reads, writes and draws through
its scope. `pack` stands between the two. On the way in it takes the variables and
streams that some filters select out of the scopes, as plain pytrees. Inside the
transform, `scope_fn` makes scopes of such pytrees again, at the same paths and under
the trace of the transform, and `repack_fn` takes the variables back out. On the way
out, what came back is merged into the outer scopes.

Scopes of one tree that contain one another are packed once, as the topmost, so that
they share variables inside as they do outside. How many keys were drawn and which
names were taken inside is noted outside as well, as if the transform were not there.
"""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any, TypeAlias

import jax

from graphcore import StaticAttribute

from ..errors import CarriedVariableError
from ..filters import (
    CollectionFilter,
    StreamFilter,
    group_collections,
    intersect_filters,
    is_filter_empty,
    union_filters,
)
from ..frozen_dict import unfreeze
from ..scope import Scope, describe_place
from ..tree import MISSING, Lifetime, found_at

__all__ = ["pack"]

Groups: TypeAlias = tuple[tuple[Any, ...], ...]
"""`groups[i][j]`: the dict that filter `i` selected from packed scope `j`."""


class Boundary:
    """The outer side of one call of a packed function.

    `variables` and `streams` are the groups that go in. It is the `scope_fn` of `pack`,
    and `collect` is the `repack_fn`.

    Args:
        scope_tree: a scope, or a pytree of scopes.
        filters: of the variables that go in, of those that come out, and of the
            streams; one filter per group each.
        label: the name of the transform, for debug paths.
    """

    def __init__(
        self,
        scope_tree: Any,
        filters: tuple[Sequence[CollectionFilter], ...],
        label: str,
    ) -> None:
        in_filters, out_filters, stream_filters = map(tuple, filters)
        self._scopes, self._treedef = jax.tree.flatten(scope_tree)
        for scope in self._scopes:
            if not isinstance(scope, Scope):
                raise TypeError(
                    f"The first argument of a lifted function must be a scope or a "
                    f"pytree of scopes; found a {type(scope).__name__} in it."
                )
            scope._check_valid()
        self.roots, self._places = _topmost(self._scopes)
        self._out_filters = out_filters
        none: CollectionFilter = False
        self._out_union = functools.reduce(union_filters, out_filters, none)
        self._label = label
        self.variables = _grouped([root.variables() for root in self.roots], in_filters)
        self.streams = _grouped([root.rngs for root in self.roots], stream_filters)
        # Inner scopes hold tracers, so nothing here may keep them alive: only their
        # lifetime, counts and names are known.
        self._lifetime = Lifetime()
        self._effects: list[list[tuple[Any, ...]]] = []
        # What is pending outside is made anew for the inside. If nothing writes it
        # there, it must stay pending: what comes out of the transform would leak.
        self._pending = [(*root._tree.pending,) for root in self.roots]
        self._unwritten: set[Any] = set()
        self._written: set[Any] = set()

    def writable(self, group: Sequence[Any]) -> tuple[dict[str, Any], ...]:
        """The collections of a group that may change inside, by packed scope."""
        return tuple(
            {c: t for c, t in cols.items() if root.is_mutable_collection(c)}
            for cols, root in zip(group, self.roots, strict=True)
        )

    def can_write(self, names: CollectionFilter) -> bool:
        """Whether a collection may change inside that a filter selects."""
        found = (self.inner_mutable(root, names) for root in self.roots)
        return not all(map(is_filter_empty, found))

    def place(self, key_path: Any) -> tuple[str, str, str]:
        """The collection, name and path text of a variable, for errors.

        Args:
            key_path: where it is in one or more groups, by packed scope.
        """
        is_name = [isinstance(key, jax.tree_util.DictKey) for key in key_path]
        root = self.roots[key_path[is_name.index(True) - 1].idx]
        return describe_place(key_path, root.path_text)

    # --- inside -------------------------------------------------------------------

    def inner_mutable(
        self, outer: Scope, mutable_filter: CollectionFilter = True
    ) -> CollectionFilter:
        """Which collections are mutable inside."""
        if outer.mutable is False or mutable_filter is False:
            return False
        mutable = intersect_filters(outer.mutable, self._out_union)
        return intersect_filters(mutable, mutable_filter)

    def __call__(
        self,
        variable_groups: Any,
        rng_groups: Any,
        mutable_filter: CollectionFilter = True,
        rng_offsets: Sequence[Any] | None = None,
    ) -> Any:
        """Makes the inner scopes.

        Args:
            variable_groups: as `pack` gave them, possibly transformed.
            rng_groups: likewise.
            mutable_filter: which of the mutable collections stay so inside.
            rng_offsets: the traced numbers of the scopes' paths, see
                `linen_lift.rng`; None to use the paths themselves.

        Returns:
            Scopes in the structure that `pack` was given.
        """
        inner_roots = []
        for i, outer in enumerate(self.roots):
            variables = {c: t for group in variable_groups for c, t in group[i].items()}
            rngs = {name: key for group in rng_groups for name, key in group[i].items()}
            mutable = self.inner_mutable(outer, mutable_filter)
            offset = None if rng_offsets is None else rng_offsets[i]
            inner = outer._reopen(variables, rngs, mutable, self._label, offset)
            inner._tree.lifetime = self._lifetime
            inner_roots.append(inner)
        known: dict[Scope, Scope] = {}
        scopes = []
        for outer, (index, relative) in zip(self._scopes, self._places, strict=True):
            inner = inner_roots[index]
            for name in relative:
                inner._passed |= {name}
                child = Scope({}, name=name, parent=inner)
                inner = known.setdefault(child, child)
            if relative:
                inner._outside, inner._numbers = outer._names(), dict(outer._numbers)
            scopes.append(inner)
        self._effects.append([(s._counts.maps[0], s._log, s._numbers) for s in scopes])
        return jax.tree.unflatten(self._treedef, scopes)

    def collect(self, inner_tree: Any, changed_only: bool = False) -> Groups:
        """The mutable variables of inner scopes, by out filter and packed scope.

        Args:
            inner_tree: what `scope_fn` returned.
            changed_only: whether to leave out variables that still hold what they
                came in with. Such a variable need not pass through the transform.

        Returns:
            The groups.
        """
        places = zip(self._places, jax.tree.leaves(inner_tree), strict=True)
        trees = {index: scope._tree for (index, _), scope in places}
        per_root = []
        for index, tree in sorted(trees.items()):
            tree.settle()
            for place in self._pending[index]:
                col, path, name = place
                names = (*path[tree.depth :], name)
                before, after = tree.entry.get(col), tree.variables.get(col)
                same = found_at(before, names) is found_at(after, names)
                (self._unwritten if same else self._written).add((index, place))
            (now,) = group_collections(tree.variables, [tree.mutable])
            kept = _changes(now, tree.entry) if changed_only else unfreeze(now)
            per_root.append(kept)
        return _grouped(per_root, self._out_filters)

    def run(
        self,
        fn: Callable[..., Any],
        variable_groups: Any,
        rng_groups: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] = {},
        rng_offsets: Sequence[Any] | None = None,
    ) -> tuple[Any, Groups]:
        """Calls a scope function with inner scopes: its result, and what it changed.

        Args:
            fn: the function.
            variable_groups: as for `__call__`.
            rng_groups: likewise.
            args: arguments after the scopes.
            kwargs: keyword arguments.
            rng_offsets: as for `__call__`.
        """
        scopes = self(variable_groups, rng_groups, True, rng_offsets)
        out = fn(scopes, *args, **kwargs)
        return out, self.collect(scopes, changed_only=True)

    def detached(self) -> Boundary:
        """A boundary with the same scopes, but without their variables and streams.

        A function that JAX keeps and traces later must not keep the tracers of now.
        """
        new = copy.copy(self)
        new._scopes = [scope._hollow(self._label) for scope in self._scopes]
        new.roots = [root._hollow(self._label) for root in self.roots]
        new._lifetime, new._effects = Lifetime(), []
        new.variables = new.streams = ()
        return new

    # --- out ----------------------------------------------------------------------

    def merge(self, packed: Any) -> None:
        """Writes what came out of the transform into the outer scopes."""
        for group in packed:
            for index, collections in enumerate(group):
                root = self.roots[index]
                for col, tree in collections.items():
                    # One by one: `put_variable` makes sure that nothing leaks.
                    for name, value in self._to_store(index, col, tree).items():
                        root.put_variable(col, name, value)

    def _to_store(self, index: int, col: str, tree: Any) -> dict[str, Any]:
        """A copy of a collection without what only passed through the transform."""
        kept: dict[str, Any] = unfreeze(tree)
        for at, (of, path, name) in self._unwritten - self._written:
            if at == index and of == col:
                node = found_at(kept, path[len(self.roots[index].path) :])
                if node is not MISSING:
                    node.pop(name, None)
        return kept

    def effects(self) -> Any:
        """Draws and names of all inner scopes so far, relative to the paths here.

        Returns:
            A hashable value; the same for the same use at another path.
        """
        return self._relative(self._effects)

    def _relative(self, noted: Sequence[Any]) -> Any:
        counts: dict[Any, int] = {}
        names: set[Any] = set()
        numbers: dict[Any, int] = {}
        for opened in noted:
            for i, (drawn, log, numbered) in enumerate(opened):
                index, _ = self._places[i]
                top = self.roots[index].path
                for (path, stream), count in drawn.items():
                    if path[: len(top)] == top:
                        _at_least(counts, (index, path[len(top) :], stream), count)
                names.update((i, name) for name, _ in log)
                for prefix, number in numbered.items():
                    _at_least(numbers, (i, prefix), number)
        found = (counts.items(), names, numbers.items())
        return tuple(tuple(sorted(each)) for each in found)

    def replay(self, effects: Any) -> None:
        """Notes draws and names in the outer scopes.

        What was declared inside may be declared outside, and is the same; but nothing
        new gets such a name by default.

        Args:
            effects: from `effects`.
        """
        counts, names, numbers = effects
        for (index, path, stream), count in counts:
            root = self.roots[index]
            _at_least(root._counts, ((*root.path, *path), stream), count)
        for i, name in names:
            self._scopes[i]._outside |= {name}
        for (i, prefix), number in numbers:
            _at_least(self._scopes[i]._numbers, prefix, number)

    def key(self) -> Any:
        """What decides, together with the arguments, what an inner function does.

        Returns:
            A hashable value: which scopes share variables, what is mutable, the flags,
            and, relative to the paths, the draws before this call and the names taken.
        """
        mutable = tuple(map(self.inner_mutable, self.roots))
        flags = tuple(
            frozenset(itertools.starmap(StaticAttribute, root.flags.items()))
            for root in self.roots
        )
        outer = [(s._counts, s._log, s._numbers) for s in self._scopes]
        layout = tuple(self._places), self._treedef
        return layout, mutable, flags, self._relative([outer])

    def names(self) -> Any:
        """The names that are in use at each scope; hashable."""
        return tuple(scope._names() for scope in self._scopes)

    def close(self) -> None:
        """Ends the call: no inner scope can be used any more."""
        self.variables = self.streams = ()
        self._lifetime.over = True


def _grouped(
    per_root: Sequence[Mapping[str, Any]], filters: Sequence[CollectionFilter]
) -> Groups:
    groups = [group_collections(content, filters) for content in per_root]
    return tuple(zip(*groups, strict=True)) if groups else ((),) * len(filters)


def _at_least(counts: MutableMapping[Any, int], place: Any, count: int) -> None:
    counts[place] = max(counts.get(place, 0), count)


def _topmost(scopes: Sequence[Scope]) -> tuple[list[Scope], list[tuple[int, Any]]]:
    """The scopes that no other contains, and the place of each among them."""
    known = {(id(s._tree), s.path) for s in scopes}

    def depth(scope: Scope) -> int:
        """How many names of its path lead to the one that no other contains."""
        tree, path = id(scope._tree), scope.path
        return next(i for i in range(len(path) + 1) if (tree, path[:i]) in known)

    roots = list(dict.fromkeys(s for s in scopes if depth(s) == len(s.path)))
    numbers = {(id(s._tree), s.path): i for i, s in enumerate(roots)}
    parts = [(id(s._tree), s.path[: depth(s)], s.path[depth(s) :]) for s in scopes]
    return roots, [(numbers[tree, top], rest) for tree, top, rest in parts]


def _changes(now: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Any]:
    changes = {}
    for name, value in now.items():
        before = entry.get(name, MISSING)
        if value is before:
            continue
        both = isinstance(value, Mapping) and isinstance(before, Mapping)
        value = _changes(value, before) if both else unfreeze(value)
        if not (isinstance(value, dict) and not value):
            changes[name] = value
    return changes


def leaf_paths(tree: Any) -> set[Any]:
    """The key paths of the leaves of a tree."""
    return {path for path, _ in jax.tree_util.tree_leaves_with_path(tree)}


def refuse_created(
    before: Any, now: Any, call: Boundary, loop: str, reason: str
) -> None:
    """Refuses variables that an iteration made, where it may make none.

    Args:
        before: the carried variables that came into the iteration, by packed scope.
        now: those that come out.
        call: the call of the loop.
        loop: the name of the loop.
        reason: why it may make none.

    Raises:
        CarriedVariableError: if there is one.
    """
    if new := leaf_paths(now) - leaf_paths(before):
        place = call.place(min(new, key=str))
        raise CarriedVariableError(*place, loop=loop, reason=reason)


def checked_pair(out: Any, rule: str) -> Any:
    """What a function returned, if it is a pair.

    Args:
        out: what it returned.
        rule: what it must return, for the error.

    Raises:
        TypeError: if it is none.
    """
    if not (isinstance(out, (tuple, list)) and len(out) == 2):
        raise TypeError(f"{rule}; found {type(out).__name__}.")
    return out


def pack(
    fn: Callable[..., tuple[Any, Any]],
    in_variable_filters: Sequence[CollectionFilter],
    out_variable_filters: Sequence[CollectionFilter],
    rng_filters: Sequence[StreamFilter],
    name: str | None = None,
    enable_kwargs: bool = False,
) -> Callable[..., Any]:
    """Packs variables and streams of scopes into arguments and results of `fn`.

    Args:
        fn: a function `(scope_fn, repack_fn, variable_groups, rng_groups, *args)`
            that returns `(out, packed_variables)`. `variable_groups[i][j]` is a dict
            of the collections that filter `i` selects from scope `j`, and
            `rng_groups` has the same form. `scope_fn(variable_groups, rng_groups,
            mutable_filter=True)` makes scopes of them; `repack_fn(scopes)` gives the
            variables in them, one group per out filter.
        in_variable_filters: the collections of each group that goes in; a collection
            goes to the first that matches.
        out_variable_filters: the collections of each group that comes out. No other
            collection is mutable inside.
        rng_filters: the streams of each group.
        name: the name of the transform, shown in debug paths.
        enable_kwargs: whether keyword arguments are passed on to `fn`.

    Returns:
        A function `(scope, *args)`, or with a pytree of scopes in the place of the
        scope, that returns `out` and has merged `packed_variables`.

    Raises:
        TypeError: when called with keyword arguments that are not enabled.

    Example:
        >>> import linen_lift as nn, jax
        >>> def double_variables(scope_fn, repack_fn, variable_groups, rng_groups):
        ...     doubled = jax.tree.map(lambda x: 2 * x, variable_groups)
        ...     scope = scope_fn(doubled, rng_groups)
        ...     return scope.get_variable('state', 'n'), repack_fn(scope)
        >>> double = nn.lift.pack(double_variables, ['state'], ['state'], [])
        >>> nn.scope.apply(double, mutable='state')({'state': {'n': 2}})
        (4, {'state': {'n': 4}})
    """

    def inner(call: Boundary, /, *args: Any, **kwargs: Any) -> Any:
        return fn(call, call.collect, call.variables, call.streams, *args, **kwargs)

    return packed(
        inner,
        in_variable_filters,
        out_variable_filters,
        rng_filters,
        name or str(getattr(fn, "__name__", "pack")),
        enable_kwargs,
    )


def packed(
    fn: Callable[..., tuple[Any, Any]],
    in_filters: Sequence[CollectionFilter],
    out_filters: Sequence[CollectionFilter],
    rng_filters: Sequence[StreamFilter],
    name: str,
    enable_kwargs: bool = True,
) -> Callable[..., Any]:
    """`pack` for a function `(call, *args)` that gets all of it as one `Boundary`."""

    def wrapper(scope: Any, /, *args: Any, **kwargs: Any) -> Any:
        if kwargs and not enable_kwargs:
            raise TypeError(
                f"Lifted {name} takes no keyword arguments; found "
                f"{', '.join(sorted(kwargs))}. Pass them by position."
            )
        call = Boundary(scope, (in_filters, out_filters, rng_filters), name)
        try:
            out, left = fn(call, *args, **kwargs)
        finally:
            call.close()
        call.merge(left)
        call.replay(call.effects())
        return out

    return wrapper
