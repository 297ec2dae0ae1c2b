"""Whether the tests notice a mutant."""

from __future__ import annotations

import functools
import importlib.util
import os
import signal
import sys
from collections.abc import Mapping, Sequence, Set
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tools.mutation.covering import Covering, durations
from tools.mutation.mutants import Mutant
from tools.mutation.processes import PYTEST, TIMED_OUT, in_fork
from tools.mutation.targets import ROOT, STORE

__all__ = ["Verdict", "passes", "verdict_on"]

# The tests of the first stage take so many seconds without a mutant, and are in so many
# files, which have to be imported; most mutants are gone after it.
_FIRST_STAGE = 3.0, 4


class Verdict(NamedTuple):
    """What became of a mutant.

    Args:
        status: ``killed``, ``timeout`` (killed by a loop without end), ``survived``,
            ``uncovered`` (no test runs the line), or ``none``: it is no program, or
            the same one.
        by: The test that noticed it.
        tests: How many tests were run, or about to be.
    """

    status: str
    by: str = ""
    tests: int = 0


def verdict_on(mutant: Mutant, kills: Mapping[str, int], patience: float) -> Verdict:
    """Runs the tests that cover a mutant until one fails.

    Args:
        mutant: The mutant.
        kills: How many mutants each test noticed so far; the best come first.
        patience: How many seconds of tests to run at most.
    """
    covering = _covering(mutant.module).tests(mutant.line)
    if not covering:
        return Verdict("uncovered")
    took = durations()
    ordered = sorted(covering, key=lambda t: (took[t] / (1 + kills.get(t, 0)), t))
    if not mutant.is_another_program():
        return Verdict("none")
    source, run, log = mutant.source(), 0, STORE / f"trial.{os.getpid()}.log"
    report = log.with_suffix(".failed")
    for stage in (_FIRST_STAGE, (patience - _FIRST_STAGE[0], len(ordered))):
        chosen = _worth(ordered, *stage)
        if not chosen:
            break
        run += len(chosen)
        done = {*chosen}
        ordered = [test for test in ordered if test not in done]
        report.unlink(missing_ok=True)
        args = mutant.module, source, chosen, report
        status = in_fork(_tested, *args, log=log, timeout=120 + 20 * stage[0])
        by = report.read_text() if report.exists() else ""
        if status in (TIMED_OUT, -signal.SIGPROF):
            return Verdict("timeout", by, run)
        if status != 0:
            return Verdict("killed", by or f"exit status {status}", run)
    return Verdict("survived", tests=run)


@functools.cache
def _covering(module: str) -> Covering:
    return Covering(Path(module))


def passes(tests: Set[str]) -> bool:
    """Whether these tests pass without a mutant, in the same way of running them."""
    chosen = sorted(tests & durations().keys())
    report, log = STORE / "baseline.failed", STORE / "baseline.log"
    args = None, "", chosen, report
    return not chosen or in_fork(_tested, *args, log=log, timeout=3600) == 0


def _worth(tests: Sequence[str], seconds: float, size: int) -> list[str]:
    """The first tests: as many as take so long and are in so many files, or one."""
    chosen: list[str] = []
    files: set[str] = set()
    took = durations()
    for test in tests:
        file = test.split("::")[0]
        if chosen and seconds < took[test]:
            break
        if file in files or len(files) < size:
            files.add(file)
            seconds -= took[test]
            chosen.append(test)
    return chosen


def _tested(module: str | None, source: str, tests: list[str], report: Path) -> int:
    if module is not None:
        sys.meta_path.insert(0, _Mutated(ROOT / module, source))
    files = sorted({test.split("::")[0] for test in tests})
    return int(pytest.main([*PYTEST, "-x", *files], plugins=[_Chosen(tests, report)]))


class _Mutated:
    """Finds one module in its mutated form."""

    def __init__(self, path: Path, source: str) -> None:
        parts = path.with_suffix("").parts
        name = parts[parts.index("src") + 1 :]
        self._name = ".".join(name).removesuffix(".__init__")
        self._path, self._source = str(path), source

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        if name != self._name:
            return None
        loader = _MutatedLoader(name, self._path, self._source)
        return importlib.util.spec_from_file_location(name, self._path, loader=loader)


class _MutatedLoader(SourceFileLoader):
    def __init__(self, name: str, path: str, source: str) -> None:
        super().__init__(name, path)
        self._source = source

    def get_code(self, fullname: str) -> Any:
        return compile(self._source, self.path, "exec", dont_inherit=True)


class _Chosen:
    """A plugin for pytest: these tests alone, in this order, none of them for ever."""

    def __init__(self, tests: Sequence[str], report: Path) -> None:
        self._order = {test: number for number, test in enumerate(tests)}
        self._report = report

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted(
            (item for item in items if item.nodeid in self._order),
            key=lambda item: self._order[item.nodeid],
        )

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self, nodeid: str) -> None:
        signal.setitimer(signal.ITIMER_PROF, 15 + 5 * durations()[nodeid])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._report.write_text(report.nodeid)
