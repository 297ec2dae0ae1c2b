"""What has a tangent at all, and the zeros that stand for one."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero


def abstract(tree: Any) -> Any:
    """The abstract values of a pytree, so that no array is kept alive."""
    return jax.tree.map(jax.typeof, tree)


def is_inexact(x: Any) -> bool:
    """Tells whether an array, or arrays of an abstract value, have tangents.

    Args:
        x: Either of the two, or anything else.

    Returns:
        Whether these are other than zero.
    """
    try:
        dtype = x.dtype if hasattr(x, "dtype") else jax.typeof(x).dtype
    except (TypeError, AttributeError):  # not a JAX type, or one without a dtype
        return False
    return bool(jnp.issubdtype(dtype, np.inexact))


def zero_of(aval: Any) -> Any:
    """The symbolic zero tangent of arrays of an abstract value."""
    return SymbolicZero(aval.to_tangent_aval())


def instantiate(zero: Any) -> Any:
    """The array that a symbolic zero stands for; anything else stays as it is.

    Args:
        zero: Any leaf of a tangent.

    Returns:
        An array of zeros, of dtype `float0` where the primal is not inexact.
    """
    if type(zero) is not SymbolicZero:
        return zero
    aval: Any = zero.aval
    numpy: Any = np if aval.dtype == jax.dtypes.float0 else jnp
    return numpy.zeros(aval.shape, aval.dtype)


def zeros_like(avals: Any) -> Any:
    """Arrays of zeros: the tangents of arrays of abstract values."""
    return jax.tree.map(lambda aval: instantiate(zero_of(aval)), avals)
