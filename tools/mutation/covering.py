"""Which tests run which lines, and how long each test takes."""

from __future__ import annotations

import ast
import difflib
import functools
import hashlib
import json
import os
import sys
from collections.abc import Set
from pathlib import Path
from typing import Any

import coverage
import pytest

from tools.mutation.processes import PYTEST, in_fork
from tools.mutation.targets import ROOT, STORE, SUITES, modules

__all__ = ["Covering", "durations", "measure", "unmeasured"]

_LONGEST = 3600


def unmeasured() -> list[Path]:
    """The files of tests that were not run with coverage as they are now."""
    found = [
        path.relative_to(ROOT)
        for suite in SUITES
        for chosen in suite.chosen
        for path in sorted((ROOT / suite.tests).glob(chosen))
        if not any(path.match(pattern) for pattern in suite.ignored)
    ]
    return [p for p in found if _record(p).get("version") != _version(ROOT / p)]


def measure(path: Path) -> None:
    """Runs the tests of a file once with coverage.

    Each file gets a process of its own: after hundreds of tests under a tracer, Python
    3.12 has forgotten how deep its recursion is.

    Args:
        path: Of the file, relative to the root of the repository.

    Raises:
        RuntimeError: If they did not come to an end.
    """
    _FOLDER.mkdir(parents=True, exist_ok=True)
    for old in (_data(path), _json(path)):
        old.unlink(missing_ok=True)
    log = _data(path).with_suffix(".log")
    status = in_fork(_measured, path, log=log, timeout=_LONGEST)
    if not _json(path).exists():
        raise RuntimeError(f"The tests in {path} ended with {status}: see {log}")


def _measured(path: Path) -> int:
    recorder = _Recorder(path)
    recorder.coverage.start()
    status = pytest.main([*PYTEST, str(path)], plugins=[recorder])
    recorder.coverage.stop()
    recorder.coverage.save()
    if status in (0, 1):
        record = {
            "version": _version(ROOT / path),
            "durations": recorder.durations,
            "sources": {str(p): _keep_source(ROOT / p) for p in modules()},
        }
        _json(path).write_text(json.dumps(record))
    return int(status)


class _Recorder:
    """A plugin for pytest that tells coverage which test is running."""

    def __init__(self, path: Path) -> None:
        self.durations: dict[str, float] = {}
        self._failed: set[str] = set()
        self.coverage = coverage.Coverage(
            data_file=str(_data(path)),
            config_file=False,
            include=[str(ROOT / path) for path in modules()],
        )

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        self.coverage.switch_context(item.nodeid)
        start = _spent()
        try:
            return (yield)
        finally:
            self.durations[item.nodeid] = _spent() - start
            self.coverage.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:  # It can't tell anything about mutants.
            self._failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        for nodeid in self._failed:
            self.durations.pop(nodeid, None)


def _spent() -> float:
    """Seconds of the processor, those of processes that ended among them."""
    return sum(os.times()[:4])


_FOLDER = STORE / "coverage"


def _data(path: Path) -> Path:
    name = path.parent.parent.name or path.parent.name
    return _FOLDER / f"{name}.{path.stem}.sqlite"


def _json(path: Path) -> Path:
    return _data(path).with_suffix(".json")


def _record(path: Path) -> dict[str, Any]:
    """What is known of a file of tests beside its coverage."""
    file = _json(path)
    return json.loads(file.read_text()) if file.exists() else {}


def _version(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _keep_source(path: Path) -> str:
    """Keeps a module as it is while its coverage is measured."""
    version = _version(path)
    (_FOLDER / f"{version}.source").write_bytes(path.read_bytes())
    return version


@functools.cache
def _moved(path: Path, version: str) -> dict[int, int]:
    """Where the lines of a module are now that it had in a version."""
    old = (_FOLDER / f"{version}.source").read_text().splitlines()
    new = (ROOT / path).read_text().splitlines()
    blocks = difflib.SequenceMatcher(None, old, new, False).get_matching_blocks()
    return {a + i + 1: b + i + 1 for a, b, size in blocks for i in range(size)}


class Covering:
    """The tests for each line of one module.

    Args:
        path: Of the module, relative to the root of the repository.
    """

    def __init__(self, path: Path) -> None:
        self._lines: dict[int, set[str]] = {}
        known = durations()
        for file in _FOLDER.glob("*.json"):
            record = json.loads(file.read_text())
            version = record["sources"].get(str(path))
            moved = _moved(path, version) if version else {}
            data = coverage.CoverageData(str(file.with_suffix(".sqlite")))
            data.read()
            for line, tests in data.contexts_by_lineno(str(ROOT / path)).items():
                if line in moved:
                    found = self._lines.setdefault(moved[line], set())
                    # What runs while a file of tests is imported is run by all of them.
                    by = record["durations"] if "" in tests else tests
                    found.update(sys.intern(test) for test in by if test in known)
            data.close()
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
    """The seconds of the processor that each test took, by its name."""
    found: dict[str, float] = {}
    for file in _FOLDER.glob("*.json"):
        found |= json.loads(file.read_text())["durations"]
    return found
