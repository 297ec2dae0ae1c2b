"""What a module keeps beside its fields."""

from __future__ import annotations

from typing import Any


class State:
    """The mutable part of a module instance; nobody but the library writes it.

    It is replaced, never copied, when a module is cloned.
    """

    __slots__ = (
        "auto_named",
        "base",
        "children",
        "cursor",
        "in_compact",
        "in_setup",
        "setup_done",
        "shares_scope",
    )

    def __init__(self, base: tuple[str, ...]) -> None:
        # The attributes that were set before the instance was frozen.
        self.base = base
        # How many submodules of each class were named.
        self.cursor: dict[str, int] = {}
        self.children: dict[str, Any] = {}
        self.in_compact = False
        self.in_setup = False
        self.setup_done = False
        # Whether the name was chosen by the library.
        self.auto_named = False
        self.shares_scope = False
