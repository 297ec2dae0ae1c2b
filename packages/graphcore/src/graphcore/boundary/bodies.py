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
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, Self

import jax

from graphcore._jax import current_trace
from graphcore.boundary.callees import lifted_call
from graphcore.boundary.places import (
    Direct,
    Places,
    contents,
    spots_of,
    take_from,
    types_of,
    with_names,
)
from graphcore.boundary.settings import prefix_key
from graphcore.cache.plans import kept_plan
from graphcore.content import is_immutable, static_key
from graphcore.graphdef.joint import joint_of
from graphcore.nodes.owned import OwnedNode, get_plan

__all__ = ["Bodies"]

# How many structures of its arguments one function keeps bodies for.
MAX_STRUCTURES = 1024
# How many transformations of one function, each told something else, have bodies.
_MAX_TOLD = 64
# Functions with attributes that nobody else looks at, beside those of transformations.
_WITH_ATTRIBUTES = (types.FunctionType, functools.partial, type(jax.jit(abs)))


class Warm(NamedTuple):
    """A call that the next ones are likely to be like; it refers to no object.

    Args:
        types: What tells the types of its arguments.
        statics: Its static arguments: for each the place, the value, which never
            changes, and its `static_key`.
        containers: The places of arguments that may hold objects, though none did.
        places: Where the objects are.
        only: The position of the only one, if that is an argument itself; else None.
        plan_kept_with: Gives the plan that is kept with that one.
        layout: The layout of the objects.
        body: The body.
    """

    types: tuple[Any, ...]
    statics: Sequence[tuple[Any, Any, Any]]
    containers: tuple[Any, ...]
    places: Direct | Places
    only: int | None
    plan_kept_with: Callable[[Any], Any]
    layout: Any
    body: Any


class Bodies:
    """The bodies of one function, by structure.

    Args:
        limit: How many to keep; the oldest goes first.

    Attributes:
        contexts: What transformations look at while a function is traced, beyond its
            arguments and JAX's configuration: functions that return something
            hashable. `of` asks them: where one returns something else, other bodies
            are kept.
        known: The bodies.
        last: The one that was asked for last: most calls are like the one before.
        warm: What `recall` compares calls with; None for nothing.
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
        self.warm: Warm | None = None

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
            make_room(kept, _MAX_TOLD)
            found = kept.setdefault(key, made)
        return found  # type: ignore[no-any-return]

    def keep(self, key: Any, body: Any) -> Any:
        """Keeps a body, unless another thread has kept one meanwhile."""
        make_room(self.known, self._limit)
        self.warm = None  # It may be a call of the one that had to go.
        self.last = self.known.setdefault(key, body)
        return self.last

    def clear(self) -> None:
        """Forgets all of them."""
        self.known.clear()
        self.last = self.warm = None

    def remember(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], body: Any
    ) -> None:
        """Lets `recall` know a call, if all of its objects are in its arguments.

        Args:
            args: Its positional arguments.
            kwargs: The others.
            body: Its body.
        """
        structure = body.structure
        places, only, plan_kept_with = structure.places, None, kept_plan
        # Those of this call: the body may have been made for equal ones.
        given = [
            kwargs[x] if isinstance(x, str) else args[x] for x in structure.statics
        ]
        if structure.bound or places.has_divided:
            return
        if not all(map(is_immutable, given)):
            return
        statics = (*zip(structure.statics, given, map(static_key, given), strict=True),)
        if type(places) is Direct and len({*places.numbers}) < len(places.numbers):
            return
        types = types_of(args, kwargs)
        containers = spots_of(*_without(statics, args, kwargs)).containers
        if type(places) is Places:
            containers = ()  # All are looked into.
        elif len(places.places) == 1 and type(places.places[0]) is int:
            (only,) = places.places
            if isinstance(args[only], OwnedNode):
                plan_kept_with = get_plan
        about = places, only, plan_kept_with, structure.joint.layout, body
        self.warm = Warm(types, statics, containers, *about)

    def recall(
        self, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> tuple[Any, ...] | None:
        """Takes a call apart, if nothing but values differs from the one remembered.

        Compiled functions ask this at each call, so it calls as few functions as can
        be. For all other calls there is `enter`.

        Args:
            args: Its positional arguments.
            kwargs: The others.

        Returns:
            The body, the objects, their variables, the raw values of these, and the
            arguments with None in the place of objects and as `enter` wants them where
            some are static; None if anything else differs, or may do so.
        """
        warm = self.warm
        if warm is None:
            return None
        types, statics, containers, places, only, plan_kept_with, layout, body = warm
        found = tuple([type(x) for x in args])
        if kwargs:
            found = with_names(found, kwargs)
        if found != types:
            return None
        if statics:
            for place, value, key in statics:
                given = kwargs[place] if isinstance(place, str) else args[place]
                if given is not value and static_key(given) != key:
                    return None
            args, kwargs = _without(statics, args, kwargs)
        for place in containers:
            if contents(kwargs[place] if isinstance(place, str) else args[place]):
                return None
        if only is None:
            (args, kwargs), now, roots = take_from(places, args, kwargs)
            if now is not places and now != places:
                return None
            joint, plans = joint_of(roots)
            if joint.layout is not layout:
                return None
            here = current_trace(), None
            if not all(plan.trace in here for plan in plans):
                return None
            variables = joint.variables(plans)
            return body, roots, variables, layout.values(variables), args, kwargs
        root = args[only]
        try:
            plan = plan_kept_with(root)
        except AttributeError:  # It has none yet.
            return None
        if (
            plan is None
            or plan.layout is not layout
            or not plan.holds(root)
            or plan.trace not in (current_trace(), None)
        ):
            return None
        variables = plan.variables
        if plan.all_owned:
            raw = [variable._raw_value for variable in variables]
        else:
            raw = layout.values(variables)
        args = [*args]
        args[only] = None
        return body, [root], variables, raw, args, kwargs


def _without(
    statics: Sequence[tuple[Any, Any, Any]],
    args: Sequence[Any],
    kwargs: dict[str, Any],
) -> tuple[Sequence[Any], dict[str, Any]]:
    """The arguments without static ones, of which those by position leave None."""
    rest, named = [*args], kwargs.copy()
    for place, _, _ in statics:
        if isinstance(place, str):
            del named[place]
        else:
            rest[place] = None
    return rest, named


def make_room(kept: dict[Any, Any], limit: int) -> None:
    """Lets go of the oldest entries if there are as many as there may be."""
    if len(kept) >= limit:
        # By a list, made at once: other threads may be keeping something as well. Two
        # of them may have found the same oldest one, so there may be some too many.
        known = [*kept]
        for oldest in known[: max(0, len(known) - limit + 1)]:
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
