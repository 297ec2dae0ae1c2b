"""Where bodies are kept: with their functions, which they hold weakly.

What is kept refers to the static values of objects, and these may lead back to the
function: a model often holds what a transformation made of a function of its own. So
it is kept in an attribute of the function, where Python has them. Then the garbage
collector sees that cycle, as it would not from a registry.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable
from typing import Any, ClassVar, Self

import jax

from graphcore.boundary.callees import lifted_call
from graphcore.boundary.settings import prefix_key

__all__ = ["Bodies"]

# How many structures of its arguments one function keeps bodies for.
MAX_STRUCTURES = 64
# Functions with attributes that nobody else looks at, beside those of transformations.
_WITH_ATTRIBUTES = (types.FunctionType, functools.partial, type(jax.jit(abs)))


class Bodies:
    """The bodies of one function, by structure.

    Args:
        limit: How many to keep; the oldest goes first.

    Attributes:
        contexts: What transformations look at while a function is traced, beyond its
            arguments and JAX's configuration: functions that return something
            hashable. Where one returns something else, other bodies are kept.
        known: The bodies.
        last: The one that was asked for last: most calls are like the one before.
        are_with_function: Whether they are kept with the function, and hold it weakly.

    Example:
        >>> import graphcore as gc
        >>> from graphcore.authors import Bodies, enter
        >>> kept, n = Bodies(8), gc.Variable(1)
        >>> one, two = (enter(abs, (n,), cache=kept).body for _ in range(2))
        >>> one is two, len(kept.known)
        (True, 1)
    """

    contexts: ClassVar[list[Callable[[], Any]]] = []
    are_with_function = False

    def __init__(self, limit: int = MAX_STRUCTURES) -> None:
        self._limit = limit
        self.known: dict[Any, Any] = {}
        self.last: Any = None

    @classmethod
    def of(
        cls,
        function: Callable[..., Any],
        key: Any = None,
        make: Callable[[], Self] | None = None,
    ) -> Self | None:
        """Those that are kept with a function, for as long as that lives.

        Args:
            function: The function.
            key: What the transformation was told, any pytree: if that differs, the
                bodies are others.
            make: Makes them at first.

        Returns:
            The bodies; None if nothing can be kept with the function, or a leaf of
            `key` is not hashable.

        Example:
            >>> from graphcore.authors import Bodies
            >>> def double(n): n.value *= 2
            >>> Bodies.of(double, "a") is Bodies.of(double, "a")
            True
        """
        kept = _kept_with(function)
        if kept is None:
            return None
        try:
            key = cls, prefix_key(key), *[look() for look in cls.contexts]
            found = kept.get(key)
        except (TypeError, ValueError):
            return None
        if found is None:
            made = (make or cls)()
            made.are_with_function = True
            make_room(kept, MAX_STRUCTURES)
            found = kept.setdefault(key, made)
        return found  # type: ignore[no-any-return]

    def keep(self, key: Any, body: Any) -> Any:
        """Keeps a body, unless another thread has kept one meanwhile."""
        make_room(self.known, self._limit)
        self.last = self.known.setdefault(key, body)
        return self.last

    def clear(self) -> None:
        """Forgets all of them."""
        self.known.clear()
        self.last = None


def make_room(kept: dict[Any, Any], limit: int) -> None:
    """Lets go of the oldest entry if there are as many as there may be."""
    if len(kept) >= limit:
        # By a list, made at once: other threads may be keeping something as well.
        for oldest in [*kept][:1]:
            kept.pop(oldest, None)


class Kept(dict[Any, Any]):
    """What is kept with a function, by key.

    Args:
        function: The function.
        *removed: Called when the function goes.
    """

    def __init__(self, function: Any, *removed: Any) -> None:
        super().__init__()
        self._function = weakref.ref(function, *removed)
        self._code = getattr(function, "__code__", None)

    def is_of(self, function: Any) -> bool:
        """Whether it is this function's, as it is now: wrappers have attributes copied,
        and code can be replaced in place.
        """
        code = getattr(function, "__code__", None)
        return self._function() is function and self._code is code

    def __reduce__(self) -> Any:
        return Kept, (Kept,)  # In a pickle it is nobody's.


# What is kept with callables of which others may look at the attributes, by id; removed
# when they go.
_others: dict[int, Any] = {}


def _kept_with(function: Any) -> Kept | None:
    home: dict[Any, Any] = _others
    name: Any = id(function)
    # Without a function of Python's, since many come and go.
    removed: tuple[Any, ...] = (functools.partial(_others.pop, name),)
    if type(function) in _WITH_ATTRIBUTES or lifted_call(function) is not None:
        home, name, removed = vars(function), "_kept_bodies", ()
    found: Kept | None = home.get(name)
    if found is not None and not found.is_of(function):
        home.pop(name, None)
        found = None
    if found is None:
        try:
            found = home.setdefault(name, Kept(function, *removed))
        except TypeError:  # No weak reference to it can be made.
            return None
    return found
