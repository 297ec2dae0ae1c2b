"""Measures the peak memory of a step; a program, so that nothing else is in it.

`python -m tools.bench.peak MEGABYTES DONATE` prints the bytes that the variables and
what a step needs beside them took at the peak.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import jax

import nnx_transforms as nnx
from tools.bench.memory import Large, overwrite


def _resident(name: str) -> int:
    """A figure of Linux on this process, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"no {name}")


def measure(megabytes: int, donate: bool) -> int:
    """Runs steps and returns the bytes at the peak.

    Args:
        megabytes: The size of the variables.
        donate: Whether to donate them.

    Returns:
        The bytes, without what the process had before.
    """
    device = jax.devices()[0]
    step = nnx.jit(overwrite, donate_state=donate)
    model = Large(megabytes)
    # Compiled for the same shapes, and what that needed is freed and not counted.
    warm = Large(megabytes)
    step(warm)
    jax.block_until_ready(nnx.state(warm))
    del warm
    jax.block_until_ready(nnx.state(model))
    size = sum(v.value.nbytes for v in model.variables)
    statistics = device.memory_stats()
    if statistics is not None:
        # The peak includes the run that compiled: beside `model`, the same again.
        return int(statistics["peak_bytes_in_use"]) - size
    # Linux forgets the peak so far, so that the peak of the steps can be read.
    Path("/proc/self/clear_refs").write_text("5")
    before = _resident("VmRSS")
    for _ in range(3):
        step(model)
        jax.block_until_ready([v.value for v in model.variables])
    return _resident("VmHWM") - before + size


if __name__ == "__main__":
    print(json.dumps({"peak": measure(int(sys.argv[1]), sys.argv[2] == "1")}))
