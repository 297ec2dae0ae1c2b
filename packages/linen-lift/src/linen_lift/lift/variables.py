"""Lifts that change what a scope function sees, without a JAX transform."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp

from .. import filters
from ..frozen_dict import unfreeze
from . import axes
from .pack import Boundary, packed

__all__ = ["add_metadata_axis", "fold_rngs", "map_variables", "swap_collection"]


def _same(collections: Any) -> Any:
    return collections


def map_variables(
    fn: Callable[..., Any],
    mapped_collections: filters.CollectionFilter = True,
    trans_in_fn: Callable[[Any], Any] = _same,
    trans_out_fn: Callable[[Any], Any] = _same,
    init: bool = False,
    mutable: bool = False,
    rngs: filters.StreamFilter = True,
    variables: filters.CollectionFilter = True,
) -> Callable[..., Any]:
    """Shows a scope function a transformed view of some collections.

    Args:
        fn: a function whose first argument is a scope.
        mapped_collections: the collections to transform.
        trans_in_fn: makes the view of `{collection: variables}`.
        trans_out_fn: makes stored collections of a view.
        init: whether variables may be created: where there are none, `fn` runs once
            without the view, creating them, and again on the view of what
            `trans_out_fn` made of those.
        mutable: whether variables of the view may be changed.
        rngs: the streams that `fn` sees.
        variables: further collections that it sees.

    Returns:
        The function of a scope.

    Example:
        >>> import linen_lift as nn
        >>> def double(collections):
        ...     return {'params': {'w': 2 * collections['params']['w']}}
        >>> def read(scope):
        ...     return scope.get_variable('params', 'w')
        >>> nn.scope.apply(nn.lift.map_variables(read, 'params', double))(
        ...     {'params': {'w': 3}})
        6
    """
    groups = mapped_collections, variables
    left = groups
    closed: filters.CollectionFilter = True
    if not (mutable or init):
        left = False, filters.subtract_filters(variables, mapped_collections)
        closed = filters.subtract_filters(True, mapped_collections)

    def inner(call: Boundary, /, *args: Any, **kwargs: Any) -> Any:
        stored, others = call.variables

        def out(views: Any) -> Any:
            return tuple(trans_out_fn(view) if view else {} for view in views)

        created: Any = tuple({} for _ in stored)
        if init and call.can_write(mapped_collections) and not any(stored):
            first = call((stored, others), call.streams)
            fn(first, *args, **kwargs)
            stored = created = out(call.collect(first)[0])
        views = tuple(trans_in_fn(unfreeze(cols)) for cols in stored)
        scope = call((views, others), call.streams, closed)
        result = fn(scope, *args, **kwargs)
        after, rest = call.collect(scope)
        # A view that was only read need not go back: what it was made of is stored.
        changed, _ = call.collect(scope, changed_only=True)
        written = out(
            view if diff else {} for view, diff in zip(after, changed, strict=True)
        )
        kept = zip(written, created, strict=True)
        return result, (tuple(new or old for new, old in kept), rest)

    return packed(inner, groups, left, (rngs,), "map_variables")


def swap_collection(
    fn: Callable[..., Any], col_a: str, col_b: str
) -> Callable[..., Any]:
    """Shows a scope function two collections under each other's names.

    Args:
        fn: a function whose first argument is a scope.
        col_a: the name of a collection.
        col_b: the name of another.

    Returns:
        The function of a scope.

    Example:
        >>> import linen_lift as nn
        >>> def read(scope):
        ...     return scope.get_variable('params', 'w')
        >>> nn.scope.apply(nn.lift.swap_collection(read, 'params', 'ema'))(
        ...     {'params': {'w': 1}, 'ema': {'w': 2}})
        2
    """
    other = {col_a: col_b, col_b: col_a}

    def swap(collections: Mapping[str, Any]) -> dict[str, Any]:
        return {other.get(k, k): v for k, v in collections.items()}

    return map_variables(fn, (col_a, col_b), swap, swap, mutable=True)


def fold_rngs(
    fn: Callable[..., Any],
    variables: filters.CollectionFilter = True,
    rngs: filters.StreamFilter = True,
) -> Callable[..., Any]:
    """Makes the computation of a scope function independent of its path.

    The part of each key's number that stands for the path up to the scope is computed
    once and enters as an array. Keys are as they would be, but the operations inside
    are the same wherever the function is used, so a compiler can share its work.

    Args:
        fn: a function whose first argument is a scope.
        variables: the collections that `fn` sees.
        rngs: the streams that it sees.

    Returns:
        The function of a scope.

    Example:
        >>> import linen_lift as nn, jax
        >>> def draw(scope):
        ...     return scope.make_rng()
        >>> one = nn.scope.apply(draw)({}, rngs=jax.random.key(0))
        >>> two = nn.scope.apply(nn.lift.fold_rngs(draw))({}, rngs=jax.random.key(0))
        >>> bool(one == two)
        True
    """

    def inner(call: Boundary, /, *args: Any, **kwargs: Any) -> Any:
        offsets = path_offsets(call.roots)
        return call.run(fn, call.variables, call.streams, args, kwargs, offsets)

    return packed(inner, (variables,), (variables,), (rngs,), name="fold_rngs")


def path_offsets(roots: Any) -> tuple[Any, ...]:
    """The number of each scope's path, as a uint32 scalar.

    Args:
        roots: scopes.

    Returns:
        One scalar per scope, traced where an outer transform made it so.
    """
    return tuple(jnp.asarray(root._tree.origin.number_of(root.path)) for root in roots)


def add_metadata_axis(
    fn: Callable[..., Any],
    variable_axes: Mapping[filters.CollectionFilter, axes.AxisSpec] = {},
    metadata_params: Mapping[Any, Any] = {},
) -> Callable[..., Any]:
    """Adds an axis to the boxes of variables, where `fn` stacked one by itself.

    Args:
        fn: a function whose first argument is a scope.
        variable_axes: the axis by collection. Inside, boxes do not have the axis.
        metadata_params: passed to the boxes.

    Returns:
        The function of a scope.

    Example:
        >>> import linen_lift as nn, jax
        >>> def f(scope):
        ...     init = nn.with_partitioning(nn.initializers.ones, ('rows',))
        ...     return scope.param('w', init, (4, 2))
        >>> params = {nn.PARTITION_NAME: 'layers'}
        >>> f = nn.lift.add_metadata_axis(f, {'params': 0}, params)
        >>> nn.scope.init(f)(jax.random.key(0))[1]['params']['w'].names
        ('layers', 'rows')
    """
    stacked = axes.VariableAxes(variable_axes, metadata_params)

    def inner(call: Boundary, /, *args: Any, **kwargs: Any) -> Any:
        *cut, others = call.variables
        groups = (*stacked.cut(cut), others)
        out, left = call.run(fn, groups, call.streams, args, kwargs)
        *changed, rest = left
        return out, (*stacked.note(changed), rest)

    groups = (*stacked.in_filters, True), (*stacked.out_filters, True), (True,)
    return packed(inner, *groups, "add_metadata_axis")
