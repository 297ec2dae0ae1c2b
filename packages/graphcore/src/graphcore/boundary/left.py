"""What a function left behind: what it wrote, what it returned, and what changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import is_
from typing import Any

import jax

from graphcore.boundary.change import Change
from graphcore.boundary.places import key_path
from graphcore.content import values_equal
from graphcore.display.printing import leaf_text
from graphcore.divided.divided import changed, divided
from graphcore.trails import Path, path_text
from graphcore.variables.bare_arrays import are_known_arrays
from graphcore.variables.impl import VariableImpl

__all__ = ["Left", "Written"]


@dataclass(slots=True)
class Written:
    """A variable that a function wrote, or made.

    Args:
        position: Its number among the inputs' variables; None if it is new.
        index: Its index in the definitions afterwards.
        variable: The inner variable.
        impl: How it is handled.
        path: Where it was first found: the number of the root, -1 for the output, -2
            for what no root reaches any more; then the path from there.
        setting: Its setting.
        before: The value that it had; None if that is to be written as a whole.

    Example:
        >>> import graphcore as gc
        >>> from graphcore.authors import enter
        >>> def count(m): m.n.value += 1
        >>> body = enter(count, (gc.Dict(n=gc.Variable(1)),)).body
        >>> (written,) = body.run([1], (None,), {}).written
        >>> written.position, written.path, written.value
        (0, (0, 'n'), 2)
    """

    position: int | None
    index: int
    variable: Any
    impl: VariableImpl
    path: Path
    setting: Any
    before: Any = None

    @property
    def value(self) -> Any:
        """The raw value, as JAX takes it."""
        return divided(self.impl.get_value(self.variable))

    @property
    def changed(self) -> Any:
        """The value as JAX takes it; of a pytree of many arrays, those that are new."""
        value = self.impl.get_value(self.variable)
        return changed(value, self.before)


@dataclass(slots=True)
class Left:
    """What a function left behind.

    Args:
        written: The variables that it wrote or made.
        out: The output with None in the place of objects.
        change: The static rest.

    Example:
        >>> import graphcore as gc
        >>> from graphcore.authors import enter
        >>> def count(n): n.value += 1; return -n.value
        >>> left = enter(count, (gc.Variable(1),)).body.run([1], (None,), {})
        >>> left.values(), left.out
        ([2], -2)
    """

    written: list[Written]
    out: Any
    change: Change

    def values(self) -> list[Any]:
        """The raw values of the written variables."""
        return [w.value for w in self.written]

    def all_values(self, given: Sequence[Any]) -> list[Any]:
        """The raw values of all variables of the inputs.

        Args:
            given: What they had before, by position. What stands where nothing is any
                more, as an array whose attribute was removed, is as it was.
        """
        values = [*given]
        for w in self.written:
            if w.position is not None:
                values[w.position] = w.value
        return values

    def overwritten(self, values: Sequence[Any]) -> frozenset[int]:
        """Which of the values that a function was given it replaced.

        Args:
            values: What the variables had before, by position.

        Returns:
            The positions of the variables that hold other arrays now.
        """
        return frozenset(
            w.position
            for w in self.written
            if w.position is not None and not same_value(w.value, values[w.position])
        )

    def check_output(self, name: str, called: str = "output") -> None:
        """Raises an error if JAX refuses part of the output, with its path.

        Args:
            name: The name of the function.
            called: What the output is called.

        Raises:
            TypeError: With the path.
        """
        if are_known_arrays(jax.tree.leaves(self.out)):
            return  # the usual case, decided by types
        pairs = jax.tree_util.tree_flatten_with_path(self.out)[0]
        for number, leaf, error in refused([leaf for _, leaf in pairs]):
            place = path_text((called, *key_path(pairs[number][0])))
            raise TypeError(
                f"{name!r} returned a value of type {type(leaf).__name__} at "
                f"{place!r}, which JAX does not accept: {leaf_text(leaf)}. Return "
                "arrays; an attribute of an object may be anything."
            ) from error


def refused(values: Iterable[Any]) -> Iterator[tuple[int, Any, TypeError]]:
    """Finds values with a leaf that JAX refuses: number of value, leaf, error."""
    for number, value in enumerate(values):
        for leaf in jax.tree.leaves(value):
            try:
                jax.typeof(leaf)
            except TypeError as error:
                yield number, leaf, error


def same_value(a: Any, b: Any) -> bool:
    """Whether two raw values are the very same arrays."""
    return values_equal(a, b, is_)
