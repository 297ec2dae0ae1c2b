"""Objects of Flax under our transforms and under Flax's own, beside raw JAX."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

import nnx_transforms as nnx
from tools.bench import models, peers
from tools.bench.measuring import Effort, Measured, compare
from tools.bench.results import Bar, Cell, Row, Section, Spread, Table

LIMITS = {
    "write one": {31: 1.9, 121: 1.7, 601: 1.7},
    "write all": {31: 1.5, 121: 1.4, 601: 1.35},
}
LIMIT_STEP = 1.7
FASTER = {"write one": 40.0, "training": 6.0}
OURS = "Flax objects, nnx-transforms"


def run(effort: Effort) -> Section:
    """Measures calls of compiled steps on objects of Flax.

    Args:
        effort: How long to measure.

    Returns:
        The table and the bars; none of either without Flax.
    """
    section = Section("flax_objects", "Objects of Flax")
    if peers.flax_nnx is None:
        return section
    columns = [peers.RAW, OURS, peers.FLAX_UPDATES, peers.FLAX_GRAPH]
    columns += [peers.FLAX_TREE, peers.FLAX_PARTIAL]
    table = Table(
        *("flax_objects", "The same objects of Flax on both sides", "s", peers.RAW),
        *(columns, []),
    )
    section.tables.append(table)
    for kind, limits in LIMITS.items():
        for size, limit in limits.items():
            what = f"{kind}, {size} variables"
            cells = compare(_step_calls(kind, size, effort), effort)
            table.rows.append(Row(what, size, cells))
            _add_bar(section, f"Flax objects over raw: {what}", cells[OURS], limit)
            if peers.FLAX_PARTIAL in cells:
                found = _over(cells[peers.FLAX_PARTIAL], cells[OURS])
                what = f"Flax's jit_partial over ours: {what}"
                section.bars.append(Bar(what, found, 1.0, at_least=True))
            if (kind, size) == ("write one", 601):
                _add_faster(section, "write one, 601 variables", cells, FASTER[kind])
    cells = compare(_training_calls(), effort)
    what = "a training step with adamw and metrics"
    table.rows.append(Row(what, None, cells))
    _add_bar(section, f"Flax objects over raw: {what}", cells[OURS], LIMIT_STEP)
    _add_faster(section, what, cells, FASTER["training"])
    return section


def _add_bar(section: Section, what: str, cell: Cell, limit: float) -> None:
    assert cell.ratio is not None
    section.bars.append(Bar(what, cell.ratio, limit))


def _add_faster(
    section: Section, what: str, cells: dict[str, Cell], limit: float
) -> None:
    found = _over(cells[peers.FLAX_UPDATES], cells[OURS])
    what = f"Flax with graph updates over ours: {what}"
    section.bars.append(Bar(what, found, limit, at_least=True))


def _over(theirs: Cell, ours: Cell) -> Spread:
    a, b = theirs.value, ours.value
    return Spread(a.median / b.median, a.low / b.high, a.high / b.low, a.count)


def _step_calls(kind: str, size: int, effort: Effort) -> dict[str, Measured]:
    flax, values = peers.flax_nnx, models.arrays(size)
    step = models.STEPS[kind]
    mine, compiled = models.flax_model(values), nnx.jit(step)
    calls: dict[str, Measured] = {
        peers.RAW: models.raw_call(models.RAW_STEPS[kind], values),
        OURS: lambda: compiled(mine),
    }
    for name, mode in peers.flax_modes(flax.jit).items():
        if effort.is_quick and (kind, name) != ("write one", peers.FLAX_UPDATES):
            continue
        theirs, model = flax.jit(step, **mode), models.flax_model(values)
        calls[name] = lambda f=theirs, m=model: f(m)
    if hasattr(flax, "jit_partial"):
        model = models.flax_model(values)
        calls[peers.FLAX_PARTIAL] = flax.jit_partial(step, model, graph=False)
    return calls


def _training(values: list[jax.Array]) -> tuple[Any, ...]:
    import optax

    flax = peers.flax_nnx
    model = models.flax_model(values)
    optimizer = flax.Optimizer(model, optax.adamw(1e-3), wrt=flax.Param)
    return model, optimizer, flax.metrics.Average("loss")


def _training_step(value_and_grad: Any) -> Any:
    def step(model: Any, optimizer: Any, metric: Any, x: jax.Array) -> jax.Array:
        def loss(model: Any) -> jax.Array:
            return jnp.sum(x * models.read_only(model))

        value, grads = value_and_grad(loss)(model)
        optimizer.update(model, grads)
        metric.update(loss=value)
        return value

    return step


def _training_calls() -> dict[str, Measured]:
    flax, values, x = peers.flax_nnx, models.arrays(121), jnp.ones((2,))
    # Raw JAX: the same step, as a function of all arrays.
    graphdef, state = flax.split(_training(values))
    leaves, structure = jax.tree.flatten(state)

    def raw(leaves: list[jax.Array], x: jax.Array) -> Any:
        objects = flax.merge(graphdef, jax.tree.unflatten(structure, leaves))
        value = _training_step(flax.value_and_grad)(*objects, x)
        return value, jax.tree.leaves(flax.state(objects))

    mine, compiled = _training(values), nnx.jit(_training_step(nnx.value_and_grad))
    calls: dict[str, Measured] = {
        peers.RAW: models.raw_call(raw, leaves, x),
        OURS: lambda: compiled(*mine, x),
    }
    for name, mode in peers.flax_modes(flax.jit).items():
        if name != peers.FLAX_TREE:
            step = flax.jit(_training_step(flax.value_and_grad), **mode)
            calls[name] = functools.partial(step, *_training(values), x)
    return calls
