"""How two graphs differ, path by path.

Two definitions are walked side by side. What stands at the same path in both is
compared; indices are not, because one more variable shifts all that follow. Two
references are the same if what they refer to stands at the same place in both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from graphcore.content import StrictTreeDef, static_key, unusual_keys
from graphcore.content_key import content_parts, same_content
from graphcore.display.printing import one_line
from graphcore.graphdef.definition import (
    GraphDef,
    NodeDef,
    NodeRef,
    StaticAttribute,
    VariableDef,
    definition_trails,
)
from graphcore.graphdef.walk import Visit, walk
from graphcore.trails import Path, Trail, key_of, path_of, path_text
from graphcore.variables.bare_arrays import BareArray
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
            - `static`: the value of a static attribute, or what stands within it;
            - `sharing`: the path of the earlier place that holds the same object, None
              if this is the first place;
            - `structure`, `shape`, `dtype`: of a variable's value; `value` for what is
              no array in it;
            - `order`: of a node's keys;
            - `keys`: of what types they are, where they are equal, as `1` and `True`;
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
    return _Comparison(_Side(a), _Side(b)).run()


class _Side:
    """A graph or a definition, with an index of what it defines."""

    def __init__(self, x: Any) -> None:
        visit = Visit()
        self.root = x if isinstance(x, GraphDef) else walk(x, visit)
        self.values = {
            leaf.definition.index: leaf.impl.get_value(leaf.variable)
            for leaf in visit.leaves
        }
        self.defined: dict[int, tuple[Trail, Any]] = {
            item.index: (place, item)
            for place, item in definition_trails(self.root)
            if isinstance(item, NodeDef | VariableDef) and item.index != -1
        }

    def first(self, item: Any) -> Path | int | None:
        """Where the object that a reference means stands; None for no reference."""
        if not isinstance(item, NodeRef):
            return None
        # The index itself, if the object was flattened before this definition began.
        found = self.defined.get(item.index)
        return item.index if found is None else path_of(found[0])

    def variable(self, item: Any) -> VariableDef[Any] | None:
        """The variable that a definition or reference means, if it is one."""
        _, found = self.defined.get(item.index, (None, None))
        return found if isinstance(found, VariableDef) else None


class _Comparison:
    def __init__(self, a: _Side, b: _Side) -> None:
        self.a, self.b = a, b
        self.found: list[Difference] = []

    def run(self) -> Differences:
        pending: list[tuple[Trail, Any, Any]] = [(None, self.a.root, self.b.root)]
        while pending:
            place, a, b = pending.pop()
            self.compare(place, a, b)
            if isinstance(a, NodeDef) and isinstance(b, NodeDef):
                of_a, of_b = dict(a.children()), dict(b.children())
                pending += [
                    ((place, key), of_a.get(key), of_b.get(key))
                    for key in reversed({**of_a, **of_b})
                ]
        changed = [x for x in self.found if not x.kind.startswith("index")]
        return Differences(changed or self.found)

    def report(self, place: Trail, kind: str, old: Any, new: Any) -> None:
        self.found.append(Difference(path_of(place), kind, old, new))

    def compare(self, place: Trail, a: Any, b: Any) -> None:
        """Compares what stands at one place."""
        if a is None:
            self.report(place, "extra", None, _summary(b))
        elif b is None:
            self.report(place, "missing", _summary(a), None)
        elif isinstance(a, StaticAttribute) and isinstance(b, StaticAttribute):
            if a != b:
                self.compare_statics(place, a.as_made(), b.as_made())
        elif isinstance(a, StaticAttribute) or isinstance(b, StaticAttribute):
            self.report(place, "type", _type_of(a), _type_of(b))
        else:
            self.compare_objects(place, a, b)

    def compare_statics(self, place: Trail, a: Any, b: Any) -> None:
        """Compares static values, and what stands within them."""
        count = len(self.found)
        pending = [(place, a, b)]
        looked_at = {id(a)}  # They may contain themselves.
        while pending:
            inner, old, new = pending.pop()
            of_a, of_b = content_parts(old), content_parts(new)
            if type(old) is not type(new) or of_a is None or of_b is None:
                self.report(inner, "static", old, new)
                continue
            for key in reversed({**of_a, **of_b}):
                at = inner, key
                if key not in of_b:
                    self.report(at, "missing", of_a[key], None)
                elif key not in of_a:
                    self.report(at, "extra", None, of_b[key])
                elif not same_content(of_a[key], of_b[key]):
                    if id(of_a[key]) not in looked_at:
                        looked_at.add(id(of_a[key]))
                        pending.append((at, of_a[key], of_b[key]))
        if len(self.found) == count:
            self.report(place, "static", a, b)

    def compare_objects(self, place: Trail, a: Any, b: Any) -> None:
        if a.type is not b.type:
            both = is_variable_type(a.type) and is_variable_type(b.type)
            self.report(place, "variable type" if both else "type", a.type, b.type)
        if isinstance(a, NodeRef) or isinstance(b, NodeRef):
            old, new = self.a.first(a), self.b.first(b)
            if old != new:
                self.report(place, "sharing", old, new)
                self.compare_variables(place, self.a.variable(a), self.b.variable(b))
        elif type(a) is type(b):
            if a.index != b.index:
                self.report(place, "index", a.index, b.index)
            if a.index_mapping != b.index_mapping:
                self.report(place, "index mapping", a.index_mapping, b.index_mapping)
            if isinstance(a, VariableDef):
                self.compare_variables(place, a, b)
                return
            before, after = a.metadata_as_made, b.metadata_as_made
            if not same_content(before, after):
                self.report(place, "metadata", before, after)
            of_a, of_b = dict(a.children()), dict(b.children())
            orders = [k for k in of_a if k in of_b], [k for k in of_b if k in of_a]
            if orders[0] != orders[1]:
                self.report(place, "order", *map(tuple, orders))
            elif unusual_keys(orders[0]) != unusual_keys(orders[1]):
                self.report(place, "keys", *map(tuple, orders))

    def compare_variables(
        self, place: Trail, a: VariableDef[Any] | None, b: VariableDef[Any] | None
    ) -> None:
        if a is None or b is None:
            return
        changed = [
            name
            for name in {**a.metadata, **b.metadata}
            if name not in a.metadata
            or name not in b.metadata
            or not same_content(a.metadata[name], b.metadata[name])
        ]
        if changed:
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
        if StrictTreeDef(a_structure) != StrictTreeDef(b_structure):
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
            return
        for kind, one, two in zip(("shape", "dtype"), old, new, strict=True):
            if one != two:
                self.report(place, kind, one, two)


def _type_of(item: Any) -> Any:
    return type(item.value) if isinstance(item, StaticAttribute) else item.type


def _summary(item: Any) -> Any:
    if isinstance(item, StaticAttribute):
        return item.value
    return jax.Array if item.type is BareArray else item.type


def _abstract(x: Any) -> tuple[Any, Any] | None:
    """Shape and dtype of what JAX takes for an array; None for anything else."""
    if isinstance(x, bool | int | float | complex):
        return (), jnp.result_type(type(x))
    if hasattr(x, "shape") and hasattr(x, "dtype"):
        return tuple(x.shape), x.dtype
    return None
