"""Memory: donation, what steps leave behind, and peaks of `remat` and `scan`."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import nnx_transforms as nnx
from tools.bench import models, peers
from tools.bench.measuring import Effort
from tools.bench.results import Bar, Cell, Row, Section, Spread, Table

LIMIT_DONATION = 1.05
WITHOUT, WITH = "without donation", "with donation"
TOLERANCE = {"live arrays": 0, "compiled programs": 0, "tracked objects": 20}
"""How much more there may be after a thousand steps than after ten.

Python itself keeps a few objects more or less, in caches of its own."""


def exact(value: float) -> Spread:
    """A spread of something that does not vary."""
    return Spread(value, value, value)


def run(effort: Effort, megabytes: int = 256) -> Section:
    """Measures memory.

    Args:
        effort: How long to measure.
        megabytes: The size of the variables that are donated.

    Returns:
        The tables and bars.
    """
    section = Section("memory", "Memory")
    if effort.is_quick:
        megabytes = min(megabytes, 64)
    _donation(section, megabytes)
    _left_behind(section, 100 if effort.is_quick else 1000)
    _peaks(section, 4 if effort.is_quick else 12)
    return section


# Donation


class Large(nnx.Module):
    """Variables of one megabyte.

    Args:
        count: How many.
    """

    def __init__(self, count: int) -> None:
        fill = jax.jit(lambda i: jnp.full((2**18,), i, jnp.float32))
        self.variables = nnx.List([nnx.Param(fill(i)) for i in range(count)])


def overwrite(model: Large) -> None:
    """Overwrites all variables."""
    for variable in model.variables:
        variable.value = variable.value * 0.5 + 1


def planned_bytes(compiled: Any) -> int:
    """What a compiled program needs at its peak, as XLA planned it.

    Args:
        compiled: What `jax.stages.Lowered.compile` or ours returned.

    Returns:
        The bytes of arguments, results and temporary arrays; donated ones once.
    """
    found = compiled.memory_analysis()
    return int(
        found.argument_size_in_bytes
        + found.output_size_in_bytes
        + found.temp_size_in_bytes
        - found.alias_size_in_bytes
    )


def _donation(section: Section, megabytes: int) -> None:
    model = Large(megabytes)
    size = sum(v.value.nbytes for v in model.variables)
    planned = {
        name: Cell(
            exact(planned_bytes(nnx.jit(overwrite, **how).lower(model).compile()))
        )
        for name, how in {WITHOUT: {}, WITH: {"donate_state": True}}.items()
    }
    del model
    measured = {}
    for name, flag in {WITHOUT: "0", WITH: "1"}.items():
        command = [sys.executable, "-m", "tools.bench.peak", str(megabytes), flag]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 0:
            measured[name] = Cell(exact(json.loads(done.stdout)["peak"]))
    table = Table(
        "donation",
        f"Peak memory of a step that overwrites {megabytes} MiB of variables",
        "B",
        WITHOUT,
        [WITHOUT, WITH],
        [
            Row("as planned by XLA", None, _with_ratios(planned)),
            Row("as measured in a process of its own", None, _with_ratios(measured)),
        ],
        [] if measured else ["This platform does not tell how much memory is used."],
    )
    section.tables.append(table)
    for what, cells in {"planned": planned, "measured": measured}.items():
        if WITH in cells:
            found = cells[WITH].value.median / size
            name = f"peak of donate_state over the variables' size, {what}"
            section.bars.append(Bar(name, exact(found), LIMIT_DONATION))


def _with_ratios(cells: dict[str, Cell]) -> dict[str, Cell]:
    """Adds the ratios to the first cell."""
    values = {name: cell.value.median for name, cell in cells.items()}
    if not values:
        return {}
    baseline = next(iter(values.values()))
    return {
        name: Cell(exact(value), None if i == 0 else exact(value / baseline))
        for i, (name, value) in enumerate(values.items())
    }


# What steps leave behind


def _census(compiled: Callable[[], int]) -> dict[str, int]:
    gc.collect()
    return {
        "live arrays": len(jax.live_arrays()),
        "tracked objects": len(gc.get_objects()),
        "compiled programs": compiled(),
    }


def _left_behind(section: Section, steps: int) -> None:
    traces = 0

    def counted(model: Any) -> Any:
        nonlocal traces
        traces += 1
        return models.write_all(model)

    model = models.Model(models.arrays(121))
    step = nnx.jit(counted)
    for _ in range(10):
        step(model)
    compiled: Callable[[], int] = lambda: traces  # noqa: E731
    before = _census(compiled)
    before = _census(compiled)  # the first one makes objects itself
    for _ in range(steps - 10):
        step(model)
    after = _census(compiled)
    table = Table(
        "left-behind",
        f"What is there after 10 and after {steps:,} steps",
        "count",
        None,
        ["10 steps", f"{steps:,} steps"],
        [],
    )
    section.tables.append(table)
    for name, count in before.items():
        cells = {
            "10 steps": Cell(exact(count)),
            f"{steps:,} steps": Cell(exact(after[name])),
        }
        table.rows.append(Row(name, None, cells))
        more = exact(max(0, after[name] - count))
        bar = f"{name}: more after {steps:,} steps than after 10"
        section.bars.append(Bar(bar, more, TOLERANCE[name]))


# Peaks of gradients through remat and scan, beside the same by hand


def _layer(w: jax.Array, x: jax.Array) -> jax.Array:
    for _ in range(4):
        x = jnp.tanh(x @ w)
    return x


class _Deep(nnx.Module):
    def __init__(self, weights: list[jax.Array]) -> None:
        self.weights = nnx.List([nnx.Param(w) for w in weights])


class _Stacked(nnx.Module):
    def __init__(self, weights: jax.Array) -> None:
        self.weights = nnx.Param(weights)


def _peaks(section: Section, depth: int) -> None:
    table = Table(
        "peak-memory",
        f"Temporary memory of the gradient through {depth} layers, as planned by XLA",
        "B",
        peers.BY_HAND,
        [peers.BY_HAND, peers.NNX],
        [],
    )
    section.tables.append(table)
    width = 128
    x = jnp.ones((256, width))
    weights = [jnp.full((width, width), 0.01) for _ in range(depth)]
    stacked = jnp.stack(weights)

    def plain(layer: Any, weights: Any, x: Any) -> Any:
        for w in weights:
            x = layer(w, x)
        return jnp.sum(x)

    def scanned(weights: Any, x: Any) -> Any:
        step = jax.checkpoint(_layer)
        return jnp.sum(jax.lax.scan(lambda x, w: (step(w, x), None), x, weights)[0])

    def ours_plain(wrap: Any) -> Any:
        def loss(model: Any, x: Any) -> Any:
            layer = wrap(lambda w, x: _layer(w.value, x))
            for w in model.weights:
                x = layer(w, x)
            return jnp.sum(x)

        return loss

    def ours_scanned(model: Any, x: Any) -> Any:
        step = nnx.remat(lambda m, x: _layer(m.weights.value, x))
        axes = (nnx.Carry, 0)
        out = nnx.scan(lambda x, m: step(m, x), in_axes=axes, out_axes=nnx.Carry)
        return jnp.sum(out(x, model))

    def remat_by_hand(weights: Any, x: Any) -> Any:
        return plain(jax.checkpoint(_layer), weights, x)

    def grad_by_hand(loss: Any, weights: Any) -> Any:
        return jax.jit(jax.grad(loss)).lower(weights, x).compile()

    def grad_of_ours(loss: Any, model: Any) -> Any:
        return nnx.jit(nnx.grad(loss)).lower(model, x).compile()

    deep, one = _Deep(weights), _Stacked(stacked)
    cases = {
        "no remat": (
            grad_by_hand(lambda w, x: plain(_layer, w, x), weights),
            grad_of_ours(ours_plain(lambda f: f), deep),
        ),
        "remat": (
            grad_by_hand(remat_by_hand, weights),
            grad_of_ours(ours_plain(nnx.remat), deep),
        ),
        "scan of remat": (
            grad_by_hand(scanned, stacked),
            grad_of_ours(ours_scanned, one),
        ),
    }
    for name, (by_hand, ours) in cases.items():
        sizes = [c.memory_analysis().temp_size_in_bytes for c in (by_hand, ours)]
        cells = dict(zip(table.columns, map(Cell, map(exact, sizes)), strict=True))
        cells = _with_ratios(cells)
        table.rows.append(Row(name, None, cells))
        found = cells[peers.NNX].ratio
        assert found is not None
        bar = f"temporary memory over by hand: {name}"
        section.bars.append(Bar(bar, found, 1.0))
