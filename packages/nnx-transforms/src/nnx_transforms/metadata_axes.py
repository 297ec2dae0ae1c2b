"""Axes that a mapping transformation adds to values, in the metadata of variables.

A parameter of one layer is sharded as `('in', 'out')`; stacked over layers it has one
more axis, and its `sharding` metadata needs one more entry. Transformations that map
over a variable call `remove_axis` on its way in and `add_axis` on its way out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar, cast

from jax.sharding import NamedSharding, PartitionSpec

from graphcore import HashableMapping, Variable, VariableState
from graphcore.authors import path_text, variable_impl
from nnx_transforms.shardings import sharding_key

__all__ = ["PARTITION_NAME"]

V = TypeVar("V")

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
remove because the sharding is shorter. The inverse then leaves what was there."""
_ABSENT = -1


def add_axis(
    variable: V,
    index: int,
    transform_metadata: Mapping[str, Any],
    path: tuple[Any, ...] = (),
) -> V:
    """Enters a mapped axis in the metadata of a variable.

    The `sharding` metadata, if it is a `PartitionSpec`, a sequence of axis names, or a
    `NamedSharding`, gets one more entry; then the `on_add_axis` hooks are called.

    Args:
        variable: A variable, which is changed, or a `VariableState`, which is not.
        index: Where the axis stands in the value that has it. A negative one counts
            from the end of the sharding, which then must name all axes.
        transform_metadata: The name of the axis under `PARTITION_NAME` (None for an
            axis that is not sharded). Without that key nothing is done.
        path: Where the variable stands, for messages.

    Returns:
        The variable itself, or the new state.

    Raises:
        ValueError: If a negative index reaches beyond the sharding.
        TraceContextError: If the variable belongs to another JAX trace.

    Example:
        >>> import graphcore as gc
        >>> kernel = gc.Param(1.0, sharding=('in', 'out'))
        >>> stacked = add_axis(kernel, 0, {PARTITION_NAME: 'layers'})
        >>> kernel.sharding
        ('layers', 'in', 'out')
        >>> remove_axis(kernel, 0, {PARTITION_NAME: 'layers'}).sharding
        ('in', 'out')
    """

    def change(target: Any, name: Any) -> None:
        _edit_sharding(target, _with_entry, index, name, path)
        target.add_axis(index, name)

    return _changed(variable, transform_metadata, change)


def remove_axis(
    variable: V,
    index: int,
    transform_metadata: Mapping[str, Any],
    path: tuple[Any, ...] = (),
) -> V:
    """Undoes `add_axis` with the same arguments.

    The `on_remove_axis` hooks are called first.

    Args:
        variable: A variable, which is changed, or a `VariableState`, which is not.
        index: Where the axis stands in the value that has it; as for `add_axis`.
        transform_metadata: The name of the axis under `PARTITION_NAME`. Without that
            key nothing is done.
        path: Where the variable stands, for messages.

    Returns:
        The variable itself, or the new state.

    Raises:
        ValueError: If the sharding has another entry at the index.
        TraceContextError: If the variable belongs to another JAX trace.

    Example:
        >>> import graphcore as gc
        >>> state = gc.Param.state(1.0, sharding=('layers', 'in'))
        >>> remove_axis(state, 0, {PARTITION_NAME: 'layers'}).sharding
        ('in',)
    """

    def change(target: Any, name: Any) -> None:
        target.remove_axis(index, name)
        _edit_sharding(target, _without_entry, index, name, path)

    return _changed(variable, transform_metadata, change)


def _changed(
    variable: V,
    transform_metadata: Mapping[str, Any],
    change: Callable[[Any, Any], None],
) -> V:
    if PARTITION_NAME not in transform_metadata:
        return variable
    given: Any = variable
    is_state = isinstance(given, VariableState)
    scratch = given.to_variable() if is_state else given
    if not isinstance(scratch, Variable):
        return cast("V", _changed_foreign(variable, transform_metadata, change))
    # On a copy, so that a hook which raises leaves the variable as it was.
    scratch = scratch.copy()
    change(scratch, transform_metadata[PARTITION_NAME])
    if is_state:
        return cast("V", scratch.to_state())
    given.copy_from(scratch)
    return variable


def _changed_foreign(
    variable: Any,
    transform_metadata: Mapping[str, Any],
    change: Callable[[Any, Any], None],
) -> Any:
    """The same for a variable of a registered type, or a state of one."""
    is_state = isinstance(variable, VariableState)
    kind = variable.type if is_state else type(variable)
    impl = variable_impl(kind)
    if impl.set_metadata is None or not hasattr(kind, "add_axis"):
        return variable  # Its metadata is fixed.
    if is_state:
        before = HashableMapping(variable.get_metadata())
        scratch = impl.create(kind, variable.value, before)
    else:
        before = impl.metadata(variable)
        scratch = impl.create(kind, impl.get_value(variable), before)
    change(scratch, transform_metadata[PARTITION_NAME])
    metadata = impl.metadata(scratch)
    if is_state:
        return VariableState(kind, variable.value, **metadata)
    impl.set_metadata(variable, metadata)
    return variable


Entries: TypeAlias = tuple[Any, ...]
Padding: TypeAlias = tuple[tuple[int, Any, int], ...]


def _edit_sharding(
    variable: Any,
    edit: Callable[..., tuple[Entries, Padding]],
    index: int,
    name: Any,
    path: tuple[Any, ...],
) -> None:
    impl = variable_impl(type(variable))
    metadata = dict(impl.get_metadata(variable))
    key = sharding_key(metadata)
    sharding = metadata.get(key)
    if isinstance(sharding, NamedSharding):
        entries = tuple(sharding.spec)
    elif isinstance(sharding, PartitionSpec | tuple | list):
        entries = tuple(sharding)
    else:
        return
    before = metadata.get(_PADDING, ())
    entries, padding = edit(entries, before, index, name, path)
    if isinstance(sharding, NamedSharding):
        metadata[key] = sharding.update(spec=PartitionSpec(*entries))
    elif isinstance(sharding, PartitionSpec):
        metadata[key] = PartitionSpec(*entries)
    else:
        metadata[key] = type(sharding)(entries)
    if padding:
        metadata[_PADDING] = padding
    elif before:
        del metadata[_PADDING]
    assert impl.set_metadata is not None  # or its metadata would be fixed
    impl.set_metadata(variable, HashableMapping(metadata))


def _with_entry(
    entries: Entries, padding: Padding, index: int, name: Any, path: tuple[Any, ...]
) -> tuple[Entries, Padding]:
    at = index if index >= 0 else len(entries) + 1 + index
    if at < 0:
        raise ValueError(_out_of_reach(entries, index, name, path))
    if padding and padding[-1] == (at, name, _ABSENT):
        return entries, padding[:-1]
    fill = max(at - len(entries), 0)
    if fill:
        padding = (*padding, (at, name, fill))
    filled = entries + (None,) * fill
    return (*filled[:at], name, *filled[at:]), padding


def _without_entry(
    entries: Entries, padding: Padding, index: int, name: Any, path: tuple[Any, ...]
) -> tuple[Entries, Padding]:
    at = index if index >= 0 else len(entries) + index
    if at < 0:
        raise ValueError(_out_of_reach(entries, index, name, path))
    found = entries[at] if at < len(entries) else None
    # An empty sharding says nothing about any axis, so not about this one.
    if found != name and entries:
        raise ValueError(
            f"The sharding {entries} of the variable at {path_text(path)!r} has "
            f"{found!r} at axis {index}, expected the mapped axis {name!r}. Shard the "
            "variable with it there, or map it over the axis that has this name."
        )
    if at >= len(entries):
        return entries, (*padding, (at, name, _ABSENT))
    rest = entries[:at] + entries[at + 1 :]
    if padding and padding[-1][:2] == (at, name):
        return rest[: len(rest) - padding[-1][2]], padding[:-1]
    return rest, padding


def _out_of_reach(
    entries: Entries, index: int, name: Any, path: tuple[Any, ...]
) -> str:
    return (
        f"The mapped axis {name!r} stands at {index}, which the sharding {entries} of "
        f"the variable at {path_text(path)!r} does not reach: name all axes of the "
        "value in the sharding, or count the axis from the front."
    )
