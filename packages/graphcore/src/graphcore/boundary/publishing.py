"""Bringing what a function did to the caller's objects: all of it, or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graphcore.boundary.change import Change
from graphcore.cache.plans import Plan, check_writes
from graphcore.graphdef.build import Builder
from graphcore.graphdef.joint import Joint
from graphcore.graphdef.walk import Visit, walk
from graphcore.undo import undoing


def publish(
    roots: Sequence[Any],
    variables: Sequence[Any],
    joint: Joint,
    plans: Sequence[Plan],
    change: Change,
    values: Sequence[Any],
    out: Any,
    *,
    write: bool = True,
    now: Sequence[Any] = (),
) -> Any:
    """Brings what a function did to the caller's objects: all of it, or nothing.

    Args:
        roots: The objects.
        variables: Their variables, in order of index.
        joint: Their description.
        plans: Their plans.
        change: What the function did to the structure.
        values: One for each of the change's positions.
        out: The output with None in the place of objects.
        write: Whether to touch the caller's objects. If not, only the output is put
            together.
        now: The values of all variables, as JAX took them.

    Returns:
        The output with objects: the caller's own where it had them.

    Raises:
        ValueError: If a foreign type refuses.
    """
    if change.has_divided:
        values = change.joined(values, now)
    if change.definitions is None:
        returned = _known(change, roots, variables, joint)
        if returned is not None:
            if values and write:
                chosen = [variables[p] for p in change.positions]  # type: ignore[index]
                check_writes(plans, chosen)
                change.write(variables, values, joint.layout)
            return change.places.fill(out, returned)
    outer = _by_index(roots, variables, joint)
    existing = {new: outer[old] for new, old in change.mapping if old in outer}
    if change.definitions is not None or not change.referred <= existing.keys():
        visit = Visit()
        for root in roots:
            walk(root, visit)
        outer = {index: x for x, index in visit.refs.items()}
        existing = {new: outer[old] for new, old in change.mapping}
    leaves = {
        index: (value, None)
        for index, value in zip(change.indices, values, strict=True)
    }
    builder = Builder(leaves, {}, existing, copied=True)
    only_written = change.definitions is None
    if write and only_written:
        check_writes(plans, [variables[p] for p in change.positions if p is not None])
    with undoing() as undo:
        if write:
            # First, while the containers of the caller are still in their places:
            # what the rest leaves alone keeps the container that others hold as well.
            change.overwrite(
                variables, values, joint.layout, undo, only_bare=not only_written
            )
        # In the order in which they were found: later ones refer to earlier ones.
        _, returned, _ = map(builder.build_all, change.layouts)
        if write:
            builder.commit(undo)
    return change.places.fill(out, returned)


def _known(
    change: Change, roots: Sequence[Any], variables: Sequence[Any], joint: Joint
) -> list[Any] | None:
    """The returned objects, if all of them are roots or variables of the caller.

    These are found without a walk; None if another one is among them.
    """
    returned: Sequence[Any] = change.returned
    if not returned:
        return []
    outer = _by_index(roots, variables, joint)
    old = dict(change.mapping)
    found = [outer.get(old.get(d.index, -1)) for d in returned]
    return None if any(x is None for x in found) else found


def _by_index(
    roots: Sequence[Any], variables: Sequence[Any], joint: Joint
) -> dict[int, Any]:
    """The objects of the caller that are found without a walk, by index."""
    definitions: list[Any] = [*joint.definitions, *joint.variable_definitions]
    objects = [*roots, *variables]
    return {d.index: x for d, x in zip(definitions, objects, strict=True)}
