"""States handled by functions, where graphcore has methods of `State`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from graphcore import FlatState, State
from graphcore import create_path_filters as create_path_filters

__all__ = [
    "filter_state",
    "from_flat_state",
    "map_state",
    "merge_state",
    "replace_by_pure_dict",
    "restore_int_paths",
    "split_state",
    "to_flat_state",
    "to_pure_dict",
]

Path = tuple[Any, ...]


def _state(state: Mapping[Any, Any]) -> State[Any, Any]:
    return state if isinstance(state, State) else State(state)


def to_flat_state(state: Mapping[Any, Any]) -> FlatState[Any]:
    """Returns the leaves of a state, or of nested dicts, with their paths.

    Args:
        state: A state or a nested mapping.

    Returns:
        Pairs of path and leaf, sorted by path, also to be read as a mapping.

    Example:
        >>> to_flat_state({'a': {'x': 1}})['a', 'x']
        1
    """
    return _state(state).flat_state()


def from_flat_state(
    flat_state: Mapping[Path, Any] | Iterable[tuple[Path, Any]],
    *,
    cls: type[Any] = State,
) -> Any:
    """Makes a nested state from leaves with their paths.

    Args:
        flat_state: A `FlatState`, pairs of path and leaf, or a mapping of them.
        cls: A type that is made of nested dicts.

    Returns:
        The state.

    Example:
        >>> from_flat_state({('a', 'x'): 1}).a.x
        1
    """
    state: State[Any, Any] = State.from_flat_path(flat_state)
    return state if cls is State else cls(state.raw_mapping)


def to_pure_dict(
    state: Mapping[Any, Any], extract_fn: Callable[[Any], Any] | None = None
) -> dict[Any, Any]:
    """Returns nested plain dicts of values, as `State.to_pure_dict` does.

    Args:
        state: A state or a nested mapping.
        extract_fn: Returns what stands for a leaf; its raw value if left out.

    Returns:
        The dicts.

    Example:
        >>> import graphcore as gc
        >>> to_pure_dict(gc.state(gc.Dict(a=gc.Param(1))))
        {'a': 1}
    """
    return _state(state).to_pure_dict(extract_fn)


def replace_by_pure_dict(
    state: State[Any, Any],
    pure_dict: Mapping[Any, Any],
    replace_fn: Callable[[Any, Any], Any] | None = None,
) -> None:
    """Replaces values of a state in place by those of nested plain dicts.

    Args:
        state: The state.
        pure_dict: As `to_pure_dict` returns it; it may hold fewer leaves.
        replace_fn: Returns the new leaf, of the old one and the item of the dict.

    Raises:
        ValueError: If the dicts hold a path that the state does not.

    Example:
        >>> import graphcore as gc
        >>> state = gc.state(gc.Dict(a=gc.Param(1)))
        >>> replace_by_pure_dict(state, {'a': 2}); state.a.value
        2
    """
    state.replace_by_pure_dict(pure_dict, replace_fn)


def restore_int_paths(pure_dict: Mapping[Any, Any]) -> dict[Any, Any]:
    """Turns keys that are strings of digits into integers, at any depth.

    Args:
        pure_dict: Nested dicts, such as those of a checkpoint.

    Returns:
        New dicts.

    Example:
        >>> restore_int_paths({'layers': {'0': 1}})
        {'layers': {0: 1}}
    """
    pairs = _state(pure_dict).flat_state()
    return State.from_flat_path(
        (tuple(map(_integer, path)), leaf) for path, leaf in pairs
    ).raw_mapping


def _integer(key: Any) -> Any:
    return int(key) if isinstance(key, str) and key.isdecimal() else key


def map_state(
    f: Callable[[Path, Any], Any], state: Mapping[Any, Any]
) -> State[Any, Any]:
    """Applies a function to every leaf.

    Args:
        f: Called as `f(path, leaf)`.
        state: A state or a nested mapping.

    Returns:
        A new state.

    Example:
        >>> map_state(lambda path, leaf: 10 * leaf, State({'a': 1})).a
        10
    """
    return _state(state).map(f)


def merge_state(
    state: Mapping[Any, Any], /, *states: Mapping[Any, Any], cls: type[Any] = State
) -> Any:
    """Unites states; where two have the same path, the later leaf counts.

    Args:
        state: The first state.
        *states: More of them.
        cls: A type that is made of nested dicts.

    Returns:
        A new state.

    Example:
        >>> list(merge_state(State({'a': 1}), {'b': 2}))
        ['a', 'b']
    """
    whole = State.merge(state, *states)
    return whole if cls is State else cls(whole.raw_mapping)


def split_state(state: Mapping[Any, Any], /, *filters: Any) -> Any:
    """Divides the leaves of a state, as `State.split` does.

    Args:
        state: A state or a nested mapping.
        *filters: At least one.

    Returns:
        A state for a single filter, else a tuple with one state a filter.

    Example:
        >>> a, rest = split_state(State({'a': 1, 'b': 2}), lambda p, x: x == 1, ...)
        >>> list(rest)
        ['b']
    """
    return _state(state).split(*filters)


def filter_state(state: Mapping[Any, Any], /, *filters: Any) -> Any:
    """Selects leaves of a state, as `State.filter` does.

    Args:
        state: A state or a nested mapping.
        *filters: At least one.

    Returns:
        A state for a single filter, else a tuple with one state a filter.

    Example:
        >>> list(filter_state(State({'a': 1, 'b': 2}), lambda p, x: x == 1))
        ['a']
    """
    return _state(state).filter(*filters)


def diff(state: Mapping[Any, Any], other: Mapping[Any, Any], /) -> State[Any, Any]:
    """Selects the leaves of a state whose paths another state does not have.

    Args:
        state: A state or a nested mapping.
        other: Another.

    Returns:
        A new state.

    Example:
        >>> list(diff(State({'a': 1, 'b': 2}), State({'a': 3})))
        ['b']
    """
    return _state(state) - other
