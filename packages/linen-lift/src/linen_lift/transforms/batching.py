"""`vmap` and `scan` of modules."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from .. import lift
from ..filters import CollectionFilter, StreamFilter
from ..lift.axes import AxisSpec
from .frame import Frame
from .targets import Core, Methods, Runner, lift_target

__all__ = ["scan", "vmap"]


def vmap(
    target: Any,
    variable_axes: Mapping[CollectionFilter, AxisSpec] = {},
    split_rngs: Mapping[StreamFilter, bool] = {},
    in_axes: Any = 0,
    out_axes: Any = 0,
    axis_size: int | None = None,
    axis_name: Any = None,
    spmd_axis_name: Any = None,
    metadata_params: Mapping[Any, Any] = {},
    methods: Methods = None,
) -> Any:
    """Lifted `jax.vmap`: many instances of a module at once.

    Args:
        target: a module class, a `functools.partial` of one, or a function of a
            module.
        variable_axes: for each collection, the axis along which the instances'
            variables are stacked, or None to share them. `In` and `Out` give an axis
            for one direction. Collections that are not named are not seen inside.
        split_rngs: for each stream, whether the instances get different keys.
            Streams that are not named are not seen inside.
        in_axes: as in `jax.vmap`, for the arguments after the module. Keyword
            arguments are mapped over their first axis.
        out_axes: as in `jax.vmap`.
        axis_size: the number of instances, where nothing mapped tells.
        axis_name: as in `jax.vmap`.
        spmd_axis_name: as in `jax.vmap`.
        metadata_params: passed to the boxes whose axis is added or removed.
        methods: the methods of a class to transform (`__call__` by default), or a
            mapping from them to options.

    Returns:
        A class or function like `target`.

    Raises:
        TransformTargetError: if `target` is something else.

    Example:
        >>> import linen_lift as nn, jax, jax.numpy as jnp
        >>> Heads = nn.vmap(nn.Dense, variable_axes={'params': 0},
        ...                 split_rngs={'params': True}, in_axes=None, axis_size=4)
        >>> variables = Heads(2).init(jax.random.key(0), jnp.ones(3))
        >>> variables['params']['kernel'].shape
        (4, 3, 2)
    """

    def build(fn: Callable[..., Any], **options: Any) -> Runner:
        def runner(core: Core, frame: Frame) -> Any:
            lifted = lift.vmap(core, **options)
            return lifted(frame.scopes, *frame.args, **frame.kwargs)

        return runner

    options = {
        "variable_axes": variable_axes,
        "split_rngs": split_rngs,
        "in_axes": in_axes,
        "out_axes": out_axes,
        "axis_size": axis_size,
        "axis_name": axis_name,
        "spmd_axis_name": spmd_axis_name,
        "metadata_params": metadata_params,
    }
    return lift_target(target, "vmap", "Vmap", build, options, methods)


def scan(
    target: Any,
    variable_axes: Mapping[CollectionFilter, AxisSpec] = {},
    variable_broadcast: CollectionFilter = False,
    variable_carry: CollectionFilter = False,
    split_rngs: Mapping[StreamFilter, bool] = {},
    in_axes: Any = 0,
    out_axes: Any = 0,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    data_transform: Callable[..., Any] | None = None,
    metadata_params: Mapping[Any, Any] = {},
    methods: Methods = None,
) -> Any:
    """Lifted `jax.lax.scan`: a module called in a loop.

    The method has the signature `(module, carry, *xs) -> (carry, ys)`.

    Args:
        target: a module class, a `functools.partial` of one, or a function of a
            module.
        variable_axes: for each collection, the axis along which the iterations'
            variables are stacked. `In` and `Out` give an axis for one direction.
        variable_broadcast: collections that all iterations share. They can be
            created, but not changed.
        variable_carry: collections whose changes the next iteration sees.
        split_rngs: for each stream, whether the iterations get different keys.
        in_axes: the axis of each of `xs` to loop over, as a prefix; `broadcast` gives
            every iteration the whole argument.
        out_axes: the axis of `ys` along which results are stacked, as a prefix;
            `broadcast` returns the last iteration's alone.
        length: the number of iterations, where nothing scanned tells.
        reverse: whether to start from the end.
        unroll: as in `jax.lax.scan`.
        data_transform: applied inside to `(variable_groups, rng_groups)` before the
            scope is made; the groups are broadcast, carried, then scanned ones.
        metadata_params: passed to the boxes whose axis is added or removed.
        methods: the methods of a class to transform (`__call__` by default), or a
            mapping from them to options.

    Returns:
        A class or function like `target`.

    Raises:
        TransformTargetError: if `target` is something else.
        BroadcastVariableError: when a broadcast variable is created from the carry or
            from scanned data.

    Example:
        >>> import linen_lift as nn, jax, jax.numpy as jnp
        >>> Rnn = nn.scan(nn.GRUCell, variable_broadcast='params',
        ...               split_rngs={'params': False}, in_axes=1, out_axes=1)
        >>> x, carry = jnp.ones((2, 5, 3)), jnp.zeros((2, 4))
        >>> (last, ys), _ = Rnn(4).init_with_output(jax.random.key(0), carry, x)
        >>> last.shape, ys.shape
        ((2, 4), (2, 5, 4))
    """

    def build(fn: Callable[..., Any], **options: Any) -> Runner:
        def runner(core: Core, frame: Frame) -> Any:
            args = frame.args
            if frame.kwargs:
                # A loop has no keyword arguments; they take their positions.
                bound = inspect.signature(fn).bind(frame.module, *args, **frame.kwargs)
                if bound.kwargs:
                    raise TypeError(
                        "A lifted scan takes no keyword-only arguments; found "
                        f"{', '.join(bound.kwargs)}."
                    )
                args = bound.args[1:]
            return lift.scan(core, **options)(frame.scopes, *args)

        return runner

    options = {
        "variable_axes": variable_axes,
        "variable_broadcast": variable_broadcast,
        "variable_carry": variable_carry,
        "split_rngs": split_rngs,
        "in_axes": in_axes,
        "out_axes": out_axes,
        "length": length,
        "reverse": reverse,
        "unroll": unroll,
        "data_transform": data_transform,
        "metadata_params": metadata_params,
    }
    return lift_target(target, "scan", "Scan", build, options, methods)
