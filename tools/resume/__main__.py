"""The command line: ``python -m tools.resume --help``."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tools.resume.killing import check


def main() -> int:
    """Runs the check, prints what happened, and returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.resume",
        description="Kill a training run in several processes at random moments, start "
        "it again each time, and compare its end with that of one never killed.",
    )
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--processes", type=int, default=2, choices=(1, 2, 4))
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        same = check(Path(folder), arguments.kills, arguments.processes, arguments.seed)
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
