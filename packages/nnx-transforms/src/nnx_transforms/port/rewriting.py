"""The rewriting of one source text."""

from __future__ import annotations

import ast
import re
from typing import Any, NamedTuple

from .bindings import (
    Chain,
    Import,
    bound_elsewhere,
    chains,
    flax_names,
    imports,
    is_flax,
)
from .names import Kept, Missing, Place, attribute, find, unit
from .text import Position, Text

__all__ = ["Ported", "Problem", "port"]


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
    # A mark of the byte order is no part of the program.
    mark, source = re.match("(\ufeff?)(.*)", source, re.DOTALL).groups()  # type: ignore[union-attr]
    tree = ast.parse(source)
    found = list(imports(tree))
    if not found:
        return Ported(mark + source, (), ())
    done = _Rewriting(source, tree)
    for statement in found:
        done.rewrite_import(statement)
    done.look_at_strings()
    out = done.text.edited()
    ast.parse(out)  # what is returned is a program, whatever was given
    problems = tuple(sorted(set(done.problems)))
    return Ported(mark + out, problems, tuple(sorted(done.kept)))


def _start(node: ast.expr | ast.stmt | ast.alias) -> Position:
    return Position(node.lineno, node.col_offset)


def _end(node: ast.expr | ast.stmt | ast.alias) -> Position:
    return Position(node.end_lineno or node.lineno, node.end_col_offset or 0)


def _package(dotted: str) -> str:
    return dotted.split(".")[0]


def _as(name: str, bound: str) -> str:
    return name if name == bound else f"{name} as {bound}"


class _Rewriting:
    """The edits of one text and what was noticed while they were found."""

    def __init__(self, source: str, tree: ast.Module) -> None:
        self.text = Text(source)
        self.tree = tree
        self.problems: list[Problem] = []
        self.kept: set[str] = set()
        self.names = flax_names(tree)
        elsewhere = bound_elsewhere(tree)
        self.unclear = {
            name
            for name, paths in self.names.items()
            if len(paths) > 1 or name in elsewhere
        }
        # Packages that uses of `flax` itself need, and the uses of it that stay.
        self.needed: dict[str, set[str]] = {name: set() for name in self.names}
        self.stays: dict[str, set[str]] = {name: set() for name in self.names}
        # Packages that are imported whole already.
        self.present = {
            alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.Import)
            for alias in node.names
            if alias.asname is None
        }
        for chain in chains(tree, set(self.names)):
            self._use(chain)
        for name, paths in self.names.items():
            if "flax" in paths:
                # Quoted annotations are not rewritten.
                quoted = re.compile(rf"\b{name}((?:\.\w+)+)")
                for node in self._annotations():
                    rests = quoted.findall(node.value)
                    self.stays[name].update(unit(f"flax{rest}") for rest in rests)

    def problem(self, node: ast.AST, name: str, reason: str) -> None:
        self.problems.append(Problem(getattr(node, "lineno", 0), name, reason))

    # --- uses -----------------------------------------------------------------------

    def _use(self, chain: Chain) -> None:
        """Rewrites a use of a module of Flax, where it has another path in ours."""
        name = chain.names[0]
        path = min(self.names[name])
        dotted = ".".join((path, *chain.names[1:]))
        wanted = unit(dotted)
        depth = wanted.count(".") - path.count(".")
        if depth <= 0 and path != "flax":
            return  # the name itself: the import says what it is
        place = find(wanted)
        if name in self.unclear:
            self.stays[name].add(wanted)
            if path == "flax" or (
                not isinstance(place, Kept) and self._natural(path, dotted) is None
            ):
                self.problem(
                    chain.root, wanted, f"{name} is bound to something else, too"
                )
            return
        if isinstance(place, Kept):
            self.kept.add(place.module)
            self.stays[name].add(wanted)
        elif isinstance(place, Missing):
            bare = wanted == "flax"
            reason = "flax itself is used as a value" if bare else place.reason
            self.problem(chain.root, wanted, reason)
            self.stays[name].add(wanted)
        else:
            self._write_use(chain, path, wanted, depth, place)

    def _natural(self, path: str, dotted: str) -> object:
        """What a use means where only the import changes."""
        base = find(path)
        if not isinstance(base, Place):
            return self  # it stays Flax's
        rest = unit(dotted)[len(path) :]
        return attribute(base.dotted + rest)

    def _write_use(
        self, chain: Chain, path: str, wanted: str, depth: int, place: Place
    ) -> None:
        name = chain.names[0]
        if path == "flax":
            self.needed[name].add(_package(place.path))
            new = place.dotted
        else:
            if self._natural(path, wanted) is not None:
                return
            base = find(path)
            if not isinstance(base, Place) or not place.dotted.startswith(
                f"{base.dotted}."
            ):
                self.problem(
                    chain.root, wanted, f"it is {place.dotted} here; import that"
                )
                return
            new = name + place.dotted[len(base.dotted) :]
        self.text.replace(_start(chain.root), _end(chain.nodes[depth]), new)

    # --- imports --------------------------------------------------------------------

    def rewrite_import(self, node: Import) -> None:
        """Rewrites an import statement."""
        if isinstance(node, ast.Import):
            self._rewrite_plain(node)
        else:
            self._rewrite_from(node)

    def _rewrite_plain(self, node: ast.Import) -> None:
        extra: list[str] = []
        for alias in node.names:
            if not is_flax(alias.name):
                continue
            place = Missing("") if alias.name == "flax" else find(alias.name)
            new: str | None = None
            if isinstance(place, Kept):
                self.kept.add(place.module)
            elif alias.name == "flax" or (
                isinstance(place, Place) and alias.asname is None
            ):
                new, packages = self._whole(alias, place)
                extra += packages
            elif isinstance(place, Place):
                new = _as(place.module, alias.asname or "")
            else:
                self.problem(node, alias.name, place.reason)
            if new is not None:
                self.text.replace(_start(alias), _end(alias), new)
        self._append(node, [f"import {package}" for package in extra])

    def _whole(
        self, alias: ast.alias, place: Place | Missing
    ) -> tuple[str | None, list[str]]:
        """What an import that binds `flax` becomes, and further packages to import."""
        bound = alias.asname or "flax"
        if bound in self.unclear:
            return None, []
        needed = set(self.needed[bound])
        if isinstance(place, Place):
            needed.add(_package(place.module))
        packages = sorted(needed - self.present)
        self.present |= needed
        if not self.stays[bound] and needed:
            first, *rest = packages or sorted(needed)
            return first, rest
        below = any(f"{use}.".startswith(f"{alias.name}.") for use in self.stays[bound])
        if alias.name == "flax" or below:
            return None, packages
        return "flax", packages

    def _rewrite_from(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        groups: dict[str | None, list[tuple[ast.alias, str]]] = {}
        for alias in node.names:
            home, new = self._imported(node, module, alias)
            groups.setdefault(home, []).append((alias, new))
        # The statement stays that of the largest group; the others get their own.
        stays = max(
            (home for home in groups if home != ""),
            key=lambda home: len(groups[home]),
            default="",
        )
        moved = [
            (home, *entry)
            for home, entries in groups.items()
            if home != stays or home == ""
            for entry in entries
        ]
        statements = self._statements(node, moved)
        if stays == "":
            comments = self._comments(_start(node), _end(node), node.lineno)
            self.text.replace(_start(node), _end(node), comments + statements[0])
            self._append(node, statements[1:])
            return
        if stays is not None:
            self._replace_module(node, stays)
        for alias, new in groups[stays]:
            if new != _as(alias.name, alias.asname or alias.name):
                self.text.replace(_start(alias), _end(alias), new)
        self._remove(node, {id(alias) for _, alias, _ in moved})
        self._append(node, statements)

    def _imported(
        self, node: ast.ImportFrom, module: str, alias: ast.alias
    ) -> tuple[str | None, str]:
        """Where an imported name comes from now, and how it is written.

        The module is None if it stays, and empty if a whole package is imported.
        """
        dotted = f"{module}.{alias.name}"
        if alias.name == "*":
            if not isinstance(find(module), Kept):
                reason = "a star does not say which names are needed"
                self.problem(node, dotted, reason)
            return None, "*"
        bound = alias.asname or alias.name
        place = find(dotted)
        if isinstance(place, Kept):
            self.kept.add(place.module)
            return None, _as(alias.name, bound)
        if isinstance(place, Missing):
            self.problem(alias, dotted, place.reason)
            return None, _as(alias.name, bound)
        if place.name is not None:
            return place.module, _as(place.name, bound)
        parent, _, leaf = place.path.rpartition(".")
        return parent, _as(leaf, bound)

    def _statements(
        self, node: ast.ImportFrom, moved: list[tuple[str | None, ast.alias, str]]
    ) -> list[str]:
        out = []
        for home in dict.fromkeys(home for home, _, _ in moved):
            own = [(alias, new) for h, alias, new in moved if h == home]
            if home or home is None:
                names = ", ".join(new for _, new in own)
                out.append(f"from {home or node.module} import {names}")
            else:
                out += [f"import {new}" for _, new in own]
        return out

    def _replace_module(self, node: ast.ImportFrom, module: str) -> None:
        """Writes another module after `from`."""
        after = _start(node)._replace(column=node.col_offset + len("from"))
        between = self.text.between(after, _start(node.names[0]))
        match = re.match(r"(?:\s|\\\r?\n)*", between)
        offset = self.text.offset(after) + (match.end() if match else 0)
        dotted = re.match(r"\w+(?:\s*\.\s*\w+)*", self.text.source[offset:])
        length = len(dotted.group()) if dotted else 0
        self.text.replace_at(offset, offset + length, module)

    def _remove(self, node: ast.ImportFrom, gone: set[int]) -> None:
        """Removes some of the names of a statement, with their commas."""
        names = node.names
        for i, alias in enumerate(names):
            if id(alias) not in gone:
                continue
            if any(id(later) not in gone for later in names[i + 1 :]):
                start, end = _start(alias), _start(names[i + 1])
                comments = self._comments(start, end, end.line)
            else:
                # No name stays after it: the comma before it goes.
                start, end = _end(names[i - 1]), _end(alias)
                comments = self._comments(start, end, end.line)
                comments = f"  {comments}" if comments else ""
            self.text.replace(start, end, comments)

    def _comments(self, start: Position, end: Position, line: int) -> str:
        """The comments of a stretch of text, each still on a line of its own."""
        text = self.text.between(start, end)
        found = [part for part in text.splitlines() if "#" in part]
        if not found:
            return ""
        lines = [part[part.index("#") :] for part in found]
        indent = self.text.indent(line)
        return "".join(f"{line}{self.text.newline}{indent}" for line in lines)

    def _append(self, node: ast.stmt, statements: list[str]) -> None:
        """Writes statements after another one, in its block."""
        if not statements:
            return
        end = _end(node)
        rest = self.text.between(end, self.text.line_end(end))
        line = self.text.between(Position(node.lineno, 0), _start(node))
        if rest.lstrip().startswith((";", "\\")) or line.strip():
            self.text.replace(end, end, "".join(f"; {new}" for new in statements))
            return
        start = self.text.newline + self.text.indent(node.lineno)
        at = self.text.line_end(end)
        self.text.replace(at, at, "".join(start + new for new in statements))

    # --- what cannot be rewritten -----------------------------------------------------

    def look_at_strings(self) -> None:
        """Reports strings that are names of Flax: annotations, modules to import."""
        for node in _strings(self.tree):
            if re.fullmatch(r"flax(\.\w+)+", node.value):
                if isinstance(find(unit(node.value)), Place):
                    self.problem(node, node.value, "a string names it")

    def _annotations(self) -> list[Any]:
        """The strings in annotations."""
        found: list[Any] = []
        for node in ast.walk(self.tree):
            for field in ("annotation", "returns"):
                annotation = getattr(node, field, None)
                if isinstance(annotation, ast.AST):
                    found += _strings(annotation)
        return found


def _strings(tree: ast.AST) -> list[Any]:
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
