"""Measuring calls against each other on a machine that does other things as well.

All calls of a comparison run in the same round, one right after the other, and what
counts is the ratio of two times of the same round: a busy neighbour slows both. The
order turns around from round to round, so that none always profits from the other's
warm caches. The garbage collector is left as Python starts it, since its work is part
of what a library costs that allocates much at each call; except where a call happens
once in a program, and it would be chance whether a collection falls into it.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax

from tools.bench.results import Cell, Spread, ratios


@dataclass(frozen=True)
class Effort:
    """How long to measure.

    Args:
        seconds: The time for one comparison of several calls.
        slice: How long one measurement of one call takes at least; short calls are
            repeated.
        rounds: The least and the largest number of rounds.
        waits: Whether to wait for the arrays that a call returns.
        is_quick: Whether to leave out what takes long.
        collects: Whether Python's garbage collector is on while a call is measured.
    """

    seconds: float = 2.0
    slice: float = 0.001
    rounds: tuple[int, int] = (9, 301)
    waits: bool = True
    is_quick: bool = False
    collects: bool = True

    def of(self, share: float) -> Effort:
        """The same for a share of the time."""
        return replace(self, seconds=self.seconds * share)


FEW = 5
LONG = 0.05
"""From how many seconds on a call is measured alone."""
VERY_LONG = 0.1
"""From how many seconds on a call is measured without another one before it."""
FULL = Effort()
QUICK = Effort(seconds=0.4, rounds=(5, 101), is_quick=True)
SMOKE = Effort(seconds=0.02, slice=0.0, rounds=(2, 3), is_quick=True)


@dataclass(frozen=True)
class Prepared:
    """A call that needs something done before each time, which is not measured.

    Args:
        prepare: Called before.
        call: Called with what `prepare` returned.
    """

    prepare: Callable[[], Any]
    call: Callable[[Any], Any]


Measured = Callable[[], Any] | Prepared


class _Contestant:
    """One of the calls that are measured against each other."""

    def __init__(self, measured: Measured, effort: Effort) -> None:
        self.measured = measured
        self.wait = jax.block_until_ready if effort.waits else lambda out: None
        self.times: list[float] = []
        self.spent = 0.0
        self.repeats = 1
        self.begins = False
        estimate = min(self.run() for _ in range(3))  # compiles, and fills caches
        if not isinstance(measured, Prepared):
            # Several in a row, so that a call pays for the garbage of those before it.
            least = FEW if effort.collects and estimate < LONG else 1
            repeats = round(effort.slice / max(estimate, 1e-9))
            self.repeats = max(least, min(1000, repeats))
            self.begins = estimate < VERY_LONG

    def run(self) -> float:
        """Runs it and returns the time of one call."""
        measured = self.measured
        if isinstance(measured, Prepared):
            prepared = measured.prepare()
            jax.block_until_ready(prepared)
            start = time.perf_counter()
            out = measured.call(prepared)
            self.wait(out)
            taken = time.perf_counter() - start
        else:
            repeats = range(self.repeats)
            if self.begins:
                # One to begin with, so that it finds its own data and code in the
                # caches, and not what others left there.
                self.wait(measured())
            start = time.perf_counter()
            for _ in repeats:
                out = measured()
            self.wait(out)
            taken = time.perf_counter() - start
        self.spent += taken
        return taken / self.repeats


def rounds_of(
    calls: Mapping[str, Measured], effort: Effort, always: tuple[str, ...] = ()
) -> dict[str, list[float]]:
    """Measures calls against each other.

    Args:
        calls: The calls by name. The first two always take part; one of the others
            drops out when it has had its share of the time in the least number of
            rounds, so that slow ones don't keep the rest from being precise.
        effort: How long to measure.
        always: The names of others that take part in every round.

    Returns:
        For each call its time in each round, in seconds, from the first round on.
    """
    entries = {name: _Contestant(call, effort) for name, call in calls.items()}
    lasting = {*list(entries)[:2], *always}
    least, most = effort.rounds
    for entry in entries.values():
        entry.spent = 0.0
    was_enabled = gc.isenabled()
    gc.collect()
    if not effort.collects:
        gc.disable()
    start = time.perf_counter()
    try:
        for number in range(most):
            if number >= least and time.perf_counter() - start > effort.seconds:
                break
            order = list(entries.items())
            for name, entry in order if number % 2 == 0 else reversed(order):
                share = effort.seconds / len(entries)
                if name in lasting or number < least or entry.spent < share:
                    if len(entry.times) == number:
                        # So that nobody pays for the garbage of others.
                        gc.collect(1)
                        entry.times.append(entry.run())
    finally:
        if was_enabled:
            gc.enable()
    return {name: entry.times for name, entry in entries.items()}


def compare(
    calls: Mapping[str, Measured], effort: Effort, always: tuple[str, ...] = ()
) -> dict[str, Cell]:
    """Measures calls against the first of them.

    Args:
        calls: As for `rounds_of`; the first is the baseline.
        effort: How long to measure.
        always: As for `rounds_of`.

    Returns:
        The cells of a row: times, and ratios to the baseline.
    """
    times = rounds_of(calls, effort, always)
    baseline, *_ = times.values()
    return {
        name: Cell(
            Spread.of(mine),
            None if mine is baseline else Spread.of(ratios(mine, baseline)),
        )
        for name, mine in times.items()
    }
