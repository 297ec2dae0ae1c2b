"""Transforms that change what a module sees: no JAX transform is involved."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .. import lift
from ..filters import CollectionFilter, StreamFilter
from ..lift.axes import AxisSpec
from .frame import Frame
from .targets import Core, Methods, Runner, lift_target

__all__ = ["add_metadata_axis", "fold_rngs", "map_variables"]


def _same(collections: Any) -> Any:
    return collections


def _simple(lifted: Callable[..., Any]) -> Callable[..., Runner]:
    """Runners of a transform whose options are those of its form for scopes."""

    def build(fn: Callable[..., Any], **options: Any) -> Runner:
        def runner(core: Core, frame: Frame) -> Any:
            return lifted(core, **options)(frame.scopes, *frame.args, **frame.kwargs)

        return runner

    return build


def map_variables(
    target: Any,
    mapped_collections: CollectionFilter = True,
    trans_in_fn: Callable[[Any], Any] = _same,
    trans_out_fn: Callable[[Any], Any] = _same,
    init: bool = False,
    mutable: bool = False,
    rngs: StreamFilter = True,
    variables: CollectionFilter = True,
    methods: Methods = None,
) -> Any:
    """Shows a module a transformed view of some of its collections.

    Args:
        target: a module class, a `functools.partial` of one, or a function of a
            module.
        mapped_collections: the collections to transform.
        trans_in_fn: makes the view of `{collection: variables}`.
        trans_out_fn: makes stored collections of a view.
        init: whether variables may be created: the module runs once on a view in
            which it creates them, and again on the view of what `trans_out_fn` made
            of those.
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
    options = {
        "mapped_collections": mapped_collections,
        "map_in_fn": trans_in_fn,
        "map_out_fn": trans_out_fn,
        "init": init,
        "mutable": mutable,
        "rngs": rngs,
        "variables": variables,
    }
    names = {"trans_in_fn": "map_in_fn", "trans_out_fn": "map_out_fn"}
    if isinstance(methods, Mapping):
        methods = {
            method: {names.get(k, k): v for k, v in own.items()}
            for method, own in methods.items()
        }
    build = _simple(lift.map_variables)
    return lift_target(
        target, "map_variables", "Map_variables", build, options, methods
    )


def fold_rngs(
    target: Any, variables: CollectionFilter = True, rngs: StreamFilter = True
) -> Any:
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
    options = {"variables": variables, "rngs": rngs}
    build = _simple(lift.fold_rngs)
    return lift_target(target, "fold_rngs", "Fold_rngs", build, options)


def add_metadata_axis(
    target: Any,
    variable_axes: Mapping[CollectionFilter, AxisSpec] = {},
    metadata_params: Mapping[Any, Any] = {},
) -> Any:
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
    options = {"variable_axes": variable_axes, "metadata_params": metadata_params}
    build = _simple(lift.add_metadata_axis)
    return lift_target(target, "add_metadata_axis", "", build, options)
