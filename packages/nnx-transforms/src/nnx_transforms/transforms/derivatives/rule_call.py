"""One call of a function with a derivative rule.

JAX runs either the function or its rule, and where it stages the call, the function
first and the rule later. Both must leave the same kind of thing. So the first run
decides which variables count as written, and every later one returns those.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import CustomVJPPrimal

from graphcore import RefMap, api_boundary
from graphcore.authors import Callee, Change, Divided, Entry, Inside, Left, enter
from nnx_transforms.transforms.compiled.donation import rules_running
from nnx_transforms.transforms.derivatives.guards import without_tangents
from nnx_transforms.transforms.derivatives.tangents import (
    Checks,
    Given,
    Layout,
    Part,
    Shown,
    check_tangent,
    from_states,
    has_parts,
    is_part,
    layouts_of,
    map_parts,
    take_parts,
    to_parts,
)
from nnx_transforms.transforms.derivatives.zeros import abstract, is_inexact


def _with_arrays(divided: Divided) -> Divided:
    # JAX hands a rule the number that was differentiated, not a tracer of it: one of
    # Python's, or before JAX 0.10 an array of no public type. In a module that would be
    # static.
    arrays = [jnp.asarray(x) if _is_bare(x) else x for x in divided.arrays]
    return Divided(arrays, divided.frame)


def _is_bare(x: Any) -> bool:
    if isinstance(x, jax.Array | np.ndarray | np.generic):
        return False
    return isinstance(x, int | float | complex) or hasattr(x, "dtype")


def _refuse_inside(where: str, divided: Divided) -> None:
    """Refuses objects in a pytree that is divided: a rule is told of it as a whole."""
    module = divided.bare()
    for part in filter(is_part, jax.tree.leaves(module, is_leaf=is_part)):
        raise TypeError(
            f"{where} is or contains a {type(module).__name__} that holds a live "
            f"{part.layout.type.__name__}, for which a derivative rule can give no "
            "tangent: pass the object as an argument of its own, or hold the module "
            "in the object."
        )


def named_like(f: Callable[..., Any], pure: Callable[..., Any]) -> Callable[..., Any]:
    """A function with the name of another, but not its signature."""

    @api_boundary  # JAX calls rules later than the function
    def named(*args: Any) -> Any:
        return pure(*args)

    named.__name__ = named.__qualname__ = Callee(f).name
    return named


def unwrap(tree: Any) -> Any:
    """Replaces what JAX gives a forward rule about symbolic zeros by the values."""
    return jax.tree.map(lambda x: x.value if type(x) is CustomVJPPrimal else x, tree)


class RuleCall:
    """One call of a function with derivative rules.

    JAX may run a rule much later, so this holds neither objects nor arrays of the
    call. In the arguments, objects are replaced by their `Part`s: the variables that
    can be differentiated. The values of the other variables come as one more argument.

    Args:
        name: What the function is called.
        callees: The function, and those of its rules that run on the objects. They are
            found anew at each call: whether the object that a method is bound to takes
            part depends on the running trace.
        entry: The call of all of them.
        args: The arguments.
        names: What each of them is called in messages.
        selects: Tells by argument and path which variables may be differentiated.
        nondiff: The positions of arguments that are not, which JAX is to keep.
        passed: The positions of those with objects, which the backward rule is given.
        as_objects: Whether rules are shown objects in the place of those returned.

    Raises:
        TypeError: If a variable holds what JAX does not take, with the path.

    Attributes:
        name: What the function is called.
        names: What its arguments are called.
        joint: The description of the objects.
        has_objects: Whether there is any object, be it a hidden one.
        selected: The numbers of the variables that can be differentiated.
        avals: For each variable the abstract values of its value.
        settled: What the first run did to the structure; None before it.
        nondiff: As given.
        passed: As given.
    """

    def __init__(
        self,
        name: str,
        callees: Sequence[Callee],
        entry: Entry,
        args: Sequence[Any],
        names: Sequence[str],
        selects: Callable[[int, Any, Any], bool],
        nondiff: Sequence[int] = (),
        passed: Sequence[int] = (),
        as_objects: bool = False,
    ) -> None:
        self.name = name
        self.has_objects = entry.has_objects
        self.settled: Change | None = None
        # The bodies hold them weakly.
        self._functions = [callee.function for callee in callees]
        self._bodies = entry.bodies
        self.joint = entry.joint
        self.names = names
        self.nondiff, self.passed = nondiff, passed
        self._as_objects = as_objects
        self._differentiable = [i for i in range(len(args)) if i not in nondiff]
        # The arguments in parts with all variables, and in which one each of these is.
        count = len(entry.raw)
        self._layouts = layouts_of(entry, as_objects)
        shown = to_parts(tuple(args), entry, self._layouts, range(count))
        for i, x in enumerate(shown):
            Divided.map(functools.partial(_refuse_inside, names[i]), x)
        self._owners = {n: i for i, x in enumerate(shown) for n in take_parts(x)[1]}
        self.avals = [
            _abstract(value, lambda i=i: self.place(i))  # type: ignore[misc]
            for i, value in enumerate(entry.raw)
        ]
        self.selected = frozenset(
            n
            for n, owner in self._owners.items()
            if any(map(is_inexact, jax.tree.leaves(self.avals[n])))
            and selects(owner, self.joint.paths[n][1:], entry.variables[n])
        )
        # The variables that are in no part: those of hidden objects, and others.
        hidden = [i for i in range(count) if i not in self._owners]
        self._rest = hidden, [i for i in self._owners if i not in self.selected]
        # With abstract values; the numbers of the written variables, and of those among
        # them that are new in the output; and, by the identity of the layouts, the
        # variables that a run made in the objects.
        self._outline: list[Any] = [None] * len(args)
        for i in self._differentiable if self.has_objects else ():
            self._outline[i] = _abstract(shown[i], lambda i=i: names[i])  # type: ignore[misc]
        self._numbers: list[int] = []
        self._made: set[int] = set()
        self._new: dict[int, Layout] = {}
        self._returned: list[Layout] = []

    def pure_args(self, entry: Entry, args: Sequence[Any]) -> list[Any]:
        """The arguments for JAX.

        Args:
            entry: The call, or another one of the same structure.
            args: Its arguments.

        Returns:
            The arguments with parts; if there are objects, the values of all other
            variables come last.
        """
        if not self.has_objects:
            return [*args]
        shown = to_parts(tuple(args), entry, self._layouts, self.selected)
        pairs = enumerate(zip(shown, args, strict=True))
        parts = [x if i in self._differentiable else given for i, (x, given) in pairs]
        hidden, rest = ([entry.raw[i] for i in numbers] for numbers in self._rest)
        # No rule is told of the tangents of an object behind a function, or gives any.
        message = (
            f"{self.name!r} is bound to an object, or one of its rules is, by which it "
            "is being differentiated; but derivative rules go by arguments. Decorate "
            "the method in its class, or pass the object as an argument."
        )
        return [*parts, (without_tangents(hidden, message), rest)]

    def place(self, position: int) -> str:
        """Where a variable stands, in words."""
        where = self._bodies[0].place(self.joint.paths[position]).partition("/")[2]
        owner = self._owners.get(position)
        name = "the bound object" if owner is None else self.names[owner]
        return f"{where!r} of {name}"

    @property
    def change(self) -> Change:
        """What the first run did to the structure."""
        assert self.settled is not None
        return self.settled

    # Runs

    def enter(
        self, function: int, args: Sequence[Any]
    ) -> tuple[Inside, Callable[..., Any], tuple[Any, ...]]:
        """Builds inner objects.

        Args:
            function: The number of the function that is going to run on them.
            args: The arguments that JAX gives.

        Returns:
            The objects, the function, and its arguments.
        """
        rest: Sequence[Any] = ()
        if self.has_objects:
            *args, rest = args
        plain, values = take_parts(Divided.map(_with_arrays, tuple(args)))
        values.update(zip(chain(*self._rest), chain(*unwrap(rest)), strict=True))
        body = self._bodies[function]
        inside = Inside(self.joint, [values[i] for i in range(len(self.avals))])
        inner, _ = body.fill(inside, plain, {})

        def run(*given: Any) -> Any:
            rules_running.count += 1
            try:
                return body.call(inside, given, {})
            finally:
                rules_running.count -= 1

        return inside, run, inner

    def primal(self, *args: Any) -> tuple[list[Any], Any]:
        """Runs the function; see `leave`."""
        inside, function, inner = self.enter(0, args)
        return self.leave(inside, function(*inner), "the function")

    def leave(self, inside: Inside, out: Any, run: str) -> tuple[list[Any], Any]:
        """Takes apart what a run left behind.

        Args:
            inside: The objects that it ran on.
            out: What it returned.
            run: What it is called in messages.

        Returns:
            The values of the written variables, and the output without objects.

        Raises:
            ValueError: If it wrote more, or left another structure, than the first.
        """
        first = self.settled
        keep: Any = first.positions if first else ()
        left = inside.leave(out, keep=frozenset(keep))
        if first is None:
            self._run = run
            self._note(inside, left, out)
        elif left.change != first:
            raise self._disagreement(left, first, run)
        return unwrap(left.values()), left.out

    def _note(self, inside: Inside, left: Left, out: Any) -> None:
        count = len(self.avals)
        positions = enumerate(left.change.positions)
        # New variables come behind those there are.
        self._numbers = [count + i if p is None else p for i, p in positions]
        numbers = RefMap((v, i) for i, v in enumerate(inside.variables))
        variables = [written.variable for written in left.written]
        numbers.update(zip(variables, self._numbers, strict=True))

        def layouts(tree: Any, as_objects: bool = False) -> list[Layout]:
            entry = enter(_left, (tree,))
            return layouts_of(entry, as_objects, [numbers[v] for v in entry.variables])

        self._made = {number for number in self._numbers if number >= count}
        if left.change.definitions is not None:
            after = [layout.only(self._made) for layout in layouts(inside.roots)]
            self._new = dict(zip(map(id, self._layouts), after, strict=True))
            self._made -= {number for layout in after for number in layout.numbers}
        if left.change.places.spots:
            self._returned = layouts(out, self._as_objects)
        # Last: whoever sees a change may rely on the rest.
        self.settled = left.change

    def _new_in(self, layout: Layout) -> Layout:
        """The variables that are new in an object, by its layout in the outline."""
        return self._new.get(id(layout)) or Layout(layout.type)

    def _disagreement(self, left: Left, first: Change, run: str) -> ValueError:
        due, found = first.places, left.change.places
        if found.compared != due.compared:
            return ValueError(
                f"{run} of {self.name!r} gives an output of the structure "
                f"{found.structure}, but {self._run} one of {due.structure}: let both "
                "return the same."
            )
        more = [
            self.place(w.position)
            for w in left.written
            if w.position is not None and w.position not in first.positions
        ]
        if more:
            what = f"wrote {', '.join(more)}, which {self._run} did not"
        else:
            what = f"left objects of another structure than {self._run}"
        return ValueError(
            f"{run} of {self.name!r} {what}. What the call updates was settled when "
            f"JAX traced {self._run}: let both make the same updates, or "
            "differentiate inside the transformation that traces the call."
        )

    # What rules are shown, and what they return

    def updated(self) -> list[bool]:
        """Whether each written variable belongs to an argument, not to the output."""
        return [number not in self._made for number in self._numbers]

    def values(
        self, given: Sequence[Any], default: Callable[[int], Any]
    ) -> Callable[[int], Any]:
        """A value for any variable of the arguments, whether it was written or not.

        Args:
            given: A value for each written variable.
            default: For the number of another variable its value.

        Returns:
            A function of the number.
        """
        found = dict(zip(self._numbers, given, strict=True))
        return lambda number: found[number] if number in found else default(number)

    def update_states(self, value: Callable[[int], Any]) -> tuple[Any, ...]:
        """Shows all variables of the arguments as states.

        Args:
            value: For the number of a variable its value.

        Returns:
            For each differentiable argument its state; None if there is no object in
            it. In a pytree with objects in it, None in the place of other leaves.
        """

        def state(part: Any) -> Any:
            if not is_part(part):
                return None
            new = self._new_in(part.layout).shown
            # One at a path that another has had, or below or above it, takes its place.
            old = [x for x in part.layout.shown if not any(_meet(x, y) for y in new)]
            layout = replace(part.layout, shown=(*old, *new))
            return layout.state([*map(value, layout.numbers)])

        outlines = [self._outline[i] for i in self._differentiable]
        return tuple(
            jax.tree.map(state, x, is_leaf=is_part) if has_parts(x) else None
            for x in outlines
        )

    def out_states(
        self, tree: Any, value: Callable[[int], Any], *, with_old: bool
    ) -> Any:
        """Puts states in the places of the objects of an output.

        Args:
            tree: A pytree like the output, None in the place of objects.
            value: For the number of a variable its value.
            with_old: Whether to show what can be reached from the arguments as well.

        Returns:
            The pytree with states.
        """
        layouts = self._returned if with_old else self._new_in_output()
        made: dict[int, Any] = {}
        states = [x.state([*map(value, x.numbers)], made) for x in layouts]
        return self.change.places.fill(tree, states)

    def _new_in_output(self) -> list[Layout]:
        return [layout.only(self._made) for layout in self._returned]

    def take_out(self, given: Any, out: Any, where: str) -> tuple[Any, dict[int, Any]]:
        """Takes the tangent of an output apart.

        Args:
            out: The output, None in the place of objects.
            given: The pytree, with a state in the place of each object, or None.
            where: As for `from_states`.

        Returns:
            The pytree with None in the place of objects; and, by place among the
            written variables, what is there for those that are new in the output.

        Raises:
            TypeError: If it has another structure, or no state stands where one is due.
        """
        places = self.change.places
        if not places.spots:
            like = abstract(out) if self.change.has_divided else None
            return from_states(given, like, where), {}
        parts = [Part(x, [None] * len(x.shown)) for x in self._new_in_output()]
        like = places.fill(out, parts)
        taken, found = take_parts(
            from_states(given, like, where, checks=Checks.OF_AN_OUTPUT)
        )
        pairs = ((self._numbers.index(n), x) for n, x in found.items())
        return taken, {place: x for place, x in pairs if x is not None}

    def take_tangents(self, given: Any, rule: str) -> Any:
        """Takes apart what a rule returned: a tangent for each argument.

        Args:
            given: What it returned.
            rule: What the rule is called in messages.

        Returns:
            One for each argument that `pure_args` gives, with parts.

        Raises:
            TypeError: If a tangent is of the wrong kind, with the argument.
            ValueError: If the tangent of an object has not the paths or shapes that
                are due, with the argument and the path.
        """
        if not self.has_objects:
            return given  # JAX checks it.
        due_for = [i for i in self._differentiable if i not in self.passed]
        names = ", ".join(self.names[i] for i in due_for)
        due = f"{rule} must return a tuple with one tangent for each of {names}, but"
        if not isinstance(given, tuple | list):
            raise TypeError(f"{due} returned a {type(given).__name__}.")
        if len(given) != len(due_for):
            raise TypeError(f"{due} returned {len(given)} of them.")
        pairs = zip(due_for, given, strict=True)
        seen = Given()
        found = {i: self.take_tangent(i, x, rule, seen) for i, x in pairs}
        return (*map(found.get, self._differentiable), None)

    def take_tangent(
        self,
        argnum: int,
        given: Any,
        rule: str,
        seen: Given | None = None,
    ) -> Any:
        """Takes apart the tangent of one argument; see `take_tangents`."""
        like = self.due(argnum)
        where = f"{rule} returned for {self.names[argnum]}"
        found = from_states(given, like, where, Checks.OF_A_RULE, seen)
        plain, avals = (take_parts(tree)[0] for tree in (found, like))
        check_tangent(plain, avals, where, Checks.OF_A_RULE)
        return found

    def due(self, argnum: int) -> Any:
        """What an argument has tangents for: its abstract values, with parts.

        Args:
            argnum: The position of the argument.

        Returns:
            The pytree.
        """

        def part(part: Part) -> Part:
            layout = part.layout.only(self.selected)
            others = layout.others + self._new_in(part.layout).paths
            values = [self.avals[number] for number in layout.numbers]
            return Part(replace(layout, others=others), values)

        return map_parts(part, self._outline[argnum])


def _meet(old: Shown, new: Shown) -> bool:
    """Whether no state can have both of two variables, by their paths."""
    return all(map(operator.eq, old[0], new[0]))  # up to the end of the shorter one


def _left(*objects: Any) -> None:
    """What objects enter that a function made or returned."""


def _abstract(tree: Any, place: Callable[[], str]) -> Any:
    try:
        return abstract(tree)
    except TypeError as error:
        raise TypeError(f"{place()}: {error}") from error
