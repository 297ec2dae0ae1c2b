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

    __add__ = _binary(operator.add)
    __sub__ = _binary(operator.sub)
    __mul__ = _binary(operator.mul)
    __matmul__ = _binary(operator.matmul)
    __truediv__ = _binary(operator.truediv)
    __floordiv__ = _binary(operator.floordiv)
    __mod__ = _binary(operator.mod)
    __divmod__ = _binary(divmod)
    __pow__ = _binary(operator.pow)
    __lshift__ = _binary(operator.lshift)
    __rshift__ = _binary(operator.rshift)
    __and__ = _binary(operator.and_)
    __or__ = _binary(operator.or_)
    __xor__ = _binary(operator.xor)

    __radd__ = _reflected(operator.add)
    __rsub__ = _reflected(operator.sub)
    __rmul__ = _reflected(operator.mul)
    __rmatmul__ = _reflected(operator.matmul)
    __rtruediv__ = _reflected(operator.truediv)
    __rfloordiv__ = _reflected(operator.floordiv)
    __rmod__ = _reflected(operator.mod)
    __rdivmod__ = _reflected(divmod)
    __rpow__ = _reflected(operator.pow)
    __rlshift__ = _reflected(operator.lshift)
    __rrshift__ = _reflected(operator.rshift)
    __rand__ = _reflected(operator.and_)
    __ror__ = _reflected(operator.or_)
    __rxor__ = _reflected(operator.xor)


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

    __iadd__ = _in_place(operator.add)
    __isub__ = _in_place(operator.sub)
    __imul__ = _in_place(operator.mul)
    __imatmul__ = _in_place(operator.matmul)
    __itruediv__ = _in_place(operator.truediv)
    __ifloordiv__ = _in_place(operator.floordiv)
    __imod__ = _in_place(operator.mod)
    __ipow__ = _in_place(operator.pow)
    __ilshift__ = _in_place(operator.lshift)
    __irshift__ = _in_place(operator.rshift)
    __iand__ = _in_place(operator.and_)
    __ior__ = _in_place(operator.or_)
    __ixor__ = _in_place(operator.xor)
