"""Marks on the methods of a module: `compact`, `nowrap`, `compact_name_scope`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def compact(method: F) -> F:
    """Marks the one method in which submodules and variables are made inline.

    Submodules without a name are called `Dense_0`, `Dense_1`, ... in the order in
    which they are made. A second call of the method uses the same ones.

    Args:
        method: a method of a module.

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
    method._compact = True  # type: ignore[attr-defined]
    return method


def nowrap(method: F) -> F:
    """Exempts a method from everything that modules do for their methods.

    Such a method works on an unbound module, and submodules made in it belong to the
    method that called it.

    Args:
        method: a method of a module.

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
    method._nowrap = True  # type: ignore[attr-defined]
    return method


def compact_name_scope(method: F) -> F:
    """Marks a further method in which submodules are made inline.

    What it makes lives under the method's name, so several methods of one class can be
    marked, beside one `compact` method.

    Args:
        method: a method of a module.

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
    method._compact_name_scope = True  # type: ignore[attr-defined]
    return method
