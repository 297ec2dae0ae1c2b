"""The state of one variable, as a pytree node."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import repeat
from typing import Any, Generic, TypeAlias, TypeVar

import jax

from graphcore.content import values_equal
from graphcore.hashable_mapping import HashableMapping, as_kept
from graphcore.printing import text, treescope_repr
from graphcore.variable_impl import VariableImpl, variable_impl
from graphcore.variable_metadata import as_stored

__all__ = ["VariableState"]

A = TypeVar("A")
_Type: TypeAlias = type[Any]
B = TypeVar("B")


class VariableState(Generic[A]):
    """A variable's type, value and metadata, without its identity.

    It is a pytree node whose only child is the value, so states pass through any JAX
    function; type and metadata are static.

    Args:
        type: The variable type this is the state of.
        value: An array of any shape and dtype, or a pytree.
        **metadata: The variable's metadata; readable as attributes.

    Example:
        >>> import graphcore as gc, jax
        >>> s = gc.VariableState(gc.Param, 1.0, unit='m')
        >>> jax.tree.map(lambda x: x + 1, s).value, s.unit
        (2.0, 'm')
    """

    __slots__ = ("__weakref__", "_metadata", "type", "value")

    # Named on the class so that filters can tell that instances carry a type.
    type: _Type
    value: A
    _metadata: HashableMapping[str, Any]

    def __init__(self, type: _Type, value: A, **metadata: Any) -> None:
        self.type = type
        self.value = value
        self._metadata = as_stored(metadata)

    @classmethod
    def of(
        cls, type: _Type, value: B, metadata: HashableMapping[str, Any]
    ) -> VariableState[B]:
        """Makes a state that shares its metadata.

        Args:
            type: The variable type.
            value: The raw value.
            metadata: The metadata.

        Returns:
            The state.

        Example:
            >>> import graphcore as gc
            >>> metadata = gc.HashableMapping({'unit': 'm'})
            >>> VariableState.of(gc.Param, 1.0, metadata).unit
            'm'
        """
        state: VariableState[B] = object.__new__(cls)  # type: ignore[arg-type]
        state.type = type
        state.value = value
        state._metadata = metadata
        return state

    @classmethod
    def of_many(
        cls,
        types: Iterable[_Type],
        values: Iterable[Any],
        metadata: Iterable[HashableMapping[str, Any]],
    ) -> list[VariableState[Any]]:
        """Makes many states as `of` does, in fewer steps.

        Args:
            types: The variable types.
            values: As many raw values.
            metadata: As many times metadata.

        Returns:
            The states.

        Example:
            >>> import graphcore as gc
            >>> metadata = [gc.HashableMapping()] * 2
            >>> states = VariableState.of_many([gc.Param] * 2, [1, 2], metadata)
            >>> [state.value for state in states]
            [1, 2]
        """
        values = list(values)
        states = list(map(object.__new__, repeat(cls, len(values))))
        for setter, given in (
            (_set_type, types),
            (_set_value, values),
            (_set_metadata, metadata),
        ):
            deque(map(setter, states, given), maxlen=0)
        return states

    @classmethod
    def from_variable(cls, variable: Any, /) -> VariableState[Any]:
        """Takes a snapshot of a variable of any type.

        Args:
            variable: A variable.

        Returns:
            Its type, raw value and metadata.

        Example:
            >>> import graphcore as gc
            >>> VariableState.from_variable(gc.Param(1.0)).value
            1.0
        """
        kind = type(variable)
        impl = variable_impl(kind)
        return cls.of(kind, impl.get_value(variable), as_kept(impl.metadata(variable)))

    def get_metadata(self) -> dict[str, Any]:
        """Returns a copy of the metadata.

        Returns:
            A dict from names to values.

        Example:
            >>> import graphcore as gc
            >>> gc.Param.state(1.0, unit='m').get_metadata()
            {'unit': 'm'}
        """
        return dict(self._metadata)

    def __getattr__(self, name: str) -> Any:
        if name != "_metadata" and name in self._metadata:
            return self._metadata[name]
        raise AttributeError(f"VariableState has no attribute or metadata {name!r}.")

    def replace(self, value: B, **metadata: Any) -> VariableState[B]:
        """Returns the same state with another value.

        Args:
            value: The value.
            **metadata: Metadata that changes.

        Returns:
            A new state.

        Example:
            >>> import graphcore as gc
            >>> gc.Param.state(1.0).replace(2.0).value
            2.0
        """
        if metadata:
            return VariableState(self.type, value, **{**self._metadata, **metadata})
        return VariableState.of(self.type, value, self._metadata)

    def to_variable(self) -> Any:
        """Returns a new variable of the type, with this value and metadata.

        Returns:
            A variable; creation hooks don't run.

        Example:
            >>> import graphcore as gc
            >>> type(gc.Param.state(1.0).to_variable()).__name__
            'Param'
        """
        return variable_impl(self.type).create(self.type, self.value, self._metadata)

    def __getitem__(self, key: Any) -> Any:
        """`state[...]` is the value, as it is of a variable; other keys go to it."""
        value: Any = self.value
        return value if key is ... else value[key]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, VariableState):
            return NotImplemented
        return (
            self.type is other.type
            and self._metadata == other._metadata
            and values_equal(self.value, other.value)
        )

    __hash__ = None  # type: ignore[assignment]

    def __getstate__(self) -> tuple[Any, ...]:
        return self.type, self.value, self._metadata

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.type, self.value, self._metadata = state

    def __repr__(self) -> str:
        return text(self)

    __treescope_repr__ = treescope_repr


_set_type = VariableState.__dict__["type"].__set__
_set_value = VariableState.__dict__["value"].__set__
_set_metadata = VariableState.__dict__["_metadata"].__set__


def _flatten(state: VariableState[Any]) -> tuple[tuple[Any], tuple[Any, ...]]:
    return (state.value,), (state.type, state._metadata)


def _flatten_with_keys(
    state: VariableState[Any],
) -> tuple[tuple[tuple[Any, Any]], tuple[Any, ...]]:
    key = jax.tree_util.GetAttrKey("value")
    return ((key, state.value),), (state.type, state._metadata)


def _unflatten(aux: tuple[Any, ...], children: Any) -> VariableState[Any]:
    (value,) = children
    return VariableState.of(aux[0], value, aux[1])


jax.tree_util.register_pytree_with_keys(
    VariableState, _flatten_with_keys, _unflatten, _flatten
)


def shown_to_filters(impl: VariableImpl, variable: Any) -> Any:
    """What filters look at: the variable, or for one of a foreign type its state.

    Args:
        impl: How the variable is handled.
        variable: The variable.

    Returns:
        Something with the metadata as attributes.
    """
    return variable if impl.is_owned else VariableState.from_variable(variable)
