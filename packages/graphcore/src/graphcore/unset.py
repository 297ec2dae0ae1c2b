"""What stands in the place of an argument that is not given."""

from __future__ import annotations

from typing import Any

__all__ = ["UNSET"]


class _Unset:
    def __repr__(self) -> str:
        return "UNSET"

    def __reduce__(self) -> str:
        return "UNSET"


UNSET: Any = _Unset()
"""The default where None means something; also the setting of what has none.

Example:
    >>> import graphcore as gc
    >>> from graphcore.authors import UNSET, enter
    >>> entry = enter(abs, (gc.Variable(1),))
    >>> entry.settings[0] == [UNSET]
    True
"""
