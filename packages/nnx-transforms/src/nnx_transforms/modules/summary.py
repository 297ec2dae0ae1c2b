"""A table of the modules of an object: what they return, and what they hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import methodcaller
from typing import Any

import jax

from graphcore import Intermediate, variables
from graphcore.authors import path_text, raw_value_of
from nnx_transforms.modules.capturing import capture
from nnx_transforms.modules.views import iter_modules
from nnx_transforms.randomness.rngs import RngState
from nnx_transforms.sharding.placement_table import amount, columns, shape_text
from nnx_transforms.states.values import arrays_of
from nnx_transforms.transforms.eval_shape import eval_shape

__all__ = ["tabulate"]


class _Output(Intermediate[Any]):
    __slots__ = ()


def tabulate(
    obj: Any,
    *args: Any,
    depth: int | None = None,
    method: str = "__call__",
    table_kwargs: Mapping[str, Any] | None = None,
    column_kwargs: Mapping[str, Any] | None = None,
    console_kwargs: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> str:
    """Makes a table of the modules of an object.

    The columns are path, type, what the module's methods return, and for each type of
    variables those of the module itself, with number and bytes of all below it.

    Args:
        obj: A module.
        *args: Arguments of the method, which is traced with them and computes nothing.
            Without any, nothing is called.
        depth: How far down modules are listed; all of them if left out.
        method: The name of the method.
        table_kwargs: Taken, as Flax's function has it, without effect.
        column_kwargs: Likewise.
        console_kwargs: Likewise.
        **kwargs: Further arguments of the method.

    Returns:
        The table.

    Example:
        >>> import jax.numpy as jnp, nnx_transforms as nnx
        >>> net = nnx.Sequential(nnx.Linear(2, 3, rngs=nnx.Rngs(0)), nnx.relu)
        >>> print(nnx.tabulate(net, jnp.ones((4, 2))))
        path      type        outputs       Param
        --------  ----------  ------------  --------------------
        <root>    Sequential  float32[4,3]  9 (36 B)
        --------  ----------  ------------  --------------------
        layers    List                      9 (36 B)
        --------  ----------  ------------  --------------------
        layers/0  Linear      float32[4,3]  bias: float32[3]
                                            kernel: float32[2,3]
                                            9 (36 B)
    """
    called = methodcaller(method, *args, **kwargs)
    outputs = _outputs(obj, called) if args or kwargs else {}
    held = [
        (path, _kind(variable), arrays_of(raw_value_of(variable)))
        for path, variable in variables(obj).flat_state()
    ]
    kinds = sorted({kind for _, kind, _ in held}, key=lambda kind: kind.__name__)
    rows = [["path", "type", "outputs", *(kind.__name__ for kind in kinds)]]
    for path, module in sorted(iter_modules(obj), key=lambda item: path_text(item[0])):
        if depth is None or len(path) <= depth:
            cells = [_cell(held, kind, path) for kind in kinds]
            shown = "\n".join(outputs.get(path, ()))
            rows.append([path_text(path), type(module).__name__, shown, *cells])
    return "\n".join(columns(rows, rule="-"))


def _outputs(obj: Any, called: Callable[[Any], Any]) -> dict[Any, list[str]]:
    """What the methods of each module return where it is called, by its path."""
    found: dict[Any, list[str]] = {}

    def run(module: Any) -> None:
        _, recorded = capture(called, _Output, method_outputs=_Output)(module)
        for (*path, _name), calls in recorded.flat_state():
            found.setdefault(tuple(path), []).extend(map(_text, calls.value))

    eval_shape(run, obj)
    return found


def _text(tree: Any) -> str:
    return ", ".join(
        f"{x.dtype}{shape_text(x.shape)}" if hasattr(x, "dtype") else repr(x)
        for x in jax.tree.leaves(tree)
    )


def _kind(variable: Any) -> type[Any]:
    return RngState if isinstance(variable, RngState) else type(variable)


def _cell(held: list[tuple[Any, type[Any], Any]], kind: type[Any], path: Any) -> str:
    """The variables of a type at a path, and the size of those at and below it."""
    below = [(p, x) for p, k, x in held if k is kind and p[: len(path)] == path]
    lines = [f"{p[-1]}: {_text(x)}" for p, x in below if len(p) == len(path) + 1]
    arrays = [x for x in jax.tree.leaves([x for _, x in below]) if hasattr(x, "nbytes")]
    if arrays:
        count, size = sum(x.size for x in arrays), sum(x.nbytes for x in arrays)
        lines.append(f"{count:,} ({amount(size)})")
    return "\n".join(lines)
