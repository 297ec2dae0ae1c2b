"""Modules on their way through a transform.

A lifted transform works on scopes. A `Frame` finds the modules and variables that take
part in a call (the module itself, those in its fields, those in the arguments), lists
their scopes, and inside the transform makes clones of them that live in the inner
scopes. One object has one clone, so aliases stay aliases.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from graphcore import Static

from ..errors import CallCompactUnboundModuleError
from ..module.base import Module
from ..module.containers import find, replace
from ..module.state import State
from ..scope import Scope, Variable

_LIVE = (Module, Variable)
_ARRAYS = (jax.Array, np.ndarray)


@jax.tree_util.register_static
class _Slot(Static[int]):
    """The place of a module or variable among arguments: a pytree without leaves."""


class Frame:
    """The modules of one call of a lifted transform.

    The order of scopes is: modules among the arguments, then those in fields, depth
    first, and the module itself last.

    Args:
        module: the module whose method is transformed.
        args: its arguments.
        kwargs: its keyword arguments.
        transform: the name of the transform, for errors.
        inside: the class of the module inside; its own by default.

    Raises:
        CallCompactUnboundModuleError: if the module is not bound.
    """

    def __init__(
        self,
        module: Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        transform: str,
        inside: type[Module] | None = None,
    ) -> None:
        if module.scope is None:
            raise CallCompactUnboundModuleError(type(module).__name__, transform)
        self.module = module
        self.inside = inside or type(module)
        self._index: dict[Scope, int] = {}
        self._modules: dict[int, Module] = {}
        self._in_args: list[Any] = []
        self._cursors: list[tuple[int, dict[str, int]]] = []
        self.args = tuple([self._slotted(arg) for arg in args])
        self.kwargs = {name: self._slotted(arg) for name, arg in kwargs.items()}
        self._enter(module)
        scopes = list(self._index)
        self.scopes: Any = scopes[0] if len(scopes) == 1 else scopes

    def _slotted(self, value: Any) -> Any:
        return replace(value, _LIVE, self._slot)

    def _slot(self, live: Any, _: str) -> _Slot:
        self._enter(live)
        self._in_args.append(live)
        return _Slot(len(self._in_args) - 1)

    def _enter(self, live: Any) -> None:
        if isinstance(live, Module):
            if id(live) in self._modules:
                return
            self._modules[id(live)] = live
            attributes = live.__dict__
            for name in live._state.base:
                if name != "parent":
                    for inner in find(attributes[name], _LIVE):
                        self._enter(inner)
            state, scope = live._state, live.scope
            if scope is None:
                return
            if not (state.in_compact or state.in_setup or state.shares_scope):
                # Left from an earlier call; the next one starts without them.
                scope._reserved = {}
        else:
            scope = live.scope
        self._index.setdefault(scope, len(self._index))

    # --- inside ---------------------------------------------------------------------

    def rebuild(self, inner_scopes: Any, arrays: Any = None) -> Clones:
        """Clones of everything, in inner scopes.

        Args:
            inner_scopes: in the structure of `scopes`.
            arrays: replacements for the arrays in fields, by identity.
        """
        return Clones(self, inner_scopes, arrays or {})

    def inner_scope(self, inner_scopes: Any, scope: Scope) -> Scope:
        """The inner scope in the place of an outer one."""
        if len(self._index) == 1:
            inner: Scope = inner_scopes
            return inner
        found: Scope = inner_scopes[self._index[scope]]
        return found

    def note(self, original: Module, cursor: dict[str, int]) -> None:
        """Remembers the naming of a clone; not the clone, which holds tracers."""
        self._cursors.append((list(self._modules).index(id(original)), cursor))

    def naming(self) -> tuple[Any, ...]:
        """How far naming got in the clones so far: a hashable value."""
        return tuple((place, tuple(cursor.items())) for place, cursor in self._cursors)

    def publish(self, naming: tuple[Any, ...]) -> None:
        """Lets the originals go on naming where the clones stopped."""
        modules = list(self._modules.values())
        for place, cursor in naming:
            outer = modules[place]._state.cursor
            for prefix, number in cursor:
                outer[prefix] = max(outer.get(prefix, 0), number)

    def detached(self) -> Frame:
        """The frame of clones without variables, for functions that JAX keeps."""
        hollow = [scope._hollow("") for scope in self._index]
        inside = self.rebuild(hollow[0] if len(hollow) == 1 else hollow)
        args, kwargs = inside.arguments(self.args, self.kwargs)
        module = inside.module()
        inside.part_from_parents()
        frame = Frame(module, tuple(args), kwargs, "")
        frame.args, frame.kwargs = (), {}
        return frame

    # --- for caches -----------------------------------------------------------------

    def describe(self) -> tuple[Any, dict[int, Any]]:
        """What the call depends on beside variables and arguments.

        Returns:
            A hashable value that is equal for equal configurations, wherever the
            modules are; and the arrays in fields by identity, which are not part of
            it.

        Raises:
            TypeError: if a field cannot be hashed.
        """
        description = _Description(self._index)
        live = (*self._in_args, self.module)
        return tuple([description.of(each) for each in live]), description.arrays


class Clones:
    """The clones inside of one trace of a lifted function."""

    __slots__ = ("_arrays", "_frame", "_memo", "_scopes", "_wanted")

    def __init__(self, frame: Frame, scopes: Any, arrays: dict[int, Any]) -> None:
        self._frame = frame
        self._scopes = scopes
        self._arrays = arrays
        self._memo: dict[int, Any] = {}
        self._wanted: tuple[type, ...] = (*_LIVE, *_ARRAYS) if arrays else _LIVE

    def module(self) -> Any:
        """The clone of the module itself."""
        return self._clone(self._frame.module, "")

    def arguments(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The arguments, with clones in their slots."""
        live = self._frame._in_args
        if not live:
            return args, kwargs

        def fill(slot: Any, _: str) -> Any:
            return self._clone(live[slot.value], "")

        return replace((list(args), dict(kwargs)), (_Slot,), fill)  # type: ignore[no-any-return]

    def part_from_parents(self) -> None:
        """Lets the clones refer to no module outside, which has variables."""
        for clone in self._memo.values():
            if isinstance(clone, Module):
                clone.__dict__["parent"] = None

    def _clone(self, value: Any, _: str) -> Any:
        memo = self._memo
        found = memo.get(id(value))
        if found is not None:
            return found
        if isinstance(value, Variable):
            scope = self._frame.inner_scope(self._scopes, value.scope)
            clone: Any = Variable(scope, value.collection, value.name, value.unbox)
            memo[id(value)] = clone
            return clone
        if not isinstance(value, Module):
            return self._arrays.get(id(value), value)
        if value.scope is None:
            return value
        frame = self._frame
        cls = frame.inside if value is frame.module else type(value)
        clone = memo[id(value)] = object.__new__(cls)
        outer, attributes = value.__dict__, clone.__dict__
        state = outer["_state"]
        new = State(state.base)
        wanted = self._wanted
        for name in state.base:
            item = outer[name]
            attributes[name] = (
                item if name == "parent" else replace(item, wanted, self._clone)
            )
        # The name may have been given after the fields.
        attributes["name"] = outer["name"]
        attributes["_state"] = new
        attributes["scope"] = self._frame.inner_scope(self._scopes, value.scope)
        new.auto_named = state.auto_named
        if state.in_compact:
            new.in_compact = True
            new.cursor = dict(state.cursor)
            self._frame.note(value, new.cursor)
        return clone


class _Description:
    """Turns modules into hashable descriptions."""

    __slots__ = ("_index", "_seen", "arrays")

    def __init__(self, index: dict[Scope, int]) -> None:
        self._index = index
        self._seen: dict[int, int] = {}
        self.arrays: dict[int, Any] = {}

    def of(self, value: Any) -> Any:
        if isinstance(value, Module):
            return self._module(value)
        if isinstance(value, Variable):
            place = self._index[value.scope]
            return Variable, place, value.collection, value.name, value.unbox
        if isinstance(value, _ARRAYS):
            number = len(self.arrays)
            self.arrays.setdefault(id(value), value)
            return "array", min(number, list(self.arrays).index(id(value)))
        if isinstance(value, (list, tuple)):
            return type(value), tuple([self.of(item) for item in value])
        if isinstance(value, dict):
            return dict, tuple([(k, self.of(v)) for k, v in value.items()])
        leaves, treedef = jax.tree.flatten(value, is_leaf=lambda x: x is not value)
        if not jax.tree_util.treedef_is_leaf(treedef) and leaves:
            return treedef, tuple([self.of(leaf) for leaf in leaves])
        hash(value)
        return type(value), value

    def _module(self, module: Module) -> Any:
        if id(module) in self._seen:
            return "same as", self._seen[id(module)]
        self._seen[id(module)] = len(self._seen)
        attributes, state = module.__dict__, module._state
        fields = []
        for name in state.base:
            if name in ("parent", "name"):
                continue
            try:
                fields.append((name, self.of(attributes[name])))
            except TypeError as error:
                path = "unbound" if module.scope is None else module.scope.path_text
                raise TypeError(
                    f'Field "{name}" of {type(module).__name__} at path "{path}" is '
                    f"a {type(attributes[name]).__name__}, which cannot be hashed. A "
                    "lifted jit is compiled once per configuration; use hashable "
                    "fields."
                ) from error
        place = None if module.scope is None else self._index.get(module.scope)
        naming = tuple(state.cursor.items()) if state.in_compact else None
        return type(module), tuple(fields), place, naming
