"""Several graphs in one index space.

A function of a model and an optimizer that refers to it is a function of two roots
whose graphs overlap. `joint_of` describes them together, as if the roots were the
children of one node: what the first root reaches comes first, and what a later one
reaches again is a reference.

What is known of the roots together is kept with the plan of the first, holds no object
of any graph, and stands as long as all of their plans do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import call
from typing import Any

from graphcore.graphdef import (
    GraphDef,
    NodeDef,
    VariableDef,
    definition_paths,
    interned,
)
from graphcore.owned import OwnedNode
from graphcore.patterns import Pattern
from graphcore.plans import Plan, kept_plan, plan_of
from graphcore.refmap import RefMap
from graphcore.trails import Path, Trail, path_of
from graphcore.variable_impl import VariableImpl, variable_impl
from graphcore.walk import Visit, walk

__all__ = ["Joint", "joint_of"]

_MAX_COMBINED = 16


class Joint:
    """The definitions and variables of several roots in one index space.

    Attributes:
        definitions: One for each root; hashable as a tuple.
        variable_definitions: Those of the variables, in order of index.
        covered: Whether each root is part of the graph of another one, so that its
            plan holds if that one's does.
        notes: What others keep with it; nothing that holds an object.
    """

    __slots__ = (
        "_chosen",
        "_find_paths",
        "_getters",
        "_identity",
        "_impls",
        "_paths",
        "_pattern",
        "covered",
        "definitions",
        "notes",
        "variable_definitions",
    )

    def __init__(self, roots: Sequence[Any], plans: Sequence[Plan]) -> None:
        self.notes: dict[Any, Any] = {}
        self._find_paths: Callable[[], tuple[Path, ...]]
        self._getters: list[Callable[[Any], Any]] | None = None
        self._impls: list[VariableImpl] | None = None
        self._paths: tuple[Path, ...] | None = None
        self._pattern: Pattern | bool | None = None
        self._identity: tuple[tuple[int, int], ...] | None = None
        if len(roots) == 1:
            layout = plans[0].layout
            self.definitions: tuple[GraphDef[Any], ...] = (layout.root,)
            self.variable_definitions: tuple[VariableDef[Any], ...] = layout.definitions
            self._find_paths = lambda: tuple((0, *path) for path in layout.paths)
            # Which of each plan's variables are not in an earlier one; None for all.
            self._chosen: list[list[int] | None] = [None]
            self.covered: tuple[bool, ...] = (False,)
            return
        refs: RefMap[Any, int] = RefMap()
        visit = Visit()
        known: RefMap[Any, None] = RefMap()
        definitions: list[GraphDef[Any]] = []
        trails: list[tuple[int, Trail]] = []
        self._chosen = []
        covered = [False] * len(roots)
        for number, (root, plan) in enumerate(zip(roots, plans, strict=True)):
            first = len(visit.leaves)
            covered[number] = root in refs
            if isinstance(root, OwnedNode):
                # An earlier root inside this one; were it the other way round as well,
                # this one would be covered by it already.
                for earlier in range(number):
                    if not covered[number] and plan.contains(roots[earlier]):
                        covered[earlier] = True
            definitions.append(interned(walk(root, refs, visit)))
            trails += [(number, leaf.trail) for leaf in visit.leaves[first:]]
            new = [i for i, v in enumerate(plan.variables) if v not in known]
            self._chosen.append(None if len(new) == len(plan.variables) else new)
            known.update((v, None) for v in plan.variables)
        self.covered = tuple(covered)
        self.definitions = tuple(definitions)
        self.variable_definitions = tuple(leaf.definition for leaf in visit.leaves)
        self._find_paths = lambda: tuple(
            (number, *path_of(trail)) for number, trail in trails
        )

    @property
    def paths(self) -> tuple[Path, ...]:
        """The path of each variable; the number of its root comes first."""
        if self._paths is None:
            self._paths = self._find_paths()
        return self._paths

    @property
    def impls(self) -> list[VariableImpl]:
        """How each variable is handled."""
        if self._impls is None:
            kinds = [d.type for d in self.variable_definitions]
            self._impls = list(map(variable_impl, kinds))
        return self._impls

    @property
    def getters(self) -> list[Callable[[Any], Any]]:
        """How the value of each variable is read."""
        if self._getters is None:
            self._getters = [impl.get_value for impl in self.impls]
        return self._getters

    @property
    def identity(self) -> tuple[tuple[int, int], ...]:
        """The index of each node and variable, with itself."""
        if self._identity is None:
            members: set[int] = set()
            for definition in self.definitions:
                for _, item in definition_paths(definition):
                    if isinstance(item, NodeDef | VariableDef) and item.index != -1:
                        members.add(item.index)
            self._identity = tuple((index, index) for index in sorted(members))
        return self._identity

    @property
    def pattern(self) -> Pattern | None:
        """What graphs of these definitions look like; None if one can't tell."""
        if self._pattern is None:
            try:
                self._pattern = Pattern(self.definitions)
            except ValueError:
                self._pattern = False
        return self._pattern or None  # type: ignore[return-value]

    def variables(self, plans: Sequence[Plan]) -> list[Any]:
        """The variables of all roots in order of index."""
        if len(plans) == 1:
            return plans[0].variables
        found: list[Any] = []
        for plan, chosen in zip(plans, self._chosen, strict=True):
            own = plan.variables
            found += own if chosen is None else [own[i] for i in chosen]
        return found

    def all_owned(self, plans: Sequence[Plan]) -> bool:
        """Whether all of the variables are `Variable`s."""
        if len(plans) == 1:
            return plans[0].all_owned
        return all(plan.all_owned for plan in plans)

    def read(self, plans: Sequence[Plan]) -> tuple[list[Any], list[Any], bool]:
        """The variables of all roots with their raw values.

        Args:
            plans: The plans of the roots.

        Returns:
            The variables and a value for each, in order of index; and whether all of
            them are `Variable`s.
        """
        if len(plans) == 1:  # as in most calls
            plan = plans[0]
            variables, all_owned = plan.variables, plan.all_owned
        else:
            variables, all_owned = self.variables(plans), self.all_owned(plans)
        if all_owned:
            return variables, [variable._raw_value for variable in variables], True
        return variables, list(map(call, self.getters, variables)), False

    def values(self, plans: Sequence[Plan]) -> list[Any]:
        """The raw values of the variables of all roots in order of index."""
        return self.read(plans)[1]


def joint_of(roots: Sequence[Any]) -> tuple[Joint, list[Plan]]:
    """Describes the graphs of several roots together.

    Args:
        roots: Nodes and variables, each once.

    Returns:
        The description, and the plan of each root; both hold now.

    Raises:
        ValueError: As `walk` does.

    Example:
        >>> import graphcore as gc
        >>> shared = gc.Param(1)
        >>> joint, plans = joint_of([gc.Dict(a=shared), gc.Dict(b=shared)])
        >>> joint.paths
        ((0, 'a'),)
    """
    if len(roots) == 1:
        plan = plan_of(roots[0])
        layout = plan.layout
        if layout.joint is None:
            layout.joint = Joint(roots, (plan,))
        alone: Joint = layout.joint
        return alone, [plan]
    if not roots:
        return _NOTHING, []
    kept = [plan for plan in map(kept_plan, roots) if plan is not None]
    if len(kept) == len(roots):
        joint = kept[0].combined.get(_numbers(kept))
        if joint is not None:
            for plan, root, is_covered in zip(kept, roots, joint.covered, strict=True):
                if not is_covered and not plan.holds(root):
                    break
            else:
                return joint, kept
    plans = [plan_of(root) for root in roots]
    known = plans[0].combined
    joint = known.get(_numbers(plans))
    if joint is None:
        joint = Joint(roots, plans)
        if len(known) >= _MAX_COMBINED:
            known.clear()
        known[_numbers(plans)] = joint
    return joint, plans


def _numbers(plans: Sequence[Plan]) -> tuple[int, ...]:
    return tuple([plan.number for plan in plans])


_NOTHING = Joint((), ())
