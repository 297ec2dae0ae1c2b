"""Kills a run again and again, and compares its end with that of one never killed."""

from __future__ import annotations

import random
import time
from pathlib import Path

from tools.resume.processes import Processes


def check(folder: Path, kills: int, count: int, seed: int) -> bool:
    """Compares a run that is killed with one that is not.

    Args:
        folder: For the checkpoints.
        kills: How often to kill it.
        count: How many processes it has.
        seed: Of the moments.

    Returns:
        Whether both end with the same bits.
    """
    chance = random.Random(seed)
    steps = 3 * kills + 5

    def started(name: str) -> Processes:
        arguments = [str(folder / name), f"--steps={steps}"]
        return Processes(
            "tools.resume.training", arguments, count, folder / f"{name}.log"
        )

    with started("whole") as processes:
        expected = processes.finish()[0][-1]
    print(f"never killed: {steps} steps, {expected[:20]}", flush=True)
    for number in range(1, kills + 1):
        with started("killed") as processes:
            # Mostly in the middle of steps and savings, at times in the beginning.
            if chance.random() < 0.8:
                processes.wait_for("step", chance.randrange(1, 4))
                time.sleep(chance.uniform(0, 0.1))
            else:
                time.sleep(chance.uniform(0, 8))
            processes.kill(chance)
        said = [line for line in processes.lines[0] if line.startswith(("sta", "ste"))]
        print(f"killed {number:2}: {' | '.join(said) or 'at its start'}", flush=True)
    with started("killed") as processes:
        found = processes.finish()[0][-1]
    verdict = "the same" if found == expected else "NOT the same"
    print(f"killed {kills} times: {found[:20]}, {verdict}", flush=True)
    return found == expected
