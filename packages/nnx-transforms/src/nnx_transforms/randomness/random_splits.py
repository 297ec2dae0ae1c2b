"""Giving each index of a mapped axis its own random streams, and new seeds.

Inside a transformation that maps a function, every index should draw its own keys.
`split_rngs` replaces the key of a stream by an array of keys, one an index, and
`restore_rngs` undoes that; `fork_rngs` does so for streams that get a single new key.
`with_rngs` leaves the streams as they are and returns a copy with new ones. `fork` is
the same for states.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import (
    Any,
    Concatenate,
    Literal,
    NamedTuple,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
    cast,
    overload,
)

import jax
import jax.numpy as jnp

from graphcore import (
    All,
    Filter,
    State,
    VariableState,
    api_boundary,
    clone,
    iter_graph,
    to_predicate,
)
from graphcore.authors import UNSET, path_text, raw_value_of, write_raw
from nnx_transforms.graph import recursive_map
from nnx_transforms.randomness.rngs import (
    ByFilter,
    RngCount,
    RngKey,
    Rngs,
    RngStream,
    by_filters,
    chooser,
)
from nnx_transforms.transforms.graph_mode import accepts_graph_mode

__all__ = [
    "ForkStates",
    "backup_keys",
    "fork",
    "fork_rngs",
    "reseed",
    "restore_rngs",
    "split_rngs",
    "with_rngs",
]

P = ParamSpec("P")
F = TypeVar("F", bound=Callable[..., Any])
Path: TypeAlias = tuple[Any, ...]
Policy: TypeAlias = Callable[[Path, jax.Array, tuple[int, ...]], jax.Array]
_POLICIES = ("match_shape", "scalars_only")


class StreamBackup(NamedTuple):
    """What a split replaced in one stream.

    Args:
        stream: The stream.
        key: Its root key.
        draws: Its count, one higher than before for the key that the split drew.

    Example:
        >>> from nnx_transforms.randomness.rngs import Rngs
        >>> (backup,) = split_rngs(Rngs(0), splits=2)
        >>> backup.stream.tag, int(backup.draws)
        ('default', 1)
    """

    stream: RngStream
    key: jax.Array
    draws: jax.Array


Backup: TypeAlias = StreamBackup | tuple[RngStream, jax.Array]
"""What is restored of a stream: key and count, or as a plain pair the key alone. Flax's
`restore_rngs` takes both as well."""


class SplitBackups(tuple[Backup, ...]):
    """What a split replaced; leaving it as a context manager restores it.

    After an exception, the counts too are what they were before the split.

    Example:
        >>> from nnx_transforms.randomness.rngs import Rngs
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
            restore_rngs((s, key, *[d - 1 for d in draws]) for s, key, *draws in self)


class OfNodes(Protocol[P]):
    """Changes streams of a node, or of the arguments of a function; options `P`."""

    @overload
    def __call__(self, *args: P.args, **options: P.kwargs) -> Callable[[F], F]: ...
    @overload
    def __call__(self, node: Any, /, *args: P.args, **options: P.kwargs) -> Any: ...


def _of_nodes(function: Callable[Concatenate[Any, P], Any]) -> OfNodes[P]:
    return cast("OfNodes[P]", function)


def _applied(change: Callable[[Any], Any], node: Any) -> Any:
    """What a change of streams returns for a node; without one, a decorator."""
    if node is not UNSET:
        return change(node)

    def decorator(function: F) -> F:
        @api_boundary
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            changed = change((args, kwargs))
            if isinstance(changed, SplitBackups):
                with changed:
                    return function(*args, **kwargs)
            args, kwargs = changed  # the copies
            return function(*args, **kwargs)

        return wrapper  # type: ignore[return-value]

    return decorator


@_of_nodes
def split_rngs(
    node: Any = UNSET,
    /,
    *,
    splits: int | tuple[int, ...],
    only: Filter = ...,
    squeeze: bool = False,
    graph: bool | None = None,
    graph_updates: bool | None = None,
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
        graph: False asks for a copy with such keys, which has the same variables
            otherwise; the streams of the node give out a key each.
        graph_updates: Likewise.

    Returns:
        Backups for `restore_rngs`, which are also a context manager that restores at
        its end; the copy; or a decorator.

    Raises:
        ValueError: If a selected stream holds an array of keys already, with its path,
            or if `squeeze` is asked for with several splits. Nothing is changed then.
        TraceContextError: If a stream belongs to another JAX trace.

    Example:
        >>> from nnx_transforms.randomness.rngs import Rngs
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
    copies = False in (graph, graph_updates)
    rules: dict[Filter, Any] = {to_predicate(only): shape}
    return _applied(functools.partial(_replace_streams, rules, squeeze, copies), node)


@_of_nodes
def fork_rngs(
    node: Any = UNSET,
    /,
    *,
    split: ByFilter = None,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """Replaces the keys of random streams by the next key of each.

    Args:
        node: A graph node, or a pytree with graph nodes. Left out, a decorator is
            returned, which does this to the arguments of each call of a function and
            restores them afterwards.
        split: The shape of the arrays of keys that replace the keys; a mapping from
            filters over streams to such shapes, of which the first match counts and
            which leaves other streams alone. None stands for a single key.
        graph: False asks for a copy, as for `split_rngs`.
        graph_updates: Likewise.

    Returns:
        Backups, as `split_rngs` returns them; the copy; or a decorator.

    Raises:
        ValueError: If a selected stream holds an array of keys already, with its path.
        TraceContextError: If a stream belongs to another JAX trace.

    Example:
        >>> from nnx_transforms.randomness.rngs import Rngs
        >>> rngs = Rngs(params=0, dropout=1)
        >>> with fork_rngs(rngs, split={'dropout': 4}):
        ...     print(rngs.params.key.shape, rngs.dropout.key.shape)
        () (4,)
        >>> rngs.dropout.key.shape
        ()
    """
    copies = False in (graph, graph_updates)
    rules = by_filters(split)
    return _applied(functools.partial(_replace_streams, rules, False, copies), node)


def _replace_streams(
    rules: Mapping[Filter, Any], squeeze: bool, copies: bool, node: Any
) -> Any:
    """Gives each stream that a filter takes a new key, of the shape of its rule.

    With `copies`, a copy of the node has them, and is returned.
    """
    takes = to_predicate((*rules,))
    choose = chooser(rules)
    backups: list[StreamBackup] = []
    writes: list[tuple[Any, Any]] = []
    for path, stream in _streams(node):
        at_key = (*path, "key"), stream.key
        at_count = (*path, "count"), stream.count
        if not (takes(*at_key) and takes(*at_count)):
            continue
        shape = choose(*at_key)
        key, count = raw_value_of(stream.key), raw_value_of(stream.count)
        _refuse_array(path, stream.tag, key)
        forked = jax.random.fold_in(key, count)
        if shape is not None:
            forked = jax.random.split(forked, shape)
        if squeeze:
            forked = forked[0]
        backups.append(StreamBackup(stream, key, count + 1))
        writes += _anew(stream, forked)
    write_raw(writes)
    replaced = SplitBackups(backups)
    if not copies:
        return replaced
    keys = {id(stream.key) for stream, *_ in replaced}

    def copied(path: Path, x: Any) -> Any:
        return clone(x) if _is_stream(x) and id(x.key) in keys else x

    with replaced:
        return recursive_map(copied, node)


@_of_nodes
def with_rngs(
    node: Any = UNSET,
    /,
    *,
    split: ByFilter = None,
    fork: Filter | Sequence[Filter] = None,
    broadcast: ByFilter = None,
    only: Filter = ...,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """Copies a graph with other random streams, made of the next keys of its own.

    Args:
        node: A graph node, or a pytree with graph nodes; it keeps its streams, which
            give out a key each. Left out, a decorator is returned, which does this to
            the arguments of each call of a function.
        split: For which streams arrays of keys are made, as for `Rngs.split`.
        fork: Filters that select the streams that are forked, unless they are split
            or broadcast.
        broadcast: For which streams the next key is repeated, as for
            `Rngs.broadcast`.
        only: Selects the streams that are looked at; the others stay.
        graph: Accepted for Flax; nodes are always copied as graphs.
        graph_updates: Accepted for Flax; nothing is changed in place.

    Returns:
        The copy, which has the same variables otherwise; or a decorator.

    Raises:
        ValueError: If a stream is selected both by a filter of `split` and by one of
            `broadcast` or `fork`, neither of which is `...`, with its path.
        TraceContextError: If a stream belongs to another JAX trace.

    Example:
        >>> from nnx_transforms.randomness.rngs import Rngs
        >>> rngs = Rngs(params=0, dropout=1)
        >>> new = with_rngs(rngs, split={'params': 4}, fork=...)
        >>> new.params.key.shape, new.dropout.key.shape, rngs.params.key.shape
        ((4,), (), ())
    """
    forks = fork if isinstance(fork, Sequence) and not isinstance(fork, str) else [fork]
    rules: dict[str, Mapping[Filter, Any]] = {
        "split": by_filters(split),
        "broadcast": by_filters(broadcast),
        "fork": dict.fromkeys(map(to_predicate, forks), ()),
    }
    takes = to_predicate(only)

    def replaced(path: Path, value: Any) -> Any:
        if not _is_stream(value) or not takes(path, value):
            return value
        found: dict[str, Filter] = {}
        for rule, by_filter in rules.items():
            selecting = (f for f in by_filter if to_predicate(f)(path, value))
            first = next(selecting, UNSET)
            if by_filter.get(first) is not None:
                found[rule] = first
        # Where one is for everything, the order of the rules decides.
        if sum(to_predicate(f) != to_predicate(...) for f in found.values()) > 1:
            raise ValueError(
                f"The random stream {value.tag!r} at {path_text(path)!r} is selected "
                f"by several rules: {found}. Leave it to one of them."
            )
        for rule, chosen in found.items():
            shape = rules[rule][chosen]
            return value.fork() if rule == "fork" else getattr(value, rule)(shape)
        return value

    return _applied(functools.partial(recursive_map, replaced), node)


@accepts_graph_mode
def backup_keys(node: Any, /) -> SplitBackups:
    """Notes the root keys of random streams, for `restore_rngs`.

    Args:
        node: A graph node, or a pytree with graph nodes.

    Returns:
        Backups, whose restoring leaves the counts alone.

    Example:
        >>> from nnx_transforms.randomness.rngs import Rngs
        >>> rngs = Rngs(0); backups = backup_keys(rngs)
        >>> reseed(rngs, default=1); restore_rngs(backups)
        >>> bool(rngs.default.key.value == Rngs(0).default.key.value)
        True
    """
    return SplitBackups((stream, stream.key.value) for _, stream in _streams(node))


def restore_rngs(backups: Iterable[tuple[Any, ...]], /) -> None:
    """Gives random streams the keys back that a split replaced.

    The split drew one key of each stream, so their counts are one higher than before:
    another split gives other keys.

    Args:
        backups: As `split_rngs` returned them, or that of Flax.

    Raises:
        TraceContextError: If a stream belongs to another JAX trace.

    Example:
        >>> from nnx_transforms.randomness.rngs import Rngs
        >>> rngs = Rngs(0)
        >>> restore_rngs(split_rngs(rngs, splits=3))
        >>> int(rngs.default.count.value), rngs().shape
        (1, ())
    """
    writes: list[tuple[Any, Any]] = []
    for stream, key, *draws in backups:
        writes.append((stream.key, key))
        writes += [(stream.count, count) for count in draws]
    write_raw(writes)


@accepts_graph_mode
def reseed(
    node: Any,
    /,
    *,
    policy: Literal["scalars_only", "match_shape"] | Policy = "match_shape",
    **stream_keys: Any,
) -> None:
    """Starts random streams anew, with keys that are drawn from other seeds.

    The streams of a name get the keys that `Rngs` with these seeds gives out one after
    the other, in the order in which they stand in the graph.

    Args:
        node: A graph node, or a pytree with graph nodes.
        policy: What becomes of a stream that holds an array of keys: with
            `match_shape` it gets as many keys, split from its new one; with
            `scalars_only` it is an error; or a function that returns the new root key,
            of the path, the new key and the shape of the old one.
        **stream_keys: Seeds by the name of the stream, as for `Rngs`.

    Raises:
        ValueError: If there is no stream of a name, or one holds an array of keys
            where there may be none, or the policy is unknown; nothing is changed then.
        TypeError: If a seed is neither an integer nor a key.
        TraceContextError: If a stream belongs to another JAX trace.

    Example:
        >>> from nnx_transforms.randomness.rngs import Rngs
        >>> rngs = Rngs(params=0, dropout=1); key = rngs.dropout()
        >>> reseed(rngs, dropout=7)
        >>> bool(rngs.dropout.key.value == Rngs(dropout=7).dropout())
        True
    """
    if not callable(policy) and policy not in _POLICIES:
        raise ValueError(
            f"Unknown policy {policy!r}: expected a function or one of "
            f"{', '.join(map(repr, _POLICIES))}."
        )
    streams = _streams(node)
    missing = sorted(stream_keys.keys() - {stream.tag for _, stream in streams})
    if missing:
        raise ValueError(
            f"There are no random streams named {missing} to reseed; found "
            f"{sorted({stream.tag for _, stream in streams})}."
        )
    seeds = Rngs(stream_keys)
    writes: list[tuple[Any, Any]] = []
    for path, stream in streams:
        if stream.tag not in stream_keys:
            continue
        key, shape = seeds[stream.tag](), raw_value_of(stream.key).shape
        if callable(policy):
            key = policy(path, key, shape)
        elif shape and policy == "scalars_only":
            raise ValueError(
                f"The random stream at {path_text(path)!r} holds an array of keys of "
                f"shape {shape}, which policy='scalars_only' does not reseed: expected "
                "a single key. Pass policy='match_shape' for as many keys."
            )
        elif shape:
            key = jax.random.split(key, shape)
        writes += _anew(stream, key)
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
        >>> from nnx_transforms.randomness.rngs import Rngs
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

    def split_leaf(path: Path, leaf: VariableState[Any]) -> Any:
        _refuse_array(path[:-1], getattr(leaf, "tag", None), leaf.value)
        return leaf.replace(jax.random.split(leaf.value, shape))

    return ForkStates(
        split_keys.map(split_leaf), split_counts, broadcast_keys, broadcast_counts
    )


def _anew(stream: Any, key: jax.Array) -> list[tuple[Any, Any]]:
    """What is to be written for a stream to start with a key."""
    return [(stream.key, key), (stream.count, jnp.zeros(key.shape, jnp.uint32))]


def _streams(node: Any) -> list[tuple[Path, Any]]:
    return [pair for pair in iter_graph(node) if _is_stream(pair[1])]


def _is_stream(x: Any) -> bool:
    return isinstance(x, _stream_types)


_stream_types: tuple[type[Any], ...] = (RngStream,)


def add_stream_type(kind: type[Any]) -> None:
    """Has random streams of another library split and seeded as our own.

    Args:
        kind: Their type: a graph node with `key`, `count` and `tag` as `RngStream`.
    """
    global _stream_types
    _stream_types = (*_stream_types, kind)


def _refuse_array(path: Iterable[Any], tag: str | None, key: jax.Array) -> None:
    if key.shape:
        raise ValueError(
            f"The random stream {tag!r} at {path_text(path)!r} holds an array of keys "
            f"of shape {key.shape}, expected a single key. Undo an earlier split with "
            "`restore_rngs` first, or leave the stream out with a filter."
        )
