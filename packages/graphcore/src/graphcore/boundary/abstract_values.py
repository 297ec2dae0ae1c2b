"""Values that are abstract, where JAX needs arrays.

`eval_shape` makes objects whose variables hold shapes and dtypes. They may go wherever
nothing is computed with them, so only an error of JAX tells that one was in the way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import jax

__all__ = ["FILL", "abstract_leaves", "is_about_types"]

FILL = (
    "The object is abstract, as `eval_shape` makes it: give it values first, with "
    "`update` or from a checkpoint."
)
"""What to do about them."""

_ABSTRACT = jax.ShapeDtypeStruct.__name__
# In what JAX, NumPy and Python's operators say of something that is no array.
_SAID = "valid JAX type", "valid JAX array type", "as an abstract array", _ABSTRACT


def is_about_types(error: BaseException) -> bool:
    """Whether an error may come from a value that is no array.

    Args:
        error: What was raised.

    Returns:
        Whether it speaks of such. (JAX has errors of its own for that, which are no
        `TypeError`s.)

    Example:
        >>> is_about_types(TypeError("Argument 'x' is not a valid JAX type"))
        True
        >>> is_about_types(TypeError('missing 1 required positional argument'))
        False
    """
    return any(said in str(error) for said in _SAID)


def abstract_leaves(
    values: Iterable[Any], error: BaseException
) -> Iterator[tuple[int, Any]]:
    """Finds leaves of values that are abstract, if an error may come from one.

    Args:
        values: Pytrees.
        error: What was raised.

    Yields:
        The number of the value, and the leaf.

    Example:
        >>> import jax
        >>> x = jax.ShapeDtypeStruct((2,), 'int32')
        >>> [*abstract_leaves([1, {'a': x}], TypeError(f'got {x}'))]
        [(1, ShapeDtypeStruct(shape=(2,), dtype=int32))]
    """
    if is_about_types(error):
        for number, value in enumerate(values):
            for leaf in jax.tree.leaves(value):
                if isinstance(leaf, jax.ShapeDtypeStruct):
                    yield number, leaf
