"""`checkpoint` (`remat`), `remat_scan`, `jit` and `named_call` of modules."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax

from .. import lift
from ..errors import TransformTargetError
from ..filters import CollectionFilter, StreamFilter
from ..lift.axes import AxisSpec
from ..lift.compilation import Compiled, jit_options
from ..lift.statics import StaticArguments
from ..module.base import Module
from ..module.context import context, named_calls
from .frame import Frame
from .targets import Core, Methods, Runner, as_body, checked, lift_target

__all__ = ["checkpoint", "jit", "named_call", "remat", "remat_scan"]


def checkpoint(
    target: Any,
    variables: CollectionFilter = True,
    rngs: StreamFilter = True,
    concrete: bool = False,
    prevent_cse: bool = True,
    static_argnums: int | Iterable[int] = (),
    policy: Callable[..., bool] | None = None,
    methods: Methods = None,
    static_argnames: str | Iterable[str] = (),
) -> Any:
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
    if concrete:
        raise ValueError(
            "concrete=True is not supported: name the arguments whose values Python "
            "needs with static_argnums or static_argnames."
        )

    def build(
        fn: Callable[..., Any],
        static_argnums: Any,
        static_argnames: Any,
        **options: Any,
    ) -> Runner:
        statics = StaticArguments(fn, static_argnums, static_argnames)

        def runner(core: Core, frame: Frame) -> Any:
            lifted = lift.checkpoint(core, static_argnums=statics, **options)  # type: ignore[arg-type]
            return lifted(frame.scopes, *frame.args, **frame.kwargs)

        return runner

    options = {
        "variables": variables,
        "rngs": rngs,
        "prevent_cse": prevent_cse,
        "static_argnums": static_argnums,
        "policy": policy,
        "static_argnames": static_argnames,
    }
    return lift_target(target, "checkpoint", "Checkpoint", build, options, methods)


remat = checkpoint


def remat_scan(
    target: Any,
    lengths: Sequence[int] = (),
    policy: Callable[..., bool] | None = None,
    variable_broadcast: CollectionFilter = False,
    variable_carry: CollectionFilter = False,
    variable_axes: Mapping[CollectionFilter, AxisSpec] = {True: 0},
    split_rngs: Mapping[StreamFilter, bool] = {True: True},
) -> Any:
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

    def build(fn: Callable[..., Any], **options: Any) -> Runner:
        def runner(core: Core, frame: Frame) -> Any:
            lifted = lift.remat_scan(core, **options)
            return lifted(frame.scopes, *frame.args, **frame.kwargs)

        return runner

    if not lengths:
        raise ValueError("remat_scan needs at least one length; found none.")
    options = {
        "lengths": lengths,
        "policy": policy,
        "variable_broadcast": variable_broadcast,
        "variable_carry": variable_carry,
        "variable_axes": variable_axes,
        "split_rngs": split_rngs,
    }
    return lift_target(target, "remat_scan", "Remat_scan", build, options)


def jit(
    target: Any,
    variables: CollectionFilter = True,
    rngs: StreamFilter = True,
    static_argnums: int | Iterable[int] = (),
    donate_argnums: int | Iterable[int] = (),
    device: Any = None,
    backend: str | None = None,
    methods: Methods = None,
    static_argnames: str | Iterable[str] = (),
) -> Any:
    """Lifted `jax.jit`: compiles a module.

    Instances with equal fields share one compilation, whatever their names and
    wherever they are; a method should not depend on those. Arrays in fields are
    arguments of the compiled function; other fields must be hashable.

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

    def build(
        fn: Callable[..., Any],
        variables: CollectionFilter,
        rngs: StreamFilter,
        static_argnums: Any,
        donate_argnums: Any,
        device: Any,
        backend: Any,
        static_argnames: Any,
    ) -> Runner:
        statics = StaticArguments(fn, static_argnums, static_argnames)
        name = getattr(fn, "__name__", "fn")
        options = jit_options(device, backend)
        compiled = Compiled(variables, rngs, donate_argnums, name, **options)
        body = as_body(fn)

        def runner(_: Core, frame: Frame) -> Any:
            description, arrays = frame.describe()
            config = (description, named_calls(), context.interceptors)
            places = list(arrays)

            def compiled_core(
                extra: Any, scopes: Any, *args: Any, **kwargs: Any
            ) -> tuple[Any, Any]:
                inside = frame.rebuild(scopes, dict(zip(places, extra, strict=True)))
                module = inside.module()
                args, kwargs = inside.arguments(args, kwargs)
                out = checked(body(module, *args, **kwargs), name, frame)
                return out, frame.naming()

            split = statics.split(frame.args, frame.kwargs)
            extra = tuple(arrays.values())
            out, naming = compiled(compiled_core, config, split, frame.scopes, extra)
            frame.publish(naming)
            return out

        return runner

    options = {
        "variables": variables,
        "rngs": rngs,
        "static_argnums": static_argnums,
        "donate_argnums": donate_argnums,
        "device": device,
        "backend": backend,
        "static_argnames": static_argnames,
    }
    return lift_target(target, "jit", "Jit", build, options, methods)


def named_call(class_fn: Any, force: bool = True) -> Any:
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
    if isinstance(class_fn, functools.partial) and isinstance(class_fn.func, type):
        named = named_call(class_fn.func, force)
        return functools.partial(named, *class_fn.args, **class_fn.keywords)
    if isinstance(class_fn, type) and issubclass(class_fn, Module):
        metaclass: Any = type(class_fn)
        namespace = {
            "__module__": class_fn.__module__,
            "__qualname__": class_fn.__qualname__,
            "__doc__": class_fn.__doc__,
            "__call__": _named(class_fn.__call__, force),
        }
        return metaclass(class_fn.__name__, (class_fn,), namespace, _derived=True)
    if isinstance(class_fn, (type, Module)) or not callable(class_fn):
        raise TransformTargetError("named_call", class_fn)
    return _named(class_fn, force)


def _named(fn: Callable[..., Any], force: bool) -> Callable[..., Any]:
    method = getattr(fn, "__name__", "unnamed")

    @functools.wraps(fn)
    def named(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if not (force or named_calls()):
            return fn(self, *args, **kwargs)
        label = getattr(self, "name", None) or type(self).__name__
        if method != "__call__":
            label = f"{label}.{method}"
        with jax.named_scope(label):
            return fn(self, *args, **kwargs)

    return named
