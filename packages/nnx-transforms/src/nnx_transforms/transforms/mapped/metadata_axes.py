"""Axes that a mapping transformation adds to values, in the metadata of variables.

A parameter of one layer is sharded as `('in', 'out')`; stacked over layers it has one
more axis, and its `sharding` metadata needs one more entry. Transformations that map
over a variable call `remove_axis` on its way in and `add_axis` on its way out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from jax.sharding import NamedSharding, PartitionSpec

from graphcore import HashableMapping
from graphcore.authors import path_text, variable_impl
from nnx_transforms.sharding.shardings import entries, sharding_key

__all__ = ["PARTITION_NAME"]

PARTITION_NAME = "partition_name"
"""The key in `transform_metadata` of the name that a mapped axis is sharded by.

Example:
    >>> import jax.numpy as jnp, nnx_transforms as nnx
    >>> def make(x):
    ...     return nnx.Param(x, sharding=('model',))
    >>> named = {PARTITION_NAME: 'layers'}
    >>> nnx.vmap(make, transform_metadata=named)(jnp.ones((2, 3))).sharding
    ('layers', 'model')
"""

_PADDING = "sharding_padding"
"""Metadata that records, as `(index, name, count)`, that so many entries were filled in
before a new one at the index; or, with a count of `_ABSENT`, that there was no entry to
remove because the sharding is shorter. The inverse then leaves what was there. Beside
other metadata that gets entries, there is one of its own."""
_ABSENT = -1


def add_axis(
    variable: Any,
    index: int,
    name: Any,
    path: tuple[Any, ...] = (),
    key: str = PARTITION_NAME,
) -> None:
    """Enters a mapped axis in the metadata of a variable.

    The `sharding` metadata, if it is a `PartitionSpec`, a sequence of axis names, or a
    `NamedSharding`, gets one more entry; then the `on_add_axis` hooks are called.
    Nothing is done where the metadata of a registered type is fixed.

    Args:
        variable: A variable.
        index: Where the axis stands in the value that has it. A negative one counts
            from the end of the sharding, which then must name all axes.
        name: What the axis is called; None for an axis that is not sharded.
        path: Where the variable stands, for messages.
        key: Which metadata gets the entry, if not the sharding; without hooks.

    Raises:
        ValueError: If a negative index reaches beyond the sharding.

    Example:
        >>> import graphcore as gc
        >>> kernel = gc.Param(1.0, sharding=('in', 'out'))
        >>> add_axis(kernel, 0, 'layers'); kernel.sharding
        ('layers', 'in', 'out')
        >>> remove_axis(kernel, 0, 'layers'); kernel.sharding
        ('in', 'out')
    """
    if _takes_axes(variable):
        _edit(variable, _with_entry, index, name, path, key)
        if key == PARTITION_NAME:
            variable.add_axis(index, name)


def remove_axis(
    variable: Any,
    index: int,
    name: Any,
    path: tuple[Any, ...] = (),
    key: str = PARTITION_NAME,
) -> None:
    """Undoes `add_axis` with the same arguments.

    The `on_remove_axis` hooks are called first.

    Args:
        variable: A variable.
        index: Where the axis stands in the value that has it; as for `add_axis`.
        name: What the axis is called.
        path: Where the variable stands, for messages.
        key: As for `add_axis`.

    Raises:
        ValueError: If the sharding has another entry at the index.

    Example:
        >>> import graphcore as gc
        >>> kernel = gc.Param(1.0, sharding=('layers', 'in'))
        >>> remove_axis(kernel, 0, 'layers'); kernel.sharding
        ('in',)
    """
    if _takes_axes(variable):
        if key == PARTITION_NAME:
            variable.remove_axis(index, name)
        _edit(variable, _without_entry, index, name, path, key)


def _takes_axes(variable: Any) -> bool:
    can_change = variable_impl(type(variable)).set_metadata is not None
    return can_change and hasattr(variable, "add_axis")


Entries: TypeAlias = tuple[Any, ...]
Padding: TypeAlias = tuple[tuple[int, Any, int], ...]


def _edit(
    variable: Any,
    edit: Callable[..., tuple[Entries, Padding]],
    index: int,
    name: Any,
    path: tuple[Any, ...],
    key: str,
) -> None:
    impl = variable_impl(type(variable))
    metadata = dict(impl.get_metadata(variable))
    note = f"{key}_padding"
    if key == PARTITION_NAME:
        key, note = sharding_key(metadata), _PADDING
    sharding: Any = metadata.get(key)
    spec = sharding.spec if isinstance(sharding, NamedSharding) else sharding
    if not isinstance(spec, PartitionSpec | tuple | list):
        return
    at = index if index >= 0 else len(spec) + index + (edit is _with_entry)
    if at < 0:
        raise ValueError(
            f"The mapped axis {name!r} stands at {index}, which the sharding {spec} of "
            f"the variable at {path_text(path)!r} does not reach: name all axes of the "
            "value in the sharding, or count the axis from the front."
        )
    before = metadata.pop(note, ())
    places, padding = edit(entries(spec), before, at, name, path)
    if isinstance(spec, PartitionSpec):
        spec = spec.update(partitions=places)
    else:
        spec = type(spec)(places)
    named = isinstance(sharding, NamedSharding)
    metadata[key] = sharding.update(spec=spec) if named else spec
    if padding:
        metadata[note] = padding
    assert impl.set_metadata is not None  # or its metadata would be fixed
    impl.set_metadata(variable, HashableMapping(metadata))


def _with_entry(
    entries: Entries, padding: Padding, at: int, name: Any, path: tuple[Any, ...]
) -> tuple[Entries, Padding]:
    if padding and padding[-1] == (at, name, _ABSENT):
        return entries, padding[:-1]
    fill = max(at - len(entries), 0)
    if fill:
        padding = (*padding, (at, name, fill))
    filled = entries + (None,) * fill
    return (*filled[:at], name, *filled[at:]), padding


def _without_entry(
    entries: Entries, padding: Padding, at: int, name: Any, path: tuple[Any, ...]
) -> tuple[Entries, Padding]:
    found = entries[at] if at < len(entries) else None
    # An empty sharding says nothing about any axis.
    if found != name and entries:
        raise ValueError(
            f"The sharding {entries} of the variable at {path_text(path)!r} has "
            f"{found!r} at axis {at}, expected the mapped axis {name!r}. Shard the "
            "variable with it there, or map it over the axis that has this name."
        )
    if at >= len(entries):
        return entries, (*padding, (at, name, _ABSENT))
    rest = entries[:at] + entries[at + 1 :]
    if padding and padding[-1][:2] == (at, name):
        return rest[: len(rest) - padding[-1][2]], padding[:-1]
    return rest, padding
