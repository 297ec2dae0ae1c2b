"""Filters: short ways to say which (path, value) pairs are meant.

A filter is written as whatever reads best at the call (a type, a tag, an ellipsis, a
list of those) and turned by `to_predicate` into one of the classes below. Those are
hashable and compare by meaning, so they can key caches and prefixes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any as AnyType
from typing import TypeAlias, TypeVar, Union

from graphcore.adapters.loading import load_adapters
from graphcore.known_types import impls
from graphcore.trails import Path
from graphcore.variables.impl import counterparts_of, is_variable
from graphcore.variables.reading import Reading

__all__ = [
    "All",
    "Any",
    "Everything",
    "Filter",
    "Not",
    "Nothing",
    "OfType",
    "PathContains",
    "PathIn",
    "Predicate",
    "WithTag",
    "filters_to_predicates",
    "to_predicate",
]

T = TypeVar("T")
Predicate: TypeAlias = Callable[[Path, AnyType], bool]
"""What a filter becomes: tells by path and value whether a value is meant.

Example:
    >>> import graphcore as gc
    >>> def is_bias(path, value):
    ...     return path[-1] == 'bias'
    >>> list(gc.state(gc.Dict(kernel=gc.Param(1), bias=gc.Param(2)), is_bias))
    ['bias']
"""
# `EllipsisType`, `None`, `bool`, a nested sequence: typing can't name all of these
# without recursion that tools resolve differently, so the leaf is `Any`.
Filter: TypeAlias = Union[type, str, bool, None, Predicate, Sequence[AnyType], AnyType]
"""What may be written where a filter is expected; see `to_predicate`.

Example:
    >>> import graphcore as gc
    >>> node = gc.Dict(kernel=gc.Param(1), bias=gc.Param(2), steps=gc.Variable(0))
    >>> for filter in (gc.Param, gc.PathContains('bias'), gc.Not(gc.Param), ...):
    ...     print(*gc.state(node, filter))
    bias kernel
    bias
    steps
    bias kernel steps
"""


class _ByMeaning:
    """Equality and hash from the class and one value that says what is selected.

    There are no `__slots__`: programs give a filter that they name a docstring.
    """

    _meaning: Hashable = ()

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._meaning == other._meaning

    def __hash__(self) -> int:
        return hash((type(self), self._meaning))

    def _written(self) -> str:
        if isinstance(self._meaning, frozenset):
            return ", ".join(sorted(map(repr, self._meaning)))
        return "" if self._meaning == () else repr(self._meaning)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._written()})"


class Everything(_ByMeaning):
    """Selects everything.

    Example:
        >>> Everything()(('a',), 1), to_predicate(...) == Everything()
        (True, True)
    """

    def __call__(self, path: Path, value: AnyType) -> bool:
        return True


class Nothing(_ByMeaning):
    """Selects nothing.

    Example:
        >>> Nothing()(('a',), 1), to_predicate(None) == Nothing()
        (False, True)
    """

    def __call__(self, path: Path, value: AnyType) -> bool:
        return False


class OfType(_ByMeaning):
    """Selects values of a type, or that stand for one through their `.type`.

    Args:
        type: The class.

    Example:
        >>> import graphcore as gc
        >>> OfType(gc.Param)((), gc.Param(1)), OfType(gc.Param)((), gc.Param.state(1))
        (True, True)
    """

    def __init__(self, type: type) -> None:
        self._meaning = self.type = type
        load_adapters(type)  # It may be the first that is met of a library.

    def _written(self) -> str:
        return self.type.__name__

    def __call__(self, path: Path, value: AnyType) -> bool:
        types = counterparts_of(self.type)
        if isinstance(value, types):
            return True
        kind = type(value)
        # Asked of the class and the instance dict: a variable forwards unknown
        # attributes to its value, and the value's `.type` is not what is meant.
        if hasattr(kind, "type") or "type" in getattr(value, "__dict__", ()):
            stands_for = value.type
            if isinstance(stands_for, type):
                kind = stands_for
                if issubclass(kind, types):
                    return True
        # So may what is to be selected. (Of a type that is known, nothing waits.)
        return kind not in impls and load_adapters(kind) and self(path, value)


class WithTag(_ByMeaning):
    """Selects values whose `.tag` equals a string.

    Args:
        tag: The string.

    Example:
        >>> import graphcore as gc
        >>> WithTag('slow')((), gc.Param(1, tag='slow'))
        True
    """

    def __init__(self, tag: str) -> None:
        self._meaning = self.tag = tag

    def __call__(self, path: Path, value: AnyType) -> bool:
        if isinstance(value, Reading):  # which shows attributes of its value, too
            found = value._metadata().get("tag", getattr(value.__class__, "tag", None))
        else:
            found = getattr(value, "tag", None)
        return isinstance(found, str) and found == self.tag


class PathContains(_ByMeaning):
    """Selects what has a key anywhere in its path.

    Args:
        key: The key.
        exact: Whether a key of the path must equal it; else its text must contain that
            of the key.

    Example:
        >>> PathContains('head')(('head', 'kernel'), None)
        True
        >>> PathContains('head', exact=False)(('heads', 'kernel'), None)
        True
    """

    def __init__(self, key: AnyType, exact: bool = True) -> None:
        self.key, self.exact = self._meaning = key, exact

    def _written(self) -> str:
        return repr(self.key) if self.exact else f"{self.key!r}, exact=False"

    def __call__(self, path: Path, value: AnyType) -> bool:
        if self.exact:
            return self.key in path
        return any(str(self.key) in str(key) for key in path)


class PathIn(_ByMeaning):
    """Selects what stands at one of the given paths.

    Args:
        *paths: Tuples of keys.

    Example:
        >>> PathIn(('a',), ('b', 0))(('b', 0), None)
        True
    """

    def __init__(self, *paths: Path) -> None:
        self._meaning = self.paths = frozenset(map(tuple, paths))

    def __call__(self, path: Path, value: AnyType) -> bool:
        return path in self.paths


class _Members(_ByMeaning):
    """Combines filters; one of the same class among them is flattened into it.

    Args:
        *filters: Filters in any written form.
    """

    predicates: Sequence[Predicate]

    def __init__(self, *filters: Filter) -> None:
        members: dict[Predicate, None] = {}  # asked in the order in which they stand
        for predicate in map(to_predicate, filters):
            if isinstance(predicate, _Members) and type(predicate) is type(self):
                members |= dict.fromkeys(predicate.predicates)
            else:
                members[predicate] = None
        self.predicates = (*members,)
        self._meaning = frozenset(members)


class Any(_Members):
    """Selects what at least one of its filters selects.

    Args:
        *filters: Filters in any written form.

    Example:
        >>> import graphcore as gc
        >>> Any(gc.Param, 'slow') == Any('slow', gc.Param)
        True
    """

    def __call__(self, path: Path, value: AnyType) -> bool:
        return any(predicate(path, value) for predicate in self.predicates)


class All(_Members):
    """Selects what every one of its filters selects.

    Args:
        *filters: Filters in any written form.

    Example:
        >>> import graphcore as gc
        >>> All(gc.Param, gc.PathContains('head'))(('head',), gc.Param(1))
        True
    """

    def __call__(self, path: Path, value: AnyType) -> bool:
        return all(predicate(path, value) for predicate in self.predicates)


class Not(_ByMeaning):
    """Selects what its filter does not.

    Args:
        filter: A filter in any written form.

    Example:
        >>> import graphcore as gc
        >>> Not(gc.Param)((), gc.BatchStat(1))
        True
    """

    def __init__(self, filter: Filter, /) -> None:
        self._meaning = self.predicate = to_predicate(filter)

    def __call__(self, path: Path, value: AnyType) -> bool:
        return not self.predicate(path, value)


def to_predicate(filter: Filter, /) -> Predicate:
    """Turns any written form of a filter into a predicate.

    Args:
        filter: A type, a tag, `...` or `True`, `None` or `False`, a list or tuple of
            filters (any of them), or a callable of a path and a value.

    Returns:
        A callable of a path and a value.

    Raises:
        TypeError: If it is none of these.

    Example:
        >>> import graphcore as gc
        >>> to_predicate([gc.Param, 'slow'])
        Any(OfType(Param), WithTag('slow'))
    """
    if isinstance(filter, str):
        return WithTag(filter)
    if isinstance(filter, type):
        return OfType(filter)
    if filter is ... or filter is True:
        return Everything()
    if filter is None or filter is False:
        return Nothing()
    if callable(filter) and not is_variable(filter):  # which calls its value
        convert = _converters.get(type(filter))
        if convert is None and load_adapters(type(filter)):
            convert = _converters.get(type(filter))
        predicate: Predicate = filter if convert is None else convert(filter)
        return predicate
    if isinstance(filter, list | tuple):
        return Any(*filter)
    raise TypeError(
        f"{filter!r} is not a filter: expected a type, a string, `...`, a bool, None, "
        "a list or tuple of filters, or a callable (path, value) -> bool."
    )


# What makes one of the classes above of another library's filter, by its type.
_converters: dict[type, Callable[[AnyType], Predicate]] = {}


def add_filter_type(type: type, convert: Callable[[AnyType], Predicate]) -> None:
    """Has filters of another library understood, so that their meaning is known.

    Args:
        type: Their type.
        convert: Makes one of the classes of this module.
    """
    _converters[type] = convert


def looks_at_no_value(predicate: Predicate, /) -> bool:
    """Whether what a predicate says of a variable's state depends on no value.

    Args:
        predicate: A predicate.

    Returns:
        Whether path, type and metadata settle it.

    Example:
        >>> looks_at_no_value(Not('slow')), looks_at_no_value(lambda path, x: True)
        (True, False)
    """
    if isinstance(predicate, Any | All):
        return all(map(looks_at_no_value, predicate.predicates))
    if isinstance(predicate, Not):
        return looks_at_no_value(predicate.predicate)
    return type(predicate) in (
        *(Everything, Nothing, OfType, WithTag, PathContains, PathIn),
    )


def grouped(
    predicates: Sequence[Predicate], leaves: Iterable[tuple[Path, AnyType, T]]
) -> tuple[list[list[T]], list[T]]:
    """Divides leaves; each goes to the first predicate that selects it.

    Args:
        predicates: The predicates.
        leaves: The path of each, what predicates look at, and what stands for it here.

    Returns:
        One list a predicate, and what none of them selects.

    Example:
        >>> grouped([PathIn(('a',))], [(('a',), 1, 'one'), (('b',), 2, 'two')])
        ([['one']], ['two'])
    """
    groups: list[list[T]] = [[] for _ in predicates]
    rest: list[T] = []
    for path, shown, leaf in leaves:
        for predicate, group in zip(predicates, groups, strict=True):
            if predicate(path, shown):
                group.append(leaf)
                break
        else:
            rest.append(leaf)
    return groups, rest


def filters_to_predicates(filters: Sequence[Filter], /) -> tuple[Predicate, ...]:
    """Turns filters that are tried in order into predicates.

    Args:
        filters: Filters in any written form.

    Returns:
        As many predicates.

    Raises:
        ValueError: If a filter stands behind one that takes everything.

    Example:
        >>> filters_to_predicates(['slow', ...])
        (WithTag('slow'), Everything())
    """
    predicates = tuple(map(to_predicate, filters))
    for position, predicate in enumerate(predicates):
        rest = predicates[position + 1 :]
        if predicate == Everything() and any(p != Everything() for p in rest):
            raise ValueError(
                "`...` or `True` can only stand last among filters, or be followed by "
                f"itself: it takes everything, so {rest} after position {position} "
                "would get nothing."
            )
    return predicates
