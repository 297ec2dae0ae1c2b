"""Part 4: a transformer divided over the devices of several processes.

Each process has some of the devices, as each machine of a cluster has some. Data are
divided over the processes, parameters over the devices of each; no device ever holds
the whole of a divided parameter. The same program on one device finds the same losses.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.demo.progress import Settings

OVER_MODEL = 2
"""Over how many devices parameters are divided; batches, over the rest."""
TOLERANCE = 1e-3
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Agreement:
    """How the losses of several processes compare with those of one.

    Args:
        apart: The largest difference, as a share of the loss.
        first: The first loss.
        last: The last one.
    """

    apart: float
    first: float
    last: float

    @property
    def passed(self) -> bool:
        """Whether they are the same to rounding, and became smaller."""
        return self.apart <= TOLERANCE and self.last < self.first

    def __str__(self) -> str:
        verdict = "ok" if self.passed else "TOO FAR"
        return (
            f"loss {self.first:.3f} -> {self.last:.3f}; apart from one process by at "
            f"most {self.apart:.0e} (at most {TOLERANCE:.0e}: {verdict})"
        )


def start(process: int, **arguments: Any) -> subprocess.Popen[bytes]:
    """Starts a process of the computation; see `sharded_process`."""
    count = arguments["data"] * arguments["model"] // arguments["processes"]
    devices = f"--xla_force_host_platform_device_count={count}"
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": devices}
    told = json.dumps({"process": process, **arguments})
    command = [sys.executable, "-m", "tools.demo.sharded_process", told]
    return subprocess.Popen(command, cwd=ROOT, env=env)


def losses_of(processes: int, data: int, model: int, **arguments: Any) -> list[float]:
    """Trains in some processes.

    Args:
        processes: How many.
        data: Over how many devices each batch is divided.
        model: Over how many devices parameters are.
        **arguments: More, for each process.

    Returns:
        The loss of each step.

    Raises:
        RuntimeError: If a process fails; the others are stopped.
    """
    with socket.socket() as probe, tempfile.TemporaryDirectory() as folder:
        probe.bind(("127.0.0.1", 0))
        arguments["address"] = f"127.0.0.1:{probe.getsockname()[1]}"
        arguments["out"] = str(Path(folder) / "losses.json")
        probe.close()
        told = {"processes": processes, "data": data, "model": model, **arguments}
        running = [start(number, **told) for number in range(processes)]
        try:
            while any(process.poll() is None for process in running):
                if any(process.poll() for process in running):
                    break  # the others would wait for it
                time.sleep(0.1)
        finally:
            for process in running:
                process.kill()
                process.wait()
        if any(process.returncode for process in running):
            raise RuntimeError("A process failed: see its message above.")
        found: list[float] = json.loads(Path(arguments["out"]).read_text())
        return found


def run(settings: Settings) -> Agreement:
    """Trains in several processes, then in one on one device.

    Args:
        settings: What the user asked for.

    Returns:
        How the losses compare.
    """
    told = {"steps": 20 if settings.quick else 200, "seed": settings.seed}
    devices = max(4 if settings.quick else 8, settings.processes)
    data = devices // OVER_MODEL
    several = losses_of(settings.processes, data, OVER_MODEL, **told)
    alone = losses_of(1, 1, 1, **told)
    pairs = zip(several, alone, strict=True)
    apart = max(abs(a - b) / b for a, b in pairs)
    return Agreement(apart, several[0], several[-1])
