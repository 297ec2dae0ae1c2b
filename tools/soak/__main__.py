"""The command line: ``python -m tools.soak --help``."""

from __future__ import annotations

import argparse
import logging
import random
import sys
import traceback

from rich.console import Console

from tools.soak import machine
from tools.soak.flatness import Grown
from tools.soak.plants import PLANTS, planted
from tools.soak.running import Failure, run_program, soak

_SHORT_PROGRAMS = 300


def main() -> int:
    """Runs programs, reports the first that fails, and returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.soak",
        description="Run random programs on random graphs against a slow model.",
    )
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, help="of the first program")
    parser.add_argument("--steps", type=int, help="so many of that program alone")
    parser.add_argument("--plant", choices=PLANTS, help="a fault that must be found")
    arguments = parser.parse_args()
    console = Console(soft_wrap=True)
    seed = arguments.seed
    if seed is None:
        seed = random.SystemRandom().randrange(10**6)
    console.print(f"seed {seed}")
    # JAX tells of each callback that raises, as some are here to do.
    logging.getLogger("jax").setLevel(logging.CRITICAL)
    with planted(arguments.plant):
        try:
            if arguments.steps is not None:
                failure = run_program(seed, arguments.steps)
            else:
                failure = soak(seed, arguments.minutes, console)
        except Grown as error:
            console.print(f"{error}", markup=False)
            return 1
        except Exception as error:  # with the program in its notes
            traceback.print_exception(error, limit=-4)
            return 1
        if failure is None:
            return 0
        report(console, failure)
    return 1


def report(console: Console, failure: Failure) -> None:
    """Prints a failure, how to see it again, and a short program if there is one."""
    traceback.print_exception(failure.error, limit=-4)
    for number, step in enumerate(failure.steps):
        console.print(f"{number}: {step}", markup=False, highlight=False)
    again = f"--seed {failure.seed} --steps {len(failure.steps)}"
    console.print(f"Once more: nox -s soak -- {again}")
    console.print("Looking for a short program that fails ...")
    try:
        machine.check(failure.seed, _SHORT_PROGRAMS)
    except Exception as error:  # with the program in its notes
        traceback.print_exception(error, limit=-4)
    else:
        console.print("There is none among a few hundred.")


if __name__ == "__main__":
    sys.exit(main())
