"""The dtype that a layer computes in."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

Array: TypeAlias = Any
"""An array or what JAX takes for one."""
DType: TypeAlias = Any
"""What `numpy.dtype` accepts."""
Initializer: TypeAlias = Callable[..., Any]
"""`init(key, shape, dtype)`, as in `jax.nn.initializers`."""


def promote(dtype: DType | None, *arrays: Array | None) -> tuple[Any, ...]:
    """Casts arrays to the dtype of a computation, where they don't have it.

    Args:
        dtype: The dtype; None for the one that the arrays promote to by JAX's own
            rules, or the default floating-point dtype if that is not inexact.
        *arrays: Arrays of any dtype and shape; None passes through.

    Returns:
        As many arrays of one dtype.

    Example:
        >>> import jax.numpy as jnp
        >>> x, w, b = promote(None, jnp.ones(2, jnp.bfloat16), jnp.ones(2), None)
        >>> x.dtype.name, w.dtype.name, b
        ('float32', 'float32', None)
    """
    if dtype is None:
        present = [a for a in arrays if a is not None]
        if _common_dtype(present) is not None:
            return arrays
        dtype = promoted_dtype(present)
    return tuple(None if a is None else cast(a, dtype) for a in arrays)


def promoted_dtype(arrays: list[Array]) -> DType:
    """The dtype that arrays are computed with together.

    Args:
        arrays: At least one, of any dtype and shape.

    Returns:
        What they promote to, or the default floating-point dtype if that is not
        inexact.

    Example:
        >>> import jax.numpy as jnp
        >>> promoted_dtype([jnp.arange(2), 1]) == jnp.float32
        True
    """
    dtype = _common_dtype(arrays)
    if dtype is None:
        dtype = jnp.result_type(*arrays)
    return dtype if _is_inexact(dtype) else jnp.result_type(float)


def _common_dtype(arrays: list[Array]) -> DType | None:
    """The inexact dtype of all arrays, if they have one.

    Most arrays of a model do, and JAX's own promotion costs time in every trace.
    """
    dtype = getattr(arrays[0], "dtype", None)
    for array in arrays:
        if getattr(array, "dtype", None) is not dtype:
            return None
    return dtype if dtype is not None and _is_inexact(dtype) else None


@functools.cache
def _is_inexact(dtype: DType) -> bool:
    return bool(jnp.issubdtype(dtype, jnp.inexact))


def cast(array: Array, dtype: DType) -> jax.Array:
    """Casts an array to a dtype, where it doesn't have it.

    Args:
        array: An array, or what JAX takes for one.
        dtype: The dtype.

    Returns:
        An array; the very one that was given if there is nothing to do, so that no
        operation is traced.

    Example:
        >>> import jax.numpy as jnp
        >>> x = jnp.ones(2)
        >>> cast(x, jnp.float32) is x
        True
    """
    if isinstance(array, jax.Array) and array.dtype == dtype:
        return array
    return jnp.asarray(array, dtype)
