"""Random keys as plain arrays, which every version of JAX can save.

Before 0.10, JAX can't save a typed key for the way back from inside one branch of a
`cond`: it makes a scalar for the other branch. A model is often saved whole, random
streams included.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=("data",), meta_fields=("impl",)
)
@dataclass
class _KeyData:
    """The data of an array of keys; a pytree whose only child it is."""

    data: Any
    impl: Any

    def keys(self) -> Any:
        return jax.random.wrap_key_data(self.data, impl=self.impl)


def keys_to_data(tree: Any) -> Any:
    """Replaces keys by their data.

    Args:
        tree: A pytree of arrays.

    Returns:
        The pytree for `keys_from_data`.

    Example:
        >>> import jax
        >>> data = keys_to_data([jax.random.key(0)])
        >>> [x.dtype.name for x in jax.tree.leaves(data)], keys_from_data(data)[0].dtype
        (['uint32'], key<fry>)
    """

    def to_data(x: Any) -> Any:
        dtype = getattr(x, "dtype", None)
        if dtype is None or not jnp.issubdtype(dtype, jax.dtypes.prng_key):
            return x
        return _KeyData(jax.random.key_data(x), jax.random.key_impl(x))

    return jax.tree.map(to_data, tree)


def keys_from_data(tree: Any) -> Any:
    """Brings back the keys.

    Args:
        tree: What `keys_to_data` returned, or a pytree of the same structure.

    Returns:
        The pytree with keys.
    """
    return jax.tree.map(
        lambda x: x.keys() if type(x) is _KeyData else x,
        tree,
        is_leaf=lambda x: type(x) is _KeyData,
    )
