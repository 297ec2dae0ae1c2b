"""What is going on in this thread: running methods, interceptors, naming."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

__all__ = [
    "InterceptorContext",
    "disable_named_call",
    "enable_named_call",
    "intercept_methods",
    "override_named_call",
]


@dataclasses.dataclass(frozen=True)
class InterceptorContext:
    """What an interceptor learns about the call.

    Args:
        module: the module whose method is called.
        method_name: the name of the method.
        orig_method: the method itself, bound to the module, without interceptors.

    Example:
        >>> import jax, jax.numpy as jnp, linen_lift as nn
        >>> def log(call, args, kwargs, context):
        ...     print(type(context.module).__name__, context.method_name)
        ...     return call(*args, **kwargs)
        >>> with nn.intercept_methods(log):
        ...     out = nn.Dense(2).init(jax.random.key(0), jnp.ones((1, 3)))
        Dense __call__
    """

    module: Any
    method_name: str
    orig_method: Callable[..., Any]


Interceptor = Callable[
    [Callable[..., Any], tuple[Any, ...], dict[str, Any], InterceptorContext], Any
]


class _Context(threading.local):
    # Whether operations carry the names of modules: of all threads, but for those that
    # have an attribute of their own.
    named_call = True

    def __init__(self) -> None:
        self.modules: list[Any] = []
        self.interceptors: tuple[Interceptor, ...] = ()

    @contextlib.contextmanager
    def having(self, **values: Any) -> Iterator[None]:
        """Sets some of it for the time of a `with` block."""
        own = vars(self)
        before = {name: own[name] for name in values if name in own}
        own.update(values)
        try:
            yield
        finally:
            for name in values:
                own.pop(name, None)  # another block may have ended before this
            own.update(before)

    def __reduce__(self) -> str:
        return "context"  # wherever it is pickled with a method that refers to it


context = _Context()


def enable_named_call() -> None:
    """Makes the operations of a module carry its name in profiles (the default).

    Example:
        >>> import linen_lift as nn
        >>> nn.enable_named_call()
    """
    _Context.named_call = True


def disable_named_call() -> None:
    """Undoes `enable_named_call`, for all threads.

    Example:
        >>> import linen_lift as nn
        >>> nn.disable_named_call()
        >>> nn.enable_named_call()
    """
    _Context.named_call = False


def override_named_call(enable: bool = True) -> AbstractContextManager[None]:
    """Switches the names of modules in profiles on or off, in this thread.

    Args:
        enable: whether operations carry the names of modules.

    Example:
        >>> import linen_lift as nn
        >>> with nn.override_named_call(False):
        ...     pass
    """
    return context.having(named_call=enable)


@contextlib.contextmanager
def intercept_methods(interceptor: Interceptor) -> Iterator[None]:
    """Passes every call of a module's method through a function, in this thread.

    The interceptor registered first is the outermost. `setup` counts as a method.

    Args:
        interceptor: a function `(next_fun, args, kwargs, context)`. It returns the
            result of the call, usually `next_fun(*args, **kwargs)`.

    Example:
        >>> import linen_lift as nn, jax
        >>> def double(next_fun, args, kwargs, context):
        ...     out = next_fun(*args, **kwargs)
        ...     return 2 * out if context.method_name == '__call__' else out
        >>> layer, x = nn.Dense(1, kernel_init=nn.initializers.ones), jax.numpy.ones(3)
        >>> variables = layer.init(jax.random.key(0), x)
        >>> with nn.intercept_methods(double):
        ...     layer.apply(variables, x).tolist()
        [6.0]
    """
    with context.having(interceptors=(*context.interceptors, interceptor)):
        yield
