"""The three forms of a lifted transform: of a class, of a method, of a call.

A transform is described by a *runner*: a function `(core, frame)` that lifts `core`, a
function of scopes and arguments, and calls it. Everything else is the same for all
transforms and stands here.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from ..errors import (
    TransformedMethodReturnValueError,
    TransformTargetError,
)
from ..filters import DenyList
from ..module.base import Module
from ..module.calling import call_method, wrap_method
from ..module.containers import find
from ..module.definition import is_lifted, mark_lifted
from ..scope import Variable
from .frame import Frame

__all__ = ["Core", "Runner", "as_body", "lift_target", "make_core", "run"]

Core: TypeAlias = Callable[..., Any]
"""A function `(scopes, *args, **kwargs)`."""

Runner: TypeAlias = Callable[[Core, Frame], Any]
"""Lifts a core and calls it with the scopes and arguments of a frame."""

Methods: TypeAlias = str | Iterable[str] | Mapping[str, Mapping[str, Any]] | None


def as_body(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function of a module as what to call inside of a transform.

    Args:
        fn: a plain function, a method, or the result of a lifted transform.
    """
    if is_lifted(fn) or getattr(fn, "_wrapped_method", None) is fn:
        return fn
    if getattr(fn, "_compact_name_scope", False):
        return wrap_method(fn)
    name = getattr(fn, "__name__", type(fn).__name__)
    compact = getattr(fn, "_compact", False)

    @functools.wraps(fn)
    def body(module: Any, /, *args: Any, **kwargs: Any) -> Any:
        is_method = _is_method(type(module), name, fn)
        return call_method(module, fn, name, compact, is_method, args, kwargs)

    return body


def _is_method(cls: type, name: str, fn: Any) -> bool:
    found = getattr(cls, name, None)
    return found is not None and inspect.unwrap(found) is fn


def make_core(fn: Callable[..., Any], frame: Frame, name: str) -> Core:
    """A function of scopes that calls a function of a module.

    Args:
        fn: from `as_body`.
        frame: the modules of the call.
        name: the name of the function, for errors.
    """

    def core(scopes: Any, *args: Any, **kwargs: Any) -> Any:
        inside = frame.rebuild(scopes)
        module = inside.module()
        args, kwargs = inside.arguments(args, kwargs)
        return checked(fn(module, *args, **kwargs), name, frame)

    return core


def checked(out: Any, name: str, frame: Frame) -> Any:
    """What a transformed function returned, if it may leave the transform."""
    if next(find(out, (Module, Variable)), None) is not None:
        scope = frame.module.scope
        assert scope is not None
        raise TransformedMethodReturnValueError(name, scope.path_text)
    return out


def run(
    runner: Runner,
    fn: Callable[..., Any],
    transform: str,
    module: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Calls a function of a module inside of a transform.

    Args:
        runner: the transform.
        fn: from `as_body`.
        transform: its name.
        module: a bound module.
        args: further arguments.
        kwargs: keyword arguments.
    """
    if not isinstance(module, Module):
        raise TransformTargetError(transform, module)
    frame = Frame(module, args, kwargs, transform)
    core = make_core(fn, frame, getattr(fn, "__name__", transform))
    out = runner(core, frame)
    naming = frame.naming()
    if naming:
        frame.publish(naming)
    return out


def lift_target(
    target: Any,
    transform: str,
    prefix: str,
    build: Callable[..., Runner],
    options: Mapping[str, Any],
    methods: Methods = None,
) -> Any:
    """Transforms a class, a partial of one, or a function of a module.

    Args:
        target: what to transform.
        transform: the name of the transform.
        prefix: what the names of transformed classes start with.
        build: makes the runner, from the function and the options.
        options: the options of the transform.
        methods: the methods of a class to transform, or options for each.

    Raises:
        TransformTargetError: if `target` is none of these.
    """
    if isinstance(target, functools.partial) and _is_module_class(target.func):
        lifted = _lift_class(target.func, transform, prefix, build, options, methods)
        return functools.partial(lifted, *target.args, **target.keywords)
    if _is_module_class(target):
        return _lift_class(target, transform, prefix, build, options, methods)
    if isinstance(target, (Module, type)) or not callable(target):
        raise TransformTargetError(transform, target)
    if methods is not None:
        raise TypeError(
            f"methods= chooses methods of a class; linen_lift.{transform} was given "
            f"the function {getattr(target, '__name__', target)!r}."
        )
    return _lift_function(target, transform, build(target, **options))


def _is_module_class(target: Any) -> bool:
    return isinstance(target, type) and issubclass(target, Module)


def _lift_function(fn: Callable[..., Any], transform: str, runner: Runner) -> Any:
    body = as_body(fn)

    @functools.wraps(fn)
    def lifted(module: Any, /, *args: Any, **kwargs: Any) -> Any:
        return run(runner, body, transform, module, args, kwargs)

    return mark_lifted(lifted)


def _lift_class(
    cls: Any,
    transform: str,
    prefix: str,
    build: Callable[..., Runner],
    options: Mapping[str, Any],
    methods: Methods,
) -> Any:
    per_method = _per_method(methods, options)
    # The same class is made once, so that caches that know it by identity work where
    # a class is transformed anew for each instance.
    key = _constant((transform, prefix, per_method))
    cache = cls.__dict__.get("_lifted_classes")
    if cache is None:
        cache = {}
        cls._lifted_classes = cache
    if key is not None and key in cache:
        return cache[key]
    namespace: dict[str, Any] = {
        "__module__": cls.__module__,
        "__qualname__": f"{prefix}{cls.__qualname__}",
        "__doc__": cls.__doc__,
        "_lifted_classes": {},
    }
    for name, own in per_method.items():
        fn = getattr(cls, name, None)
        if not inspect.isfunction(fn):
            raise TransformTargetError(transform, f"{cls.__name__}.{name}")
        namespace[name] = _lift_function(fn, transform, build(fn, **own))
    lifted = type(cls)(f"{prefix}{cls.__name__}", (cls,), namespace, _derived=True)
    if key is not None:
        if len(cache) >= 64:
            cache.clear()
        cache[key] = lifted
    return lifted


def _per_method(methods: Methods, options: Mapping[str, Any]) -> dict[str, Any]:
    if methods is None:
        methods = ("__call__",)
    elif isinstance(methods, str):
        methods = (methods,)
    if isinstance(methods, Mapping):
        return {name: {**options, **own} for name, own in methods.items()}
    return {name: dict(options) for name in methods}


def _constant(value: Any) -> Any:
    """A hashable equal of nested options, or None if there is none."""
    try:
        frozen = _frozen(value)
        hash(frozen)
    except TypeError:
        return None
    return frozen


def _frozen(value: Any) -> Any:
    if isinstance(value, Mapping):
        return "map", tuple([(_frozen(k), _frozen(v)) for k, v in value.items()])
    if isinstance(value, (list, tuple)):
        return type(value), tuple([_frozen(v) for v in value])
    if isinstance(value, (set, frozenset)):
        return "set", frozenset(value)
    if isinstance(value, (bool, int, float, DenyList)):
        return type(value), value  # 1 == True, but they are different filters
    return value
