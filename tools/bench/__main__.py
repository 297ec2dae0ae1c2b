"""Runs the benchmarks: ``python -m tools.bench --help``."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile


def with_bytecode() -> int:
    """Runs the same command where Python keeps bytecode.

    Each section has processes of its own. Where no bytecode is written, each of them
    compiles the sources of all libraries, which takes longer than many a measurement.

    Returns:
        The exit code.
    """
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": folder}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        command = [sys.executable, "-m", "tools.bench", *sys.argv[1:]]
        return subprocess.run(command, env=environment).returncode


if __name__ == "__main__":
    if sys.dont_write_bytecode:
        sys.exit(with_bytecode())
    from tools.bench.command import main

    sys.exit(main())
