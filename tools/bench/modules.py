"""Modules of Equinox: as an argument, an attribute, and the value of a variable."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

import nnx_transforms as nnx
from tools.bench import peers
from tools.bench.measuring import Effort, Measured, compare
from tools.bench.results import Bar, Cell, Row, Section, Spread, Table

LIMIT_VARIABLE = 1.3
LIMIT_ARGUMENT = 2.0
LIMIT_OF_FILTER_JIT = 0.75
LIMIT_ATTRIBUTE = 1.3
LIMIT_ATTRIBUTE_WRITTEN = 2.0
WIDTH, DEPTH = 2, 12


def run(effort: Effort) -> Section:
    """Measures calls with modules of Equinox.

    Args:
        effort: How long to measure.

    Returns:
        The tables and bars; none where Equinox is not installed.
    """
    section = Section("modules", "Modules of Equinox")
    eqx = peers.equinox
    if eqx is None:
        return section
    table = Table(
        "modules",
        f"A call of a compiled step, a module of {DEPTH + 1} layers",
        "s",
        peers.RAW,
        [peers.RAW, peers.NNX, peers.EQUINOX],
        [],
    )
    section.tables.append(table)
    net = eqx.nn.MLP(WIDTH, WIDTH, WIDTH, DEPTH, key=jax.random.key(0))
    x = jnp.ones(WIDTH)
    arrays, static = eqx.partition(net, eqx.is_array)

    def add(
        case: str, calls: dict[str, Measured], what: str, limit: float
    ) -> dict[str, Cell]:
        cells = compare(calls, effort.of(0.5))
        table.rows.append(Row(case, None, cells))
        found = cells[peers.NNX].ratio
        assert found is not None
        section.bars.append(Bar(f"{what} over raw", found, limit))
        return cells

    def call(net: Any, x: Any) -> Any:
        return net(x)

    raw = jax.jit(lambda arrays, x: eqx.combine(arrays, static)(x))
    filtered, ours = eqx.filter_jit(call), nnx.jit(call)
    cells = add(
        "a module as an argument, read only",
        {
            peers.RAW: lambda: raw(arrays, x),
            peers.NNX: lambda: ours(net, x),
            peers.EQUINOX: lambda: filtered(net, x),
        },
        *("a module as an argument", LIMIT_ARGUMENT),
    )
    mine, theirs = cells[peers.NNX].value, cells[peers.EQUINOX].value
    found = Spread(
        mine.median / theirs.median,
        mine.low / theirs.high,
        mine.high / theirs.low,
        mine.count,
    )
    what = "a module as an argument over filter_jit"
    section.bars.append(Bar(what, found, LIMIT_OF_FILTER_JIT))

    model = nnx.Module()
    model.net = net
    of_model = nnx.jit(lambda model, x: model.net(x))
    add(
        "a module as an attribute, read only",
        {
            peers.RAW: lambda: raw(arrays, x),
            peers.NNX: lambda: of_model(model, x),
        },
        *("a module as an attribute", LIMIT_ATTRIBUTE),
    )

    def grown(tree: Any, x: Any) -> Any:
        return jax.tree.map(lambda a: a + x[0] if eqx.is_array(a) else a, tree)

    def grow(model: Any, x: Any) -> None:
        model.net = grown(model.net, x)

    grown_by_raw, our_grow, written = jax.jit(grown), nnx.jit(grow), [arrays]

    def raw_grow() -> None:
        written[0] = grown_by_raw(written[0], x)

    add(
        "a module as an attribute, writing all of it",
        {
            peers.RAW: raw_grow,
            peers.NNX: lambda: our_grow(model, x),
        },
        *("a module as an attribute, all of it written,", LIMIT_ATTRIBUTE_WRITTEN),
    )

    def step(held: Any, x: Any) -> None:
        held.value = _changed(held.value, x)

    # Both return the array that was written, and put it in its place. That raw JAX
    # writes to a frozen module is no more than what is measured allows.
    held, kept = nnx.Param(net), jax.tree.map(lambda x: x, arrays)
    step_of_raw = jax.jit(lambda net, x: net.layers[0].bias + x)
    our_step = nnx.jit(step)

    def raw_call() -> None:
        object.__setattr__(kept.layers[0], "bias", step_of_raw(kept, x))

    add(
        "a variable that holds a module, writing one array",
        {
            peers.RAW: raw_call,
            peers.NNX: lambda: our_step(held, x),
        },
        *("a variable that holds a module", LIMIT_VARIABLE),
    )
    return section


def _changed(net: Any, x: Any) -> Any:
    bias = net.layers[0].bias + x
    return peers.equinox.tree_at(lambda net: net.layers[0].bias, net, bias)
