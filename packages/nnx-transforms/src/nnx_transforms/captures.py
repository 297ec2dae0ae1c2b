"""Does a function close over objects?

JAX keeps the trace of a checkpointed function and uses it again when the function is
called with like arguments. What the function closes over is then as it was when it was
traced. For an array that is all there is; but an object changes in place, and whoever
closes over it expects to read what it holds now.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Iterator
from typing import Any

import jax

from nnx_transforms.lifting import is_object

__all__ = ["closes_over_objects"]


def closes_over_objects(f: Any) -> bool:
    """Tells whether a function can be seen to read objects that are no arguments.

    Looks at what it closes over, its defaults and the global names that it uses, and
    at those of the functions found there that are from the same module.

    Args:
        f: Any callable.

    Returns:
        Whether an object was found.

    Example:
        >>> import nnx_transforms as nnx
        >>> def make(count):
        ...     return lambda x: x * count.value
        >>> closes_over_objects(make(nnx.Param(1))), closes_over_objects(make)
        (True, False)
    """
    pending = [f]
    seen: set[int] = set()
    while pending:
        x = pending.pop()
        if id(x) in seen:
            continue
        seen.add(id(x))
        if is_object(x):
            return True
        if isinstance(x, functools.partial):
            pending += [x.func, *x.args, *x.keywords.values()]
        elif inspect.ismethod(x):
            pending += [x.__self__, x.__func__]
        elif inspect.isfunction(x):
            pending += _captured(x)
        elif isinstance(x, list | tuple | dict):
            leaves = jax.tree.leaves(x, is_leaf=is_object)
            pending += [leaf for leaf in leaves if leaf is not x]
    return False


def _captured(f: types.FunctionType) -> Iterator[Any]:
    """What a function reads besides its arguments."""
    for cell in f.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    yield from f.__defaults__ or ()
    yield from (f.__kwdefaults__ or {}).values()
    for name in _names(f.__code__):
        x = f.__globals__.get(name)
        if inspect.isfunction(x):
            if x.__globals__ is f.__globals__:
                yield x
        elif x is not None and not isinstance(x, type | types.ModuleType):
            yield x


@functools.lru_cache(maxsize=1024)
def _names(code: types.CodeType) -> tuple[str, ...]:
    """The names that may be global, also those in functions defined inside."""
    inner = [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return code.co_names + tuple(name for c in inner for name in _names(c))
