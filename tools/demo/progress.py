"""A progress bar, and what a part of the demo reports."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)


@dataclass(frozen=True)
class Settings:
    """What the user asked for.

    Args:
        out: The folder for figures.
        seed: Makes the run reproducible.
        quick: Whether to train for a shorter time.
        processes: In how many processes to train, where there are several.
    """

    out: Path
    seed: int
    quick: bool
    processes: int = 2


@dataclass(frozen=True)
class Result:
    """What a part reached.

    Args:
        accuracy: The share of held-out digits that were recognized.
        target: What it must at least be.
    """

    accuracy: float
    target: float

    @property
    def passed(self) -> bool:
        """Whether the accuracy is high enough."""
        return self.accuracy >= self.target

    def __str__(self) -> str:
        verdict = "ok" if self.passed else "TOO LOW"
        return (
            f"accuracy on held-out digits: {self.accuracy:.1%} "
            f"(at least {self.target:.0%}: {verdict})"
        )


@contextmanager
def progress_bar(
    total: int, console: Console | None = None
) -> Iterator[Callable[[str], None]]:
    """Shows how far a loop is; where there is no terminal, only its end.

    Args:
        total: The number of steps.
        console: Where to show it; the standard output by default.

    Yields:
        A function to call after each step, with a few words on how it goes.
    """
    columns = (
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=total)
        yield lambda words: progress.update(task, advance=1, description=words)
