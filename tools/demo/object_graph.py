"""Draws a graph of objects: a card for each node, with its variables as rows.

The picture is made from what `graphcore.to_dot` writes, so it shows what the library
sees. A node or variable that several attributes lead to is drawn once, in colour.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch, PathPatch, Rectangle
from matplotlib.path import Path

import graphcore

INK, FAINT, PAPER, SHARED, SHARED_PAPER = (
    "#22303c",
    "#9aa7b1",
    "#f4f7f9",
    "#c2410c",
    "#fff4ec",
)
CARD_WIDTH, COLUMN_GAP, ROW_HEIGHT, CARD_GAP = 4.8, 1.5, 0.36, 0.42

_NODE = re.compile(r'^  (n\d+) \[shape=(\w+), label="(.*)"\];$')
_EDGE = re.compile(r'^  (n\d+) -> (n\d+) \[label="(.*?)"(?:, style=dashed)?\];$')


@dataclass(eq=False)
class Card:
    """A node of the graph, or a shared variable.

    Args:
        lines: Its type, and what else is known.
        rows: Its own variables: their names, types and values.
        arrows: The attributes that lead to other cards.
        arrivals: How many attributes lead here.
    """

    lines: list[str]
    rows: list[tuple[str, list[str]]] = field(default_factory=list)
    arrows: list[tuple[str, Card]] = field(default_factory=list)
    arrivals: int = 0
    column: int = 0
    y: float = 0.0

    @property
    def height(self) -> float:
        """How high the card is."""
        return ROW_HEIGHT * (1.25 + len(self.rows))

    @property
    def x(self) -> float:
        """Where its left side is."""
        return self.column * (CARD_WIDTH + COLUMN_GAP)

    @property
    def is_shared(self) -> bool:
        """Whether several attributes lead here."""
        return self.arrivals > 1


def read_cards(node: Any) -> list[Card]:
    """Finds the cards of a graph, in the order of first visit.

    Args:
        node: The root.

    Returns:
        The cards, the root's first.
    """
    cards: dict[str, Card] = {}
    variables: set[str] = set()
    edges: list[tuple[str, str, str]] = []
    for line in graphcore.to_dot(node).splitlines():
        if found := _NODE.match(line):
            name, shape, label = found.groups()
            cards[name] = Card(label.split(r"\n"))
            if shape == "ellipse":
                variables.add(name)
        elif found := _EDGE.match(line):
            source, target, label = found.groups()
            edges.append((source, target, label))
    for _, target, _ in edges:
        cards[target].arrivals += 1
    inner = {name for name in variables if cards[name].arrivals == 1}
    for source, target, label in edges:
        if target in inner:
            cards[source].rows.append((label, cards[target].lines))
        else:
            cards[source].arrows.append((label, cards[target]))
    return [card for name, card in cards.items() if name not in inner]


def arrange(cards: list[Card]) -> None:
    """Decides where the cards are: in columns, each right of all that lead to it.

    Args:
        cards: The cards of a graph without cycles, the root's first.
    """
    parents: dict[Card, list[Card]] = defaultdict(list)
    for card in cards:
        for _, target in card.arrows:
            parents[target].append(card)
    pending = [cards[0]]
    while pending:
        card = pending.pop()
        for _, target in card.arrows:
            if target.column <= card.column:
                target.column = card.column + 1
                pending.append(target)
    columns: dict[int, list[Card]] = defaultdict(list)
    for card in cards:
        columns[card.column].append(card)
    tallest = max(map(_height, columns.values()))
    for _, column in sorted(columns.items()):
        # Near what leads to it; among the cards of one parent, in the order there.
        column.sort(
            key=lambda c: -sum(p.y for p in parents[c]) / max(1, len(parents[c]))
        )
        spare = (tallest - _height(column)) / (len(column) + 1)
        top = tallest / 2 - spare
        for card in column:
            card.y = top - card.height / 2
            top -= card.height + CARD_GAP + spare


def _height(column: list[Card]) -> float:
    return sum(card.height + CARD_GAP for card in column) - CARD_GAP


def draw(axes: Axes, node: Any) -> None:
    """Draws the graph of an object.

    Args:
        axes: Where to draw.
        node: The root of a graph without cycles.
    """
    cards = read_cards(node)
    arrange(cards)
    for card in cards:
        # From top to bottom as their ends are, so that they do not cross.
        arrows = sorted(card.arrows, key=lambda arrow: -arrow[1].y)
        for number, (label, target) in enumerate(arrows):
            _draw_arrow(axes, card, number, label, target)
    for card in cards:
        _draw_card(axes, card)
    right = max(card.x for card in cards) + CARD_WIDTH
    reach = max(abs(card.y) + card.height / 2 for card in cards)
    axes.set(xlim=(-0.15, right + 0.15), ylim=(-reach - 0.2, reach + 0.2))
    axes.axis("off")


def _draw_card(axes: Axes, card: Card) -> None:
    colour, paper = (SHARED, SHARED_PAPER) if card.is_shared else (INK, PAPER)
    left, bottom, top = card.x, card.y - card.height / 2, card.y + card.height / 2
    style = "round,pad=0,rounding_size=0.09"
    axes.add_patch(
        FancyBboxPatch(
            (left, bottom),
            CARD_WIDTH,
            card.height,
            boxstyle=style,
            facecolor=paper,
            edgecolor=colour,
            linewidth=1.6 if card.is_shared else 0.9,
            zorder=3,
        )
    )
    y = top - 0.62 * ROW_HEIGHT
    title: dict[str, Any] = {"va": "center", "color": colour, "zorder": 4}
    axes.text(left + 0.12, y, card.lines[0], weight="bold", fontsize=9.5, **title)
    if card.is_shared:
        words = f"shared by {card.arrivals}"
        axes.text(
            left + CARD_WIDTH - 0.12,
            y,
            words,
            ha="right",
            fontsize=8,
            style="italic",
            **title,
        )
    if card.rows:
        line = top - 1.15 * ROW_HEIGHT
        axes.add_patch(
            Rectangle((left, line), CARD_WIDTH, 0, ec=colour, lw=0.5, zorder=4)
        )
    for number, (name, (kind, *facts)) in enumerate(card.rows):
        y = top - (1.65 + number) * ROW_HEIGHT
        axes.text(left + 0.12, y, name, va="center", fontsize=8, color=INK, zorder=4)
        words = f"{kind} {facts[0]}" if facts else kind
        axes.text(
            left + CARD_WIDTH - 0.12,
            y,
            words,
            ha="right",
            va="center",
            fontsize=7.6,
            color="#51606c",
            zorder=4,
        )


def _draw_arrow(axes: Axes, card: Card, number: int, label: str, target: Card) -> None:
    share = (number + 1) / (len(card.arrows) + 1)
    start = card.x + CARD_WIDTH, card.y + card.height * (0.5 - share)
    end = target.x - 0.04, target.y
    bend = (COLUMN_GAP * 0.6, 0)
    points = [
        start,
        (start[0] + bend[0], start[1]),
        (end[0] - bend[0], end[1]),
        end,
    ]
    colour = SHARED if target.is_shared else FAINT
    codes = [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4]
    axes.add_patch(
        PathPatch(
            Path(points, codes), fill=False, edgecolor=colour, linewidth=1.1, zorder=1
        )
    )
    axes.plot(*end, marker=">", markersize=4.5, color=colour, zorder=2)
    # At the end: the arrows of one card start close to each other.
    axes.text(
        end[0] - 0.25,
        end[1] + (0.14 if not target.is_shared else 0.0),
        label,
        ha="right",
        va="center",
        fontsize=7.5,
        color=colour if target.is_shared else "#51606c",
        zorder=5,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.9},
    )
