"""Objects on a mesh of devices: dispatch of a step, and memory for making a model."""

from __future__ import annotations

import multiprocessing
import os
import socket
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import jax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import nnx_transforms as nnx
from tools.bench import models, peers
from tools.bench.measuring import Comparison, Effort
from tools.bench.memory import exact
from tools.bench.results import Bar, Cell, Row, Section, Table

LIMIT = 1.30
LIMIT_MAKING = 1.1
DEVICES = 4
"""Of all processes together, arranged two by two."""
VARIABLES = 121
WIDTH, DEPTH, VOCABULARY = 256, 48, 1024
PLANNED, LIVE = "as planned by XLA", "as live buffers"


def run(effort: Effort) -> Section:
    """Measures, in one process and in two.

    Args:
        effort: How long to measure.

    Returns:
        The tables and bars.
    """
    section = Section("sharded", "On several devices")
    dispatch = Table(
        "sharded-dispatch",
        f"A call of a compiled step on {VARIABLES} variables, divided over {DEVICES} "
        "CPU devices",
        "s",
        peers.RAW,
        [peers.RAW, peers.NNX],
        [],
        ["The step does not communicate: what is measured is the way in and out."],
    )
    making = Table(
        "sharded-making",
        f"Bytes on one device for making a model of {DEPTH} layers in shards",
        "B",
        "its shards",
        ["its shards", PLANNED, LIVE],
        [],
        ["Planned are results and temporary arrays: here the random bits of a layer."],
    )
    section.tables += [dispatch, making]
    for processes in (1,) if effort.is_quick else (1, 2):
        where = "one process" if processes == 1 else f"{processes} processes"
        steps, made = _in_processes(processes, effort)
        for kind, cells in steps.items():
            dispatch.rows.append(Row(f"{kind}, {where}", None, cells))
            ratio = cells[peers.NNX].ratio
            assert ratio is not None
            section.bars.append(Bar(f"sharded {kind} over raw: {where}", ratio, LIMIT))
        for axes, (shards, planned, live) in made.items():
            cells = {
                "its shards": Cell(exact(shards)),
                PLANNED: Cell(exact(planned), exact(planned / shards)),
                LIVE: Cell(exact(live), exact(live / shards)),
            }
            making.rows.append(Row(f"{axes} axes, {where}", None, cells))
            for name in (PLANNED, LIVE):
                found = cells[name].ratio
                assert found is not None
                what = f"making over its shards {name}: {axes} axes, {where}"
                section.bars.append(Bar(what, found, LIMIT_MAKING))
    return section


Found = tuple[dict[str, dict[str, Cell]], dict[str, tuple[int, int, int]]]


def _in_processes(processes: int, effort: Effort) -> Found:
    """What the first of some processes that share the devices finds."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context) as executor:
        found = [
            executor.submit(_measure, number, processes, address, effort)
            for number in range(processes)
        ]
        first, *_ = [future.result() for future in found]
        return first


def _measure(process: int, processes: int, address: str, effort: Effort) -> Found:
    # Before JAX makes its devices, which it does when it first needs one.
    count = f"--xla_force_host_platform_device_count={DEVICES // processes}"
    os.environ["XLA_FLAGS"] = count
    jax.config.update("jax_platforms", "cpu")
    if processes > 1:
        # Past Python, what joins the processes prints whom it found.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(address, processes, process)
    steps = {kind: _dispatch(kind, effort) for kind in ("write one", "write all")}
    kinds = {"automatic": AxisType.Auto, "explicit": AxisType.Explicit}
    return steps, {name: _making(kind) for name, kind in kinds.items()}


def _dispatch(kind: str, effort: Effort) -> dict[str, Cell]:
    mesh = _mesh(AxisType.Auto)
    place = NamedSharding(mesh, P("model"))
    values = [jax.device_put(value, place) for value in models.arrays(VARIABLES)]
    model = models.Model(models.arrays(VARIABLES))
    with jax.set_mesh(mesh):
        nnx.shard(model, {...: P("model")})
    step = nnx.jit(models.STEPS[kind])
    raw = models.raw_call(models.RAW_STEPS[kind], values)
    comparison = Comparison({peers.RAW: raw, peers.NNX: lambda: step(model)}, effort)
    for _ in range(effort.passes):
        comparison.measure()
    return comparison.cells()


class _Layer(nnx.Module):
    """The parameters of a layer of a transformer."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        sizes = [(1, 1)] * 4 + [(1, 4), (4, 1)]
        self.kernels = nnx.List(
            nnx.Linear(a * WIDTH, b * WIDTH, use_bias=False, rngs=rngs)
            for a, b in sizes
        )


class _Model(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        make = nnx.scan(lambda key: _Layer(nnx.Rngs(key)), in_axes=0, out_axes=0)
        self.layers = make(jax.random.split(rngs.params(), DEPTH))
        self.embedding = nnx.Embed(VOCABULARY, WIDTH, rngs=rngs)


def _mesh(kind: AxisType) -> Any:
    return jax.make_mesh((2, DEVICES // 2), ("data", "model"), axis_types=(kind, kind))


def _making(kind: AxisType) -> tuple[int, int, int]:
    layout = {
        nnx.PathContains("layers"): P(None, "data", "model"),
        ...: P("data", "model"),
    }
    make = nnx.create_sharded(_Model, shardings=layout)
    device = jax.local_devices()[0]
    with jax.set_mesh(_mesh(kind)):
        planned = make.lower(nnx.Rngs(0)).compile().memory_analysis()
        before = _live_bytes(device)
        model = make(nnx.Rngs(0))
        live = _live_bytes(device) - before
        shards = nnx.placement(model).bytes_on[device]
    return (
        shards,
        int(planned.temp_size_in_bytes + planned.output_size_in_bytes),
        live,
    )


def _live_bytes(device: jax.Device) -> int:
    shards = (s for x in jax.live_arrays() for s in x.addressable_shards)
    return sum(s.data.nbytes for s in shards if s.device == device)
