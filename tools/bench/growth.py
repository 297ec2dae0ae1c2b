"""Growth: how costs depend on the size and shape of a graph, and on what was seen."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax.numpy as jnp

import graphcore
import nnx_transforms as nnx
from nnx_transforms.transforms.compiled.jit_bodies import MAX_STRUCTURES
from nnx_transforms.transforms.compiled.jit_body import JitBody
from tools.bench.measuring import Comparison, Effort, Measured, Prepared
from tools.bench.results import Bar, Cell, Row, Section, Spread, Table, growth_exponent

SIZES = (100, 400, 1600, 6400)
LIMIT_LINEAR = 1.3
"""What a fitted exponent of a linear cost may be: more memory is slower memory."""
LIMIT_CONSTANT = 0.35
"""The same for a cost that should not grow: what is used again is found in slower
caches of the processor when there is more of it."""

Dict = graphcore.Dict


def _by_variables(n: int) -> Any:
    return Dict({f"v{i}": nnx.Param(jnp.float32(i)) for i in range(n)})


def _by_nodes(n: int) -> Any:
    return Dict({f"n{i}": Dict(index=i) for i in range(n)})


def _by_depth(n: int) -> Any:
    node = Dict(w=nnx.Param(jnp.float32(0)))
    for _ in range(n):
        node = Dict(below=node)
    return node


def _by_sharing(n: int) -> Any:
    shared, node = nnx.Param(jnp.float32(0)), Dict(index=0)
    return Dict({f"n{i}": Dict(variable=shared, node=node) for i in range(n)})


SHAPES: dict[str, Callable[[int], Any]] = {
    "variables": _by_variables,
    "nodes": _by_nodes,
    "depth": _by_depth,
    "references to one variable": _by_sharing,
}


def operations(graph: Any) -> dict[str, Measured]:
    """What is measured of a graph."""
    graph["count"] = nnx.BatchStat(jnp.float32(0))
    graph["version"] = 0

    def change() -> Any:
        graph["version"] = graph["version"] + 1
        return graph

    def advance(graph: Any) -> None:
        graph["count"].value = graph["count"].value + 1

    step = nnx.jit(advance)
    fixed = nnx.clone(graph)  # else each change made a new structure
    graphdef, state = nnx.split(graph)
    return {
        "nnx.jit, a call": lambda: step(fixed),
        "flatten, unchanged": lambda: nnx.flatten(fixed),
        "flatten, after a change": Prepared(change, nnx.flatten),
        "merge": lambda: nnx.merge(graphdef, state),
        "clone": lambda: nnx.clone(fixed),
    }


def run(effort: Effort, sizes: tuple[int, ...] = SIZES) -> Section:
    """Measures growth.

    Args:
        effort: How long to measure.
        sizes: The sizes of the graphs.

    Returns:
        The tables and bars.
    """
    section = Section("growth", "Growth")
    # When a full collection is due depends on all objects there are, so the collector
    # is off; and all of it happens on the host: there is nothing to wait for.
    effort = replace(effort.of(0.25), waits=False, collects=False)
    if effort.is_quick:
        sizes = sizes[:3]
    names = list(operations(_by_variables(1)))
    table = Table(
        "growth", "Cost of operations on growing graphs", "s", None, names, []
    )
    fitted = Table(
        "exponents",
        "Exponents fitted to them: 1 where the cost is linear",
        "exponent",
        None,
        names,
        [],
    )
    section.tables += [table, fitted]
    for shape, make in SHAPES.items():
        costs: dict[str, list[float]] = {name: [] for name in names}
        for size in sizes:
            times = Comparison(operations(make(size)), effort).measure()
            cells = {name: Cell(Spread.of(mine)) for name, mine in times.items()}
            table.rows.append(Row(f"by {shape}, {size:,}", size, cells))
            for name, cell in cells.items():
                # The least is the most stable where there is nothing to divide by.
                costs[name].append(min(times[name]) or cell.value.median)
        exponents = {name: growth_exponent(sizes, mine) for name, mine in costs.items()}
        cells = {name: Cell(_exact(e)) for name, e in exponents.items()}
        fitted.rows.append(Row(f"by {shape}", None, cells))
        for name, exponent in exponents.items():
            bar = f"growth of {name} with {shape}: exponent"
            section.bars.append(Bar(bar, _exact(exponent), LIMIT_LINEAR))
    _structures(section, effort)
    return section


def _exact(value: float) -> Spread:
    return Spread(value, value, value)


def _structures(section: Section, effort: Effort) -> None:
    """Calls of one jitted function with more and more structures."""
    counts = (1, 10, 100) if effort.is_quick else (1, 10, 100, 1000)
    name = "a call, any structure"
    table = Table(
        "structures",
        "A call of one jitted function that saw many structures",
        "s",
        None,
        [name],
        [],
    )
    section.tables.append(table)

    def advance(graph: Any) -> None:
        graph["count"].value = graph["count"].value + 1

    step = nnx.jit(advance)
    graphs: list[Any] = []

    def add(count: int) -> None:
        while len(graphs) < count:
            graph = Dict(count=nnx.Variable(jnp.float32(0)), kind=f"kind {len(graphs)}")
            step(graph)
            graphs.append(graph)

    costs = []
    for count in counts:
        add(count)
        turn = 0

        def call(count: int = count) -> None:
            nonlocal turn
            turn = (turn + 1) % count
            step(graphs[turn])

        times = Comparison({name: call}, effort).measure()[name]
        costs.append(min(times))
        row = Row(f"{count:,} structures", count, {name: Cell(Spread.of(times))})
        table.rows.append(row)
    exponent = growth_exponent(counts, costs)
    bar = "growth of a call with structures seen: exponent"
    section.bars.append(Bar(bar, _exact(exponent), LIMIT_CONSTANT))
    if not effort.is_quick:
        others = _compiled_functions() - len(graphs)
        add(MAX_STRUCTURES + 50)
        kept = _compiled_functions() - others
        bar = f"compiled functions kept after {len(graphs):,} structures"
        section.bars.append(Bar(bar, _exact(kept), MAX_STRUCTURES))


def _compiled_functions() -> int:
    gc.collect()
    return sum(type(x) is JitBody for x in gc.get_objects())
