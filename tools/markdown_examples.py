"""A pytest plugin that runs the ``pycon`` blocks of markdown files as doctests.

The blocks of one file share a namespace, in order, and make one test. Use it with
``pytest -p tools.markdown_examples FILE_OR_FOLDER ...``; together with pytest's
``--doctest-modules`` it covers everything that a reader may copy.
"""

import doctest
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

BLOCK = re.compile(r"^(?P<indent> *)```pycon.*?\n(?P<code>.*?)^ *```", re.M | re.S)
FLAGS = (
    doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL
)


def examples(text: str) -> list[doctest.Example]:
    """The examples in the ``pycon`` blocks of a markdown text.

    Args:
        text: the contents of a markdown file.

    Returns:
        The examples in order; each ``lineno`` counts from the start of the file.

    Raises:
        ValueError: if a block cannot be parsed; the message gives the line.
    """
    found = []
    for match in BLOCK.finditer(text):
        before = text.count("\n", 0, match.start("code"))
        block = doctest.DocTestParser().get_examples(match["code"], f"line {before}")
        for example in block:
            example.lineno += before
        found += block
    return found


class MarkdownFile(pytest.File):
    """A markdown file with at least one ``pycon`` block."""

    def collect(self) -> Iterator[pytest.Item]:
        """One test for all blocks, since later ones build on earlier ones."""
        found = examples(self.path.read_text(encoding="utf-8"))
        if found:
            item = MarkdownItem.from_parent(self, name="pycon")
            item.examples = found
            yield item


class ExampleFailed(Exception):
    """Some examples gave another output than the page shows."""


class MarkdownItem(pytest.Item):
    """The examples of one file."""

    examples: list[doctest.Example]

    def runtest(self) -> None:
        """Run every example and report all that differ."""
        report: list[str] = []
        runner = doctest.DocTestRunner(verbose=False, optionflags=FLAGS)
        name = self.path.name
        test = doctest.DocTest(
            self.examples, {"__name__": "__main__"}, name, str(self.path), 0, None
        )
        if runner.run(test, out=report.append).failed:
            raise ExampleFailed("".join(report))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style=None):
        """The differences alone: no traceback through this file."""
        if isinstance(excinfo.value, ExampleFailed):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int, str]:
        """Where the first example stands."""
        return self.path, self.examples[0].lineno, f"examples of {self.path.name}"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that names the packages whose docstrings are run too."""
    parser.addoption("--import-first", default="", help="modules, with commas")


def pytest_configure(config: pytest.Config) -> None:
    """Import the packages whole, so that their files are not imported one by one."""
    for name in filter(None, config.getoption("--import-first").split(",")):
        importlib.import_module(name)


def pytest_collect_file(
    file_path: Path, parent: pytest.Collector
) -> MarkdownFile | None:
    """Collect markdown files."""
    if file_path.suffix == ".md":
        return MarkdownFile.from_parent(parent, path=file_path)
    return None
