"""What a benchmark found: spreads, rows of a table, and bars that must hold."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Spread:
    """A median with the quartiles around it.

    Args:
        median: The median.
        low: The first quartile.
        high: The third quartile.
        count: How many values there were.
    """

    median: float
    low: float
    high: float
    count: int = 1

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Summarizes values.

        Args:
            values: At least one.

        Returns:
            Their median and quartiles.
        """
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high, len(values))


def ratios(times: Sequence[float], baseline: Sequence[float]) -> list[float]:
    """Divides the times of each round by the baseline's in the same round.

    What else the machine did in a round slowed both, so it cancels.

    Args:
        times: One time a round; fewer than the baseline's if it dropped out.
        baseline: One time a round.

    Returns:
        One ratio for each round that has both.
    """
    return [t / b for t, b in zip(times, baseline, strict=False)]


def growth_exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """Fits `cost = c * size ** exponent` by least squares on logarithms.

    Args:
        sizes: At least two different sizes.
        costs: The cost at each.

    Returns:
        The exponent: 0 for a constant cost, 1 for a linear one.
    """
    logs = [math.log(s) for s in sizes], [math.log(c) for c in costs]
    return statistics.linear_regression(*logs).slope


@dataclass(frozen=True)
class Cell:
    """What one library needed in one case.

    Args:
        value: How much, in the unit of the table.
        ratio: The ratio to the baseline, over rounds; None for the baseline itself.
    """

    value: Spread
    ratio: Spread | None = None


@dataclass(frozen=True)
class Row:
    """One case of a table.

    Args:
        case: What was done.
        size: The number that a plot has on its horizontal axis, if it has one.
        cells: What each library needed. A library that can't do it has no cell.
    """

    case: str
    size: int | None
    cells: dict[str, Cell]


@dataclass(frozen=True)
class Table:
    """Cases measured alike.

    Args:
        name: Identifies the table in files: letters and hyphens.
        title: The headline.
        unit: The unit of all values: `s`, `B`, `count` or `exponent`.
        baseline: The column that ratios refer to; None if there are none.
        columns: The libraries, baseline first.
        rows: The cases.
        notes: Remarks for the reader.
    """

    name: str
    title: str
    unit: str
    baseline: str | None
    columns: list[str]
    rows: list[Row]
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Bar:
    """A limit that a measurement must keep.

    Args:
        name: What is limited.
        found: The measurement.
        limit: The largest allowed value, or the smallest if `at_least`.
        at_least: Whether larger is better.
    """

    name: str
    found: Spread
    limit: float
    at_least: bool = False

    @property
    def holds(self) -> bool:
        """Whether the median keeps the limit."""
        if self.at_least:
            return self.found.median >= self.limit
        return self.found.median <= self.limit


@dataclass
class Section:
    """All that one kind of benchmark found.

    Args:
        name: As on the command line.
        title: The headline.
        tables: The measurements.
        bars: The limits, with what was found.
    """

    name: str
    title: str
    tables: list[Table] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """All of it, as `json.dump` takes it."""
        found = dataclasses.asdict(self)
        for entry, bar in zip(found["bars"], self.bars, strict=True):
            entry["holds"] = bar.holds
        return found


def missed(sections: Sequence[Section]) -> list[Bar]:
    """The bars of all sections that don't hold."""
    return [bar for section in sections for bar in section.bars if not bar.holds]
