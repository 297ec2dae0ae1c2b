"""`Module.tabulate`: the submodules of a module as a table."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from ..filters import CollectionFilter
from ..metadata import AxisMetadata
from .context import InterceptorContext, intercept_methods


@dataclasses.dataclass
class _Row:
    """One call of a method."""

    path: tuple[str, ...]
    kind: str
    inputs: str
    outputs: str


def tabulate(
    module: Any,
    rngs: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    depth: int | None,
    show_repeated: bool,
    mutable: CollectionFilter,
    method: Any,
    console_kwargs: Mapping[str, Any] | None,
) -> str:
    """A table of the submodules of a module; see `Module.tabulate`."""
    rows: list[_Row] = []
    seen: set[tuple[str, ...]] = set()

    def record(
        next_fun: Any, args: Any, kwargs: Any, context: InterceptorContext
    ) -> Any:
        scope = context.module.scope
        if context.method_name != "__call__" or scope is None:
            return next_fun(*args, **kwargs)
        path = scope.path
        shown = (depth is None or len(path) <= depth) and (
            show_repeated or path not in seen
        )
        seen.add(path)
        place = len(rows)
        out = next_fun(*args, **kwargs)
        if shown:
            kind = type(context.module).__name__
            row = _Row(path, kind, _text((*args, *kwargs.values())), _text(out))
            rows.insert(place, row)  # before the submodules it called
        return out

    arrays, treedef = jax.tree.flatten((rngs, args, kwargs))
    traced = [i for i, x in enumerate(arrays) if hasattr(x, "shape")]

    def initialize(*values: Any) -> Any:
        filled = list(arrays)
        for i, value in zip(traced, values, strict=True):
            filled[i] = value
        rngs, args, kwargs = jax.tree.unflatten(treedef, filled)
        make = functools.partial(module.init, method=method, mutable=mutable)
        return make(rngs, *args, **kwargs)

    with intercept_methods(record):
        variables = jax.eval_shape(initialize, *(arrays[i] for i in traced))

    collections = list(variables)
    header = ["path", "module", "inputs", "outputs", *collections]
    table = [
        [
            "/".join(row.path),
            row.kind,
            row.inputs,
            row.outputs,
            *(_own(variables[col], row.path, depth) for col in collections),
        ]
        for row in _merged(rows, show_repeated)
    ]
    totals = ["", "", "", "Total", *(_size_text(variables[col]) for col in collections)]
    count = sum(_size(variables[col])[0] for col in collections)
    size = sum(_size(variables[col])[1] for col in collections)
    title = f"{type(module).__name__} Summary"
    footer = f"Total: {count:,} ({_bytes(size)})"
    if console_kwargs is not None:
        drawn = _with_rich(title, header, [*table, totals], footer, console_kwargs)
        if drawn is not None:
            return drawn
    return _plain(title, header, table, totals, footer)


def _merged(rows: list[_Row], show_repeated: bool) -> list[_Row]:
    # A body can be traced more than once, as in a loop; that is no further call.
    found: dict[Any, _Row] = {}
    for row in rows:
        key = (row.path, row.inputs, row.outputs) if show_repeated else row.path
        found.setdefault(key, row)
    return list(found.values())


def _text(tree: Any) -> str:
    parts = []
    for x in jax.tree.leaves(tree, is_leaf=lambda x: x is None):
        if hasattr(x, "shape") and hasattr(x, "dtype"):
            parts.append(f"{x.dtype.name}[{','.join(map(str, x.shape))}]")
        elif x is not None:
            parts.append(repr(x))
    return ", ".join(parts)


def _own(tree: Any, path: tuple[str, ...], depth: int | None) -> str:
    """The variables directly at a path; below it too if rows end there."""
    for name in path:
        if not isinstance(tree, Mapping) or name not in tree:
            return ""
        tree = tree[name]
    if not isinstance(tree, Mapping):
        return ""
    whole = depth is not None and len(path) == depth
    lines = []
    for name, value in tree.items():
        if isinstance(value, Mapping) and not whole:
            continue
        for key_path, leaf in jax.tree_util.tree_flatten_with_path(
            value, is_leaf=lambda x: isinstance(x, AxisMetadata)
        )[0]:
            inner = "".join(f"/{getattr(k, 'key', k)}" for k in key_path)
            names = getattr(leaf, "names", None)
            axes = "" if names is None else f" {names}"
            lines.append(f"{name}{inner}: {_text(leaf)}{axes}")
    if lines:
        local = (
            tree
            if whole
            else {k: v for k, v in tree.items() if not isinstance(v, Mapping)}
        )
        lines.append(_size_text(local))
    return "\n".join(lines)


def _size(tree: Any) -> tuple[int, int]:
    leaves = [x for x in jax.tree.leaves(tree) if hasattr(x, "dtype")]
    return (
        sum(x.size for x in leaves),
        sum(x.size * jnp.dtype(x.dtype).itemsize for x in leaves if _is_plain(x)),
    )


def _is_plain(x: Any) -> bool:
    return not jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended)


def _size_text(tree: Any) -> str:
    count, size = _size(tree)
    return f"{count:,} ({_bytes(size)})"


def _bytes(size: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def _plain(
    title: str,
    header: list[str],
    table: list[list[str]],
    totals: list[str],
    footer: str,
) -> str:
    rows = [header, *table, totals]
    widths = [
        max(len(line) for row in rows for line in (row[i].split("\n") or [""]))
        for i in range(len(header))
    ]
    rule = "+" + "+".join("-" * (w + 2) for w in widths) + "+"

    def drawn(row: list[str]) -> list[str]:
        cells = [cell.split("\n") for cell in row]
        height = max(map(len, cells))
        return [
            "|"
            + "|".join(
                f" {(cell[i] if i < len(cell) else ''):<{w}} "
                for cell, w in zip(cells, widths, strict=True)
            )
            + "|"
            for i in range(height)
        ]

    lines = ["", title.center(len(rule)).rstrip(), rule, *drawn(header), rule]
    for row in [*table, totals]:
        lines += [*drawn(row), rule]
    return "\n".join([*lines, "", footer, ""])


def _with_rich(
    title: str,
    header: list[str],
    rows: list[list[str]],
    footer: str,
    console_kwargs: Mapping[str, Any],
) -> str | None:
    try:
        import rich.console
        import rich.table
        import rich.text
    except ImportError:
        return None
    table = rich.table.Table(title=title, caption=footer, show_lines=True)
    for name in header:
        table.add_column(name)
    for row in rows:
        table.add_row(*map(rich.text.Text, row))
    options = {"force_terminal": True, "width": 240, **console_kwargs}
    console = rich.console.Console(**options)
    with console.capture() as capture:
        console.print(table)
    return f"\n{capture.get()}\n"
