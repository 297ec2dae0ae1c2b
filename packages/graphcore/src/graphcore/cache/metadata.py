"""Types and metadata of variables that belong to another library.

Nobody is told when they change. Where a variable has its metadata in a dict, a
comparison with a copy tells, without a call of Python's for each.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from graphcore.content import is_immutable
from graphcore.variables.impl import VariableImpl


def has_plain_metadata(impl: VariableImpl, variable: Any) -> bool:
    """Whether metadata is a dict, the same each time, of what stays what it is."""
    found = impl.get_metadata(variable)
    is_kept = type(found) is dict and found is impl.get_metadata(variable)
    return is_kept and all(map(is_immutable, found.values()))


class Metadata(NamedTuple):
    """The types and the plain metadata of variables.

    They hold if both are, or equal, what they were; `Plan.holds` looks itself.

    Args:
        look: Returns the metadata of variables as a list.
        variables: The variables.
        types: Their types.
        metadata: Copies of their metadata.
    """

    look: Callable[[Sequence[Any]], list[Mapping[str, Any]]]
    variables: Sequence[Any]
    types: list[type[Any]]
    metadata: list[Mapping[str, Any]]

    @classmethod
    def of(cls, impl: VariableImpl, variables: Sequence[Any]) -> Metadata:
        """Looks at variables that are handled in one way."""
        look = impl.get_all_metadata or (lambda xs: [*map(impl.get_metadata, xs)])
        # Mostly the same, so that one copy of each kind is enough.
        kinds: dict[Any, Any] = {}
        metadata = [
            kinds.setdefault((*found, *map(id, found.values())), dict(found))
            for found in look(variables)
        ]
        return cls(look, variables, [type(x) for x in variables], metadata)

    def is_exact(self, flags: Collection[str]) -> bool:
        """Whether nothing else equals the metadata: of a flag, 1 is as good as True."""
        return not any(each.keys() - flags for each in self.metadata)

    def referents(self) -> list[Any]:
        """What the metadata hold now."""
        return gc.get_referents(*self.look(self.variables))
