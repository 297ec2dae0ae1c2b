"""Errors of this package."""

from __future__ import annotations

from typing import Any

__all__ = ["TraceContextError"]


class TraceContextError(ValueError):
    """A node or variable was used or mutated from a trace it does not belong to.

    Every node and variable belongs to the JAX trace in which it was made. Storing a
    value of another trace in it would leak a tracer, so the write is refused. Pass
    the object through the transformation as an argument instead of capturing it.

    Example:
        >>> import graphcore as gc, jax, jax.numpy as jnp
        >>> total = gc.Variable(jnp.array(0.0))
        >>> @jax.jit
        ... def add(x):
        ...     total.value = total.value + x
        >>> try:
        ...     add(1.0)
        ... except gc.TraceContextError as error:
        ...     print(str(error).partition(':')[0])
        Cannot mutate Variable from a different trace level
    """


def check_class(x: Any, taker: str) -> None:
    """Makes sure that what is to be registered is a class.

    Args:
        x: What was given.
        taker: The function that takes classes.

    Raises:
        TypeError: If it is none.

    Example:
        >>> check_class(int, 'f')
        >>> try: check_class(3, 'f')
        ... except TypeError as error: print(error)
        f takes a class, but got 3, of type int.
    """
    if not isinstance(x, type):
        raise TypeError(
            f"{taker} takes a class, but got {x!r}, of type {type(x).__name__}."
        )


def apart(a: type[Any], b: type[Any]) -> tuple[str, str]:
    """The names of two types in messages that tell one from the other.

    Args:
        a: A type.
        b: Another one, perhaps of the same name.

    Returns:
        Their names; with their modules, where these alone are different.

    Example:
        >>> class int: pass
        >>> apart(float, str), apart(type(3), int)[0]
        (('float', 'str'), 'builtins.int')
    """
    if a.__name__ != b.__name__:
        return a.__name__, b.__name__
    return f"{a.__module__}.{a.__qualname__}", f"{b.__module__}.{b.__qualname__}"
