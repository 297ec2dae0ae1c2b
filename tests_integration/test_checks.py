"""The repository's own checks find what they are there to find."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from tools import check_layers, check_metadata, markdown_examples

ROOT = Path(__file__).resolve().parent.parent


def write_package(root: Path, **modules: str) -> list[str]:
    """Write modules of a package called graphcore and check them."""
    package = root / "graphcore"
    package.mkdir()
    for name, text in modules.items():
        (package / f"{name}.py").write_text(text)
    return check_layers.check_package("graphcore", root)


def test_tests_have_several_cpu_devices() -> None:
    assert len(jax.devices("cpu")) == 8


class TestLayers:
    def test_one_way_imports_pass(self, tmp_path: Path) -> None:
        low = "import jax\nimport numpy as np\nfrom collections import abc\n"
        high = "from graphcore.low import jax\nfrom . import low\n"
        assert write_package(tmp_path, __init__="", low=low, high=high) == []

    @pytest.mark.parametrize("indent", ["", "def f():\n    "])
    def test_cycle(self, tmp_path: Path, indent: str) -> None:
        a, b = "from graphcore.b import y\n", f"{indent}from .a import x\n"
        [problem] = write_package(tmp_path, __init__="", a=a, b=b)
        assert "import cycle" in problem
        assert "graphcore.a" in problem

    @pytest.mark.parametrize(
        "line",
        [
            "import jax._src.core",
            "from jax._src import core",
            "from jax import _src",
            "def f():\n    from jax import _src",
        ],
    )
    def test_private_jax(self, tmp_path: Path, line: str) -> None:
        problems = write_package(tmp_path, __init__=line)
        assert any("jax._src is private" in problem for problem in problems)

    def test_jax_extend_has_one_home(self, tmp_path: Path) -> None:
        line = "from jax.extend import core\n"
        [problem] = write_package(tmp_path, __init__="", _jax=line, other=line)
        assert problem.startswith("graphcore/other.py:1: jax.extend")

    @pytest.mark.parametrize("name", ["flax", "nnx_transforms", "scipy"])
    def test_foreign_package(self, tmp_path: Path, name: str) -> None:
        [problem] = write_package(tmp_path, __init__=f"import {name}\n")
        assert f"may not import {name}" in problem

    def test_extra_only_on_demand(self, tmp_path: Path) -> None:
        deferred = "def show():\n    import treescope\n"
        problems = write_package(
            tmp_path, __init__="", late=deferred, early="import treescope\n"
        )
        assert len(problems) == 1
        assert problems[0].startswith("graphcore/early.py:1:")

    @pytest.mark.parametrize(
        ("line", "is_public"),
        [
            ("from graphcore import split", True),
            ("from graphcore.authors import enter, lifted", True),
            ("import graphcore as _graphcore", True),
            ("from graphcore import walk", False),
            ("from graphcore.walk import walk", False),
            ("def f():\n    from graphcore.authors import walk", False),
        ],
    )
    def test_dependents_use_public_names(
        self, tmp_path: Path, line: str, is_public: bool
    ) -> None:
        package = tmp_path / "linen_lift"
        package.mkdir()
        (package / "__init__.py").write_text(f"{line}\n")
        public = check_layers.public_names(Path("packages/graphcore/src").resolve())
        problems = check_layers.check_package("linen_lift", tmp_path, public)
        assert (problems == []) == is_public

    def test_few_names_for_authors(self, tmp_path: Path) -> None:
        names = [f"name{i}" for i in range(41)]
        package = tmp_path / "graphcore"
        package.mkdir()
        for listed, is_fine in ((names[:40], True), (names, False)):
            (package / "authors.py").write_text(f"__all__ = {listed}\n")
            assert (check_layers.many_names(tmp_path) == []) == is_fine

    def test_long_file(self, tmp_path: Path) -> None:
        (tmp_path / "tools").mkdir()
        (tmp_path / "tools" / "long.py").write_text("\n" * 701)
        (tmp_path / "tools" / "short.py").write_text("\n" * 700)
        [problem] = check_layers.long_files(tmp_path)
        assert "long.py: 701 lines" in problem


class TestMetadata:
    @pytest.fixture
    def copy(self, tmp_path: Path) -> Path:
        """A copy of the files that the check reads."""
        patterns = ("packages/*/LICENSE", "packages/*/pyproject.toml")
        patterns += ("packages/*/src/*/py.typed", "packages/*/src/*/__init__.py")
        patterns += ("*.md", "*.toml", "LICENSE")
        patterns += (".pre-commit-config.yaml", ".ci/run")
        for pattern in patterns:
            for path in ROOT.glob(pattern):
                target = tmp_path / path.relative_to(ROOT)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, target)
        return tmp_path

    def change(self, path: Path, old: str, new: str) -> None:
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    def test_unpinned_graphcore(self, copy: Path) -> None:
        manifest = copy / "packages/linen-lift/pyproject.toml"
        self.change(manifest, '"graphcore>=1,<2"', '"graphcore"')
        assert "linen-lift does not pin graphcore>=1,<2" in [
            *check_metadata.packages(copy)
        ]

    def test_version_without_changelog(self, copy: Path) -> None:
        manifest = copy / "packages/graphcore/pyproject.toml"
        self.change(manifest, 'version = "', 'version = "7.')
        problems = " ".join(check_metadata.packages(copy))
        assert "different versions" in problems
        assert "no entry for version 7." in problems

    def test_version_that_the_package_tells_otherwise(self, copy: Path) -> None:
        package = copy / "packages/linen-lift/src/linen_lift/__init__.py"
        self.change(package, '__version__ = "', '__version__ = "7.')
        [problem] = check_metadata.packages(copy)
        assert problem.startswith("linen-lift has another __version__ than ")

    def test_other_ruff(self, copy: Path) -> None:
        self.change(copy / "pyproject.toml", "ruff==", "ruff==9.")
        assert [*check_metadata.ruff_versions(copy)]

    def test_other_test_command(self, copy: Path) -> None:
        self.change(copy / ".ci/run", "tools/run_nox.py -s tests", "pytest")
        [problem] = check_metadata.readme_commands(copy)
        assert "-s tests" in problem

    def test_this_repository(self, copy: Path) -> None:
        assert not [*check_metadata.packages(copy)]
        assert not [*check_metadata.ruff_versions(copy)]
        assert not [*check_metadata.readme_commands(copy)]


class TestWorkflows:
    @pytest.fixture
    def problems(self, tmp_path: Path):
        """Check the text of a workflow against the schema and two sessions."""
        jsonschema = pytest.importorskip("jsonschema")
        pytest.importorskip("yaml")
        from tools import check_workflows

        contents = json.loads(check_workflows.SCHEMA.read_text(encoding="utf-8"))
        schema = jsonschema.validators.validator_for(contents)(contents)

        def check(text: str) -> list[str]:
            path = tmp_path / "ci.yml"
            path.write_text(text)
            return check_workflows.check(path, schema, {"lint", "tests"})

        return check

    GOOD = """
on: push
jobs:
  one:
    runs-on: ubuntu-24.04
    timeout-minutes: 5
    strategy:
      matrix:
        session: [lint]
        include:
          - { session: tests }
    steps:
      - uses: actions/checkout@v5
      - run: python -m nox -s lint tests -- -x
      - run: nox -s ${{ matrix.session }}
"""

    def test_good(self, problems) -> None:
        assert problems(self.GOOD) == []

    @pytest.mark.parametrize(
        ("old", "new", "said"),
        [
            ("[lint]", "[lint, polish]", "polish"),
            ("session: tests }", "session: tets }", "tets"),
            ("-s lint tests --", "-s lint test --", "'test'"),
            ("checkout@v5", "checkout@main", "not pinned"),
            ("    timeout-minutes: 5\n", "", "timeout-minutes"),
            ("runs-on:", "run-on:", "run-on"),
            ("on: push", "on: pish", "pish"),
        ],
    )
    def test_bad(self, problems, old: str, new: str, said: str) -> None:
        assert old in self.GOOD
        [problem, *_] = problems(self.GOOD.replace(old, new))
        assert said in problem


class TestMarkdownExamples:
    PAGE = (
        "# Page\n\n```pycon\n>>> x = 1\n```\n\nText.\n\n```pycon\n>>> x + 1\n{}\n```\n"
    )

    def run(self, tmp_path: Path, page: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "page.md").write_text(page)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        command += ["-p", "tools.markdown_examples", "--rootdir", str(tmp_path)]
        return subprocess.run(
            [*command, str(tmp_path / "page.md")],
            cwd=ROOT,
            check=False,
            capture_output=True,
            text=True,
        )

    def test_blocks_share_names(self, tmp_path: Path) -> None:
        done = self.run(tmp_path, self.PAGE.format(2))
        assert done.returncode == 0, done.stdout + done.stderr
        assert "1 passed" in done.stdout

    def test_wrong_output_fails_with_its_line(self, tmp_path: Path) -> None:
        done = self.run(tmp_path, self.PAGE.format(3))
        assert done.returncode == 1
        assert 'page.md", line 10' in done.stdout

    def test_wrong_text_of_an_error_fails(self, tmp_path: Path) -> None:
        page = "```pycon\n>>> raise ValueError('new text')\n"
        page += "Traceback (most recent call last):\n    ...\n"
        page += "ValueError: {} text\n```\n"
        assert self.run(tmp_path, page.format("new")).returncode == 0
        assert self.run(tmp_path, page.format("old")).returncode == 1

    def test_indented_blocks_and_other_languages(self) -> None:
        text = "- item\n\n  ```pycon\n  >>> 1\n  1\n  ```\n\n```python\n>>> 2\n```\n"
        [example] = markdown_examples.examples(text)
        assert (example.source, example.want, example.lineno) == ("1\n", "1\n", 3)
