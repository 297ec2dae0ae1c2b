"""Several graphs in one index space.

A function of a model and an optimizer that refers to it is a function of two roots
whose graphs overlap. `joint_of` describes them together, as if the roots were the
children of one node: what the first root reaches comes first, and what a later one
reaches again is a reference.

What is known of the roots together is kept with the plan of the first, holds no object
of any graph, and stands as long as all of their plans do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graphcore.cache.patterns import Pattern, pattern_of
from graphcore.cache.plans import Plan, kept_plan, plan_of
from graphcore.graphdef.definition import GraphDef, VariableDef, interned
from graphcore.graphdef.layouts import layout_of
from graphcore.graphdef.recipes import recipe_of
from graphcore.graphdef.walk import Visit, walk
from graphcore.trails import Path

_MAX_COMBINED = 16


class Joint:
    """The definitions and variables of several roots in one index space.

    Attributes:
        definitions: One for each root; hashable as a tuple.
        layout: They as lists.
        covered: Whether each root is part of the graph of another one, so that its
            plan holds if that one's does.
    """

    __slots__ = ("_chosen", "covered", "definitions", "layout")

    def __init__(self, roots: Sequence[Any], plans: Sequence[Plan]) -> None:
        visit = Visit()
        definitions: list[GraphDef[Any]] = []
        # Which of each plan's variables are not in an earlier one; None for all.
        self._chosen: list[list[int] | None] = []
        covered = [False] * len(roots)
        numbers: dict[int, int] = {}  # from 1
        for number, (root, plan) in enumerate(zip(roots, plans, strict=True)):
            if len(roots) == 1:
                definitions.append(plan.definition)
                break
            covered[number] = root in visit.refs
            if not covered[number]:
                # Earlier roots may be inside this one. Were it inside one of them as
                # well, it would be covered already.
                for earlier in filter(None, map(numbers.get, map(id, plan.nodes))):
                    covered[earlier - 1] = True
            numbers[id(root)] = number + 1
            new = [i for i, v in enumerate(plan.variables) if v not in visit.refs]
            self._chosen.append(None if len(new) == len(plan.variables) else new)
            definitions.append(interned(walk(root, visit)))
        self.covered = tuple(covered)
        self.definitions = tuple(definitions)
        self.layout = layout_of(self.definitions)

    @property
    def variable_definitions(self) -> tuple[VariableDef[Any], ...]:
        """The definitions of the variables, in order of index."""
        return self.layout.definitions

    @property
    def paths(self) -> tuple[Path, ...]:
        """The path of each variable; the number of its root comes first."""
        return self.layout.root_paths

    @property
    def identity(self) -> tuple[tuple[int, int], ...]:
        """The index of each node and variable, with itself."""
        return tuple([(index, index) for index in self.layout.indices])

    @property
    def pattern(self) -> Pattern | None:
        """What graphs of these definitions look like; None if one can't tell."""
        return pattern_of(*self.definitions)

    def build(self, values: Sequence[Any]) -> tuple[Sequence[Any], ...]:
        """Makes new graphs of these definitions.

        Args:
            values: A raw value for each variable, in order of index.

        Returns:
            The objects of all indices, the roots, and the variables.
        """
        return recipe_of(self.layout).build(values)

    def variables(self, plans: Sequence[Plan]) -> list[Any]:
        """The variables of all roots in order of index."""
        if len(plans) == 1:
            return plans[0].variables
        found: list[Any] = []
        for plan, chosen in zip(plans, self._chosen, strict=True):
            own = plan.variables
            found += own if chosen is None else [own[i] for i in chosen]
        return found


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
        alone: Joint | None = plan.combined.get(())
        if alone is None:
            alone = plan.combined[()] = Joint(roots, (plan,))
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
