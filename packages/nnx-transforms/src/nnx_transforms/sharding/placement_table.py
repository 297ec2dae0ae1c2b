"""What lies where: the devices, shards and bytes of the variables of an object."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
from jax.sharding import AbstractMesh, NamedSharding, Sharding

from graphcore import is_variable, variables
from graphcore.authors import key_path, path_text, raw_value_of
from nnx_transforms.sharding.shardings import axis_names, entries

__all__ = ["Placed", "Placement", "placement"]

_LEFT, _RIGHT = ("path", "type", "value", "shard", "devices"), ("bytes", "on each")


class Placed(NamedTuple):
    """Where one array lies.

    Args:
        path: The path of its variable; of an array in a pytree, with its path in there.
        type: The type of the variable; `jax.Array` if there is none around the array.
        dtype: The dtype of the array.
        shape: Its shape.
        sharding: Its sharding; None for an abstract value without one.
        shard_shape: The shape of one shard.
        nbytes: The size of the whole array.
        shard_nbytes: The size of one shard, which each of the devices holds.

    Example:
        >>> import nnx_transforms as nnx
        >>> nnx.placement(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))[1].nbytes
        24
    """

    path: str
    type: type[Any]
    dtype: Any
    shape: tuple[int, ...]
    sharding: Sharding | None
    shard_shape: tuple[int, ...]
    nbytes: int
    shard_nbytes: int


class Placement(tuple[Placed, ...]):
    """What lies where, as `placement` finds it; printed, a table.

    `rich.print` highlights what is divided.

    Example:
        >>> import nnx_transforms as nnx
        >>> len(nnx.placement(nnx.Linear(2, 3, rngs=nnx.Rngs(0))))
        2
    """

    __slots__ = ()

    @property
    def bytes_on(self) -> dict[jax.Device, int]:
        """How many bytes each device holds, of what lies on known ones.

        Over an abstract mesh, as `eval_shape` knows one, no devices are known.

        Example:
            >>> import nnx_transforms as nnx
            >>> layer = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
            >>> list(nnx.placement(layer).bytes_on.values())
            [36]
        """
        held: dict[jax.Device, int] = {}
        for row in self:
            for device in _devices(row.sharding):
                held[device] = held.get(device, 0) + row.shard_nbytes
        return dict(sorted(held.items(), key=lambda item: item[0].id))

    def __repr__(self) -> str:
        rows = [(*_LEFT, *_RIGHT), *map(_cells, self)]
        return "\n".join([*columns(rows, right=len(_RIGHT)), *self._totals()])

    def __rich__(self) -> Any:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False)
        for name in _LEFT:
            table.add_column(name, overflow="fold")
        for name in _RIGHT:
            table.add_column(name, justify="right", overflow="fold")
        for row in self:
            # As Text, because a shape in brackets would be taken for markup.
            style = "bold cyan" if row.shard_shape != row.shape else ""
            table.add_row(*map(Text, _cells(row)), style=style)
        return Group(table, *map(Text, self._totals()))

    def _totals(self) -> Iterator[str]:
        yield f"{amount(sum(row.nbytes for row in self))} in all"
        held = self.bytes_on.items()
        for nbytes, group in itertools.groupby(held, key=lambda item: item[1]):
            devices = [f"{device.platform}:{device.id}" for device, _ in group]
            last = f" to {devices[-1]}, each" if len(devices) > 1 else ""
            yield f"{amount(nbytes)} on {devices[0]}{last}"


def placement(node: Any, /) -> Placement:
    """Lists where the variables of an object lie: shards, devices and bytes by path.

    Args:
        node: A graph node, or a pytree with graph nodes in it, whose other arrays are
            listed as well. It may lie on devices of other processes too, or be
            abstract.

    Returns:
        A tuple with an entry for each array, which prints as a table.

    Example:
        >>> import nnx_transforms as nnx
        >>> nnx.placement(nnx.Linear(256, 64, rngs=nnx.Rngs(0)))
        path    type   value            shard  devices     bytes   on each
        bias    Param  float32[64]      whole  1           256 B     256 B
        kernel  Param  float32[256,64]  whole  1        64.0 KiB  64.0 KiB
        64.2 KiB in all
        64.2 KiB on ...
    """
    return Placement(
        _placed(
            (*path, *key_path(inner)), type(x) if is_variable(x) else jax.Array, value
        )
        for (_, *path), x in variables([node]).flat_state()
        for inner, value in jax.tree_util.tree_leaves_with_path(raw_value_of(x))
        if hasattr(value, "dtype")
    )


def _placed(path: tuple[Any, ...], kind: type[Any], value: Any) -> Placed:
    sharding = getattr(value, "sharding", None)
    shape = tuple(value.shape)
    shard_shape = shape if sharding is None else tuple(sharding.shard_shape(shape))
    whole, part = (math.prod(s) * value.dtype.itemsize for s in (shape, shard_shape))
    where = path_text(path)
    return Placed(where, kind, value.dtype, shape, sharding, shard_shape, whole, part)


def _devices(sharding: Sharding | None) -> Iterable[jax.Device]:
    # An abstract mesh says how many there are, and not which.
    on_any = isinstance(getattr(sharding, "mesh", None), AbstractMesh)
    return () if sharding is None or on_any else sharding.device_set


def _cells(row: Placed) -> tuple[str, ...]:
    return (
        row.path,
        row.type.__name__,
        f"{row.dtype}{shape_text(row.shape, row.sharding)}",
        "whole" if row.shard_shape == row.shape else shape_text(row.shard_shape),
        "none" if row.sharding is None else str(row.sharding.num_devices),
        amount(row.nbytes),
        amount(row.shard_nbytes),
    )


def columns(
    rows: Sequence[Sequence[str]], right: int = 0, rule: str = ""
) -> Iterator[str]:
    """Writes rows of cells, each of one or more lines, one below the other.

    Args:
        rows: The texts of each row.
        right: How many of the last columns end where they are widest.
        rule: A character to draw lines between rows with.

    Yields:
        Lines.

    Example:
        >>> print(*columns([['a', '10'], ['bcd', '7']], right=1), sep='|')
        a    10|bcd   7
    """
    cells = [[cell.split("\n") for cell in row] for row in rows]
    by_column = zip(*cells, strict=True)
    widths = [max(len(x) for cell in column for x in cell) for column in by_column]
    adjust = [str.ljust] * (len(widths) - right) + [str.rjust] * right
    for number, row in enumerate(cells):
        if rule and number:
            yield "  ".join(rule * width for width in widths)
        for line in itertools.zip_longest(*row, fillvalue=""):
            padded = (f(x, n) for f, x, n in zip(adjust, line, widths, strict=True))
            yield "  ".join(padded).rstrip()


def shape_text(shape: tuple[int, ...], sharding: Any = None) -> str:
    """A shape as JAX writes it, `[2,8@model]` if the last axis is divided."""
    spec = sharding.spec if isinstance(sharding, NamedSharding) else ()
    names = (",".join(map(str, axis_names(entry))) for entry in entries(spec))
    pairs = itertools.zip_longest(shape, names)
    return "[" + ",".join(f"{n}@{at}" if at else str(n) for n, at in pairs) + "]"


def amount(nbytes: float) -> str:
    """Writes a number of bytes in a unit that makes it short.

    Args:
        nbytes: The number.

    Returns:
        The text.

    Example:
        >>> amount(36), amount(3072)
        ('36 B', '3.0 KiB')
    """
    for unit in ("B", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes:.{0 if unit == 'B' else 1}f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} GiB"
