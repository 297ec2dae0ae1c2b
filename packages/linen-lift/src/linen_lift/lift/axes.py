"""Axes of collections: one for both directions, or `In` and `Out`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from .. import metadata
from ..errors import SharedVariableError, VariableAxisError
from .pack import Boundary

__all__ = ["In", "Out", "broadcast"]


@dataclasses.dataclass(frozen=True)
class In:
    """An axis for a collection that goes in and does not come out.

    Args:
        axis: the axis; None to share the collection.

    Example:
        >>> import linen_lift as nn
        >>> nn.lift.In(0)
        In(axis=0)
    """

    axis: Any


@dataclasses.dataclass(frozen=True)
class Out:
    """An axis for a collection that is created inside and comes out.

    Args:
        axis: the axis; None if all instances make the same.

    Example:
        >>> import linen_lift as nn
        >>> nn.lift.Out(0)
        Out(axis=0)
    """

    axis: Any


class _Broadcast:
    """The type of `broadcast`."""

    def __repr__(self) -> str:
        return "broadcast"


broadcast = _Broadcast()
"""In the place of a scanned axis: every iteration gets the whole argument.

Example:
    >>> import jax, jax.numpy as jnp, linen_lift as nn
    >>> class Weighted(nn.Module):
    ...     @nn.compact
    ...     def __call__(self, carry, x, weights):
    ...         return carry + x @ weights, None
    >>> scanned = nn.scan(Weighted, in_axes=(0, nn.broadcast))()
    >>> carry, _ = scanned.apply({}, 0.0, jnp.ones((3, 2)), jnp.ones(2))
    >>> float(carry)
    6.0
"""

AxisSpec: TypeAlias = int | None | In | Out


def needs_mapping(name: str, given: Any, what: str) -> None:
    """Refuses an option that is no mapping."""
    if not isinstance(given, Mapping):
        raise TypeError(f"{name} takes {what}; got {given!r}.")


def _one_way(axes: Mapping[Any, AxisSpec], other: type) -> tuple[list[Any], Any]:
    kept = {k: v for k, v in axes.items() if not isinstance(v, other)}
    return list(kept), tuple([getattr(v, "axis", v) for v in kept.values()])


def is_shared(axis: Any) -> bool:
    """Whether what stands in the place of an axis maps nothing."""
    return axis is None or axis is broadcast


def _per_group(
    fn: Callable[..., Any], groups: Any, axes: Sequence[Any], *how: Any
) -> Any:
    """The groups of variables, with `fn(group, axis, *how)` of those with an axis."""
    return tuple(
        group if is_shared(axis) else fn(group, axis, *how)
        for group, axis in zip(groups, axes, strict=True)
    )


class VariableAxes:
    """The axes that collections are mapped over on the way in, and on the way out.

    Args:
        axes: an axis by collection filter.
        params: the `metadata_params` of the transform.

    Raises:
        TypeError: if `axes` is no mapping, or an axis no integer.
    """

    def __init__(self, axes: Mapping[Any, AxisSpec], params: Mapping[Any, Any]) -> None:
        what = "an axis by collection, such as {'params': 0}"
        needs_mapping("variable_axes", axes, what)
        self.in_filters, self.in_axes = _one_way(axes, Out)
        self.out_filters, self.out_axes = _one_way(axes, In)
        self._params = params
        for axis in (*self.in_axes, *self.out_axes):
            if not (is_shared(axis) or hasattr(axis, "__index__")):
                raise TypeError(
                    f"variable_axes takes {what}; got {axis!r} in {axes!r}."
                )

    def cut(self, groups: Any) -> Any:
        """Tells the boxes in groups of variables that their axis is mapped over."""
        return _per_group(metadata.remove_axis, groups, self.in_axes, self._params)

    def checked_cut(self, groups: Any, call: Boundary) -> Any:
        """As `cut`; refuses to map variables over axes that they have not.

        A box may put a value of another shape together for that: it is what is mapped.

        Args:
            groups: groups of variables, by packed scope.
            call: the call that they take part in.

        Returns:
            The groups.

        Raises:
            VariableAxisError: if a variable has no such axis.
        """
        try:
            mapped = self.cut(groups)
        except Exception:
            _check(groups, self.in_axes, call)  # tells where
            raise
        _check(mapped, self.in_axes, call)
        return mapped

    def note(self, groups: Any) -> Any:
        """Tells the boxes in groups of variables that an axis was stacked on."""
        return _per_group(metadata.add_axis, groups, self.out_axes, self._params)

    def check_out(self, groups: Any, call: Boundary, new: int = 0) -> None:
        """Refuses to stack variables along axes that they have not.

        Args:
            groups: groups of variables, by packed scope.
            call: the call that they take part in.
            new: how many axes the variables get by being stacked.
        """
        _check(groups, self.out_axes, call, new)

    def check_shared(self, groups: Any, call: Boundary, axis_name: Any) -> None:
        """Refuses to share variables that have a value for each instance of a vmap.

        JAX tells the rule of an operation which of its operands are mapped.

        Args:
            groups: groups of variables, by packed scope.
            call: the call that they take part in.
            axis_name: the name of the mapped axis.
        """

        @jax.custom_batching.custom_vmap
        def look(index: Any, groups: Any) -> Any:
            return groups

        @look.def_vmap
        def rule(axis_size: int, mapped: Any, index: Any, groups: Any) -> Any:
            for path, is_mapped in jax.tree_util.tree_leaves_with_path(mapped[1]):
                if is_mapped:
                    raise SharedVariableError(*call.place(path))
            return groups, mapped[1]

        shared = [
            group if axis is None else ()
            for group, axis in zip(groups, self.out_axes, strict=True)
        ]
        look(jax.lax.axis_index(axis_name), shared)


def _check(groups: Any, axes: Sequence[Any], call: Boundary, new: int = 0) -> None:
    def check_group(group: Any, axis: int) -> None:
        for path, x in jax.tree_util.tree_leaves_with_path(group):
            ndim = jnp.ndim(x) + new
            if not -ndim <= axis < ndim:
                raise VariableAxisError(*call.place(path), axis=axis, ndim=ndim)

    _per_group(check_group, groups, axes)


def mapped_size(axes: Any, tree: Any) -> int | None:
    """The size of the first axis that is mapped over, or None.

    Args:
        axes: a prefix of `tree` with axes; None and `broadcast` map nothing.
        tree: a pytree of arrays.

    Raises:
        IndexError: if that array has no such axis.
    """
    flat, treedef = jax.tree.flatten(axes, is_leaf=is_shared)
    for axis, part in zip(flat, treedef.flatten_up_to(tree), strict=True):
        if not is_shared(axis):
            for leaf in jax.tree.leaves(part):
                shape = jnp.shape(leaf)
                if not -len(shape) <= axis < len(shape):
                    raise IndexError(
                        f"Cannot map an argument of shape {shape} over axis {axis}: "
                        "in_axes must name one that it has."
                    )
                size: int = shape[axis]
                return size
    return None


class Splits:
    """Which random streams are split.

    Args:
        split_rngs: whether to split, by stream filter.

    Raises:
        TypeError: if it is no mapping.
    """

    def __init__(self, split_rngs: Mapping[Any, bool]) -> None:
        what = "a bool by stream, such as {'params': True}"
        needs_mapping("split_rngs", split_rngs, what)
        self.filters, self.flags = list(split_rngs), list(split_rngs.values())

    def names(self, groups: Any) -> list[str]:
        """The streams in groups that are split."""
        pairs = zip(groups, self.flags, strict=True)
        return [
            name for group, flag in pairs if flag for keys in group for name in keys
        ]

    def map(self, fn: Callable[[Any], Any], groups: Any) -> Any:
        """The groups of streams, with `fn` of the keys that are to be split."""
        return tuple(
            jax.tree.map(fn, group) if flag else group
            for group, flag in zip(groups, self.flags, strict=True)
        )

    def split(self, groups: Any, size: int | None, transform: str) -> Any:
        """Splits the streams of the groups that are to be split.

        Args:
            groups: groups of streams.
            size: into how many keys.
            transform: the name of the transform, for the error.

        Returns:
            The groups; a key that was split has a new first axis.

        Raises:
            ValueError: if the size is needed and not known.
        """
        if not self.names(groups):
            return groups
        if size is None:
            raise ValueError(
                f"Lifted {transform} cannot tell into how many keys to split the "
                "random streams: nothing is mapped over. Pass the size."
            )
        return self.map(lambda key: jax.random.split(key, size), groups)
