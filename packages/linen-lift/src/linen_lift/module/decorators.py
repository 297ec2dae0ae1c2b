"""Marks on the methods of a module: `compact`, `nowrap`, `compact_name_scope`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["compact", "compact_name_scope", "nowrap"]

F = TypeVar("F", bound=Callable[..., Any])


def compact(fun: F) -> F:
    """Marks a method in which submodules and variables are made inline.

    Submodules without a name are called `Dense_0`, `Dense_1`, ... in the order in
    which they are made. A second call of the method uses the same ones.

    Args:
        fun: a method of a module.

    Returns:
        The method.

    Example:
        >>> import linen_lift as nn, jax
        >>> class Double(nn.Module):
        ...     @nn.compact
        ...     def __call__(self, x):
        ...         return nn.Dense(2)(nn.Dense(3)(x))
        >>> sorted(Double().init(jax.random.key(0), jax.numpy.ones(4))['params'])
        ['Dense_0', 'Dense_1']
    """
    fun._compact = True  # type: ignore[attr-defined]
    return fun


def nowrap(fun: F) -> F:
    """Exempts a method from everything that modules do for their methods.

    Such a method works on an unbound module, and submodules made in it belong to the
    method that called it.

    Args:
        fun: a method of a module.

    Returns:
        The method.

    Example:
        >>> import linen_lift as nn
        >>> class Net(nn.Module):
        ...     width: int
        ...     @nn.nowrap
        ...     def make(self):
        ...         return nn.Dense(self.width)
        >>> Net(3).make().features
        3
    """
    fun._nowrap = True  # type: ignore[attr-defined]
    return fun


def compact_name_scope(fun: F) -> F:
    """Marks a further method in which submodules are made inline.

    The submodules that it makes live under the method's name, so the same names can be
    given in several methods. It makes submodules only; `param` and `variable` work in
    it only while a compact method of the same module is running, and then belong to the
    module itself.

    Args:
        fun: a method of a module.

    Returns:
        The method.

    Example:
        >>> import linen_lift as nn, jax
        >>> class Net(nn.Module):
        ...     @nn.compact_name_scope
        ...     def encode(self, x):
        ...         return nn.Dense(2)(x)
        ...     def __call__(self, x):
        ...         return self.encode(x)
        >>> variables = Net().init(jax.random.key(0), jax.numpy.ones(3))
        >>> variables['params']['encode']['Dense_0']['bias'].shape
        (2,)
    """
    fun._compact_name_scope = True  # type: ignore[attr-defined]
    return fun
