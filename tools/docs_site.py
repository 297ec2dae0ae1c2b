"""Hooks of the documentation site: the pages of the reference.

mkdocs calls the ``on_...`` functions (see ``hooks`` in mkdocs.yml). Each package has a
page that lists the names in its ``__all__``, grouped by the module that defines them,
and each name has a page of its own, so that search finds it. What a page says is read
from the sources; the packages are imported to ask where a name comes from, since some
names are there only when they are used.
"""

import importlib
import inspect
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {
    "graphcore": "graphcore",
    "nnx_transforms": "nnx-transforms",
    "linen_lift": "linen-lift",
}
# Modules with names that their package does not list come after it.
MODULES = (
    "graphcore",
    "graphcore.authors",
    "nnx_transforms",
    "nnx_transforms.saving",
    "nnx_transforms.bridge",
    "linen_lift",
)


class Entry(NamedTuple):
    """A public name."""

    name: str
    path: str  #: where it is defined, dotted
    first_line: str  #: of its docstring
    is_class: bool = False
    is_module: bool = False


def load_packages() -> griffe.GriffeLoader:
    """Read all packages, so that what one exports of another is known."""
    folders = [ROOT / "packages" / name / "src" for name in PACKAGES.values()]
    loader = griffe.GriffeLoader(search_paths=folders)
    for package in PACKAGES:
        loader.load(package)
    loader.resolve_aliases()
    return loader


def find(path: str, loader: griffe.GriffeLoader) -> griffe.Object | None:
    """What is defined at a path in the sources, seen through imports.

    Args:
        path: dotted.
        loader: has read all packages.

    Returns:
        None for what other libraries define.
    """
    try:
        found: Any = loader.modules_collection[path]
        while found.is_alias:
            found = found.target
    except (KeyError, griffe.AliasResolutionError):
        return None
    return found


def entry(module: str, name: str, loader: griffe.GriffeLoader) -> Entry:
    """Look a name up.

    Args:
        module: that lists it.
        name: is public.
        loader: has read all packages.

    Returns:
        Its entry; the path is outside of the packages for what is JAX's own.
    """
    value = getattr(importlib.import_module(module), name)
    if inspect.ismodule(value):
        found = find(value.__name__, loader)
        return Entry(name, value.__name__, first_line(found), is_module=True)
    where = getattr(value, "__module__", None)
    own = f"{where}.{getattr(value, '__qualname__', '')}"
    found = find(own, loader) or find(f"{module}.{name}", loader)
    if found is None or found.is_module:
        return Entry(name, own, "")
    return Entry(name, found.path, first_line(found), is_class=found.is_class)


def first_line(found: griffe.Object | None) -> str:
    """The first line of a docstring."""
    text = found.docstring.value if found and found.docstring else ""
    return text.split("\n", 1)[0]


def file_names(entries: list[Entry]) -> dict[str, str]:
    """A file for each name, also where names that differ in case would be one file."""
    lower = defaultdict(list)
    for each in entries:
        lower[each.name.lower()].append(each)
    return {
        each.name: f"{each.name}-class"
        if each.is_class and len(group) > 1
        else each.name
        for group in lower.values()
        for each in group
    }


def reference(
    module: str, loader: griffe.GriffeLoader, homes: dict[str, str]
) -> dict[str, str]:
    """The reference of one module.

    Args:
        module: its import name.
        loader: has read all packages.
        homes: the pages of modules before, and of what they define; this one's are
            added.

    Returns:
        The text of each page by its path, also of those of the modules that it lists.
    """
    homes[module] = f"{module}/index.md"
    listed = [entry(module, name, loader) for name in public_names(module)]
    files = file_names(listed)
    pages: dict[str, str] = {}
    below: list[str] = []
    groups: dict[str, list[str]] = defaultdict(list)
    elsewhere: dict[str, list[str]] = defaultdict(list)
    for name, path, first, _, is_module in listed:
        if is_module:
            groups["Modules"].append(f"| [`{name}`](../{path}/index.md) | {first} |")
            below.append(path)
        elif path in homes and homes[path].startswith(f"{module}/"):
            other = homes[path].partition("/")[2]
            groups["Other names"].append(f"| [`{name}`]({files[name]}.md) | {first} |")
            pages[f"{module}/{files[name]}.md"] = (
                f"# {name} ({module})\n\nAnother name of [`{other[:-3]}`]({other})."
            )
        elif path in homes:
            link = f"[`{name}`](../{homes[path]})"
            elsewhere[homes[path].split("/")[0]].append(link)
        elif find(path, loader) is None:
            elsewhere[path.rpartition(".")[0]].append(f"`{name}`")
        else:
            file = f"{files[name]}.md"
            homes[path] = f"{module}/{file}"
            groups[title(module, path)].append(f"| [`{name}`]({file}) | {first} |")
            pages[homes[path]] = page(module, name, path)
    lines = [f"# {module}", "", first_line(find(module, loader)), ""]
    for group, rows in groups.items():
        lines += [
            f"## {group}",
            "",
            "| name | what it is |",
            "| --- | --- |",
            *rows,
            "",
        ]
    if elsewhere:
        lines += ["## From elsewhere", ""]
        lines += [f"- {home}: {', '.join(names)}" for home, names in elsewhere.items()]
    pages[f"{module}/index.md"] = "\n".join(lines)
    for inner in below:
        if inner not in homes:  # modules may list each other
            pages |= reference(inner, loader, homes)
    return pages


def public_names(module: str) -> list[str]:
    """The names that a module offers."""
    found = importlib.import_module(module)
    if hasattr(found, "__all__"):
        return list(found.__all__)
    return [
        name
        for name, value in vars(found).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == module
    ]


def title(module: str, path: str) -> str:
    """The heading in a list for what one module defines."""
    inside = path.rpartition(".")[0].removeprefix(module).strip(".")
    words = inside.rpartition(".")[2] or module.rpartition(".")[2]
    return words.replace("_", " ").strip().capitalize()


def page(module: str, name: str, path: str) -> str:
    """The page of one name, which mkdocstrings fills."""
    front = ["---", f"title: {name} ({module})", "---", ""]
    return "\n".join([*front, f"::: {path}", "    options:", "      heading_level: 1"])


def has_example(found: griffe.Object | None) -> bool:
    """Whether a docstring shows how something is used; that of a method will do."""
    if found is None:
        return False
    members = [m for m in found.members.values() if not m.is_alias]
    texts = [each.docstring.value for each in (found, *members) if each.docstring]
    return any(">>>" in text for text in texts)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the reference."""
    loader = load_packages()
    homes: dict[str, str] = {}  # by path
    for module in MODULES:
        for path, content in reference(module, loader, homes).items():
            files.append(File.generated(config, f"reference/{path}", content=content))
    lacking = [
        path
        for path, page in homes.items()
        if page.partition("/")[0] in {*MODULES} - {path}
        and not has_example(find(path, loader))
    ]
    if lacking:
        raise PluginError(f"Public names without an example: {', '.join(lacking)}")
    return files
