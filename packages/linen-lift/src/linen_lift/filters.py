"""Filters over names: which collections, which random streams.

A filter is `True` (every name), `False` (none), one name, a container of names, or
`DenyList(filter)` (every name that the inner filter leaves out). They say what is
mutable in a scope and what goes in and out of a lifted transform.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias, Union

from .errors import InvalidFilterError

__all__ = [
    "CollectionFilter",
    "DenyList",
    "StreamFilter",
    "filter_to_set",
    "group_collections",
    "in_filter",
    "intersect_filters",
    "is_filter_empty",
    "subtract_filters",
    "union_filters",
]


@dataclasses.dataclass(frozen=True, eq=True)
class DenyList:
    """A filter for every name that `deny` does not contain.

    Args:
        deny: the filter of the names to leave out.

    Example:
        >>> import linen_lift as nn
        >>> nn.scope.in_filter(nn.DenyList('intermediates'), 'params')
        True
    """

    deny: CollectionFilter

    def __hash__(self) -> int:
        return hash((DenyList, *_normal(self.deny)))


CollectionFilter: TypeAlias = Union[bool, str, Collection[str], DenyList]
StreamFilter: TypeAlias = CollectionFilter


def in_filter(names: CollectionFilter, name: str) -> bool:
    """Whether `name` is in the filter `names`.

    Args:
        names: the filter.
        name: the name of a collection or stream.

    Returns:
        True if the filter selects the name.

    Raises:
        InvalidFilterError: if `names` is not a filter.

    Example:
        >>> from linen_lift.scope import in_filter
        >>> in_filter(['params', 'cache'], 'cache')
        True
    """
    if names is True or names is False:
        return names is True
    if isinstance(names, str):
        return name == names
    if isinstance(names, DenyList):
        return not in_filter(names.deny, name)
    if isinstance(names, Collection):
        return name in names
    raise InvalidFilterError(names)


def filter_to_set(names: CollectionFilter) -> frozenset[str]:
    """The names of a filter that lists names.

    Args:
        names: `False`, a name, or a container of names.

    Returns:
        The set of the names.

    Raises:
        InvalidFilterError: for `True` and `DenyList`, which select endlessly many
            names, and for what is not a filter.

    Example:
        >>> from linen_lift.scope import filter_to_set
        >>> sorted(filter_to_set(('b', 'a')))
        ['a', 'b']
    """
    if names is False:
        return frozenset()
    if isinstance(names, str):
        return frozenset((names,))
    if isinstance(names, Collection) and all(isinstance(n, str) for n in names):
        return frozenset(names)
    raise InvalidFilterError(names)


def is_filter_empty(names: CollectionFilter) -> bool:
    """Whether the filter selects no name at all.

    Args:
        names: the filter.

    Returns:
        True for `False`, an empty container and `DenyList(True)`.

    Raises:
        InvalidFilterError: if `names` is not a filter.

    Example:
        >>> from linen_lift.scope import is_filter_empty
        >>> is_filter_empty([]), is_filter_empty('params')
        (True, False)
    """
    listed, selected = _normal(names)
    return listed and not selected


def _normal(names: CollectionFilter) -> tuple[bool, frozenset[str]]:
    """A filter as names, and whether it selects these or all others."""
    if isinstance(names, DenyList):
        listed, selected = _normal(names.deny)
        return not listed, selected
    if names is True:
        return False, frozenset()
    return True, filter_to_set(names)


def _filter(listed: bool, names: frozenset[str]) -> CollectionFilter:
    if listed:
        return names or False
    return DenyList(names) if names else True


def union_filters(a: CollectionFilter, b: CollectionFilter) -> CollectionFilter:
    """The filter for names that are in `a` or in `b`.

    Args:
        a: a filter.
        b: another.

    Returns:
        A filter.

    Raises:
        InvalidFilterError: if one of them is not a filter.

    Example:
        >>> from linen_lift.scope import union_filters
        >>> sorted(union_filters('a', ['b']))
        ['a', 'b']
    """
    (a_listed, a_names), (b_listed, b_names) = _normal(a), _normal(b)
    if a_listed and b_listed:
        return _filter(True, a_names | b_names)
    if not (a_listed or b_listed):
        return _filter(False, a_names & b_names)
    denied, listed = (b_names, a_names) if a_listed else (a_names, b_names)
    return _filter(False, denied - listed)


def intersect_filters(a: CollectionFilter, b: CollectionFilter) -> CollectionFilter:
    """The filter for names that are in `a` and in `b`.

    Args:
        a: a filter.
        b: another.

    Returns:
        A filter.

    Raises:
        InvalidFilterError: if one of them is not a filter.

    Example:
        >>> from linen_lift.scope import intersect_filters
        >>> sorted(intersect_filters(True, ['b']))
        ['b']
    """
    outside: CollectionFilter = union_filters(DenyList(a), DenyList(b))
    return _filter(*_normal(DenyList(outside)))


def subtract_filters(a: CollectionFilter, b: CollectionFilter) -> CollectionFilter:
    """The filter for names that are in `a` and not in `b`.

    Args:
        a: a filter.
        b: another.

    Returns:
        A filter.

    Raises:
        InvalidFilterError: if one of them is not a filter.

    Example:
        >>> from linen_lift.scope import subtract_filters
        >>> sorted(subtract_filters(['a', 'b'], 'a'))
        ['b']
    """
    return intersect_filters(a, DenyList(b))


def group_collections(
    variables: Mapping[str, Any], filters: Sequence[CollectionFilter]
) -> tuple[dict[str, Any], ...]:
    """Splits collections into groups; each goes to the first filter it matches.

    Args:
        variables: a mapping from names to collections.
        filters: one filter per group.

    Returns:
        One dict per filter. Collections that match none are in none.

    Raises:
        InvalidFilterError: if one of the filters is not a filter.

    Example:
        >>> from linen_lift.scope import group_collections
        >>> group_collections({'a': 1, 'b': 2}, ['b', True])
        ({'b': 2}, {'a': 1})
    """
    groups: tuple[dict[str, Any], ...] = tuple({} for _ in filters)
    for name, value in variables.items():
        for group, names in zip(groups, filters, strict=True):
            if in_filter(names, name):
                group[name] = value
                break
    return groups
