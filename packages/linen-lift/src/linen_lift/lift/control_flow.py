"""Lifted `while_loop`, `cond` and `switch`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import BranchVariablesError
from ..filters import CollectionFilter, StreamFilter
from . import axes
from .pack import Boundary, leaf_paths, packed, refuse_created

__all__ = ["cond", "switch", "while_loop"]

_NO_FIRST_VALUE = "a loop that may run no iteration needs its first value"


def while_loop(
    cond_fn: Callable[..., Any],
    body_fn: Callable[..., Any],
    scope: Any,
    init: Any,
    carry_variables: CollectionFilter = False,
    broadcast_variables: CollectionFilter = True,
    split_rngs: Mapping[StreamFilter, bool] = {},
) -> Any:
    """Lifted `jax.lax.while_loop`.

    Args:
        cond_fn: a function `(scope, carry) -> bool`; it cannot write variables.
        body_fn: a function `(scope, carry) -> carry`. It can change carried variables
            and cannot create any.
        scope: a scope, or a pytree of scopes.
        init: the first carry.
        carry_variables: collections whose changes the next iteration sees.
        broadcast_variables: collections that can only be read.
        split_rngs: for each stream, whether the iterations get different keys.

    Returns:
        The last carry.

    Raises:
        CarriedVariableError: if `body_fn` creates a variable.

    Example:
        >>> import linen_lift as nn
        >>> def body(scope, c):
        ...     steps = scope.variable('state', 'steps')
        ...     steps.value += 1
        ...     return c + 2
        >>> def run(scope):
        ...     return nn.lift.while_loop(lambda _, c: c < 6, body, scope, 0, 'state')
        >>> out, updated = nn.scope.apply(run, mutable='state')({'state': {'steps': 0}})
        >>> int(out), int(updated['state']['steps'])
        (6, 3)
    """
    splits = axes.Splits(split_rngs)

    def inner(call: Boundary, init: Any) -> Any:
        carried, shared = call.variables
        rng_groups = call.streams
        moving = call.writable(carried)
        counts = bool(splits.names(rng_groups))

        def streams(index: Any) -> Any:
            fold = functools.partial(jax.random.fold_in, data=index)
            return splits.map(fold, rng_groups)

        def condition(state: Any) -> Any:
            index, moving, carry = state
            # The complement, so that no key is the body's in some iteration.
            keys = streams(~index if counts else index)
            inner_scope = call((carried, shared, moving), keys, False)
            return cond_fn(inner_scope, carry)

        def body(state: Any) -> Any:
            index, moving, carry = state
            inner_scope = call((carried, shared, moving), streams(index))
            carry = body_fn(inner_scope, carry)
            before, (moving,) = moving, call.collect(inner_scope)
            refuse_created(before, moving, call, "while_loop", _NO_FIRST_VALUE)
            return (index + np.uint32(1) if counts else (), moving, carry)

        start = jnp.uint32(0) if counts else ()
        _, moving, carry = jax.lax.while_loop(condition, body, (start, moving, init))
        return carry, (moving,)

    seen = carry_variables, broadcast_variables
    loop = packed(inner, seen, (carry_variables,), splits.filters, "while_loop")
    return loop(scope, init)


def _branch(
    fns: Sequence[Callable[..., Any]],
    conditional: Callable[..., Any],
    name: str,
    scope: Any,
    operands: tuple[Any, ...],
    variables: CollectionFilter,
    rngs: StreamFilter,
) -> Any:
    def inner(call: Boundary, *args: Any) -> Any:
        first: list[Any] = []

        def branch(number: int, groups: Any, streams: Any, *args: Any) -> Any:
            inner_scope = call(groups, streams)
            out = fns[number](inner_scope, *args)
            left = call.collect(inner_scope)
            # Not every pytree can be compared. JAX tells what else differs.
            paths = leaf_paths(left)
            if not first:
                first.append(paths)
            elif first[0] != paths:
                _raise_difference(first[0], paths, number, call)
            return out, left

        branches = [functools.partial(branch, i) for i in range(len(fns))]
        return conditional(branches, call.variables, call.streams, *args)

    return packed(inner, (variables,), (variables,), (rngs,), name=name)(
        scope, *operands
    )


def _raise_difference(before: Any, now: Any, number: int, call: Boundary) -> None:
    key_path = min(before ^ now, key=str)
    if key_path in now:
        number = 0  # it is the first branch that lacks it
    initializing = call.roots[0].get_flag("initializing", False)
    place = call.place(key_path)
    raise BranchVariablesError(*place, branch=number, initializing=initializing)


def cond(
    pred: Any,
    true_fun: Callable[..., Any],
    false_fun: Callable[..., Any],
    scope: Any,
    *operands: Any,
    variables: CollectionFilter = True,
    rngs: StreamFilter = True,
) -> Any:
    """Lifted `jax.lax.cond`.

    Both branches must leave the same variables behind. While initializing, call both
    once before, if they create variables.

    Args:
        pred: a boolean scalar.
        true_fun: a function `(scope, *operands)`.
        false_fun: the same, for when `pred` is false.
        scope: a scope, or a pytree of scopes.
        *operands: further arguments of the branches.
        variables: the collections that the branches see.
        rngs: the streams that they see.

    Returns:
        What the chosen branch returns.

    Raises:
        BranchVariablesError: if the branches leave different variables.

    Example:
        >>> import linen_lift as nn
        >>> def add(scope, x):
        ...     return x + scope.get_variable('params', 'b')
        >>> def run(scope, x):
        ...     return nn.lift.cond(x > 0, add, lambda scope, x: x, scope, x)
        >>> float(nn.scope.apply(run)({'params': {'b': 2.0}}, 1.0))
        3.0
    """

    def conditional(branches: Any, *args: Any) -> Any:
        return jax.lax.cond(pred, *branches, *args)

    fns = (true_fun, false_fun)
    return _branch(fns, conditional, "cond", scope, operands, variables, rngs)


def switch(
    index: Any,
    branches: Sequence[Callable[..., Any]],
    scope: Any,
    *operands: Any,
    variables: CollectionFilter = True,
    rngs: StreamFilter = True,
) -> Any:
    """Lifted `jax.lax.switch`.

    All branches must leave the same variables behind. While initializing, call all
    once before, if they create variables.

    Args:
        index: an integer scalar; clamped to the number of branches.
        branches: functions `(scope, *operands)`.
        scope: a scope, or a pytree of scopes.
        *operands: further arguments of the branches.
        variables: the collections that the branches see.
        rngs: the streams that they see.

    Returns:
        What the chosen branch returns.

    Raises:
        BranchVariablesError: if the branches leave different variables.

    Example:
        >>> import linen_lift as nn
        >>> def head(name):
        ...     return lambda scope, x: x * scope.get_variable('params', name)
        >>> def run(scope, i, x):
        ...     return nn.lift.switch(i, [head('a'), head('b')], scope, x)
        >>> float(nn.scope.apply(run)({'params': {'a': 2.0, 'b': 3.0}}, 1, 4.0))
        12.0
    """
    conditional = functools.partial(jax.lax.switch, index)
    return _branch(branches, conditional, "switch", scope, operands, variables, rngs)
