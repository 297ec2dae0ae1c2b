"""States: nested mappings from keys to leaves, as pytrees.

A `State` is a view of a nested dict. Sub-states share that dict, so writing through
`state['a']['b'] = leaf` changes `state`. The state of a graph is made lazily: its
leaves are listed at once, the nested dict and the leaf objects only when looked at.
"""

from __future__ import annotations

from collections.abc import (
    Callable,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
)
from typing import Any, Generic, Self, TypeVar, overload

from graphcore.content import values_equal
from graphcore.display.printing import Parts, mapping_parts, text, treescope_repr
from graphcore.state.filters import Filter, PathIn, filters_to_predicates, grouped
from graphcore.state.nesting import key_order, nested_from_flat, own_key, sorted_leaves
from graphcore.trails import Path, path_text
from graphcore.variables.impl import is_variable, variable_impl
from graphcore.variables.state import VariableState

__all__ = ["FlatState", "State", "create_path_filters"]

K = TypeVar("K")
L = TypeVar("L")
M = TypeVar("M")


class FlatState(Sequence[tuple[Path, L]]):
    """The leaves of a state with their paths, sorted by path; a pytree.

    It is a sequence of pairs, and can be read as a mapping from paths to leaves too.

    Args:
        pairs: Paths and leaves in any order.
        sort: Whether to sort them; else they stay as they are.

    Example:
        >>> flat = FlatState([(('b',), 2), (('a', 'x'), 1)])
        >>> flat.paths, flat[0], flat['a', 'x']
        ((('a', 'x'), ('b',)), (('a', 'x'), 1), 1)
        >>> ('b',) in flat, dict(flat), [leaf for path, leaf in flat.items()]
        (True, {('a', 'x'): 1, ('b',): 2}, [1, 2])
    """

    __slots__ = ("_positions", "leaves", "paths")

    paths: tuple[Path, ...]
    leaves: tuple[L, ...]
    # Where each path stands, once one was looked up.
    _positions: dict[Path, int]

    def __init__(
        self, pairs: Iterable[tuple[Path, L]] = (), /, *, sort: bool = True
    ) -> None:
        ordered = list(pairs)
        if sort:
            ordered.sort(key=lambda pair: tuple(map(key_order, pair[0])))
        self.paths = tuple([path for path, _ in ordered])
        self.leaves = tuple([leaf for _, leaf in ordered])

    @overload
    def __getitem__(self, index: int) -> tuple[Path, L]: ...
    @overload
    def __getitem__(self, index: slice) -> list[tuple[Path, L]]: ...
    @overload
    def __getitem__(self, index: Path) -> L: ...
    def __getitem__(self, index: int | slice | Path) -> Any:
        if isinstance(index, tuple):
            return self.leaves[self._position_of[index]]
        if isinstance(index, slice):
            return list(zip(self.paths[index], self.leaves[index], strict=True))
        return self.paths[index], self.leaves[index]

    @property
    def _position_of(self) -> dict[Path, int]:
        try:
            return self._positions
        except AttributeError:
            self._positions = dict(zip(self.paths, range(len(self)), strict=True))
            return self._positions

    def __contains__(self, path: object) -> bool:
        try:
            return path in self._position_of
        except TypeError:  # what can't be hashed is no path
            return False

    def keys(self) -> tuple[Path, ...]:
        """The paths, as of a mapping.

        Returns:
            The paths in order.

        Example:
            >>> FlatState([(('b',), 2)]).keys()
            (('b',),)
        """
        return self.paths

    def values(self) -> tuple[L, ...]:
        """The leaves, as of a mapping.

        Returns:
            The leaves in the order of their paths.

        Example:
            >>> FlatState([(('b',), 2)]).values()
            (2,)
        """
        return self.leaves

    def items(self) -> Iterator[tuple[Path, L]]:
        """The pairs, as of a mapping.

        Returns:
            An iterator of `(path, leaf)`.

        Example:
            >>> list(FlatState([(('b',), 2)]).items())
            [(('b',), 2)]
        """
        return iter(self)

    def get(self, path: Path, default: Any = None) -> Any:
        """The leaf at a path, as of a mapping.

        Args:
            path: A path.
            default: What to return if there is no leaf.

        Returns:
            The leaf or the default.

        Example:
            >>> FlatState([(('b',), 2)]).get(('c',), 0)
            0
        """
        return self[path] if path in self else default  # noqa: SIM401  this is `get`

    def to_nested_state(self) -> State[Any, L]:
        """Returns the leaves as a nested state.

        Returns:
            The state that this is the flat form of.

        Example:
            >>> FlatState([(('a', 'x'), 1)]).to_nested_state().a.x
            1
        """
        return State.from_flat_path(self)

    def split(self, *filters: Filter) -> Any:
        """Divides the leaves as `State.split` does.

        Args:
            *filters: At least one.

        Returns:
            A flat state for a single filter, else a tuple of them.

        Raises:
            ValueError: If no filter selects a leaf, with the paths of all of those.

        Example:
            >>> flat = FlatState([(('a',), 1), (('b',), 2)])
            >>> first, rest = flat.split(lambda path, leaf: leaf == 1, ...)
            >>> first.paths
            (('a',),)
        """
        return _flattened(self.to_nested_state().split(*filters))

    def filter(self, *filters: Filter) -> Any:
        """Selects leaves as `State.filter` does.

        Args:
            *filters: At least one.

        Returns:
            A flat state for a single filter, else a tuple of them.

        Example:
            >>> flat = FlatState([(('a',), 1), (('b',), 2)])
            >>> flat.filter(lambda path, leaf: leaf == 1).paths
            (('a',),)
        """
        return _flattened(self.to_nested_state().filter(*filters))

    @staticmethod
    def merge(*parts: Iterable[tuple[Path, Any]]) -> FlatState[Any]:
        """Unites flat states.

        Args:
            *parts: Flat states, or other pairs of paths and leaves, with no path twice.

        Returns:
            All pairs, sorted.

        Example:
            >>> FlatState.merge([(('b',), 2)], [(('a',), 1)]).leaves
            (1, 2)
        """
        return FlatState(pair for part in parts for pair in part)

    def __len__(self) -> int:
        return len(self.paths)

    def __iter__(self) -> Iterator[tuple[Path, L]]:
        return iter(zip(self.paths, self.leaves, strict=True))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FlatState):
            return NotImplemented
        return self.paths == other.paths and all(
            map(values_equal, self.leaves, other.leaves)
        )

    __hash__ = None  # type: ignore[assignment]

    __repr__ = text

    def __parts__(self) -> Parts:
        return mapping_parts("FlatState", self)


def _flattened(states: Any) -> Any:
    if isinstance(states, State):
        return states.flat_state()
    return tuple(state.flat_state() for state in states)


class State(MutableMapping[K, Any], Generic[K, L]):
    """A mutable mapping from keys to leaves or nested states; a pytree.

    Keys are strings or integers and are kept in sorted order, integers first. Nested
    mappings become nested states.

    Args:
        mapping_or_pairs: Keys with leaves or nested mappings.

    Example:
        >>> s = State({'b': {'c': 2}, 'a': 1})
        >>> s.b.c, s['b']['c'], list(s)
        (2, 2, ['a', 'b'])
    """

    __slots__ = ("__weakref__", "_depth", "_nested", "_unmade")

    # How far below the root of a pytree this state stands, while JAX visits it.
    _depth: int
    _nested: dict[Any, Any]
    _unmade: Callable[[], dict[Any, Any]] | None

    def __init__(
        self, mapping_or_pairs: Mapping[K, Any] | Iterable[tuple[K, Any]] = (), /
    ) -> None:
        _set_depth(self, 0)
        _set_unmade(self, None)
        _set_nested(self, _as_nested(dict(mapping_or_pairs)))

    @classmethod
    def _view(cls, nested: dict[Any, Any], depth: int = 0) -> Self:
        state = cls.__new__(cls)
        _set_depth(state, depth)
        _set_unmade(state, None)
        _set_nested(state, nested)
        return state

    @classmethod
    def lazily(cls, make_nested: Callable[[], dict[Any, Any]]) -> Self:
        """Makes a state whose nested dict is made when it is first needed.

        Args:
            make_nested: Returns the nested plain dict, which becomes the state's own.

        Returns:
            The state.

        Example:
            >>> State.lazily(lambda: {'a': 1})['a']
            1
        """
        state = cls._view({})
        _set_unmade(state, make_nested)
        return state

    @property
    def raw_mapping(self) -> dict[Any, Any]:
        """The nested plain dict itself; changes to it change the state."""
        unmade = self._unmade
        if unmade is not None:
            _set_nested(self, unmade())
            _set_unmade(self, None)
        return self._nested

    # The mapping

    def __getitem__(self, key: K) -> Any:
        found = self.raw_mapping[key]
        return State._view(found) if type(found) is dict else found

    def __setitem__(self, key: K, value: Any) -> None:
        if isinstance(value, Mapping):
            value = _as_nested(value)
        self.raw_mapping[key] = value

    def __delitem__(self, key: K) -> None:
        del self.raw_mapping[key]

    def __iter__(self) -> Iterator[K]:
        return iter(sorted(self.raw_mapping, key=key_order))

    def __len__(self) -> int:
        return len(self.raw_mapping)

    def __contains__(self, key: object) -> bool:
        return key in self.raw_mapping

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *(key for key in self if isinstance(key, str))]

    def _ipython_key_completions_(self) -> list[K]:
        return list(self)

    def __getattr__(self, name: str) -> Any:
        if name in ("_depth", "_nested", "_unmade") or name.startswith("__"):
            raise AttributeError(name)
        try:
            return self[name]  # type: ignore[index]
        except KeyError:
            raise AttributeError(
                f"State has no key {name!r}; its keys are {list(self)}."
            ) from None

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "__orig_class__":  # `State[str, Any]()`: typing's note to itself
            raise AttributeError(name)
        self[name] = value  # type: ignore[index]

    def __delattr__(self, name: str) -> None:
        try:
            del self[name]  # type: ignore[arg-type]
        except KeyError:
            raise AttributeError(f"State has no key {name!r}.") from None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mapping):
            return NotImplemented
        return self is other or self.flat_state() == as_state(other).flat_state()

    __hash__ = None  # type: ignore[assignment]

    __repr__ = text
    __treescope_repr__ = treescope_repr

    def __parts__(self) -> Parts:
        pairs = [(key, self.raw_mapping[key]) for key in self]
        items = [(k, _Inner._view(x) if type(x) is dict else x) for k, x in pairs]
        return mapping_parts("" if isinstance(self, _Inner) else "State", items)

    def __copy__(self) -> State[K, L]:
        return State._view(dict(self.raw_mapping))

    def __reduce__(self) -> tuple[Any, ...]:
        if _is_deep(self.raw_mapping):  # pickle recurses
            return State.from_flat_path, (list(self.flat_state()),)
        return State._view, (self.raw_mapping,)

    # Flat and nested forms

    def flat_state(self) -> FlatState[L]:
        """Returns the leaves with their paths.

        Returns:
            A sequence of `(path, leaf)`, sorted by path.

        Example:
            >>> State({'b': {'c': 2}, 'a': 1}).flat_state().paths
            (('a',), ('b', 'c'))
        """
        return FlatState(sorted_leaves(self.raw_mapping), sort=False)

    @classmethod
    def from_flat_path(
        cls, pairs: Mapping[Path, L] | Iterable[tuple[Path, L]], /
    ) -> Self:
        """Makes a state from leaves with their paths.

        Args:
            pairs: Paths and leaves, in any order.

        Returns:
            The nested state.

        Raises:
            TypeError: If a path is no tuple.
            ValueError: If one path goes through another's leaf.

        Example:
            >>> State.from_flat_path([(('a', 'b'), 1)]).a.b
            1
        """
        items = pairs.items() if isinstance(pairs, Mapping) else pairs
        return cls._view(nested_from_flat(items))

    def to_pure_dict(
        self, extract_fn: Callable[[Any], Any] | None = None
    ) -> dict[Any, Any]:
        """Returns nested plain dicts of values.

        Args:
            extract_fn: Returns what stands for a leaf; its raw value if left out.

        Returns:
            Dicts with sorted keys; a `VariableState` or a variable is replaced by its
            value.

        Example:
            >>> import graphcore as gc
            >>> State({'a': {'b': gc.Param.state(1)}}).to_pure_dict()
            {'a': {'b': 1}}
        """
        extract = extract_fn or raw_value_of
        return nested_from_flat(
            (path, extract(leaf)) for path, leaf in self.flat_state()
        )

    def replace_by_pure_dict(
        self,
        pure_dict: Mapping[Any, Any],
        replace_fn: Callable[[Any, Any], Any] | None = None,
        /,
    ) -> None:
        """Replaces values in place by those of nested plain dicts.

        Args:
            pure_dict: As `to_pure_dict` returns it, or a state; it may hold fewer
                leaves. A string of digits stands for the integer key if there is only
                that one, as in dicts that went through JSON.
            replace_fn: Returns the new leaf, of the old one and the item of the dict;
                if left out, the old leaf with that value.

        Raises:
            ValueError: If it holds a path that this state does not; nothing is
                changed then.

        Example:
            >>> import graphcore as gc
            >>> s = State({'a': gc.Param.state(1)})
            >>> s.replace_by_pure_dict({'a': 2}); s.a.value
            2
        """
        changed: list[tuple[dict[Any, Any], Any, Any]] = []
        pending: list[tuple[Path, dict[Any, Any], Mapping[Any, Any]]] = [
            ((), self.raw_mapping, pure_dict)
        ]
        while pending:
            path, own, given = pending.pop()
            for given_key, item in given.items():
                key = own_key(own, given_key)
                where = (*path, key)
                if key not in own:
                    raise ValueError(
                        f"The path {path_text(where)!r} of the dict is not in the "
                        f"state, which has the keys {list(own)} there."
                    )
                leaf = own[key]
                if type(leaf) is dict:
                    if not isinstance(item, Mapping):
                        raise ValueError(
                            f"Got a leaf of type {type(item).__name__} at "
                            f"{path_text(where)!r}, where the state has a subtree."
                        )
                    pending.append((where, leaf, item))
                    continue
                value = leaf.value if isinstance(leaf, VariableState) else leaf
                if isinstance(item, Mapping) and not isinstance(value, Mapping):
                    raise ValueError(
                        f"Got a dict with the keys {list(item)} at "
                        f"{path_text(where)!r}, where the state has a leaf."
                    )
                if replace_fn is not None:
                    item = replace_fn(leaf, item)
                elif isinstance(leaf, VariableState):
                    item = leaf.replace(raw_value_of(item))
                changed.append((own, key, item))
        for own, key, leaf in changed:
            own[key] = leaf

    # Selections

    def _groups(self, filters: Sequence[Filter]) -> tuple[Any, list[Path]]:
        predicates = filters_to_predicates(filters)
        select = getattr(self._unmade, "select", None)
        if select is not None:
            groups, unmatched = select(predicates)
        else:
            leaves = ((path, leaf, (path, leaf)) for path, leaf in self.flat_state())
            found, rest = grouped(predicates, leaves)
            groups = list(map(State.from_flat_path, found))
            unmatched = [path for path, _ in rest]
        return groups[0] if len(groups) == 1 else tuple(groups), unmatched

    def split(self, *filters: Filter) -> Any:
        """Divides the leaves; each goes to the first filter that selects it.

        Args:
            *filters: At least one.

        Returns:
            A state for a single filter, else a tuple with one state a filter.

        Raises:
            ValueError: If no filter selects a leaf, with the paths of all of those.

        Example:
            >>> import graphcore as gc
            >>> s = State({'a': gc.Param.state(1), 'b': gc.Cache.state(2)})
            >>> params, rest = s.split(gc.Param, ...)
            >>> list(params), list(rest)
            (['a'], ['b'])
        """
        groups, unmatched = self._groups(filters)
        if unmatched:
            raise ValueError(
                "No filter selects the leaves at "
                f"{', '.join(map(path_text, unmatched))} (filters: {filters}). Add "
                "`...` as the last filter to take what is left."
            )
        return groups

    def filter(self, *filters: Filter) -> Any:
        """Selects leaves; those that no filter selects are dropped.

        Args:
            *filters: At least one.

        Returns:
            A state for a single filter, else a tuple with one state a filter.

        Example:
            >>> import graphcore as gc
            >>> s = State({'a': gc.Param.state(1), 'b': gc.Cache.state(2)})
            >>> list(s.filter(gc.Param))
            ['a']
        """
        return self._groups(filters)[0]

    @staticmethod
    def merge(
        state: Mapping[Any, Any], /, *states: Mapping[Any, Any]
    ) -> State[Any, Any]:
        """Unites states; where two have the same path, the later leaf counts.

        Args:
            state: The first state.
            *states: More of them.

        Returns:
            A new state.

        Raises:
            ValueError: If a path of one goes through a leaf of another.

        Example:
            >>> State.merge(State({'a': {'x': 1}}), State({'a': {'y': 2}}))['a'].y
            2
        """
        if not states and isinstance(state, State):
            return State._view(_as_nested(state.raw_mapping))
        pairs: dict[Path, Any] = {}
        for part in (state, *states):
            pairs.update(as_state(part).flat_state().items())
        return State.from_flat_path(pairs)

    def __or__(self, other: Mapping[Any, Any]) -> State[K, L]:
        if not isinstance(other, Mapping):
            return NotImplemented
        return State.merge(self, other)

    def __sub__(self, other: Mapping[Any, Any]) -> State[K, L]:
        if not isinstance(other, Mapping):
            return NotImplemented
        removed = set(as_state(other).flat_state().paths)
        return State.from_flat_path(
            (path, leaf) for path, leaf in self.flat_state() if path not in removed
        )

    def map(self, f: Callable[[Path, L], M], /) -> State[K, M]:
        """Applies a function to every leaf.

        Args:
            f: Called as `f(path, leaf)`.

        Returns:
            A new state.

        Example:
            >>> State({'a': 1, 'b': 2}).map(lambda path, leaf: leaf * 10).to_pure_dict()
            {'a': 10, 'b': 20}
        """
        return State.from_flat_path(
            (path, f(path, leaf)) for path, leaf in self.flat_state()
        )


class _Inner(State[K, L]):
    """A state inside a state that is shown: by its braces alone."""

    __slots__ = ()


def raw_value_of(leaf: Any) -> Any:
    """The raw value of a variable or its state; another leaf as it is.

    Args:
        leaf: A leaf of a state.

    Returns:
        The value, past the hooks for reading.

    Example:
        >>> import graphcore as gc
        >>> from graphcore.authors import raw_value_of
        >>> raw_value_of(gc.Param(1)), raw_value_of(2)
        (1, 2)
    """
    if isinstance(leaf, VariableState):
        return leaf.value
    return variable_impl(type(leaf)).get_value(leaf) if is_variable(leaf) else leaf


def as_state(mapping: Mapping[Any, Any]) -> State[Any, Any]:
    """A state as it is; of another nested mapping, a new state."""
    return mapping if isinstance(mapping, State) else State(mapping)


def _as_nested(mapping: Mapping[Any, Any]) -> dict[Any, Any]:
    """Copies a nested mapping into nested plain dicts, any depth."""
    result: dict[Any, Any] = {}
    pending: list[tuple[dict[Any, Any], Mapping[Any, Any]]] = [(result, mapping)]
    while pending:
        target, source = pending.pop()
        raw = source.raw_mapping if isinstance(source, State) else source
        for key, value in raw.items():
            if isinstance(value, Mapping):
                target[key] = {}
                pending.append((target[key], value))
            else:
                target[key] = value
    return result


_set_depth = State.__dict__["_depth"].__set__
_set_nested = State.__dict__["_nested"].__set__
_set_unmade = State.__dict__["_unmade"].__set__

# JAX recurses into pytrees, so what is nested more deeply is one node for it.
MAX_DEPTH = 100


def _is_deep(nested: dict[Any, Any]) -> bool:
    level = [nested]
    for _ in range(MAX_DEPTH):
        level = [x for node in level for x in node.values() if type(x) is dict]
        if not level:
            return False
    return True


def create_path_filters(state: Mapping[Any, Any], /) -> dict[PathIn, Any]:
    """Turns a state of settings into filters, one for each distinct setting.

    Args:
        state: A state whose leaves are hashable values, such as axes.

    Returns:
        A mapping from `PathIn` filters to the values that stand at their paths.

    Example:
        >>> create_path_filters(State({'a': 0, 'b': 0, 'c': None}))
        {PathIn(('a',), ('b',)): 0, PathIn(('c',)): None}
    """
    paths_of: dict[Any, list[Path]] = {}
    for path, leaf in as_state(state).flat_state():
        paths_of.setdefault(raw_value_of(leaf), []).append(path)
    return {PathIn(*paths): value for value, paths in paths_of.items()}
