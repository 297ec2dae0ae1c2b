"""Measuring calls against each other on a machine that does other things as well.

All calls of a comparison run in the same round, one right after the other, and what
counts is the ratio of two times of the same round: a busy neighbour slows both. Each
round has an order of its own, so that none always comes after the same one, and finds
in the caches what that one left there. The garbage collector is left as Python starts
it, since its work is part of what a library costs that allocates much at each call;
except where a call happens once in a program, and it would be chance whether a
collection falls into it.

Python keeps the frames of functions in chunks of 16 KiB, and gives the newest chunk
back as soon as it is empty: a function that is called again and again right at the end
of one takes some microseconds more each time. Whether that happens, in one of the calls
or in another, depends on how deep the caller is, and made the same tracing take up to
twice as long. So there is room for all frames of what is measured.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import FunctionType
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
        passes: How often to do that, where it matters most, with other measurements
            in between: a neighbour that is busy for a while then spoils a part of each
            and not all of one.
        waits: Whether to wait for the arrays that a call returns.
        is_quick: Whether to leave out what takes long.
        is_quiet: Whether nothing else runs on the machine, so that limits count that
            leave no room for a neighbour.
        collects: Whether Python's garbage collector is on while a call is measured.
        generation: Up to which generation garbage is collected before.
    """

    seconds: float = 2.0
    slice: float = 0.001
    rounds: tuple[int, int] = (9, 301)
    passes: int = 3
    waits: bool = True
    is_quick: bool = False
    is_quiet: bool = False
    collects: bool = True
    generation: int = 1

    def of(self, share: float) -> Effort:
        """The same for a share of the time."""
        return replace(self, seconds=self.seconds * share)


FEW = 5
LONG, LONG_IF_QUICK = 0.05, 0.005
"""From how many seconds on a call is measured alone."""
VERY_LONG = 0.1
"""From how many seconds on a call is measured without another one before it."""
FULL = Effort()
QUICK = Effort(seconds=0.2, rounds=(3, 101), passes=1, is_quick=True)
SMOKE = Effort(seconds=0.02, slice=0.0, rounds=(2, 3), passes=1, is_quick=True)


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


def _call(f: Callable[[], Any]) -> Any:
    return f()


# A frame that does not fit into a chunk has one of its own, whose size is a power of
# two: with this many slots of 8 bytes nearly half of it is free.
_SLOTS = 1 << 16
_with_room: Callable[[Callable[[], Any]], Any] = FunctionType(
    _call.__code__.replace(co_stacksize=_SLOTS), globals(), "_with_room"
)


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
        self.begins = estimate < VERY_LONG
        if not isinstance(measured, Prepared):
            # Several in a row, so that a call pays for the garbage of those before it.
            long = LONG_IF_QUICK if effort.is_quick else LONG
            least = FEW if effort.collects and estimate < long else 1
            repeats = round(effort.slice / max(estimate, 1e-9))
            self.repeats = max(least, min(1000, repeats))

    def run(self) -> float:
        """Runs it and returns the time of one call."""
        measured = self.measured
        if self.begins:
            # One to begin with, so that it finds its own data and code in the caches,
            # and not what others left there.
            self.once()
        if isinstance(measured, Prepared):
            taken = self.once()
        else:
            repeats = range(self.repeats)
            start = time.perf_counter()
            for _ in repeats:
                out = measured()
            self.wait(out)
            taken = time.perf_counter() - start
        self.spent += taken
        return taken / self.repeats

    def once(self) -> float:
        """Calls it once and returns the time."""
        measured = self.measured
        if isinstance(measured, Prepared):
            prepared = measured.prepare()
            self.wait(prepared)
            # So that the collector isn't busy with what was prepared.
            gc.collect(1)
            start = time.perf_counter()
            self.wait(measured.call(prepared))
        else:
            start = time.perf_counter()
            self.wait(measured())
        return time.perf_counter() - start


class Comparison:
    """Calls that are measured against each other, in one or several passes.

    Args:
        calls: The calls by name. The first two always take part; one of the others
            drops out of a pass when it has had its share of the time in the least
            number of rounds. Those that stay have a quarter of the time at least, so
            that slow ones don't keep the rest from being precise.
        effort: How long to measure.
        always: The names of others that take part in every round.
    """

    def __init__(
        self,
        calls: Mapping[str, Measured],
        effort: Effort,
        always: tuple[str, ...] = (),
    ) -> None:
        self._entries = {
            name: _Contestant(call, effort) for name, call in calls.items()
        }
        self._effort = effort
        self._lasting = {*list(self._entries)[:2], *always}
        self._passes: list[dict[str, list[float]]] = []

    def measure(self) -> dict[str, list[float]]:
        """Measures all calls in one pass.

        Returns:
            For each call its time in each round, in seconds, from the first round on.
        """
        effort, entries = self._effort, self._entries
        least, most = effort.rounds
        for entry in entries.values():
            entry.spent, entry.times = 0.0, []
        was_enabled = gc.isenabled()
        gc.collect()
        if not effort.collects:
            gc.disable()
        start = time.perf_counter()
        shuffle = random.Random(0).shuffle
        order = list(entries.items())

        def run_rounds() -> None:
            for number in range(most):
                lasting = sum(entries[name].spent for name in self._lasting)
                if (
                    number >= least
                    and time.perf_counter() - start > effort.seconds
                    and lasting > effort.seconds / 4
                ):
                    break
                shuffle(order)
                for name, entry in order:
                    has_time = entry.spent < effort.seconds / len(entries)
                    if name in self._lasting or number < least or has_time:
                        if len(entry.times) == number:
                            # So that nobody pays for the garbage of others.
                            gc.collect(effort.generation)
                            entry.times.append(entry.run())

        try:
            _with_room(run_rounds)
        finally:
            if was_enabled:
                gc.enable()
        found = {name: entry.times for name, entry in entries.items()}
        self._passes.append(found)
        return found

    def keep_lasting(self) -> None:
        """Leaves all others out of further passes, and lets go of them."""
        self._entries = {
            name: entry
            for name, entry in self._entries.items()
            if name in self._lasting
        }

    def cells(self) -> dict[str, Cell]:
        """What all rounds of all passes found, against the first call.

        Returns:
            The cells of a row: times, and ratios to the baseline.
        """
        baseline, *_ = names = list(self._passes[0])
        cells: dict[str, Cell] = {}
        for name in names:
            times = [time for found in self._passes for time in found.get(name, ())]
            over = [
                ratio
                for found in self._passes
                for ratio in ratios(found.get(name, ()), found[baseline])
            ]
            ratio = None if name == baseline else Spread.of(over)
            cells[name] = Cell(Spread.of(times), ratio)
        return cells


def compare(
    calls: Mapping[str, Measured], effort: Effort, always: tuple[str, ...] = ()
) -> dict[str, Cell]:
    """Measures calls against the first of them, in one pass.

    Args:
        calls: As for `Comparison`; the first is the baseline.
        effort: How long to measure.
        always: As for `Comparison`.

    Returns:
        The cells of a row: times, and ratios to the baseline.
    """
    comparison = Comparison(calls, effort, always)
    comparison.measure()
    return comparison.cells()
