"""Types of pytrees whose leaves may be anything, such as modules of Equinox."""

from __future__ import annotations

from typing import Any

from graphcore.adapters.loading import load_adapters, registrations
from graphcore.errors import check_class
from graphcore.variables.bare_arrays import frozen

__all__ = ["register_filtered_type"]

_filtered: set[type[Any]] = set()
_known: dict[type[Any], bool] = {}


def register_filtered_type(type: type[Any], /, *, immutable: bool = False) -> None:
    """Declares a type of pytrees whose leaves may be anything.

    Where an instance of it, or of a subclass, is or is part of an argument, an output
    or the value of a variable, its arrays are traced and all else in it is static,
    numbers of Python's included. The type must be known to JAX as a pytree.

    Args:
        type: The class.
        immutable: Whether no instance changes what it holds. Then one that comes again
            is not taken apart again.

    Example:
        >>> import graphcore as gc, jax, jax.numpy as jnp
        >>> @jax.tree_util.register_pytree_node_class
        ... class Layer:
        ...     def __init__(self, w, f): self.w, self.f = w, f
        ...     def tree_flatten(self): return (self.w, self.f), None
        ...     @classmethod
        ...     def tree_unflatten(cls, _, children): return cls(*children)
        >>> gc.register_filtered_type(Layer)
        >>> from graphcore.authors import Divided
        >>> divided, has_any = Divided.within(Layer(jnp.ones(2), jnp.sin))
        >>> len(jax.tree.leaves(divided)), divided.join().f is jnp.sin
        (1, True)
    """
    check_class(type, "register_filtered_type")
    _filtered.add(type)
    if immutable:
        frozen.add(type)
    _known.clear()
    registrations.count += 1


def is_filtered(x: Any) -> bool:
    """Tells whether an object is of a type that `register_filtered_type` declared."""
    kind = type(x)
    known = _known.get(kind)
    if known is None:
        load_adapters(kind)
        known = not _filtered.isdisjoint(kind.__mro__)
        _known[kind] = known
    return known
