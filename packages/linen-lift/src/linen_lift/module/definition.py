"""Turning a subclass of `Module` into a dataclass with wrapped methods."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from operator import attrgetter
from typing import Any

from typing_extensions import Format, get_annotations

from .. import errors
from .calling import is_marked, wrap_method

RESERVED = ("parent", "name")
_TYPES_OF_NAME = (str, "str", str | None, "str | None", "Optional[str]")


def define(cls: type[Any], kw_only: bool) -> None:
    """Completes a new subclass of `Module`.

    Args:
        cls: the class.
        kw_only: whether its fields are keyword-only.

    Raises:
        ReservedModuleAttributeError: if it declares `parent`, or `name` as something
            else than text.
    """
    # Without asking what the names in them stand for: from Python 3.14 on, what is
    # defined below the class may be named there.
    annotations = get_annotations(cls, format=Format.FORWARDREF)
    for name in RESERVED:
        if name in annotations:
            if name == "parent" or annotations[name] not in _TYPES_OF_NAME:
                raise errors.ReservedModuleAttributeError(cls.__name__, name)
            # Only said once more; the field stays the one that all modules have.
            del annotations[name]
            cls.__annotations__ = annotations
            if name in cls.__dict__:
                delattr(cls, name)
    # All modules are compared and hashed alike: functions for each class would take
    # a good part of the time that importing this package takes.
    dataclasses.dataclass(eq=False, repr=False, kw_only=kw_only)(cls)
    if (own_hash := cls.__dict__.get("__hash__")) is not None:
        cls.__hash__ = checked_hash(own_hash)
    tabulate_fields(cls)
    for name, value in list(cls.__dict__.items()):
        if _is_method(cls, name, value):
            setattr(cls, name, wrap_method(value))
    if "setup" in cls.__dict__:
        cls.setup = _checked_setup(cls.__dict__["setup"])
        cls._module__has_setup = True


def tabulate_fields(cls: type[Any]) -> None:
    """Notes the names of the fields of a class, its own before those of all modules."""
    fields = sorted(dataclasses.fields(cls), key=lambda f: f.name in RESERVED)
    cls.__dataclass_fields__ = {f.name: f for f in fields}
    cls._module__field_names = tuple(f.name for f in fields if f.name not in RESERVED)
    cls._module__init_names = tuple(
        f.name for f in fields if f.init and f.name not in RESERVED
    )
    cls._module__compared = attrgetter(*(f.name for f in fields if f.compare))
    hashed = (f.name for f in fields if (f.compare if f.hash is None else f.hash))
    cls._module__hashed = attrgetter(*hashed)


_NOT_METHODS = frozenset({"setup", "lazy_init", "tabulate", "module_paths"})

# By these, and by what every `object` has, Python makes objects, copies them and looks
# into them: they are no methods of a module, unless they are marked.
_PROTOCOLS = {"__annotate__", "__annotate_func__", "__post_init__", "__replace__"}
_PROTOCOLS |= {"__copy__", "__deepcopy__", "__setstate__", "__del__", "__getattr__"}
_PROTOCOLS |= {"__get__", "__set__", "__delete__", "__set_name__"}
_PROTOCOLS |= {"__getnewargs__", "__getnewargs_ex__"}
_MARKS = ("_compact", "_compact_name_scope")


def _is_method(cls: type[Any], name: str, value: Any) -> bool:
    if not inspect.isfunction(value) or name in _NOT_METHODS:
        return False
    if getattr(value, "_nowrap", False) or name in cls._module__field_names:
        return False  # it is exempted, or the default of a field
    marks = [mark for mark in _MARKS if getattr(value, mark, False)]
    if not marks and (name in _PROTOCOLS or name in vars(object)):
        return False
    if is_marked(value, "_lifted"):
        # What it transforms is made a method inside of the transform, unless only
        # the transformed function is marked.
        plain = inspect.unwrap(value)
        return any(not getattr(plain, mark, False) for mark in marks)
    return True


def _checked_setup(setup: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(setup)
    def checked(self: Any) -> None:
        if self.scope is None:
            raise errors.CallSetupUnboundModuleError(type(self).__name__, "setup")
        setup(self)

    return checked


def checked_hash(fields_hash: Callable[..., Any]) -> Callable[..., Any]:
    """The hash of a module, which a bound one has not."""

    @functools.wraps(fields_hash)
    def checked(self: Any) -> Any:
        if self.scope is not None:
            raise TypeError(
                f"{type(self).__name__} at path {self.scope.path_text!r} holds "
                "variables and cannot be hashed; unbound modules can."
            )
        return fields_hash(self)

    return checked
