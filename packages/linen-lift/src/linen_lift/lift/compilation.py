"""Lifted `checkpoint` (`remat`), `remat_scan`, `jit`, and `named_call`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax

from graphcore import Static, StaticAttribute, broadcast_state, get_broadcast_state
from graphcore.authors import axis_rules

from ..dataflow import settled
from ..filters import CollectionFilter, StreamFilter
from .axes import AxisSpec
from .pack import Boundary, packed
from .scanning import scan
from .statics import as_tuple, marked, static_marker, unmarked
from .variables import path_offsets

__all__ = ["checkpoint", "jit", "named_call", "remat", "remat_scan"]


def checkpoint(
    fn: Callable[..., Any],
    variables: CollectionFilter = True,
    rngs: StreamFilter = True,
    concrete: bool = False,
    prevent_cse: bool = True,
    static_argnums: int | Iterable[int] = (),
    policy: Callable[..., bool] | None = None,
    static_argnames: str | Iterable[str] = (),
) -> Callable[..., Any]:
    """Lifted `jax.checkpoint`: recomputes instead of storing.

    Args:
        fn: a function whose first argument is a scope.
        variables: the collections that `fn` sees.
        rngs: the streams that it sees.
        concrete: must be False; use `static_argnums`.
        prevent_cse: as in `jax.checkpoint`.
        static_argnums: positions of arguments that are not traced, the scope being 0.
        policy: as in `jax.checkpoint`.
        static_argnames: names of arguments that are not traced.

    Returns:
        The function of a scope.

    Raises:
        ValueError: if `concrete` is True or the scope is named as static.

    Example:
        >>> import linen_lift as nn
        >>> def scale(scope, x, times):
        ...     return x * times * scope.get_variable('params', 'w')
        >>> run = nn.scope.apply(nn.lift.checkpoint(scale, static_argnames='times'))
        >>> float(run({'params': {'w': 3.0}}, 2.0, times=2))
        12.0
    """
    if concrete:
        raise ValueError(
            "concrete=True is not supported: name the arguments whose values Python "
            "needs with static_argnums or static_argnames."
        )
    mark = static_marker(fn, static_argnums, static_argnames)

    def inner(call: Boundary, /, *args: Any, **kwargs: Any) -> Any:
        # What is static need not be hashable: JAX does not see it.
        leaves, treedef = jax.tree.flatten(mark(args, kwargs))

        @functools.partial(jax.checkpoint, prevent_cse=prevent_cse, policy=policy)
        def rematted(variable_groups: Any, rng_groups: Any, leaves: Any) -> Any:
            args, kwargs = unmarked(*treedef.unflatten(leaves))
            return call.run(fn, variable_groups, rng_groups, args, kwargs)

        out, left = rematted(call.variables, call.streams, leaves)
        return out, jax.tree.map(settled, left)

    return packed(inner, (variables,), (variables,), (rngs,), name="remat")


remat = checkpoint


def remat_scan(
    fn: Callable[..., Any],
    lengths: Sequence[int] = (),
    policy: Callable[..., bool] | None = None,
    variable_broadcast: CollectionFilter = False,
    variable_carry: CollectionFilter = False,
    variable_axes: Mapping[CollectionFilter, AxisSpec] = {True: 0},
    split_rngs: Mapping[StreamFilter, bool] = {True: True},
) -> Callable[..., Any]:
    """Nested scans, all but the innermost rematerialized.

    With `k` lengths the memory for a depth of `n` layers grows as the `k`-th root of
    `n`, at the cost of about `k` forward passes.

    Args:
        fn: a function `(scope, carry) -> carry`.
        lengths: the length of each scan; their product is the number of layers.
        policy: as in `jax.checkpoint`.
        variable_broadcast: see `scan`.
        variable_carry: see `scan`.
        variable_axes: see `scan`; one such axis per scan.
        split_rngs: see `scan`.

    Returns:
        A function `(scope, carry) -> carry`.

    Raises:
        ValueError: if there are no lengths.

    Example:
        >>> import linen_lift as nn, jax
        >>> def layer(scope, x):
        ...     return x * scope.param('w', nn.initializers.ones, ())
        >>> layers = nn.lift.remat_scan(layer, (2, 3))
        >>> _, variables = nn.scope.init(layers)(jax.random.key(0), 2.0)
        >>> variables['params']['w'].shape
        (2, 3)
    """
    if not lengths:
        raise ValueError("remat_scan needs at least one length; found none.")
    run = fn
    for depth, length in enumerate(reversed(lengths)):
        if depth:
            # Inside of a scan nothing can be merged across iterations anyway.
            run = checkpoint(run, policy=policy, prevent_cse=False)
        filters = (variable_axes, variable_broadcast, variable_carry, split_rngs)
        run = _repeated(run, *filters, length=length)
    return run


def _repeated(step: Callable[..., Any], *filters: Any, length: int) -> Any:
    """A scan over `step(scope, carry) -> carry` that stacks nothing."""

    def pair(scope: Any, carry: Any) -> tuple[Any, None]:
        return step(scope, carry), None

    loop = functools.partial(scan, pair, length=length)(*filters)
    return lambda scope, carry: loop(scope, carry)[0]


# The function to trace is known under this tag and not by a closure, so that the cache
# of the compiled function holds on to no module and no scope.
_CALL = "linen_lift.jit"


def jit(
    fn: Callable[..., Any],
    variables: CollectionFilter = True,
    rngs: StreamFilter = True,
    static_argnums: int | Iterable[int] = (),
    static_argnames: str | Iterable[str] = (),
    donate_argnums: int | Iterable[int] = (),
    device: Any = None,
    backend: str | None = None,
) -> Callable[..., Any]:
    """Lifted `jax.jit`.

    The function is compiled once for all scopes with variables of the same shapes,
    wherever they are.

    Args:
        fn: a function whose first argument is a scope.
        variables: the collections that `fn` sees.
        rngs: the streams that it sees.
        static_argnums: positions of hashable arguments that are not traced, the scope
            being 0.
        donate_argnums: positions of arguments whose buffers may be reused; 0 donates
            the variables.
        device: as in `jax.jit`.
        backend: as in `jax.jit`.
        static_argnames: names of hashable arguments that are not traced.

    Returns:
        The function of a scope.

    Raises:
        ValueError: if the scope is named as static.

    Example:
        >>> import linen_lift as nn
        >>> def scale(scope, x):
        ...     return x * scope.get_variable('params', 'w')
        >>> float(nn.scope.apply(nn.lift.jit(scale))({'params': {'w': 3.0}}, 2.0))
        6.0
    """
    mark = static_marker(fn, static_argnums, static_argnames)
    # Only what was given: newer JAX versions lack some of the options.
    options = {"device": device, "backend": backend}

    # One function object per compiled function: JAX keeps its cache with it.
    def traced(groups: Any, others: Any, *args: Any, key: Any) -> Any:
        call, body = get_broadcast_state(_CALL)
        streams, offsets, extra, kwargs = others
        all_args, all_kwargs = unmarked((extra, *args), kwargs)
        out, left = call.run(body, groups, streams, all_args, all_kwargs, offsets)
        # JAX hands the effects out again where it does not trace again.
        return out, left, Static(call.effects())

    traced.__name__ = traced.__qualname__ = getattr(fn, "__name__", "fn")
    jitted = jax.jit(
        traced,
        static_argnames="key",
        # The first argument of the function, which is 1, is the third here.
        donate_argnums=[i and i + 1 for i in as_tuple(donate_argnums) if i >= 0],
        **{k: v for k, v in options.items() if v is not None},
    )

    def inner(
        call: Boundary, body: Any, config: Any, extra: Any, args: Any, kwargs: Any
    ) -> Any:
        args, kwargs = mark(args, kwargs)
        fixed = marked(fn, args, kwargs)
        # They decide where constraints on logical axes put what is computed.
        rules = StaticAttribute("axis_rules", axis_rules.get())
        # Functions of scopes alone may ask for a default name: the first free one.
        names = None if config else call.names()
        key = (config, fixed, call.key(), names, rules)
        draws = any(map(any, call.streams))
        offsets = path_offsets(call.roots) if draws else None
        others = call.streams, offsets, extra, kwargs
        with broadcast_state(_CALL, (call, body)):
            out, left, effects = jitted(call.variables, others, *args, key=key)
        call.replay(effects.value)
        return out, left

    run = packed(inner, (variables,), (variables,), (rngs,), name="jit")

    def plain(scope: Any, _: Any, /, *args: Any, **kwargs: Any) -> Any:
        return fn(scope, *args, **kwargs)

    @functools.wraps(fn)
    def wrapper(scope: Any, /, *args: Any, **kwargs: Any) -> Any:
        return run(scope, plain, (), (), args, kwargs)

    # One compiled function can serve many: `run(scope, body, config, extra, args,
    # kwargs)` calls `body(scope, extra, *args, **kwargs)`. Bodies of equal, hashable
    # configurations do the same; `extra` is a pytree of further arrays.
    wrapper.run = run  # type: ignore[attr-defined]
    return wrapper


def named_call(fn: Callable[..., Any], name: str | None = None) -> Callable[..., Any]:
    """Gives the operations of a scope function a name in profiles.

    Args:
        fn: a function whose first argument is a scope.
        name: the name; None for the function's.

    Returns:
        The function of a scope.

    Example:
        >>> import linen_lift as nn
        >>> def read(scope):
        ...     return scope.get_variable('params', 'w')
        >>> nn.scope.apply(nn.lift.named_call(read, 'reading'))({'params': {'w': 1}})
        1
    """
    label = name or str(getattr(fn, "__name__", "unnamed"))

    @functools.wraps(fn)
    def wrapper(scope: Any, /, *args: Any, **kwargs: Any) -> Any:
        with jax.named_scope(label):
            return fn(scope, *args, **kwargs)

    return wrapper
