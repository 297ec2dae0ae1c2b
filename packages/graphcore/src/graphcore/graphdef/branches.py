"""Bare arrays that stand in one pytree, which are read and written together.

A pytree below a graph node, such as a state of optax or a module of Equinox, may hold
many arrays, each of which has a place of its own. To go from the node to each of them
takes steps of Python's for every key. JAX takes all leaves out of a pytree at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import is_, itemgetter
from typing import Any

import jax

from graphcore.divided.divided import Divided, divide, remembered
from graphcore.divided.frames import Frame
from graphcore.nodes.registry import nodes_as_in_jax
from graphcore.trails import Path
from graphcore.variables.bare_arrays import FEW, BareArray, is_array, write_places

# So few are read and written one by one, whatever is on the way to them.
_VERY_FEW = 2


class Branch:
    """The bare arrays in one pytree that is a child of a graph node.

    Args:
        places: For each its number among the variables, and the keys from the node.
    """

    def __init__(self, places: Sequence[tuple[int, Path]]) -> None:
        numbers = self.numbers = [number for number, _ in places]
        self._set = frozenset(numbers)
        self._is_row = numbers[-1] - numbers[0] == len(numbers) - 1
        # What there is around the arrays, once it is known to be as JAX has it.
        self._frame: Frame | None = None
        # How many nodes are on the way to the arrays; and how many a function must have
        # renewed before the pytree is replaced, as others may hold a dict or list.
        ways = {path[:end] for _, path in places for end in range(1, len(path))}
        self._ways, self._to_renew = len(ways), 0

    def read(self, variables: Sequence[Any], values: list[Any]) -> bool:
        """Puts the arrays into the places of their variables.

        Args:
            variables: The variables of a graph.
            values: Their values, where these of the branch are missing.

        Returns:
            Whether it is worth to read them together the next time.
        """
        numbers = self.numbers
        tree = variables[numbers[0]].branch()
        found = self._found(tree)
        if found is None:
            found = [variables[number].get() for number in numbers]
            self._learn(tree, found)
        if self._is_row:
            values[numbers[0] : numbers[-1] + 1] = found
        else:
            for number, value in zip(numbers, found, strict=True):
                values[number] = value
        return self._frame is not None

    def write(
        self,
        variables: Sequence[Any],
        values: dict[int, Any],
        renewed: Sequence[tuple[int, int]],
        undo: list[Callable[[], Any]],
    ) -> None:
        """Puts another pytree there, if all arrays are new and so is all around them.

        Args:
            variables: The variables of a graph.
            values: What is written, by the number of the variable; what was, is gone
                from there then.
            renewed: As `Change.renewed`.
            undo: The steps of `undoing`.
        """
        frame, numbers = self._frame, self.numbers
        if frame is None or not self._set <= values.keys():
            return
        if self._to_renew:
            inside = map(self._set.__contains__, map(itemgetter(1), renewed))
            if self._to_renew != sum(inside):
                return
        first: BareArray = variables[numbers[0]]
        made = self._with(first.branch(), [*map(values.__getitem__, numbers)])
        if made is not None:
            for number in numbers:
                del values[number]
            write_places([BareArray.at(first.holder, first.path[:1])], [made], undo)

    def _with(self, tree: Any, arrays: Sequence[Any]) -> Any:
        """The pytree with other arrays; None if there is something else around them."""
        frame: Any = self._frame
        if frame.is_fixed:
            now = _divided(tree)
            if now is None or now.frame != frame:
                return None
            return Divided(arrays, now.frame).join()
        leaves, structure = jax.tree.flatten(tree)
        if structure != frame.structure:
            return None
        for leaf, array in zip(frame.given, arrays, strict=True):
            leaves[leaf] = array
        return structure.unflatten(leaves)

    def _found(self, tree: Any) -> Sequence[Any] | None:
        """The arrays, if the pytree is known to have them in this order."""
        frame = self._frame
        if frame is None:
            return None
        whole = _divided(tree) if frame.is_fixed else remembered(tree)
        if whole is not None or frame.is_fixed:
            return None if whole is None or whole.frame != frame else whole.arrays
        leaves, structure = jax.tree.flatten(tree)
        if structure != frame.structure:
            return None
        return [*map(leaves.__getitem__, frame.given)]

    def _learn(self, tree: Any, arrays: Sequence[Any]) -> None:
        nodes = nodes_as_in_jax(tree)
        if nodes is None or (
            len(arrays) <= FEW and {*map(type, nodes)} <= {dict, list, tuple}
        ):
            return
        whole = _divided(tree)
        if whole is None or len(arrays) != len(whole.arrays):
            return
        if all(map(is_, arrays, whole.arrays)):
            self._frame = whole.frame
            containers = [x for x in nodes if type(x) in (dict, list)]
            if containers:
                # What has no arrays in it is on no way, so it is never renewed.
                leaves = map(jax.tree.leaves, containers)
                others = [found for found in leaves if not any(map(is_array, found))]
                self._to_renew = self._ways + len(others)


def _divided(tree: Any) -> Divided | None:
    try:
        return divide(tree)
    except (TypeError, ValueError):  # What is static in it can't be hashed.
        return None


def branches_of(bare: Sequence[tuple[int, int, tuple[Any, ...]]]) -> list[Branch]:
    """Groups bare arrays by the pytree that they stand in.

    Args:
        bare: As `Layout.bare`.
    """
    groups: dict[Any, list[tuple[int, Path]]] = {}
    for number, owner, path in sorted(bare, key=lambda each: each[0]):
        if len(path) > 1:  # Else it is a child of the node itself.
            groups.setdefault((owner, path[0]), []).append((number, path))
    return [Branch(places) for places in groups.values() if len(places) > _VERY_FEW]
