"""What each of the processes of part 4 runs: ``python -m ... ARGUMENTS``, as JSON."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from rich.console import Console

import nnx_transforms as nnx
from tools.demo.progress import progress_bar
from tools.demo.transformer import create, make_mesh, train_step

BATCH_SIZE = 16
LENGTH = 64
CONSTANTS = 256
"""Bytes of what is no variable: a sixteenth of the smallest divided parameter."""


def own_output() -> Console:
    """A console, and silence for what libraries print past Python, on every device."""
    file = os.fdopen(os.dup(1), "w", buffering=1)
    width = None if file.isatty() else 120
    console = Console(file=file, highlight=False, width=width)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return console


def live_bytes() -> dict[jax.Device, int]:
    """How much the arrays hold that there are, on each device of this process."""
    held: dict[jax.Device, int] = {}
    for array in jax.live_arrays():
        for shard in array.addressable_shards:
            held[shard.device] = held.get(shard.device, 0) + shard.data.nbytes
    return held


def check_memory(objects: Any) -> None:
    """Makes sure that no device holds more than its shards, but for a few constants.

    Raises:
        AssertionError: If one does.
    """
    held = nnx.placement(objects).bytes_on
    for device, found in live_bytes().items():
        more = found - held.get(device, 0)
        assert more < CONSTANTS, f"{device} holds {more} bytes beside its shards"


def batch_of(
    text: np.ndarray, rng: np.random.Generator, sharding: NamedSharding
) -> jax.Array:
    """Draws pieces of the text, of which each process makes its own part.

    Args:
        text: The bytes of the text.
        rng: Alike in all processes.
        sharding: How the batch is divided.

    Returns:
        Integers of shape (BATCH_SIZE, LENGTH + 1).
    """
    starts = rng.integers(0, len(text) - LENGTH, BATCH_SIZE)

    def part(index: Any) -> np.ndarray:
        return np.stack([text[s : s + LENGTH + 1] for s in starts[index[0]]])

    return jax.make_array_from_callback((BATCH_SIZE, LENGTH + 1), sharding, part)


def train(console: Console, told: dict[str, Any]) -> list[float]:
    """Makes a model, looks where it lies, and trains it.

    Args:
        console: Where to write.
        told: The arguments of the process.

    Returns:
        The losses.
    """
    # Python's own language reference, which comes with Python.
    text = np.frombuffer("\n".join(topics.values()).encode(), np.uint8).astype(np.int32)
    rng = np.random.default_rng(told["seed"])
    mesh = make_mesh(told["data"], told["model"])
    rngs = nnx.Rngs(told["seed"])
    with jax.set_mesh(mesh):
        model, optimizer = create(rngs)
        check_memory((optimizer, rngs))
        if told["processes"] > 1:
            console.print(f"{told['processes']} processes, {mesh}")
            console.print(nnx.placement(model))
            state = nnx.placement(optimizer.opt_state)
            console.print(f"and {len(state)} arrays of the optimizer, placed alike")
        split = NamedSharding(mesh, P("data"))
        losses = []
        with progress_bar(told["steps"], console) as advance:
            for _ in range(told["steps"]):
                loss = float(train_step(model, optimizer, batch_of(text, rng, split)))
                losses.append(loss)
                advance(f"loss {loss:.3f}")
        check_memory((optimizer, rngs))
    return losses


def main() -> None:
    """Joins the other processes, trains, and writes the losses down."""
    told = json.loads(sys.argv[1])
    console = own_output()
    if told["processes"] > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(
            told["address"], told["processes"], told["process"], None
        )
    console.quiet = told["process"] > 0
    losses = train(console, told)
    if told["process"] == 0:
        Path(told["out"]).write_text(json.dumps(losses))


if __name__ == "__main__":
    main()
