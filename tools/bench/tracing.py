"""Tracing: what a user waits for before the first step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import jax

from tools.bench import jaxprs, peers, tracing_linen, tracing_nnx
from tools.bench.measuring import Effort, Measured, compare
from tools.bench.results import Bar, Cell, Row, Section, Spread, Table

LIMITS_NNX = {"forward": 1.2, "remat": 1.2, "grad": 1.2}
"""The cases of nnx-transforms that have a bar; the others are shown."""
LIMIT_LINEN = 2.0
LIMIT_EXCESS = 0.5
OF_ONE_FUNCTION = "of one function"
"""How cases end in which all blocks go through the same transformed function, which JAX
traces once. For nnx-transforms, too; in linen-lift a function that reads its module's
variables is traced for each module, so there is no bar."""
LIMIT_ONE_FUNCTION = 2.0

Traced = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function and the arguments to trace it with."""


def run(effort: Effort, scale: float = 1.0) -> Section:
    """Measures tracing.

    Args:
        effort: How long to measure.
        scale: Makes the models smaller.

    Returns:
        The tables and bars.
    """
    effort = replace(effort, waits=False, collects=False)
    section = Section("tracing", "Tracing")
    unable: dict[str, list[str]] = {}
    if effort.is_quick:
        scale *= 0.12
        effort = replace(effort, rounds=(3, effort.rounds[1]))
    blocks = max(2, round(50 * scale))
    table = Table(
        "tracing-nnx",
        f"jax.make_jaxpr of {blocks} residual blocks: nnx-transforms",
        "s",
        peers.BY_HAND,
        [
            peers.BY_HAND,
            peers.NNX,
            peers.FLAX_UPDATES,
            peers.FLAX_TREE,
            peers.EQUINOX,
        ],
        [],
    )
    section.tables.append(table)
    for case, traced in tracing_nnx.cases(blocks):
        cells = _add(section, table, case, traced, peers.NNX, effort, unable)
        one = LIMIT_ONE_FUNCTION if case.endswith(OF_ONE_FUNCTION) else None
        limit = LIMITS_NNX.get(case, one)
        if limit is not None:
            found = cells[peers.NNX].ratio
            assert found is not None
            section.bars.append(Bar(f"tracing over by hand: {case}", found, limit))
    table.notes.extend(
        f"Not measured with {name}: {', '.join(names)}."
        for name, names in unable.items()
    )
    blocks = max(2, round(24 * scale))
    table = Table(
        "tracing-linen",
        f"jax.make_jaxpr of {blocks} blocks: linen-lift",
        "s",
        peers.BY_HAND,
        [peers.BY_HAND, peers.LIFT, peers.LINEN],
        [],
    )
    section.tables.append(table)
    for case, traced in tracing_linen.cases(blocks):
        cells = _add(section, table, case, traced, peers.LIFT, effort, unable)
        if case.endswith(OF_ONE_FUNCTION):
            continue
        mine = cells[peers.LIFT].ratio
        assert mine is not None
        what = f"tracing over by hand: linen-lift {case}"
        section.bars.append(Bar(what, mine, LIMIT_LINEN))
        theirs = cells[peers.LINEN].ratio if peers.LINEN in cells else None
        if theirs is not None and theirs.median > 1:
            share = [
                max(0.0, m - 1) / (theirs.median - 1)
                for m in (mine.median, mine.low, mine.high)
            ]
            what = f"share of Flax Linen's excess over by hand: {case}"
            section.bars.append(Bar(what, Spread(*share), LIMIT_EXCESS))
    section.tables.append(_eager(effort, blocks))
    return section


def fresh(traced: Traced) -> Callable[[], Any]:
    """A call that traces a function as if for the first time.

    JAX keeps traces with the function, so each call makes a new one. The cases in turn
    make the functions that they transform while they are traced.
    """
    fun, args = traced
    return lambda: jax.make_jaxpr(lambda *a: fun(*a))(*args)


def _add(
    section: Section,
    table: Table,
    case: str,
    traced: Mapping[str, Traced],
    ours: str,
    effort: Effort,
    unable: dict[str, list[str]],
) -> dict[str, Cell]:
    calls: dict[str, Measured] = {}
    for name, entry in traced.items():
        call = fresh(entry)
        if name not in (peers.BY_HAND, ours):
            if effort.is_quick and name != peers.LINEN:
                continue  # of the others there is no bar
            try:
                call()
            except Exception:  # a peer that can't do this
                unable.setdefault(name, []).append(case)
                continue
        calls[name] = call
    count, words = jaxprs.difference(calls[ours](), calls[peers.BY_HAND]())
    what = f"equations that differ from by hand: {ours} {case}"
    section.bars.append(Bar(f"{what} ({words})" if words else what, _exact(count), 0))
    cells = compare(calls, effort.of(0.25))
    table.rows.append(Row(case, None, cells))
    return cells


def _exact(value: float) -> Spread:
    return Spread(value, value, value)


def _eager(effort: Effort, blocks: int) -> Table:
    """Applying without compilation, where the cost of the library comes each time."""
    table = Table(
        "eager-linen",
        f"{blocks} blocks without compilation",
        "s",
        peers.BY_HAND,
        [peers.BY_HAND, peers.LIFT, peers.LINEN],
        [],
    )
    case, traced = next(iter(tracing_linen.cases(blocks)))
    calls: dict[str, Measured] = {
        name: (lambda f=f, a=a: f(*a)) for name, (f, a) in traced.items()
    }
    table.rows.append(Row(case, None, compare(calls, effort.of(0.25))))
    return table
