"""Whether two runs leave the same behind, and where they differ if not.

Branches must agree with each other, and the body of a loop with what it was given: on
the structure of all objects, on which object stands where, and on shapes and dtypes.
What a run left is described here without its values, so that a description may outlive
the trace in which it was made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import jax

from graphcore import (
    GraphDef,
    NodeDef,
    NodeRef,
    Static,
    SubGraphAttribute,
    VariableDef,
    diff,
)
from graphcore.authors import (
    Body,
    Change,
    Divided,
    Places,
    definition_paths,
    key_path,
    path_text,
)

Path: TypeAlias = tuple[Any, ...]
_MAX_LINES = 10
_RESHARD = " (`jax.sharding.reshard`, or `jax.lax.pcast` in `shard_map`, changes that)"
_NOTHING = Places(jax.tree.structure(None), ())


@dataclass(frozen=True)
class Description:
    """What a run was given, or what it left.

    Args:
        graph: The definitions of all objects, below the names of their places.
        origins: For the index in it of each object that was given, where it stood.
        avals: The abstract values of the variables, by index.
        tree: The pytree without objects, abstract values in the place of arrays.
    """

    graph: GraphDef[Any]
    origins: dict[int, str]
    avals: dict[int, Any]
    tree: Any

    def check_graph(self, other: Description, message: str) -> None:
        """Checks that the same objects stand in the same structure.

        Args:
            other: What should agree with this.
            message: What to say if it does not; a list of differences follows.

        Raises:
            ValueError: If they differ, with the paths.
        """
        if self.graph != other.graph:
            found = diff(self.graph, other.graph)
            raise failure(ValueError, message, [str(d) for d in found])
        if self.origins != other.origins:
            raise failure(ValueError, message, list(self._rewired(other)))

    def _rewired(self, other: Description) -> Iterator[str]:
        # The graphs look alike, but not the same objects stand in the same places.
        for path, item in defined(self.graph):
            old, new = (_origin(d.origins.get(item.index)) for d in (self, other))
            if old != new:
                yield f"{path_text(path)}: holds {old} -> {new}"

    def check_values(self, other: Description, message: str) -> None:
        """Checks that shapes and dtypes are the same.

        Args:
            other: What should agree with this, and whose graph does.
            message: What to say if it does not; a list of differences follows.

        Raises:
            TypeError: If they differ, with the paths.
        """
        found: list[str] = []
        for path, item in defined(self.graph):
            if isinstance(item, VariableDef):
                old, new = (d.avals[item.index] for d in (self, other))
                found += type_differences(path, old, new)
        found += type_differences((), self.tree, other.tree)
        if found:
            raise failure(TypeError, message, found)


def combined(children: Iterable[tuple[Any, Any]]) -> GraphDef[Any]:
    """The definition of one node with several definitions below it.

    Args:
        children: For each its key and the definition.
    """
    attributes = tuple(SubGraphAttribute(key, x) for key, x in children)
    return NodeDef(tuple, -1, attributes)


def defined(graph: GraphDef[Any]) -> Iterator[tuple[Path, Any]]:
    """The first path of each graph node and variable below a node of `combined`.

    Args:
        graph: The definition.

    Yields:
        The path, and the definition of what stands there.
    """
    for path, item in definition_paths(graph):
        if isinstance(item, NodeDef | VariableDef) and item.index != -1:
            yield path, item


def describe_left(
    body: Body,
    change: Change,
    values: Sequence[Any],
    new: Sequence[Any],
    out: Any,
) -> Description:
    """Describes what a function left behind.

    Args:
        body: The function.
        change: What it did.
        values: For each variable of the inputs the value that it has now.
        new: The values of those that it made, in order.
        out: What it returned, without objects; arrays may be abstract.

    Returns:
        Its description.
    """
    joint, names = body.structure.joint, _names(body)
    before = combined(zip(names, joint.definitions, strict=True))
    given = {item.index: path_text(path) for path, item in defined(before)}
    origins = {index: given[old] for index, old in change.mapping}
    pairs = zip(joint.variable_definitions, values, strict=True)
    known = {definition.index: value for definition, value in pairs}
    # An array whose attribute was removed is nowhere.
    avals = {i: outline(known[old]) for i, old in change.mapping if old in known}
    written = zip(change.positions, change.indices, strict=True)
    made = [index for position, index in written if position is None]
    avals.update(zip(made, map(outline, new), strict=False))
    # Roots, removed and returned objects are the children of one node.
    roots: Sequence[Any] = change.definitions or joint.definitions
    children: list[tuple[str, Any]] = [*zip(names, roots, strict=True)]
    children += [
        (f"{origins[definition.index]} (removed)", definition)
        for definition in change.detached
        if isinstance(definition, NodeDef | VariableDef)
    ]
    whole = change.places.fill(out, [object()] * len(change.returned))
    seen: set[int] = set()
    for path, number in change.places.paths(whole):
        definition: Any = change.returned[number]
        if number in seen:
            definition = NodeRef(definition.type, definition.index)
        children.append((path_text(("returned", *path)), definition))
        seen.add(number)
    return Description(
        combined(children), origins, avals, outline({body.out_called: out})
    )


def check_unchanged(body: Body, change: Change, message: str) -> None:
    """Checks that a function left the structure of its objects alone.

    Args:
        body: The function.
        change: What it did.
        message: What to say otherwise; a list of differences follows.

    Raises:
        ValueError: If it did not, with the paths.
    """
    if change.definitions is None:
        return
    joint = body.structure.joint
    values = [None] * len(joint.paths)
    same = Change((), (), joint.identity, _NOTHING)
    after = replace(change, places=_NOTHING, detached=())
    before = describe_left(body, same, values, (), None)
    before.check_graph(describe_left(body, after, values, (), None), message)


def merged_change(body: Body, changes: Sequence[Change]) -> Change:
    """Combines the changes of runs that agree but may have written other variables.

    Args:
        body: Any of them.
        changes: At least one.

    Returns:
        A change whose values are those of the inputs' variables that any run wrote,
        in order, and then those of the new variables.
    """
    last = changes[-1]
    written = sorted({p for c in changes for p in c.positions if p is not None})
    pairs = zip(last.positions, last.indices, strict=True)
    new = [index for position, index in pairs if position is None]
    new_index = {old: new for new, old in last.mapping}
    joint = body.structure.joint
    definitions = joint.variable_definitions
    # Each run tells a container by the first array that it wrote there.
    ways = {number: (owner, path) for number, owner, path in joint.layout.bare}
    renewed: dict[Any, tuple[int, int]] = {}
    for depth, position in sorted({x for change in changes for x in change.renewed}):
        owner, path = ways[position]
        renewed.setdefault((owner, path[:depth]), (depth, position))
    return replace(
        last,
        positions=(*written, *(None for _ in new)),
        indices=(*(new_index[definitions[p].index] for p in written), *new),
        has_divided=any(change.has_divided for change in changes),
        renewed=tuple(renewed.values()),
        numbers=(),  # Arrays leave the branches.
    )


def failure(kind: type[Exception], message: str, lines: Sequence[str]) -> Exception:
    """Makes an error that lists differences, or the first of them.

    Args:
        kind: The type of the error.
        message: What it says first.
        lines: One for each difference.

    Returns:
        The error, to be raised.
    """
    shown = [f"  {line}" for line in lines[:_MAX_LINES]]
    if len(lines) > len(shown):
        shown.append(f"  ... {len(lines) - len(shown)} more")
    return kind("\n".join([message, *shown]))


def has_type(x: Any) -> bool:
    """Tells whether JAX takes a leaf of a pytree as an array.

    Args:
        x: Anything.

    Returns:
        Whether `jax.typeof` knows its type.

    Example:
        >>> has_type(1.0), has_type('relu')
        (True, False)
    """
    try:
        return jax.typeof(x) is not None
    except TypeError:
        return False


def _origin(place: str | None) -> str:
    return "a new object" if place is None else f"what stood at {place}"


def _names(body: Body) -> list[str]:
    """What the roots are called: by the place where each stands first."""
    definitions: Sequence[Any] = body.structure.joint.definitions
    return [
        f"self ({d.type.__name__})" if place == ("self",) else path_text(place)
        for place, d in zip(body.first_places, definitions, strict=True)
    ]


def outline(value: Any) -> Any:
    """A pytree with the type of each leaf in its place.

    Args:
        value: A pytree of arrays.

    Returns:
        The pytree; where a class refuses to be made of types, these by path, beside
        the structure.

    Example:
        >>> outline({'w': 1.0})['w'].shape
        ()
    """
    leaves, structure = jax.tree.flatten(value)
    types = [*map(jax.typeof, leaves)]
    try:
        return structure.unflatten(types)
    except Exception:  # whatever it raises
        pairs = jax.tree_util.tree_leaves_with_path(value)
        paths = [path_text(key_path(path)) for path, _ in pairs]
        return dict(zip(paths, types, strict=True)), Static(structure)


def type_differences(
    path: Path, old: Any, new: Any, promotes: bool = False
) -> Iterator[str]:
    """Where the structures, shapes and dtypes of two pytrees differ.

    Args:
        path: Where they stand.
        old: The one, as `outline` gives it.
        new: The other.
        promotes: Whether a weak type in `old` may be any dtype in `new`.

    Yields:
        A line for each leaf that differs, of what is static in them, too.

    Example:
        >>> import jax.numpy as jnp
        >>> pair = outline([1, jnp.ones(2)]), outline([1, jnp.ones(3)])
        >>> [*type_differences(('w',), *pair)]
        ['w/1: float32[2] -> float32[3]']
    """
    # Whole, so that the paths are those that users know.
    trees = [Divided.map(Divided.join, tree) for tree in (old, new)]
    of_old, of_new = (
        {
            path_text((*path, *key_path(place))): aval
            for place, aval in jax.tree_util.tree_flatten_with_path(tree)[0]
        }
        for tree in trees
    )
    found = False
    for place in dict.fromkeys([*of_old, *of_new]):
        a, b = of_old.get(place), of_new.get(place)
        if not _agree(a, b, promotes):
            found = True
            # Whether a dtype is a weak one makes no difference here.
            texts = [
                "(none)" if x is None else str(x).removeprefix("~") for x in (a, b)
            ]
            hint = _RESHARD if _agree(a, b, promotes, anywhere=True) else ""
            yield f"{place}: {' -> '.join(texts)}{hint}"
    if not found:
        yield from _static_differences(path, *trees)


def _static_differences(path: Path, old: Any, new: Any) -> Iterator[str]:
    """Lines for the innermost nodes of two pytrees whose static parts differ."""
    if jax.tree.structure(old) == jax.tree.structure(new):
        return
    (pairs, node), (others, other) = (
        jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x, t=tree: x is not t)
        for tree in (old, new)
    )
    if node != other:
        yield f"{path_text(path)}: {node} -> {other}"
        return
    for (way, x), (_, y) in zip(pairs, others, strict=True):
        yield from _static_differences((*path, *key_path(way)), x, y)


def value_differences(
    body: Body, before: Sequence[Any], after: Sequence[Any], promotes: bool = False
) -> list[str]:
    """As `type_differences`, of the values of variables.

    Args:
        body: The function that was given these variables.
        before: One value for each.
        after: Another.
        promotes: As for `type_differences`.

    Returns:
        A line for each leaf that differs, with its path from the arguments.
    """
    found: list[str] = []
    for position, (old, new) in enumerate(zip(before, after, strict=True)):
        if old is not new:
            path = body.variable_path(position)
            found += type_differences(path, outline(old), outline(new), promotes)
    return found


def _agree(a: Any, b: Any, promotes: bool, anywhere: bool = False) -> bool:
    # What is static may have one of the two: a dtype has a shape.
    if not all(hasattr(x, name) for x in (a, b) for name in ("shape", "dtype")):
        return bool(a == b)
    may_promote = promotes and getattr(a, "weak_type", False)
    same = a.shape == b.shape and (may_promote or a.dtype == b.dtype)
    # On a mesh, the text of a type has the axes behind the dtype: `f32[4@x]{V:y}`.
    behind, other = (str(x).partition("[")[2] for x in (a, b))
    return bool(same and (anywhere or behind == other))
