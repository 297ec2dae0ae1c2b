"""The one figure of the landing page: the cost of a step against the model's size."""

from __future__ import annotations

from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from tools.bench import peers
from tools.bench.plots import COLOURS
from tools.bench.results import Table

CASE = "write one"
OURS = f"{peers.NNX}, List"
# What each line is called, at its end.
SHOWN = {
    peers.FLAX_UPDATES: "Flax NNX, graph updates",
    peers.FLAX_TREE: "Flax NNX, tree",
    peers.EQUINOX: "Equinox filter_jit",
    peers.FLAX_PARTIAL: "Flax NNX, jit_partial",
    OURS: peers.NNX,
    peers.RAW: "raw jax.jit",
}
GREY = "#7c8798"  # is read on white as on black


def draw(table: Table, folder: Path) -> Path | None:
    """Draws the cost of a step against the number of variables.

    Args:
        table: Calls of compiled steps by size.
        folder: Where to write the figure; must exist.

    Returns:
        The file; None if the table has too few sizes.
    """
    rows = [row for row in table.rows if row.case.startswith(CASE) and row.size]
    sizes = [row.size for row in rows if row.size]
    if len(sizes) < 2:
        return None
    figure = Figure(figsize=(6.6, 3.1), layout="constrained")
    axes = figure.subplots()
    ends: list[tuple[float, str]] = []
    for name in SHOWN:
        points = [(r.size, r.cells[name].value.median) for r in rows if name in r.cells]
        if not points:
            continue
        ours = name == OURS
        axes.plot(
            *zip(*points, strict=True),
            "o-",
            color=_colour(name),
            linewidth=3 if ours else 1.6,
            markersize=6 if ours else 4,
            zorder=3 if ours else 2,
        )
        ends.append((points[-1][1] * sizes[-1] / points[-1][0], name))
    axes.set(xscale="log", yscale="log", xlim=(sizes[0] * 0.8, sizes[-1] * 30))
    axes.xaxis.set_major_locator(FixedLocator(sizes))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: f"{size:,.0f}"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda seconds, _: _time(seconds)))
    axes.set_xlabel("variables in the model", color=GREY, loc="left")
    axes.set_title("Time to call a compiled step", color=GREY, loc="left", fontsize=11)
    axes.spines[:].set_visible(False)
    axes.tick_params(colors=GREY, length=0)
    axes.grid(axis="y", color=GREY, alpha=0.25)
    for place, name in _apart(ends, factor=1.9):
        axes.annotate(
            SHOWN[name],
            (sizes[-1] * 1.15, place),
            color=_colour(name),
            va="center",
            fontsize=10,
            weight="bold" if name == OURS else "normal",
        )
    path = folder / "step.svg"
    # The same figure gives the same file.
    with rc_context({"svg.hashsalt": "step", "svg.fonttype": "path"}):
        figure.savefig(path, transparent=True, metadata={"Date": None})
    return path


def _colour(name: str) -> str:
    if name == peers.RAW:
        return GREY
    return COLOURS.get(name) or COLOURS[peers.NNX]


def _time(seconds: float) -> str:
    for unit, name in ((1, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= unit:
            return f"{seconds / unit:.0f} {name}"
    return ""


def _apart(places: list[tuple[float, str]], factor: float) -> list[tuple[float, str]]:
    """Labels moved up until none covers the one below."""
    moved: list[tuple[float, str]] = []
    for place, name in sorted(places):
        lowest = moved[-1][0] * factor if moved else place
        moved.append((max(place, lowest), name))
    return moved
