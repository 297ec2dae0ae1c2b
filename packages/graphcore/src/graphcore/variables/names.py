"""Collection names of variable types, both ways."""

from __future__ import annotations

import re
from typing import Any

from graphcore.errors import check_class
from graphcore.holding import reached
from graphcore.variables.impl import (
    counterparts_of,
    registered_variable_types,
    variable_impl,
)
from graphcore.variables.variable import (
    BatchStat,
    Cache,
    Intermediate,
    Param,
    Perturbation,
    Variable,
)

__all__ = [
    "register_variable_name_type_pair",
    "variable_name_from_type",
    "variable_type_from_name",
]

_type_of_name: dict[str, type[Any]] = {
    "params": Param,
    "batch_stats": BatchStat,
    "cache": Cache,
    "intermediates": Intermediate,
    "perturbations": Perturbation,
}


def _snake_case(name: str) -> str:
    spaced = re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", name)
    return re.sub(r"([a-z\d])([A-Z])", r"\1_\2", spaced).lower()


def _registered_name(kind: type[Any]) -> str | None:
    return next((name for name, t in _type_of_name.items() if t is kind), None)


def variable_type_from_name(
    name: str, /, *, base: type[Any] = Variable, allow_register: bool = False
) -> type[Any]:
    """Returns the variable type that a collection name stands for.

    Args:
        name: A registered name, or the class name of a variable type in snake case.
        base: What a new type is a subclass of.
        allow_register: Whether a name that does not tell a type gets a new one.

    Returns:
        The type.

    Raises:
        ValueError: If no type, or more than one, has that name and `allow_register`
            is not set.

    Example:
        >>> variable_type_from_name('batch_stats').__name__
        'BatchStat'
    """
    if name in _type_of_name:
        return _type_of_name[name]
    kinds = reached(registered_variable_types(), type.__subclasses__)
    found = [kind for kind in kinds if _snake_case(kind.__name__) == name]
    if len(found) == 1:
        return found.pop()
    if allow_register:
        kind = type(name, (base,), {"__slots__": ()})
        register_variable_name_type_pair(name, kind)
        return kind
    problem = "is the name of several variable types" if found else "is not known"
    raise ValueError(
        f"The collection name {name!r} {problem}; registered are "
        f"{sorted(_type_of_name)}. Use `register_variable_name_type_pair` to add it."
    )


def variable_name_from_type(type: type[Any], /, *, allow_register: bool = True) -> str:
    """Returns the collection name of a variable type.

    Args:
        type: A variable type.
        allow_register: Not used: every type has a name.

    Returns:
        The registered name, its own or that of a type that means the same; or else the
        class name in snake case.

    Raises:
        ValueError: If it is not a variable type.

    Example:
        >>> import graphcore as gc
        >>> class RunningMax(gc.Variable): pass
        >>> variable_name_from_type(gc.Param), variable_name_from_type(RunningMax)
        ('params', 'running_max')
    """
    check_class(type, "variable_name_from_type")
    variable_impl(type)
    names = filter(None, map(_registered_name, counterparts_of(type)))
    return next(names, _snake_case(type.__name__))


def register_variable_name_type_pair(
    name: str, type: type[Any], overwrite: bool = False
) -> None:
    """Gives a variable type a collection name.

    Args:
        name: The name.
        type: The variable type.
        overwrite: Whether to replace what the name or the type stood for before.

    Raises:
        ValueError: If either is taken and `overwrite` is not set.

    Example:
        >>> import graphcore as gc
        >>> class Ema(gc.Variable): pass
        >>> register_variable_name_type_pair('moving_averages', Ema)
        >>> variable_name_from_type(Ema)
        'moving_averages'
    """
    check_class(type, "register_variable_name_type_pair")
    variable_impl(type)
    old_type, old_name = _type_of_name.get(name), _registered_name(type)
    if not overwrite:
        if old_type is not None and old_type is not type:
            raise ValueError(
                f"The name {name!r} stands for {old_type.__name__} already; pass "
                f"overwrite=True to give it to {type.__name__}."
            )
        if old_name is not None and old_name != name:
            raise ValueError(
                f"{type.__name__} is called {old_name!r} already; pass overwrite=True "
                f"to call it {name!r}."
            )
    if old_name is not None:
        del _type_of_name[old_name]
    _type_of_name[name] = type
