"""What can be read and set of a variable, and of its state alike."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from graphcore.display.printing import text, treescope_repr
from graphcore.hashable_mapping import HashableMapping
from graphcore.variables.metadata import stored_name

MISSING: Any = object()


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
    if not isinstance(array, jax.Array | np.ndarray):
        return value
    if isinstance(value, Reading):  # another variable, or the state of one
        value = value.value
    if _is_alike(array, value) or not isinstance(value, _NUMERIC):
        return value
    try:
        shape = np.broadcast_shapes(np.shape(value), array.shape)
    except ValueError:
        return value
    if shape != array.shape:
        return value
    new = jnp.asarray(array).at[...].set(value)
    if isinstance(array, jax.Array) and not _is_alike(array, new):
        new = jax.device_put(new, array.sharding)  # JAX 0.8 places it anew
    return new


_NUMERIC = (jax.Array, np.ndarray, np.generic, bool, int, float, complex)


def _is_alike(array: Any, value: Any) -> bool:
    """Whether a value is an array that fits into the place of another one as it is."""
    if not isinstance(value, jax.Array | np.ndarray):
        return False
    if value.shape != array.shape or value.dtype != array.dtype:
        return False
    if not (isinstance(array, jax.Array) and isinstance(value, jax.Array)):
        return True
    # Under a trace, JAX chooses the sharding.
    is_traced = any(isinstance(x, jax.core.Tracer) for x in (array, value))
    return is_traced or bool(value.sharding == array.sharding)


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

    def set_value(self, value: Any, *, index: Any = MISSING) -> None:
        """Sets the value, or a part of it, as assignment to it or its items does.

        Args:
            value: The value, or that of the part.
            index: Which part of the array that is there: it keeps its shape and dtype.
                So it does if `...` stands for all of it, and the value can be
                broadcast to it. Left out, the value takes its place.

        Example:
            >>> import graphcore as gc, jax.numpy as jnp
            >>> leaf = gc.Param.state(jnp.zeros(2)); leaf.set_value(2.0, index=0)
            >>> leaf.value.tolist()
            [2.0, 0.0]
        """
        if index is ...:
            value = written_into(self.value, value)
        elif index is not MISSING:
            # A value of its own: the one that it has may be that of the variable.
            whole: Any = self.value
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

    def get_metadata(self, name: Any = MISSING, default: Any = MISSING) -> Any:
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
        if name is MISSING:
            return dict(metadata)
        name = stored_name(name, metadata)
        if name not in metadata and default is not MISSING:
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

    def __getitem__(self, key: Any) -> Any:
        """`x[...]` is the value; other keys go to it."""
        return self.get_value(index=key)

    def __setitem__(self, key: Any, item: Any) -> None:
        self.set_value(item, index=key)

    __repr__ = text
    __treescope_repr__ = treescope_repr


_SLOTS = frozenset(("_facts", "_kind", "_plan", "_raw_value", "value"))
