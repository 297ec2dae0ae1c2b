"""Check the workflow files: ``python -m tools.check_workflows [PYTHON_WITH_NOX]``.

Each file under ``.github/workflows`` must fit the vendored schema
(``tools/schemas/github-workflow.json``), every nox session that it names must exist,
every action must be pinned to a tag or a commit, and every job must limit its time.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import jsonschema
import yaml

ROOT = Path(__file__).resolve().parent.parent
SCHEMA = ROOT / "tools" / "schemas" / "github-workflow.json"
NOX_CALL = re.compile(r"nox(?:\.py)?\b[^\n|&;]*?\s(?:-s|--sessions?)\s+([^\n|&;]*)")
PINNED = re.compile(r"@(v\d[\w.]*|[0-9a-f]{40})$")


class WorkflowLoader(yaml.SafeLoader):
    """YAML as GitHub reads it: ``on`` is a key, not a truth value."""


WorkflowLoader.yaml_implicit_resolvers = {
    first: [(tag, regexp) for tag, regexp in resolvers if not tag.endswith(":bool")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
WorkflowLoader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile("^(?:true|false)$"), list("tf")
)


def load(path: Path) -> Any:
    """The parsed contents of a workflow file."""
    return yaml.load(path.read_text(encoding="utf-8"), WorkflowLoader)


def nox_sessions(python: str) -> set[str]:
    """The names that ``nox -s`` takes: with and without Python and parameters.

    Args:
        python: an interpreter that has nox.
    """
    # A keyword that matches everything: otherwise only the default sessions are listed.
    command = [python, "-m", "nox", "--list", "--json", "-k", "not _none_"]
    listing = subprocess.run(
        command, cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    names = set()
    for entry in json.loads(listing):
        names |= {entry["name"], entry["session"]}
        if entry["python"]:
            names.add(f"{entry['name']}-{entry['python']}")
    return names


def named_sessions(workflow: dict[str, Any]) -> Iterator[str]:
    """Every nox session that a workflow names: in a matrix, or after ``nox -s``."""
    for job in workflow.get("jobs", {}).values():
        matrix = job.get("strategy", {}).get("matrix", {})
        if isinstance(matrix, dict):
            yield from matrix.get("session", [])
            for entry in matrix.get("include", []):
                if "session" in entry:
                    yield entry["session"]
        for step in job.get("steps", []):
            # Expressions and variables name what stands in the matrix.
            script = re.sub(r"\$\{\{.*?\}\}", "$", step.get("run", ""))
            for call in NOX_CALL.finditer(script):
                words = takewhile(lambda word: word[0] != "-", call[1].split())
                names = (word.strip("\"'") for word in words)
                yield from (name for name in names if not name.startswith("$"))


def check(
    path: Path, schema: jsonschema.protocols.Validator, known: set[str]
) -> list[str]:
    """Check one workflow file.

    Args:
        path: the file.
        schema: the validator of workflow files.
        known: the names of the sessions that exist.

    Returns:
        One line for each problem; empty if all is well.
    """
    try:
        workflow = load(path)
    except yaml.YAMLError as error:
        return [f"{path.name}: not valid YAML: {error}"]
    problems = [
        f"{path.name}: {'/'.join(map(str, error.absolute_path))}: {error.message}"
        for error in schema.iter_errors(workflow)
    ]
    if problems:
        return problems
    problems += [
        f"{path.name}: no nox session is called {name!r}"
        for name in sorted(set(named_sessions(workflow)) - known)
    ]
    for name, job in workflow["jobs"].items():
        if "timeout-minutes" not in job and "uses" not in job:
            problems.append(f"{path.name}: job {name} has no timeout-minutes")
        for step in job.get("steps", []):
            action = step.get("uses", "")
            if action and not action.startswith("./") and not PINNED.search(action):
                problems.append(f"{path.name}: {action} is not pinned to a tag")
    return problems


def main() -> int:
    """Check all workflow files, print the problems, and return the exit status."""
    contents = json.loads(SCHEMA.read_text(encoding="utf-8"))
    schema = jsonschema.validators.validator_for(contents)(contents)
    folder = ROOT / ".github" / "workflows"
    files = sorted([*folder.glob("*.yml"), *folder.glob("*.yaml")])
    known = nox_sessions(sys.argv[1] if sys.argv[1:] else sys.executable)
    problems = [] if files else [f"no workflow files in {folder}"]
    for path in files:
        problems += check(path, schema, known)
    print("\n".join(problems) or f"{len(files)} workflow files are in order.")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
