"""Options of layers: where they are given, and in which form they are kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

__all__ = ["first_from"]

A = TypeVar("A")


def first_from(*values: A | None, error_msg: str) -> A:
    """Returns the first value that is not None.

    Args:
        *values: An option by place: what the call says, then what the layer says.
        error_msg: What the error says.

    Returns:
        The value.

    Raises:
        ValueError: If all are None.

    Example:
        >>> first_from(None, False, True, error_msg='Say whether to draw.')
        False
    """
    found = next((value for value in values if value is not None), None)
    if found is None:
        raise ValueError(error_msg)
    return found


def given(**options: Any) -> dict[str, Any]:
    """The options that are not None.

    What replaces a function of JAX needs to know only what is asked of it.

    Args:
        **options: By name.

    Returns:
        Some of them.

    Example:
        >>> given(out_sharding=None, precision='highest')
        {'precision': 'highest'}
    """
    return {name: value for name, value in options.items() if value is not None}


def frozen(value: Any) -> Any:
    """Turns lists into tuples, at any depth.

    Args:
        value: An option.

    Returns:
        The option, hashable if what the lists hold is.

    Example:
        >>> frozen([(1, 1), [2, 2]])
        ((1, 1), (2, 2))
    """
    if type(value) in (list, tuple):
        return tuple(map(frozen, value))
    return value


def as_tuple(given: int | Sequence[int]) -> tuple[int, ...]:
    """A tuple of one number or several.

    Args:
        given: An integer, perhaps of NumPy, or several.

    Returns:
        The tuple.

    Example:
        >>> as_tuple(3), as_tuple([3, 4])
        ((3,), (3, 4))
    """
    return tuple(given) if isinstance(given, Iterable) else (given,)
