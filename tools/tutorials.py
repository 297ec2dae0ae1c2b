"""The tutorials: run as notebooks, ``python -m tools.tutorials [NAME ...]``, and shown.

Each file in docs/tutorials/ is the one source of a notebook and of a page: its
``python`` blocks are the cells, as jupytext reads them. Run as a program, this executes
the notebooks and leaves them in build/tutorials/. As a hook of mkdocs, it puts the
pages with their outputs, and the notebooks, into the site.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

import jupytext
import nbformat
from nbclient import NotebookClient
from nbconvert import MarkdownExporter
from nbformat import NotebookNode

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOT = Path(__file__).resolve().parent.parent
FOLDER = "tutorials"
SOURCES = ROOT / "docs" / FOLDER
EXECUTED = ROOT / "build" / FOLDER
KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}
# Longer than a tutorial may take: a cell that hangs is an error.
SECONDS = 300


def sources() -> list[Path]:
    """The tutorials: the pages in their folder that have cells."""
    return [
        path
        for path in sorted(SOURCES.glob("*.md"))
        if any(cell.cell_type == "code" for cell in notebook(path).cells)
    ]


def notebook(source: Path) -> NotebookNode:
    """The notebook of a tutorial, without outputs.

    Args:
        source: the markdown file.

    Returns:
        A notebook whose code cells are the ``python`` blocks.
    """
    made = jupytext.read(source, fmt="md")
    made.metadata = {"kernelspec": KERNEL, "language_info": {"name": "python"}}
    for index, cell in enumerate(made.cells):
        cell["id"] = f"cell-{index}"  # the same each time
    return made


def execute(source: Path) -> NotebookNode:
    """Run a tutorial in a kernel of this Python, and keep what came out.

    Args:
        source: the markdown file.

    Returns:
        The notebook with outputs, which is also in build/tutorials/.

    Raises:
        CellExecutionError: if a cell raises; with the cell and the traceback.
        ValueError: if a cell writes to stderr, as warnings do: a reader would see it.
    """
    made = notebook(source)
    client = NotebookClient(made, timeout=SECONDS, coalesce_streams=True)
    client.record_timing = False  # the notebook is the same each time
    # Sockets that nobody else can open.
    client.create_kernel_manager().transport = "ipc"
    client.execute()
    for cell in made.cells:
        for output in cell.get("outputs", ()):
            if output.get("name") == "stderr":
                raise ValueError(
                    f"{source.name}: this cell wrote to stderr:\n\n{cell.source}\n\n"
                    f"{output.text}"
                )
    EXECUTED.mkdir(parents=True, exist_ok=True)
    nbformat.write(made, EXECUTED / f"{source.stem}.ipynb")
    return made


def executed(source: Path) -> NotebookNode:
    """The notebook of a tutorial with outputs, run unless it was run before."""
    kept = EXECUTED / f"{source.stem}.ipynb"
    if kept.exists():
        made = nbformat.read(kept, as_version=4)
        cells = [(cell.cell_type, cell.source) for cell in made.cells]
        if cells == [(cell.cell_type, cell.source) for cell in notebook(source).cells]:
            return made
    return execute(source)


def page(made: NotebookNode, name: str) -> tuple[str, dict[str, bytes]]:
    """A page of the site.

    Args:
        made: a notebook with outputs.
        name: of the tutorial.

    Returns:
        Markdown, which offers the notebook below the heading, and the figures in it by
        file name.
    """
    exporter = MarkdownExporter()
    resources = {"unique_key": name, "output_files_dir": f"{name}_files"}
    text, resources = exporter.from_notebook_node(made, resources)
    text = text.replace("![png]", "![What the code above draws]")
    heading, _, rest = text.strip().partition("\n")
    offer = f"[Download this page as a notebook]({name}.ipynb)"
    return f"{heading}\n\n{offer}{{ .md-button }}\n{rest}\n", resources["outputs"]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replace the sources by pages with outputs; add figures and notebooks."""
    from mkdocs.structure.files import File

    for source in sources():
        made = executed(source)
        text, added = page(made, source.stem)
        added[f"{source.stem}.ipynb"] = nbformat.writes(made).encode()
        files.remove(files.src_uris[f"{FOLDER}/{source.name}"])
        for path, content in {source.name: text, **added}.items():
            files.append(File.generated(config, f"{FOLDER}/{path}", content=content))
    return files


def main() -> None:
    """Execute the tutorials that are named, or all, and say how long each took."""
    parser = argparse.ArgumentParser(prog="tools.tutorials", description=main.__doc__)
    names = [source.stem for source in sources()]
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(names))
    chosen = parser.parse_args().names or names
    if unknown := set(chosen) - set(names):
        parser.error(f"no such tutorial: {', '.join(sorted(unknown))}")
    for name in chosen:
        start = time.monotonic()
        execute(SOURCES / f"{name}.md")
        print(f"{name:<24} {time.monotonic() - start:6.1f} s", flush=True)
    print(f"The notebooks with their outputs are in {EXECUTED}")


if __name__ == "__main__":
    main()
