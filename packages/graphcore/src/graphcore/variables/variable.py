"""Variables: mutable boxes around one value, the leaves of an object graph.

A variable has an identity (two attributes may hold the same one), a value (an array or
a pytree of arrays), and metadata (static facts such as a sharding). Its *type* is what
filters select by: `Param` for what an optimizer updates, `BatchStat` for running
statistics, and so on. Subclass `Variable` to add a kind.

The value passes through *hooks* on its way in and out. A hook is metadata with one of
the names in `HOOKS`, or a method of a subclass of that name.

A variable belongs to the JAX trace it was made in, and refuses to be written from
another one; see `TraceContextError`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

import jax
import numpy as np

from graphcore._jax import OUTSIDE, TraceState, current_trace
from graphcore.cache.comparing import by_identity_too, comparing
from graphcore.content import values_equal
from graphcore.errors import apart
from graphcore.hashable_mapping import EMPTY, HashableMapping, as_hashable, as_kept
from graphcore.known_types import ATOMS
from graphcore.probing import probing
from graphcore.rebuilt import Origin, as_before, origin, trace_of_rebuilt, wrong_trace
from graphcore.variables.impl import VariableImpl, add_variable_impl, is_variable
from graphcore.variables.metadata import (
    CREATION,
    HOOKS,
    VariableMetadata,
    as_stored,
    carried,
    stored_name,
)
from graphcore.variables.operators import ValueOperators
from graphcore.variables.reading import Reading, is_ref
from graphcore.variables.state import VariableState

__all__ = ["BatchStat", "Cache", "Intermediate", "Param", "Perturbation", "Variable"]

A = TypeVar("A")


class _Epoch:
    """A process-wide mark that is replaced when metadata or a type changes in place.

    Plans of graphs (see `plans`) record the mark; while it stands, no variable's
    metadata needs to be compared. A fresh object rather than a number: replacing it
    is one atomic store, so two threads can't lose each other's change.
    """

    mark = object()

    def advance(self) -> None:
        self.mark = object()


metadata_epoch = _Epoch()


@dataclass(slots=True, eq=False)
class Facts:
    """What is known of a variable beside its value; variables that are alike share it.

    Args:
        metadata: The metadata.
        trace: The trace that the variable belongs to.
    """

    metadata: HashableMapping[str, Any]
    trace: TraceState


class _Plain:
    """The facts of the last variable that was made without metadata.

    Those of each variable would lie between the variables in memory: to read the values
    of 6,000 would take an eighth longer.
    """

    facts = Facts(EMPTY, OUTSIDE)


def facts_of(metadata: HashableMapping[str, Any], trace: TraceState) -> Facts:
    """The facts of a new variable.

    Args:
        metadata: Its metadata.
        trace: The trace that it belongs to.

    Returns:
        Facts with these, which others may have as well.
    """
    if metadata is not EMPTY:
        return Facts(metadata, trace)
    known = _Plain.facts
    if known.trace != trace:
        _Plain.facts = known = Facts(EMPTY, trace)
    return known


def _set_class(variable: Any, kind: type[Any]) -> None:
    variable._check_writable()
    _class_of_object.__set__(variable, kind)
    metadata_epoch.advance()


_class_of_object: Any = object.__dict__["__class__"]


# The type of a variable can be changed by assignment to `__class__`; a property sees
# that even where the assignment goes past `__setattr__`.
class _Retypable:
    __slots__ = ()
    __class__ = property(type, _set_class)

    if TYPE_CHECKING:  # metadata, and attributes of the value

        def __getattr__(self, name: str) -> Any: ...


class Variable(_Retypable, Reading, ValueOperators, Generic[A]):
    """A mutable box around one value, with metadata.

    Args:
        value: An array of any shape and dtype, or a pytree; or what an initializer
            wrapped by `with_metadata` returned.
        **metadata: Static facts; readable as attributes.

    Raises:
        ValueError: If the value is itself a variable.

    Example:
        >>> import jax.numpy as jnp
        >>> count = Variable(jnp.array(1), unit='steps')
        >>> count += 2
        >>> int(count.value), count.unit
        (3, 'steps')
    """

    __slots__ = ("__weakref__", "_facts", "_plan", "_raw_value")

    _raw_value: A
    _facts: Facts
    # The plan of the variable on its own, set once it is a root; see `plans`.
    _plan: Any
    _has_hook_methods: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._has_hook_methods = any(hasattr(cls, hook) for hook in HOOKS)
        own = cls.get_value, cls.set_value
        if own != (Variable.get_value, Variable.set_value):
            cls.value = property(*own)  # type: ignore[assignment]
        by_identity_too(cls, Variable)
        _register(cls)

    def __init__(self, value: A | VariableMetadata[A], **metadata: Any) -> None:
        if type(value) not in _PLAIN:
            value = carried(value)
            if isinstance(value, VariableMetadata):
                metadata = {**value.as_metadata(), **metadata}
                value = value.raw_value
            _refuse_variable(value)
        checked = _checked_metadata(type(self), metadata)
        set_facts(self, facts_of(checked, current_trace()))
        set_raw_value(self, value)
        if metadata or self._has_hook_methods:
            value = self._through_hooks("on_create_value", value)
            for name in CREATION.keys() & metadata.keys():
                value = CREATION[name](self, value)
            set_raw_value(self, value)

    @classmethod
    def from_metadata(cls, value: A, metadata: Mapping[str, Any]) -> Self:
        """Makes a variable without running its creation hooks.

        Args:
            value: The raw value.
            metadata: All of the metadata.

        Returns:
            A variable of this class.

        Example:
            >>> Param.from_metadata(1.0, {'unit': 'm'}).unit
            'm'
        """
        made: Self = new_variable(cls, value, as_stored(metadata), current_trace())
        return made

    @classmethod
    def state(cls, value: A, **metadata: Any) -> VariableState[A]:
        """Makes the state of a variable of this class, as `to_state` would.

        Args:
            value: The value, before creation hooks.
            **metadata: The metadata.

        Returns:
            A `VariableState`.

        Example:
            >>> Param.state(1.0).type is Param
            True
        """
        return cls(value, **metadata).to_state()

    # Values

    def _check_writable(self) -> None:
        here = current_trace()
        trace = self._facts.trace
        if trace is not here and trace != here:
            raise wrong_trace(trace, type(self))

    def _through_hooks(self, name: str, value: Any) -> Any:
        for hook in self._hooks(name):
            value = hook(self, value)
        return value

    def _hooks(self, name: str) -> tuple[Callable[..., Any], ...]:
        hooks = self._facts.metadata.get(name, ())
        if callable(hooks):
            hooks = (hooks,)
        method = getattr(type(self), name, None)
        return (method, *hooks) if method is not None else tuple(hooks)

    def get_value(self, *, index: Any = ...) -> Any:
        """Returns the value, through the `on_get_value` hooks, or a part of it.

        A subclass may override it: `value`, items, operators and JAX's functions read
        the value through it.

        Args:
            index: Which part; all of it if left out.

        Returns:
            The value, or the item of it.

        Example:
            >>> import jax.numpy as jnp
            >>> class InTenths(Param):
            ...     def get_value(self, **part):
            ...         return super().get_value(**part) / 10
            >>> v = InTenths(jnp.array([5, 10]))
            >>> (2 * v).tolist(), float(v[0])
            ([1.0, 2.0], 0.5)
        """
        value: Any = self._raw_value
        if self._facts.metadata is not EMPTY or self._has_hook_methods:
            value = self._through_hooks("on_get_value", value)
        return value if index is ... else value[index]

    def set_value(self, value: Any, *, index: Any = ...) -> None:
        """Sets the value, through the `on_set_value` hooks, or a part of it.

        A subclass may override it: assignment to `value` and to items, and operators in
        place, write through it.

        Args:
            value: The value, or that of the part.
            index: Which part; all of it if left out: the value takes its place.

        Example:
            >>> import jax.numpy as jnp
            >>> v = Variable(jnp.zeros(2)); v.set_value(2.0, index=0)
            >>> v.value.tolist()
            [2.0, 0.0]
            >>> v[...] = 1; v.value.tolist()
            [1.0, 1.0]
        """
        if index is not ... and is_ref(whole := Variable.get_value(self)):
            whole[index] = value  # which is no write to this variable
            return
        self._check_writable()
        if index is not ...:
            if not isinstance(whole, jax.Array):
                whole[index] = value
                return
            value = whole.at[index].set(value)
        _refuse_variable(value)
        if self._facts.metadata is not EMPTY or self._has_hook_methods:
            value = self._through_hooks("on_set_value", value)
        set_raw_value(self, value)

    def _array_to_write_into(self) -> Any:
        # What hooks make of a value on its way in is not what it looks like outside.
        is_plain = type(self).set_value is Variable.set_value and not (
            self._has_hook_methods or "on_set_value" in self._facts.metadata
        )
        return self._raw_value if is_plain else self.value

    value: A = property(get_value, set_value)  # type: ignore[assignment]
    """What `get_value` returns; assignment to it is `set_value`."""

    @property
    def raw_value(self) -> A:
        """The value as it is stored, past the hooks."""
        return self._raw_value

    @raw_value.setter
    def raw_value(self, value: A) -> None:
        self._check_writable()
        _refuse_variable(value)
        set_raw_value(self, value)

    # Metadata

    def set_metadata(self, *args: Any, **metadata: Any) -> None:
        """Sets metadata: one entry, some entries, or all of it.

        Args:
            *args: A name and a value; or a mapping, which replaces all metadata.
            **metadata: Entries to set; the others stay.

        Raises:
            TypeError: If the arguments are none of these.

        Example:
            >>> v = Variable(1, unit='m'); v.set_metadata('scale', 2)
            >>> v.set_metadata(unit='km'); v.get_metadata()
            {'unit': 'km', 'scale': 2}
            >>> v.set_metadata({'unit': 's'}); v.get_metadata()
            {'unit': 's'}
        """
        is_one_value = len(args) == 1 and not isinstance(args[0], Mapping)
        if len(args) > 2 or is_one_value or (args and metadata):
            raise TypeError(
                "set_metadata takes a name and a value, one mapping, or keywords; got "
                f"{args} and {len(metadata)} keyword arguments."
            )
        old: Mapping[str, Any] = {} if len(args) == 1 else self._facts.metadata
        new = dict(args[0]) if len(args) == 1 else dict([args] if args else metadata)
        self._check_writable()
        checked = _checked_metadata(type(self), new)
        self._replace_metadata(as_stored({**old, **checked}))

    def _metadata(self) -> HashableMapping[str, Any]:
        return self._facts.metadata

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "__orig_class__":  # `Param[int](0)`: typing's note to itself
            raise AttributeError(name)
        # Slots and properties are set as usual. (On a class, `__class__` is its own.)
        if name == "__class__" or hasattr(getattr(type(self), name, None), "__set__"):
            object.__setattr__(self, name, value)
            return
        Variable.set_metadata(self, name, value)

    def del_metadata(self, name: str) -> None:
        """Removes an entry of the metadata, as `del` of the attribute does.

        Args:
            name: The name of the entry.

        Raises:
            AttributeError: If there is none of that name.

        Example:
            >>> v = Variable(1, unit='m'); v.del_metadata('unit'); v.get_metadata()
            {}
        """
        kept = self.get_metadata()
        if kept.pop(stored_name(name, kept), self) is self:
            raise AttributeError(f"{type(self).__name__} has no metadata {name!r}.")
        Variable.set_metadata(self, kept)

    __delattr__ = del_metadata

    def _replace_metadata(self, metadata: HashableMapping[str, Any]) -> None:
        set_facts(self, facts_of(metadata, self._facts.trace))
        # After the store: whoever sees the old mark still sees the old metadata.
        metadata_epoch.advance()

    # Copies and states

    def to_state(self) -> VariableState[A]:
        """Returns the raw value, type and metadata as a `VariableState`.

        Returns:
            A snapshot; later writes to the variable don't change it.

        Example:
            >>> Param(1.0).to_state().value
            1.0
        """
        kind = type(self), as_kept(self._facts.metadata)
        return VariableState.of(kind, self._raw_value)

    def copy(self, value: Any = ..., **metadata: Any) -> Self:
        """Returns a copy, as `replace` does.

        Args:
            value: The raw value of the copy; this one's if left out.
            **metadata: What changes.

        Returns:
            A variable of the same class.

        Example:
            >>> a = Param(1.0); b = a.copy(); b.value = 2.0
            >>> a.value
            1.0
        """
        return self.replace(value, **metadata)

    def replace(self, value: Any = ..., **metadata: Any) -> Self:
        """Returns a copy with another raw value or other metadata.

        Args:
            value: The raw value of the copy; this one's if left out.
            **metadata: What changes.

        Returns:
            A variable of the same class.

        Example:
            >>> Param(1.0, unit='m').replace(2.0).unit
            'm'
        """
        value = self._raw_value if value is ... else value
        return self.from_metadata(value, {**self._facts.metadata, **metadata})

    def copy_from(self, other: Variable[A] | VariableState[A]) -> None:
        """Takes over the raw value and metadata of another variable.

        Args:
            other: A variable of the same class, or the state of one.

        Raises:
            ValueError: If the classes differ.

        Example:
            >>> a = Param(1.0); a.copy_from(Param(2.0)); a.value
            2.0
        """
        # Past what a class may say of itself, as `type` or `raw_value`.
        kind: Any = type(other)
        is_ours = issubclass(kind, Variable)
        if not is_ours:
            kind = getattr(other, "_kind", (kind,))[0]
        if kind is not type(self):
            mine, found = apart(type(self), kind)
            raise ValueError(
                f"Cannot copy into a {mine} from a {found}: expected the same variable "
                "type."
            )
        self._check_writable()
        set_raw_value(self, other._raw_value if is_ours else other.value)
        if self._facts.metadata != other._metadata():
            self._replace_metadata(other._metadata())

    def update_from_state(self, state: VariableState[A]) -> None:
        """Takes over the raw value and metadata of a state, as `copy_from` does.

        Args:
            state: A state of the same variable type.

        Raises:
            ValueError: If the types differ.

        Example:
            >>> a = Param(1.0); a.update_from_state(Param.state(2.0)); a.value
            2.0
        """
        self.copy_from(state)

    def add_axis(self, index: int, name: Any) -> None:
        """Tells the `on_add_axis` hooks that a transformation added an axis.

        Args:
            index: Where the axis stands in the value's shape.
            name: What the transformation calls it.

        Example:
            >>> seen = []
            >>> hook = lambda v, index, name: seen.append((index, name))
            >>> Param(1.0, on_add_axis=hook).add_axis(0, 'layers'); seen
            [(0, 'layers')]
        """
        for hook in self._hooks("on_add_axis"):
            hook(self, index, name)

    def remove_axis(self, index: int, name: Any) -> None:
        """Tells the `on_remove_axis` hooks that a transformation removed an axis.

        Args:
            index: Where the axis stood in the value's shape.
            name: What the transformation calls it.

        Example:
            >>> seen = []
            >>> hook = lambda v, index, name: seen.append((index, name))
            >>> Param(1.0, on_remove_axis=hook).remove_axis(0, 'layers'); seen
            [(0, 'layers')]
        """
        for hook in self._hooks("on_remove_axis"):
            hook(self, index, name)

    def __getstate__(self) -> tuple[Any, HashableMapping[str, Any]]:
        return self._raw_value, self._facts.metadata

    def __setstate__(self, state: tuple[Any, HashableMapping[str, Any]]) -> None:
        set_raw_value(self, state[0])
        set_facts(self, facts_of(as_hashable(state[1]), current_trace()))

    def __format__(self, spec: str) -> str:
        return format(self.value, spec) if spec else str(self)

    def __eq__(self, other: object) -> bool:
        if comparing.by_identity:
            return self is other
        if not isinstance(other, Variable):
            return NotImplemented
        return self is other or (
            type(self) is type(other)
            and self._facts.metadata == other._facts.metadata
            and values_equal(self._raw_value, other._raw_value)
        )

    __hash__ = None  # type: ignore[assignment]


VariableState.usual_type = Variable
Variable.type = property(type)  # type: ignore[attr-defined]  # as a state has it
# The slots' own setters: past `__setattr__`, in C, without a check. For code that has
# made sure that the write is allowed.
set_raw_value = Variable.__dict__["_raw_value"].__set__
set_facts = Variable.__dict__["_facts"].__set__
set_variable_plan = Variable.__dict__["_plan"].__set__


def _flatten(variable: Any) -> tuple[tuple[Any, ...], Any]:
    if probing.active:
        probing.found = True
        return (), None
    facts = variable._facts
    where = origin(variable, facts.trace)
    return (variable._raw_value,), (as_kept(facts.metadata), where)


def _flatten_with_keys(variable: Any) -> tuple[tuple[tuple[Any, Any], ...], Any]:
    children, static = _flatten(variable)
    return tuple([(_VALUE, value) for value in children]), static


def _unflatten(
    kind: type[Any], static: tuple[HashableMapping[str, Any], Origin], children: Any
) -> Any:
    metadata, from_where = static
    (value,) = children
    trace = trace_of_rebuilt(from_where, lambda old: as_before(old._raw_value, value))
    return new_variable(kind, value, metadata, trace)


def _register(kind: type[Any]) -> None:
    """Makes a variable type a pytree: the raw value, with the metadata as structure.

    So the value passes the hooks inside of the function that the variable is given to.
    """
    jax.tree_util.register_pytree_with_keys(
        kind, _flatten_with_keys, functools.partial(_unflatten, kind), _flatten
    )


_VALUE = jax.tree_util.GetAttrKey("value")
_register(Variable)


# Types of values of which no more needs to be known; those of arrays join them.
_PLAIN: set[Any] = {*ATOMS, np.ndarray}


def _refuse_variable(value: Any) -> None:
    if type(value) in _PLAIN:
        return
    if isinstance(value, jax.Array):
        _PLAIN.add(type(value))
        return
    if isinstance(value, Variable | VariableState) or is_variable(value):
        raise ValueError(
            f"The value of a variable cannot be a variable itself, got a "
            f"{type(value).__name__}: store its `.value`, or use `copy_from`."
        )


def _checked_metadata(
    kind: type[Any], metadata: Mapping[str, Any]
) -> HashableMapping[str, Any]:
    for name in metadata:
        if name not in HOOKS and hasattr(kind, name):
            raise ValueError(
                f"{name!r} can't be the name of metadata of a {kind.__name__}: the "
                "class has an attribute of that name, which would hide it."
            )
    return as_stored(metadata)


def new_variable(
    kind: type[Any], value: Any, metadata: HashableMapping[str, Any], trace: TraceState
) -> Any:
    """Makes a variable from its parts, as fast as Python can."""
    variable = _new(kind)
    set_raw_value(variable, value)
    set_facts(variable, facts_of(metadata, trace))
    return variable


_new = object.__new__


def _set_raw_values(variables: Sequence[Any], values: Sequence[Any]) -> None:
    # One call into C, as no setter returns anything: a signal can't be handled halfway
    # through.
    any(map(set_raw_value, variables, values))


# The implementation that all subclasses of `Variable` share.
OWN = VariableImpl(
    get_value=Variable.__dict__["_raw_value"].__get__,
    set_value=set_raw_value,
    get_metadata=attrgetter("_facts.metadata"),
    create=lambda kind, value, metadata: kind.from_metadata(value, metadata),
    set_metadata=Variable._replace_metadata,
    get_trace=attrgetter("_facts.trace"),
    set_values=_set_raw_values,
    get_values=lambda variables: [variable._raw_value for variable in variables],
    is_owned=True,
)
add_variable_impl(Variable, OWN)


class Param(Variable[A]):
    """A variable that an optimizer updates.

    Example:
        >>> Param(1.0).value
        1.0
    """

    __slots__ = ()


class BatchStat(Variable[A]):
    """A running statistic.

    Example:
        >>> BatchStat(0.0).value
        0.0
    """

    __slots__ = ()


class Cache(Variable[A]):
    """A value kept from call to call, such as keys and values in decoding.

    Example:
        >>> Cache(0.0).value
        0.0
    """

    __slots__ = ()


class Intermediate(Variable[A]):
    """A value recorded on the way, for a look at what happens inside.

    Example:
        >>> Intermediate(0.0).value
        0.0
    """

    __slots__ = ()


class Perturbation(Intermediate[A]):
    """A zero added to an intermediate value, whose gradient is that value's.

    Example:
        >>> isinstance(Perturbation(0.0), Intermediate)
        True
    """

    __slots__ = ()
