"""Check what is written down twice: ``python -m tools.check_metadata``.

The versions of the packages agree with each other and with the changelog, dependents
pin graphcore, each package carries the licence and the same lower bounds, the hooks of
pre-commit use the ruff of the dependency group, and ``.ci/run`` runs the README's
commands.
"""

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BASE = ("jax", "numpy", "typing_extensions")
PIN = "graphcore>=1,<2"


def toml(path: Path) -> dict[str, Any]:
    """The contents of a TOML file."""
    return tomllib.loads(path.read_text(encoding="utf-8"))


def packages(root: Path) -> Iterator[str]:
    """Problems in the metadata of the packages."""
    projects = {
        path.parent: toml(path)["project"]
        for path in sorted(root.glob("packages/*/pyproject.toml"))
    }
    versions = {project["version"] for project in projects.values()}
    if len(versions) != 1:
        yield f"the packages have different versions: {sorted(versions)}"
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    for version in sorted(versions):
        if f"## [{version}]" not in changelog:
            yield f"CHANGELOG.md has no entry for version {version}"
    bounds = {
        tuple(r for r in project["dependencies"] if r.startswith(BASE))
        for project in projects.values()
    }
    if len(bounds) != 1:
        yield f"the packages ask for different versions: {sorted(bounds)}"
    licence = (root / "LICENSE").read_bytes()
    for folder, project in projects.items():
        if (folder / "LICENSE").read_bytes() != licence:
            yield f"{folder.name}/LICENSE differs from the licence of the repository"
        if project["name"] != "graphcore" and PIN not in project["dependencies"]:
            yield f"{folder.name} does not pin {PIN}"
        for requirement in project["dependencies"]:
            if not requirement.startswith((*BASE, "graphcore")):
                yield f"{folder.name} depends on {requirement}"
        if not list(folder.glob("src/*/py.typed")):
            yield f"{folder.name} has no py.typed"
        told = f'__version__ = "{project["version"]}"\n'
        if not any(told in x.read_text() for x in folder.glob("src/*/__init__.py")):
            yield f"{folder.name} has another __version__ than {project['version']}"


def ruff_versions(root: Path) -> Iterator[str]:
    """A problem if pre-commit runs another ruff than the lint session."""
    groups = toml(root / "pyproject.toml")["dependency-groups"]
    pinned = next(r for r in groups["lint"] if r.startswith("ruff=="))
    hooks = (root / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    found = re.search(r"ruff-pre-commit\n(?:\s*#.*\n)*\s*rev: v(\S+)", hooks)
    if not found or pinned != f"ruff=={found[1]}":
        yield f".pre-commit-config.yaml does not use {pinned}"


def readme_commands(root: Path) -> Iterator[str]:
    """A problem if .ci/run does not run what the README tells a newcomer to run."""
    readme = (root / "README.md").read_text(encoding="utf-8")
    script = (root / ".ci" / "run").read_text(encoding="utf-8")
    commands = re.findall(r"^\$ python3 (tools/run_nox\.py -s \w+)", readme, re.M)
    if len(commands) != 2:
        yield f"README.md gives {len(commands)} commands to start with, not 2"
    for command in commands:
        if command not in script:
            yield f".ci/run does not run the README's {command!r}"


def main() -> int:
    """Check the repository, print the problems, and return the exit status."""
    checks = (packages, ruff_versions, readme_commands)
    problems = [problem for check in checks for problem in check(ROOT)]
    print("\n".join(problems) or "The metadata agree.")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
