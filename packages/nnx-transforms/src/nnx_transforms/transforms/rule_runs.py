"""What the runs of a function with derivative rules leave behind.

JAX runs either the function or its rule, and where it stages the call, the function
first and the rule later. Both must leave the same kind of thing. So the first run
decides which variables count as written, and every later one returns those.
"""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.custom_derivatives import CustomVJPPrimal

from graphcore import VariableState
from graphcore.plans import plan_of
from graphcore.refmap import RefMap
from graphcore.variable_impl import is_variable_type
from nnx_transforms.transforms.argument_states import Arguments, Members, state_of
from nnx_transforms.transforms.lifting import (
    Callee,
    Inside,
    Left,
    Outcome,
    Path,
    remove_objects,
)


def keep_metadata(wrapper: Any, f: Callable[..., Any]) -> None:
    """Does for an object with rules what `functools.wraps` does.

    Args:
        wrapper: The object.
        f: The function. If it is none but a callable object, its attributes stay its.
    """
    is_function = isinstance(f, types.FunctionType)
    updated = functools.WRAPPER_UPDATES if is_function else ()
    functools.update_wrapper(wrapper, f, updated=updated)


def named_like(f: Callable[..., Any], pure: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a function the name of another, but not its signature."""
    for attribute in ("__module__", "__name__", "__qualname__", "__doc__"):
        if hasattr(f, attribute):
            setattr(pure, attribute, getattr(f, attribute))
    return pure


def released(callee: Callee) -> Callee:
    """A callee that does not hold its hidden objects, and so may outlive the call.

    Args:
        callee: A callee.

    Returns:
        One whose hidden objects must be given.
    """
    free: Callee = copy.copy(callee)
    free.bound = (None,) * len(callee.bound)
    return free


def unwrap(tree: Any) -> Any:
    """Replaces what JAX gives a forward rule about symbolic zeros by the values."""
    return jax.tree.map(lambda x: x.value if type(x) is CustomVJPPrimal else x, tree)


@dataclass(frozen=True)
class _Member:
    """A variable where a run left it.

    Args:
        path: Its path.
        state: Its state, without a value.
        position: Which of the inputs' variables it was; None if it is new.
        place: Which of the written values is its; None if it was not written.
    """

    path: Path
    state: VariableState[Any]
    position: int | None
    place: int | None


class Runs:
    """The runs of one call, of which the first decides what counts as written.

    Args:
        arguments: The arguments of the call.
        name: What the function is called.

    Attributes:
        outcome: What the first run did; None before it.
    """

    def __init__(self, arguments: Arguments, name: str) -> None:
        self._arguments = arguments
        self._name = name
        self._run = ""
        self.outcome: Outcome | None = None
        self._in_roots: dict[int, list[_Member]] = {}
        self._returned: list[tuple[type[Any], list[_Member]]] = []

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
        first = self.outcome
        keep: set[Any] = set(first.positions) if first else set()
        left = inside.leave(out, keep=keep)
        if first is None:
            self._run = run
            self._note(inside, left, out)
        elif left.outcome != first:
            raise self._disagreement(left, first, run)
        return [unwrap(value) for value in left.values()], left.tree

    def _note(self, inside: Inside, left: Left, out: Any) -> None:
        positions = RefMap((v, i) for i, v in enumerate(inside.variables))
        places = RefMap((w.variable, i) for i, w in enumerate(left.written))

        def member(path: Path, variable: Any) -> _Member:
            state = VariableState.from_variable(variable).replace(None)
            return _Member(path, state, positions.get(variable), places.get(variable))

        for written in left.written:
            number, *path = written.path
            if written.position is None and number >= 0:
                found = self._in_roots.setdefault(number, [])
                found.append(member(tuple(path), written.variable))
        for x in remove_objects(out)[2]:
            plan = plan_of(x)
            pairs = zip(plan.layout.paths, plan.variables, strict=True)
            self._returned.append(
                (type(x), [member(path, variable) for path, variable in pairs])
            )
        # Last: whoever sees an outcome may rely on the rest.
        self.outcome = left.outcome

    def _disagreement(self, left: Left, first: Outcome, run: str) -> ValueError:
        more = [
            self._arguments.place(w.position)
            for w in left.written
            if w.position is not None and w.position not in first.positions
        ]
        if more:
            what = f"wrote {', '.join(more)}, which {self._run} did not"
        else:
            what = f"left objects of another structure than {self._run}"
        return ValueError(
            f"{run} of {self._name!r} {what}. What the call updates was settled when "
            f"JAX traced {self._run}: let both make the same updates, or "
            "differentiate inside the transformation that traces the call."
        )

    def values(self, given: Sequence[Any], default: Callable[[int], Any]) -> Any:
        """A value for any variable of the inputs, whether it was written or not.

        Args:
            given: A value for each written variable.
            default: For the position of another variable its value.

        Returns:
            A function of the position.
        """
        assert self.outcome is not None
        places = {p: i for i, p in enumerate(self.outcome.positions)}
        return lambda p: given[places[p]] if p in places else default(p)

    def new_in_roots(self, given: Sequence[Any]) -> dict[int, Members]:
        """The variables that are new in each root.

        Args:
            given: A value for each written variable.

        Returns:
            By the number of the root.
        """
        return {
            number: [(m.path, m.state.replace(given[m.place or 0])) for m in members]
            for number, members in self._in_roots.items()
        }

    def places_in_roots(self) -> frozenset[int | None]:
        """Which of the written values are those of variables that are new in a root."""
        return frozenset(m.place for ms in self._in_roots.values() for m in ms)

    def new_paths(self) -> frozenset[Path]:
        """The paths of the variables that are new in a root, its number first."""
        return frozenset(
            (number, *member.path)
            for number, members in self._in_roots.items()
            for member in members
        )

    def out_states(
        self, tree: Any, given: Sequence[Any], old: Callable[[int], Any] | None
    ) -> Any:
        """Puts states in the places of the objects of an output.

        Args:
            tree: A pytree like the output, None in the place of objects.
            given: A value for each written variable.
            old: For the position of a variable of the inputs its value. None leaves
                out whatever can be reached from the inputs.

        Returns:
            The pytree with states.
        """
        assert self.outcome is not None
        shown: set[Any] = set()
        if old is None:
            shown = {("new", place) for place in self.places_in_roots()}
        states: list[Any] = []
        for kind, members in self._returned:
            pairs: list[tuple[Path, VariableState[Any]]] = []
            for m in members:
                key = ("new", m.place) if m.position is None else ("old", m.position)
                if key in shown or (m.position is not None and old is None):
                    continue
                shown.add(key)
                if m.position is None:
                    value = given[m.place or 0]
                else:
                    value = old(m.position) if old else None
                pairs.append((m.path, m.state.replace(value)))
            states.append(state_of(kind, pairs))
        return self.outcome.skeleton.fill(tree, states)

    def take_out_states(self, given: Any, where: str) -> tuple[Any, dict[int, Any]]:
        """Takes the states of objects out of a pytree like the output.

        Args:
            given: The pytree, with a state in the place of each object, or None.
            where: What it is called in messages.

        Returns:
            The pytree with None in their places; and, by the number of the written
            value, those of new variables.

        Raises:
            TypeError: If it has another structure, or no state stands where one is due.
        """
        assert self.outcome is not None
        skeleton = self.outcome.skeleton
        if not skeleton.spots:
            return given, {}
        try:
            leaves = skeleton.structure.flatten_up_to(given)
        except ValueError as error:
            raise TypeError(
                f"{where} has structure {jax.tree.structure(given)}, but "
                f"{skeleton.structure} is due, with a State for each object."
            ) from error
        found: dict[int, Any] = {}
        for leaf, number in skeleton.spots:
            kind, members = self._returned[number]
            state, leaves[leaf] = leaves[leaf], None
            if state is None:
                continue
            if isinstance(state, VariableState) and is_variable_type(kind):
                pairs: dict[Path, Any] = {(): state}
            elif hasattr(state, "flat_state"):
                pairs = dict(state.flat_state())
            else:
                raise TypeError(
                    f"{where} holds a {type(state).__name__} where a State is due for "
                    f"a {kind.__name__}."
                )
            for m in members:
                if m.position is None and m.path in pairs:
                    found.setdefault(m.place or 0, pairs[m.path].value)
        return jax.tree.unflatten(skeleton.structure, leaves), found
