"""Modules on their way through a transform.

A lifted transform works on scopes. A `Frame` finds the modules and variables that take
part in a call (the module itself, those in its fields, those in the arguments), lists
their scopes, and inside the transform makes clones of them that live in the inner
scopes. One object has one clone, so aliases stay aliases.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from graphcore import Static, StaticAttribute

from ..errors import CallCompactUnboundModuleError, TransformTargetError
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
        TransformTargetError: if `module` is no module.
        CallCompactUnboundModuleError: if the module is not bound.
    """

    def __init__(
        self,
        module: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        transform: str,
        inside: type[Module] | None = None,
    ) -> None:
        if not isinstance(module, Module):
            raise TransformTargetError(transform, module)
        if module.scope is None:
            raise CallCompactUnboundModuleError(type(module).__name__, transform)
        self.module = module
        self.inside = inside or type(module)
        self._index: dict[Scope, int] = {}
        self._modules: set[int] = set()
        self._in_args: list[Any] = []
        self.args, self.kwargs = replace((args, kwargs), _LIVE, self._slot)
        self._enter(module)
        self.scopes = list(self._index)

    def _slot(self, live: Any, _: str) -> _Slot:
        self._enter(live)
        self._in_args.append(live)
        return _Slot(len(self._in_args) - 1)

    def _enter(self, live: Any) -> None:
        if isinstance(live, Module):
            if id(live) in self._modules:
                return
            self._modules.add(id(live))
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

    def rebuild(
        self,
        scopes: Sequence[Scope],
        args: Any,
        kwargs: Any,
        arrays: Mapping[int, Any] = {},
        parted: bool = False,
    ) -> tuple[Any, Any, Any]:
        """Clones of everything, in inner scopes.

        Args:
            scopes: the inner scopes, in the order of the outer ones.
            args: the arguments, with slots.
            kwargs: the keyword arguments, likewise.
            arrays: replacements for the arrays in fields, by identity.
            parted: whether clones refer to no module outside, which has variables.

        Returns:
            The clone of the module, and the arguments with clones in their slots.
        """
        # No closure, which would hold itself and the tracers in the scopes.
        clone = functools.partial(self._clone, ({}, scopes, arrays, parted))
        module = clone(self.module)
        if self._in_args:
            fill = functools.partial(self._filled, clone)
            args, kwargs = replace((list(args), dict(kwargs)), (_Slot,), fill)
        return module, args, kwargs

    def _filled(self, clone: Callable[..., Any], slot: Any, _: str) -> Any:
        return clone(self._in_args[slot.value])

    def _clone(self, inside: tuple[Any, ...], value: Any, _: str = "") -> Any:
        memo, scopes, arrays, parted = inside
        found = memo.get(id(value))
        if found is not None:
            return found
        if isinstance(value, Variable):
            scope = scopes[self._index[value.scope]]
            clone: Any = Variable(scope, value.collection, value.name, value.unbox)
            memo[id(value)] = clone
            return clone
        if not isinstance(value, Module):
            return arrays.get(id(value), value)
        if value.scope is None:
            return value
        cls = self.inside if value is self.module else type(value)
        clone = memo[id(value)] = object.__new__(cls)
        outer, attributes = value.__dict__, clone.__dict__
        state = outer["_state"]
        wanted = (*_LIVE, *_ARRAYS) if arrays else _LIVE
        inner = functools.partial(self._clone, inside)
        for name in state.base:
            if name != "parent":
                attributes[name] = replace(outer[name], wanted, inner)
        attributes["parent"] = None if parted else outer["parent"]
        # The name may have been given after the fields.
        attributes["name"] = outer["name"]
        attributes["_state"] = State(
            state.base, in_compact=state.in_compact, auto_named=state.auto_named
        )
        attributes["scope"] = scopes[self._index[value.scope]]
        return clone

    def detached(self) -> Frame:
        """The frame of clones without variables, for functions that JAX keeps."""
        hollow = [scope._hollow("") for scope in self._index]
        module, args, kwargs = self.rebuild(hollow, self.args, self.kwargs, parted=True)
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
        arrays: dict[int, Any] = {}
        described = functools.partial(self._described, ({}, arrays))
        live = (*self._in_args, self.module)
        return tuple([described(each) for each in live]), arrays

    def _described(self, known: tuple[Any, ...], value: Any, _: str = "") -> Any:
        """A hashable description; each object is described once."""
        seen, arrays = known
        if id(value) in seen:
            return "same as", seen[id(value)]
        seen[id(value)] = len(seen)
        if isinstance(value, Module):
            return self._fields(known, value)
        if isinstance(value, Variable):
            place = self._index[value.scope]
            return Variable, place, value.collection, value.name, value.unbox
        arrays[id(value)] = value
        return "array"

    def _fields(self, known: tuple[Any, ...], module: Module) -> Any:
        attributes, state = module.__dict__, module._state
        described = functools.partial(self._described, known)
        fields = []
        for name in state.base:
            if name in ("parent", "name"):
                continue
            field = replace(attributes[name], (*_LIVE, *_ARRAYS), described)
            fields.append(StaticAttribute(name, field))
            try:
                hash(fields[-1])
            except TypeError as error:
                path = "unbound" if module.scope is None else module.scope.path_text
                raise TypeError(
                    f'Field "{name}" of {type(module).__name__} at path "{path}" is '
                    f"a {type(attributes[name]).__name__}, which can be neither hashed "
                    "nor compared by its content. A lifted jit is compiled once per "
                    "configuration; use hashable fields."
                ) from error
        place = None if module.scope is None else self._index.get(module.scope)
        return type(module), tuple(fields), place, state.in_compact
