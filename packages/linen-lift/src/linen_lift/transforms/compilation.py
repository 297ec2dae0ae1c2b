"""`checkpoint` (`remat`), `remat_scan`, `jit` and `named_call` of modules."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax

from .. import lift
from ..lift.statics import static_marker, unmarked
from ..module.calling import named_scope
from ..module.context import context
from .frame import Frame
from .targets import Lifting, Runner, call_inside, on_modules

__all__ = ["checkpoint", "jit", "named_call", "remat", "remat_scan"]

T = TypeVar("T")


@on_modules(lift.checkpoint, "Checkpoint")
def checkpoint(*_: Any, **__: Any) -> Any:
    """Lifted `jax.checkpoint`: recomputes a module in the backward pass.

    Args:
        target: a module class, a `functools.partial` of one, or a function of a
            module.
        variables: the collections that the module sees.
        rngs: the streams that it sees.
        concrete: must be False; use `static_argnums`.
        prevent_cse: as in `jax.checkpoint`.
        static_argnums: positions of arguments that are not traced; the module is 0.
            They also hold where these arguments are passed by name.
        policy: as in `jax.checkpoint`.
        methods: the methods of a class to transform (`__call__` by default), or a
            mapping from them to options.
        static_argnames: names of arguments that are not traced.

    Returns:
        A class or function like `target`.

    Raises:
        TransformTargetError: if `target` is something else.
        ValueError: if `concrete` is True, or the module is named as static.

    Example:
        >>> import linen_lift as nn, jax, jax.numpy as jnp
        >>> model, x = nn.remat(nn.Dense)(2), jnp.ones((1, 3))
        >>> variables = model.init(jax.random.key(0), x)
        >>> grads = jax.grad(lambda v: model.apply(v, x).sum())(variables)
        >>> grads['params']['bias'].tolist()
        [1.0, 1.0]
    """


remat = checkpoint


@on_modules(lift.remat_scan, "Remat_scan")
def remat_scan(*_: Any, **__: Any) -> Any:
    """Nested scans of a module, all but the innermost rematerialized.

    The method has the signature `(module, carry) -> carry`. With `k` lengths, the
    memory for `n` layers grows as the `k`-th root of `n`.

    Args:
        target: a module class, a `functools.partial` of one, or a function of a
            module.
        lengths: the length of each scan; their product is the number of layers.
        policy: as in `jax.checkpoint`.
        variable_broadcast: see `scan`.
        variable_carry: see `scan`.
        variable_axes: see `scan`; one such axis per scan.
        split_rngs: see `scan`.

    Returns:
        A class or function like `target`.

    Raises:
        TransformTargetError: if `target` is something else.
        ValueError: if there are no lengths.

    Example:
        >>> import linen_lift as nn, jax, jax.numpy as jnp
        >>> model = nn.remat_scan(nn.Dense, lengths=(2, 3))(4)
        >>> variables = model.init(jax.random.key(0), jnp.ones((1, 4)))
        >>> variables['params']['kernel'].shape
        (2, 3, 4, 4)
    """


def _compile(fn: Callable[..., Any], **options: Any) -> Runner:
    """A runner whose compiled function serves all modules of one configuration."""
    run = lift.jit(fn, **options).run  # type: ignore[attr-defined]

    def runner(body: Callable[..., Any], frame: Frame) -> Any:
        description, arrays = frame.describe()
        config = (description, context.named_call, context.interceptors)
        places = list(arrays)

        def call(scopes: Any, extra: Any, /, *args: Any, **kwargs: Any) -> Any:
            held = dict(zip(places, extra, strict=True))
            return call_inside(body, *frame.rebuild(scopes, args, kwargs, held))

        extra = tuple(arrays.values())
        return run(frame.scopes, call, config, extra, frame.args, frame.kwargs)

    return runner


# The options of `init` and its kin, which are no arrays.
_OPTIONS = {"method", "mutable", "capture_intermediates"}


def _jit_unbound(
    fn: Callable[..., Any],
    static_argnums: Any = (),
    static_argnames: Any = (),
    **_: Any,
) -> Callable[..., Any]:
    """`jax.jit` for methods of unbound modules, with the same static arguments."""
    names = (static_argnames,) if isinstance(static_argnames, str) else static_argnames
    mark = static_marker(fn, static_argnums, {*(names or ()), *_OPTIONS})

    def run(module: Any, *args: Any, **kwargs: Any) -> Any:
        @jax.jit
        def call(args: Any, kwargs: Any) -> Any:
            args, kwargs = unmarked(args, kwargs)
            return fn(module, *args, **kwargs)

        return call(*mark(args, kwargs))

    return run


@on_modules(lift.jit, "Jit", build=_compile, unbound=_jit_unbound)
def jit(*_: Any, **__: Any) -> Any:
    """Lifted `jax.jit`: compiles a module.

    Instances with equal fields share one compilation, whatever their names and
    wherever they are; a method should not depend on those. Arrays in fields are
    arguments of the compiled function; other fields must be hashable, or they are
    compared by all that they hold.

    Args:
        target: a module class, a `functools.partial` of one, or a function of a
            module.
        variables: the collections that the module sees.
        rngs: the streams that it sees.
        static_argnums: positions of hashable arguments that are not traced; the
            module is 0. They also hold where these arguments are passed by name.
        donate_argnums: positions of arguments whose buffers may be reused; 0 donates
            the variables.
        device: as in `jax.jit`.
        backend: as in `jax.jit`.
        methods: the methods of a class to transform (`__call__` by default), or a
            mapping from them to options.
        static_argnames: names of hashable arguments that are not traced.

    Returns:
        A class or function like `target`.

    Raises:
        TransformTargetError: if `target` is something else.
        ValueError: if the module is named as static.

    Example:
        >>> import linen_lift as nn, jax, jax.numpy as jnp
        >>> class Net(nn.Module):
        ...     @nn.compact
        ...     def __call__(self, x):
        ...         for _ in range(3):  # compiled once
        ...             x = nn.jit(nn.Dense)(4)(x)
        ...         return x
        >>> variables = Net().init(jax.random.key(0), jnp.ones((1, 4)))
        >>> sorted(variables['params'])
        ['JitDense_0', 'JitDense_1', 'JitDense_2']
    """


def named_call(class_fn: T, force: bool = True) -> T:
    """Gives the operations of a method, or of a class' `__call__`, a name in profiles.

    Methods carry the names of their modules by themselves unless
    `disable_named_call` says otherwise; this is for single methods then.

    Args:
        class_fn: a method, or a module class.
        force: whether to do so also where names are disabled.

    Returns:
        A method or class like `class_fn`. The class keeps its name.

    Raises:
        TransformTargetError: if `class_fn` is something else.

    Example:
        >>> import linen_lift as nn
        >>> class Net(nn.Module):
        ...     @nn.named_call
        ...     def __call__(self, x):
        ...         return 2 * x
        >>> Net().apply({}, 3)
        6
    """
    named: T = Lifting("named_call", "", _named)(class_fn, {"force": force})
    return named


def _named(fn: Callable[..., Any], force: bool) -> Callable[..., Any]:
    method = getattr(fn, "__name__", "unnamed")

    @functools.wraps(fn)
    def named(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        shown = force or context.named_call
        with named_scope(self, method) if shown else contextlib.nullcontext():
            return fn(self, *args, **kwargs)

    return named
