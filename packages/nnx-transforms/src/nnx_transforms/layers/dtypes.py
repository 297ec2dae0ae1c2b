"""The dtype that a layer computes in."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from graphcore import Variable
from nnx_transforms.layers.types import Array, DType

__all__ = ["canonicalize_dtype", "promote_dtype"]


def promote_dtype(
    args: Sequence[Array | None], /, *, dtype: DType | None = None, inexact: bool = True
) -> tuple[Any, ...]:
    """Casts arrays to the dtype of a computation, where they don't have it.

    Args:
        args: Arrays of any dtype and shape; None passes through.
        dtype: The dtype; None for the one that `canonicalize_dtype` finds.
        inexact: Whether the dtype must be inexact.

    Returns:
        As many arrays of one dtype.

    Raises:
        ValueError: If a dtype is given that is not inexact, but must be.

    Example:
        >>> import jax.numpy as jnp
        >>> x, w, b = promote_dtype((jnp.ones(2, jnp.bfloat16), jnp.ones(2), None))
        >>> x.dtype.name, w.dtype.name, b
        ('float32', 'float32', None)
    """
    common = _common_dtype([a for a in args if a is not None])
    if common is not None and dtype is None and (_is_inexact(common) or not inexact):
        return tuple(args)  # as in most layers
    dtype = canonicalize_dtype(*args, dtype=dtype, inexact=inexact)
    return tuple(None if a is None else cast(a, dtype) for a in args)


def canonicalize_dtype(
    *args: Array | None, dtype: DType | None = None, inexact: bool = True
) -> DType:
    """The dtype that arrays are computed with together.

    Args:
        *args: At least one array, of any dtype and shape; None is ignored.
        dtype: The dtype, if it is known.
        inexact: Whether it must be inexact.

    Returns:
        What they promote to by JAX's own rules; if that is not inexact, but must be,
        what it promotes to with float32.

    Raises:
        ValueError: If a dtype is given that is not inexact, but must be.

    Example:
        >>> import jax.numpy as jnp
        >>> canonicalize_dtype(jnp.arange(2), 1).name
        'float32'
    """
    if dtype is None:
        arrays = [a for a in args if a is not None]
        dtype = _common_dtype(arrays)
        if dtype is None:
            dtype = jnp.result_type(
                *(jnp.asarray(a) if isinstance(a, list | tuple) else a for a in arrays)
            )
        if not inexact or _is_inexact(dtype):
            return dtype
        return jnp.promote_types(jnp.float32, dtype)
    if inexact and not _is_inexact(dtype):
        raise ValueError(
            f"A layer computes with an inexact dtype, such as float32; got {dtype}."
        )
    return dtype


def _common_dtype(arrays: list[Array]) -> DType | None:
    """The dtype of all arrays, if they have one.

    Most arrays of a model do, and JAX's own promotion costs time in every trace.
    """
    dtypes = {a.dtype if isinstance(a, jax.Array) else None for a in arrays}
    return dtypes.pop() if len(dtypes) == 1 else None


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


def keep_dtype(variable: Variable[Any], value: jax.Array) -> None:
    """Gives a variable another value, in the dtype that it has.

    What a layer tracks stays what it is when inputs of other dtypes come, so that a
    model can be the carry of a loop, and is traced once.

    Args:
        variable: A variable.
        value: An array; a complex one keeps its dtype, since half of it would be lost.

    Example:
        >>> import jax.numpy as jnp
        >>> kept = Variable(jnp.zeros(2, jnp.float16))
        >>> keep_dtype(kept, jnp.ones(2)); kept.value
        Array([1., 1.], dtype=float16)
    """
    if not jnp.iscomplexobj(value):
        value = cast(value, variable.value.dtype)
    variable.value = value


def with_rank(array: jax.Array, rank: int) -> jax.Array:
    """Gives an array axes of size 1 in front, where JAX is told not to do it itself.

    Args:
        array: An array.
        rank: Of what it is combined with, no less than its own.

    Returns:
        The array, as `jax.numpy` takes it under `jax_numpy_rank_promotion="raise"`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> with jax.numpy_rank_promotion("raise"):
        ...     with_rank(jnp.ones(3), 2).shape
        (1, 3)
    """
    if jax.config.jax_numpy_rank_promotion == "allow":
        return array
    return lax.broadcast_to_rank(array, rank)
