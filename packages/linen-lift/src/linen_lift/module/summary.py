"""What a module looks like: its text, and its submodules as a table."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import textwrap
from collections.abc import Callable, Mapping
from itertools import zip_longest
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp

from graphcore import api_boundary

from ..filters import CollectionFilter
from ..leaves import as_function_of, is_array
from ..metadata import AxisMetadata, unbox
from ..rng import checked_rngs
from ..tree import found_at
from .calling import wrap_method
from .context import InterceptorContext, intercept_methods
from .module_base import ModuleBase
from .preparation import INIT_MUTABLE, check_instance


class Summaries(ModuleBase):
    """The part of `Module` that shows which modules it has, and what is in them."""

    @api_boundary
    def tabulate(
        self,
        rngs: Any,
        *args: Any,
        depth: int | None = None,
        show_repeated: bool = False,
        mutable: CollectionFilter = INIT_MUTABLE,
        method: Any = None,
        console_kwargs: Mapping[str, Any] | None = None,
        table_kwargs: Mapping[str, Any] = MappingProxyType({}),
        column_kwargs: Mapping[str, Any] = MappingProxyType({}),
        compute_flops: bool = False,
        compute_vjp_flops: bool = False,
        **kwargs: Any,
    ) -> str:
        """A table of the submodules, what they take and return, and their variables.

        Nothing is computed; arguments may be `jax.ShapeDtypeStruct`.

        Args:
            rngs: as for `init`.
            *args: arguments of the method.
            depth: how deep to look; None for all the way.
            show_repeated: whether further calls of a submodule have rows.
            mutable: as for `init`.
            method: as for `apply`.
            console_kwargs: options for `rich.console.Console`. If they are given, rich
                draws the table.
            table_kwargs: options for `rich.table.Table`.
            column_kwargs: options for its columns.
            compute_flops: whether to add the operations of each call, as XLA counts
                them for a CPU; "unknown" where JAX has none.
            compute_vjp_flops: whether to add those of each call with its gradient.
            **kwargs: keyword arguments of the method.

        Returns:
            The table.

        Example:
            >>> import linen_lift as nn, jax, jax.numpy as jnp
            >>> table = nn.Dense(2).tabulate(jax.random.key(0), jnp.ones((1, 3)))
            >>> 'Total Parameters: 8' in table
            True
        """
        check_instance(self, "tabulate")
        rows, variables = _initialize(self, rngs, args, kwargs, method, mutable)
        merged = _merged(rows, show_repeated)
        modules = {row.path[:i] for row in merged for i in range(len(row.path) + 1)}
        streams, trees = checked_rngs(rngs), variables.values()
        costs = ["flops"] * compute_flops + ["vjp_flops"] * compute_vjp_flops
        table = [["path", "module", "inputs", "outputs", *costs, *variables]]
        for row in merged:
            if depth is None or len(row.path) <= depth:
                seen = [_text((row.args, row.kwargs)), _text(row.out)]
                seen += [row.flops(streams, cost == "vjp_flops") for cost in costs]
                own = [_own(tree, row.path, depth, modules) for tree in trees]
                table.append(["/".join(row.path), row.title, *seen, *own])
        blanks = [""] * (3 + len(costs))
        table.append([*blanks, "Total", *map(_size_text, trees)])
        title = f"{type(self).__name__} Summary"
        footer = f"Total Parameters: {_size_text(variables)}"
        if console_kwargs is not None:
            with contextlib.suppress(ImportError):  # rich may not be there
                options = console_kwargs, table_kwargs, column_kwargs
                return _with_rich(title, table, footer, *options)
        return _plain(title, table, footer)

    def module_paths(
        self,
        rngs: Any,
        *args: Any,
        show_repeated: bool = False,
        mutable: CollectionFilter = INIT_MUTABLE,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """The modules that `init` calls. Nothing is computed.

        Args:
            rngs: as for `init`.
            *args: arguments of `__call__`.
            show_repeated: as for `tabulate`.
            mutable: as for `init`.
            **kwargs: keyword arguments of `__call__`.

        Returns:
            Unbound copies of the modules by path; the module itself is at `""`.

        Example:
            >>> import linen_lift as nn, jax, jax.numpy as jnp
            >>> found = nn.Dense(2).module_paths(jax.random.key(0), jnp.ones(3))
            >>> found[''].features
            2
        """
        check_instance(self, "module_paths")
        rows, _ = _initialize(self, rngs, args, kwargs, None, mutable)
        found = _merged(rows, show_repeated)
        return {"/".join(row.path): row.module for row in found}

    def __repr__(self) -> str:
        # One field or submodule a line; `setup` is not run for it.
        attributes, cls = self.__dict__, type(self)
        lines = [
            f"{field.name} = {_shown(attributes[field.name])}"
            for field in dataclasses.fields(cls)
            if field.repr and field.name != "name" and field.name in attributes
        ]
        if lines:
            lines.insert(0, "# attributes")
        if self._module__state is not None and self._module__state.children:
            lines.append("# children")
            lines += [
                f"{name} = {x!r}" for name, x in self._module__state.children.items()
            ]
        if not lines:
            return f"{cls.__name__}()"
        body = textwrap.indent("\n".join(lines), " " * 4)
        return f"{cls.__name__}(\n{body}\n)"


def _shown(value: Any) -> str:
    # The address of a function says nothing, and is another one in each run.
    if callable(value) and not isinstance(value, ModuleBase):
        return getattr(value, "__name__", None) or repr(value)
    return repr(value)


@dataclasses.dataclass
class _Row:
    """One call of a method."""

    path: tuple[str, ...]
    module: Any
    method: Callable[..., Any]
    args: Any
    kwargs: Any
    out: Any = None

    @property
    def title(self) -> str:
        """The class, and the method unless it is `__call__`."""
        name = type(self.module).__name__
        method = self.method.__name__
        return name if method == "__call__" else f"{name} ({method})"

    def flops(self, rngs: Any, gradient: bool) -> str:
        """The operations that XLA counts in the call, or in its backward pass too."""
        given = {"method": wrap_method(self.method), "mutable": True, **self.kwargs}
        # On its own: inside of another module's transform it had other variables.
        variables = _shapes_of(self.module.init, rngs, *self.args, **given)
        # Without the devices of the keys, which would decide for what is lowered.
        given["rngs"] = jax.eval_shape(lambda: rngs)
        apply = self.module.apply
        call, inputs = as_function_of(is_array, apply, variables, *self.args, **given)

        def pulled(*inputs: Any) -> Any:
            out, pull_back = jax.vjp(lambda *x: _differentiable(call(*x)), *inputs)
            return _differentiable(pull_back(out)) if out else out

        with jax.default_device(_cpu()):
            fn = jax.jit(pulled if gradient else call)
            costs = fn.lower(*inputs).cost_analysis()
        return "unknown" if costs is None else str(int(costs.get("flops", 0)))


def _cpu() -> jax.Device | None:
    # XLA counts the operations of what is lowered for the CPU alone, not for GPUs and
    # TPUs.
    with contextlib.suppress(RuntimeError):  # JAX may be told to use no CPU
        return jax.local_devices(backend="cpu")[0]
    return None  # the default device


def _differentiable(tree: Any) -> list[Any]:
    leaves = filter(is_array, jax.tree.leaves(tree))
    return [x for x in leaves if jnp.issubdtype(x.dtype, jnp.inexact)]


def _initialize(
    module: Any, rngs: Any, args: Any, kwargs: Any, method: Any, mutable: Any
) -> tuple[list[_Row], Any]:
    """The calls of a module and its submodules in `init`, and shapes of variables."""
    rows: list[_Row] = []

    def record(
        next_fun: Any, args: Any, kwargs: Any, context: InterceptorContext
    ) -> Any:
        scope = context.module.scope
        if context.method_name == "setup" or scope is None:
            return next_fun(*args, **kwargs)
        # Modules in its fields may live elsewhere, and have their clones here.
        module = context.module.clone(_deep_clone=True)
        method: Any = context.orig_method
        row = _Row(scope.path, module, method.func, *_shapes((args, kwargs)))
        rows.append(row)  # before the submodules it calls
        out = next_fun(*args, **kwargs)
        row.out = _shapes(out)
        return out

    init = functools.partial(module.init, method=method, mutable=mutable)
    with intercept_methods(record):
        variables = _shapes_of(init, rngs, *args, **kwargs)
    return rows, variables


def _shapes_of(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """What a function returns, as shapes; leaves of arguments may be no arrays."""
    call, arrays = as_function_of(is_array, fn, *args, **kwargs)
    return jax.eval_shape(call, *arrays)


def _shapes(tree: Any) -> Any:
    def shape(x: Any) -> Any:
        return jax.ShapeDtypeStruct(x.shape, x.dtype) if is_array(x) else x

    return jax.tree.map(shape, tree)


def _merged(rows: list[_Row], show_repeated: bool) -> list[_Row]:
    # A body can be traced more than once, as in a loop; that is no further call.
    found: dict[Any, _Row] = {}
    for row in rows:
        shown = (_text((row.args, row.kwargs)), _text(row.out))
        key = (row.path, *shown) if show_repeated else row.path
        found.setdefault(key, row)
    return list(found.values())


def _text(tree: Any) -> str:
    parts = []
    for path, x in jax.tree_util.tree_flatten_with_path(tree)[0]:
        # Names of arguments and keys of dicts, but no positions.
        names = [f"{key.key}: " for key in path if hasattr(key, "key")]
        shown = repr(x)
        if is_array(x):
            shown = f"{x.dtype.name}[{','.join(map(str, x.shape))}]"
        parts.append("".join(names[-1:]) + shown)
    return "\n".join(parts)


def _own(tree: Any, path: tuple[str, ...], depth: int | None, modules: Any) -> str:
    """The variables at a path and in no module below it; all if rows end there."""
    tree = found_at(tree, path)
    if not isinstance(tree, Mapping):
        return ""
    if depth is None or len(path) < depth:
        tree = {k: v for k, v in tree.items() if (*path, k) not in modules}
    lines = []
    for name, value in tree.items():
        leaves, _ = jax.tree_util.tree_flatten_with_path(
            value, is_leaf=lambda x: isinstance(x, AxisMetadata)
        )
        if not leaves:
            lines.append(f"{name}: {value!r}")
        for key_path, leaf in leaves:
            inner = "".join(f"/{getattr(k, 'key', k)}" for k in key_path)
            names = getattr(leaf, "names", None)
            axes = "" if names is None else f" P{names}".replace("'", "")
            lines.append(f"{name}{inner}: {_text(unbox(leaf))}{axes}")
    if lines:
        lines += ["", _size_text(tree)]
    return "\n".join(lines)


def _size_text(tree: Any) -> str:
    leaves = [x for x in jax.tree.leaves(tree) if hasattr(x, "dtype")]
    size = sum(x.size * x.dtype.itemsize for x in leaves)
    return f"{sum(x.size for x in leaves):,} ({_bytes(size)})"


def _bytes(size: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def _plain(title: str, table: list[list[str]], footer: str) -> str:
    cells = [[cell.split("\n") for cell in row] for row in table]
    columns = zip(*cells, strict=True)
    widths = [max(len(x) for cell in column for x in cell) for column in columns]
    rule = "+" + "+".join("-" * (w + 2) for w in widths) + "+"
    lines = ["", title.center(len(rule)).rstrip(), rule]
    for row in cells:
        padded = (map(str.ljust, x, widths) for x in zip_longest(*row, fillvalue=""))
        lines += [*(f"| {' | '.join(line)} |" for line in padded), rule]
    return "\n".join([*lines, "", footer, ""])


def _with_rich(
    title: str,
    content: list[list[str]],
    footer: str,
    console_kwargs: Mapping[str, Any],
    table_kwargs: Mapping[str, Any],
    column_kwargs: Mapping[str, Any],
) -> str:
    import rich.console
    import rich.table
    import rich.text

    header, *rows, totals = content
    shown = {"title": title, "show_lines": True, "show_footer": True, **table_kwargs}
    table = rich.table.Table(**{"caption": f"\n{footer}", **shown})
    for name, total in zip(header, totals, strict=True):
        table.add_column(name, **{"footer": total, **column_kwargs})
    for row in rows:
        table.add_row(*map(rich.text.Text, row))
    options = {"force_terminal": True, "width": 240, **console_kwargs}
    console = rich.console.Console(**options)
    with console.capture() as capture:
        console.print(table)
    return f"\n{capture.get()}\n"
