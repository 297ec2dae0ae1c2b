"""A table of the modules of an object: what they return, and what they hold."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax

from graphcore import (
    Variable,
    api_boundary,
    counterparts_of,
    is_variable,
    variables,
)
from graphcore.authors import is_object, path_text, raw_value_of
from nnx_transforms.modules.capturing import methods_wrapped
from nnx_transforms.modules.module import is_module_class
from nnx_transforms.modules.views import iter_modules
from nnx_transforms.randomness.rngs import RngState
from nnx_transforms.sharding.placement_table import amount, columns, shape_text
from nnx_transforms.states.values import arrays_of
from nnx_transforms.transforms.derivatives.zeros import is_inexact
from nnx_transforms.transforms.eval_shape import eval_shape
from nnx_transforms.transforms.jit import jit
from nnx_transforms.transforms.vjp import vjp

__all__ = ["tabulate"]


@api_boundary
def tabulate(
    obj: Any,
    *args: Any,
    depth: int | None = None,
    method: str = "__call__",
    table_kwargs: Mapping[str, Any] | None = None,
    column_kwargs: Mapping[str, Any] | None = None,
    console_kwargs: Mapping[str, Any] | None = None,
    compute_flops: bool = False,
    compute_vjp_flops: bool = False,
    **kwargs: Any,
) -> str:
    """Makes a table of the modules of an object.

    The columns are path, type, what the module's methods return, and for each type of
    variables those of the module itself, with number and bytes of all below it.

    Args:
        obj: A module.
        *args: Arguments of the method, which is traced with them and computes nothing;
            arrays may be `jax.ShapeDtypeStruct`s. Without any, nothing is called.
        depth: How far down modules are listed; all of them if left out.
        method: The name of the method.
        table_kwargs: Taken, as Flax's function has it, without effect.
        column_kwargs: Likewise.
        console_kwargs: Likewise.
        compute_flops: Whether to add the operations of each call, as XLA counts them
            for a CPU; "unknown" where they can't be counted.
        compute_vjp_flops: Whether to add those of each call with its gradient.
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
    costs = {"flops": compute_flops, "vjp_flops": compute_vjp_flops}
    shown = ["outputs", *(name for name, is_shown in costs.items() if is_shown)]
    calls = _calls(obj, method, args, kwargs, shown) if args or kwargs else {}
    held = [
        (path, _kind(variable), arrays_of(raw_value_of(variable)))
        for path, variable in variables(obj).flat_state()
    ]
    # JAX 0.10 has the module in the name of `jax.Array`.
    names = {kind: kind.__name__.rpartition(".")[2] for _, kind, _ in held}
    kinds = sorted(names, key=names.__getitem__)
    rows = [["path", "type", *shown, *map(names.__getitem__, kinds)]]
    for path, module in sorted(iter_modules(obj), key=lambda item: path_text(item[0])):
        if depth is None or len(path) <= depth:
            of_calls = zip(*calls.get(path, [[""] * len(shown)]), strict=True)
            cells = [*map("\n".join, of_calls)]
            cells += [_cell(held, kind, path) for kind in kinds]
            rows.append([path_text(path), type(module).__name__, *cells])
    return "\n".join(columns(rows, rule="-"))


def _calls(
    obj: Any, called: str, args: Any, kwargs: Any, shown: list[str]
) -> dict[Any, list[list[str]]]:
    """What is shown of each call of a method of the modules, by their paths."""
    found: dict[Any, list[list[str]]] = {}
    given, filled = _traced(args, kwargs, jax.ShapeDtypeStruct)

    def run(root: Any, given: Any) -> None:
        modules = [*iter_modules(root)]
        paths = {id(module): path for path, module in modules}
        is_counting = False  # then calls are made of which no one is to know
        running: list[tuple[int, str]] = []  # a method may call that of a base

        def recording(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(method)
            def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
                nonlocal is_counting
                call = id(self), name
                if is_counting or id(self) not in paths or call in running:
                    return method(self, *args, **kwargs)
                is_counting = True
                # Before: the call may change the module.
                counted = [
                    _flops(method, (self, *args), kwargs, name == "vjp_flops")
                    for name in shown[1:]
                ]
                is_counting = False
                cells = ["", *counted]
                found.setdefault(paths[id(self)], []).append(cells)
                running.append(call)
                try:
                    result = method(self, *args, **kwargs)
                finally:
                    running.remove(call)
                cells[0] = _text(result)
                return result

            return wrapper

        every = {base for _, module in modules for base in type(module).__mro__}
        # Those that are derived from a class of modules, of whatever library.
        kinds = {x for x in every if any(map(is_module_class, x.__bases__))}
        with methods_wrapped(kinds, recording):
            args, kwargs = filled(given)
            getattr(root, called)(*args, **kwargs)

    eval_shape(run, obj, given)
    return found


def _traced(args: Any, kwargs: Any, kind: type[Any]) -> tuple[dict[int, Any], Any]:
    """The objects and the leaves of a kind, by place; and what puts others there."""
    leaves, structure = jax.tree.flatten((args, kwargs), is_leaf=is_object)
    given = {i: x for i, x in enumerate(leaves) if is_object(x) or isinstance(x, kind)}
    return given, lambda given: jax.tree.unflatten(
        structure, [given.get(i, x) for i, x in enumerate(leaves)]
    )


def _flops(method: Callable[..., Any], args: Any, kwargs: Any, gradient: bool) -> str:
    """The operations that XLA counts in a call, or in its backward pass too."""
    given, filled = _traced(args, kwargs, jax.Array)

    def call(given: Any) -> Any:
        args, kwargs = filled(given)
        out = jax.tree.leaves(method(*args, **kwargs))
        # What else it returns, such as a string, is no output of a compiled function.
        arrays = [x for x in out if isinstance(x, jax.Array)]
        return [*filter(is_inexact, arrays)] if gradient else arrays

    def pulled(given: Any) -> Any:
        out, pull_back = vjp(call, given)
        return out, pull_back(out)

    try:
        with jax.default_device(_cpu()):
            costs = jit(pulled if gradient else call).lower(given).cost_analysis()
    except Exception:
        # It has no gradient, or uses an object that is not among its arguments. What is
        # wrong with the call itself, that raises next.
        costs = None
    return "unknown" if costs is None else str(int(costs.get("flops", 0)))


def _cpu() -> jax.Device | None:
    # XLA counts the operations of what is lowered for the CPU alone, not for GPUs and
    # TPUs.
    with contextlib.suppress(RuntimeError):  # JAX may be told to use no CPU
        return jax.local_devices(backend="cpu")[0]
    return None  # the default device


def _text(tree: Any) -> str:
    return ", ".join(
        f"{x.dtype}{shape_text(x.shape)}" if hasattr(x, "dtype") else repr(x)
        for x in jax.tree.leaves(tree)
    )


def _kind(variable: Any) -> type[Any]:
    """The type whose column has a variable: ours, where several mean the same."""
    if not is_variable(variable):
        return jax.Array
    every = counterparts_of(type(variable))
    kind = next((x for x in every if issubclass(x, Variable)), type(variable))
    return RngState if issubclass(kind, RngState) else kind


def _cell(held: list[tuple[Any, type[Any], Any]], kind: type[Any], path: Any) -> str:
    """The variables of a type at a path, and the size of those at and below it."""
    below = [(p, x) for p, k, x in held if k is kind and p[: len(path)] == path]
    lines = [f"{p[-1]}: {_text(x)}" for p, x in below if len(p) == len(path) + 1]
    arrays = [x for x in jax.tree.leaves([x for _, x in below]) if hasattr(x, "dtype")]
    if arrays:
        count = sum(x.size for x in arrays)
        size = sum(x.size * x.dtype.itemsize for x in arrays)  # as `nbytes`
        lines.append(f"{count:,} ({amount(size)})")
    return "\n".join(lines)
