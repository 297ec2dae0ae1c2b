"""Modules on their way through a transform.

A lifted transform works on scopes. A `Frame` finds the modules and variables that take
part in a call (the module itself, those in its fields, those in the arguments), lists
their scopes, and inside the transform makes clones of them that live in the inner
scopes. Each object has one place in the frame, by which all that holds it refers to it:
so aliases stay aliases, and equal frames are told by what is at their places.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from graphcore import Static, StaticAttribute

from ..errors import CallCompactUnboundModuleError, TransformTargetError
from ..module.base import Module
from ..module.containers import own_names, replace
from ..module.module_base import State
from ..scope import Scope, Variable

_LIVE = (Module, Variable)
_ARRAYS = (jax.Array, np.ndarray)


@jax.tree_util.register_static
class _Slot(Static[int]):
    """The place of a module or variable in a frame: a pytree without leaves."""


def without_modules(cotangents: Any) -> Any:
    """Cotangents with None in the places of modules and variables, which have none.

    Args:
        cotangents: of arguments of a frame.
    """
    return jax.tree.map(
        lambda x: None if isinstance(x, _Slot) else x,
        cotangents,
        is_leaf=lambda x: isinstance(x, _Slot),
    )


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
        self._module = module
        self._inside = inside or type(module)
        self._index: dict[Scope, int] = {}
        # All modules and variables, each after those in its fields; and these fields,
        # with slots for them.
        self._live: list[tuple[Any, dict[str, Any]]] = []
        self._slots: dict[int, _Slot] = {}
        self.args, self.kwargs = replace((args, kwargs), _LIVE, self._slot)
        self._place = self._slot(module).value
        self.scopes = list(self._index)

    def _slot(self, live: Any, _: str = "") -> _Slot:
        known = self._slots.get(id(live))
        if known is not None:
            return known
        fields = {}
        if isinstance(live, Module):
            state, scope = live._module__state, live.scope
            for name in own_names(live):
                if name not in ("parent", "name"):
                    fields[name] = replace(live.__dict__[name], _LIVE, self._slot)
            runs = state.in_compact or state.in_setup or state.shares_scope
            if scope is not None and not runs:
                # Left from an earlier call; the next one starts without them.
                scope._free()
        else:
            scope = live.scope
        if scope is not None:
            self._index.setdefault(scope, len(self._index))
        slot = self._slots[id(live)] = _Slot(len(self._live))
        self._live.append((live, fields))
        return slot

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
        clones: list[Any] = []

        def fill(x: Any, _: str) -> Any:
            return clones[x.value] if isinstance(x, _Slot) else arrays.get(id(x), x)

        wanted = (_Slot, *_ARRAYS) if arrays else (_Slot,)
        for live, fields in self._live:
            filled = {name: replace(x, wanted, fill) for name, x in fields.items()}
            if live.scope is not None:
                live = self._clone(live, filled, scopes, parted)
            clones.append(live)
        args, kwargs = replace((list(args), dict(kwargs)), (_Slot,), fill)
        return clones[self._place], args, kwargs

    def _clone(
        self, live: Any, fields: Any, scopes: Sequence[Scope], parted: bool
    ) -> Any:
        scope = scopes[self._index[live.scope]]
        if isinstance(live, Variable):
            return Variable(scope, live.collection, live.name, live.unbox)
        cls = self._inside if live is self._module else type(live)
        clone: Any = object.__new__(cls)
        outer = live.__dict__
        state = outer["_module__state"]
        new = State(
            own_names(live),
            (),
            in_compact=state.in_compact,
            in_setup=state.in_setup,
            # Running setup does not run once more.
            setup_done=state.in_setup,
            auto_named=state.auto_named,
        )
        # The name may have been given after the fields.
        place = {"parent": None if parted else outer["parent"], "name": outer["name"]}
        clone.__dict__.update(
            {**fields, **place, "_module__state": new, "scope": scope}
        )
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
            A hashable value, and the arrays in fields by identity.

        Raises:
            TypeError: if a field is neither an array nor hashable.
        """
        arrays: dict[int, Any] = {}

        def noted(array: Any, _: str) -> Any:
            arrays[id(array)] = array
            return Static([*arrays].index(id(array)))

        described = []
        for live, fields in self._live:
            place = None if live.scope is None else self._index[live.scope]
            if isinstance(live, Variable):
                about: Any = live.collection, live.name, live.unbox
            else:
                pairs = (
                    (name, replace(x, _ARRAYS, noted)) for name, x in fields.items()
                )
                # The name of a module that has no place yet is what it will have there.
                name = live.name if live.scope is None else None
                state = live._module__state
                running = state.in_compact, state.in_setup
                about = running, name, _hashable(live, pairs)
            described.append((type(live), place, about))
        return (tuple(described), self._place), arrays


def _hashable(module: Module, fields: Iterable[tuple[str, Any]]) -> tuple[Any, ...]:
    attributes = [StaticAttribute(name, value) for name, value in fields]
    for each in attributes:
        try:
            hash(each)
        except TypeError as error:
            path = "unbound" if module.scope is None else module.scope.path_text
            found = type(module.__dict__[each.key]).__name__
            raise TypeError(
                f'Field "{each.key}" of {type(module).__name__} at path "{path}" is '
                f"a {found}, which can be neither hashed nor compared by its content. "
                "A lifted jit is compiled once per configuration; use hashable fields."
            ) from error
    return tuple(attributes)
