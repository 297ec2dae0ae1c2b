"""How variables of a type are read, written and made.

Most variables are `Variable`s, but a type that is no subclass of it can be registered.
Four functions then say how its value and metadata are read, written and made, and
everything in this repository treats its instances as it treats a `Variable`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from graphcore._jax import TraceState
from graphcore.errors import check_class
from graphcore.hashable_mapping import HashableMapping, as_hashable
from graphcore.known_types import add_impl, impls, inherited_impl, known_impl, said

__all__ = [
    "counterparts_of",
    "is_variable",
    "register_counterparts",
    "register_variable_type",
]


@dataclass(frozen=True, eq=False)
class VariableImpl:
    """How variables of one type are read, written and made.

    Args:
        get_value: `get_value(variable) -> value`, past any hooks.
        set_value: `set_value(variable, value)`, past any hooks.
        get_metadata: `get_metadata(variable) -> Mapping`.
        create: `create(type, value, metadata) -> variable`.
        set_metadata: `set_metadata(variable, metadata)`; None if it can't be changed.
        get_trace: `get_trace(variable)`, the trace in which the variable was made;
            None if the type doesn't tell.
        set_values: `set_values(variables, values)`, all or nothing; None if variables
            are written one by one.
        get_values: `get_values(variables)`, a list; None if they are read one by one.
        get_all_metadata: The same for `get_metadata`.
        refuse: `refuse(variable)` says why a variable can't take part, or returns
            None; None if all of them can.
        give_state: `give_state(state)` is what a transform returns in the place of a
            `VariableState`; None for that itself.
        flags: The names of metadata of which nothing but their truth is ever asked.
        is_owned: Whether every change of metadata is reported, so that nobody needs
            to look for one.

    Example:
        >>> import graphcore as gc
        >>> variable_impl(gc.Param).get_value(gc.Param(1.0))
        1.0
    """

    get_value: Callable[[Any], Any]
    set_value: Callable[[Any, Any], None]
    get_metadata: Callable[[Any], Mapping[str, Any]]
    create: Callable[[type[Any], Any, Mapping[str, Any]], Any]
    set_metadata: Callable[[Any, HashableMapping[str, Any]], None] | None = None
    get_trace: Callable[[Any], TraceState] | None = None
    set_values: Callable[[Sequence[Any], Sequence[Any]], None] | None = None
    get_values: Callable[[Sequence[Any]], list[Any]] | None = None
    get_all_metadata: Callable[[Sequence[Any]], list[Mapping[str, Any]]] | None = None
    refuse: Callable[[Any], str | None] | None = None
    give_state: Callable[[Any], Any] | None = None
    flags: frozenset[str] = frozenset()
    is_owned: bool = False

    def metadata(self, variable: Any) -> HashableMapping[str, Any]:
        """The metadata of a variable in the form that definitions hold."""
        return as_hashable(self.get_metadata(variable))


def find_variable_impl(kind: type[Any], /) -> VariableImpl | None:
    """Returns how variables of a type are handled; None if it is no variable type.

    Args:
        kind: Any class.

    Returns:
        The implementation of the class or of its nearest registered base.

    Example:
        >>> find_variable_impl(int) is None
        True
    """
    impl = known_impl(kind) or inherited_impl(kind)
    return impl if type(impl) is VariableImpl else None


def variable_impl(kind: type[Any], /) -> VariableImpl:
    """Returns how variables of a type are handled.

    Args:
        kind: `Variable`, a subclass, or a registered type.

    Returns:
        The implementation.

    Raises:
        ValueError: If the type is not a variable type.

    Example:
        >>> import graphcore as gc
        >>> variable_impl(gc.Param).is_owned
        True
    """
    impl = find_variable_impl(kind)
    if impl is None:
        raise ValueError(
            f"{kind.__name__} is not a variable type: subclass `Variable`, or register "
            "it with `register_variable_type`."
        )
    return impl


def add_variable_impl(kind: type[Any], impl: VariableImpl) -> None:
    """Makes a type and its subclasses variable types.

    Raises:
        ValueError: If the type is one already, or one of nodes or of static values.
    """
    # What JAX knows as a pytree may be a variable here.
    known = impls[kind] if kind in said else inherited_impl(kind)
    if type(known) is VariableImpl and (kind in said or known.is_owned):
        raise ValueError(f"{kind.__name__} is a variable type already.")
    if known is not None and type(known) is not VariableImpl:
        raise ValueError(
            f"{kind.__name__} is a node type; it can't be a variable type as well."
        )
    add_impl(kind, impl, "variable", lambda subclass: impl)


def registered_variable_types() -> tuple[type[Any], ...]:
    """The types that were registered, and some of their subclasses."""
    return tuple([kind for kind in [*impls] if is_variable_type(kind)])


def is_variable_type(kind: type[Any], /) -> bool:
    """Tells whether instances of a type are variables.

    Args:
        kind: Any class.

    Returns:
        True for `Variable`, its subclasses, and registered types.

    Example:
        >>> import graphcore as gc
        >>> is_variable_type(gc.Param), is_variable_type(int)
        (True, False)
    """
    return find_variable_impl(kind) is not None


def is_variable(x: Any, /) -> bool:
    """Tells whether an object is a variable, of our own or a registered type.

    Args:
        x: Any object.

    Returns:
        Whether it is one.

    Example:
        >>> import graphcore as gc
        >>> gc.is_variable(gc.Param(1.0)), gc.is_variable(1.0)
        (True, False)
    """
    return find_variable_impl(type(x)) is not None


def register_variable_type(
    type: type[Any],
    *,
    get_value: Callable[[Any], Any],
    set_value: Callable[[Any, Any], None],
    get_metadata: Callable[[Any], Mapping[str, Any]],
    create: Callable[[type[Any], Any, Mapping[str, Any]], Any],
    set_metadata: Callable[[Any, Mapping[str, Any]], None] | None = None,
    get_trace: Callable[[Any], Any] | None = None,
    set_values: Callable[[Sequence[Any], Sequence[Any]], None] | None = None,
    get_values: Callable[[Sequence[Any]], list[Any]] | None = None,
    get_all_metadata: Callable[[Sequence[Any]], list[Mapping[str, Any]]] | None = None,
    refuse: Callable[[Any], str | None] | None = None,
    give_state: Callable[[Any], Any] | None = None,
    counterparts: Mapping[type[Any], type[Any]] | None = None,
) -> None:
    """Lets instances of a type, and of its subclasses, act as variables.

    Values and metadata of all variables of a graph are read at once, which takes little
    time where `get_value` and `get_metadata` are functions written in C, such as those
    of `operator.attrgetter`. What reads those of many variables is quicker still.

    Args:
        type: The class.
        get_value: `get_value(x)` returns the value, an array or a pytree.
        set_value: `set_value(x, value)` replaces it.
        get_metadata: `get_metadata(x)` returns a mapping from names to static values:
            at best the dict that holds them.
        create: `create(type, value, metadata)` makes an instance. The mapping can't be
            changed: what is to be kept of it as a whole is a copy, `dict(metadata)`.
        set_metadata: `set_metadata(x, metadata)` replaces the metadata, with the same
            of the mapping. Without it a function may not change that.
        get_trace: `get_trace(x)` returns what `current_trace()` was where `x` was made,
            so that a use in another trace is refused. What the library itself writes
            to an object that a function closes over is for the library to refuse; of
            the transforms, only `jit` looks for tracers in such places.
        set_values: `set_values(xs, values)` does what `set_value` does for each, or
            raises and does nothing. Without it they are written one by one.
        get_values: `get_values(xs)` returns a list of what `get_value` returns for
            each.
        get_all_metadata: `get_all_metadata(xs)` does so for `get_metadata`.
        refuse: `refuse(x)` returns why a variable can't take part, if it can't; the
            error has its path.
        give_state: `give_state(state)` makes what users of the type expect in the place
            of a `VariableState`, as the gradient of a variable is one.
        counterparts: From subclasses of the type to variable types that mean the same.
            A filter that names one selects both; so what stands for `Param` is
            differentiated by default.

    Raises:
        TypeError: If the type is no class.
        ValueError: If the type is registered already, for variables or nodes, if its
            instances are always static, as numbers are, or if a counterpart is of
            another type.

    Example:
        >>> import graphcore as gc, jax.numpy as jnp, operator
        >>> class Cell:
        ...     def __init__(self, content): self.content = content
        >>> gc.register_variable_type(
        ...     Cell,
        ...     get_value=operator.attrgetter('content'),
        ...     set_value=lambda cell, value: setattr(cell, 'content', value),
        ...     get_metadata=lambda cell: {},
        ...     create=lambda type, value, metadata: type(value),
        ...     counterparts={Cell: gc.Param},
        ... )
        >>> graphdef, state = gc.split(gc.Dict(a=Cell(jnp.ones(2))))
        >>> gc.merge(graphdef, state).a.content.shape
        (2,)
        >>> gc.state(gc.Dict(a=Cell(1), b=gc.Variable(2)), gc.Param).to_pure_dict()
        {'a': 1}
    """
    impl = VariableImpl(
        *(get_value, set_value, get_metadata, create, set_metadata, get_trace),
        *(set_values, get_values, get_all_metadata, refuse, give_state),
    )
    given = counterparts or {}
    check_class(type, "register_variable_type")
    others = [each.__name__ for each in given if not issubclass(each, type)]
    if others:
        raise ValueError(
            f"The counterparts of {type.__name__} are for {others}, which are no "
            "subclasses of it: give them from its subclasses to other variable types."
        )
    add_variable_impl(type, impl)
    for theirs, ours in given.items():
        register_counterparts(theirs, ours)


_counterparts: dict[type[Any], tuple[type[Any], ...]] = {}


def register_counterparts(a: type[Any], b: type[Any]) -> None:
    """Says that two types of variables mean the same.

    A filter that names one selects both, their collection names are the same, and the
    state of one may be given to a variable of the other, which keeps its metadata.

    Args:
        a: A type of variables.
        b: One that means the same in another library.

    Example:
        >>> import graphcore as gc
        >>> class Weight(gc.Variable):
        ...     pass
        >>> gc.register_counterparts(Weight, gc.Param)
        >>> len(gc.state(gc.Dict(w=Weight(1)), gc.Param))
        1
    """
    for one, other in ((a, b), (b, a)):
        _counterparts[one] = (*counterparts_of(one), other)


def counterparts_of(kind: type[Any]) -> tuple[type[Any], ...]:
    """Tells which types of variables mean the same as another one.

    Args:
        kind: A type of variables.

    Returns:
        The types: itself, and what `register_counterparts` was told of.

    Example:
        >>> import graphcore as gc
        >>> class Factor(gc.Variable):
        ...     pass
        >>> gc.register_counterparts(Factor, gc.Param)
        >>> [Factor in gc.counterparts_of(kind) for kind in (gc.Param, gc.Cache)]
        [True, False]
    """
    return _counterparts.get(kind, (kind,))
