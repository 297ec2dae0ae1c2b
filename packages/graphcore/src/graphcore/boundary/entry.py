"""Where live objects enter a pure function, and what it did to them comes back.

`enter` takes the objects out of the arguments of a call, and finds the `Body` for
their structure; JAX runs that on `Entry.values`; and `Entry.commit` brings what came
out to the caller's own objects. Nothing of the caller's is touched before, so an error
anywhere leaves it as it was.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import Any

import jax

from graphcore._jax import current_trace
from graphcore.boundary.bodies import Bodies
from graphcore.boundary.body import Body, Structure
from graphcore.boundary.callees import Callee
from graphcore.boundary.captures import captured_objects
from graphcore.boundary.change import Change
from graphcore.boundary.places import (
    Direct,
    Place,
    Places,
    contents,
    is_object,
    key_path,
    separate,
)
from graphcore.boundary.publishing import publish
from graphcore.boundary.settings import (
    Settings,
    check_mappings,
    is_mapping,
    lasts,
    plain_settings,
    prefix_key,
    prefix_leaves,
    settings_of_leaves,
    settings_within,
)
from graphcore.boundary.static_arguments import check_hashable, keys_of, with_room
from graphcore.cache.plans import Plan, check_writes
from graphcore.divided.divided import Divided
from graphcore.graphdef.joint import Joint, joint_of
from graphcore.prefixes import AliasCheck, setting_of
from graphcore.trails import Path
from graphcore.unset import UNSET

__all__ = ["Entry", "enter"]

NOTHING: Mapping[Any, Any] = MappingProxyType({})
NO_KWARGS: dict[str, Any] = {}  # goes to JAX as it is, and is never written


@dataclass(init=False, repr=False, eq=False, slots=True)
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

    Example:
        >>> import graphcore as gc
        >>> from graphcore.authors import enter
        >>> def count(n): n.value += 1; return n
        >>> n = gc.Variable(1)
        >>> entry = enter(count, (n,))
        >>> entry.values, entry.roots[0] is n
        (([[1]], (None,), {}), True)
        >>> entry.commit(*entry.body(*entry.values)) is n, n.value
        (True, 2)
    """

    roots: list[Any]
    joint: Joint
    plans: list[Plan]
    variables: list[Any]
    raw: list[Any]
    is_of_one_trace: bool
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    bodies: Sequence[Any]
    body: Any
    _settings: tuple[Any, Any, Any]
    _out_settings: Any

    @classmethod
    def recalled(
        cls,
        body: Any,
        roots: list[Any],
        variables: list[Any],
        raw: list[Any],
        args: list[Any],
        kwargs: dict[str, Any],
    ) -> Entry:
        """The entry of a call that `Bodies.recall` took apart.

        Args:
            body: What `recall` gave, as all that follows.
            roots: Likewise.
            variables: Likewise.
            raw: Likewise.
            args: Likewise.
            kwargs: Likewise.

        Returns:
            The same call as an entry.
        """
        entry: Entry = _new_entry(cls)
        entry.roots = roots
        # Its trace is the running one, so no plan need be asked about that.
        entry.joint, entry.plans = body.structure.joint, []
        entry.is_of_one_trace = True
        entry.variables, entry.raw, entry.body = variables, raw, body
        entry.args, entry.kwargs = tuple(args), kwargs
        return entry

    @property
    def values(self) -> tuple[list[list[Any]], tuple[Any, ...], dict[str, Any]]:
        """What to run the body on: values, one list a setting, and other arguments."""
        return self.body.grouped(self.raw), self.args, self.kwargs

    @property
    def has_objects(self) -> bool:
        """Whether there is anything that JAX can't be given as it is."""
        return bool(self.roots) or self.body.structure.places.has_divided

    @property
    def is_kept(self) -> bool:
        """Whether the bodies are the same next time.

        Those of a function that was seen to capture objects are not: it must read them
        anew, also without any among the arguments.
        """
        return all(body.key is not None for body in self.bodies)

    def divide(self) -> bool:
        """Divides the values of variables that JAX does not take as they are.

        Returns:
            Whether there were any.
        """
        raw = Divided.of_values(self.raw)
        is_new, self.raw = raw is not self.raw, raw
        return is_new

    @property
    def settings(self) -> tuple[list[Any], Any, Any]:
        """The setting of each list of values, and tree prefixes of the rest."""
        of_args, of_kwargs, _ = self._settings
        plain = plain_settings(of_args), plain_settings(of_kwargs)
        if self.body.structure.places.has_divided:
            plain = settings_within(plain, (self.args, self.kwargs))
        return [*self.body.groups], *plain

    @property
    def out_settings(self) -> tuple[list[Any], Any, None]:
        """As `settings`, for what the body returns: values, output and change."""
        return [*self.body.groups], plain_settings(self._out_settings), None

    @contextlib.contextmanager
    def blaming(self) -> Iterator[None]:
        """Says which variable holds what JAX does not take, if it refuses one.

        Raises:
            TypeError: With the path.
        """
        try:
            yield
        except Exception as error:
            self.body.blame(self.raw, error)
            raise

    def states(self, setting: Any, values: Sequence[Any]) -> list[Any]:
        """Shows values of the variables with one setting as states of the objects.

        Args:
            setting: The setting.
            values: One for each of these variables, such as its gradient, in the order
                in which `values` has them.

        Returns:
            One for each of `roots`: a `State` over those of its variables that have the
            setting, each where it is reached first; for a variable its
            `VariableState`; for an object of another library what stands for either.

        Raises:
            ValueError: If there are more or fewer values than variables with the
                setting.

        Example:
            >>> import graphcore as gc
            >>> from graphcore.authors import enter
            >>> entry = enter(len, ([gc.Dict(a=gc.Param(1), b=gc.Param(2))],))
            >>> entry.states(entry.body.groups[0], [10, 20])[0].b
            VariableState(Param, 20)
        """
        structure: Structure = self.body.structure
        settings = enumerate(structure.settings.variables)
        chosen = [place for place, each in settings if each == setting]
        if len(values) != len(chosen):
            raise ValueError(
                f"{len(chosen)} variables of {self.body.__name__!r} have the setting "
                f"{setting!r}, but there are {len(values)} values; the settings of "
                f"its variables are {self.body.groups}."
            )
        return structure.states(chosen, values)

    def commit(self, groups: Sequence[Sequence[Any]], out: Any, change: Change) -> Any:
        """Brings what a function did to the caller's objects: all of it, or nothing.

        Args:
            groups: The written values, one list a setting.
            out: The output with None in the place of objects.
            change: What became of the structure.

        Returns:
            The output with objects: the caller's own where it had them.

        Raises:
            ValueError: If there are not as many values as were written, or a foreign
                type refuses.
        """
        values = groups[0] if len(groups) == 1 else [*chain.from_iterable(groups)]
        if len(values) != len(change.positions):
            raise ValueError(
                f"The function {self.body.__name__!r} wrote or made "
                f"{len(change.positions)} variables, but there are {len(values)} "
                "values: pass on what the body returned, each list at its place."
            )
        if not self.body.is_compiled:
            values = change.without_literals(values)
        if not change.is_in_place:
            if not change.only_writes:
                return self._publish(change, values, out)
            values = change.joined(values, self.raw)
        if values:
            variables = self.variables
            if not self.is_of_one_trace:
                check_writes(self.plans, [variables[p] for p in change.positions])  # type: ignore[index]
            change.write(variables, values, self.joint.layout)
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
        values = change.without_literals([*chain.from_iterable(groups)])
        return self._publish(change, values, out, write=False)

    def _publish(self, *left: Any, write: bool = True) -> Any:
        known = self.roots, self.variables, self.joint, self.plans
        return publish(*known, *left, write=write, now=self.raw)


_new_entry = object.__new__


def enter(
    f: Any,
    args: Sequence[Any] = (),
    kwargs: dict[str, Any] = NO_KWARGS,
    *,
    settings: Any = UNSET,
    kwargs_settings: Any = None,
    bound_setting: Any = None,
    out_settings: Any = UNSET,
    statics: Mapping[Place, Any] = NOTHING,
    make: Any = Body,
    options: Any = (),
    cache: Bodies | None = None,
    only_with_objects: bool = False,
    divide: bool = True,
    only_read: bool = False,
) -> Any:
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
        statics: Static arguments by position, from the start, or name. In `args` is
            None in their place, or nothing behind the last other one; they are not in
            `kwargs`.
        make: Makes the body: `Body`, or a subclass of it; or a tuple of these, one for
            each function.
        options: Something hashable that the body depends on; `body.options`.
        cache: Where to keep bodies, if not with the function.
        only_with_objects: Whether calls without objects are left to the caller.
        divide: Whether to look for values that JAX does not take as they are; else
            the caller calls `entry.divide` where there are any.
        only_read: Whether the objects are looked at and not written: then they may
            belong to any trace.

    Returns:
        The entry, with `body`, `values`, `settings`, `out_settings` and `commit`; None
        for a call without objects that is left to the caller.

    Raises:
        ValueError: If an object can't be flattened, belongs to another trace, or is
            reached under different settings; with the paths. If a static argument
            has variables that outlive the running trace, or, for bodies that are kept
            in `cache`, is not hashable; or if `options` are not.
        TypeError: If `args` is no tuple or list, or something else that such bodies
            are found by is not hashable.

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
    if not isinstance(args, tuple | list):
        raise TypeError(
            f"enter takes the positional arguments as a tuple, got a "
            f"{type(args).__name__}: write `enter(f, (x,))`."
        )
    if statics:
        args = with_room(args, statics)
    if only_with_objects and cache is not None and cache.last is None and not kwargs:
        # A function that has had no objects yet: it takes less to see that again.
        if type(f) is Callee and not f.bound and not contents(args):
            return None
    plain, named, places, roots = separate(args, kwargs)
    if type(f) is not tuple:
        callee = f if type(f) is Callee else Callee(f)
        bound = callee.bound and _numbers(callee.bound, roots)
    else:
        callees = [g if type(g) is Callee else Callee(g) for g in f]
        bounds = [_numbers(callee.bound, roots) for callee in callees]
    if only_with_objects and not roots and not places.has_divided:
        return None
    joint, plans = joint_of(roots)
    # JAX runs what tells the shapes of a primitive under no trace at all.
    here = current_trace() if plans else None
    # Without a function around it: a compiled step makes one at each call.
    entry: Entry = _new_entry(Entry)
    entry.is_of_one_trace = True
    for plan in plans:
        if plan.trace is not here and plan.trace != here:
            if not only_read:
                plan.check_trace(here)
            entry.is_of_one_trace = False
    entry.roots, entry.joint, entry.plans = roots, joint, plans
    entry.args, entry.kwargs = tuple(plain), named
    entry.variables = joint.variables(plans)
    entry.raw = joint.layout.values(entry.variables)
    if divide:
        entry.divide()
    static = keys_of(statics) if statics else ()
    is_plain = settings is UNSET and out_settings is UNSET
    if is_plain and cache is not None and type(f) is not tuple:
        last = cache.last
        if last is not None:
            known = last.structure
            if (
                known.joint.layout is joint.layout
                and known.places is places
                and known.bound == bound
                and last.key[0] == static
            ):
                entry.body = last
                return entry
    entry._settings = settings, kwargs_settings, bound_setting
    entry._out_settings = out_settings
    if type(f) is not tuple:
        callees, bounds = [callee], [bound]
    makers = make if type(make) is tuple else (make,) * len(callees)
    tree = tuple(args), dict(kwargs)
    functions = [*zip(callees, bounds, makers, strict=True)]
    entry.bodies = _find_or_make(
        functions, entry, places, tree, statics, static, options, cache
    )
    entry.body = entry.bodies[0]
    return entry


def _find_or_make(
    functions: Sequence[tuple[Callee, tuple[int, ...], Any]],
    entry: Entry,
    places: Direct | Places,
    tree: tuple[tuple[Any, ...], dict[str, Any]],
    statics: Mapping[Place, Any],
    static: Any,
    options: Any,
    cache: Bodies | None,
) -> list[Any]:
    """The bodies of a call, found or made: one for each function."""
    hidden = [number for _, bound, _ in functions for number in bound]
    called = getattr(functions[0][2], "settings_called", Body.settings_called)[0]
    settings: Settings | None = None
    known: Any = entry.joint.definitions, places, options
    if entry._settings[0] is not UNSET or entry._out_settings is not UNSET:
        prefixes = *entry._settings, entry._out_settings
        known += (*map(prefix_key, prefixes),)
        if not all(map(lasts, prefixes)):
            settings = _resolve(entry, tree, hidden, called)
            known += settings.roots, settings.variables
    found: list[Any] = []
    for callee, bound, make in functions:
        function, bodies = callee.function, cache
        if cache is None and callee.lasts and not captured_objects(function):
            bodies = Bodies.of(function)
        # In a cache by id: the body holds the function, so no other has it meanwhile.
        key = static, known, bound, make, None if cache is None else id(function)
        try:
            body = None if bodies is None else bodies.known.get(key)
        except TypeError:  # something is not hashable
            check_hashable("options", options, callee.name)
            for setting in settings.variables if settings else ():
                check_hashable("setting", setting, callee.name)
            if cache is not None:
                for setting in prefix_leaves((*entry._settings, entry._out_settings)):
                    check_hashable("setting", setting, callee.name)
                for place, value in statics.items():
                    check_hashable(f"static argument {place!r}", value, callee.name)
                raise
            body = bodies = None
        if body is None:
            settings = settings or _resolve(entry, tree, hidden, called)
            about = entry.joint, places, bound, _root_places(entry.roots, places, tree)
            structure = Structure(*about, settings, statics)
            weakly = bodies is not None and bodies.are_with_function
            reference = weakref.ref(function) if weakly else _strong(function)
            body = make(callee, structure, options, reference)
            # What such objects hold is compiled in, and may change. Who has a cache of
            # his own looks after that.
            captures = bodies is not cache and structure.captured_objects(function)
            if bodies is not None and not captures:
                body.key = key
                body = bodies.keep(key, body)
        if cache is not None:
            cache.last = body
        found.append(body)
    return found


def _strong(x: Any) -> Callable[[], Any]:
    return lambda: x


def _numbers(objects: Sequence[Any], roots: list[Any]) -> tuple[int, ...]:
    return tuple([_number(x, roots) for x in objects])


def _number(x: Any, roots: list[Any]) -> int:
    """The number of a root, which is one from now on."""
    for number, root in enumerate(roots):
        if root is x:
            return number
    roots.append(x)
    return len(roots) - 1


def _resolve(entry: Entry, tree: Any, bound: Sequence[int], called: str) -> Settings:
    """Finds the setting of each root and variable, and checks that all agree."""
    roots, joint = entry.roots, entry.joint
    of_args, of_kwargs, of_bound = entry._settings
    count = len(joint.variable_definitions)
    out = entry._out_settings
    if of_args is UNSET or (
        not roots and not any(map(is_mapping, prefix_leaves(of_args)))
    ):
        return Settings((UNSET,) * len(roots), (UNSET,) * count, out)
    per_leaf: list[Any] = []
    for pair in zip((of_args, of_kwargs), tree, strict=True):
        per_leaf += settings_of_leaves(*pair, (called, "the argument"))
    check_mappings(of_args, tree[0], "argument ")
    aliases = AliasCheck()
    of_roots: dict[int, Any] = {}
    leaves = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_object)[0]
    for (path, x), setting in zip(leaves, per_leaf, strict=True):
        if is_object(x):
            aliases.add(key_path(path)[1:], x, setting)
            of_roots.setdefault(_number(x, roots), setting)
    for number, x in enumerate(roots):
        if number not in of_roots or (of_bound is not None and number in bound):
            aliases.add(("self",), x, of_bound)
            of_roots.setdefault(number, of_bound)
    aliases.check()
    variables = tuple(
        setting_of(of_roots[number], tuple(path), variable)
        for (number, *path), variable in zip(joint.paths, entry.variables, strict=True)
    )
    return Settings(tuple(map(of_roots.get, range(len(roots)))), variables, out)


def _root_places(
    roots: list[Any], places: Direct | Places, tree: Any
) -> tuple[tuple[Path, ...], ...]:
    found: list[list[Path]] = [[] for _ in roots]
    for path, number in places.paths(tree):
        found[number].append(path[1:])
    return tuple([tuple(paths) or (("self",),) for paths in found])
