"""The state of one variable, as a pytree node."""

from __future__ import annotations

from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

import jax

from graphcore.content import values_equal
from graphcore.display.printing import Parts, call_parts
from graphcore.graphdef.definition import Kind
from graphcore.hashable_mapping import HashableMapping, as_kept
from graphcore.unset import UNSET
from graphcore.variables.bare_arrays import BARE, BareArray
from graphcore.variables.impl import VariableImpl, variable_impl
from graphcore.variables.metadata import as_stored
from graphcore.variables.operators import ReadOperators
from graphcore.variables.reading import Reading

__all__ = ["VariableState"]

A = TypeVar("A")
B = TypeVar("B")
_Type: TypeAlias = type[Any]


class VariableState(Reading, ReadOperators, Generic[A]):
    """A variable's type, value and metadata, without its identity.

    It is a pytree node whose only child is the value, so states pass through any JAX
    function; type and metadata are static.

    Args:
        type: The variable type this is the state of. It may be left out for `Variable`:
            `type(v)(value)` then holds for what `isinstance` takes for a variable.
        value: An array of any shape and dtype, or a pytree.
        **metadata: The variable's metadata; readable as attributes.

    Example:
        >>> import graphcore as gc, jax
        >>> s = gc.VariableState(gc.Param, 1.0, unit='m')
        >>> jax.tree.map(lambda x: x + 1, s).value, s.unit
        (2.0, 'm')
    """

    # What is static is one object, which the treedefs of states and all states that
    # JAX makes of them share.
    __slots__ = ("__weakref__", "_kind", "value")

    value: A
    _kind: Kind
    usual_type: ClassVar[_Type]  #: `Variable`, which is defined later

    def __init__(
        self,
        type: Any = UNSET,
        value: A = UNSET,
        *,
        _kind: Any = UNSET,
        **metadata: Any,
    ) -> None:
        if type is UNSET:
            if _kind is UNSET:
                raise TypeError("VariableState takes a type and a value, or a value.")
            # JAX makes one of the fields that it took apart.
            self._kind, self.value = _kind, value
            return
        if _kind is not UNSET:
            metadata["_kind"] = _kind
        kind, self.value = type, value
        if value is UNSET:
            kind, self.value = VariableState.usual_type, type
        self._kind = kind, as_stored(metadata)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        # So `isinstance(leaf, Param)` holds for the states of parameters as well.
        return self._kind[0]

    @property
    def type(self) -> _Type:
        """The variable type this is the state of."""
        return self._kind[0]

    @classmethod
    def of(cls, kind: Kind, value: B) -> VariableState[B]:
        """Makes a state that shares what is static.

        Args:
            kind: The variable type and the metadata.
            value: The raw value.

        Returns:
            The state; of a bare array, the array.

        Example:
            >>> import graphcore as gc
            >>> kind = gc.Param, gc.HashableMapping({'unit': 'm'})
            >>> VariableState.of(kind, 1.0).unit
            'm'
        """
        if kind[0] is BareArray:
            return value  # type: ignore[return-value]
        state: VariableState[B] = object.__new__(cls)  # type: ignore[arg-type]
        state.value = value
        state._kind = kind
        return state

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
        metadata = as_kept(impl.metadata(variable))
        return cls.of((kind, metadata), impl.get_value(variable))

    def _metadata(self) -> HashableMapping[str, Any]:
        return self._kind[1]

    def replace(self, value: Any = ..., **metadata: Any) -> VariableState[Any]:
        """Returns the same state with another value or other metadata.

        Args:
            value: The value; this one's if left out.
            **metadata: Metadata that changes.

        Returns:
            A new state.

        Example:
            >>> import graphcore as gc
            >>> gc.Param.state(1.0).replace(2.0).value
            2.0
        """
        value = self.value if value is ... else value
        if metadata:
            return VariableState(self.type, value, **{**self._kind[1], **metadata})
        return VariableState.of(self._kind, value)

    def to_variable(self) -> Any:
        """Returns a new variable of the type, with this value and metadata.

        Returns:
            A variable; creation hooks don't run.

        Example:
            >>> import graphcore as gc
            >>> type(gc.Param.state(1.0).to_variable()).__name__
            'Param'
        """
        kind, metadata = self._kind
        return variable_impl(kind).create(kind, self.value, metadata)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, VariableState):
            return NotImplemented
        return self._kind == other._kind and values_equal(self.value, other.value)

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return VariableState.of, (self._kind, self.value)

    def __parts__(self) -> Parts:
        kind, metadata = self._kind
        return call_parts(self, [kind, self.value], metadata)


VariableState.raw_value = VariableState.__dict__["value"]  # it has no hooks


# By its fields, which JAX reads without calling Python.
jax.tree_util.register_dataclass(VariableState, ["value"], ["_kind"])


def shown_to_filters(impl: VariableImpl, variable: Any) -> Any:
    """What filters look at: the variable, or for one of a foreign type its state.

    Args:
        impl: How the variable is handled.
        variable: The variable.

    Returns:
        Something with the metadata as attributes.
    """
    if impl is BARE:
        return variable.get()
    if impl.is_owned or impl.give_state is not None:
        return variable
    return VariableState.from_variable(variable)
