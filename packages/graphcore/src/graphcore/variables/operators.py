"""Operators that let a box be used where its value is."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np


def _forward(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def method(self: Any) -> Any:
        return function(self.value)

    return method


def _binary(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        if isinstance(other, ReadOperators):
            other = other.value
        return function(self.value, other)

    return method


def _reflected(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        return function(other, self.value)

    return method


def _in_place(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    compute = _binary(function)

    def method(self: Any, other: Any) -> Any:
        self.value = compute(self, other)
        return self

    return method


# By the names that Python's `operator` has them by.
_ARITHMETIC = (
    *("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow"),
    *("lshift", "rshift", "and", "or", "xor"),
)
# So that type checkers don't expect to see all operators in the classes below.
_Open: Any = object


class ReadOperators(_Open):  # type: ignore[misc] # (a dynamic base)
    """Forwards operators to `value`.

    Example:
        >>> class Box(ReadOperators):
        ...     value = 3
        >>> Box() + 1, 2 * Box(), Box() < 4
        (4, 6, True)
    """

    __slots__ = ()

    value: Any

    # NumPy's arrays leave operators to us, as they do for JAX's arrays.
    __array_priority__ = 100

    def __jax_array__(self) -> Any:
        return self.value

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        array = np.asarray(self.value, dtype=dtype)
        return array.copy() if copy else array

    def __contains__(self, item: Any) -> bool:
        return item in self.value

    def __bool__(self) -> bool:
        # `if self.scale` asks whether there is one: an array with axes has no truth.
        value = self.value
        return bool(len(value) if getattr(value, "ndim", 0) else value)

    def __round__(self, digits: int | None = None) -> Any:
        value: Any = self.value
        return round(value) if digits is None else round(value, digits)

    __len__ = _forward(len)
    __iter__ = _forward(iter)
    __int__ = _forward(int)
    __float__ = _forward(float)
    __complex__ = _forward(complex)
    __divmod__ = _binary(divmod)
    __rdivmod__ = _reflected(divmod)


class ValueOperators(ReadOperators):
    """Forwards operators and calls to `value`; in-place operators assign to it.

    Example:
        >>> class Box(ValueOperators):
        ...     value = 3
        >>> box = Box(); box += 1; box.value
        4
    """

    __slots__ = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.value(*args, **kwargs)


def _add_operators() -> None:
    for name in ("neg", "pos", "abs", "invert", "index"):
        of_value = getattr(operator, f"__{name}__")
        setattr(ReadOperators, f"__{name}__", _forward(of_value))
    for name in ("lt", "le", "gt", "ge", *_ARITHMETIC):
        of_values = getattr(operator, f"__{name}__")
        setattr(ReadOperators, f"__{name}__", _binary(of_values))
    for name in _ARITHMETIC:
        of_values = getattr(operator, f"__{name}__")
        setattr(ReadOperators, f"__r{name}__", _reflected(of_values))
        setattr(ValueOperators, f"__i{name}__", _in_place(of_values))


_add_operators()
