"""What the figures of all parts have in common."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import SubplotSpec

from tools.demo.data import Split

BLUE, GREEN, RED, GREY = "#2563eb", "#15803d", "#dc2626", "#8a97a3"
COLUMNS = 7  # of images of digits


@dataclass
class History:
    """How training went.

    Args:
        losses: The loss of each step.
        accuracies: After each epoch, the number of steps and the accuracy on held-out
            images.
    """

    losses: list[float] = field(default_factory=list)
    accuracies: list[tuple[int, float]] = field(default_factory=list)


def title(axes: Axes, words: str) -> None:
    """Writes a title above the left edge of a panel."""
    axes.set_title(words, loc="left", fontsize=12, weight="bold")


def tidy(axes: Axes) -> None:
    """Takes away lines that say nothing."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9)


def draw_history(axes: Axes, history: History) -> None:
    """Draws the loss of each step, and the accuracy after each epoch.

    Args:
        axes: Where to draw.
        history: How training went.
    """
    losses = np.array(history.losses)
    steps = np.arange(1, len(losses) + 1)
    # Means of the last few steps, so that the trend shows through the noise.
    width = max(1, len(losses) // 25)
    sums = np.cumsum(np.concatenate([np.zeros(1), losses]))
    start = np.maximum(steps - width, 0)
    axes.plot(steps, losses, color=BLUE, alpha=0.25, linewidth=0.8)
    means = (sums[steps] - sums[start]) / (steps - start)
    axes.plot(steps, means, color=BLUE, linewidth=1.8)
    axes.set_yscale("log")
    axes.set_xlabel("step")
    axes.set_ylabel("training loss", color=BLUE)
    tidy(axes)
    if history.accuracies:
        right = axes.twinx()
        at, accuracies = zip(*history.accuracies, strict=True)
        errors = [max(1 - a, 1e-4) * 100 for a in accuracies]
        right.plot(at, errors, "o-", color=GREEN, markersize=4, linewidth=1.2)
        right.set_ylabel("held-out digits mistaken, %", color=GREEN)
        right.set_ylim(bottom=0)
        right.spines[["top", "left"]].set_visible(False)
        right.tick_params(labelsize=9)
    title(axes, "Training")


def draw_predictions(
    place: SubplotSpec, held_out: Split, probabilities: np.ndarray, rows: int
) -> None:
    """Draws held-out digits with what the model says about them, mistakes first.

    Args:
        place: Where to draw.
        held_out: The digits.
        probabilities: For each of them the probability of each class.
        rows: How many rows of images.
    """
    guesses = probabilities.argmax(-1)
    wrong = guesses != held_out.labels
    shown = np.argsort(~wrong, kind="stable")[: rows * COLUMNS]
    grid: Any = place.subgridspec(rows, COLUMNS, hspace=0.45, wspace=0.12).subplots()
    for axes, index in zip(grid.flat, shown, strict=True):
        axes.imshow(held_out.images[index, ..., 0], cmap="gray_r", vmin=0, vmax=1)
        axes.set(xticks=[], yticks=[])
        guess, share = guesses[index], probabilities[index, guesses[index]]
        colour = RED if wrong[index] else GREEN
        words = f"{guess}, not {held_out.labels[index]}" if wrong[index] else f"{guess}"
        axes.set_title(f"{words} ({share:.0%})", fontsize=8, color=colour, pad=3)
        for spine in axes.spines.values():
            spine.set(color=colour, linewidth=1.4)
    right = np.count_nonzero(~wrong)
    grid[0, 0].annotate(
        f"Held-out digits: {right} of {len(wrong)} recognized (mistakes in red)",
        (0, 1),
        (0, 20),
        xycoords="axes fraction",
        textcoords="offset points",
        fontsize=12,
        weight="bold",
    )


def save(figure: Figure, folder: Path, name: str) -> Path:
    """Writes a figure as PNG, and says where.

    Args:
        figure: The figure.
        folder: Where to write it; made if need be.
        name: The name of the file.

    Returns:
        The path of the file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    figure.savefig(path, dpi=150, facecolor="white")
    print(f"figure: {path}")
    return path
