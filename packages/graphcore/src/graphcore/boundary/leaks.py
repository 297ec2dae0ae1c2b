"""Traced values that a function left where they can't leave its trace."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import jax

from graphcore.content_key import below
from graphcore.errors import TraceContextError
from graphcore.graphdef.definition import GraphDef, StaticAttribute, definition_trails
from graphcore.holding import reached
from graphcore.nodes.registry import is_graph_node
from graphcore.trails import path_of, path_text
from graphcore.variables.impl import is_variable


def check_leaks(
    before: Iterable[GraphDef[Any]], after: Iterable[GraphDef[Any]]
) -> None:
    """Makes sure that what is static of the objects holds no new traced value.

    It would stay in the caller's objects when its trace has ended. JAX itself sees only
    the values that the function returns.

    Args:
        before: What the function was given.
        after: What it left.

    Raises:
        TraceContextError: With the path of a traced value.
    """
    found = [*_traced(after)]
    if not found:
        return
    known = {id(x) for _, x in _traced(before)}
    for place, x in found:
        if id(x) not in known:
            raise TraceContextError(
                f"{place} holds a traced value, {jax.typeof(x)}, which would outlive "
                "its trace: static values and metadata belong to the structure, and "
                "leave no function as arrays do. Keep it in a variable, or in an "
                "attribute of its own."
            )


def _traced(definitions: Iterable[GraphDef[Any]]) -> Iterator[tuple[str, Any]]:
    """Traced values among what is static, with where each stands."""
    for definition in definitions:
        for trail, item in definition_trails(definition):
            is_attribute = isinstance(item, StaticAttribute)
            held = item.value if is_attribute else getattr(item, "metadata", None)
            what = "static attribute" if is_attribute else "metadata of the object"
            for x in reached([held], _contents):
                if isinstance(x, jax.core.Tracer):
                    yield f"The {what} at {path_text(path_of(trail))!r}", x


def _contents(x: Any) -> Iterable[Any]:
    # A configuration may keep what an object was made with, such as random streams.
    # Who reads those when the trace has ended is told so by JAX.
    if is_graph_node(x) or is_variable(x):
        return []
    # Also of those that compare by identity, into which nothing else looks.
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        names = [field.name for field in dataclasses.fields(x)]
        return [getattr(x, name, None) for name in names]
    return below(x)
