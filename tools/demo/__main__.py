"""The command line: ``python -m tools.demo --help``."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

from tools.demo.progress import Settings
from tools.demo.timing import stopwatch

PARTS = {
    "1": "live_objects",
    "2": "deep_network",
    "3": "functional_modules",
    "4": "sharded_training",
}


def read_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.demo",
        description="Train classifiers of handwritten digits, and a language model on "
        "several devices, and show what happened.",
    )
    parser.add_argument("--quick", action="store_true", help="train for a shorter time")
    parser.add_argument(
        "--part", choices=[*PARTS, "all"], help="which part to run (default: all)"
    )
    parser.add_argument(
        "--processes",
        type=int,
        choices=[1, 2, 4, 8],
        metavar="N",
        help="in how many processes part 4 trains (default: 2); runs that part alone",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("demo_output"),
        metavar="DIR",
        help="the folder for the figures (default: %(default)s)",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="makes the run reproducible (default: 0)"
    )
    return parser.parse_args()


def main() -> int:
    """Runs the parts that were asked for.

    Returns:
        The exit code: 1 if a part does not reach what it should.
    """
    arguments = read_arguments()
    settings = Settings(
        arguments.out, arguments.seed, arguments.quick, arguments.processes or 2
    )
    chosen = arguments.part or ("4" if arguments.processes else "all")
    passed = True
    for number in PARTS if chosen == "all" else [chosen]:
        part = importlib.import_module(f"tools.demo.{PARTS[number]}")
        headline, *_ = (part.__doc__ or "").splitlines()
        print(headline, flush=True)
        with stopwatch() as watch:
            result = part.run(settings)
        print(result)
        print(f"took {watch.seconds:.0f} s", end="\n\n", flush=True)
        passed = passed and result.passed
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
