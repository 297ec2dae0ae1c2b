"""Measuring times, so that they can be compared on a machine that does other things."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax


class Stopwatch:
    """What `stopwatch` measured.

    Args:
        seconds: How long the block took.
    """

    def __init__(self, seconds: float = float("nan")) -> None:
        self.seconds = seconds


@contextmanager
def stopwatch() -> Iterator[Stopwatch]:
    """Measures how long a block takes.

    Yields:
        An object that has the time after the block.
    """
    watch = Stopwatch()
    start = time.perf_counter()
    yield watch
    watch.seconds = time.perf_counter() - start


def dispatch_times(*calls: Callable[[], Any], rounds: int) -> list[float]:
    """Measures until each of several calls returns, which may be before it is computed.

    In each round every call is made once, so that a change in what else the machine
    does meets all of them.

    Args:
        *calls: Functions that return what to wait for before the next one.
        rounds: How often to call each.

    Returns:
        The median time of each, in seconds.
    """
    times: list[list[float]] = [[] for _ in calls]
    for call in calls:  # compiles, and fills caches
        for _ in range(3):
            jax.block_until_ready(call())
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            for call, mine in zip(calls, times, strict=True):
                with stopwatch() as watch:
                    out = call()
                mine.append(watch.seconds)
                jax.block_until_ready(out)
    finally:
        gc.enable()
    return [statistics.median(mine) for mine in times]
