"""Programs one after the other, until the time is over or one fails."""

from __future__ import annotations

import dataclasses
import random
import time
from collections import Counter

from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from tools.soak import machine
from tools.soak.flatness import Usage
from tools.soak.worlds import Call, Step, World, draw_step

__all__ = ["Failure", "program", "run_program", "soak"]

_PROGRAMS_A_CHECK = 6
_EXAMPLES = 8


@dataclasses.dataclass
class Failure:
    """A program that failed.

    Args:
        seed: Of the program.
        steps: Its steps, the one that failed last.
        error: What that raised.
    """

    seed: int
    steps: list[Step]
    error: BaseException


def program(seed: int) -> tuple[random.Random, int]:
    """The source of numbers for a program, and how many steps it has."""
    numbers = random.Random(seed)
    return numbers, numbers.choice((20, 40, 80, 160, 320))


def run_program(
    seed: int,
    length: int | None = None,
    counts: Counter[str] | None = None,
    end: float = float("inf"),
) -> Failure | None:
    """Runs one program.

    Args:
        seed: Of the program.
        length: How many steps; as many as the seed says if left out.
        counts: Counts the kinds of steps and transforms.
        end: When to stop at the latest.
    """
    numbers, usual = program(seed)
    steps: list[Step] = []
    try:
        world = World()
        for _ in range(usual if length is None else length):
            if time.monotonic() > end:
                break
            steps.append(draw_step(numbers.randrange))
            world.do(steps[-1])
            if counts is not None:
                counts[type(steps[-1]).__name__] += 1
                if isinstance(steps[-1], Call):
                    counts.update(steps[-1].transforms)
    except Exception as error:
        return Failure(seed, steps, error)
    return None


def soak(seed: int, minutes: float, console: Console) -> Failure | None:
    """Runs programs, short ones and long ones, and checks that nothing grows.

    Args:
        seed: Of the first program.
        minutes: For how long.
        console: Where the progress is shown.

    Raises:
        Grown: If memory, arrays, or objects of the library become more.
        Exception: That of a short program that Hypothesis found.
    """
    end = time.monotonic() + 60 * minutes
    counts: Counter[str] = Counter()
    first: Usage | None = None
    columns = TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=None)
        while time.monotonic() < end:
            steps = sum(counts[kind] for kind in ("Edit", "Call", "Again"))
            progress.update(task, description=f"seed {seed}, {steps} steps so far")
            failure = run_program(seed, counts=counts, end=end)
            if failure is not None:
                return failure
            seed += 1
            if seed % _PROGRAMS_A_CHECK == 0 and time.monotonic() < end:
                progress.update(task, description=f"seed {seed}, short programs")
                machine.check(seed, _EXAMPLES)
                usage = Usage.now()
                console.print(f"seed {seed}: {usage}")
                if first is None:
                    first = usage
                first.check_not_below(usage)
    console.print(f"No difference. {dict(counts.most_common())}")
    return None
