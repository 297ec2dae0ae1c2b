"""Puts what was found into a page of the documentation."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.bench import overview, plots, tables
from tools.bench.results import Section

IMAGES = Path("assets") / "benchmarks"


def describe(about: Mapping[str, Any]) -> str:
    """Says where it was measured, in one sentence.

    Args:
        about: As `peers.environment` returns it.

    Returns:
        The sentence, in Markdown.
    """
    versions = ", ".join(f"{name} {v}" for name, v in about["versions"].items())
    return (
        f"Measured on {about['device']} with {about['cpus']} CPU cores, "
        f"Python {about['python']}, {versions}."
    )


def fill(text: str, name: str, content: str) -> str:
    """Replaces what stands between the markers of a name.

    Args:
        text: A page with `<!-- name -->` and `<!-- end name -->`.
        name: The name.
        content: What to put between them.

    Returns:
        The new page.

    Raises:
        ValueError: If the page has no such markers.
    """
    start, end = f"<!-- {name} -->", f"<!-- end {name} -->"
    pattern = re.compile(re.escape(start) + ".*?" + re.escape(end), re.DOTALL)
    if not pattern.search(text):
        raise ValueError(f"The page has no place for {name!r}: add {start} and {end}.")
    filled = f"{start}\n\n{content.strip()}\n\n{end}"
    return pattern.sub(lambda _: filled, text)


def update(page: Path, sections: Sequence[Section], about: Mapping[str, Any]) -> None:
    """Puts tables and plots into a page.

    Args:
        page: The page, with a place for each section and for `environment`.
        sections: What was found.
        about: As `peers.environment` returns it.

    Raises:
        ValueError: If a place is missing.
    """
    folder = page.parent / IMAGES
    folder.mkdir(parents=True, exist_ok=True)
    text = fill(page.read_text(), "environment", describe(about))
    for section in sections:
        for table in section.tables:
            if table.name == "dispatch":
                overview.draw(table, folder)
        titles = {table.name: table.title for table in section.tables}
        images = [
            f"![{titles[path.stem]}]({(IMAGES / path.name).as_posix()})"
            for path in plots.draw([section], folder)
        ]
        content = "\n\n".join([*images, tables.as_markdown(section)])
        text = fill(text, section.name, content)
    page.write_text(text)
