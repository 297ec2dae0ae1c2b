"""`transform_metadata`: a mapped axis in the metadata of variables, on its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphcore.authors import enter, lifted
from nnx_transforms.transforms.decorators import LATER, called_as_before
from nnx_transforms.transforms.mapped.leafwise import arguments_with_axes
from nnx_transforms.transforms.mapped.mapping import (
    MappedBody,
    axes_given,
    metadata_key,
    states_inside,
)
from nnx_transforms.transforms.mapped.metadata_axes import PARTITION_NAME

__all__ = ["transform_metadata"]


@called_as_before
def transform_metadata(
    f: Callable[..., Any] = LATER,
    *,
    in_axes: Any = 0,
    out_axes: Any = 0,
    partition: str | None,
) -> Any:
    """Takes a mapped axis out of the metadata of variables, and puts it back in.

    That is what `vmap` and `scan` do by their argument `transform_metadata`, as a
    function of its own, for use inside a mapping that has none: `jax.vmap`, say.

    Args:
        f: The function of one index. Left out, a decorator is returned.
        in_axes: Those of the mapping that this stands in.
        out_axes: Likewise.
        partition: The name of the mapped axis in the sharding metadata.

    Returns:
        A function of one index, which calls the given one with variables that don't
        have the axis in their metadata. When it returns they have it again, and new
        ones have it, too.

    Raises:
        ValueError: At a call, if a sharding has another entry at a mapped axis.

    Example:
        >>> import jax.numpy as jnp, nnx_transforms as nnx
        >>> @nnx.vmap
        ... @nnx.transform_metadata(partition='layers')
        ... def make(x):
        ...     return nnx.Param(x, sharding=('model',))
        >>> make(jnp.ones((2, 3))).sharding
        ('layers', 'model')
    """
    # The mapping itself says which axes it takes.
    in_axes, out_axes = axes_given(
        "transform_metadata", in_axes, out_axes, is_known=lambda *_: True
    )

    told = metadata_key({PARTITION_NAME: partition})

    @lifted(f)
    def call(f: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        args, kwargs, axes = arguments_with_axes(
            "transform_metadata", f, in_axes, args, kwargs, by_jax=False
        )
        args, kwargs = states_inside(told, axes, args, kwargs)
        entry = enter(
            f,
            args,
            kwargs,
            settings=axes,
            kwargs_settings=0,
            out_settings=out_axes,
            make=MappedBody,
            options=(told,),
        )
        return entry.commit(*entry.body(*entry.values))

    return call
