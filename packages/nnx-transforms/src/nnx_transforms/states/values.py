"""Values of variables, apart from what is static in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphcore.authors import Divided


def arrays_of(value: Any) -> Any:
    """The value of a variable as a pytree without what JAX takes for no argument.

    Args:
        value: The value: an array, or any pytree, such as a module of Equinox.

    Returns:
        The value, or a `Divided` where there is something static in it.

    Example:
        >>> import jax
        >>> jax.tree.leaves(arrays_of({'rate': 2.0, 'name': 'a', 'f': abs}))
        [2.0]
    """
    (found,) = Divided.of_values([value])
    return found


def map_value(function: Callable[[Any], Any], value: Any) -> Any:
    """Applies a function to the value of a variable without what is static in it.

    Args:
        function: From a pytree to one of the same structure.
        value: As for `arrays_of`.

    Returns:
        What it makes of the value, with what is static.

    Example:
        >>> import jax
        >>> map_value(jax.numpy.negative, 2.0).tolist()
        -2.0
        >>> map_value(lambda tree: jax.tree.map(abs, tree), {'a': -1, 'f': abs})
        {'a': 1, 'f': <built-in function abs>}
    """
    return Divided.map(Divided.join, function(arrays_of(value)))
