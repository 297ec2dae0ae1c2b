"""Random streams: named sources of keys that count what they gave out.

A stream is a root key and a counter, both variables. A draw is
`jax.random.fold_in(key, count)`, and adds one to the count; so the n-th key of a
stream depends on the root key and on n, and on nothing else. Being variables, they
are carried through transformations like any other state, and filters can select them
by type (`RngKey`, `RngCount`, `RngState` for both) or by the name of the stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from graphcore import Object, Variable

A = TypeVar("A")


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


class RngStream(Object):
    """One source of keys: a root key and a counter.

    Args:
        seed: An integer, a key or an array of keys (`jax.random.key`), or the data of
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

    def __init__(self, seed: Any, *, tag: str) -> None:
        key = as_key(seed, tag)
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


class Rngs(Object):
    """Named random streams.

    A stream is an attribute; calling it gives its next key. A name that has no stream
    stands for the stream `default`, if there is one; `rngs()` draws from that.

    Args:
        default: The seed of the stream `default`; or a mapping from names to seeds.
        **streams: A seed for each stream: an integer, a key or an array of keys, or the
            data of a key (uint32).

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
            setattr(self, name, RngStream(seed, tag=name))

    def __getattr__(self, name: str) -> RngStream:
        # Reached only when there is no stream of that name. Tools ask objects for
        # underscored names to learn what they support; those are no streams.
        stream = None if name.startswith("_") else self.__dict__.get("default")
        if stream is None:
            raise AttributeError(_no_stream(self, name))
        return stream  # type: ignore[no-any-return]

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
        return self.default()

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
    dtype = getattr(seed, "dtype", None)
    if dtype is not None:
        if jnp.issubdtype(dtype, jax.dtypes.prng_key):
            return seed  # type: ignore[no-any-return]
        if np.ndim(seed) and dtype == jnp.uint32:
            return jax.random.wrap_key_data(jnp.asarray(seed))
        if not np.ndim(seed) and jnp.issubdtype(dtype, jnp.integer):
            return jax.random.key(seed)
    elif isinstance(seed, int):
        return jax.random.key(seed)
    raise TypeError(
        f"The seed of the random stream {name!r} must be an integer, a key of "
        f"`jax.random.key` or key data of dtype uint32, got {seed!r} of type "
        f"{type(seed).__name__}."
    )
