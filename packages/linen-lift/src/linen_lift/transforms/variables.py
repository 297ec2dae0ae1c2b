"""Transforms that change what a module sees: no JAX transform is involved."""

from __future__ import annotations

from typing import Any

from .. import lift
from .targets import on_modules

__all__ = ["add_metadata_axis", "fold_rngs", "map_variables"]


@on_modules(lift.map_variables, "Map_variables")
def map_variables(*_: Any, **__: Any) -> Any:
    """Shows a module a transformed view of some of its collections.

    Args:
        target: a module class, a `functools.partial` of one, or a function of a
            module.
        mapped_collections: the collections to transform.
        trans_in_fn: makes the view of `{collection: variables}`.
        trans_out_fn: makes stored collections of a view.
        init: whether variables may be created: where there are none, the module runs
            once without the view, creating them, and again on the view of what
            `trans_out_fn` made of those.
        mutable: whether variables of the view may be changed.
        rngs: the streams that the module sees.
        variables: further collections that it sees.
        methods: the methods of a class to transform (`__call__` by default), or a
            mapping from them to options.

    Returns:
        A class or function like `target`.

    Raises:
        TransformTargetError: if `target` is something else.

    Example:
        >>> import linen_lift as nn, jax, jax.numpy as jnp
        >>> def transposed(collections):
        ...     return jax.tree.map(jnp.transpose, collections)
        >>> Wide = nn.map_variables(
        ...     nn.Dense, 'params', transposed, transposed, init=True)
        >>> variables = Wide(2).init(jax.random.key(0), jnp.ones(3))
        >>> variables['params']['kernel'].shape
        (2, 3)
    """


@on_modules(lift.fold_rngs, "Fold_rngs")
def fold_rngs(*_: Any, **__: Any) -> Any:
    """Makes the computation of a module independent of where it is.

    Keys are as they would be, but the part that stands for the path of the module
    enters the computation as an array.

    Args:
        target: a module class, a `functools.partial` of one, or a function of a
            module.
        variables: the collections that the module sees.
        rngs: the streams that it sees.

    Returns:
        A class or function like `target`.

    Raises:
        TransformTargetError: if `target` is something else.

    Example:
        >>> import linen_lift as nn, jax, jax.numpy as jnp
        >>> key, x = jax.random.key(0), jnp.ones(3)
        >>> a = nn.Dense(2).init(key, x)['params']['kernel']
        >>> b = nn.fold_rngs(nn.Dense)(2).init(key, x)['params']['kernel']
        >>> bool((a == b).all())
        True
    """


@on_modules(lift.add_metadata_axis, "")
def add_metadata_axis(*_: Any, **__: Any) -> Any:
    """Adds an axis to the boxes of variables that a module stacks by itself.

    Args:
        target: a module class, a `functools.partial` of one, or a function of a
            module.
        variable_axes: the axis by collection. Inside, boxes do not have the axis.
        metadata_params: passed to the boxes.

    Returns:
        A class or function like `target`; a class keeps its name.

    Raises:
        TransformTargetError: if `target` is something else.

    Example:
        >>> import linen_lift as nn, jax, jax.numpy as jnp
        >>> init = nn.with_partitioning(nn.initializers.ones, (None, 'model'))
        >>> Layers = nn.add_metadata_axis(
        ...     nn.Dense, {'params': 0}, {nn.PARTITION_NAME: 'layers'})
        >>> layer = Layers(2, kernel_init=init, use_bias=False)
        >>> layer.init(jax.random.key(0), jnp.ones(3))['params']['kernel'].names
        ('layers', None, 'model')
    """
