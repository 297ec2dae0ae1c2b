"""Finding the objects that a function captures.

Python keeps what a function captures in its cells, its defaults, the globals that its
code names, and, for methods and partial functions, beside it.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator, Mapping
from typing import Any

from nnx_transforms.lifting import is_object

__all__ = ["captured_objects"]

_PLAIN = (str, bytes, int, float, complex, bool, type(None), type, types.ModuleType)


def captured_objects(f: Any) -> list[Any]:
    """Finds the graph nodes and variables that a function captures.

    Functions that it captures are looked into as well; of their globals, only if they
    are of the same module.

    Args:
        f: Any callable.

    Returns:
        The objects, each once, in the order in which they are found.

    Example:
        >>> import graphcore as gc
        >>> def scaled():
        ...     w = gc.Param(2.0)
        ...     return lambda x: x * w.value
        >>> captured_objects(scaled())
        [Param(2.0)]
    """
    found: list[Any] = []
    seen: dict[int, Any] = {}  # with the objects, whose ids are theirs as long
    home = _globals_of(f)
    pending = [f]
    while pending:
        x = pending.pop()
        if isinstance(x, _PLAIN) or id(x) in seen:
            continue
        seen[id(x)] = x
        if is_object(x):
            found.append(x)
        else:
            pending += reversed(list(_contents(x, home)))
    return found


def _globals_of(f: Any) -> Any:
    while True:
        if isinstance(f, types.MethodType):
            f = f.__func__
        elif isinstance(f, functools.partial):
            f = f.func
        elif isinstance(f, types.FunctionType):
            return f.__globals__
        elif hasattr(f, "__wrapped__"):
            f = f.__wrapped__
        else:
            return getattr(type(f).__call__, "__globals__", None)


def _contents(x: Any, home: Any) -> Iterator[Any]:
    if isinstance(x, types.MethodType):
        yield x.__self__
        yield x.__func__
    elif isinstance(x, functools.partial):
        yield x.func
        yield from x.args
        yield from x.keywords.values()
    elif isinstance(x, types.FunctionType):
        for cell in x.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:  # not filled yet
                continue
        yield from x.__defaults__ or ()
        yield from (x.__kwdefaults__ or {}).values()
        if x.__globals__ is home:
            names = dict.fromkeys(_names(x.__code__))
            yield from (home[name] for name in names if name in home)
    elif isinstance(x, Mapping):
        yield from x.values()
    elif isinstance(x, list | tuple | set | frozenset):
        yield from x
    else:
        # Compiled and wrapped functions; and plain objects that hold others.
        if hasattr(x, "__wrapped__"):
            yield x.__wrapped__
        attributes = getattr(x, "__dict__", None)
        if isinstance(attributes, dict):
            yield from attributes.values()


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
