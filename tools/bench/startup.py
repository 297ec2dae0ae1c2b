"""Start-up: what importing a package takes beyond importing JAX."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile

from tools.bench.measuring import Effort
from tools.bench.results import Bar, Cell, Row, Section, Spread, Table

OURS = ("graphcore", "nnx_transforms", "linen_lift")
PEERS = ("flax.nnx", "flax.linen", "equinox")
LIMIT = 0.25
PROGRAM = """
import time, jax
start = time.perf_counter()
import {name}
print(time.perf_counter() - start)
"""


def run(effort: Effort) -> Section:
    """Measures imports, each in a new process, in rounds.

    Args:
        effort: How long to measure.

    Returns:
        The table and bars.
    """
    section = Section("startup", "Start-up")
    peers = [n for n in PEERS if importlib.util.find_spec(n.split(".")[0])]
    if effort.is_quick:
        peers = []  # each import takes a second or two
    names = [*OURS, *peers]
    times: dict[str, list[float]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as bytecode:
        for name in names:  # compile the sources, as an installer does
            _seconds_to_import(name, bytecode)
        for number in range(1 if effort.is_quick else 9):
            for name in names if number % 2 == 0 else reversed(names):
                times[name].append(_seconds_to_import(name, bytecode))
    found = {name: Spread.of(mine) for name, mine in times.items()}
    rows = [Row(name, None, {"seconds": Cell(s)}) for name, s in found.items()]
    title = "Importing a package, after `import jax`"
    table = Table("startup", title, "s", None, ["seconds"], rows)
    table.notes.append("From bytecode, as Python does once a package is installed.")
    missing = [n for n in PEERS if n not in names]
    table.notes.extend(f"{n} is left out." for n in missing)
    section.tables.append(table)
    for name in OURS:
        what = f"seconds to import {name} beyond jax"
        section.bars.append(Bar(what, found[name], LIMIT))
    return section


def _seconds_to_import(name: str, bytecode: str) -> float:
    """The time it takes in a new process, with its bytecode in a folder.

    Where all processes have one for theirs, as under `__main__`, it is there.
    """
    environment = {"PYTHONPYCACHEPREFIX": bytecode, **os.environ}
    # Where this is set, each import would compile the sources.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(name=name)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)
