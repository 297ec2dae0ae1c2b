"""What all functions share that are jitted from one, in one way."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from typing import Any, Self

import jax

from graphcore.authors import (
    UNSET,
    Bodies,
    Callee,
    Inside,
    captured_objects,
    has_objects,
    plain_settings,
)
from nnx_transforms.arguments import signature_of
from nnx_transforms.sharding.in_modules import shardings_apart
from nnx_transforms.sharding.shardings import rules_in_force
from nnx_transforms.transforms.compiled.explain_recompile import Explanation, Signature
from nnx_transforms.transforms.compiled.jit_body import Options

MAX_STRUCTURES = 1024
"""How many structures one function keeps compiled functions for."""
_CHOSEN = "static_argnums", "static_argnames", "donate_argnums", "donate_argnames"


class JitBodies(Bodies):
    """The compiled forms of a function, for one set of arguments of `jit`.

    Args:
        f: The function.
        arguments: The arguments of `jit`.

    Attributes:
        options: What `jit` was told.
    """

    _plain: Any = None

    def __init__(self, f: Callable[..., Any], arguments: dict[str, Any]) -> None:
        super().__init__(MAX_STRUCTURES)
        self._arguments, self.options = arguments, Options(f, arguments)
        self._by_rules: dict[str, Bodies] = {}

    @classmethod
    def of_jitted(cls, f: Any, callee: Callee, arguments: dict[str, Any]) -> Self:
        """Finds or makes those of a function.

        Args:
            f: The function.
            callee: The same, taken apart.
            arguments: The arguments of `jit`.

        Returns:
            Those that are kept with the function; or new ones, if it may hide objects
            in another trace, or captures them, or an argument is not hashable.
        """
        kept, function = None, callee.function
        if callee.lasts and (callee.bound or not callee.hides):
            if not captured_objects(function):
                key = len(callee.bound), arguments
                kept = cls.of(function, key, lambda: cls(f, arguments))
        return cls(f, arguments) if kept is None else kept

    def current(self) -> Bodies:
        """Where compiled forms are kept: constraints follow the rules in force."""
        if not self.options.constrain_state:
            return self
        kept, made = self._by_rules, Bodies(MAX_STRUCTURES)
        if len(kept) >= MAX_STRUCTURES:
            kept.clear()
        made.are_with_function = self.are_with_function
        return kept.setdefault(rules_in_force(), made)

    def clear(self, why: Explanation | None = None) -> None:
        """Forgets everything that was compiled.

        Args:
            why: What it is compiled anew for.
        """
        super().clear()
        self._by_rules.clear()
        self.options.notes.clear(why)

    def plain_of(self, f: Any, callee: Callee) -> Any:
        """The function for calls without objects, compiled."""
        if callee.hides or not self.are_with_function:
            return self._jit_plain(lambda: f)
        if self._plain is None:
            self._plain = self._jit_plain(weakref.ref(f))
        return self._plain

    def _jit_plain(self, function: Any) -> Any:
        arguments, options = self._arguments, self.options
        chosen = {k: v for k in _CHOSEN if (v := arguments[k]) is not None}
        passed_on = {**options.passed_on, **chosen}
        if options.in_shardings is not None:
            passed_on["in_shardings"] = _jax_shardings(options.in_shardings)
        if options.out_shardings is not None:
            given = _jax_shardings(options.out_shardings)
            whole = given if _is_for_all(options) else None
            passed_on["out_shardings"] = whole, given, None
        return jax.jit(_Plain(function, options), **passed_on)


class MakesObjects(Exception):
    """Raised while tracing: shardings are for objects that the function returns."""


class _Plain:
    """The function for calls without objects: JAX's own, but for its output.

    JAX gets the user's own arguments, which its messages are about.

    Args:
        function: Returns the function.
        options: What `jit` was told; its notes are, whenever the function is traced.
    """

    def __init__(
        self, function: Callable[[], Callable[..., Any]], options: Options
    ) -> None:
        self.__name__ = self.__qualname__ = Callee(function()).name
        self._given = function, options

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        return self._given[0]()

    @property
    def __signature__(self) -> inspect.Signature:
        # For JAX, which would ask what the names in annotations stand for.
        if (found := signature_of(self.__wrapped__)) is None:
            raise AttributeError("__signature__")
        return found

    def __repr__(self) -> str:
        return repr(self.__wrapped__)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        function, options = self._given
        options.notes.take(Signature.of(None, (args, kwargs), {}))
        out = function()(*args, **kwargs)
        is_placed = options.out_settings is UNSET or _is_for_all(options)
        if not is_placed and has_objects(out):
            options.notes.take_back()
            options.places_objects = True
            raise MakesObjects
        left = Inside.empty().leave(out)
        left.check_output(self.__name__)
        return [left.values()], left.out, left.change


def _is_for_all(options: Options) -> bool:
    """Whether one sharding is for all of the output, objects included."""
    return isinstance(options.out_shardings, jax.sharding.Sharding)


def _jax_shardings(prefix: Any) -> Any:
    # None for objects, and modules of shardings as those of arrays.
    return shardings_apart(plain_settings(prefix))
