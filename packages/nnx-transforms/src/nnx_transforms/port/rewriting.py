"""The rewriting of one source text."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Container
from typing import NamedTuple

from .bindings import bindings
from .names import SPLITTERS, Kept, Place, attribute, find, unit
from .plain_jit import changed_arguments
from .text import Node, Text

__all__ = ["Ported", "Problem", "port"]

_OF_LEAVES = (
    "a leaf of a state is a `VariableState`, also where a filter is asked about it"
)

_OF_STATES = (
    "leaves of a state are copies, so what is written to them is lost: map over "
    "`nnx.variables`, or `nnx.update` the object with the result"
)


class Problem(NamedTuple):
    """Something that could not be mapped.

    Args:
        line: where it is in the original text.
        name: what it is in Flax.
        reason: why, or what to do about it.
    """

    line: int
    name: str
    reason: str


class Ported(NamedTuple):
    """What became of a source text.

    Args:
        source: the new text.
        problems: what could not be mapped, by line.
        kept: the modules of Flax that are still used on purpose.
    """

    source: str
    problems: tuple[Problem, ...]
    kept: tuple[str, ...]


def port(source: str) -> Ported:
    r"""Rewrites the imports of Flax in a source text.

    Args:
        source: a Python file.

    Returns:
        The new text, and what could not be mapped. Text that does not import Flax comes
        back as it is.

    Raises:
        SyntaxError: if the text is no Python.

    Example:
        >>> from nnx_transforms.port import port
        >>> port('from flax import nnx, struct  # both').source
        'from flax import struct  # both\nimport nnx_transforms as nnx'
    """
    mark = "\ufeff" * source.startswith("\ufeff")  # is no part of the program
    with warnings.catch_warnings(action="ignore"):  # about what the program does
        done = _Rewriting(source.removeprefix(mark))
        out = done.text.edited()
        ast.parse(out)  # never return what is no longer a program
    return Ported(
        mark + out, tuple(sorted(set(done.problems))), tuple(sorted(done.kept))
    )


def _package(dotted: str) -> str:
    return dotted.split(".")[0]


def _as(name: str, bound: str) -> str:
    return name if name == bound else f"{name} as {bound}"


def _chain(node: ast.expr) -> list[str]:
    """The names of `a.b.c`; an empty one comes first in other expressions."""
    if isinstance(node, ast.Attribute):
        return [*_chain(node.value), node.attr]
    return [node.id if isinstance(node, ast.Name) else ""]


class _Rewriting(ast.NodeVisitor):
    """The edits of one text and what was noticed while they were found."""

    def __init__(self, source: str) -> None:
        tree = ast.parse(source)
        imports, self.names, self.unclear, self.present = bindings(source, tree)
        # A function does not see what another one imports, but what the module does.
        self.seen_by_all = self.present[tree.body[0]] if tree.body else set[str]()
        self.text = Text(source)
        self.problems: list[Problem] = []
        self.kept: set[str] = set()
        # By name bound to `flax`: the packages that its uses need now, and the uses
        # that stay.
        self.needed: dict[str, set[str]] = {name: set() for name in self.names}
        self.stays: dict[str, set[str]] = {name: set() for name in self.names}
        if imports:
            self.visit(tree)
        paths = " ".join(path for each in self.names.values() for path in each)
        if "flax.nnx" in paths or "flax.nnx" in source:
            for found in changed_arguments(tree):
                self.problem(*found)
        for package, (names, reason) in SPLITTERS.items():
            for use in ast.walk(tree) if package in source else ():
                name = getattr(use, "attr", getattr(use, "name", None))
                if name in names and isinstance(use, ast.Attribute | ast.alias):
                    self.problem(use, name, reason)
        for node in imports:
            if isinstance(node, ast.Import):
                self._rewrite_plain(node)
            else:
                self._rewrite_from(node)

    def problem(self, node: Node, name: str, reason: str) -> None:
        self.problems.append(Problem(node.lineno, name, reason))

    # --- uses -----------------------------------------------------------------------

    def visit_Name(self, node: ast.Name | ast.Attribute) -> None:
        """Looks at a use of a name below a module of Flax, and at no more of it."""
        name, *attributes = _chain(node)
        if name not in self.names or not isinstance(node.ctx, ast.Load):
            self.generic_visit(node)
            return
        path = min(self.names[name])
        wanted = ".".join((path, *attributes))
        if wanted != unit(wanted):
            self.generic_visit(node)
        elif wanted != path or path == "flax":  # else the import says what it is
            self._use(node, name, path, wanted)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """Does the same for `a.b`."""
        self.visit_Name(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        """Notes where a type of variables is asked for exactly."""
        sides = [node.left, *node.comparators]
        asked = [
            side.args[0]
            for side in sides
            if isinstance(side, ast.Call)
            and _chain(side.func) == ["type"]
            and len(side.args) == 1
        ]
        if asked and any(map(self._is_variable_type, sides)):
            wanted = f"{ast.unparse(asked[0])}.type"
            self.problem(node, ast.unparse(node), f"{_OF_LEAVES}: compare `{wanted}`")
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        """Notices where leaves of a state are written to, as Flax's are live ones."""
        call = node.value
        if isinstance(call, ast.Call) and "map" in _chain(call.func)[-1]:
            for given in call.args:
                if isinstance(given, ast.Call) and self._is_state(given.func):
                    self.problem(node, ast.unparse(given), _OF_STATES)
        self.generic_visit(node)

    def _is_state(self, node: ast.expr) -> bool:
        name, *attributes = _chain(node)
        paths = self.names.get(name, ())
        return "flax.nnx.state" in (".".join((path, *attributes)) for path in paths)

    def _is_variable_type(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            return any(map(self._is_variable_type, node.elts))
        name, *attributes = _chain(node)
        if name not in self.names:
            return False
        place = find(".".join((min(self.names[name]), *attributes)))
        value = attribute(place.dotted) if isinstance(place, Place) else None
        return isinstance(value, type) and issubclass(
            value, attribute("nnx_transforms.Variable")
        )

    def _use(self, node: ast.expr, name: str, path: str, wanted: str) -> None:
        """Rewrites a use where it has another path in ours."""
        base = find(path)
        ours = base.dotted if isinstance(base, Place) else ""
        # If so, it is enough to change the import.
        same = ours and attribute(ours + wanted[len(path) :]) is not None
        if name in self.unclear:
            if path == "flax" or not (same or isinstance(find(wanted), Kept)):
                self.problem(node, wanted, f"{name} is bound to something else, too")
        elif wanted == "flax":
            self.problem(node, wanted, "flax itself is used as a value")
        elif place := self._place(node, wanted):
            if path == "flax":
                self.needed[name].add(_package(place.dotted))
                self.text.replace(node, place.dotted)
                return
            if not same and place.dotted.startswith(f"{ours}."):
                self.text.replace(node, name + place.dotted[len(ours) :])
            elif not same:
                reason = f"it is {place.dotted} here; import that"
                self.problem(node, wanted, reason)
        self.stays[name].add(wanted)

    def _place(self, node: Node, dotted: str) -> Place | None:
        """Where a name of Flax is; notes why if it has no place."""
        place = find(dotted)
        if isinstance(place, Place):
            return place
        if isinstance(place, Kept):
            self.kept.add(place.module)
        elif dotted.endswith(".*"):
            self.problem(node, dotted, "a star does not say which names are needed")
        else:
            self.problem(node, dotted, place.reason)
        return None

    def visit_Constant(self, node: ast.Constant) -> None:
        """Looks at a string, which stays: annotations, names of modules to import."""
        if not isinstance(value := node.value, str):
            return
        if re.fullmatch(r"flax(\.\w+)+", value):
            if isinstance(find(unit(value)), Place):
                self.problem(node, value, "a string names it")
        if not re.search(r"\w\s+\w", value):  # no prose
            for name, rest in re.findall(r"\b(\w+)((?:\.\w+)+)", value):
                if "flax" in self.names.get(name, ()):
                    self.stays[name].add(unit(f"flax{rest}"))

    # --- imports --------------------------------------------------------------------

    def _rewrite_plain(self, node: ast.Import) -> None:
        more: list[str] = []
        for alias in node.names:
            if not f"{alias.name}.".startswith("flax."):
                continue
            place = None if alias.name == "flax" else self._place(alias, alias.name)
            if place and alias.asname:
                self.text.replace(alias, _as(place.module, alias.asname))
            if alias.name == "flax" or not alias.asname:
                more += self._rewrite_whole(node, alias, place)
        self._append(node, [f"import {package}" for package in more])

    def _rewrite_whole(
        self, node: ast.Import, alias: ast.alias, place: Place | None
    ) -> list[str]:
        """Rewrites an import that binds `flax`; returns further packages to import."""
        bound = alias.asname or "flax"
        if bound in self.unclear:
            return []
        needed = set(self.needed[bound])
        if place:
            needed.add(_package(place.module))
        packages = sorted(needed - self.seen_by_all - self.present[node])
        self.present[node] |= needed
        if (place or alias.name == "flax") and needed and not self.stays[bound]:
            new, *packages = packages or sorted(needed)
            self.text.replace(alias, new)
        elif place:
            below = re.compile(rf"{alias.name}(\.|$)").match
            if not any(map(below, self.stays[bound])):
                self.text.replace(alias, bound)
        return packages

    def _rewrite_from(self, node: ast.ImportFrom) -> None:
        groups: dict[str | None, dict[ast.alias, str]] = {}
        for alias in node.names:
            home, new = self._imported(node, alias)
            groups.setdefault(home, {})[alias] = new
        # The statement stays that of the largest group; the others get their own.
        homes = [home for home in groups if home != ""]
        stays = max(homes, key=lambda home: len(groups[home]), default="")
        names = groups.pop(stays) if homes else {}
        more: list[str] = []
        for home, moved in groups.items():
            if home == "":
                more += [f"import {new}" for new in moved.values()]
            else:
                new = ", ".join(moved.values())
                more.append(f"from {home or node.module} import {new}")
        start, end = self.text.span(node)
        if not homes:
            first, *more = more
            self.text.replace_between(
                start, end, self._comments(start, end, start) + first
            )
        elif stays:
            first_name, _ = self.text.span(node.names[0])
            module = r"^(from(?:\s|\\\r?\n)*)\w+(?:\s*\.\s*\w+)*"
            head = self.text.between(start, first_name)
            self.text.replace_between(
                start, first_name, re.sub(module, rf"\1{stays}", head)
            )
        for i, alias in enumerate(node.names):
            if homes and alias not in names:
                self._remove(node.names, i, names)
            elif homes and names[alias] != _as(alias.name, alias.asname or alias.name):
                self.text.replace(alias, names[alias])
        self._append(node, more)

    def _imported(
        self, node: ast.ImportFrom, alias: ast.alias
    ) -> tuple[str | None, str]:
        """Where an imported name comes from now, and how it is written.

        The module is None if it stays, and empty if a whole package is imported.
        """
        bound = alias.asname or alias.name
        place = self._place(alias, f"{node.module}.{alias.name}")
        if place is None:
            return None, _as(alias.name, bound)
        home, name = place.module, place.name
        if name is None:
            home, _, name = place.dotted.rpartition(".")
        return home, _as(name, bound)

    def _remove(self, names: list[ast.alias], i: int, stay: Container[Node]) -> None:
        """Removes one of the names of a statement, with its comma."""
        start, end = self.text.span(names[i])
        if last := not any(later in stay for later in names[i + 1 :]):
            start = self.text.span(names[i - 1])[1]  # the comma before it goes
        else:
            end = self.text.span(names[i + 1])[0]
        comments = self._comments(start, end, end)
        indent = "  " if last and comments else ""
        self.text.replace_between(start, end, indent + comments)

    def _comments(self, start: int, end: int, at: int) -> str:
        """The comments of a stretch of text, each still on a line of its own."""
        before, _ = self.text.line(at)
        indent = before[: len(before) - len(before.lstrip())]
        found = re.findall(r"#[^\r\n]*", self.text.between(start, end))
        return "".join(f"{comment}{self.text.newline}{indent}" for comment in found)

    def _append(self, node: ast.stmt, statements: list[str]) -> None:
        """Writes statements after another one, in its block."""
        start, end = self.text.span(node)
        (before, _), (_, after) = self.text.line(start), self.text.line(end)
        between = "; "
        if not before.strip() and not after.lstrip().startswith((";", "\\")):
            between = self.text.newline + before
            end += len(after.encode())
        self.text.replace_between(
            end, end, "".join(between + new for new in statements)
        )
