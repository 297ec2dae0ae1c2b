"""Plots of what was found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from tools.bench import peers
from tools.bench.results import Section, Table

COLOURS = {
    peers.RAW: "#475569",
    peers.BY_HAND: "#475569",
    "without donation": "#94a3b8",
    peers.NNX: "#2563eb",
    peers.CORE: "#2563eb",
    peers.LIFT: "#2563eb",
    "with donation": "#2563eb",
    peers.FLAX: "#dc2626",
    peers.FLAX_UPDATES: "#dc2626",
    peers.FLAX_GRAPH: "#f97316",
    peers.FLAX_TREE: "#eab308",
    peers.FLAX_PARTIAL: "#a16207",
    peers.LINEN: "#be185d",
    peers.EQUINOX: "#15803d",
}
OTHERS = ("#0891b2", "#7c3aed", "#1e3a8a")


def _colour(name: str, position: int) -> str:
    return COLOURS.get(name) or OTHERS[position % len(OTHERS)]


def _tidy(axes: Axes, words: str) -> None:
    axes.set_title(words, loc="left", fontsize=11, weight="bold")
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)


def draw(sections: Sequence[Section], folder: Path) -> list[Path]:
    """Draws all plots.

    Args:
        sections: What was found.
        folder: Where to write them; must exist.

    Returns:
        The files.
    """
    drawn: list[Path] = []
    for section in sections:
        for table in section.tables:
            plot = _PLOTS.get(table.name)
            if plot is not None and table.rows:
                path = folder / f"{table.name}.png"
                plot(table).savefig(path, dpi=110, bbox_inches="tight")
                drawn.append(path)
    return drawn


def _by_size(table: Table) -> Figure:
    """Cost against size on logarithmic axes, a panel for each kind of case."""
    kinds = list(dict.fromkeys(_kind(row.case) for row in table.rows))
    columns = min(3, len(kinds))
    lines = -(-len(kinds) // columns)
    figure = Figure(figsize=(4.6 * columns, 3.9 * lines), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False)
    for axes in panels.flat[len(kinds) :]:
        axes.set_visible(False)
    for axes, kind in zip(panels.flat, kinds, strict=False):
        rows = [row for row in table.rows if _kind(row.case) == kind]
        for position, name in enumerate(table.columns):
            points = [
                (row.size, row.cells[name].value)
                for row in rows
                if name in row.cells and row.size
            ]
            if not points:
                continue
            sizes = [size for size, _ in points]
            medians = [spread.median for _, spread in points]
            colour = _colour(name, position)
            axes.plot(sizes, medians, "o-", label=name, color=colour, markersize=3.5)
            axes.fill_between(
                sizes,
                [spread.low for _, spread in points],
                [spread.high for _, spread in points],
                color=colour,
                alpha=0.15,
                linewidth=0,
            )
        axes.set(xscale="log", yscale="log", xlabel=_axis(table))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_minor_formatter(NullFormatter())
        axes.set_ylabel("seconds" if table.unit == "s" else table.unit)
        axes.grid(alpha=0.25, which="major")
        _tidy(axes, kind)
    handles: dict[str, object] = {}
    for axes in panels.flat:
        found, names = axes.get_legend_handles_labels()
        handles.update(zip(names, found, strict=True))
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="outside lower center",
        ncols=3,
        fontsize=8,
        frameon=False,
    )
    return figure


def _kind(case: str) -> str:
    """The case without its size."""
    return case.rsplit(", ", 1)[0]


def _axis(table: Table) -> str:
    return "size" if table.name == "growth" else "variables"


def _by_case(table: Table) -> Figure:
    """Ratios to the baseline, a group of bars for each case."""
    names = [
        name
        for name in table.columns
        if any(name in r.cells and r.cells[name].ratio for r in table.rows)
    ]
    figure = Figure(
        figsize=(8, 1.2 + 0.13 * len(table.rows) * (len(names) + 1.5)),
        layout="constrained",
    )
    axes = figure.subplots()
    height = 0.8 / max(1, len(names))
    for position, name in enumerate(names):
        found = [
            (number, row.cells[name].ratio)
            for number, row in enumerate(table.rows)
            if name in row.cells and row.cells[name].ratio
        ]
        places = [number + position * height for number, _ in found]
        medians = [ratio.median for _, ratio in found if ratio]
        error = [
            [r.median - r.low for _, r in found if r],
            [r.high - r.median for _, r in found if r],
        ]
        axes.barh(
            places,
            medians,
            height * 0.92,
            label=name,
            color=_colour(name, position),
            xerr=error,
            error_kw={"linewidth": 0.8, "ecolor": "#0f172a"},
        )
    middle = (len(names) - 1) * height / 2
    axes.set_yticks(
        [number + middle for number in range(len(table.rows))],
        [row.case for row in table.rows],
    )
    axes.axvline(1, color="#475569", linewidth=1)
    axes.invert_yaxis()
    axes.set_xlabel(f"times {table.baseline}")
    axes.grid(alpha=0.25, axis="x")
    axes.legend(fontsize=8, frameon=False)
    _tidy(axes, table.title)
    return figure


_PLOTS: dict[str, Callable[[Table], Figure]] = {
    "dispatch": _by_size,
    "graph": _by_size,
    "growth": _by_size,
    "tracing-nnx": _by_case,
    "tracing-linen": _by_case,
    "donation": _by_case,
    "peak-memory": _by_case,
}
