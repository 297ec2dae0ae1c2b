"""What can be read and set of a variable, and of its state alike."""

from __future__ import annotations

from typing import Any, Protocol, overload

import jax
import jax.numpy as jnp
import numpy as np

from graphcore.display.printing import text, treescope_repr
from graphcore.hashable_mapping import HashableMapping
from graphcore.unset import UNSET
from graphcore.variables.metadata import stored_name


class _HoldsArray(Protocol):
    @property
    def value(self) -> jax.Array: ...


def written_into(array: Any, value: Any) -> Any:
    """What stands in the place of all of an array: a value in its shape and dtype.

    Args:
        array: The array; anything else is replaced by the value.
        value: What can be broadcast and cast to it; anything else takes its place.

    Returns:
        The value itself if it is an array that fits as it is.

    Example:
        >>> import jax.numpy as jnp
        >>> written_into(jnp.zeros(2), 1).tolist(), written_into(None, 1)
        ([1.0, 1.0], 1)
    """
    if isinstance(value, Reading):  # another variable, or the state of one
        value = value.value
    if not isinstance(array, _ARRAYS) or not isinstance(value, (*_ARRAYS, *_NUMBERS)):
        return value
    is_alike = getattr(value, "dtype", None) == array.dtype
    if not is_alike and not (_is_numeric(array) and _is_numeric(value)):
        return value
    is_traced = any(isinstance(x, jax.core.Tracer) for x in (array, value))
    if is_alike and np.shape(value) == array.shape and _fits(array, value, is_traced):
        return value
    try:
        if np.broadcast_shapes(np.shape(value), array.shape) != array.shape:
            return value
    except ValueError:
        return value
    if is_traced:
        return jnp.asarray(array).at[...].set(value)
    if isinstance(array, np.ndarray):
        new = np.empty_like(array)
        new[...] = value
        return new
    value = jnp.asarray(value)
    value = jnp.broadcast_to(
        value if is_alike else value.astype(array.dtype), array.shape
    )
    return jax.device_put(value, array.sharding) if array.committed else value


_NUMBERS = (np.generic, bool, int, float, complex)
_ARRAYS = (jax.Array, np.ndarray)


def _is_numeric(x: Any) -> bool:
    dtype = getattr(x, "dtype", None)
    if dtype is None:
        return True
    return bool(jnp.issubdtype(dtype, jnp.number) or dtype == np.bool_)


def _fits(array: Any, value: Any, is_traced: bool) -> bool:
    """Whether a value of the same type is as good as what is to be made of it."""
    if is_traced or isinstance(array, np.ndarray):
        return True
    return isinstance(value, jax.Array) and (
        not array.committed or value.sharding == array.sharding
    )


class Reading:
    """Metadata and the value's own attributes as attributes; the value's items.

    A subclass has `value`, `raw_value`, `_metadata()` and `_SLOTS`.
    """

    __slots__ = ()

    value: Any
    raw_value: Any

    def _metadata(self) -> HashableMapping[str, Any]:
        raise NotImplementedError

    def get_value(self, *, index: Any = ...) -> Any:
        """Returns the value, or a part of it.

        Args:
            index: Which part; all of it if left out.

        Returns:
            What `value`, or `value[index]`, is.

        Example:
            >>> import graphcore as gc
            >>> gc.Param.state([1, 2]).get_value(index=1)
            2
        """
        value = self.value
        return value if index is ... else value[index]

    def set_value(self, value: Any, *, index: Any = ...) -> None:
        """Sets the value, or a part of it, as assignment to it or its items does.

        Args:
            value: The value, or that of the part.
            index: Which part; all of it if left out: the value takes its place.

        Example:
            >>> import graphcore as gc, jax.numpy as jnp
            >>> leaf = gc.Param.state(jnp.zeros(2)); leaf.set_value(2.0, index=0)
            >>> leaf.value.tolist()
            [2.0, 0.0]
        """
        if index is not ...:
            # A value of its own: the one that it has may be that of the variable.
            whole: Any = self.value
            if is_ref(whole):  # that of the variable, wherever it is
                whole[index] = value
                return
            if isinstance(whole, dict | list):
                whole = whole.copy()
                whole[index] = value
            else:
                whole = jnp.asarray(whole).at[index].set(value)
            value = whole
        self.value = value

    def get_raw_value(self) -> Any:
        """Returns the value past the hooks, as `raw_value` is."""
        return self.raw_value

    def set_raw_value(self, value: Any) -> None:
        """Sets the value past the hooks, as assignment to `raw_value` does.

        Args:
            value: The value.

        Example:
            >>> import graphcore as gc
            >>> v = gc.Variable(1, on_get_value=lambda v, value: -value)
            >>> v.set_raw_value(2); v.get_raw_value(), v.value
            (2, -2)
        """
        self.raw_value = value

    def get_metadata(self, name: Any = UNSET, default: Any = UNSET) -> Any:
        """Returns an entry of the metadata, or a copy of all of it.

        Args:
            name: The name of the entry; all if left out.
            default: What to return if there is none of that name.

        Returns:
            The entry; or a dict from names to values.

        Raises:
            KeyError: If there is none of that name, and no default.

        Example:
            >>> import graphcore as gc
            >>> v = gc.Variable(1, unit='m')
            >>> v.get_metadata(), v.get_metadata('unit'), v.get_metadata('scale', 1)
            ({'unit': 'm'}, 'm', 1)
        """
        metadata = self._metadata()
        if name is UNSET:
            return dict(metadata)
        name = stored_name(name, metadata)
        if name not in metadata and default is not UNSET:
            return default
        return metadata[name]

    def has_metadata(self, name: str) -> bool:
        """Tells whether there is metadata of a name.

        Args:
            name: The name.

        Returns:
            Whether there is.

        Example:
            >>> import graphcore as gc
            >>> gc.Variable(1, unit='m').has_metadata('unit')
            True
        """
        metadata = self._metadata()
        return stored_name(name, metadata) in metadata

    def __dir__(self) -> set[str]:
        # For completion: what `__getattr__` finds as well.
        return {*super().__dir__(), *self._metadata(), *dir(self.raw_value)}

    def __getattr__(self, name: str) -> Any:
        # Reached only when the class has no such attribute, or a slot is empty.
        if name in _SLOTS or (name.startswith("__") and name.endswith("__")):
            raise AttributeError(name)
        metadata = self._metadata()
        if name in metadata:
            return metadata[name]
        try:
            # Where a sharding is metadata by another name, the array's own is meant.
            return getattr(self.value, name)
        except AttributeError:
            if (known := stored_name(name, metadata)) in metadata:
                return metadata[known]
            raise AttributeError(
                f"{type(self).__name__} has no attribute or metadata {name!r}, and "
                f"neither has its value of type {type(self.value).__name__}."
            ) from None

    @overload
    def __getitem__(self: _HoldsArray, key: Any) -> jax.Array: ...
    @overload
    def __getitem__(self, key: Any) -> Any: ...
    def __getitem__(self, key: Any) -> Any:
        """`x[...]` is the value, or what a `Ref` holds; other keys go to it."""
        found = self.get_value(index=key)
        return found[...] if key is ... and is_ref(found) else found

    def __setitem__(self, key: Any, item: Any) -> None:
        """`x[...] = item` writes into an array that is there; other keys go to it.

        It keeps its shape, dtype and sharding, if the item can be broadcast to it. What
        a `Ref` holds is written likewise, where it is.
        """
        if key is ...:
            whole = self._array_to_write_into()
            if is_ref(whole):
                whole, key = whole[...], ()
            item = written_into(whole, item)
        self.set_value(item, index=key)

    def _array_to_write_into(self) -> Any:
        return self.value

    __repr__ = text
    __treescope_repr__ = treescope_repr


def is_ref(x: Any) -> bool:
    """Whether JAX writes an array where it is."""
    # The last question takes longest. In JAX 0.9.0 a traced `Ref` is an `Array`, too.
    may_be = isinstance(x, jax.core.Tracer) or not isinstance(x, jax.Array)
    return may_be and isinstance(x, jax.Ref)


_SLOTS = frozenset(("_facts", "_kind", "_plan", "_raw_value", "value"))
