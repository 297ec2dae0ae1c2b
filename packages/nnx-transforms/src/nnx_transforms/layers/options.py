"""Options that may be given in several places."""

from __future__ import annotations

from typing import TypeVar

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
