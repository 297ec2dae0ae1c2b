"""`vmap` and `scan` of modules."""

from __future__ import annotations

from typing import Any

from .. import lift
from .targets import on_modules

__all__ = ["scan", "vmap"]


@on_modules(lift.vmap, "Vmap")
def vmap(*_: Any, **__: Any) -> Any:
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
        SharedVariableError: when a variable with axis None comes out with a value for
            each instance.

    Example:
        >>> import linen_lift as nn, jax, jax.numpy as jnp
        >>> Heads = nn.vmap(nn.Dense, variable_axes={'params': 0},
        ...                 split_rngs={'params': True}, in_axes=None, axis_size=4)
        >>> variables = Heads(2).init(jax.random.key(0), jnp.ones(3))
        >>> variables['params']['kernel'].shape
        (4, 3, 2)
    """


@on_modules(lift.scan, "Scan")
def scan(*_: Any, **__: Any) -> Any:
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
        BroadcastVariableError: when a broadcast variable is created from the carry,
            from a stream that is split, or from scanned data.
        CarriedVariableError: when a carried variable is created in no iteration.

    Example:
        >>> import linen_lift as nn, jax, jax.numpy as jnp
        >>> Rnn = nn.scan(nn.GRUCell, variable_broadcast='params',
        ...               split_rngs={'params': False}, in_axes=1, out_axes=1)
        >>> x, carry = jnp.ones((2, 5, 3)), jnp.zeros((2, 4))
        >>> (last, ys), _ = Rnn(4).init_with_output(jax.random.key(0), carry, x)
        >>> last.shape, ys.shape
        ((2, 4), (2, 5, 4))
    """
