"""Rules that say which axis of a mesh a name of an axis stands for.

All libraries of a program share them, as a model may have parts of several.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

__all__ = ["axis_rules"]

axis_rules: ContextVar[Sequence[tuple[Any, Any]]] = ContextVar("axis_rules", default=())
"""The rules in force: pairs of a logical name and mesh axes, by priority.

Example:
    >>> from graphcore.authors import axis_rules
    >>> axis_rules.get()
    ()
"""
