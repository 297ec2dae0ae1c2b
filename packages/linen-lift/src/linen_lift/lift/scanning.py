"""Lifted `scan`.

Three kinds of collections take part. *Broadcast* ones are the same in every iteration
and closed over; *carried* ones go from one iteration to the next; the others are
*scanned*: each iteration has its slice. Where all variables exist, the body is traced
once, as in `jax.lax.scan`. Two cases need more, both only when variables are created:

* New broadcast variables must not depend on an iteration, so they are computed
  beforehand by evaluating that part of the body which depends on no iteration.
* New carried variables have no value before the first iteration, so that iteration
  runs outside of the loop.
"""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from typing import Any

import jax
import jax.numpy as jnp

from graphcore import broadcast_prefix

from .. import filters
from ..dataflow import evaluate_independent
from ..errors import BroadcastVariableError
from ..tree import joined
from . import axes
from .pack import Boundary, checked_pair, packed, refuse_created

__all__ = ["scan"]


_RULE = "The function of a lifted scan must return a pair (carry, ys)"
_NONE_LATER = "later iterations cannot create one"
_NONE_AT_ALL = "none can be created in 0 iterations (length=0)"


def _moved(tree: Any, source: int, destination: int) -> Any:
    if source == destination:
        return tree
    return jax.tree.map(lambda x: jnp.moveaxis(x, source, destination), tree)


def _chosen(parts: Sequence[Any], shared: Sequence[Any]) -> list[Any]:
    """What an iteration gets: its part, or what all share where there is none."""
    pairs = zip(parts, shared, strict=True)
    return [whole if part is None else part for part, whole in pairs]


def _place_outputs(ys: Any, out_axes: Any) -> Any:
    leaves, treedef = jax.tree.flatten(ys)
    places = broadcast_prefix(out_axes, ys, axes.is_shared)
    return treedef.unflatten(
        y[-1] if axes.is_shared(axis) else _moved(y, 0, axis)
        for y, axis in zip(leaves, places, strict=True)
    )


def scan(
    fn: Callable[..., Any],
    variable_axes: Mapping[filters.CollectionFilter, axes.AxisSpec] = {},
    variable_broadcast: filters.CollectionFilter = False,
    variable_carry: filters.CollectionFilter = False,
    split_rngs: Mapping[filters.StreamFilter, bool] = {},
    in_axes: Any = 0,
    out_axes: Any = 0,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    data_transform: Callable[..., Any] | None = None,
    metadata_params: Mapping[Any, Any] = {},
    _split_transpose: bool = False,
    check_constancy_invariants: bool = True,
) -> Callable[..., Any]:
    """Lifted `jax.lax.scan`: a loop over a scope function.

    Args:
        fn: a function `(scope, carry, *xs) -> (carry, ys)`.
        variable_axes: for each collection, the axis along which the iterations'
            variables are stacked. `In` and `Out` give an axis for one direction.
        variable_broadcast: collections that all iterations share. They can be
            created, but not changed.
        variable_carry: collections whose changes the next iteration sees.
        split_rngs: for each stream, whether the iterations get different keys.
        in_axes: the axis of each `xs` to loop over, as a prefix; `broadcast` gives
            every iteration the whole argument.
        out_axes: the axis of `ys` along which results are stacked, as a prefix;
            `broadcast` returns the last iteration's alone.
        length: the number of iterations, where nothing scanned tells.
        reverse: whether to start from the end.
        unroll: as in `jax.lax.scan`.
        data_transform: applied inside to `(variable_groups, rng_groups)` before the
            scope is made; the groups are broadcast, carried, then scanned ones.
        metadata_params: passed to the boxes whose axis is added or removed.
        _split_transpose: as in `jax.lax.scan`.
        check_constancy_invariants: without effect. Where no broadcast variable is
            created there is nothing to check, and no time spent on it.

    Returns:
        The looping function `(scope, carry, *xs) -> (carry, ys)`.

    Raises:
        TypeError: if an axis is no integer.
        BroadcastVariableError: when a broadcast variable is created from the carry,
            from a stream that is split, or from scanned data.
        CarriedVariableError: when a carried variable is created in no iteration.

    Example:
        >>> import linen_lift as nn, jax
        >>> def layer(scope, x, _):
        ...     return x * scope.param('w', nn.initializers.ones, ()), None
        >>> layers = nn.lift.scan(layer, {'params': 0}, length=4,
        ...                       split_rngs={'params': True})
        >>> _, variables = nn.scope.init(layers)(jax.random.key(0), 2.0, None)
        >>> variables['params']['w'].shape
        (4,)
    """
    mapped = axes.VariableAxes(variable_axes, metadata_params)
    if any(map(axes.is_shared, (*mapped.in_axes, *mapped.out_axes))):
        raise TypeError(
            "variable_axes of scan takes an axis for each collection, along which the "
            f"iterations' variables are stacked; got {variable_axes!r}. Name a "
            "collection that they share in variable_broadcast."
        )
    splits = axes.Splits(split_rngs)
    not_broadcast = filters.subtract_filters(True, variable_broadcast)
    arg_axes = tuple(in_axes) if isinstance(in_axes, list) else in_axes
    over = functools.partial(
        jax.lax.scan, reverse=reverse, unroll=unroll, _split_transpose=_split_transpose
    )

    def inner(call: Boundary, init: Any, *args: Any) -> Any:
        shared, carried, *stacked = call.variables
        stacked = mapped.checked_cut(stacked, call)
        leaves, treedef = jax.tree.flatten(args)
        places = broadcast_prefix(arg_axes, args, axes.is_shared)
        size = length
        if size is None:
            given = stacked, leaves
            size = axes.mapped_size((mapped.in_axes, places), given)
        keys = splits.split(call.streams, size, "scan")
        # None for what all iterations share: they close over it.
        xs = (
            list(map(_moved, stacked, mapped.in_axes, repeat(0))),
            [k if s else None for k, s in zip(keys, splits.flags, strict=True)],
            [
                None if axes.is_shared(axis) else _moved(x, axis, 0)
                for x, axis in zip(leaves, places, strict=True)
            ],
        )
        # Immutable collections cannot change: they need not be carried.
        moving = call.writable(carried)
        state: Any = moving, init
        created: Any = tuple({} for _ in shared)
        may_grow, grew = size != 0, False

        def iteration(state: Any, xs: Any, mutable: Any = not_broadcast) -> Any:
            """The next state, what is stacked, and the new broadcast variables."""
            nonlocal grew
            moving, carry = state
            stacked, split, slices = xs
            streams = tuple(_chosen(split, call.streams))
            groups = (shared, tuple(map(operator.or_, carried, moving)), *stacked)
            if data_transform is not None:
                groups, streams = data_transform(groups, streams)
            scope = call(groups, streams, mutable)
            out = fn(scope, carry, *treedef.unflatten(_chosen(slices, leaves)))
            carry, ys = checked_pair(out, _RULE)
            _, now, *_ = call.collect(scope)
            grew = may_grow and jax.tree.structure(now) != jax.tree.structure(moving)
            new_shared, _, *stacked = call.collect(scope, changed_only=True)
            return (now, carry), (ys, stacked), new_shared

        def body(state: Any, xs: Any) -> Any:
            new, outs, _ = iteration(state, xs)
            if grew:
                # The trace is finished all the same, although the results mean
                # nothing: JAX would keep what an abandoned one closes over.
                return state, None
            if not may_grow:
                reason = _NONE_LATER if size else _NONE_AT_ALL
                refuse_created(state[0], new[0], call, "scan", reason)
            return new, outs

        # Where no carried variables are, they are often about to be made. To find out
        # costs a trace of one iteration, which is less than a loop in vain.
        stored = all(any(cols.values()) for cols in moving)
        may_fill = may_grow and not stored and call.can_write(variable_carry)
        if may_fill or call.can_write(variable_broadcast):

            def create(state: Any, xs: Any) -> Any:
                return iteration(state, xs, mutable=True)[2]

            first = _one_iteration(state, xs)
            created, key_path = evaluate_independent(create, *first)
            if key_path is not None:
                split = set(splits.names(call.streams))
                raise BroadcastVariableError(*call.place(key_path), split)
            shared = tuple(map(joined, shared, created))
        if not grew:
            end, outs = over(body, state, xs, length=length)
        if grew:
            # The first iteration makes carried variables: it is computed apart.
            may_grow = False
            fewer = None if length is None else length - 1
            others = functools.partial(over, body, length=fewer)
            end, outs = _apart(iteration, others, state, xs, reverse)

        (carried_out, carry), (ys, stacked_out) = end, outs
        mapped.check_out(stacked_out, call)
        stacked_out = list(map(_moved, stacked_out, repeat(0), mapped.out_axes))
        left = (created, carried_out, *mapped.note(stacked_out))
        return (carry, _place_outputs(ys, out_axes)), left

    both = variable_broadcast, variable_carry
    groups = (*both, *mapped.in_filters), (*both, *mapped.out_filters), splits.filters
    loop_over = packed(inner, *groups, "scan")

    @functools.wraps(fn)
    def wrapper(scope: Any, /, *args: Any, **kwargs: Any) -> Any:
        if not kwargs:
            return loop_over(scope, *args)
        # A loop has no keyword arguments; they take their positions.
        bound = inspect.signature(fn).bind(scope, *args, **kwargs)
        if bound.kwargs:
            raise TypeError(
                "A lifted scan takes no keyword-only arguments; found "
                f"{', '.join(bound.kwargs)}."
            )
        return loop_over(*bound.args)

    return wrapper


def _one_iteration(state: Any, xs: Any) -> tuple[Any, Any]:
    """What the first iteration gets, as shapes and types."""
    state, xs = jax.eval_shape(lambda: (state, xs))
    one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), xs)
    return state, one


def _apart(iteration: Any, others: Any, state: Any, xs: Any, reverse: bool) -> Any:
    """A loop whose first iteration runs outside of the loop over the others."""
    place, rest = (-1, slice(None, -1)) if reverse else (0, slice(1, None))
    state, first, _ = iteration(state, jax.tree.map(lambda x: x[place], xs))
    end, more = others(state, jax.tree.map(lambda x: x[rest], xs))

    def stacked(one: Any, more: Any) -> jax.Array:
        one = jnp.asarray(one)[None]
        return jnp.concatenate([more, one] if reverse else [one, more])

    return end, jax.tree.map(stacked, first, more)
