"""`Variable`: a handle of one variable of a scope."""

from __future__ import annotations

import dataclasses
from typing import Any, Generic, TypeVar

from .metadata import AxisMetadata, unbox

T = TypeVar("T")


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class Variable(Generic[T]):
    """A named slot in a collection, read and written through `value`.

    Args:
        scope: where it lives.
        collection: the name of its collection.
        name: its name.
        unbox: whether `value` looks through axis metadata.

    Example:
        >>> import linen_lift as nn
        >>> scope = nn.scope.bind({'state': {'n': 1}}, mutable='state')
        >>> n = scope.variable('state', 'n')
        >>> n.value += 1
        >>> scope.get_variable('state', 'n')
        2
    """

    scope: Any
    collection: str
    name: str
    unbox: bool = True

    @property
    def value(self) -> Any:
        """What is stored. Assigning stores a new value, in the old one's box."""
        value = self.scope.get_variable(self.collection, self.name)
        return unbox(value) if self.unbox else value

    @value.setter
    def value(self, value: Any) -> None:
        if self.unbox:
            old = self.scope.get_variable(self.collection, self.name)
            if isinstance(old, AxisMetadata) and not isinstance(value, AxisMetadata):
                value = old.replace_boxed(value)
        self.scope.put_variable(self.collection, self.name, value)

    def is_mutable(self) -> bool:
        """Whether the collection may be written."""
        return bool(self.scope.is_mutable_collection(self.collection))

    def __repr__(self) -> str:
        place = "/".join((self.collection, *self.scope.path, self.name))
        return f"Variable({place})"
