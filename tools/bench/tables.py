"""Tables of what was found, for terminals and in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table as RichTable

from tools.bench.results import Bar, Cell, Section, Spread, Table

_SCALES = {
    "s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")),
    "B": ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B")),
}


def amount(value: float, unit: str) -> str:
    """Writes a number with its unit, scaled so that it is easy to read.

    Args:
        value: The number.
        unit: `s`, `B`, `count` or `exponent`.

    Returns:
        For instance `12.3 µs`.
    """
    if unit == "count":
        return f"{value:,.0f}"
    if unit == "exponent":
        return f"{value:.2f}"
    scales = _SCALES[unit]
    size, name = next((s for s in scales if abs(value) >= s[0]), scales[-1])
    return f"{number(value / size)} {name}"


def number(value: float) -> str:
    """Writes a number with three digits that count.

    Args:
        value: The number.

    Returns:
        For instance `0.123`, `12.3` or `1,230`.
    """
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.3g}"


def _spread(spread: Spread) -> str:
    if spread.low == spread.high:
        return ""
    return f" ({number(spread.low)}–{number(spread.high)})"  # noqa: RUF001


def cell_text(cell: Cell | None, unit: str) -> str:
    """Writes a cell: the baseline's value, or the ratio to it with its quartiles."""
    if cell is None:
        return "–"  # noqa: RUF001
    if cell.ratio is None:
        return amount(cell.value.median, unit)
    return f"{number(cell.ratio.median)}×{_spread(cell.ratio)}"  # noqa: RUF001


def _rows(table: Table) -> tuple[list[str], list[list[str]]]:
    shown = [c for c in table.columns if any(c in row.cells for row in table.rows)]
    rows = [
        [row.case, *(cell_text(row.cells.get(name), table.unit) for name in shown)]
        for row in table.rows
    ]
    return ["", *shown], rows


def bar_cells(bar: Bar) -> list[str]:
    """Writes a bar as cells: name, measurement, limit, verdict."""
    sign = "≥" if bar.at_least else "≤"
    found = number(bar.found.median) + _spread(bar.found)
    return [
        bar.name,
        found,
        f"{sign} {number(bar.limit)}",
        "held" if bar.holds else "missed",
    ]


_BAR_HEADER = ["bar", "found", "limit", ""]


def print_section(section: Section, console: Console) -> None:
    """Prints a section's tables and bars."""
    console.rule(section.title)
    for table in section.tables:
        header, rows = _rows(table)
        shown = RichTable(*header, title=table.title, title_justify="left")
        for row in rows:
            shown.add_row(*row)
        console.print(shown)
        for note in table.notes:
            console.print(f"  {note}", style="dim")
    if section.bars:
        shown = RichTable(*_BAR_HEADER, title="Bars", title_justify="left")
        for bar in section.bars:
            shown.add_row(*bar_cells(bar), style=None if bar.holds else "bold red")
        console.print(shown)


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    aligned = ["---", *["---:"] * (len(header) - 1)]
    lines = [header, aligned, *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


def as_markdown(section: Section) -> str:
    """Writes a section's tables and bars in Markdown.

    Args:
        section: What was found.

    Returns:
        The text, without the section's headline.
    """
    lines: list[str] = []
    for table in section.tables:
        lines += [f"**{table.title}**", "", *_markdown(*_rows(table)), ""]
        for note in table.notes:
            lines += [note, ""]
    if section.bars:
        held = sum(bar.holds for bar in section.bars)
        headline = f"**Bars**: {held} of {len(section.bars)} held"
        rows = [bar_cells(bar) for bar in section.bars]
        lines += [headline, "", *_markdown(_BAR_HEADER, rows), ""]
    return "\n".join(lines)
