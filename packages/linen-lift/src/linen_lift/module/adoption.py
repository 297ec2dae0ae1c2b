"""How submodules find their place: their parent, their name and their scope.

A module is *made* unbound, or inside a method of another module, which becomes its
parent. It gets its scope

* in a compact method, at once, under the given name or a default one;
* in `setup`, when it is assigned to an attribute, under the attribute's name;
* as (part of) a field of another module, when that one gets its scope, under the
  field's name. A module from outside is cloned first, once per tree of modules, so
  what is shared stays shared and the original stays as it is.
"""

from __future__ import annotations

import weakref
from typing import Any

from ..errors import AssignSubModuleError
from ..scope_tree import Scope
from .containers import replace
from .module_base import ModuleBase


def register(parent: Any, child: Any) -> None:
    """Gives a module that was just made in a method of `parent` its place.

    Args:
        parent: the module whose method is running.
        child: the new module.

    Raises:
        AssignSubModuleError: if no submodule may be made here.
        NameInUseError: if its name is taken.
    """
    state = parent._module__state
    if state.in_setup:
        if child.name is not None:
            _bind_below(parent, child, child.name)
        return  # else it waits for its attribute
    scope = parent.scope
    if scope is None or not state.in_compact:
        where = "no path: it is unbound" if scope is None else scope.path_text
        raise AssignSubModuleError(type(child).__name__, type(parent).__name__, where)
    name = child.name
    if name is None:
        prefix = type(child).__name__
        number = scope._numbers.get(prefix, 0)
        scope._numbers[prefix] = number + 1
        name = f"{prefix}_{number}"
        child.__dict__["name"] = name
        child._module__state.auto_named = True
    _bind_below(parent, child, name)


def _bind_below(parent: Any, child: Any, name: str) -> None:
    assert parent.scope is not None
    scope = parent.scope.push(name)
    parent._module__state.children[name] = child
    bind_to(child, scope)


def bind_to(module: Any, scope: Scope) -> None:
    """Gives a module its scope, and places to the modules in its fields.

    Args:
        module: an unbound module; it is changed.
        scope: its scope.
    """
    attributes = module.__dict__
    attributes["scope"] = scope
    adopted = False
    for name in module._module__field_names:
        value = attributes.get(name)
        new = adopt(module, name, value)
        if new is not value:
            attributes[name] = new
            adopted = True
    if adopted:
        # They hold for all calls of compact methods.
        scope._log.clear()


def adopt(module: Any, name: str, value: Any) -> Any:
    """Gives places to the modules in a field, or an attribute assigned in `setup`.

    Args:
        module: a bound module.
        name: the attribute.
        value: its value.

    Returns:
        The value with adopted modules; lists and dicts of modules become immutable.
    """
    # All are named before one gets its scope, with which it adopts those in its fields:
    # what is also in the attribute itself belongs there.
    named: list[Any] = []

    def place(child: Any, suffix: str) -> Any:
        waits = child.parent is not None and child.name is not None
        if child.scope is not None or waits:
            return child  # it has its place, perhaps elsewhere, and is shared
        given = None
        if child.parent is None:
            if getattr(type(module), "preserve_adopted_names", False):
                given = child.name
            # What is shared outside stays shared: one table per tree of modules.
            adopted = module.scope._tree.adopted
            original, known = adopted.get(id(child), (None, None))
            clone = None if known is None else known()
            if clone is not None:
                return clone
            # The original is kept so that its identity stays its own.
            original, child = child, child.clone()
            adopted[id(original)] = (original, weakref.ref(child))
        child.parent = module
        child.__dict__["name"] = given or f"{name}{suffix}"
        child._module__state.auto_named = given is None
        named.append(child)
        return child

    value = replace(value, (ModuleBase,), place, freeze=True)
    for child in named:
        _bind_below(module, child, child.name)
    return value
