"""What a plan watches of variables of registered types.

Nobody is told when such a variable gets other metadata or another class. So a plan
looks at both whenever it is asked, at all variables at once and mostly in C.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from operator import is_
from typing import Any, NamedTuple

from graphcore.content import is_immutable
from graphcore.hashable_mapping import HashableMapping, as_hashable
from graphcore.variables.impl import VariableImpl

__all__ = ["NOTHING_FOREIGN", "ForeignVariables", "has_plain_metadata"]


class _Group(NamedTuple):
    """Variables that are handled alike.

    Args:
        get_metadata: How their metadata is read.
        variables: The variables.
        types: The type of each.
        metadata: What was recorded of each.
        contents: The same as dicts.
        values: All values in them, one after the other; None if one can change in
            place, so that its identity does not say enough.
    """

    get_metadata: Callable[[Any], Mapping[str, Any]]
    variables: Sequence[Any]
    types: Sequence[type[Any]]
    metadata: Sequence[HashableMapping[str, Any]]
    contents: list[dict[str, Any]]
    values: Sequence[Any] | None

    def holds(self) -> bool:
        """Whether types and metadata are what was recorded."""
        if not all(map(is_, map(type, self.variables), self.types)):
            return False
        found = list(map(self.get_metadata, self.variables))
        if self.values is not None and found == self.contents:
            # Equal may still be different, as `1` and `True`.
            if not self.values:
                return True
            now = chain.from_iterable(metadata.values() for metadata in found)
            if all(map(is_, now, self.values)):
                return True
        return all(
            as_hashable(now) == recorded
            for now, recorded in zip(found, self.metadata, strict=True)
        )


class ForeignVariables:
    """Types and metadata of some variables at one time.

    Args:
        variables: How each variable is handled, the variable, and its metadata.

    Example:
        >>> import graphcore as gc
        >>> from graphcore.variables.impl import variable_impl
        >>> variable, impl = gc.Param(1, unit='m'), variable_impl(gc.Param)
        >>> watched = ForeignVariables([(impl, variable, impl.metadata(variable))])
        >>> watched.hold()
        True
        >>> variable.unit = 'km'
        >>> watched.hold()
        False
    """

    __slots__ = ("_groups",)

    def __init__(
        self,
        variables: Iterable[tuple[VariableImpl, Any, HashableMapping[str, Any]]],
    ) -> None:
        alike: dict[int, list[tuple[VariableImpl, Any, HashableMapping[str, Any]]]] = {}
        for entry in variables:
            alike.setdefault(id(entry[0]), []).append(entry)
        self._groups = [self._group(entries) for entries in alike.values()]

    def __bool__(self) -> bool:
        return bool(self._groups)

    @staticmethod
    def _group(
        entries: Sequence[tuple[VariableImpl, Any, HashableMapping[str, Any]]],
    ) -> _Group:
        impls, variables, metadata = zip(*entries, strict=True)
        values = [value for mapping in metadata for value in mapping.values()]
        return _Group(
            impls[0].get_metadata,
            variables,
            tuple(map(type, variables)),
            metadata,
            [dict(mapping) for mapping in metadata],
            values if all(map(is_immutable, values)) else None,
        )

    def hold(self) -> bool:
        """Tells whether types and metadata are still what they were.

        Returns:
            True only if all of them are the same as strictly as in a definition.
        """
        return all(group.holds() for group in self._groups)


def has_plain_metadata(impl: VariableImpl, variable: Any) -> bool:
    """Whether the metadata of a variable is a dict of values that stay what they are.

    Args:
        impl: How the variable is handled.
        variable: The variable.
    """
    found = impl.get_metadata(variable)
    return type(found) is dict and all(map(is_immutable, found.values()))


NOTHING_FOREIGN = ForeignVariables(())
"""What is watched where all variables are of the library's own types."""
