"""The user's function as a pure one: what a transformation gives to JAX.

A `Body` takes the values of variables, one list a setting, and the other arguments. It
builds objects around the values, runs the function on them, and returns the values
that were written, the output without objects, and the `Change`. It holds no object, so
one serves every call of its structure, and JAX, which keeps traces by the identity of
a function, finds what it has traced.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import jax

from graphcore.boundary.abstract_values import FILL, abstract_leaves, is_about_types
from graphcore.boundary.callees import Callee
from graphcore.boundary.captures import captured_objects
from graphcore.boundary.change import Change
from graphcore.boundary.inside import Inside
from graphcore.boundary.left import Left, refused
from graphcore.boundary.places import Direct, Place, Places, is_object, key_path
from graphcore.boundary.settings import Settings, check_mappings
from graphcore.boundary.traced_values import ARGUMENT, VALUE, explain_traced
from graphcore.display.printing import leaf_text
from graphcore.divided.divided import Divided
from graphcore.graphdef.definition import (
    StaticAttribute,
    VariableDef,
    definition_trails,
)
from graphcore.graphdef.joint import Joint
from graphcore.holding import held_by, reached
from graphcore.refmap import RefMap
from graphcore.state.foreign_states import given_state
from graphcore.state.state import State
from graphcore.trails import Path, path_text
from graphcore.unset import UNSET
from graphcore.variables.state import VariableState

__all__ = ["Body"]

_ADVICE = (
    "Values of variables are arrays; keep anything else as a static attribute or in "
    "the variable's metadata."
)


@dataclass(frozen=True, slots=True, eq=False)
class Structure:
    """What is known of the arguments of a call, without any of them.

    Args:
        joint: The description of the objects.
        places: Where they are among the arguments.
        bound: The numbers of those that the function is bound to.
        root_places: For each root the paths from the arguments to it, the position or
            name of the argument first; `("self",)` for one that only the function is
            bound to.
        settings: The settings of roots, variables and output.
        statics: The static arguments by position or name.

    Example:
        >>> import graphcore as gc
        >>> from graphcore.authors import enter
        >>> structure = enter(len, ([gc.Dict(w=gc.Param(1))],)).body.structure
        >>> structure.root_places, structure.joint.paths
        ((((0, 0),),), ((0, 'w'),))
    """

    joint: Joint
    places: Direct | Places
    bound: tuple[int, ...]
    root_places: tuple[tuple[Path, ...], ...]
    settings: Settings
    statics: Mapping[Place, Any]

    def captured_objects(self, *functions: Any) -> list[Any]:
        """The objects that are static, and those that static functions close over.

        Static are attributes, metadata of variables, and arguments. What is read of
        such an object is a constant of a trace.

        Args:
            *functions: As for `captured_objects`.

        Returns:
            Each object once.

        Example:
            >>> import graphcore as gc
            >>> from graphcore.authors import enter
            >>> def model():
            ...     gate = gc.Variable(2)
            ...     return gc.Dict(f=lambda x: gate.value * x)
            >>> enter(len, (model(),)).body.structure.captured_objects()
            [Variable(2)]
        """
        found: RefMap[Any, None] = RefMap()
        static: list[Any] = []
        for definition in self.joint.definitions:
            for _, item in definition_trails(definition):
                if type(item) is StaticAttribute:
                    static.append(item.value)
                elif type(item) is VariableDef:
                    static += item.metadata.values()
        held = [x for x in reached(static, _items) if callable(x) or is_object(x)]
        for x in (*held, *self.statics.values()):
            found.update((y, None) for y in captured_objects(x, *functions))
        return [*found]

    def states(self, places: Iterable[int], values: Sequence[Any]) -> list[Any]:
        """Shows values of variables as states of the objects.

        Args:
            places: The numbers of the variables.
            values: A value for each of them.

        Returns:
            One for each root, as `Entry.states` gives them.
        """
        joint = self.joint
        roots: Sequence[Any] = joint.definitions
        found: list[dict[Path, Any]] = [{} for _ in roots]
        shown = Divided.map(Divided.bare, [*values])
        for place, value in zip(places, shown, strict=True):
            number, *path = joint.paths[place]
            kind = joint.variable_definitions[place].kind
            found[number][tuple(path)] = VariableState.of(kind, value)
        return [
            given_state(
                root.type,
                leaves[()] if () in leaves else State.from_flat_path(leaves),
            )
            for root, leaves in zip(roots, found, strict=True)
        ]


def _items(x: Any) -> Iterable[Any] | None:
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        names = [field.name for field in dataclasses.fields(x)]
        return [getattr(x, name, None) for name in names]
    return held_by(x) if isinstance(x, tuple | list | dict) else None


class Body:
    """A function of live objects as a pure one, for calls of one structure.

    Transformations that have to do something around the function, or to look at what
    it left, subclass this.

    Args:
        callee: The function.
        structure: What is known of its arguments.
        options: What the transformation was told; part of what a body is found by.
        reference: Returns the function, or None if it is gone.

    Attributes:
        groups: The distinct settings with which values enter and leave.
        keep: The variables that count as written in any case.
        key: What it was found by: equal for equal structures. None if it is not kept.
        is_compiled: Whether it is called by what `jax.jit` returned, and by nothing
            else: then all that comes back are arrays, which need not be looked at.

    Example:
        >>> import graphcore as gc, jax
        >>> from graphcore.authors import Body, enter
        >>> class Loud(Body):
        ...     def call(self, inside, args, kwargs):
        ...         print('runs', self.__name__)
        ...         return super().call(inside, args, kwargs)
        >>> def double(n): n.value *= 2
        >>> n = gc.Variable(3)
        >>> for _ in range(2):
        ...     entry = enter(double, (n,), make=Loud)
        ...     entry.commit(*jax.jit(entry.body)(*entry.values))
        runs double
        >>> int(n.value)
        12
    """

    key: Any = None
    is_compiled = False
    # In messages, what stands before the position of an argument, and before the name
    # of one by keyword.
    called: tuple[str | None, str | None] = (None, None)
    out_called = "output"
    # What users call the settings of the arguments and of the output.
    settings_called: tuple[str, str] = ("settings", "out_settings")

    def __init__(
        self, callee: Callee, structure: Structure, options: Any, reference: Any
    ) -> None:
        self.__name__ = self.__qualname__ = callee.name
        self.structure = structure
        self.options = options
        self.keep: Collection[int] = ()
        self._reference = reference
        self.first_places = [self.shown(paths[0]) for paths in structure.root_places]
        self.groups = structure.settings.groups()
        of_group: dict[Any, list[int]] = {setting: [] for setting in self.groups}
        for position, setting in enumerate(structure.settings.variables):
            of_group[setting].append(position)
        self._positions = list(of_group.values())
        self._order = [*chain.from_iterable(self._positions)]

    # JAX shows in its messages where a function comes from, and what its arguments are
    # called.

    def __repr__(self) -> str:
        return repr(self._reference())

    @property
    def __wrapped__(self) -> Any:
        return self._reference()

    __signature__ = inspect.Signature(
        [
            inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD)
            for name in ("variables", "args", "kwargs")
        ]
    )

    # Outside

    def grouped(self, values: Sequence[Any]) -> list[list[Any]]:
        """Divides one value for each variable by setting.

        Args:
            values: In order of index.

        Returns:
            One list a setting.
        """
        if len(self._positions) == 1:
            return [[*values]]
        return [[values[i] for i in group] for group in self._positions]

    def ungrouped(self, groups: Sequence[Sequence[Any]]) -> Sequence[Any]:
        """Undoes `grouped`.

        Args:
            groups: One list a setting.

        Returns:
            The values in order of index.

        Raises:
            ValueError: If there is not one list a setting, of one value for each
                variable that has it.
        """
        found = [*map(len, groups)]
        due = [*map(len, self._positions)]
        if found != due:
            raise ValueError(
                f"The body of {self.__name__!r} takes one list of values for each of "
                f"the settings {self.groups}, {due} long; got lists of {found}. Pass "
                "`*entry.values`, or for other values `entry.body.grouped(values)`."
            )
        if len(groups) == 1:
            return groups[0]
        values = dict(zip(self._order, chain.from_iterable(groups), strict=True))
        return [values[position] for position in range(len(values))]

    # Inside

    def __call__(
        self, groups: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> tuple[Any, Any, Change]:
        """Runs the function, where JAX calls it.

        Args:
            groups: The raw values of the variables, one list a setting.
            args: The other arguments, None in the place of objects.
            kwargs: Likewise.

        Returns:
            The written values, one list a setting; the output, None in the place of
            objects; and what became of the structure.
        """
        left = self.run(self.ungrouped(groups), args, kwargs or {})
        written, change = self.divide(left)
        return written, left.out, change

    def run(
        self, values: Sequence[Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Left:
        """Runs the function on new objects, and takes apart what it leaves.

        Args:
            values: A raw value for each variable, in order of index.
            args: The other arguments, None in the place of objects.
            kwargs: Likewise.

        Returns:
            What it left behind.
        """
        return self.run_inside(Inside(self.structure.joint, values), args, kwargs)

    def run_inside(
        self, inside: Inside, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Left:
        """Runs the function on inner objects; see `run`."""
        args, kwargs = self.fill(inside, args, kwargs)
        left = self.leave(inside, self.call(inside, args, kwargs))
        self.check_left(left)
        return left

    def call(self, inside: Inside, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Calls the function on inner objects; subclasses do more around that.

        Args:
            inside: The objects.
            args: The positional arguments, with inner objects.
            kwargs: The others.

        Returns:
            What it returns.
        """
        try:
            return self.bind(inside)(*args, **kwargs)
        except Exception as error:
            explain_traced(error, self._leaves(inside, args, kwargs))
            for position, leaf in abstract_leaves(inside.values, error):
                where = path_text(self.variable_path(position))
                error.add_note(f"The variable at {where!r} holds {leaf!r}. {FILL}")
                break
            raise

    def _leaves(
        self, inside: Inside, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Iterator[tuple[Any, Path, str, tuple[str, ...]]]:
        """What the function was given; see `explain_traced`."""
        groups = self.grouped(range(len(inside.values)))
        for number, position in chain.from_iterable(map(enumerate, groups)):
            path, value = self.variable_path(position), inside.values[position]
            for way, leaf in jax.tree_util.tree_flatten_with_path(value)[0]:
                rest = jax.tree_util.keystr(way)
                ends = f"[{number}]{rest}", f"[{position}]{rest}"
                yield leaf, (*path, *key_path(way)), VALUE, ends
        given = jax.tree_util.tree_flatten_with_path((args, kwargs), is_leaf=is_object)
        for (_, *way), leaf in given[0]:
            path, rest = self.shown(key_path(way)), jax.tree_util.keystr(way[1:])
            yield leaf, path, ARGUMENT, (rest,)

    def fill(
        self, inside: Inside, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Puts inner objects and static arguments in their places."""
        structure = self.structure
        args, kwargs = structure.places.fill((args, kwargs), inside.roots)
        statics = structure.statics
        if statics:
            args = tuple([statics.get(i, x) for i, x in enumerate(args)])
            named = {name: x for name, x in statics.items() if type(name) is str}
            kwargs = {**kwargs, **named}
        return args, kwargs  # type: ignore[return-value]

    def bind(self, inside: Inside) -> Any:
        """The function, bound to the inner objects in place of the outer ones."""
        objects = [inside.roots[n] for n in self.structure.bound]
        function = self._reference()
        if function is None:
            raise ReferenceError(
                f"The function {self.__name__!r} is gone. A body holds it weakly: "
                "keep it in a variable for as long as the body is called."
            )
        return functools.partial(function, *objects) if objects else function

    def leave(self, inside: Inside, out: Any) -> Left:
        """Takes apart what the function left; subclasses look at it."""
        settings = self.structure.settings
        if settings.out is not UNSET:
            check_mappings(settings.out, out, "output")
        return inside.leave(out, settings, self.keep)

    def divide(self, left: Left) -> tuple[list[list[Any]], Change]:
        """Divides what the function wrote by setting.

        Args:
            left: What it left behind.

        Returns:
            The values, one list a setting; and the change in the order of these.

        Raises:
            ValueError: If a variable has a setting that nobody knew of.
        """
        values = [w.changed for w in left.written]
        if len(self.groups) == 1:
            return [values], left.change
        numbers: list[list[int]] = [[] for _ in self.groups]
        for number, written in enumerate(left.written):
            if written.setting not in self.groups:
                raise ValueError(
                    f"A variable that {self.__name__!r} made, at "
                    f"{path_text(written.path[1:])!r}, has the setting "
                    f"{written.setting!r}, but those that are known are {self.groups}: "
                    "a `PrefixMapping` names all that it may answer with in `settings`."
                )
            numbers[self.groups.index(written.setting)].append(number)
        change = left.change.select([*chain.from_iterable(numbers)])
        return [[values[i] for i in group] for group in numbers], change

    # Messages

    def shown(self, path: Path) -> Path:
        """A path from the arguments, as messages have it.

        Args:
            path: As in `Structure.root_places`.

        Returns:
            The path, with what the arguments are called in front.
        """
        name = self.called[isinstance(path[0], str)]
        return path if name is None or path == ("self",) else (name, *path)

    def variable_path(self, position: int) -> Path:
        """The path of a variable from the arguments, for messages.

        Args:
            position: Its number among the variables.

        Returns:
            The path of its root, where that stands first, and from there.
        """
        number, *rest = self.structure.joint.paths[position]
        return (*self.first_places[number], *rest)

    def place(self, path: Path) -> str:
        """Where a variable is, for messages.

        Args:
            path: As in `Written`.

        Returns:
            The path from the arguments or the output.
        """
        number, *rest = path
        if number >= 0:
            return path_text((*self.first_places[number], *rest))
        return path_text((self.out_called if number == -1 else "detached", *rest))

    def check_left(self, left: Left) -> None:
        """Raises an error if JAX refuses part of what is left, with its place.

        Args:
            left: What the function left behind.

        Raises:
            TypeError: With the path.
        """
        for number, leaf, error in refused(left.values()):
            written = left.written[number]
            raise TypeError(
                f"The {type(written.variable).__name__} at "
                f"{self.place(written.path)!r} was given a value of type "
                f"{type(leaf).__name__} inside {self.__name__!r}, which JAX does not "
                f"accept: {leaf_text(leaf)}. Values of variables are arrays."
            ) from error
        left.check_output(self.__name__, self.out_called)

    def blame(self, values: Sequence[Any], error: BaseException) -> None:
        """Raises an error if a variable holds what JAX refuses, with its path.

        Another error than one about what is no array is left alone.

        Args:
            values: The raw values of the variables.
            error: What was raised.

        Raises:
            TypeError: With the path.
        """
        if not is_about_types(error):
            return  # It comes from the function, which may have been given anything.
        found = [(position, leaf) for position, leaf, _ in refused(values)]
        for position, leaf in found or abstract_leaves(values, error):
            advice = FILL if isinstance(leaf, jax.ShapeDtypeStruct) else _ADVICE
            where = path_text(self.variable_path(position))
            raise TypeError(
                f"The variable at {where!r} holds a value of type "
                f"{type(leaf).__name__}, which JAX does not accept: {leaf_text(leaf)}. "
                f"{advice}"
            ) from error
