"""Lifted `vmap`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax

from ..errors import SharedVariableError
from ..filters import CollectionFilter, StreamFilter
from . import axes
from .pack import Boundary, packed

__all__ = ["vmap"]

# The axis of the instances, where it has no name.
_INSTANCES = object()


def vmap(
    fn: Callable[..., Any],
    variable_axes: Mapping[CollectionFilter, axes.AxisSpec] = {},
    split_rngs: Mapping[StreamFilter, bool] = {},
    in_axes: Any = 0,
    out_axes: Any = 0,
    axis_size: int | None = None,
    axis_name: Any = None,
    spmd_axis_name: Any = None,
    metadata_params: Mapping[Any, Any] = {},
) -> Callable[..., Any]:
    """Lifted `jax.vmap`: maps a scope function over an axis.

    Args:
        fn: a function whose first argument is a scope.
        variable_axes: for each collection, the axis along which its variables are
            stacked, or None to share them. `In` and `Out` give an axis for one
            direction. Collections that are not named are not seen inside.
        split_rngs: for each stream, whether the instances get different keys.
            Streams that are not named are not seen inside.
        in_axes: as in `jax.vmap`, for the arguments after the scope. Keyword
            arguments are mapped over their first axis.
        out_axes: as in `jax.vmap`.
        axis_size: the number of instances, where nothing mapped tells.
        axis_name: as in `jax.vmap`.
        spmd_axis_name: as in `jax.vmap`.
        metadata_params: passed to the boxes whose axis is added or removed.

    Returns:
        The mapped function of a scope.

    Raises:
        SharedVariableError: when a variable with axis None comes out with a value for
            each instance.

    Example:
        >>> import linen_lift as nn, jax
        >>> def shift(scope, x):
        ...     return x + scope.param('b', nn.initializers.normal(), ())
        >>> shifts = nn.lift.vmap(shift, {'params': 0}, {'params': True})
        >>> out, variables = nn.scope.init(shifts)(jax.random.key(0), jax.numpy.ones(3))
        >>> variables['params']['b'].shape
        (3,)
    """
    mapped = axes.VariableAxes(variable_axes, metadata_params)
    splits = axes.Splits(split_rngs)
    rng_axes = tuple(0 if split else None for split in splits.flags)
    arg_axes = tuple(in_axes) if isinstance(in_axes, list) else in_axes

    def inner(call: Boundary, /, *args: Any, **kwargs: Any) -> Any:
        variable_groups = mapped.checked_cut(call.variables, call)
        size = axis_size
        if size is None and any(splits.flags):
            given = variable_groups, args, kwargs
            size = axes.mapped_size((mapped.in_axes, arg_axes, 0), given)
        rng_groups = splits.split(call.streams, size, "vmap")

        def map_over(function: Callable[..., Any], out_axes: Any, name: Any) -> Any:
            return jax.vmap(
                function,
                in_axes=(mapped.in_axes, rng_axes, arg_axes, 0),
                out_axes=out_axes,
                axis_size=axis_size,
                axis_name=name,
                spmd_axis_name=spmd_axis_name,
            )(variable_groups, rng_groups, args, kwargs)

        def one(*inner: Any) -> Any:
            out, left = call.run(fn, *inner)
            mapped.check_out(left, call, new=1)
            return out, left

        def look(*inner: Any) -> None:
            mapped.check_shared(call.run(fn, *inner)[1], call, name)

        name = _INSTANCES if axis_name is None else axis_name
        try:
            out, variables = map_over(one, (out_axes, mapped.out_axes), axis_name)
        except ValueError as error:  # JAX's, if what is shared differs
            try:
                jax.eval_shape(lambda: map_over(look, None, name))
            except SharedVariableError as found:
                raise found from error
            except Exception:  # The first error is the one to report.
                pass
            raise
        return out, mapped.note(variables)

    groups = mapped.in_filters, mapped.out_filters, splits.filters
    return packed(inner, *groups, name="vmap")
