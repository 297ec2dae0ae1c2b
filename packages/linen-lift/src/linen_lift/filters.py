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
        return hash((DenyList, _freeze(self.deny)))


CollectionFilter: TypeAlias = Union[bool, str, Collection[str], DenyList]
StreamFilter: TypeAlias = CollectionFilter


def _freeze(names: CollectionFilter) -> Any:
    if isinstance(names, (bool, str, DenyList)):
        return names
    return filter_to_set(names)


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
    if names is not True and isinstance(names, Collection):
        if all(isinstance(name, str) for name in names):
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
    if names is True or names is False:
        return names is False
    if isinstance(names, str):
        return False
    if isinstance(names, DenyList):
        # Only a filter that selects everything has an empty complement.
        return _selects_all(names.deny)
    if isinstance(names, Collection):
        return not names
    raise InvalidFilterError(names)


def _selects_all(names: CollectionFilter) -> bool:
    if isinstance(names, DenyList):
        return is_filter_empty(names.deny)
    if isinstance(names, (bool, str, Collection)):
        return names is True
    raise InvalidFilterError(names)


def _complement(names: CollectionFilter) -> CollectionFilter:
    if isinstance(names, DenyList):
        return _simplify(names.deny)
    if isinstance(names, bool):
        return not names
    return _simplify(DenyList(names))


def _simplify(names: CollectionFilter) -> CollectionFilter:
    if isinstance(names, bool):
        return names
    if isinstance(names, DenyList):
        inner = _simplify(names.deny)
        if isinstance(inner, (bool, DenyList)):
            return _complement(inner)
        return DenyList(inner) if inner else True
    return filter_to_set(names)


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
    a, b = _simplify(a), _simplify(b)
    if a is True or b is True:
        return True
    if a is False:
        return b
    if b is False:
        return a
    if isinstance(a, DenyList) and isinstance(b, DenyList):
        return _simplify(DenyList(filter_to_set(a.deny) & filter_to_set(b.deny)))
    if isinstance(a, DenyList):
        return _simplify(DenyList(filter_to_set(a.deny) - filter_to_set(b)))
    if isinstance(b, DenyList):
        return _simplify(DenyList(filter_to_set(b.deny) - filter_to_set(a)))
    return filter_to_set(a) | filter_to_set(b)


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
    return _complement(union_filters(_complement(a), _complement(b)))


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
    return intersect_filters(a, _complement(b))


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
