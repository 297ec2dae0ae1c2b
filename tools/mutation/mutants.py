"""Which mutants there are, and a seeded sample of them."""

from __future__ import annotations

import ast
import difflib
import functools
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import parso
from cosmic_ray.ast import ast_nodes
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator
from cosmic_ray.plugins import get_operator, operator_names
from parso.python.tree import Keyword

from tools.mutation.targets import ROOT

__all__ = ["Mutant", "mutants", "sample"]


class Mutant(NamedTuple):
    """One change of one place in a module.

    Args:
        module: The file, relative to the root of the repository.
        operator: What Cosmic Ray calls the kind of change, without its package.
        occurrence: Which of the places where the operator can do something.
        line: The line of the place.
        column: The column.
        unit: A digest of the function around it, by name and text.
        offset: The line in that function.
    """

    module: str
    operator: str
    occurrence: int
    line: int
    column: int
    unit: str
    offset: int

    @property
    def key(self) -> tuple[str, ...]:
        """What it is known by as long as nobody edits the function."""
        return self.module, self.operator, self.unit, f"{self.offset}:{self.column}"

    @property
    def site(self) -> tuple[str, int, int, str]:
        """What mutants that replace the same thing have in common."""
        return self.module, self.line, self.column, self.operator.partition("_")[0]

    def source(self) -> str:
        """The mutated module."""
        operator = _operators()[self.operator]
        code: str = mutate_code(_text(self.module), operator, self.occurrence)
        return code

    def is_another_program(self) -> bool:
        """Whether it can be compiled, and isn't the module as it was."""
        try:
            mutated = ast.parse(self.source())
        except SyntaxError:  # the `*` of a signature, replaced by another operator
            return False
        return ast.dump(mutated) != ast.dump(ast.parse(_text(self.module)))

    def difference(self) -> tuple[str, str]:
        """The lines that change, before and after."""
        pair = _text(self.module).splitlines(), self.source().splitlines()
        changes = [*difflib.unified_diff(*pair, n=0, lineterm="")][2:]
        before = [x[1:].strip() for x in changes if x.startswith("-")]
        return " ".join(before), " ".join(
            x[1:].strip() for x in changes if x.startswith("+")
        )


class DeleteStatement(Operator):  # type: ignore[misc]
    """Leaves out a call, a raise, a deletion, or a write to an attribute or item."""

    def mutation_positions(self, node: Any) -> Iterator[Any]:
        if node.type == "simple_stmt":
            (what, *_) = node.children
            does_something = (
                what.type in ("raise_stmt", "del_stmt")
                or (
                    what.type in ("atom_expr", "power")
                    and what.get_code().endswith(")")
                )
                or (what.type == "expr_stmt" and what.children[0].type in _PLACES)
            )
            if does_something:
                yield what.start_pos, what.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        what = node.children[0]
        prefix = what.get_first_leaf().prefix
        node.children[0] = Keyword("pass", what.start_pos, prefix)
        return node

    @classmethod
    def examples(cls) -> Any:
        return ()


_PLACES = ("atom_expr", "power", "testlist_star_expr")


@functools.cache
def _operators() -> dict[str, Any]:
    found = {"DeleteStatement": DeleteStatement()}
    for name in operator_names():
        kind = get_operator(name)
        if not kind.arguments():
            found[name.rpartition("/")[2]] = kind()
    return found


@functools.cache
def _text(module: str) -> str:
    return (ROOT / module).read_text()


def mutants(path: Path) -> Iterator[Mutant]:
    """All mutants of a module, but those of what is no code that runs.

    Args:
        path: The file, relative to the root of the repository.
    """
    text = _text(str(path))
    tree = ast.parse(text)
    skipped = [*_not_run(tree)]
    units = _units(text, tree)
    nodes = [*ast_nodes(parso.parse(text))]
    for name, operator in _operators().items():
        places = [start for n in nodes for start, _ in operator.mutation_positions(n)]
        for occurrence, (line, column) in enumerate(places):
            if not any(start <= (line, column) < end for start, end in skipped):
                start, unit = units.get(line, (line, text.splitlines()[line - 1]))
                place = line, column, f"{_digest(unit):016x}", line - start
                yield Mutant(str(path), name, occurrence, *place)


def _units(text: str, tree: ast.Module) -> dict[int, tuple[int, str]]:
    """For each line in a function or method, where that begins, its name and text."""
    found = {}
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    for owner in (tree, *classes):
        for node in owner.body:
            if isinstance(node, ast.FunctionDef):
                name = getattr(owner, "name", "")
                start = min([node.lineno, *(d.lineno for d in node.decorator_list)])
                end = node.end_lineno or start
                unit = "\n".join([name, *text.splitlines()[start - 1 : end]])
                found |= dict.fromkeys(range(start, end + 1), (start, unit))
    return found


def _not_run(tree: ast.AST) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Where annotations and what is for type checkers alone stands."""
    for node in ast.walk(tree):
        ignored: list[Any] = []
        if isinstance(node, ast.arg | ast.AnnAssign):
            ignored = [node.annotation]
        elif isinstance(node, ast.FunctionDef):
            ignored = [node.returns]
            if any("overload" in ast.unparse(d) for d in node.decorator_list):
                ignored = [*node.decorator_list, node]
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            ignored = [node]
        for part in filter(None, ignored):
            end = part.end_lineno, part.end_col_offset
            yield (part.lineno, max(part.col_offset - 1, 0)), end


def sample(paths: list[Path], size: int, seed: int) -> list[Mutant]:
    """Draws mutants: places first, and one mutant of each.

    Else most of them would be comparisons, of which Cosmic Ray makes a mutant with each
    other operator; nearly all of these are noticed at once.

    Args:
        paths: The modules.
        size: How many; a larger sample of the same seed begins with a smaller one.
        seed: Of the choice.
    """
    sites: dict[Any, list[Mutant]] = {}
    for path in paths:
        without_effect = _without_effect(_text(str(path)))
        for mutant in mutants(path):
            if not without_effect(mutant):
                sites.setdefault(mutant.site, []).append(mutant)
    # An edit of a module must not change what is drawn of the rest: so the order is
    # that of digests of what stands at a place, not of a generator that goes on.
    alike: Counter[Any] = Counter()
    drawn = []
    for (module, line, _, kind), there in sorted(sites.items()):
        text = module, kind, _text(module).splitlines()[line - 1].strip()
        digest = _digest((seed, text, alike[text]))
        alike[text] += 1
        drawn.append((digest, there[digest % len(there)]))
    return [mutant for _, mutant in sorted(drawn)[:size]]


def _digest(x: object) -> int:
    return int.from_bytes(hashlib.sha256(repr(x).encode()).digest()[:8])


def _without_effect(text: str) -> Callable[[Mutant], bool]:
    """Tells which mutants are the same program for whoever does nothing wrong.

    Left out are: ``strict=True``, ``frozen=True`` and ``slots=True``, which only forbid
    something; the bare ``*`` of a signature; ``==`` for ``is`` between classes; and
    ``is`` for ``==`` between small numbers.
    """
    lines = text.splitlines()
    kept: list[tuple[tuple[int, int], tuple[int, int], str]] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.keyword) and node.arg in _FORBID:
            start = node.value.lineno, node.value.col_offset
            kept.append((start, (start[0], start[1] + 1), ""))
        elif isinstance(node, ast.Compare):
            left, right = node.left, node.comparators[0]
            start = left.end_lineno or 0, left.end_col_offset or 0
            end = right.lineno, right.col_offset
            sides = ast.unparse(left), ast.unparse(right)
            if any(side.startswith("type(") for side in sides):
                kept += [(start, end, "Is_Eq"), (start, end, "IsNot_NotEq")]
            if any(side.startswith("len(") or side.isdigit() for side in sides):
                kept += [(start, end, "Eq_Is"), (start, end, "NotEq_IsNot")]

    def tells(mutant: Mutant) -> bool:
        place = mutant.line, mutant.column
        return lines[mutant.line - 1].startswith("*,", mutant.column) or any(
            start <= place < end and mutant.operator.endswith(kind)
            for start, end, kind in kept
        )

    return tells


_FORBID = ("strict", "frozen", "slots", "weakref_slot")
