"""Which tests run which lines, and how long each test takes."""

from __future__ import annotations

import ast
import functools
import json
import time
from collections.abc import Set
from pathlib import Path
from typing import Any

import coverage
import pytest

from tools.mutation.processes import PYTEST, in_fork
from tools.mutation.targets import ROOT, STORE, SUITES, Suite, modules

__all__ = ["Covering", "measure"]

_LONGEST = 3 * 3600


def measure(suite: Suite) -> None:
    """Runs the tests of a suite once with coverage, unless that was done already.

    Args:
        suite: The suite.

    Raises:
        RuntimeError: If they did not come to an end.
    """
    if _durations(suite).exists():
        return
    STORE.mkdir(parents=True, exist_ok=True)
    log = STORE / f"{suite.name}.log"
    status = in_fork(_measured, suite, log=log, timeout=_LONGEST)
    if not _durations(suite).exists():
        raise RuntimeError(f"The tests of {suite.name} ended with {status}: see {log}")


def _measured(suite: Suite) -> int:
    recorder = _Recorder(suite)
    recorder.coverage.start()
    ignored = [f"--ignore-glob=*/{name}" for name in suite.ignored]
    status = pytest.main([*PYTEST, suite.tests, *ignored], plugins=[recorder])
    recorder.coverage.stop()
    recorder.coverage.save()
    _durations(suite).write_text(json.dumps(recorder.durations))
    return int(status)


class _Recorder:
    """A plugin for pytest that tells coverage which test is running."""

    def __init__(self, suite: Suite) -> None:
        self.durations: dict[str, float] = {}
        self._failed: set[str] = set()
        self.coverage = coverage.Coverage(
            data_file=str(_data(suite)),
            config_file=False,
            include=[str(ROOT / path) for path in modules()],
        )

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        self.coverage.switch_context(item.nodeid)
        start = time.perf_counter()
        try:
            return (yield)
        finally:
            self.durations[item.nodeid] = time.perf_counter() - start
            self.coverage.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:  # It can't tell anything about mutants.
            self._failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        for nodeid in self._failed:
            self.durations.pop(nodeid, None)


def _data(suite: Suite) -> Path:
    return STORE / f"{suite.name}.coverage"


def _durations(suite: Suite) -> Path:
    return STORE / f"{suite.name}.durations.json"


class Covering:
    """The tests for each line of one module.

    Args:
        path: Of the module, relative to the root of the repository.
    """

    def __init__(self, path: Path) -> None:
        self._lines: dict[int, set[str]] = {}
        for suite in SUITES:
            if not _durations(suite).exists():
                continue
            data = coverage.CoverageData(str(_data(suite)))
            data.read()
            known = durations()
            for line, tests in data.contexts_by_lineno(str(ROOT / path)).items():
                found = self._lines.setdefault(line, set())
                found.update(test for test in tests if test in known)
        self._statements = _statements(ast.parse((ROOT / path).read_text()))

    def tests(self, line: int) -> Set[str]:
        """The tests that run the statement of a line; of all lines if none does.

        What runs when the module is imported is run by each test.
        """
        inside = [lines for lines in self._statements if line in lines]
        innermost = max(inside, key=lambda lines: lines.start, default=(line,))
        found: set[str] = set().union(*(self._lines.get(i, ()) for i in innermost))
        return found or set().union(*self._lines.values())


def _statements(tree: ast.AST) -> list[range]:
    """The lines of each statement; of a compound one, those of its header."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            end = body[0].lineno if body else (node.end_lineno or node.lineno) + 1
            found.append(range(node.lineno, max(end, node.lineno + 1)))
    return found


@functools.cache
def durations() -> dict[str, float]:
    """The seconds that each test took, by its name."""
    found: dict[str, float] = {}
    for suite in SUITES:
        if _durations(suite).exists():
            found |= json.loads(_durations(suite).read_text())
    return found
