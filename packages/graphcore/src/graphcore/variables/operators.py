"""Operators that let a box be used where its value is."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, TypeAlias

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


_Pair: TypeAlias = tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]


def _both(function: Callable[[Any, Any], Any]) -> _Pair:
    """An operator, and its reflected form."""
    return _binary(function), lambda self, other: function(other, self.value)


def _in_place(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    compute = _binary(function)

    def method(self: Any, other: Any) -> Any:
        self.value = compute(self, other)
        return self

    return method


class ReadOperators:
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
    __index__ = _forward(operator.index)

    __neg__ = _forward(operator.neg)
    __pos__ = _forward(operator.pos)
    __abs__ = _forward(operator.abs)
    __invert__ = _forward(operator.invert)

    __lt__ = _binary(operator.lt)
    __le__ = _binary(operator.le)
    __gt__ = _binary(operator.gt)
    __ge__ = _binary(operator.ge)

    __add__, __radd__ = _both(operator.add)
    __sub__, __rsub__ = _both(operator.sub)
    __mul__, __rmul__ = _both(operator.mul)
    __matmul__, __rmatmul__ = _both(operator.matmul)
    __truediv__, __rtruediv__ = _both(operator.truediv)
    __floordiv__, __rfloordiv__ = _both(operator.floordiv)
    __mod__, __rmod__ = _both(operator.mod)
    __divmod__, __rdivmod__ = _both(divmod)
    __pow__, __rpow__ = _both(operator.pow)
    __lshift__, __rlshift__ = _both(operator.lshift)
    __rshift__, __rrshift__ = _both(operator.rshift)
    __and__, __rand__ = _both(operator.and_)
    __or__, __ror__ = _both(operator.or_)
    __xor__, __rxor__ = _both(operator.xor)


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


_IN_PLACE = "add sub mul matmul truediv floordiv mod pow lshift rshift and or xor"
for _name in _IN_PLACE.split():
    _operator = _in_place(getattr(operator, f"__{_name}__"))
    setattr(ValueOperators, f"__i{_name}__", _operator)
