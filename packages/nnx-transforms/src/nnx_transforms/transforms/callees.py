"""Functions that are bound to objects."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Sequence
from typing import Any

from graphcore._jax import current_trace
from graphcore.authors import mark_lifted
from graphcore.owned import OwnedNode
from graphcore.variable_impl import find_variable_impl
from nnx_transforms.transforms.skeletons import is_object

__all__ = ["Callee", "lifted"]


class Callee:
    """A function, and the objects that it is bound to.

    A method of an object, and a callable object, hide one of their arguments. It
    takes part in a transformation all the same: the function reads its present
    values, and what it writes is published. So does one that hides behind `lifted`
    functions. (An object of another trace does not: as one that a function closes
    over, it can be read and not written.)

    Args:
        f: Any callable.

    Attributes:
        bound: The hidden objects, at most one.
        function: The function that takes them first.
        name: What it is called.
    """

    __slots__ = ("bound", "function", "name")

    def __init__(self, f: Callable[..., Any]) -> None:
        self.bound: tuple[Any, ...] = ()
        self.name = getattr(f, "__name__", type(f).__name__)
        self.function = f
        owner = getattr(f, "__self__", None)
        function: Any = getattr(f, "__func__", None)
        hidden: Any
        if is_object(f):
            hidden, function = f, type(f).__call__
        elif function is not None and is_object(owner):
            hidden = owner
        else:
            again = _how_lifted(f)
            if again is not None:
                inner = Callee(f.__wrapped__)  # type: ignore[attr-defined]
                self.bound = inner.bound
                self.function = _later(inner.function, again) if inner.bound else f
            return
        if _belongs_here(hidden):
            self.bound = (hidden,)
            self.function = function

    def on(self, inner: Sequence[Any]) -> Callable[..., Any]:
        """The function on the inner objects that stand for the hidden ones.

        Args:
            inner: As many objects as `bound`.

        Returns:
            A callable with the same arguments as the original.
        """
        return functools.partial(self.function, *inner) if inner else self.function


def lifted(
    f: Callable[..., Any], again: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Marks what a transformation made of a function, as `functools.wraps` does.

    Args:
        f: The function.
        again: Applies the same transformation to another function. By that a further
            transformation reaches an object that `f` is bound to; see `Callee`.

    Returns:
        A decorator for the wrapper.
    """
    updated = () if is_object(f) else functools.WRAPPER_UPDATES

    def decorate(wrapper: Callable[..., Any]) -> Callable[..., Any]:
        functools.update_wrapper(wrapper, f, updated=updated)
        mark_lifted(wrapper, lambda f, /, *args, **kwargs: again(f)(*args, **kwargs))
        return wrapper

    return decorate


def _how_lifted(f: Callable[..., Any]) -> Callable[..., Any] | None:
    reference, again = getattr(f, "_lifted", (None, None))
    return again if reference is not None and reference() is f else None


def _later(
    function: Callable[..., Any], call: Callable[..., Any]
) -> Callable[..., Any]:
    """The transformed function, of an object that the original is bound to then."""

    @functools.wraps(function)
    def bind(x: Any, *args: Any, **kwargs: Any) -> Any:
        return call(types.MethodType(function, x), *args, **kwargs)

    return bind


def _belongs_here(x: Any) -> bool:
    """Whether an object was made in the running trace, as far as it tells."""
    impl = find_variable_impl(type(x))
    if isinstance(x, OwnedNode):
        found = x._trace
    elif impl is not None and impl.get_trace is not None:
        found = impl.get_trace(x)
    else:
        return True
    return bool(found == current_trace())
