"""What tells a module from anything else, and what it keeps beside its fields."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, dataclass_transform


@dataclasses.dataclass(slots=True)
class State:
    """The mutable part of a module instance; nobody but the library writes it.

    It is replaced, never copied, when a module is cloned.
    """

    #: The attributes that were set before the instance was frozen.
    base: tuple[str, ...]
    #: Those that `__post_init__` set then, nevertheless; None until it is used.
    late: tuple[str, ...] | None = None
    children: dict[str, Any] = dataclasses.field(default_factory=dict)
    in_compact: bool = False
    in_setup: bool = False
    setup_done: bool = False
    #: Whether the name was chosen by the library.
    auto_named: bool = False
    shares_scope: bool = False
    #: How many names were taken in its scope when its running method began, or when it
    #: got the scope by `share_scope`.
    mark: int = 0
    #: The names that were taken there in the last call of a compact method.
    names: list[tuple[str, str | None]] = dataclasses.field(default_factory=list)


@dataclass_transform(kw_only_default=False, field_specifiers=(dataclasses.field,))
class ModuleBase:
    """The base of `Module`; tells type checkers that its subclasses are dataclasses.

    Names that begin with one underscore are left to subclasses: the library's own have
    two more inside.
    """

    _module__state: ClassVar[Any] = None  # a `State`, once `__post_init__` has run
    _module__is_name_scope: ClassVar[bool] = False
