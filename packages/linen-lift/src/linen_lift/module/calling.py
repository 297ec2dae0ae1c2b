"""What happens around a method of a module."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import jax

from graphcore import shorten_traceback

from .. import errors
from .context import InterceptorContext, context


def wrap_method(
    fn: Callable[..., Any], belongs: Callable[[type[Any]], bool] = lambda _: True
) -> Callable[..., Any]:
    """Makes a plain function a method of a module, with all that belongs to one.

    The functions in the class of a module need none of this; those of a mixin that is
    no module do, for `setup` to run before them.

    Args:
        fn: a function whose first argument is the module.
        belongs: whether it is a method of a class, which has interceptors and captures;
            else it is only called like one.

    Returns:
        The method; `fn` itself, if it is one.

    Example:
        >>> import linen_lift as nn, jax
        >>> class Parts:
        ...     @nn.module.wrap_method_once
        ...     def parts(self):
        ...         return [x for x in vars(self).values() if isinstance(x, nn.Dense)]
        >>> class Model(nn.Module, Parts):
        ...     def setup(self): self.encoder = nn.Dense(3)
        >>> Model().apply({}, method=Model.parts)[0].name
        'encoder'
    """
    if is_marked(fn, "_wrapped_method"):
        return fn
    name = getattr(fn, "__name__", type(fn).__name__)
    compact = getattr(fn, "_compact", False)
    name_scope = getattr(fn, "_compact_name_scope", False)

    @functools.wraps(fn)
    def method(module: Any, /, *args: Any, **kwargs: Any) -> Any:
        state = module._module__state
        if state is None:
            raise errors.IncorrectPostInitOverrideError(type(module).__name__)
        scope = module.scope
        if scope is None:
            if compact or name_scope:
                raise errors.CallCompactUnboundModuleError(type(module).__name__, name)
        elif not state.setup_done:
            module._module__run_setup()
        if name_scope:
            call = functools.partial(fn, module)
            return module._module__in_name_scope(name)(call, *args, **kwargs)

        modules = context.modules
        modules.append(module)
        enters = compact and not state.in_compact
        if enters:
            state.in_compact = True
            scope = module.scope  # another one if setup shared it
            # A second call takes the names of the first one again, but none that
            # another module took that shares the scope.
            scope._free(state.names if state.shares_scope else None)
            state.mark = len(scope._log)
            numbers, scope._numbers = scope._numbers, {}
        try:
            is_method = belongs(type(module))
            run = call_intercepted if is_method else _call_named
            out = run(module, fn, name, args, kwargs)
            if is_method and scope is not None:
                capture = scope.flags.get("capture_intermediates")
                if capture is not None and capture(module, name):
                    # Of a call inside of a transformation that is not lifted, there is
                    # no value that could be kept.
                    with contextlib.suppress(errors.JaxTransformError):
                        module.sow("intermediates", name, out)
            return out
        except Exception as error:
            errors.explain_flax(error)
            shorten_traceback(error)
            raise
        finally:
            modules.pop()
            if enters:
                state.in_compact = False
                state.names = module.scope._log[state.mark :]
                if state.shares_scope:
                    scope._numbers = numbers

    wrapped: Callable[..., Any] = marked(method, "_wrapped_method")
    return wrapped


def marked(fn: Any, mark: str) -> Any:
    """Notes what a function is."""
    # With itself, because `functools.wraps` copies attributes to other functions.
    setattr(fn, mark, fn)
    return fn


def is_marked(fn: Any, mark: str) -> bool:
    """Whether a function has a mark of its own."""
    return getattr(fn, mark, None) is fn


def named_scope(module: Any, method: str) -> Any:
    """The context in which the operations of a method have its name in profiles."""
    label = getattr(module, "name", None) or type(module).__name__
    return jax.named_scope(label if method == "__call__" else f"{label}.{method}")


def _call_named(
    module: Any, fn: Callable[..., Any], name: str, args: Any, kwargs: Any
) -> Any:
    if module.scope is None or not context.named_call:
        return fn(module, *args, **kwargs)
    with named_scope(module, name):
        return fn(module, *args, **kwargs)


def call_intercepted(
    module: Any, fn: Callable[..., Any], name: str, args: Any, kwargs: Any
) -> Any:
    """Calls a method through the interceptors, the outermost first.

    Args:
        module: the module.
        fn: the method.
        name: its name.
        args: its arguments after the module.
        kwargs: its keyword arguments.
    """
    if not context.interceptors:
        return _call_named(module, fn, name, args, kwargs)

    def call(*args: Any, **kwargs: Any) -> Any:
        return _call_named(module, fn, name, args, kwargs)

    about = InterceptorContext(module, name, functools.partial(fn, module))
    for interceptor in reversed(context.interceptors):
        call = functools.partial(_intercepted, interceptor, call, about)
    return call(*args, **kwargs)


def _intercepted(
    interceptor: Any, call: Any, about: Any, /, *args: Any, **kwargs: Any
) -> Any:
    return interceptor(call, args, kwargs, about)
