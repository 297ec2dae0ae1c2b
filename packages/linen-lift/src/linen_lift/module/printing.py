"""The text of a module: its fields, and the submodules that it has made."""

from __future__ import annotations

import dataclasses
import textwrap
from typing import Any

from .module_base import ModuleBase


def printed(module: Any) -> str:
    """A module as text, one field or submodule a line; `setup` is not run for it.

    Args:
        module: a module.
    """
    attributes, cls = module.__dict__, type(module)
    lines = [
        f"{field.name} = {_shown(attributes[field.name])}"
        for field in dataclasses.fields(cls)
        if field.repr and field.name != "name" and field.name in attributes
    ]
    if lines:
        lines.insert(0, "# attributes")
    if module._state is not None and module._state.children:
        lines.append("# children")
        for name, child in module._state.children.items():
            lines.append(f"{name} = {child!r}")
    if not lines:
        return f"{cls.__name__}()"
    body = textwrap.indent("\n".join(lines), " " * 4)
    return f"{cls.__name__}(\n{body}\n)"


def _shown(value: Any) -> str:
    # The address of a function says nothing, and is another one in each run.
    if callable(value) and not isinstance(value, ModuleBase):
        return getattr(value, "__name__", None) or repr(value)
    return repr(value)
