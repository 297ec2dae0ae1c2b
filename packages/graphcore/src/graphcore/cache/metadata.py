"""Types and metadata of variables that belong to another library.

Nobody is told when they change. Where a variable has its metadata in a dict, a
comparison with a copy tells, without a call of Python's for each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from graphcore.content import is_immutable
from graphcore.variables.impl import VariableImpl


def has_plain_metadata(impl: VariableImpl, variable: Any) -> bool:
    """Whether metadata is a dict, the same each time, of what stays what it is."""
    found = impl.get_metadata(variable)
    is_kept = type(found) is dict and found is impl.get_metadata(variable)
    return is_kept and all(map(is_immutable, found.values()))


class Metadata(NamedTuple):
    """The types and the plain metadata of variables that are handled in one way.

    Args:
        look: Returns the metadata of variables as a list.
        variables: The variables.
        types: Their types.
        found: Their metadata.
        copies: Copies of these: mostly the same, so there is one of each kind.
    """

    look: Callable[[Sequence[Any]], list[Any]]
    variables: Sequence[Any]
    types: list[type[Any]]
    found: list[Any]
    copies: list[dict[str, Any]]

    @classmethod
    def of(cls, impl: VariableImpl, variables: Sequence[Any]) -> Metadata:
        """Looks at variables.

        Args:
            impl: How they are handled.
            variables: The variables.

        Raises:
            ValueError: If there is not one mapping for each.
        """
        get_all = impl.get_all_metadata
        look: Any = lambda xs: [*map(impl.get_metadata, xs)]  # noqa: E731
        if get_all is not None:
            # Whoever returns another sequence than a list is asked to pay for it.
            is_list = type(get_all(variables)) is list
            look = get_all if is_list else lambda xs: [*get_all(xs)]
        found = look(variables)
        if len(found) != len(variables):
            raise ValueError(
                f"The `get_all_metadata` that {type(variables[0]).__name__} is "
                f"registered with returned {len(found)} mappings for "
                f"{len(variables)} variables."
            )
        kinds: dict[Any, Any] = {}
        copies = [
            kinds.setdefault((*each, *map(id, each.values())), dict(each))
            for each in found
        ]
        return cls(look, variables, [type(x) for x in variables], found, copies)

    def objects(self) -> list[Any]:
        """The types of the variables, and the dicts that are their metadata now."""
        return [type(x) for x in self.variables] + self.look(self.variables)

    def hold(self, root: Any) -> bool:
        """Tells whether types and metadata equal what they were, as a plan asks it."""
        look, variables, types, _, copies = self
        return [type(x) for x in variables] == types and look(variables) == copies
