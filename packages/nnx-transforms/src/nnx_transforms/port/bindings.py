"""What the names in a file mean: which of them an import of Flax binds."""

from __future__ import annotations

import ast
import symtable
from typing import NamedTuple

__all__ = ["Bindings", "Import", "bindings"]

Import = ast.Import | ast.ImportFrom


class Bindings(NamedTuple):
    """What a file binds by its imports.

    Args:
        imports: the import statements that have to do with Flax, at any depth.
        names: for each name that they bind the paths in Flax that it stands for:
            `{'nn': {'flax.linen'}}`.
        unclear: those of these names that something else binds as well, anywhere, or
            that stand for more than one path.
        packages: for each statement what those of its block import under whole names.
    """

    imports: list[Import]
    names: dict[str, set[str]]
    unclear: set[str]
    packages: dict[ast.AST, set[str]]


def bindings(source: str, tree: ast.Module) -> Bindings:
    """Finds what the imports of a file bind.

    Args:
        source: the text.
        tree: the text, parsed.

    Returns:
        The bindings.
    """
    found = Bindings([], {}, _assigned(symtable.symtable(source, "", "exec")), {})
    for node in ast.walk(tree):
        for _, block in ast.iter_fields(node):
            if isinstance(block, list):
                found.packages.update(dict.fromkeys(block, _packages(block)))
        if not isinstance(node, Import):
            continue
        before = ""
        if isinstance(node, ast.ImportFrom):
            before = f"{'.' * node.level}{node.module or ''}."
        for alias in node.names:
            path = f"{before}{alias.name}"
            bound = alias.asname or (alias.name if before else path.split(".")[0])
            if before == "" and alias.asname is None:
                path = bound
            if not f"{path}.".startswith("flax."):
                found.unclear.add(bound)
                continue
            if node not in found.imports[-1:]:
                found.imports.append(node)
            if alias.name != "*":
                found.names.setdefault(bound, set()).add(path)
    found.unclear.update(name for name, paths in found.names.items() if len(paths) > 1)
    return found


def _packages(block: list[ast.AST]) -> set[str]:
    """What the statements of a block import under whole names."""
    aliases = [a for each in block if isinstance(each, ast.Import) for a in each.names]
    return {alias.name for alias in aliases if alias.asname is None}


def _assigned(table: symtable.SymbolTable) -> set[str]:
    """What is bound by something other than an import, in a scope and those in it."""
    symbols = table.get_symbols()
    own = {s.get_name() for s in symbols if s.is_assigned() or s.is_parameter()}
    return own.union(*map(_assigned, table.get_children()))
