"""The shapes that an initializer makes, found without running it.

`param` compares a stored value with what its initializer would make. Tracing the
initializer each time would cost more than the layer that uses the parameter, so the
answer is kept per code of the initializer and arguments. Only what is surely
immutable enters the key, and the table holds code and numbers, never arrays.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

_Shapes = tuple[tuple[int, ...], ...]
_MAX_ENTRIES = 4096
_cache: dict[Any, _Shapes] = {}

# `type` is included because dtypes are often given as scalar types.
_CONSTANTS = (
    *(int, float, complex, str, bytes, bool, type(None), np.dtype, type),
    types.BuiltinFunctionType,
)

_JITTED: Any = type(jax.jit(len))


def _constant_key(value: Any) -> Any:
    """A hashable stand-in for a value that can never change, or a `TypeError`."""
    if isinstance(value, types.FunctionType):
        cells = tuple([cell.cell_contents for cell in value.__closure__ or ()])
        named = tuple((value.__kwdefaults__ or {}).items())
        held: tuple[Any, ...] = (cells, value.__defaults__, named)
        return (value.__code__, *map(_constant_key, held))
    if isinstance(value, tuple):
        return (type(value), *[_constant_key(v) for v in value])
    if isinstance(value, _CONSTANTS):
        return (type(value), value)
    if isinstance(value, functools.partial):
        held = (value.func, value.args, tuple(value.keywords.items()))
        return (functools.partial, *map(_constant_key, held))
    if type(value) is _JITTED:
        return (_JITTED, _constant_key(value.__wrapped__))
    raise TypeError(f"A {type(value).__name__} may change.")


def _trace(fn: Callable[..., Any], key: Any, args: Any, kwargs: Any) -> _Shapes:
    def make() -> Any:
        return fn(jax.random.key(0) if key is None else key, *args, **kwargs)

    return tuple(x.shape for x in jax.tree.leaves(jax.eval_shape(make)))


def initial_shapes(
    fn: Callable[..., Any],
    key: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    found: _Shapes,
) -> _Shapes:
    """The shapes of the leaves that `fn(key, *args, **kwargs)` makes.

    Args:
        fn: an initializer.
        key: an example of a key, or None.
        args: its other arguments.
        kwargs: its keyword arguments.
        found: the shapes that the answer will be compared with. A remembered answer
            that differs is checked by tracing before it is given, because what an
            initializer reads from globals may have changed.

    Returns:
        One shape per leaf, in order.
    """
    try:
        place = tuple(map(_constant_key, (fn, args, tuple(kwargs.items()))))
        known = _cache.get(place)
    except (TypeError, ValueError):  # ValueError: an empty closure cell
        return _trace(fn, key, args, kwargs)
    if known != found:
        known = _trace(fn, key, args, kwargs)
        if len(_cache) >= _MAX_ENTRIES:
            _cache.clear()
        _cache[place] = known
    return known
