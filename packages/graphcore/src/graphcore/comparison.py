"""How two graphs differ, path by path.

Two definitions are walked side by side. What stands at the same path in both is
compared; indices are not, because one more variable shifts all that follow. Two
references are the same if what they refer to stands at the same place in both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp

from graphcore.content import static_key
from graphcore.display.printing import one_line
from graphcore.errors import path_text
from graphcore.graphdef.definition import (
    GraphDef,
    NodeDef,
    NodeRef,
    StaticAttribute,
    VariableDef,
    definition_trails,
)
from graphcore.graphdef.walk import Visit, walk
from graphcore.hashable_mapping import HashableMapping
from graphcore.refmap import RefMap
from graphcore.trails import Path, Trail, key_of, path_of
from graphcore.variables.impl import is_variable_type

__all__ = ["diff"]

_MAX_LINES = 1000


@dataclass(frozen=True)
class Difference:
    """One way in which two graphs differ.

    Args:
        path: Where, from the root.
        kind: In what respect:

            - `missing`, `extra`: only the first, only the second has the attribute;
            - `type`: of a node, or of what takes the place of one;
            - `variable type`, `metadata`: of a variable; `metadata` of a node as well,
              where its type keeps some;
            - `static`: the value of a static attribute;
            - `sharing`: the path of the earlier place that holds the same object, None
              if this is the first place;
            - `structure`, `shape`, `dtype`, `weak type`: of a variable's value; `value`
              for what is no array in it;
            - `order`: of a node's keys;
            - `index`, `index mapping`: how objects are numbered, only told where
              nothing else differs.
        old: In the first graph; for `metadata`, the entries that differ.
        new: In the second.

    Example:
        >>> print(Difference(('layers', 0, 'kernel'), 'shape', (2, 3), (2, 4)))
        layers/0/kernel: shape (2, 3) -> (2, 4)
    """

    path: Path
    kind: str
    old: Any
    new: Any

    def __str__(self) -> str:
        old, new = self._sides()
        return f"{path_text(self.path)}: {self.kind} {old} -> {new}"

    def _sides(self) -> tuple[str, str]:
        if self.kind == "sharing":
            return _shared_text(self.old), _shared_text(self.new)
        if self.kind == "dtype":
            return str(self.old), str(self.new)
        old = "(none)" if self.kind == "extra" else one_line(self.old, 60)
        new = "(none)" if self.kind == "missing" else one_line(self.new, 60)
        if old != new:
            return old, new
        if isinstance(self.old, type) and isinstance(self.new, type):
            return (
                f"{self.old.__module__}.{self.old.__qualname__}",
                f"{self.new.__module__}.{self.new.__qualname__}",
            )
        return old, f"{new} (another one)"


def _shared_text(first: Any) -> str:
    if first is None:
        return "not shared"
    if isinstance(first, int):
        return f"shared with index {first}"
    return f"shared with {path_text(first)}"


class Differences(list[Difference]):
    """A list of differences that prints as a table.

    Example:
        >>> Differences([Difference(('a',), 'static', 1, 2)])
        a  static  1 -> 2
        >>> Differences()
        []
    """

    def __repr__(self) -> str:
        rows = [
            (path_text(d.path), d.kind, "{} -> {}".format(*d._sides()))
            for d in self[:_MAX_LINES]
        ]
        if not rows:
            return "[]"
        paths = max(len(path) for path, _, _ in rows)
        kinds = max(len(kind) for _, kind, _ in rows)
        lines = [f"{path:{paths}}  {kind:{kinds}}  {how}" for path, kind, how in rows]
        if len(self) > len(lines):
            lines.append(f"... {len(self) - len(lines)} more")
        return "\n".join(lines)

    __str__ = __repr__


def diff(a: Any, b: Any, /) -> Differences:
    """Lists how two nodes, or two graph definitions, differ.

    Args:
        a: A node, a variable, or a graph definition.
        b: Likewise. If one of the two is a definition, only definitions are compared,
            since it has no values.

    Returns:
        The differences, in the order in which a walk meets them. None means that the
        definitions are equal, and the shapes and dtypes of all values.

    Raises:
        ValueError: If one is neither a node nor a definition, or can't be flattened.

    Example:
        >>> import graphcore as gc, jax.numpy as jnp
        >>> tied = gc.Dict(encode=gc.Param(jnp.ones((2, 3))), rate=0.1)
        >>> tied.decode = tied.encode
        >>> untied = gc.clone(tied)
        >>> gc.diff(tied, untied)
        []
        >>> untied.encode, untied.rate = gc.Param(jnp.ones((2, 4))), 0.5
        >>> gc.diff(tied, untied)
        encode  sharing  shared with decode -> not shared
        encode  shape    (2, 3) -> (2, 4)
        rate    static   0.1 -> 0.5
    """
    if isinstance(a, GraphDef) or isinstance(b, GraphDef):
        return definition_differences(_taken_apart(a)[0], _taken_apart(b)[0])
    a_def, a_values = _taken_apart(a)
    b_def, b_values = _taken_apart(b)
    return definition_differences(a_def, b_def, a_values, b_values)


def _taken_apart(x: Any) -> tuple[GraphDef[Any], list[Any]]:
    if isinstance(x, GraphDef):
        return x, []
    visit = Visit()
    definition = walk(x, RefMap(), visit)
    return definition, [leaf.impl.get_value(leaf.variable) for leaf in visit.leaves]


def definition_differences(
    a_def: GraphDef[Any],
    b_def: GraphDef[Any],
    a_values: Sequence[Any] | None = None,
    b_values: Sequence[Any] | None = None,
    *,
    weak_types: bool = False,
) -> Differences:
    """Lists how two definitions differ, and the shapes and dtypes of their values.

    Args:
        a_def: The first definition.
        b_def: The second.
        a_values: One value for each variable that the first definition contains, in
            order of index: arrays or pytrees of them, or abstract ones. Left out,
            values are not compared.
        b_values: Likewise.
        weak_types: Whether to compare the weak types of the values as well.

    Returns:
        The differences.

    Raises:
        ValueError: If there are more or fewer values than variables.

    Example:
        >>> import graphcore as gc, jax, jax.numpy as jnp
        >>> graphdef = gc.graphdef(gc.Dict(a=gc.Param(0)))
        >>> old, new = (jax.ShapeDtypeStruct((n,), jnp.float32) for n in (2, 3))
        >>> definition_differences(graphdef, graphdef, [old], [new])
        a  shape  (2,) -> (3,)
    """
    comparison = _Comparison(a_def, b_def, weak_types)
    if a_values is not None and b_values is not None:
        comparison.a.set_values(a_values)
        comparison.b.set_values(b_values)
    return comparison.run()


class _Side:
    """One of the two definitions, with an index of what it defines."""

    def __init__(self, root: GraphDef[Any]) -> None:
        self.root = root
        self.places: dict[int, Trail] = {}
        self.values: dict[int, Any] = {}
        self.variables: dict[int, VariableDef[Any]] = {}
        for place, item in definition_trails(root):
            if isinstance(item, NodeDef | VariableDef) and item.index != -1:
                self.places[item.index] = place
            if isinstance(item, VariableDef):
                self.variables[item.index] = item

    def set_values(self, values: Sequence[Any]) -> None:
        if len(values) != len(self.variables):
            raise ValueError(
                f"Expected one value for each of the {len(self.variables)} variables "
                f"of the definition, got {len(values)}."
            )
        self.values = dict(zip(sorted(self.variables), values, strict=True))

    def first(self, item: Any) -> Path | int | None:
        """Where the object that a reference means stands; None for no reference."""
        if not isinstance(item, NodeRef):
            return None
        # The index itself, if the object was flattened before this definition began.
        found = item.index in self.places
        return path_of(self.places[item.index]) if found else item.index


class _Comparison:
    def __init__(self, a: GraphDef[Any], b: GraphDef[Any], weak_types: bool) -> None:
        self.a = _Side(a)
        self.b = _Side(b)
        self.weak_types = weak_types
        self.matches: dict[int, int] = {}  # indices of the same place in both
        self.found: list[tuple[int, Difference]] = []  # with the step of the walk
        self.renumbered: list[tuple[int, Difference]] = []
        self.references: list[tuple[int, Trail, Any, Any]] = []
        self.step = 0

    def run(self) -> Differences:
        pending: list[tuple[Trail, Any, Any]] = [(None, self.a.root, self.b.root)]
        while pending:
            self.step += 1
            place, a, b = pending.pop()
            if a is None:
                self.report(place, "extra", None, _summary(b))
            elif b is None:
                self.report(place, "missing", _summary(a), None)
            elif self.compare(place, a, b):
                pending += reversed(list(self.children(place, a, b)))
        # Now that it is known which objects match.
        for step, place, a, b in self.references:
            if self.same_reference(a, b):
                continue
            self.step = step
            self.report(place, "sharing", self.a.first(a), self.b.first(b))
            a_variable = self.a.variables.get(a.index)
            b_variable = self.b.variables.get(b.index)
            if a_variable is not None and b_variable is not None:
                self.compare_variables(place, a_variable, b_variable)
        self.found.sort(key=lambda entry: entry[0])
        differences = [difference for _, difference in self.found or self.renumbered]
        if not differences and self.a.root != self.b.root:
            differences = [Difference((), "definition", self.a.root, self.b.root)]
        return Differences(differences)

    def report(self, place: Trail, kind: str, old: Any, new: Any) -> None:
        found = self.renumbered if kind.startswith("index") else self.found
        found.append((self.step, Difference(path_of(place), kind, old, new)))

    def compare(self, place: Trail, a: Any, b: Any) -> bool:
        """Compares what stands at one place; tells whether both have children."""
        if isinstance(a, StaticAttribute) and isinstance(b, StaticAttribute):
            if a != b:
                self.report(place, "static", a.value, b.value)
            return False
        if isinstance(a, StaticAttribute) or isinstance(b, StaticAttribute):
            self.report(place, "type", _type_of(a), _type_of(b))
            return False
        if isinstance(a, NodeRef) or isinstance(b, NodeRef):
            self.references.append((self.step, place, a, b))
        if a.type is not b.type:
            both = is_variable_type(a.type) and is_variable_type(b.type)
            self.report(place, "variable type" if both else "type", a.type, b.type)
        if type(a) is not type(b) or isinstance(a, NodeRef):
            return False
        if a.index != -1 and b.index != -1:
            self.matches[a.index] = b.index
        if a.index != b.index:
            self.report(place, "index", a.index, b.index)
        if isinstance(a, VariableDef):
            self.compare_variables(place, a, b)
            return False
        if static_key(a.metadata) != static_key(b.metadata):
            self.report(place, "metadata", a.metadata, b.metadata)
        if a.index_mapping != b.index_mapping:
            self.report(place, "index mapping", a.index_mapping, b.index_mapping)
        return True

    def children(
        self, place: Trail, a: NodeDef[Any], b: NodeDef[Any]
    ) -> Iterator[tuple[Trail, Any, Any]]:
        of_a, of_b = dict(a.children()), dict(b.children())
        orders = [k for k in of_a if k in of_b], [k for k in of_b if k in of_a]
        if orders[0] != orders[1]:
            self.report(place, "order", *map(tuple, orders))
        for key, child in of_a.items():
            yield (place, key), child, of_b.get(key)
        for key, child in of_b.items():
            if key not in of_a:
                yield (place, key), None, child

    def same_reference(self, a: Any, b: Any) -> bool:
        if not (isinstance(a, NodeRef) and isinstance(b, NodeRef)):
            return False
        if a.index in self.a.places or b.index in self.b.places:
            return self.matches.get(a.index) == b.index
        return a.index == b.index

    def compare_variables(
        self, place: Trail, a: VariableDef[Any], b: VariableDef[Any]
    ) -> None:
        if a.metadata != b.metadata:
            names = [
                *a.metadata,
                *(name for name in b.metadata if name not in a.metadata),
            ]
            changed = [n for n in names if _entry(a, n) != _entry(b, n)]
            old, new = (
                {n: x.metadata[n] for n in changed if n in x.metadata} for x in (a, b)
            )
            self.report(place, "metadata", old, new)
        if a.index in self.a.values and b.index in self.b.values:
            self.compare_values(place, self.a.values[a.index], self.b.values[b.index])

    def compare_values(self, place: Trail, a: Any, b: Any) -> None:
        a_structure: Any
        a_leaves, a_structure = jax.tree_util.tree_flatten_with_path(a)
        b_leaves, b_structure = jax.tree_util.tree_flatten_with_path(b)
        if a_structure != b_structure:
            self.report(place, "structure", a_structure, b_structure)
            return
        for (keys, old), (_, new) in zip(a_leaves, b_leaves, strict=True):
            leaf_place = place
            for key in keys:
                leaf_place = (leaf_place, key_of(key))
            self.compare_leaves(leaf_place, old, new)

    def compare_leaves(self, place: Trail, a: Any, b: Any) -> None:
        if a is b:
            return
        old, new = _abstract(a), _abstract(b)
        if old is None or new is None:
            if static_key(a) != static_key(b):
                self.report(place, "value", a, b)
        else:
            if old.shape != new.shape:
                self.report(place, "shape", old.shape, new.shape)
            if old.dtype != new.dtype:
                self.report(place, "dtype", old.dtype, new.dtype)
            if self.weak_types and old.weak_type != new.weak_type:
                self.report(place, "weak type", old.weak_type, new.weak_type)


def _entry(definition: VariableDef[Any], name: str) -> HashableMapping[str, Any]:
    metadata = definition.metadata
    return HashableMapping({name: metadata[name]} if name in metadata else {})


def _type_of(item: Any) -> Any:
    return type(item.value) if isinstance(item, StaticAttribute) else item.type


def _summary(item: Any) -> Any:
    return item.value if isinstance(item, StaticAttribute) else item.type


def _abstract(x: Any) -> Any:
    """Shape and dtype of what JAX takes for an array; None for anything else."""
    if isinstance(x, bool | int | float | complex):
        shape, dtype, is_weak = (), jnp.result_type(type(x)), not isinstance(x, bool)
    elif hasattr(x, "shape") and hasattr(x, "dtype"):
        shape, dtype, is_weak = x.shape, x.dtype, getattr(x, "weak_type", False)
    else:
        return None
    return SimpleNamespace(shape=tuple(shape), dtype=dtype, weak_type=bool(is_weak))
