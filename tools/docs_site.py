"""Hooks of the documentation site: its navigation and the pages of the reference.

mkdocs calls the ``on_...`` functions (see ``hooks`` in mkdocs.yml). Guides are found in
their folders, so that adding one means adding a file. The reference has a page for each
package with every name in its ``__all__``, grouped by the module that defines it; the
packages are read, not imported.
"""

from pathlib import Path
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {
    "graphcore": "graphcore",
    "nnx_transforms": "nnx-transforms",
    "linen_lift": "linen-lift",
}
# Modules with names that their package does not list, on a page of their own.
MODULES = ("graphcore.authors", "nnx_transforms.saving")
# As one learns.
TUTORIALS = ("index", "transformer", "agent", "derivatives", "framework")
# Folders of guides, in the order of the navigation.
SECTIONS = {"graphcore": "graphcore", "nnx": "nnx-transforms", "linen": "linen-lift"}


def guides(folder: Path) -> list[str]:
    """The pages in a folder of docs/, its index first, the others by name."""
    pages = sorted(folder.glob("*.md"), key=lambda p: (p.stem != "index", p.name))
    return [page.relative_to(folder.parent).as_posix() for page in pages]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Make the navigation."""
    docs = Path(config.docs_dir)
    config.nav = [
        "index.md",
        "install.md",
        {"Tutorials": [f"tutorials/{name}.md" for name in TUTORIALS]},
        *({title: guides(docs / name)} for name, title in SECTIONS.items()),
        {"Reference": [f"reference/{name}.md" for name in (*PACKAGES, *MODULES)]},
        {"Project": ["benchmarks.md", "contributing.md", "changelog.md"]},
    ]
    return config


def module_page(name: str, loader: griffe.GriffeLoader) -> str:
    """The reference page of one module, with the names that it lists, one by one.

    Args:
        name: of the module.
        loader: has read all packages.

    Returns:
        Markdown in which mkdocstrings fills the entry of each name.
    """
    module: Any = loader.modules_collection[name]
    lines = [f"# {name}", "", first_line(module), ""]
    for listed in map(str, module.exports or ()):
        home = module.imports[listed]
        # What is JAX's own is not in these sources.
        if not loader.modules_collection[home].is_alias:
            lines += [f"::: {home}", ""]
    return "\n".join(lines)


def first_line(module: griffe.Module) -> str:
    """The first line of a module's docstring."""
    return module.docstring.value.split("\n", 1)[0] if module.docstring else ""


def load_packages() -> griffe.GriffeLoader:
    """Read all packages, so that what one exports of another is known."""
    folders = [ROOT / "packages" / name / "src" for name in PACKAGES.values()]
    loader = griffe.GriffeLoader(search_paths=folders)
    for package in PACKAGES:
        loader.load(package)
    loader.resolve_aliases()
    return loader


def reference(package: str, loader: griffe.GriffeLoader) -> str:
    """The reference page of a package.

    Args:
        package: its import name.
        loader: has read all packages.

    Returns:
        Markdown in which mkdocstrings fills the entry of each public name.
    """
    module: Any = loader.modules_collection[package]
    # Home module -> the identifiers by which mkdocstrings finds its public names.
    defined: dict[str, list[str]] = {}
    elsewhere: dict[str, list[str]] = {}
    submodules = []
    for name in map(str, module.exports or ()):
        # A function may have the name of a submodule: the import says what is meant.
        # Only names from `import *` are no imports but aliases.
        member = module.members[name]
        there = member.target_path if member.is_alias else member.path
        target = module.imports.get(name, there)
        if not target.startswith(f"{package}."):
            elsewhere.setdefault(target.rpartition(".")[0], []).append(name)
            continue
        found = loader.modules_collection[target]
        while found.is_alias and found.target_path.startswith(f"{package}."):
            found = found.target
        if found.is_alias:  # to what is JAX's own
            home = found.target_path.rpartition(".")[0]
            elsewhere.setdefault(home, []).append(name)
        elif found.is_module:
            submodules.append(found.path)
        else:
            shadowed = member.is_module
            identifier = found.path if shadowed else f"{package}.{name}"
            defined.setdefault(found.module.path, []).append(identifier)
    lines = [f"# {package}", "", first_line(module), ""]
    for home, identifiers in defined.items():
        inside = home.removeprefix(package).lstrip(".")
        found = module[inside] if inside else module
        if inside:
            lines += [f"## {inside.replace('_', ' ').strip().capitalize()}", ""]
            lines += [first_line(found), ""]
        for identifier in identifiers:
            lines += [f"::: {identifier}", ""]
    for home in submodules:
        lines += [f"## {home}", "", f"::: {home}", "    options:"]
        lines += ["      show_root_heading: false", ""]
    if elsewhere:
        lines += ["## From elsewhere", ""]
        for home, names in elsewhere.items():
            if home in PACKAGES:
                home = f"[{home}]({home}.md)"
            else:
                home = f"`{home}`"
            listed = ", ".join(f"`{name}`" for name in names)
            lines += [f"- {home}: {listed}"]
    return "\n".join(lines)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the reference."""
    loader = load_packages()
    for package in PACKAGES:
        path = f"reference/{package}.md"
        content = reference(package, loader)
        files.append(File.generated(config, path, content=content))
    for name in MODULES:
        path = f"reference/{name}.md"
        content = module_page(name, loader)
        files.append(File.generated(config, path, content=content))
    return files
