"""The command line: ``python -m tools.bench --help``."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from tools.bench import peers, tables
from tools.bench.measuring import FULL, QUICK
from tools.bench.processes import in_fresh_process, run_section
from tools.bench.results import Section, missed

QUIET = 0.5
"""Below which load, before anything is measured, a machine counts as quiet."""
SECTIONS = (
    *("dispatch", "flax_objects", "modules", "graph", "tracing", "eager"),
    *("memory", "sharded", "startup", "growth"),
)


def read_arguments(argv: list[str] | None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench",
        description="Measure what the packages cost over plain JAX, beside their "
        "peers.",
    )
    parser.add_argument(
        "--quick", action="store_true", help="less precisely, in under two minutes"
    )
    parser.add_argument(
        "--check", action="store_true", help="fail if a bar is missed, and say which"
    )
    parser.add_argument(
        "--only",
        type=_names,
        default=SECTIONS,
        metavar="NAMES",
        help=f"some of {','.join(SECTIONS)}",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("bench_output"),
        metavar="DIR",
        help="the folder for results, tables and plots (default: %(default)s)",
    )
    parser.add_argument(
        "--docs",
        type=Path,
        metavar="PAGE",
        help="also put the tables and plots into this page of the documentation",
    )
    return parser.parse_args(argv)


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if unknown := set(names) - set(SECTIONS):
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(sorted(unknown))}")
    return names


def main(argv: list[str] | None = None) -> int:
    """Measures what was asked for.

    Args:
        argv: The arguments; those of the process by default.

    Returns:
        The exit code: 1 if a bar was to hold and does not.
    """
    arguments = read_arguments(argv)
    width = None if sys.stdout.isatty() else 200
    console = Console(width=width, highlight=False)
    found: list[Section] = []
    about = in_fresh_process(peers.environment)
    load: Any = about["load"]
    is_quiet = load is not None and load < QUIET
    effort = replace(QUICK if arguments.quick else FULL, is_quiet=is_quiet)
    if not is_quiet:
        console.print(
            f"The load of the machine is {load}, not below {QUIET}: it is not quiet, "
            "and the limits are those for a machine with neighbours.\n"
        )
    for name in arguments.only:
        start = time.perf_counter()
        section = in_fresh_process(run_section, name, effort)
        found.append(section)
        tables.print_section(section, console)
        console.print(f"took {time.perf_counter() - start:.0f} s\n")
        # At once: a later section may fail.
        save(found, about, arguments.out)
        if arguments.docs is not None:
            from tools.bench import page

            page.update(arguments.docs, [section], about)
    draw(found, arguments.out)
    console.print(f"results in {arguments.out}")
    failures = missed(found)
    if arguments.check:
        console.print(f"{len(failures)} bars missed")
        for bar in failures:
            console.print("  " + ", ".join(tables.bar_cells(bar)[:3]))
    return 1 if arguments.check and failures else 0


def save(sections: list[Section], about: dict[str, object], folder: Path) -> None:
    """Writes results as JSON and Markdown.

    Args:
        sections: What was found.
        about: The environment.
        folder: Where to write; made if need be.
    """
    folder.mkdir(parents=True, exist_ok=True)
    content = {"environment": about, "sections": [s.as_json() for s in sections]}
    (folder / "results.json").write_text(json.dumps(content, indent=1) + "\n")
    parts = [f"## {s.title}\n\n{tables.as_markdown(s)}" for s in sections]
    (folder / "results.md").write_text("\n".join(parts))


def draw(sections: list[Section], folder: Path) -> None:
    """Draws plots, where matplotlib is installed.

    Args:
        sections: What was found.
        folder: Where to write.
    """
    try:
        from tools.bench import plots
    except ModuleNotFoundError as error:
        print(f"no plots: {error}")
        return
    plots.draw(sections, folder)
