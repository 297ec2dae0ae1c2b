"""Finding the objects that a function captures.

Python keeps what a function captures in its cells, its defaults, the globals that its
code names, and, for methods and partial functions, beside it.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import types
import weakref
from collections.abc import Sequence
from typing import Any

from graphcore.boundary.bodies import Bodies, Kept
from graphcore.boundary.callees import wrapped_function
from graphcore.boundary.places import is_object
from graphcore.content_key import slots_of
from graphcore.holding import attributes_of, held_by

__all__ = ["captured_objects"]

_PLAIN = (
    *(str, bytes, int, float, complex, bool, type(None), type, types.ModuleType),
    *(Bodies, Kept),  # What is kept with a function is not what it captures.
)
EXACTLY_PLAIN = frozenset(_PLAIN)
# In functions, in the bodies of classes, and in those of classes in functions.
_READ_GLOBAL = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}


def captured_objects(f: Any, *functions: Any) -> list[Any]:
    """Finds the graph nodes and variables that a function captures.

    Functions that it captures are looked into as well; of their globals, only if they
    are of the same module, or of that of what it wraps.

    Args:
        f: Any callable, or anything else that may hold functions.
        *functions: Others, the modules of which count as well.

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
    seen: dict[int, Any] = {}  # by id; keeps the objects alive, so ids stay unique
    homes = [home for g in (f, *functions) for home in _globals_of(g)]
    pending = [f]
    while pending:
        x = pending.pop()
        kind = type(x)
        if kind in EXACTLY_PLAIN or id(x) in seen:
            continue
        seen[id(x)] = x
        inside: list[Any] = []
        if kind is types.FunctionType:
            own = x.__globals__
            if any(own is home for home in homes):
                inside = [own[name] for name in _names(x.__code__) if name in own]
            inside += held_by(x) or ()
        elif is_object(x):
            found.append(x)
        elif not isinstance(x, _PLAIN):
            inside = _contents(x)
            call: Any = kind.__call__
            if type(call) is types.FunctionType:  # What its code names, too.
                inside.append(call)
        # A list or dict may have a million numbers or texts: told in C.
        if not EXACTLY_PLAIN.issuperset(map(type, inside)):
            pending += inside[::-1]
    return found


def _globals_of(f: Any) -> list[Any]:
    """The globals of a function and, where it is a wrapper, of what it wraps."""
    found: list[Any] = []
    seen: dict[int, Any] = {}
    while id(f) not in seen:
        seen[id(f)] = f
        if isinstance(f, types.FunctionType):
            found.append(f.__globals__)
        if isinstance(f, types.MethodType):
            f = f.__func__
        elif isinstance(f, functools.partial):
            f = f.func
        else:
            f = _wrapped_by(f, f)
    return found or [getattr(type(f).__call__, "__globals__", None)]


def _wrapped_by(f: Any, default: Any) -> Any:
    """What a wrapper says that it wraps: asked by name, an object may make it up."""
    if hasattr(type(f), "__wrapped__"):
        return f.__wrapped__  # of a proxy
    return (attributes_of(f) or {}).get("__wrapped__", default)


def _contents(x: Any) -> list[Any]:
    if isinstance(x, weakref.ref):
        return [x()]
    found = held_by(x)
    # What a compiled function keeps for itself is much, and none of the user's.
    if found is None and (inner := wrapped_function(x)) is not None:
        return [inner]
    if found is None:
        found = [_wrapped_by(x, None), *(attributes_of(x) or {}).values()]
        kind = type(x)
        # What JAX keeps in slots is large, and none of a program's objects.
        own = {} if kind.__module__.startswith(("jax.", "jaxlib.")) else slots_of(kind)
        for slot in own.values():
            with contextlib.suppress(AttributeError):  # it is empty
                found.append(slot.__get__(x))
    return found


@functools.lru_cache(maxsize=4096)
def _names(code: types.CodeType) -> Sequence[str]:
    """The globals that code reads; `co_names` has the names of attributes as well."""
    reads = [i.argval for i in dis.get_instructions(code) if i.opname in _READ_GLOBAL]
    for constant in code.co_consts:
        if type(constant) is types.CodeType:
            reads += _names(constant)
    return tuple(dict.fromkeys(reads))
