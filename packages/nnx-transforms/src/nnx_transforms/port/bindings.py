"""What the names in a file mean: which of them an import of Flax binds."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["Chain", "bound_elsewhere", "chains", "flax_names", "imports", "is_flax"]

Import = ast.Import | ast.ImportFrom


def is_flax(name: str | None) -> bool:
    """Whether a dotted name is Flax's."""
    return name is not None and (name == "flax" or name.startswith("flax."))


def imports(tree: ast.AST) -> Iterator[Import]:
    """The import statements that have to do with Flax, at any depth.

    Args:
        tree: the parsed file.

    Yields:
        Each statement.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            if node.level == 0 and is_flax(node.module):
                yield node
        elif isinstance(node, ast.Import):
            if any(is_flax(alias.name) for alias in node.names):
                yield node


def flax_names(tree: ast.AST) -> dict[str, set[str]]:
    """What imports of Flax bind.

    Args:
        tree: the parsed file.

    Returns:
        For each name the paths in Flax that it stands for: `{'nn': {'flax.linen'}}`.
    """
    found: dict[str, set[str]] = {}
    for node in imports(tree):
        for alias in node.names:
            if isinstance(node, ast.ImportFrom):
                if alias.name == "*":
                    continue
                name = alias.asname or alias.name
                path = f"{node.module}.{alias.name}"
            elif not is_flax(alias.name):
                continue
            else:
                name = alias.asname or "flax"
                path = alias.name if alias.asname else "flax"
            found.setdefault(name, set()).add(path)
    return found


def bound_elsewhere(tree: ast.AST) -> set[str]:
    """The names that something other than an import of Flax binds, anywhere.

    Args:
        tree: the parsed file.

    Returns:
        The names.
    """
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                found.add(name)
            case ast.arg(arg=name):
                found.add(name)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                found.add(node.name)
            case ast.ExceptHandler(name=str(name)):
                found.add(name)
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                found.add(name)
            case ast.MatchMapping(rest=str(name)):
                found.add(name)
            case ast.Import(names=names):
                for alias in names:
                    if not is_flax(alias.name):
                        found.add(alias.asname or alias.name.split(".")[0])
            case ast.ImportFrom(module=module, names=names, level=level):
                if level or not is_flax(module):
                    found |= {alias.asname or alias.name for alias in names}
    return found


class Chain(NamedTuple):
    """A name and attributes of it: `flax.linen.Dense`.

    Args:
        root: the node of the name.
        nodes: the node of the name and of each attribute.
        names: the name and the names of the attributes.
    """

    root: ast.Name
    nodes: tuple[ast.expr, ...]
    names: tuple[str, ...]


def chains(tree: ast.AST, roots: set[str]) -> Iterator[Chain]:
    """The uses of some names, each with as many attributes as follow it.

    Args:
        tree: the parsed file.
        roots: the names.

    Yields:
        Each use.
    """

    def visit(node: ast.AST) -> Iterator[Chain]:
        nodes: list[ast.expr] = []
        inner: ast.AST = node
        while isinstance(inner, ast.Attribute):
            nodes.insert(0, inner)
            inner = inner.value
        if isinstance(inner, ast.Name):
            if inner.id in roots and isinstance(inner.ctx, ast.Load):
                attributes = [n.attr for n in nodes if isinstance(n, ast.Attribute)]
                yield Chain(inner, (inner, *nodes), (inner.id, *attributes))
            return
        for child in ast.iter_child_nodes(inner):
            yield from visit(child)

    yield from visit(tree)
