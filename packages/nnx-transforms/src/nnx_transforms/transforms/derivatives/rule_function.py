"""Functions of live objects that have derivative rules of their own."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, Generic, Self, overload

from graphcore import api_boundary
from graphcore.authors import (
    Callee,
    enter,
    has_objects,
    is_object,
    mark_lifted,
    take_objects,
)
from nnx_transforms.prefixes import DiffState
from nnx_transforms.transforms.derivatives.rule_arguments import (
    bind_positions,
    nondiff_arguments,
)
from nnx_transforms.transforms.derivatives.rule_call import RuleCall
from nnx_transforms.transforms.types import P, R, Rest


class RuleFunction(Generic[P, R]):
    """A function with a derivative of its own.

    Args:
        fun: The function.
        nondiff_argnums: Positions of arguments that are not differentiated, and
            `DiffState`s for those of which a part is.
        nondiff_argnames: Names of arguments that are not differentiated.
    """

    __name__: str
    __wrapped__: Callable[P, R]
    # The rules that run on the objects of the call, as the function does; None before
    # they are defined. And how users define them.
    _rules: tuple[Callable[..., Any], ...] | None = None
    _defined_by = ""
    _as_objects = False

    def __init__(
        self,
        fun: Callable[P, R],
        nondiff_argnums: int | DiffState | Sequence[int | DiffState] = (),
        nondiff_argnames: Sequence[str] = (),
    ) -> None:
        # A callable object keeps its attributes for itself.
        is_function = isinstance(fun, types.FunctionType)
        updated = functools.WRAPPER_UPDATES if is_function else ()
        functools.update_wrapper(self, fun, updated=updated)
        self._name = Callee(fun).name
        self._nondiff, self._filters = nondiff_arguments(
            fun, self._name, nondiff_argnums, nondiff_argnames
        )
        me = mark_lifted(self, lambda f, /, *args, **kwargs: me()._on(f, args, kwargs))

    @overload
    def __get__(self, instance: None, owner: Any = None) -> Self: ...
    @overload
    def __get__(
        self: Callable[Concatenate[Any, Rest], R],
        instance: object,
        owner: Any = None,
    ) -> Callable[Rest, R]: ...
    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    @api_boundary
    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls the function.

        Args:
            *args: Its arguments: any pytrees with objects in them.
            **kwargs: Likewise, resolved to positions.

        Returns:
            What it returns.

        Raises:
            AttributeError: If no rule was defined.
            TypeError: If an argument that is not differentiated holds a graph node.
        """
        return self._on(self.__wrapped__, args, kwargs)  # type: ignore[no-any-return]

    def _define(self, call: RuleCall, fun: Any, *rules: Any) -> Callable[..., Any]:
        """Makes JAX's function with rules; it must not refer to objects."""
        raise NotImplementedError

    def _on(self, fun: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        name = self._name
        if self._rules is None:
            raise AttributeError(
                f"The function {name!r} has no derivative rule: define it with "
                f"`{name}.{self._defined_by}` before the function is called."
            )
        functions = [fun]
        rule: Any
        for rule in self._rules:
            # Where another transformation put an inner object in the place of the one
            # that the function is bound to, its rules are bound to that as well.
            outer = getattr(self.__wrapped__, "__self__", None)
            if is_object(outer) and getattr(rule, "__self__", None) is outer:
                rule = types.MethodType(rule.__func__, fun.__self__)
            functions.append(rule)
        args, names = bind_positions(fun, args, kwargs)
        chosen = {n: n for n in self._nondiff} | self._filters
        for position, entry in chosen.items():
            if position >= len(args):
                raise IndexError(
                    f"nondiff_argnums of {name!r} names argument {position}, as "
                    f"{entry!r}, but the call has {len(args)} arguments."
                )
        passed = [n for n in self._nondiff if self._as_objects and has_objects(args[n])]
        nondiff = [n for n in self._nondiff if n not in passed]
        for position in nondiff:
            _refuse_objects(args[position], f"{names[position]} of {name!r}")

        def selects(argnum: int, path: Any, variable: Any) -> bool:
            by = self._filters.get(argnum)
            chosen = by is None or bool(by.predicate(path, variable))
            return chosen and argnum not in passed

        callees = tuple(map(Callee, functions))
        entered = enter(callees, args)
        how = nondiff, passed, self._as_objects
        call = RuleCall(name, callees, entered, args, names, selects, *how)
        pure = call.pure_args(entered, args)
        values, out = self._define(call, fun, *self._rules)(*pure)
        return entered.commit([values], out, call.change)


def _refuse_objects(x: Any, where: str) -> None:
    for found in take_objects(x)[2][:1]:
        raise TypeError(
            f"{where} holds a {type(found).__name__}, but an integer in "
            "nondiff_argnums must not name an argument with graph nodes: leave the "
            "integer out, and give no tangent for it. In `custom_vjp`, "
            "`DiffState(argnum, filter)` says what is differentiable in it."
        )
