"""Writing several variables, all of them or none."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

from graphcore.authors import variable_impl


def read_raw(variable: Any) -> Any:
    """The value of a variable of any type, past its hooks.

    Args:
        variable: A variable, of our own or a registered type.

    Returns:
        The raw value.

    Example:
        >>> import graphcore as gc
        >>> read_raw(gc.Param(1.0))
        1.0
    """
    return variable_impl(type(variable)).get_value(variable)


def write_raw(writes: Iterable[tuple[Any, Any]]) -> None:
    """Writes values past the hooks; if a variable refuses, none is changed.

    Args:
        writes: Variables with their new raw values.

    Raises:
        TraceContextError: If a variable belongs to another JAX trace.

    Example:
        >>> import graphcore as gc
        >>> a, b = gc.Param(1), gc.Param(2)
        >>> write_raw([(a, 3), (b, 4)]); a.value, b.value
        (3, 4)
    """
    with contextlib.ExitStack() as undo:
        for variable, value in writes:
            before = read_raw(variable)
            _write(variable, value)
            undo.callback(_write, variable, before)
        undo.pop_all()


def _write(variable: Any, value: Any) -> None:
    impl = variable_impl(type(variable))
    if impl.is_owned:  # its own setter checks the trace
        variable.raw_value = value
    else:
        impl.set_value(variable, value)
