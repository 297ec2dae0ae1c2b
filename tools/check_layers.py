"""Check the rules on imports and file lengths: ``python -m tools.check_layers``.

The rules:

- A package imports only the standard library and what the table `ALLOWED` grants it;
  what `EXTRAS` lists as well, but only on demand: inside a function or a ``try``, or
  for the type checker. An adapter, ``adapters/NAME.py``, imports the library NAME, and
  of the packages here those that `BRIDGES` lists know each other.
- Imports between the modules of one package point one way: there is no cycle, not even
  through imports inside functions.
- Of graphcore, its dependents import what ``graphcore`` and ``graphcore.authors`` list
  in ``__all__``, and nothing from inside. The latter lists at most `MOST_NAMES`.
- ``jax._src`` is imported nowhere, ``jax.extend`` in ``graphcore/_jax.py`` only.
- No file but a test is longer than `LONGEST` lines.
"""

import ast
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
LONGEST = 700

_BASE = {"jax", "numpy", "typing_extensions"}
ALLOWED = {
    "graphcore": _BASE,
    "nnx_transforms": {*_BASE, "graphcore"},
    "linen_lift": {*_BASE, "graphcore"},
}
# The optional extras of each package.
EXTRAS = {
    "graphcore": {"treescope", "IPython"},
    "nnx_transforms": {
        "etils",
        "optax",
        "orbax",
        "rich",
        "safetensors",
        "tensorstore",
        "treescope",
    },
    "linen_lift": {"rich"},
}
# The modules that may import another one of these packages.
BRIDGES = {"nnx_transforms.bridge": "linen_lift"}
JAX_EXTEND_HOME = "graphcore._jax"
# The modules of graphcore that others may import from: what they list.
PUBLIC = ("graphcore", "graphcore.authors")
MOST_NAMES = 40


class Import(NamedTuple):
    """One imported module or name."""

    target: str  #: dotted, absolute; a name in a module looks like a submodule
    line: int
    deferred: bool  #: in a function, under TYPE_CHECKING or in a try


def module_name(path: Path, source_root: Path) -> str:
    """The dotted name of the module that a file under a source root defines."""
    parts = path.relative_to(source_root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(tree: ast.AST, module: str, is_package: bool) -> Iterator[Import]:
    """All imports of a module, at any depth.

    Args:
        tree: the parsed module.
        module: its dotted name, to resolve relative imports.
        is_package: whether it is an ``__init__``.

    Yields:
        For ``from a import b`` the target ``a.b``, since ``b`` may be a module.
    """

    def visit(node: ast.AST, deferred: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, deferred)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".")
                keep = len(parents) - node.level + is_package
                base = ".".join(filter(None, [*parents[:keep], base]))
            for alias in node.names:
                yield Import(f"{base}.{alias.name}", node.lineno, deferred)
        inner = (
            deferred
            or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
            or isinstance(node, ast.Try)
        )
        for child in ast.iter_child_nodes(node):
            yield from visit(child, inner)

    yield from visit(tree, deferred=False)


def within(target: str, prefix: str) -> bool:
    """Whether a dotted name is the prefix or lies below it."""
    return target == prefix or target.startswith(prefix + ".")


def offered(module: str, source_root: Path) -> set[str]:
    """The names that a module offers: those it lists, or imports to offer them.

    Args:
        module: its dotted name.
        source_root: the folder that holds its package.

    Returns:
        The constants in its ``__all__``; without one, what ``import a as a`` and
        ``import *`` name.
    """
    path = source_root.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    body = ast.parse(file.read_text(encoding="utf-8")).body
    found = set()
    for node in body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
        if isinstance(node, ast.ImportFrom):
            if node.names[0].name == "*":
                found |= offered(node.module, source_root)
            found |= {alias.name for alias in node.names if alias.asname == alias.name}
    return found


def public_names(source_root: Path) -> set[str]:
    """The dotted names of graphcore that other packages may import.

    Args:
        source_root: the folder that holds graphcore.

    Returns:
        Names like ``graphcore.split``, and the modules themselves.
    """
    found = {*PUBLIC, "graphcore.*"}
    for module in PUBLIC:
        found.update(f"{module}.{name}" for name in offered(module, source_root))
    return found


def many_names(source_root: Path) -> list[str]:
    """One line if graphcore lists more names for authors than anyone would learn."""
    count = len(offered(PUBLIC[1], source_root))
    if count <= MOST_NAMES:
        return []
    return [f"{PUBLIC[1]} lists {count} names, more than {MOST_NAMES}"]


def check_package(
    package: str, source_root: Path, public: set[str] | None = None
) -> list[str]:
    """Check the modules of one package.

    Args:
        package: its import name.
        source_root: the folder that holds the package.
        public: what may be imported of graphcore; anything if left out.

    Returns:
        One line for each breach, with file and line; empty if all is well.
    """
    files = {
        module_name(path, source_root): path
        for path in sorted((source_root / package).rglob("*.py"))
    }
    problems = []
    graph: dict[str, set[str]] = {}
    for module, path in files.items():
        text = path.read_text(encoding="utf-8")
        graph[module] = set()
        for found in imports(ast.parse(text), module, path.name == "__init__.py"):
            where = f"{path.relative_to(source_root)}:{found.line}"
            if within(found.target, "jax._src"):
                problems.append(f"{where}: jax._src is private to JAX")
            if within(found.target, "jax.extend") and module != JAX_EXTEND_HOME:
                problems.append(f"{where}: jax.extend belongs in graphcore/_jax.py")
            top = found.target.split(".")[0]
            if top == package:
                # `from package.x import name`: the longest prefix that is a module.
                target = found.target
                while target not in files and "." in target:
                    target = target.rpartition(".")[0]
                if target != module:
                    graph[module].add(target)
            elif top == "graphcore" and found.target not in (public or {found.target}):
                problems.append(
                    f"{where}: {found.target} is private to graphcore; dependents use "
                    "what graphcore and graphcore.authors list"
                )
            elif top in (BRIDGES.get(module), adapted(module)):
                pass
            elif top not in sys.stdlib_module_names and top not in ALLOWED[package]:
                extra = top in EXTRAS[package]
                if not (extra and found.deferred):
                    hint = " at module level" if extra else ""
                    problems.append(f"{where}: {package} may not import {top}{hint}")
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        problems.append(f"{package}: import cycle: {' -> '.join(error.args[1])}")
    return problems


def adapted(module: str) -> str | None:
    """The library that a module is an adapter for."""
    parts = module.split(".")
    return parts[2] if len(parts) == 3 and parts[1] == "adapters" else None


def long_files(root: Path) -> list[str]:
    """One line for each Python file of the repository that has grown too long."""
    problems = []
    folders = ("packages", "tests_integration", "tools", "docs")
    for path in sorted(p for folder in folders for p in (root / folder).rglob("*.py")):
        if "tests" in path.parts:  # a family of tests reads well as one file
            continue
        length = len(path.read_text(encoding="utf-8").splitlines())
        if length > LONGEST:
            name = path.relative_to(root)
            problems.append(f"{name}: {length} lines, more than {LONGEST}")
    return problems


def main() -> int:
    """Check the repository, print the breaches, and return the exit status."""
    problems = long_files(ROOT)
    sources = {
        name: ROOT / "packages" / name.replace("_", "-") / "src" for name in ALLOWED
    }
    problems += many_names(sources["graphcore"])
    public = public_names(sources["graphcore"])
    for package, source_root in sources.items():
        problems += check_package(package, source_root, public)
    print("\n".join(problems) or "Imports and file lengths follow the rules.")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
