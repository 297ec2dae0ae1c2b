"""`vmap`: a function of one example, applied to a batch, over live objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax

from graphcore.authors import enter, lifted, plain_settings
from nnx_transforms.transforms.decorators import LATER, called_as_before
from nnx_transforms.transforms.mapped.leafwise import (
    LeafwiseBody,
    arguments_with_axes,
    is_leafwise,
    put_together,
    without_rules,
)
from nnx_transforms.transforms.mapped.mapping import (
    NO_METADATA,
    MappedBody,
    axes_given,
    metadata_key,
    states_inside,
)
from nnx_transforms.transforms.mapped.mapping_errors import axes_explained, check_given

__all__ = ["vmap"]


@called_as_before  # type: ignore[arg-type]  # (`more` will not hold `f`)
def vmap(
    f: Callable[..., Any] = LATER,
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
            for one value for all indices), or a `StateAxes`. For anything else also a
            function from a leaf to its axis, such as `equinox.if_array(0)`; and for a
            pytree of a filtered type a pytree of axes of the same structure.
        out_axes: Likewise, for the output. An argument that is returned must have
            the same axes here as there.
        axis_name: As for `jax.vmap`.
        axis_size: As for `jax.vmap`.
        spmd_axis_name: As for `jax.vmap`.
        transform_metadata: With a `PARTITION_NAME`, the name of the mapped axis in
            the sharding metadata of mapped variables: it is removed on their way in
            and added on their way out. Likewise with any other key, in the metadata
            of that name, where it is a sequence.
        **more: Further arguments that the installed `jax.vmap` takes.

    Returns:
        The mapped function. Keyword arguments are mapped over their first axis, as
        JAX does it. If an object is among the arguments, or `in_axes` gives more axes
        than there are positional arguments, those that have a position are mapped as
        at that position. Where there are axes for parameters that the call leaves out,
        these have their defaults.

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
    in_axes, out_axes = axes_given("vmap", in_axes, out_axes)
    plain_in, plain_out = (
        plain_settings(without_rules(axes)) for axes in (in_axes, out_axes)
    )
    is_spread = is_leafwise(out_axes)
    options: dict[str, Any] = {
        "axis_name": axis_name,
        "axis_size": axis_size,
        "spmd_axis_name": spmd_axis_name,
        **more,
    }
    make: Any = LeafwiseBody if is_spread else MappedBody
    told = (metadata_key(transform_metadata),)
    jax.vmap(f, plain_in, plain_out, **options)  # JAX's own checks

    @lifted(f)
    def call(f: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        args, kwargs, axes = arguments_with_axes("vmap", f, in_axes, args, kwargs)
        args, kwargs = states_inside(*told, axes, args, kwargs)
        entry = enter(
            f,
            args,
            kwargs,
            settings=axes,
            kwargs_settings=0,
            out_settings=out_axes,
            make=make,
            options=told,
        )
        if axis_size is not None and entry.roots:  # JAX 0.8 does not look.
            check_given("vmap", entry, options, None)
        leave = entry.out_settings
        if is_spread:
            leave = leave[0], (0, None, None), None
        mapped = jax.vmap(entry.body, entry.settings, leave, **options)

        def again() -> Any:
            by_jax = jax.vmap(f, plain_settings(axes), plain_out, **options)
            return by_jax(*args, **kwargs)

        with axes_explained("vmap", entry, options, again):
            groups, out, change = mapped(*entry.values)
        if is_spread:
            out = put_together(*out)
        return entry.commit(groups, out, change)

    return call
