"""Sections of the benchmark in processes of their own."""

from __future__ import annotations

import gc
import importlib
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any, TypeVar

from tools.bench.measuring import Effort
from tools.bench.results import Section

R = TypeVar("R")


def run_section(name: str, effort: Effort) -> Section:
    """Measures one section in this process."""
    module = importlib.import_module(f"tools.bench.{name}")
    # What was imported stays: to search it for garbage takes a tenth of a second, for
    # each comparison anew.
    gc.collect()
    gc.freeze()
    section: Section = module.run(effort)
    return section


def in_fresh_process(function: Callable[..., R], *args: Any) -> R:
    """Calls a function in a process of its own.

    A section finds the same then, whether it runs alone or after others: memory that
    others left in pieces makes operations on many small objects twice as slow. And
    no other process holds the memory of an accelerator.

    Args:
        function: A function of a module.
        *args: Its arguments.

    Returns:
        What it returned.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as executor:
        return executor.submit(function, *args).result()
