"""What tells a module from anything else, and what it keeps beside its fields."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, dataclass_transform


@dataclasses.dataclass(slots=True, eq=False)
class State:
    """The mutable part of a module instance; nobody but the library writes it.

    It is replaced, never copied, when a module is cloned.
    """

    #: The attributes that it was made with; None until it is used. `setup` adds others.
    base: tuple[str, ...] | None = None
    children: dict[str, Any] = dataclasses.field(default_factory=dict)
    in_compact: bool = False
    in_setup: bool = False
    setup_done: bool = False
    #: Whether the name was chosen by the library.
    auto_named: bool = False
    shares_scope: bool = False


@dataclass_transform(kw_only_default=False, field_specifiers=(dataclasses.field,))
class ModuleBase:
    """The base of `Module`; tells type checkers that its subclasses are dataclasses."""

    _state: ClassVar[Any] = None  # a `State`, once `__post_init__` has run


def base_names(module: Any) -> tuple[str, ...]:
    """The attributes that a module was made with, also after `__post_init__`.

    Args:
        module: a module that is bound.
    """
    state: State = module._state
    if state.base is None:
        state.base = tuple(n for n in module.__dict__ if n not in ("_state", "scope"))
    return state.base
