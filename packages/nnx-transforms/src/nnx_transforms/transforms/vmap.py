"""`vmap`: a function of one example, applied to a batch, over live objects."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

import jax

from nnx_transforms.transforms.lifting import Callee, take
from nnx_transforms.transforms.mapped_arguments import (
    NO_METADATA,
    axes_of_arguments,
    check_axes,
    check_plain_call,
    has_objects,
    updated_by,
    with_positions,
)
from nnx_transforms.transforms.mapping import (
    MappedBody,
    check_plain_prefix,
    plain_prefix,
)
from nnx_transforms.transforms.mapping_errors import (
    check_broadcast,
    check_out_ranks,
    check_sizes,
)

__all__ = ["vmap"]


def vmap(
    f: Callable[..., Any] | None = None,
    in_axes: Any = 0,
    out_axes: Any = 0,
    axis_name: Any = None,
    axis_size: int | None = None,
    spmd_axis_name: Any = None,
    *,
    transform_metadata: Mapping[str, Any] = NO_METADATA,
    **more: Any,
) -> Any:
    """Maps a function over axes of arrays, and of the variables of objects.

    The function takes and returns any pytrees with graph nodes and variables in them.
    Inside, a mapped variable has the value for one index. What the function does to
    objects is visible in the caller's own objects afterwards: written values stacked
    along the variable's axis, new variables along the axis of the object they are in.

    Args:
        f: The function. Left out, `vmap` returns a decorator.
        in_axes: As for `jax.vmap`. For an object: an axis of all its variables (None
            for one value for all indices), or a `StateAxes`.
        out_axes: Likewise, for the output. An argument that is returned must have
            the same axes here as there.
        axis_name: As for `jax.vmap`.
        axis_size: As for `jax.vmap`.
        spmd_axis_name: As for `jax.vmap`.
        transform_metadata: With a `PARTITION_NAME`, the name of the mapped axis in
            the sharding metadata of mapped variables: it is removed on their way in
            and added on their way out.
        **more: Further arguments that the installed `jax.vmap` takes.

    Returns:
        The mapped function. Keyword arguments that have a position are mapped as at
        that position if an object is among the arguments or `in_axes` gives more axes
        than there are positional arguments; others over their first axis.

    Raises:
        ValueError: At a call, if an object is reached under different axes, if a
            variable with axis None would become different for different indices, or if
            the sizes of mapped axes differ; with the paths.
        TypeError: If an axis is no integer or None.

    Example:
        >>> import nnx_transforms as nnx, jax, jax.numpy as jnp
        >>> @nnx.vmap(in_axes=0, out_axes=nnx.StateAxes({nnx.Param: 0, ...: None}))
        ... def make(key):
        ...     return nnx.Linear(2, 3, rngs=nnx.Rngs(key))
        >>> stack = make(jax.random.split(jax.random.key(0), 5))
        >>> stack.kernel.value.shape
        (5, 2, 3)
        >>> each = nnx.vmap(lambda layer, x: layer(x), in_axes=(0, None))
        >>> each(stack, jnp.ones(2)).shape
        (5, 3)
    """
    options = dict(
        axis_name=axis_name,
        axis_size=axis_size,
        spmd_axis_name=spmd_axis_name,
        **more,
    )
    if f is None:
        return functools.partial(
            vmap,
            in_axes=in_axes,
            out_axes=out_axes,
            transform_metadata=transform_metadata,
            **options,
        )
    mapped = _Vmapped(f, in_axes, out_axes, options, transform_metadata)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return mapped(args, kwargs)

    return functools.update_wrapper(wrapper, f, updated=updated_by(f))


class _Vmapped:
    """A function with its axes."""

    def __init__(
        self,
        f: Callable[..., Any],
        in_axes: Any,
        out_axes: Any,
        options: dict[str, Any],
        transform_metadata: Mapping[str, Any],
    ) -> None:
        self._f = f
        self._callee = Callee(f)
        self._in_axes = tuple(in_axes) if isinstance(in_axes, list) else in_axes
        self._out_axes = out_axes
        self._options = options
        self._metadata = transform_metadata
        check_axes("vmap", in_axes, out_axes)
        # JAX's own checks of the arguments.
        self._plain_axes = plain_prefix(in_axes), plain_prefix(out_axes)
        jax.vmap(f, *self._plain_axes, **options)

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args, kwargs = with_positions(self._f, self._in_axes, args, kwargs)
        if not self._callee.bound and not has_objects((args, kwargs)):
            return self._call_plain(args, kwargs)
        axes = axes_of_arguments("vmap", self._in_axes, args)
        tree = (*args, kwargs)
        check_plain_prefix(axes, tree, "argument ")
        inputs = take(tree, axes, self._callee.bound)
        body = MappedBody(self._callee, inputs, self._out_axes, self._metadata)
        values = inputs.values()
        in_axes = inputs.prefixes, plain_prefix(axes)
        if self._options["axis_size"] is not None:  # JAX 0.8 does not look.
            check_sizes("vmap", inputs, in_axes[1], self._options, None)

        def pure(values: Any, plain: Any) -> Any:
            left = body.run(values, plain)
            groups, outcome = body.divide(left)
            return groups, outcome, left.tree

        out_axes = list(body.settings), None, self._plain_axes[1]
        try:
            groups, outcome, tree = jax.vmap(pure, in_axes, out_axes, **self._options)(
                values, inputs.plain
            )
        except (TypeError, ValueError) as error:
            if body.notes is None:
                body.blame_values(values, error)
                check_sizes("vmap", inputs, in_axes[1], self._options, error)
            else:
                check_out_ranks(body, error)
                check_broadcast(
                    body, values, inputs.plain, in_axes, self._options, error
                )
            raise
        return inputs.publish(outcome, list(chain.from_iterable(groups)), tree)

    def _call_plain(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        check_plain_call("vmap", self._in_axes, args, kwargs)
        inputs = take(())
        body = MappedBody(self._callee, inputs, self._out_axes, self._metadata)

        @functools.wraps(self._f, updated=updated_by(self._f))
        def pure(*args: Any, **kwargs: Any) -> Any:
            left = body.run((), (*args, kwargs))
            groups, outcome = body.divide(left)
            return groups, outcome, left.tree

        in_axes, plain_out = self._plain_axes
        out_axes = list(body.settings), None, plain_out
        try:
            groups, outcome, tree = jax.vmap(pure, in_axes, out_axes, **self._options)(
                *args, **kwargs
            )
        except (TypeError, ValueError) as error:
            if body.returns_objects and body.notes is not None:
                check_out_ranks(body, error)
                axes = None, axes_of_arguments("vmap", in_axes, args)
                check_broadcast(body, (), (*args, kwargs), axes, self._options, error)
            elif body.notes is not None:
                # The output doesn't fit: say so in terms of what the function returns.
                jax.vmap(self._f, in_axes, plain_out, **self._options)(*args, **kwargs)
            raise
        return inputs.publish(outcome, list(chain.from_iterable(groups)), tree)
