"""Whether two runs leave the same behind, and where they differ if not.

Branches must agree with each other, and the body of a loop with what it was given: on
the structure of all objects, on which object stands where, and on shapes and dtypes.
What a run left is described here without its values, so that a description may outlive
the trace in which it was made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import jax

from graphcore.comparison import definition_differences
from graphcore.errors import path_text
from graphcore.graphdef import (
    Attribute,
    GraphDef,
    LeafAttribute,
    NodeDef,
    NodeRef,
    SubGraphAttribute,
    VariableDef,
    definition_paths,
)
from graphcore.variable_impl import is_variable_type, variable_impl
from nnx_transforms.transforms.lifting import (
    Inputs,
    Inside,
    Left,
    Outcome,
    Path,
    Skeleton,
    key_path,
)

__all__ = [
    "Description",
    "check_unchanged",
    "describe_inputs",
    "describe_left",
    "fail",
    "merge_outcomes",
]

_MAX_LINES = 10


@dataclass(frozen=True)
class Description:
    """What a run was given, or what it left.

    Args:
        graph: The definitions of all objects, below the names of their places.
        origins: For the index in it of each object that was given, where it stood.
        avals: The abstract values of the variables, by index.
        tree: The pytree without objects, abstract values in the place of arrays.
        outcome: What the run did; None if this describes what it was given.
    """

    graph: GraphDef[Any]
    origins: dict[int, str]
    avals: dict[int, Any]
    tree: Any
    outcome: Outcome | None = None

    def check_graph(self, other: Description, message: str) -> None:
        """Checks that the same objects stand in the same structure.

        Args:
            other: What should agree with this.
            message: What to say if it does not; a list of differences follows.

        Raises:
            ValueError: If they differ, with the paths.
        """
        if self.graph != other.graph:
            found = definition_differences(self.graph, other.graph)
            fail(ValueError, message, [str(d) for d in found])
        if self.origins != other.origins:
            fail(ValueError, message, list(self._rewired(other)))

    def _rewired(self, other: Description) -> Iterator[str]:
        # The graphs look alike, but not the same objects stand in the same places.
        for path, item in definition_paths(self.graph):
            if isinstance(item, NodeDef | VariableDef) and item.index != -1:
                old, new = (_origin(d.origins.get(item.index)) for d in (self, other))
                if old != new:
                    yield f"{path_text(path)}: holds {old} -> {new}"

    def check_values(self, other: Description, message: str, promotes: bool) -> None:
        """Checks that shapes and dtypes are the same.

        Args:
            other: What should agree with this, and whose graph does.
            message: What to say if it does not; a list of differences follows.
            promotes: Whether a weak type in this may become any dtype in the other.

        Raises:
            TypeError: If they differ, with the paths.
        """
        found: list[str] = []
        for path, item in definition_paths(self.graph):
            if isinstance(item, VariableDef):
                old, new = (d.avals[item.index] for d in (self, other))
                found += _aval_differences(path, old, new, promotes)
        found += _aval_differences((), self.tree, other.tree, promotes)
        if found:
            fail(TypeError, message, found)

    def check_types(self, error: BaseException) -> None:
        """Checks that variables hold what JAX accepts.

        Args:
            error: What JAX said.

        Raises:
            TypeError: If one does not, with its path.
        """
        for path, item in definition_paths(self.graph):
            if isinstance(item, VariableDef):
                for aval in jax.tree.leaves(self.avals[item.index]):
                    if isinstance(aval, type):
                        raise TypeError(
                            f"The variable at {path_text(path)!r} holds a value of "
                            f"type {aval.__name__}, which JAX does not accept. Values "
                            "of variables are arrays; keep anything else as a static "
                            "attribute or in the variable's metadata."
                        ) from error


def describe_inputs(inputs: Inputs, values: Sequence[Any], plain: Any) -> Description:
    """Describes what the body of a loop is given as if it had left it.

    Args:
        inputs: What the loop was given.
        values: The values of the variables in this iteration.
        plain: The arguments without objects in this iteration.

    Returns:
        Its description.
    """
    definitions = inputs.joint.definitions
    references = [_reference(d) for d in definitions]
    variables = zip(inputs.joint.variable_definitions, values, strict=True)
    return Description(
        _graph(inputs, definitions, [], inputs.skeleton, references),
        _places(inputs),
        {definition.index: _abstract(value) for definition, value in variables},
        _abstract(plain),
    )


def describe_left(inputs: Inputs, inside: Inside, left: Left) -> Description:
    """Describes what a function left behind.

    Args:
        inputs: What it was given.
        inside: The objects that it ran on.
        left: What it left; the output is the only entry of a dict.

    Returns:
        Its description.
    """
    outcome = left.outcome
    definitions = outcome.definitions or inputs.joint.definitions
    places = _places(inputs)
    origins = {new: places[old] for new, old in outcome.mapping}
    detached = [
        (f"{origins[definition.index]} (removed)", definition)
        for definition in outcome.detached
        if isinstance(definition, NodeDef | VariableDef)
    ]
    new_index = {old: new for new, old in outcome.mapping}
    variables = zip(inputs.joint.variable_definitions, inside.variables, strict=True)
    avals = {
        new_index[definition.index]: _abstract(
            variable_impl(type(variable)).get_value(variable)
        )
        for definition, variable in variables
    }
    avals.update((w.index, _abstract(w.value)) for w in left.written)
    return Description(
        _graph(inputs, definitions, detached, outcome.skeleton, outcome.returned),
        origins,
        avals,
        _abstract(left.tree),
        outcome,
    )


def check_unchanged(inputs: Inputs, outcome: Outcome, message: str) -> None:
    """Checks that a function left the structure of its objects alone.

    Args:
        inputs: What it was given.
        outcome: What it did to the structure.
        message: What to say otherwise; a list of differences follows.

    Raises:
        ValueError: If it did not, with the paths.
    """
    if outcome.definitions is None:
        return
    nothing = Skeleton(jax.tree.structure(None), ())
    places = _places(inputs)
    before, after = (
        Description(
            _graph(inputs, definitions, [], nothing, ()),
            {new: places[old] for new, old in mapping},
            {},
            None,
        )
        for definitions, mapping in (
            (inputs.joint.definitions, [(i, i) for i in places]),
            (outcome.definitions, outcome.mapping),
        )
    )
    before.check_graph(after, message)


def merge_outcomes(inputs: Inputs, outcomes: Sequence[Outcome]) -> Outcome:
    """Combines the outcomes of runs that agree but may have written other variables.

    Args:
        inputs: What the runs were given.
        outcomes: At least one.

    Returns:
        An outcome whose values are those of the inputs' variables that any run wrote,
        in order, and then those of the new variables.
    """
    last = outcomes[-1]
    written = sorted({p for o in outcomes for p in o.positions if p is not None})
    pairs = zip(last.positions, last.indices, strict=True)
    new = [index for position, index in pairs if position is None]
    new_index = {old: new for new, old in last.mapping}
    definitions = inputs.joint.variable_definitions
    return Outcome(
        positions=(*written, *(None for _ in new)),
        indices=(*(new_index[definitions[p].index] for p in written), *new),
        definitions=last.definitions,
        detached=last.detached,
        returned=last.returned,
        mapping=last.mapping,
        skeleton=last.skeleton,
    )


def fail(kind: type[Exception], message: str, lines: Sequence[str]) -> NoReturn:
    """Raises an error with a list of differences, or the first of them.

    Args:
        kind: The type of the error.
        message: What it says first.
        lines: One for each difference.

    Raises:
        Exception: The error.
    """
    shown = [f"  {line}" for line in lines[:_MAX_LINES]]
    if len(lines) > len(shown):
        shown.append(f"  ... {len(lines) - len(shown)} more")
    raise kind("\n".join([message, *shown]))


def _origin(place: str | None) -> str:
    return "a new object" if place is None else f"what stood at {place}"


def _names(inputs: Inputs) -> list[str]:
    """What the roots are called: by the place where each stands first."""
    names = {id(x): path_text(path) for path, x, _ in reversed(inputs.spots)}
    return [
        names.get(id(root), f"self ({type(root).__name__})") for root in inputs.roots
    ]


def _places(inputs: Inputs) -> dict[int, str]:
    """The path of each object of the inputs, by index."""
    return {
        item.index: path_text((name, *path))
        for name, root in zip(_names(inputs), inputs.joint.definitions, strict=True)
        for path, item in definition_paths(root)
        if isinstance(item, NodeDef | VariableDef) and item.index != -1
    }


def _graph(
    inputs: Inputs,
    definitions: Sequence[GraphDef[Any]],
    detached: Sequence[tuple[str, GraphDef[Any]]],
    skeleton: Skeleton,
    returned: Sequence[GraphDef[Any]],
) -> GraphDef[Any]:
    """Roots, removed and returned objects as the children of one node."""
    children = [*zip(_names(inputs), definitions, strict=True), *detached]
    count = skeleton.structure.num_leaves
    numbered = jax.tree.unflatten(skeleton.structure, range(count))
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(numbered)[0]]
    seen: set[int] = set()
    for position, number in skeleton.spots:
        definition = returned[number]
        if number in seen:
            definition = _reference(definition)
        seen.add(number)
        place = path_text(("returned", *key_path(paths[position])[1:]))
        children.append((place, definition))
    return NodeDef(tuple, -1, tuple(_attribute(*child) for child in children))


def _attribute(key: str, definition: Any) -> Attribute:
    if is_variable_type(definition.type):
        return LeafAttribute(key, definition)
    return SubGraphAttribute(key, definition)


def _reference(definition: Any) -> NodeRef[Any]:
    return NodeRef(definition.type, definition.index)


def _abstract(value: Any) -> Any:
    return jax.tree.map(_abstract_leaf, value)


def _abstract_leaf(x: Any) -> Any:
    try:
        return jax.typeof(x)
    except TypeError:
        return type(x)  # JAX will say so where it meets the value.


def _aval_differences(path: Path, old: Any, new: Any, promotes: bool) -> Iterator[str]:
    of_old, of_new = (
        {
            path_text((*path, *key_path(place))): aval
            for place, aval in jax.tree_util.tree_flatten_with_path(tree)[0]
        }
        for tree in (old, new)
    )
    found = False
    for place in dict.fromkeys([*of_old, *of_new]):
        a, b = of_old.get(place), of_new.get(place)
        if not _agree(a, b, promotes):
            found = True
            texts = ["(none)" if x is None else str(x) for x in (a, b)]
            yield f"{place}: {' -> '.join(texts)}"
    structures = [jax.tree.structure(tree) for tree in (old, new)]
    if not found and structures[0] != structures[1]:
        yield f"{path_text(path)}: {structures[0]} -> {structures[1]}"


def _agree(a: Any, b: Any, promotes: bool) -> bool:
    if not (hasattr(a, "shape") and hasattr(b, "shape")):
        return bool(a == b)
    may_promote = promotes and getattr(a, "weak_type", False)
    return bool(a.shape == b.shape and (may_promote or a.dtype == b.dtype))
