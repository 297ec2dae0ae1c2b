"""The command line: ``python -m tools.mutation --help``."""

from __future__ import annotations

import argparse
import functools
import sys
import time
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.progress import track

from tools.mutation.processes import import_what_tests_need, in_processes

BAR = 0.9


def main() -> int:
    """Tests a sample of mutants, prints the rate, and returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.mutation",
        description="Test a seeded sample of mutants of the mechanism. What is known "
        "already is kept in .cache/mutation; a run can be stopped and started again.",
    )
    parser.add_argument("--sample", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--minutes", type=float, help="stop after these")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time")
    parser.add_argument(
        "--patience", type=float, default=60, help="seconds of tests for one mutant"
    )
    parser.add_argument("--only", default="", help="modules whose path has this in it")
    parser.add_argument(
        "--again",
        action="store_true",
        help="test those once more that survived for no known reason",
    )
    parser.add_argument("--report", action="store_true", help="test nothing")
    arguments = parser.parse_args()
    import_what_tests_need()
    # These import pytest and Hypothesis, which are set up above.
    from tools.mutation.covering import measure, unmeasured
    from tools.mutation.mutants import sample
    from tools.mutation.results import Results, reason_of, reasons
    from tools.mutation.targets import modules
    from tools.mutation.trials import passes, verdict_on

    console = Console(soft_wrap=True)
    results = Results()
    chosen = sample(modules(), arguments.sample, arguments.seed)
    chosen = [m for m in chosen if arguments.only in m.module]
    if arguments.report:
        return report(console, results, chosen, passes)
    deadline = time.monotonic() + 60 * (arguments.minutes or float("inf"))

    def each(call: Any, todo: list[Any], title: str, *last: Any) -> Iterator[Any]:
        tasks = ((x, *(each() for each in last)) for x in todo)
        found = in_processes(call, tasks, arguments.jobs, deadline)
        return track(found, title, total=len(todo), console=console)

    for _ in each(measure, unmeasured(), "Coverage of tests"):
        pass
    due = [m for m in chosen if results.of(m) is None]
    if arguments.again:
        known = reasons()
        living = results.living(chosen)
        due = [m for m in living if reason_of(m, known) is None] + due
    test = functools.partial(verdict_on, patience=arguments.patience)
    for mutant, verdict in each(test, due, "Mutants", results.kills):
        results.add(mutant, verdict)
        before, after = mutant.difference()
        where = f"{mutant.module}:{mutant.line}"
        console.print(f"{verdict.status:9} {where}  {before} -> {after}", markup=False)
    return report(console, results, chosen, passes)


def report(console, results, chosen, passes) -> int:  # type: ignore[no-untyped-def]
    """Prints the rate and who survived."""
    from tools.mutation.results import reason_of, reasons

    known = {m: verdict for m in chosen if (verdict := results.of(m))}
    tested = [m for m in known if known[m].status != "none"]
    living = results.living(chosen)
    explained = reasons()
    left = 0
    for mutant in living:
        before, after = mutant.difference()
        reason = reason_of(mutant, explained)
        left += reason is None
        console.print(
            f"\n{mutant.module}:{mutant.line} {mutant.operator} "
            f"({known[mutant].status})\n- {before}\n+ {after}",
            markup=False,
        )
        console.print(f"  {reason or 'No reason is given.'}", markup=False)
    killers = {known[m].by for m in tested}
    if not passes(killers):
        console.print("A test that noticed a mutant fails without one as well.")
        return 1
    noticed = len(tested) - len(living)
    rate = noticed / max(len(tested), 1)
    console.print(
        f"\n{noticed} of {len(tested)} mutants noticed ({rate:.1%}), of a sample of "
        f"{len(chosen)}; {len(living)} live, {left} of them without a reason."
    )
    return int(rate < BAR)


if __name__ == "__main__":
    sys.exit(main())
