"""Where live objects enter a pure function, and what it did to them comes back.

`enter` takes the objects out of the arguments of a call, and finds the `Body` for
their structure; JAX runs that on `Entry.values`; and `Entry.commit` brings what came
out to the caller's own objects. Nothing of the caller's is touched before, so an error
anywhere leaves it as it was.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Any

import jax

from graphcore.boundary.body import Body, Structure
from graphcore.boundary.callees import Callee
from graphcore.boundary.captures import captured_objects
from graphcore.boundary.change import Change, publish
from graphcore.boundary.places import (
    Direct,
    Place,
    Places,
    is_object,
    key_path,
    separate,
)
from graphcore.boundary.settings import (
    UNSET,
    Settings,
    check_mappings,
    lasts,
    plain_settings,
    prefix_key,
    setting_of,
    settings_of_leaves,
)
from graphcore.build import set_values
from graphcore.content import static_key
from graphcore.joint import Joint, joint_of
from graphcore.plans import Plan, check_traces
from graphcore.prefixes import AliasCheck
from graphcore.trails import Path

NOTHING: Mapping[Any, Any] = MappingProxyType({})
MAX_STRUCTURES = 64
"""How many structures of its arguments one function keeps bodies for."""


class Entry:
    """A call whose objects were taken apart; see `enter`.

    Attributes:
        body: The function as a pure one.
        bodies: One for each function, if there were several.
        roots: The objects.
        variables: Their variables, in order of index.
        raw: The raw values of these.
        args: The other arguments, None in the place of objects.
        kwargs: Likewise.
    """

    __slots__ = (
        *("all_owned", "args", "bodies", "body", "joint", "kwargs", "plans", "raw"),
        *("_out_settings", "_settings", "roots", "variables"),
    )

    def __init__(
        self,
        roots: list[Any],
        joint: Joint,
        plans: list[Plan],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        settings: Any,
        out_settings: Any,
    ) -> None:
        self.roots = roots
        self.joint = joint
        self.plans = plans
        self.variables, self.raw, self.all_owned = joint.read(plans)
        self.args = args
        self.kwargs = kwargs
        self._settings = settings
        self._out_settings = out_settings
        self.bodies: Sequence[Any] = ()
        self.body: Any = None

    @property
    def values(self) -> tuple[list[list[Any]], tuple[Any, ...], dict[str, Any]]:
        """What to run the body on: values, one list a setting, and other arguments."""
        return self.body.grouped(self.raw), self.args, self.kwargs

    @property
    def settings(self) -> tuple[list[Any], Any, Any]:
        """The setting of each list of values, and tree prefixes of the rest."""
        of_args, of_kwargs = self._settings
        return [*self.body.groups], plain_settings(of_args), plain_settings(of_kwargs)

    @property
    def out_settings(self) -> tuple[list[Any], Any, None]:
        """The same for what the body returns."""
        return [*self.body.groups], plain_settings(self._out_settings), None

    def commit(self, groups: Sequence[Sequence[Any]], out: Any, change: Change) -> Any:
        """Brings what a function did to the caller's objects: all of it, or nothing.

        Args:
            groups: The written values, one list a setting.
            out: The output with None in the place of objects.
            change: What became of the structure.

        Returns:
            The output with objects: the caller's own where it had them.

        Raises:
            ValueError: If a foreign type refuses.
        """
        values = groups[0] if len(groups) == 1 else [*chain.from_iterable(groups)]
        if not change.is_in_place:
            return publish(self.roots, self.joint, self.plans, change, values, out)
        if values:
            variables = self.variables
            if not change.is_in_order:
                variables = [variables[p] for p in change.positions]  # type: ignore[index]
            set_values(variables, values, self.all_owned)
        return out

    def discard(self, groups: Sequence[Sequence[Any]], out: Any, change: Change) -> Any:
        """Puts the output together without touching the caller's objects.

        Args:
            groups: The written values, one list a setting.
            out: The output with None in the place of objects.
            change: What became of the structure.

        Returns:
            The output with objects: the caller's own, as they are, where it had them.
        """
        values = [*chain.from_iterable(groups)]
        return publish(
            self.roots, self.joint, self.plans, change, values, out, write=False
        )


def enter(
    f: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] = NOTHING,
    *,
    settings: Any = UNSET,
    kwargs_settings: Any = None,
    bound_setting: Any = None,
    out_settings: Any = UNSET,
    statics: Mapping[Place, Any] = NOTHING,
    make: Callable[..., Any] = Body,
    options: Any = (),
    cache: dict[Any, Any] | None = None,
) -> Entry:
    """Takes a call of a function of live objects apart.

    The same structure of the arguments, function, settings, static arguments and
    options give the same body as long as the function lives. The function is held
    weakly by it. If that can't be, or the function can be seen to close over objects,
    which it must read anew, so is the body.

    Args:
        f: The function; or a tuple of functions of the same arguments.
        args: The positional arguments of the call: any pytrees, with graph nodes and
            variables among their leaves.
        kwargs: The keyword arguments.
        settings: A tree prefix of `args`: one setting for all, or a tuple with one
            for each. For an object it may be a `PrefixMapping`.
        kwargs_settings: A tree prefix of `kwargs`.
        bound_setting: The setting of an object that the function is bound to. If it
            is an argument as well, the two must agree; without one, the argument's
            counts.
        out_settings: A tree prefix of the output.
        statics: Static arguments by position or name. They are not in `args` and
            `kwargs`, or None there.
        make: Makes the body: `Body`, or a subclass of it.
        options: Something hashable that the body depends on; `body.options`.
        cache: Where to keep bodies, if not with the function.

    Returns:
        The entry, with `body`, `values`, `settings`, `out_settings` and `commit`.

    Raises:
        ValueError: If an object can't be flattened, belongs to another trace, or is
            reached under different settings; with the paths.

    Example:
        >>> import graphcore as gc, jax, jax.numpy as jnp
        >>> from graphcore.authors import enter, lifted
        >>> def vmap(f, in_axes=0, out_axes=0):
        ...     @lifted(f)
        ...     def call(f, *args):
        ...         entry = enter(f, args, settings=in_axes, out_settings=out_axes)
        ...         in_axes_, out_axes_ = entry.settings, entry.out_settings
        ...         out = jax.vmap(entry.body, in_axes_, out_axes_)(*entry.values)
        ...         return entry.commit(*out)
        ...     return call
        >>> total = gc.Variable(jnp.zeros(3))
        >>> def add(total, x): total.value += x; return -x
        >>> vmap(add)(total, jnp.arange(3.0)).tolist(), total.value.tolist()
        ([-0.0, -1.0, -2.0], [0.0, 1.0, 2.0])
    """
    functions = f if type(f) is tuple else (f,)
    callees = [g if type(g) is Callee else Callee(g) for g in functions]
    plain, named, places, roots = separate(args, dict(kwargs))
    bounds = [tuple([_number(x, roots) for x in callee.bound]) for callee in callees]
    joint, plans = joint_of(roots)
    check_traces(plans)
    has_settings = settings is not UNSET
    if has_settings:
        settings = _per_argument(settings, args)
    entry = Entry(
        roots,
        joint,
        plans,
        tuple(plain),
        named,
        (settings, kwargs_settings),
        out_settings,
    )
    resolved: Settings | None = None
    hidden = {n for bound in bounds for n in bound}, bound_setting
    key: Any = joint.definitions, places, make, options
    if statics:
        key += (tuple([(k, static_key(v)) for k, v in statics.items()]),)
    if has_settings or out_settings is not UNSET:
        prefixes = settings, kwargs_settings, out_settings, bound_setting
        key += (*map(prefix_key, prefixes),)
        if not all(map(lasts, prefixes)):
            resolved = _resolve(entry, places, args, kwargs, hidden)
            key += (resolved.roots, resolved.variables)
    bodies: list[Any] = []
    for callee, bound in zip(callees, bounds, strict=True):
        known = cache
        if known is None:
            known = _bodies_of(callee.function)
        body = None
        full = (key, bound) if cache is None else (key, bound, callee.function)
        if known is not None:
            try:
                body = known.get(full)
            except TypeError:  # something static is not hashable
                if cache is not None:
                    raise
                known = None
        if body is None:
            if resolved is None:
                resolved = _resolve(entry, places, args, kwargs, hidden)
            structure = Structure(
                joint,
                places,
                bound,
                _first_places(places, roots, args, kwargs),
                resolved,
                statics,
            )
            reference = _reference(callee.function, known is not None and cache is None)
            body = make(callee, structure, options, reference)
            body.key = full
            if known is not None:
                body = _keep(known, full, body)
        bodies.append(body)
    entry.bodies, entry.body = bodies, bodies[0]
    return entry


def _number(x: Any, roots: list[Any]) -> int:
    """The number of a root, which is one from now on."""
    for number, root in enumerate(roots):
        if root is x:
            return number
    roots.append(x)
    return len(roots) - 1


def _per_argument(settings: Any, args: Sequence[Any]) -> Any:
    return settings if isinstance(settings, tuple) else (settings,) * len(args)


def _resolve(
    entry: Entry,
    places: Direct | Places,
    args: Sequence[Any],
    kwargs: Any,
    hidden: tuple[set[int], Any],
) -> Settings:
    """Finds the setting of each root and variable, and checks that all agree."""
    roots, joint = entry.roots, entry.joint
    of_args, of_kwargs = entry._settings
    count = len(joint.variable_definitions)
    out = entry._out_settings
    if of_args is UNSET:
        return Settings((UNSET,) * len(roots), (UNSET,) * count, out)
    tree = (tuple(args), dict(kwargs))
    prefix = (of_args, of_kwargs)
    check_mappings(of_args, tree[0], "argument ")
    aliases = AliasCheck()
    # What a function is bound to is treated as what it closes over.
    bound, bound_setting = hidden
    of_roots: list[Any] = [bound_setting] * len(roots)
    found = [False] * len(roots)
    leaves = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_object)[0]
    for (path, x), setting in zip(
        leaves, settings_of_leaves(prefix, tree), strict=True
    ):
        if is_object(x):
            aliases.add(key_path(path)[1:], x, setting)
            number = _number(x, roots)
            if not found[number]:
                of_roots[number], found[number] = setting, True
    for number, (x, is_argument) in enumerate(zip(roots, found, strict=True)):
        if not is_argument or (bound_setting is not None and number in bound):
            aliases.add(("self",), x, bound_setting)
    variables = tuple(
        setting_of(of_roots[number], tuple(path), variable)
        for (number, *path), variable in zip(joint.paths, entry.variables, strict=True)
    )
    return Settings(tuple(of_roots), variables, out)


def _first_places(
    places: Direct | Places, roots: Sequence[Any], args: Sequence[Any], kwargs: Any
) -> tuple[Path, ...]:
    found: list[Path] = [("self",)] * len(roots)
    tree = (tuple(args), dict(kwargs))
    leaves = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_object)[0]
    for path, x in reversed(leaves):
        if is_object(x):
            found[_number(x, [*roots])] = key_path(path)[1:]
    return tuple(found)


# For each function its bodies, by structure. Functions are found by their id, and
# removed when they go.
_bodies: dict[int, tuple[Any, dict[Any, Any]]] = {}


def _bodies_of(function: Callable[..., Any]) -> dict[Any, Any] | None:
    if captured_objects(function):
        return None
    number = id(function)
    found = _bodies.get(number)
    if found is None:
        try:
            # Without a function of Python's, since many come and go.
            alive = weakref.ref(function, functools.partial(_bodies.pop, number))
        except TypeError:  # No weak reference to it can be made.
            return None
        found = _bodies.setdefault(number, (alive, {}))
    return found[1]


def _keep(known: dict[Any, Any], key: Any, body: Any) -> Any:
    if len(known) >= MAX_STRUCTURES:
        known.pop(next(iter(known)), None)
    return known.setdefault(key, body)


def _reference(function: Callable[..., Any], weakly: bool) -> Callable[[], Any]:
    return weakref.ref(function) if weakly else lambda: function
