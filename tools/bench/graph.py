"""Graphs to values and back, outside of any transform."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax

import graphcore as gc
import nnx_transforms as nnx
from tools.bench import models, peers
from tools.bench.measuring import (
    Comparison,
    Effort,
    Measured,
    Prepared,
    compare,
)
from tools.bench.results import Bar, Row, Section, Table

SIZES = (601, 6001)
LIMIT_LEAVES = 10.0
# The operations that have a bar over Flax; the others are shown. (With the leaves of
# the state, most of the time goes to JAX, which visits every node of it.)
LIMITS = {
    **dict.fromkeys(("split", "merge", "update", "state", "clone"), 0.1),
    **dict.fromkeys(("jax.tree.leaves", "jax.tree.map", "jax.jit"), 1.0),
}
WITH_LEAVES = "split, with its leaves"
CHANGED = "flatten, after a change"


def operations(library: Any, model: Any) -> dict[str, Measured]:
    """What is measured, for a library with these functions.

    Args:
        library: `graphcore` or `flax.nnx`.
        model: A model as in `models`, of the library.

    Returns:
        The operations by name.
    """
    graphdef, state = library.split(model)
    jax.block_until_ready(jax.tree.leaves(state))
    flatten: Callable[..., Any] = getattr(library, "flatten", None) or (
        library.graph.flatten
    )
    temporary = library.Intermediate
    first = models.layer_variables(model)[0]
    compiled = jax.jit(lambda model: models.read(models.layer_variables(model)[0]))

    def change() -> Any:
        model.version = getattr(model, "version", 0) + 1
        return model

    def sow() -> Any:
        for layer in model.layers:
            layer.sown = temporary(models.read(first))
        return model

    return {
        "flatten": lambda: flatten(model),
        CHANGED: Prepared(change, flatten),
        "split": lambda: library.split(model),
        WITH_LEAVES: lambda: jax.tree.leaves(library.split(model)),
        "split by type": lambda: library.split(model, library.Param, ...),
        "merge": lambda: library.merge(graphdef, state),
        "merge of a mapped state": Prepared(
            lambda: jax.tree.map(lambda x: x, state),
            lambda mapped: library.merge(graphdef, mapped),
        ),
        "update": lambda: library.update(model, state),
        "state": lambda: library.state(model),
        "state by type": lambda: library.state(model, library.Param),
        "variables": lambda: library.variables(model),
        "clone": lambda: library.clone(model),
        "iter_graph": lambda: sum(1 for _ in library.iter_graph(model)),
        "pop": Prepared(sow, lambda model: library.pop(model, temporary)),
        "jax.tree.leaves of the model": lambda: jax.tree.leaves(model),
        "jax.tree.map of two models": lambda: jax.tree.map(
            lambda x, _: x, model, model
        ),
        "jax.jit of a function of the model": lambda: compiled(model),
    }


def run(effort: Effort, sizes: tuple[int, ...] = SIZES) -> Section:
    """Measures the operations.

    Args:
        effort: How long to measure.
        sizes: Numbers of variables.

    Returns:
        The tables and bars.
    """
    # All of it happens on the host: there is nothing to wait for. Both libraries make
    # thousands of objects at a time, so a full collection is due every now and then;
    # it goes through all objects there are, and would hit either at random.
    generation = effort.generation if effort.is_quick else 2
    effort = replace(effort, waits=False, slice=5 * effort.slice, generation=generation)
    rounds = math.ceil(effort.rounds[0] / effort.passes), effort.rounds[1]
    in_pass = replace(effort.of(0.25), rounds=rounds)
    section = Section("graph", "Graphs to values and back")
    table = Table(
        "graph",
        "Operations on a graph",
        "s",
        peers.CORE,
        [peers.CORE, peers.FLAX],
        [],
        peers.missing(),
    )
    leaves = Table(
        "leaves",
        "Flattening, beside a nested dict of the same arrays",
        "s",
        "jax.tree.leaves",
        ["jax.tree.leaves", peers.CORE],
        [],
    )
    section.tables += [table, leaves]
    for size in sizes:
        values = models.arrays(size)
        ours = operations(gc, models.Model(values))
        theirs: dict[str, Measured] = {}
        if peers.flax_nnx is not None and not (effort.is_quick and size > 1000):
            theirs = operations(peers.flax_nnx, models.flax_model(values))
        comparisons: dict[str, Comparison] = {}
        for name, call in ours.items():
            if effort.is_quick and _operation(name) not in LIMITS:
                continue
            calls = {peers.CORE: call}
            if name in theirs:
                calls[peers.FLAX] = theirs[name]
            comparisons[name] = Comparison(calls, in_pass)
        for _ in range(effort.passes):
            for comparison in comparisons.values():
                comparison.measure()
        for name, comparison in comparisons.items():
            cells = comparison.cells()
            table.rows.append(Row(f"{name}, {size:,} variables", size, cells))
            if peers.FLAX in cells and _operation(name) in LIMITS:
                found = _inverse(cells[peers.FLAX].ratio)
                what = f"graphcore over Flax: {name}, {size:,} variables"
                section.bars.append(Bar(what, found, LIMITS[_operation(name)]))
        _leaves(section, leaves, effort, values)
    return section


def _operation(name: str) -> str:
    return name.split(" of ")[0].split(" by ")[0]


def _inverse(ratio: Any) -> Any:
    """The spread of the inverse ratio."""
    return type(ratio)(1 / ratio.median, 1 / ratio.high, 1 / ratio.low, ratio.count)


def _leaves(
    section: Section, table: Table, effort: Effort, values: Sequence[jax.Array]
) -> None:
    model, size = models.Model(values), len(values)
    plain = {
        f"layer{i}": {
            part: {
                name: v.value for name, v in nnx.variables(getattr(layer, part)).items()
            }
            for part in ("norm", "first", "second")
        }
        for i, layer in enumerate(model.layers)
    }
    plain["count"] = model.count.value
    calls: dict[str, Measured] = {
        "jax.tree.leaves": lambda: jax.tree.leaves(plain),
        peers.CORE: lambda: nnx.flatten(model),
    }
    cells = compare(calls, effort.of(0.25))
    table.rows.append(Row(f"flatten, unchanged, {size:,} variables", size, cells))
    what = f"flatten of an unchanged graph over jax.tree.leaves, {size:,} variables"
    found = cells[peers.CORE].ratio
    assert found is not None
    section.bars.append(Bar(what, found, LIMIT_LEAVES))
    calls[peers.CORE] = lambda: jax.tree.leaves(nnx.flatten(model)[1])
    cells = compare(calls, effort.of(0.25))
    case = f"flatten, and the leaves of the state, {size:,} variables"
    table.rows.append(Row(case, size, cells))
