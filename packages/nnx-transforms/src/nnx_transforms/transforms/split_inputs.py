"""Lifting a transformation of JAX by hand.

`merge_inputs` goes around the user's function and `split_inputs` around what JAX makes
of that. Between the two there are only pytrees that JAX understands:

    jit = lambda f: split_inputs(jax.jit(merge_inputs(f)))

An update context carries the identity of the objects across. A context is kept by its
tag, so pairs may stand inside each other under one tag as long as they close in order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import Any

from graphcore import (
    RefMap,
    api_boundary,
    clear_non_graph_nodes,
    current_update_context,
    from_tree,
    to_tree,
    update_context,
)
from graphcore.authors import is_object
from nnx_transforms.arguments import resolve_kwargs
from nnx_transforms.transforms.decorators import LATER, optional_function

__all__ = ["merge_inputs", "split_inputs"]

_TAG = "split_inputs and merge_inputs"


@optional_function
def split_inputs(
    f: Callable[..., Any] = LATER, *, ctxtag: Hashable = _TAG
) -> Callable[..., Any]:
    """Lets a function of pytrees take and return live objects.

    Objects among the arguments reach the function as pytrees of their states. What
    it hands back must come from a function that `merge_inputs` wrapped; it is then
    brought to the caller's own objects.

    Args:
        f: What JAX makes of a function of `merge_inputs`, such as
            `jax.jit(merge_inputs(g))`, or a function that takes some, such as
            `jax.lax.cond`. Left out, a decorator is returned.
        ctxtag: The tag of the update context; the same as for `merge_inputs`.

    Returns:
        A function of pytrees with graph nodes and variables in them.

    Raises:
        TypeError: At a call, if what `f` returns does not come from a function of
            `merge_inputs`.
        ValueError: At a call, if objects belong to a different trace level.

    Example:
        >>> import nnx_transforms as nnx, jax, jax.numpy as jnp
        >>> def cond(pred, true_fun, false_fun, *operands):
        ...     branches = map(nnx.merge_inputs, (true_fun, false_fun))
        ...     return nnx.split_inputs(jax.lax.cond)(pred, *branches, *operands)
        >>> count = nnx.Variable(jnp.array(0))
        >>> def add(count): count.value += 1
        >>> cond(True, add, lambda count: None, count)
        >>> int(count.value)
        1
    """

    @api_boundary
    @functools.wraps(f, updated=() if is_object(f) else functools.WRAPPER_UPDATES)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        args = resolve_kwargs(f, args, kwargs)
        with update_context(ctxtag):
            result = f(*to_tree(args, ctxtag=ctxtag))
            if not (isinstance(result, tuple) and len(result) == 2):
                raise TypeError(
                    "Expected the updated arguments and the output, a pair as a "
                    f"function of `merge_inputs` returns it, got {result!r} from "
                    f"{getattr(f, '__name__', f)!r}. Wrap the function that JAX "
                    "transforms: `split_inputs(jax.jit(merge_inputs(f)))`."
                )
            _, out = from_tree(result, ctxtag=ctxtag)
        return out

    return wrapper


@optional_function
def merge_inputs(
    f: Callable[..., Any] = LATER, *, ctxtag: Hashable = _TAG
) -> Callable[..., Any]:
    """Makes a function of live objects one of pytrees, for `split_inputs`.

    Args:
        f: A function of pytrees with graph nodes and variables in them. Left out, a
            decorator is returned.
        ctxtag: The tag of the update context; the same as for `split_inputs`.

    Returns:
        A function that JAX can transform. It returns the updated states of the
        objects among the arguments, and the output, both as pytrees; an axis or
        sharding for its output is a pair, too.

    Raises:
        ValueError: At a call outside `split_inputs` with this tag.

    Example:
        >>> import nnx_transforms as nnx, jax, jax.numpy as jnp
        >>> @nnx.split_inputs
        ... @jax.jit
        ... @nnx.merge_inputs
        ... def add(total, x):
        ...     total.value += x
        ...     return total
        >>> total = nnx.Variable(jnp.array(1.0))
        >>> add(total, x=2.0) is total, float(total.value)
        (True, 3.0)
    """

    @api_boundary
    @functools.wraps(f, updated=() if is_object(f) else functools.WRAPPER_UPDATES)
    def wrapper(*pure_args: Any) -> Any:
        try:
            context = current_update_context(ctxtag)
        except ValueError as error:
            raise ValueError(
                "A function of `merge_inputs` runs inside one that `split_inputs` made "
                f"with the same `ctxtag`, {ctxtag!r}: wrap what JAX makes of it, as in "
                "`split_inputs(jax.jit(merge_inputs(f)))`."
            ) from error
        args = from_tree(pure_args, ctxtag=ctxtag)
        out = f(*args)
        result = to_tree((clear_non_graph_nodes(args), out), ctxtag=ctxtag)
        # The context outlives this trace, and must not keep its objects alive.
        context._inner = RefMap()
        return result

    return wrapper
