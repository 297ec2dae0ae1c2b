"""Functions that are bound to objects, and functions that transformations made."""

from __future__ import annotations

import contextlib
import functools
import inspect
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from graphcore._jax import current_trace
from graphcore.boundary.places import is_object
from graphcore.content_key import content_key
from graphcore.known_types import sometimes
from graphcore.nodes.callables import holds_objects
from graphcore.nodes.owned import OwnedNode
from graphcore.nodes.registry import Pairs, PytreeNodeImpl, trace_of
from graphcore.rebuilt import belongs
from graphcore.tracebacks import shorten_traceback

__all__ = ["Callee", "lifted", "mark_lifted"]

# What the code of a function says whose calls only begin when they are asked for more.
_RUNS_LATER = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class _Given:
    """Stands for an object in a partial."""


class Callee:
    """A function, and the objects that it is bound to.

    A method of an object, and a callable object, hide one of their arguments; a
    `functools.partial` may hide several. They take part in a transformation all the
    same: the function reads their present values, and what it writes is published. So
    does one that hides behind `lifted` functions. (An object of another trace does
    not: as one that a function closes over, it can be read and not written.)

    Args:
        f: Any callable.

    Attributes:
        bound: The hidden objects.
        function: The function that takes them first.
        name: What it is called.
        lasts: Whether to take the same callable apart again gives the same function.

    Raises:
        TypeError: If it can't be called, or its calls are generators or coroutines.

    Example:
        >>> import graphcore as gc
        >>> from graphcore.authors import Callee
        >>> class Scale(gc.Object):
        ...     def times(self, x): return 3 * x
        >>> scale = Scale()
        >>> callee = Callee(scale.times)
        >>> callee.bound == (scale,), callee.function is Scale.times, callee.name
        (True, True, 'times')
    """

    __slots__ = ("_given", "bound", "function", "lasts", "name")

    def __init__(self, f: Callable[..., Any]) -> None:
        self.bound: tuple[Any, ...] = ()
        # A module of Equinox that JAX made anew may have a stand-in for its name.
        name = getattr(f, "__name__", None)
        self.name: str = name if isinstance(name, str) else type(f).__name__
        self.function = f
        self.lasts = True
        self._given: Any = f
        if type(f) is types.FunctionType and "_lifted" not in f.__dict__:
            _check_function(f)
            return
        if isinstance(f, functools.partial) and not hasattr(f, "__func__"):
            self._given = _Partial(f)
        if type(self._given) is _Partial:
            self.bound, self.function, self.name = self._given.taken_apart()
            self.lasts = not self.bound
            return
        _check_function(f)  # also an object, whose class is callable
        hidden: Any = getattr(f, "__self__", None)
        function: Any = getattr(f, "__func__", None)
        if is_object(f):
            hidden, function = f, type(f).__call__
        elif function is None or not is_object(hidden):
            call = lifted_call(f)
            if call is not None:
                inner, on = _with_object(f, call)
                if inner.bound:
                    self.bound, self.function = inner.bound, on
            return
        if _belongs_here(hidden):
            self.bound = (hidden,)
            self.function = function

    def again(self) -> Callee:
        """The same callable, with the objects that take part in the running trace.

        Its function is the same where that does not last, too.
        """
        return Callee(self._given)

    @property
    def hides(self) -> bool:
        """Whether the function may be bound to an object, in this trace or another."""
        f = self._given
        return bool(self.bound) or type(f) is not types.FunctionType


class _Partial:
    """A `functools.partial`, whose objects are to be given at each call.

    Args:
        f: The partial.
    """

    def __init__(self, f: functools.partial[Any]) -> None:
        self._f = f
        # What was made last, and of what: traces are found by its identity.
        self._known: Any = None, None

    def taken_apart(self) -> tuple[tuple[Any, ...], Callable[..., Any], str]:
        """The objects, the function that takes them first, and what it is called."""
        f, callee = self._f, Callee(self._f.func)
        held = [x for x in (*f.args, *f.keywords.values()) if is_object(x)]
        if not all(map(_belongs_here, held)):
            held = []
        if not (held or callee.bound):
            return (), f, callee.name
        of = callee.function, len(callee.bound), len(held)
        known = self._known  # read once: threads may run other traces
        if known[0] != of:
            known = self._known = of, _with_objects(f, *of)
        return (*callee.bound, *held), known[1], callee.name


def _with_objects(
    f: functools.partial[Any], function: Callable[..., Any], bound: int, held: int
) -> Callable[..., Any]:
    """A partial that takes its objects first: those of its function, then its own."""
    # It keeps none of them alive.
    fixed = [_Given if held and is_object(x) else x for x in f.args]
    named = {k: _Given if held and is_object(x) else x for k, x in f.keywords.items()}

    @functools.wraps(function, updated=())
    def on(*given: Any, **kwargs: Any) -> Any:
        objects = iter(given[bound : bound + held])
        args = [next(objects) if x is _Given else x for x in fixed]
        names = {k: next(objects) if x is _Given else x for k, x in named.items()}
        rest = given[bound + held :]
        return function(*given[:bound], *args, *rest, **{**names, **kwargs})

    # Objects that go by keyword, or stand behind other arguments, come first here.
    with contextlib.suppress(TypeError, ValueError):  # Functions of C may have none.
        own = [
            p.replace(default=_Given) if is_object(p.default) else p
            for p in inspect.signature(f).parameters.values()
        ]
        first = [
            inspect.Parameter(f"_object{number}", inspect.Parameter.POSITIONAL_ONLY)
            for number in range(bound + held)
        ]
        on.__signature__ = inspect.Signature([*first, *own])  # type: ignore[attr-defined]
    return on


def lifted(f: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes a transformed function of one that says what to do with any function.

    What is made looks like `f`, as `functools.wraps` does it. If `f` is bound to an
    object, or made of a function that is, a further transformation around it finds
    that object: it calls the decorated function again with `f` on the inner one.
    Tracebacks of its errors are shortened, as `graphcore.shorten_traceback` does it.

    Args:
        f: The function that is transformed.

    Returns:
        A decorator for a function `call(f, /, *args, **kwargs)`; it returns a function
        of the other arguments.

    Raises:
        TypeError: If it is no function.

    Example:
        >>> from graphcore.authors import lifted
        >>> def twice(f):
        ...     @lifted(f)
        ...     def call(f, /, *args):
        ...         return f(*args), f(*args)
        ...     return call
        >>> twice(abs)(-1), twice(abs).__name__
        ((1, 1), 'abs')
    """
    _check_function(f)

    def decorate(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            try:
                return call(f, *args, **kwargs)
            except Exception as error:
                shorten_traceback(error)
                raise

        # What another transform made keeps what it compiled for itself, and shows the
        # attributes of the function.
        plain = isinstance(f, types.FunctionType | types.MethodType)
        is_made = not plain and hasattr(f, "_lifted")
        updated = () if is_object(f) or is_made else functools.WRAPPER_UPDATES
        try:
            functools.update_wrapper(wrapper, f, updated=updated)
        except TypeError:  # a stand-in for a name, as above
            functools.update_wrapper(wrapper, type(f), updated=())
            wrapper.__wrapped__ = f  # type: ignore[attr-defined]
        if is_made:
            shown = {k: x for k, x in vars(f).items() if not k.startswith("_")}
            wrapper.__dict__.update(shown)
        if not hasattr(f, "__name__"):
            wrapper.__name__ = wrapper.__qualname__ = type(f).__name__
        mark_lifted(wrapper, call, lambda g: lifted(g)(call))
        return wrapper

    return decorate


def _check_function(f: Any) -> None:
    """Refuses what can't be transformed, as JAX does where it is given functions."""
    if not callable(f):
        raise TypeError(f"Expected a callable value, got {f!r}.")
    code = getattr(f, "__code__", None)  # of a stranger, that may be anything
    if isinstance(code, types.CodeType) and code.co_flags & _RUNS_LATER:
        name = getattr(f, "__qualname__", f)
        raise TypeError(
            f"Expected a function, got a generator or coroutine function: {name!r}. A "
            "call of it runs nothing yet, so there is nothing to trace: make it a "
            "plain `def` that returns all values."
        )


def mark_lifted(
    wrapper: Any,
    call: Callable[..., Any],
    make: Callable[[Any], Any] | None = None,
) -> Callable[[], Any]:
    """Notes on a transformed function how it is called with another one in place.

    Args:
        wrapper: The transformed function; it has the original as `__wrapped__`.
        call: As for `lifted`.
        make: `make(f)` is the same transform of another function, with the same `call`.
            Where there is one, a transformed method that a node keeps follows the node.

    Returns:
        A weak reference to the function, for a `call` that needs it; it is pickled
        together with the function.

    Example:
        >>> from graphcore.authors import mark_lifted
        >>> class Twice:
        ...     def __init__(self, f):
        ...         self.__wrapped__ = f
        ...         mark_lifted(self, lambda f, /, *args: Twice(f)(*args))
        ...     def __call__(self, *args):
        ...         return self.__wrapped__(*args), self.__wrapped__(*args)
        >>> Twice(abs)(-1)
        (1, 1)
    """
    # With the wrapper itself, because `functools.wraps` copies this attribute to other
    # wrappers; weakly, because it would be a cycle.
    reference = _WeakReference(wrapper)
    wrapper._lifted = _Lifted(call, make, reference)
    kind = type(wrapper)
    if make is not None and kind not in sometimes:
        impl = PytreeNodeImpl(kind, _flatten_lifted, _unflatten_lifted)
        sometimes[kind] = impl, _is_bound
    vars(wrapper).pop("_on_object", None)
    return reference


@dataclass(frozen=True, eq=False)
class _Lifted:
    """What `mark_lifted` notes; equal for functions that were made in the same way."""

    call: Callable[..., Any]
    make: Callable[[Any], Any] | None
    wrapper: Callable[[], Any]

    def __eq__(self, other: object) -> bool:
        if type(other) is not _Lifted:
            return False
        return self.call is other.call or bool(self._how() == other._how())

    def __hash__(self) -> int:
        return hash(self._how())

    def _how(self) -> Any:
        """What the function was made with: models that are made alike are equal."""
        try:
            if (known := _keys.get(self.call)) is None:
                package = self.call.__module__.partition(".")[0]
                known = _keys[self.call] = _made_with(self.call, package)
        except (AttributeError, TypeError, ValueError, RecursionError):
            return self.call
        return known

    def __repr__(self) -> str:
        return f"<made by {self.call.__qualname__.partition('.')[0]}>"


_keys: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def _made_with(x: Any, package: str) -> Any:
    """A key for a value that a transform closes over.

    A function that a transform defines anew at each call is known by its code, and by
    what it closes over in turn; anything else as a static value is.
    """
    is_local = type(x) is types.FunctionType and "<locals>" in x.__qualname__
    if not is_local or x.__module__.partition(".")[0] != package:
        return content_key(x)
    held = [_made_with(cell.cell_contents, package) for cell in x.__closure__ or ()]
    held += map(content_key, (x.__defaults__, x.__kwdefaults__))
    return x.__code__, *held


class _WeakReference(weakref.ref[Any]):
    """A weak reference that can be pickled, together with what it refers to.

    Example:
        >>> import pickle
        >>> pickle.loads(pickle.dumps(_WeakReference(print)))() is print
        True
    """

    def __reduce__(self) -> Any:
        return _WeakReference, (self(),)


def lifted_call(f: Any) -> Callable[..., Any] | None:
    note = _note_of(f)
    return None if note is None else note.call


def wrapped_function(f: Any) -> Any:
    """What was transformed, if nothing else is needed to make the same; else None."""
    note = _note_of(f)
    return None if note is None or note.make is None else f.__wrapped__


def _note_of(f: Any) -> _Lifted | None:
    # Not by `getattr`: there are callables that have every attribute, such as mocks.
    note = getattr(f, "__dict__", {}).get("_lifted")
    return note if type(note) is _Lifted and note.wrapper() is f else None


# A transformed method that stands in a graph follows its object; see `callables`.


def _is_bound(f: Any) -> bool:
    inner = wrapped_function(f)
    return inner is not None and holds_objects(inner)


def _flatten_lifted(f: Any) -> tuple[Pairs, Any]:
    return [("__wrapped__", f.__wrapped__)], _note_of(f)


def _unflatten_lifted(pairs: Pairs, note: Any) -> Any:
    ((_, f),) = pairs
    return note.make(f)


def _with_object(
    wrapper: Any, call: Callable[..., Any]
) -> tuple[Callee, Callable[..., Any]]:
    """What was transformed; and the transformed function that takes its objects first.

    That is made once, and kept with the wrapper: traces are found by its identity.
    """
    first, function, on = vars(wrapper).get("_on_object", (None, None, None))
    callee = Callee(wrapper.__wrapped__) if first is None else first.again()
    if callee.bound and function is not callee.function:
        function, count = callee.function, len(callee.bound)
        bind: Any = types.MethodType if count == 1 else functools.partial

        @functools.wraps(function)
        def on(*given: Any, **kwargs: Any) -> Any:
            return call(bind(function, *given[:count]), *given[count:], **kwargs)

        wrapper._on_object = first or callee, function, on
    return callee, on


def _belongs_here(x: Any) -> bool:
    """Whether an object was made in the running trace, as far as it tells."""
    trace = x._node__trace if isinstance(x, OwnedNode) else trace_of(x)
    return trace is None or belongs(trace, current_trace())
