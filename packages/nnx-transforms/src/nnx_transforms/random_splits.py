"""Giving each index of a mapped axis its own random streams, and new seeds.

Inside a transformation that maps a function, every index should draw its own keys.
`split_rngs` replaces the key of a stream by an array of keys, one an index, and
`restore_rngs` undoes that. `fork` is the same for states, where nothing is replaced.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar, overload

import jax
import jax.numpy as jnp

from graphcore import All, Filter, State, VariableState, iter_graph, to_predicate
from graphcore.authors import path_text, variable_impl
from nnx_transforms.atomic_writes import read_raw, write_raw
from nnx_transforms.rngs import RngCount, RngKey, RngStream, as_key

F = TypeVar("F", bound=Callable[..., Any])
_MISSING: Any = object()
# The count that a stream will not reach: seeds the siblings of a reseeded stream.
_BEYOND_COUNTS = 0xFFFFFFFF


class StreamBackup(NamedTuple):
    """What a split replaced in one stream.

    Args:
        stream: The stream.
        key: Its root key.
        draws: Its count, with the key that the split drew.
        draws_before: Its count, without.

    Example:
        >>> from nnx_transforms.rngs import Rngs
        >>> (backup,) = split_rngs(Rngs(0), splits=2)
        >>> int(backup.draws_before), int(backup.draws)
        (0, 1)
    """

    stream: RngStream
    key: jax.Array
    draws: jax.Array
    draws_before: jax.Array


class SplitBackups(tuple[StreamBackup, ...]):
    """What a split replaced; leaving it as a context manager restores it.

    After an exception, the counts too are what they were before the split.

    Example:
        >>> from nnx_transforms.rngs import Rngs
        >>> rngs = Rngs(0)
        >>> with split_rngs(rngs, splits=2) as backups:
        ...     print(len(backups), rngs.default.key.shape)
        1 (2,)
        >>> rngs.default.key.shape
        ()
    """

    __slots__ = ()

    def __enter__(self) -> SplitBackups:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if kind is None:
            restore_rngs(self)
        else:
            restore_rngs(b._replace(draws=b.draws_before) for b in self)


@overload
def split_rngs(
    node: Any,
    /,
    *,
    splits: int | tuple[int, ...],
    only: Filter = ...,
    squeeze: bool = False,
) -> SplitBackups: ...
@overload
def split_rngs(
    *, splits: int | tuple[int, ...], only: Filter = ..., squeeze: bool = False
) -> Callable[[F], F]: ...
def split_rngs(
    node: Any = _MISSING,
    /,
    *,
    splits: int | tuple[int, ...],
    only: Filter = ...,
    squeeze: bool = False,
) -> Any:
    """Replaces the keys of random streams by arrays of keys.

    Each selected stream gives out a key, as for any draw; `jax.random.split` of that
    becomes its root key, and its count becomes as many zeros.

    Args:
        node: A graph node, or a pytree with graph nodes. Left out, a decorator is
            returned, which does this to the arguments of each call of a function and
            restores them afterwards.
        splits: The shape of the arrays of keys; an integer stands for one axis.
        only: Selects streams: a name, or any filter that takes both the stream's key
            and its count.
        squeeze: Whether to drop the new axis; only for `splits=1`.

    Returns:
        Backups for `restore_rngs`, which are also a context manager that restores at
        its end; or a decorator.

    Raises:
        ValueError: If a selected stream holds an array of keys already, with its path,
            or if `squeeze` is asked for with several splits. Nothing is changed then.
        TraceContextError: If a stream belongs to another JAX trace.

    Example:
        >>> from nnx_transforms.rngs import Rngs
        >>> rngs = Rngs(params=0, dropout=1)
        >>> backups = split_rngs(rngs, splits=5, only='params')
        >>> rngs.params.key.shape, rngs.params.count.shape, rngs.dropout.key.shape
        ((5,), (5,), ())
        >>> restore_rngs(backups)
        >>> rngs.params.key.shape, int(rngs.params.count.value)
        ((), 1)
        >>> @split_rngs(splits=(2, 3))
        ... def shape(rngs):
        ...     return rngs.params.key.shape
        >>> shape(rngs), rngs.params.key.shape
        ((2, 3), ())
    """
    shape = splits if isinstance(splits, tuple) else (splits,)
    if squeeze and shape != (1,):
        raise ValueError(
            "`squeeze=True` drops an axis of size one: expected `splits=1`, got "
            f"{splits!r}."
        )
    if node is _MISSING:
        return functools.partial(_with_split_arguments, shape, only, squeeze)
    streams = [
        (path, stream) for path, stream in _streams(node) if _takes(only, path, stream)
    ]
    for path, stream in streams:
        _refuse_array(path, _tag(stream), read_raw(stream.key))

    backups: list[StreamBackup] = []
    writes: list[tuple[Any, Any]] = []
    for _, stream in streams:
        key, count = read_raw(stream.key), read_raw(stream.count)
        keys = jax.random.split(jax.random.fold_in(key, count), shape)
        counts = jnp.zeros(() if squeeze else shape, jnp.uint32)
        backups.append(StreamBackup(stream, key, count + 1, count))
        writes.append((stream.key, keys[0] if squeeze else keys))
        writes.append((stream.count, counts))
    write_raw(writes)
    return SplitBackups(backups)


def _with_split_arguments(
    shape: tuple[int, ...], only: Filter, squeeze: bool, function: F
) -> F:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with split_rngs((args, kwargs), splits=shape, only=only, squeeze=squeeze):
            return function(*args, **kwargs)

    return wrapper  # type: ignore[return-value]


def restore_rngs(backups: Iterable[StreamBackup], /) -> None:
    """Gives random streams the keys back that a split replaced.

    The split drew one key of each stream, so their counts are one higher than before:
    another split gives other keys.

    Args:
        backups: As `split_rngs` returned them.

    Raises:
        TraceContextError: If a stream belongs to another JAX trace.

    Example:
        >>> from nnx_transforms.rngs import Rngs
        >>> rngs = Rngs(0)
        >>> restore_rngs(split_rngs(rngs, splits=3))
        >>> int(rngs.default.count.value), rngs().shape
        (1, ())
    """
    writes: list[tuple[Any, Any]] = []
    for backup in backups:
        writes.append((backup.stream.key, backup.key))
        writes.append((backup.stream.count, backup.draws))
    write_raw(writes)


def reseed(node: Any, /, **stream_keys: Any) -> None:
    """Starts random streams anew, from other seeds.

    The stream of a name is what `Rngs` would make from the seed. Of several streams
    with one name, the first in the graph is that and the others get keys derived from
    the seed, no two alike; a stream that holds an array of keys gets as many keys.

    Args:
        node: A graph node, or a pytree with graph nodes.
        **stream_keys: Seeds by the name of the stream, as for `Rngs`.

    Raises:
        ValueError: If there is no stream of a name; nothing is changed then.
        TypeError: If a seed is neither an integer nor a key.
        TraceContextError: If a stream belongs to another JAX trace.

    Example:
        >>> from nnx_transforms.rngs import Rngs
        >>> rngs = Rngs(params=0, dropout=1); key = rngs.dropout()
        >>> reseed(rngs, dropout=7)
        >>> bool(rngs.dropout() == Rngs(dropout=7).dropout())
        True
    """
    found: dict[str, list[RngStream]] = {}
    for _, stream in _streams(node):
        found.setdefault(_tag(stream), []).append(stream)
    missing = sorted(stream_keys.keys() - found.keys())
    if missing:
        raise ValueError(
            f"There are no random streams named {missing} to reseed; found "
            f"{sorted(found)}."
        )
    writes: list[tuple[Any, Any]] = []
    for name, seed in stream_keys.items():
        root = as_key(seed, name)
        _refuse_array((name,), name, root)
        for position, stream in enumerate(found[name]):
            key, shape = root, read_raw(stream.key).shape
            if position:
                key = jax.random.fold_in(root, _BEYOND_COUNTS)
                key = jax.random.fold_in(key, position)
            if shape:
                key = jax.random.split(key, shape)
            writes.append((stream.key, key))
            writes.append((stream.count, jnp.zeros(shape, jnp.uint32)))
    write_raw(writes)


class ForkStates(NamedTuple):
    """The state of random streams, divided by how it enters a mapped function.

    Args:
        split_keys: Arrays of keys, to be mapped over.
        split_counts: The counts of those streams.
        broadcast_keys: The keys that all indices share.
        broadcast_counts: The counts of those streams.

    Example:
        >>> ForkStates._fields
        ('split_keys', 'split_counts', 'broadcast_keys', 'broadcast_counts')
    """

    split_keys: State[Any, Any]
    split_counts: State[Any, Any]
    broadcast_keys: State[Any, Any]
    broadcast_counts: State[Any, Any]


def fork(
    state: State[Any, Any],
    split_filter: Filter,
    split_pattern: int | None | tuple[int | None, ...],
) -> ForkStates:
    """Divides the state of random streams for a mapped function; changes nothing.

    The key of a selected stream is split; counts stay as they are, one for all
    indices. So the keys that an index draws depend on the root key, on the index, and
    on how many keys the stream gave out before.

    Args:
        state: A state with the variables of random streams and no others.
        split_filter: Selects the streams that are split: a name, or any filter over
            their keys and counts.
        split_pattern: The shape of the arrays of keys. An integer stands for one axis;
            None in a tuple for an axis of size one, along which the key is shared.

    Returns:
        The four parts.

    Raises:
        ValueError: If the pattern is None, if the state holds something else, or if a
            selected stream holds an array of keys already; with the paths.

    Example:
        >>> import graphcore as gc
        >>> from nnx_transforms.rngs import Rngs
        >>> forked = fork(gc.state(Rngs(params=0, dropout=1)), 'params', 4)
        >>> forked.split_keys.params.key.value.shape
        (4,)
        >>> forked.broadcast_keys.dropout.key.value.shape
        ()
    """
    if split_pattern is None:
        raise ValueError(
            "`split_pattern` is None: expected an integer or a tuple, the shape of the "
            "arrays of keys. Where nothing is to be split, there is no need to fork."
        )
    if isinstance(split_pattern, int):
        split_pattern = (split_pattern,)
    shape = tuple(1 if size is None else size for size in split_pattern)
    split_keys, split_counts, broadcast_keys, broadcast_counts = state.split(
        All(split_filter, RngKey), All(split_filter, RngCount), RngKey, RngCount
    )

    def split_leaf(path: tuple[Any, ...], leaf: VariableState[Any]) -> Any:
        _refuse_array(path[:-1], getattr(leaf, "tag", None), leaf.value)
        return leaf.replace(jax.random.split(leaf.value, shape))

    return ForkStates(
        split_keys.map(split_leaf), split_counts, broadcast_keys, broadcast_counts
    )


def _streams(node: Any) -> Iterator[tuple[tuple[Any, ...], RngStream]]:
    for path, value in iter_graph(node):
        if isinstance(value, _stream_types):
            yield path, value


_stream_types: tuple[type[Any], ...] = (RngStream,)


def add_stream_type(kind: type[Any]) -> None:
    """Has random streams of another library split and seeded as our own.

    Args:
        kind: Their type: a graph node with a `key` and a `count` as `RngStream` has.
    """
    global _stream_types
    _stream_types = (*_stream_types, kind)


def _tag(stream: Any) -> str:
    metadata = variable_impl(type(stream.key)).get_metadata(stream.key)
    return str(metadata["tag"])


def _takes(only: Filter, path: tuple[Any, ...], stream: RngStream) -> bool:
    predicate = to_predicate(only)
    return predicate((*path, "key"), stream.key) and predicate(
        (*path, "count"), stream.count
    )


def _refuse_array(path: Iterable[Any], tag: str | None, key: jax.Array) -> None:
    if key.shape:
        raise ValueError(
            f"The random stream {tag!r} at {path_text(path)!r} holds an array of keys "
            f"of shape {key.shape}, expected a single key. Undo an earlier split with "
            "`restore_rngs` first, or leave the stream out with a filter."
        )
