"""`while_loop`, `cond` and `switch` over functions of modules."""

from __future__ import annotations

from typing import Any

from .. import lift
from .targets import with_module

__all__ = ["cond", "switch", "while_loop"]


@with_module(lift.while_loop, ("cond_fn", "body_fn"), "init")
def while_loop(*_: Any, **__: Any) -> Any:
    """Lifted `jax.lax.while_loop`.

    Args:
        cond_fn: a function `(module, carry) -> bool`; it cannot write variables.
        body_fn: a function `(module, carry) -> carry`. It can change carried variables
            and cannot create any: while initializing, call it once instead.
        mdl: the module.
        init: the first carry.
        carry_variables: collections whose changes the next iteration sees.
        broadcast_variables: collections that can only be read.
        split_rngs: for each stream, whether the iterations get different keys.

    Returns:
        The last carry.

    Raises:
        CarriedVariableError: if `body_fn` creates a variable.

    Example:
        >>> import linen_lift as nn, jax, jax.numpy as jnp
        >>> class Settle(nn.Module):
        ...     @nn.compact
        ...     def __call__(self, x):
        ...         half = nn.Dense(1, kernel_init=nn.initializers.constant(0.5))
        ...         step = lambda half, x: half(x)
        ...         if self.is_initializing():
        ...             return step(half, x)
        ...         return nn.while_loop(lambda _, x: x.sum() > 1, step, half, x)
        >>> variables = Settle().init(jax.random.key(0), jnp.ones((1, 1)))
        >>> Settle().apply(variables, jnp.full((1, 1), 8.0)).tolist()
        [[1.0]]
    """


@with_module(lift.cond, ("true_fun", "false_fun"), "operands")
def cond(*_: Any, **__: Any) -> Any:
    """Lifted `jax.lax.cond`.

    Both branches must leave the same variables behind. While initializing, call both
    once before, if they make submodules or variables.

    Args:
        pred: a boolean scalar.
        true_fun: a function `(module, *operands)`.
        false_fun: the same, for when `pred` is false.
        mdl: the module; others may be among `operands`.
        *operands: further arguments of the branches.
        variables: the collections that the branches see.
        rngs: the streams that they see.

    Returns:
        What the chosen branch returns.

    Raises:
        BranchVariablesError: if the branches leave different variables.

    Example:
        >>> import linen_lift as nn, jax, jax.numpy as jnp
        >>> class Maybe(nn.Module):
        ...     @nn.compact
        ...     def __call__(self, x):
        ...         dense = nn.Dense(2)
        ...         skip = lambda dense, x: x
        ...         y = dense(x)
        ...         return nn.cond(x.sum() > 0, lambda d, x: d(x), skip, dense, x)
        >>> Maybe().init_with_output(jax.random.key(0), -jnp.ones(2))[0].tolist()
        [-1.0, -1.0]
    """


@with_module(lift.switch, ("branches",), "operands")
def switch(*_: Any, **__: Any) -> Any:
    """Lifted `jax.lax.switch`.

    All branches must leave the same variables behind. While initializing, call all
    once before, if they make submodules or variables.

    Args:
        index: an integer scalar; clamped to the number of branches.
        branches: functions `(module, *operands)`.
        mdl: the module; others may be among `operands`.
        *operands: further arguments of the branches.
        variables: the collections that the branches see.
        rngs: the streams that they see.

    Returns:
        What the chosen branch returns.

    Raises:
        BranchVariablesError: if the branches leave different variables.

    Example:
        >>> import linen_lift as nn, jax, jax.numpy as jnp
        >>> class Heads(nn.Module):
        ...     def setup(self):
        ...         self.heads = [nn.Dense(1), nn.Dense(1)]
        ...     def __call__(self, i, x):
        ...         if self.is_initializing():
        ...             return [head(x) for head in self.heads][0]
        ...         branches = [lambda m, x: m.heads[0](x), lambda m, x: m.heads[1](x)]
        ...         return nn.switch(i, branches, self, x)
        >>> variables = Heads().init(jax.random.key(0), 0, jnp.ones(2))
        >>> Heads().apply(variables, 1, jnp.zeros(2)).tolist()
        [0.0]
    """
