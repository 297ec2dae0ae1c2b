"""Random streams: named sources of keys that count what they gave out.

A stream is a root key and a counter, both variables. A draw is
`jax.random.fold_in(key, count)`, and adds one to the count; so the n-th key of a
stream depends on the root key and on n, and on nothing else. Being variables, they
are carried through transformations like any other state, and filters can select them
by type (`RngKey`, `RngCount`, `RngState` for both) or by the name of the stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from graphcore import Filter, Object, Variable, to_predicate
from nnx_transforms.randomness.random_methods import RandomMethods

__all__ = ["RngCount", "RngKey", "RngState", "RngStream", "Rngs"]

A = TypeVar("A")
Shape: TypeAlias = int | tuple[int, ...]
ByFilter: TypeAlias = Shape | None | Mapping[Filter, Shape | None]
"""A shape of arrays of keys for all streams, or one for each filter."""


class RngState(Variable[A]):
    """A variable of a random stream; its `tag` is the name of the stream.

    Example:
        >>> all(isinstance(v, RngState) for v in vars(Rngs(0).default).values())
        True
    """

    __slots__ = ()


class RngKey(RngState[A]):
    """The root key of a random stream.

    Example:
        >>> Rngs(params=0).params.key.tag
        'params'
    """

    __slots__ = ()


class RngCount(RngState[A]):
    """How many keys a random stream gave out.

    Example:
        >>> rngs = Rngs(0); key = rngs(); int(rngs.default.count.value)
        1
    """

    __slots__ = ()


class RngStream(RandomMethods, Object):
    """One source of keys: a root key and a counter.

    The functions of `jax.random` are methods, which draw their key.

    Args:
        key: An integer, a key or an array of keys (`jax.random.key`), or the data of
            a key (uint32, `jax.random.PRNGKey`).
        tag: The name of the stream.

    Raises:
        TypeError: If the seed is none of these.

    Example:
        >>> import jax
        >>> stream = RngStream(0, tag='noise')
        >>> first, second = stream(), stream()
        >>> bool(first == jax.random.fold_in(jax.random.key(0), 0))
        True
        >>> bool(first == second), int(stream.count.value)
        (False, 2)
    """

    key: RngKey[jax.Array]
    count: RngCount[jax.Array]

    def __init__(self, key: Any, *, tag: str) -> None:
        key = as_key(key, tag)
        self.key = RngKey(key, tag=tag)
        self.count = RngCount(jnp.zeros(key.shape, jnp.uint32), tag=tag)

    @property
    def tag(self) -> str:
        """The name of the stream."""
        name: str = self.key.tag
        return name

    def __call__(self) -> jax.Array:
        """Draws the next key.

        Returns:
            A scalar key.

        Raises:
            ValueError: If the stream holds an array of keys.
            TraceContextError: If the stream belongs to another JAX trace.

        Example:
            >>> RngStream(0, tag='noise')().shape
            ()
        """
        key, count = self.key.value, self.count.value
        if key.shape:
            raise ValueError(
                f"The random stream {self.tag!r} holds an array of keys of shape "
                f"{key.shape}, so there is no single next one. Draw inside the "
                "transformation that maps over the keys, or undo the split with "
                "`restore_rngs`."
            )
        # The count first: where it may not be written, nothing is drawn.
        self.count.value = count + 1
        return jax.random.fold_in(key, count)

    def fork(self, *, split: Shape | None = None) -> RngStream:
        """Makes a stream of its own from the next key.

        Args:
            split: The shape of an array of keys that the new stream holds; None for a
                single key.

        Returns:
            A new stream with the same tag, of which nothing was drawn.

        Example:
            >>> stream = RngStream(0, tag='noise')
            >>> stream.fork().key.shape, stream.fork(split=3).key.shape
            ((), (3,))
            >>> int(stream.count.value)
            2
        """
        key = self()
        if split is not None:
            key = jax.random.split(key, split)
        return type(self)(key, tag=self.tag)

    def split(self, k: Shape, /) -> RngStream:
        """Makes a stream with an array of keys from the next key.

        Args:
            k: The shape of the array; an integer stands for one axis.

        Returns:
            A new stream, whose keys all differ.

        Example:
            >>> RngStream(0, tag='noise').split((2, 3)).key.shape
            (2, 3)
        """
        return self.fork(split=k)

    def broadcast(self, k: Shape, /) -> RngStream:
        """Makes a stream with an array of keys that all are the next key.

        Args:
            k: The shape of the array; an integer stands for one axis.

        Returns:
            A new stream.

        Example:
            >>> keys = RngStream(0, tag='noise').broadcast(2).key.value
            >>> bool(keys[0] == keys[1])
            True
        """
        return type(self)(jnp.broadcast_to(self(), k), tag=self.tag)


class Rngs(RandomMethods, Object):
    """Named random streams.

    A stream is an attribute; calling it gives its next key. A name that has no stream
    stands for the stream `default`, if there is one; `rngs()` draws from that. The
    functions of `jax.random` are methods, which draw from it as well.

    Args:
        default: The seed of the stream `default`; or a mapping from names to seeds.
        **streams: A seed for each stream: an integer, a key or an array of keys, the
            data of a key (uint32), or a stream, whose root key is taken.

    Raises:
        TypeError: If a seed is of another type.

    Example:
        >>> rngs = Rngs(0, params=1)
        >>> key = rngs.params(); key = rngs.dropout(); key = rngs()
        >>> int(rngs.params.count.value), int(rngs.default.count.value)
        (1, 2)
        >>> rngs.dropout is rngs.default, list(rngs)
        (True, ['default', 'params'])
    """

    def __init__(
        self, default: Any | Mapping[str, Any] | None = None, /, **streams: Any
    ) -> None:
        if isinstance(default, Mapping):
            streams = {**default, **streams}
        elif default is not None:
            streams = {"default": default, **streams}
        for name, seed in streams.items():
            key = seed.key if isinstance(seed, RngStream) else seed
            setattr(self, name, RngStream(key, tag=name))

    def __getattr__(self, name: str) -> Any:
        # Reached only when there is no stream of that name. Tools ask objects for
        # underscored names to learn what they support; those are no streams.
        stream = None if name.startswith("_") else self.__dict__.get("default")
        if stream is None:
            raise AttributeError(_no_stream(self, name))
        return stream

    def __getitem__(self, name: str) -> RngStream:
        found = self.__dict__.get(name, self.__dict__.get("default"))
        if found is None:
            raise KeyError(_no_stream(self, name))
        return found  # type: ignore[no-any-return]

    def __call__(self) -> jax.Array:
        """Draws the next key of the stream `default`.

        Returns:
            A scalar key.

        Raises:
            AttributeError: If there is no such stream.

        Example:
            >>> bool(Rngs(0)() == Rngs(0).default())
            True
        """
        key: jax.Array = self.default()
        return key

    def __iter__(self) -> Iterator[str]:
        return iter(self.__dict__)

    def __len__(self) -> int:
        return len(self.__dict__)

    def __contains__(self, name: object) -> bool:
        return name in self.__dict__

    def items(self) -> Iterator[tuple[str, RngStream]]:
        """Lists the streams.

        Returns:
            An iterator of `(name, stream)`.

        Example:
            >>> [name for name, stream in Rngs(params=0, dropout=1).items()]
            ['params', 'dropout']
        """
        return iter(self.__dict__.items())

    def fork(self, /, *, split: ByFilter = None) -> Rngs:
        """Makes streams of their own from the next key of each stream.

        Args:
            split: The shape of the arrays of keys that the new streams hold; a mapping
                from filters over streams to such shapes, of which the first match
                counts. None stands for a single key.

        Returns:
            New streams with the same names.

        Example:
            >>> rngs = Rngs(params=1, dropout=2).fork(split={'params': 5})
            >>> rngs.params.key.shape, rngs.dropout.key.shape
            ((5,), ())
        """
        return _changed(self, split, lambda stream, k: stream.fork(split=k))

    def split(self, k: ByFilter, /) -> Rngs:
        """Makes streams with arrays of keys from the next keys.

        Args:
            k: The shape of the arrays, or a mapping from filters over streams to such
                shapes, of which the first match counts. A stream for which that is
                None, or that no filter selects, starts anew from the same root key.

        Returns:
            New streams with the same names.

        Example:
            >>> rngs = Rngs(params=1, dropout=2).split({'params': 5, ...: None})
            >>> rngs.params.key.shape, rngs.dropout.key.shape
            ((5,), ())
        """
        return _changed(self, k, lambda s, k: s if k is None else s.split(k))

    def broadcast(self, k: ByFilter, /) -> Rngs:
        """Makes streams with arrays that repeat the next key.

        Args:
            k: As for `split`.

        Returns:
            New streams with the same names.

        Example:
            >>> Rngs(0).broadcast(5).default.key.shape
            (5,)
        """
        return _changed(self, k, lambda s, k: s if k is None else s.broadcast(k))


def _changed(
    rngs: Rngs, rules: ByFilter, change: Callable[[RngStream, Any], RngStream]
) -> Rngs:
    choose = chooser(rules)
    return Rngs({name: change(s, choose((), s)) for name, s in rngs.items()})


def chooser(rules: ByFilter) -> Callable[[tuple[Any, ...], Any], Any]:
    """Turns a setting, or a setting for each filter, into a function.

    Args:
        rules: One setting for all, or a mapping from filters to settings.

    Returns:
        A function of a path and a value, which gives the setting of the first filter
        that selects it, and None if none does.

    Example:
        >>> chooser({'params': 2})((), RngStream(0, tag='params'))
        2
    """
    pairs = [(to_predicate(f), setting) for f, setting in by_filters(rules).items()]
    return lambda path, value: next((s for p, s in pairs if p(path, value)), None)


def by_filters(rules: ByFilter) -> Mapping[Filter, Shape | None]:
    """A mapping from filters to settings; a single setting is for all."""
    return rules if isinstance(rules, Mapping) else {...: rules}


def _no_stream(rngs: Rngs, name: str) -> str:
    return (
        f"Rngs has no random stream {name!r} and no 'default' to fall back to; its "
        f"streams are {list(rngs)}. Make one with `Rngs({name}=seed)` or give a "
        "default, `Rngs(seed)`."
    )


def as_key(seed: Any, name: str) -> jax.Array:
    """Turns a seed into a key.

    Args:
        seed: An integer (of Python, numpy, or a scalar array), a key or an array of
            keys, or the data of keys (uint32, with a last axis as wide as the default
            implementation's).
        name: The stream, for the message.

    Returns:
        A key or an array of keys.

    Raises:
        TypeError: If it is none of these.

    Example:
        >>> as_key(0, 'params').shape
        ()
    """
    if isinstance(seed, Variable):
        seed = seed.value
    dtype = int if isinstance(seed, int) else getattr(seed, "dtype", object)
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return seed  # type: ignore[no-any-return]
    if np.ndim(seed) and dtype == jnp.uint32:
        return jax.random.wrap_key_data(jnp.asarray(seed))
    if not np.ndim(seed) and jnp.issubdtype(dtype, jnp.integer):
        return jax.random.key(seed)
    raise TypeError(
        f"The seed of the random stream {name!r} must be an integer, a key of "
        f"`jax.random.key` or key data of dtype uint32, got {seed!r} of type "
        f"{type(seed).__name__}."
    )
