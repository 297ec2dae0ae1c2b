"""A pytest plugin that runs the examples that doctest does not find.

These are the ``pycon`` blocks of markdown files, and what stands below a variable of a
module to say what it is.

The blocks of one file share a namespace, in order, and make one test. Use it with
``pytest -p tools.markdown_examples FILE_OR_FOLDER ...``; together with pytest's
``--doctest-modules`` it covers everything that a reader may copy.
"""

import ast
import doctest
import importlib
import itertools
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

BLOCK = re.compile(r"^(?P<indent> *)```pycon.*?\n(?P<code>.*?)^ *```", re.M | re.S)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


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


def attribute_docstrings(text: str) -> Iterator[tuple[str, str, int]]:
    """The examples below the variables of a module.

    Args:
        text: the source.

    Yields:
        The name of a variable, the text below it, and the line of that.
    """
    body = ast.parse(text).body
    for node, after in itertools.pairwise(body):
        match node, after:
            case (
                ast.Assign(targets=[ast.Name(id=name)])
                | ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(words))),
            ) if ">>>" in words:
                yield name, words, after.lineno - 1


class PythonFile(pytest.File):
    """A module with examples below its variables."""

    def collect(self) -> Iterator[pytest.Item]:
        """One test for each variable."""
        for name, words, line in attribute_docstrings(self.path.read_text("utf-8")):
            item = ExamplesItem.from_parent(self, name=name)
            item.examples = doctest.DocTestParser().get_examples(words, name)
            for example in item.examples:
                example.lineno += line
            item.namespace = vars(importlib.import_module(self.module_name()))
            yield item

    def module_name(self) -> str:
        """The dotted name of the module."""
        parts = [self.path.stem]
        folder = self.path.parent
        while (folder / "__init__.py").exists():
            parts.insert(0, folder.name)
            folder = folder.parent
        return ".".join(parts).removesuffix(".__init__")


class MarkdownFile(pytest.File):
    """A markdown file with at least one ``pycon`` block."""

    def collect(self) -> Iterator[pytest.Item]:
        """One test for all blocks, since later ones build on earlier ones."""
        found = examples(self.path.read_text(encoding="utf-8"))
        if found:
            item = ExamplesItem.from_parent(self, name="pycon")
            item.examples = found
            yield item


class ExampleFailed(Exception):
    """Some examples gave another output than the page shows."""


class ExamplesItem(pytest.Item):
    """Examples that share a namespace."""

    examples: list[doctest.Example]
    namespace: Mapping[str, object] = MappingProxyType({})

    def runtest(self) -> None:
        """Run every example and report all that differ."""
        report: list[str] = []
        runner = doctest.DocTestRunner(verbose=False, optionflags=FLAGS)
        name = self.path.name
        test = doctest.DocTest(
            self.examples,
            {**self.namespace, "__name__": "__main__"},
            name,
            str(self.path),
            0,
            None,
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
    # Else JAX ends an exception with a note on its frames, which doctest takes for the
    # message.
    os.environ.setdefault("JAX_TRACEBACK_FILTERING", "off")
    for name in filter(None, config.getoption("--import-first").split(",")):
        importlib.import_module(name)


def pytest_collect_file(
    file_path: Path, parent: pytest.Collector
) -> pytest.File | None:
    """Collect markdown files, and with the docstrings what doctest passes by."""
    if file_path.suffix == ".md":
        return MarkdownFile.from_parent(parent, path=file_path)
    if file_path.suffix == ".py" and parent.config.option.doctestmodules:
        return PythonFile.from_parent(parent, path=file_path)
    return None
