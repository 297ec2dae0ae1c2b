"""Packages whose names are imported when they are first used.

A program pays at its start only for what it uses. Type checkers see the names through
imports under `TYPE_CHECKING`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazily(
    package: str, modules: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Makes `__getattr__` and `__dir__` of a package.

    Args:
        package: Its dotted name.
        modules: For each module below the package the names in it, separated by spaces.
            A module is there by its own name as well, unless it defines that name.

    Returns:
        The two functions.

    Example:
        >>> find, names = lazily('xml.sax', {'saxutils': 'escape'})
        >>> find('escape')('<'), 'escape' in names()
        ('&lt;', True)
    """
    home = {module.rpartition(".")[2]: module for module in modules}
    home |= {name: at for at, names in modules.items() for name in names.split()}

    def find(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found: Any = importlib.import_module(f"{package}.{home[name]}")
        if hasattr(found, name) or home[name].rpartition(".")[2] != name:
            found = getattr(found, name)
        # The next look at the name is an ordinary one.
        setattr(sys.modules[package], name, found)
        return found

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home})

    return find, names
