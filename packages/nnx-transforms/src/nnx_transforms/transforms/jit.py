"""`jit`: compiled functions of live objects, at the cost of compiled pure ones.

A call on a graph whose plan still holds costs what JAX needs for the flat list of its
arrays: check the plan, read the raw values, call the compiled function, write those
values back that the function overwrites. Everything else is done once, when the
function is traced; see `jit_body`.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, Concatenate, Generic, Protocol, Self, cast, overload

import jax

from graphcore import api_boundary, shorten_traceback
from graphcore.authors import (
    UNSET,
    Bodies,
    Callee,
    Entry,
    Inside,
    captured_objects,
    enter,
    has_objects,
    is_mapping,
    is_object,
    mark_lifted,
)
from nnx_transforms.arguments import positions_of, with_statics
from nnx_transforms.transforms.compiled.ahead_of_time import Lowered, Traced
from nnx_transforms.transforms.compiled.array_errors import explain_arrays
from nnx_transforms.transforms.compiled.explain_recompile import Explanation
from nnx_transforms.transforms.compiled.jit_bodies import JitBodies, MakesObjects
from nnx_transforms.transforms.compiled.jit_body import JitBody, take_back_leaked
from nnx_transforms.transforms.decorators import LATER, optional_function
from nnx_transforms.transforms.eval_shape import shapes_of
from nnx_transforms.transforms.types import P, R, Rest, WithOptions

__all__ = ["Jitted", "explain_recompile", "jit"]


class Jitted(Generic[P, R]):
    """A jitted function; see `jit`.

    Attributes are made by `jit`; call it as the function it wraps.

    Example:
        >>> import nnx_transforms as nnx
        >>> double = nnx.jit(lambda x: x * 2)
        >>> int(double(2))
        4
    """

    __name__: str
    __wrapped__: Callable[P, R]

    def __init__(
        self,
        f: Callable[P, R],
        arguments: dict[str, Any],
        call: Callable[..., Any] | None = None,
    ) -> None:
        functools.update_wrapper(self, f, updated=())
        if inspect.isroutine(f):
            extra = getattr(f, "__dict__", {}).items()
            vars(self).update((k, v) for k, v in extra if not hasattr(Jitted, k))
            self.__wrapped__ = f
        if call is None:

            def call(g: Any, /, *args: Any, **kwargs: Any) -> Any:
                return Jitted(g, arguments)(*args, **kwargs)

        mark_lifted(self, call, lambda g: Jitted(g, arguments, call))
        self._arguments = arguments
        self._given = callee = Callee(f)
        # Whether an object that the function hides takes part depends on the trace.
        self._callee = None if callee.hides else callee
        self._bodies = bodies = JitBodies.of_jitted(f, callee, arguments)
        # Without another step to each: a call costs time.
        self._notes, self._options = bodies.options.notes, bodies.options
        self._plain = bodies.plain_of(f, callee)
        self._is_simple = (
            self._callee is not None
            and not self._options.constrain_state
            and self._options.settings_last
        )

    # Calls

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        notes = self._notes
        notes.explanation = None
        try:  # `api_boundary` would take time
            warm = self._bodies.recall(args, kwargs) if self._is_simple else None
            if warm is None or not warm[0].is_direct:
                return self._call(args, kwargs, warm)  # type: ignore[no-any-return]
            body, _, variables, raw, plain, kwargs = warm
            leaked: Sequence[int] | None = None
            count = notes.count
            try:
                try:
                    values, out, change = body.direct(raw, *plain, **kwargs)
                finally:
                    if notes.count != count:  # It was traced.
                        leaked = take_back_leaked(Entry.recalled(*warm))
                if leaked is not None:
                    given = variables, body.direct, (raw, *plain), kwargs
                    body.look_at_trace(leaked, *given)
                    self._bodies.warm = None
            except Exception as error:
                entry = Entry.recalled(*warm)
                if not self._can_try_again(entry, error):
                    raise
                return cast("R", entry.commit(*body.call_arranged(entry)))
            if not change.is_in_place:
                entry = Entry.recalled(*warm)
                return cast("R", entry.commit(values, out, change))
            if change.positions:
                change.write(variables, values[0], body.layout)
            return out  # type: ignore[no-any-return]
        except Exception as error:
            shorten_traceback(error)
            raise

    def _call(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        warm: tuple[Any, ...] | None = None,
    ) -> Any:
        """A call that is not `warm`, or whose values are to be arranged for JAX."""
        if self._read_anew():
            warm = None
        last = self._bodies.last
        entry = self._enter(args, kwargs) if warm is None else Entry.recalled(*warm)
        if entry is None:
            try:
                values, plain, change = self._plain(*args, **kwargs)
            except MakesObjects:
                # Not called from here: an error would tell of this one, too.
                self._notes.explanation = None
            else:
                self._look_at_trace(args, kwargs)
                if not change.is_in_place:  # asked here, since a call costs time
                    plain = Inside.empty().put_together(values, plain, change)
                return plain
            return self._call(args, kwargs)
        body: JitBody = entry.body
        try:
            result = body.call_arranged(entry)
        except Exception as error:
            if not self._can_try_again(entry, error):
                raise
            result = body.call_arranged(entry)
        self._notes.warn(body.__name__, stacklevel=3)
        if warm is None and body is last and not self._notes.captured:
            self._remember(self._bodies, args, kwargs, body)
        return entry.commit(*result)

    def _read_anew(self) -> bool:
        """Forgets what was compiled with values that variables no longer hold.

        Returns:
            Whether there was any.
        """
        captured = self._notes.captured
        paths = [*captured.changed()] if captured else ()
        if paths:
            self._bodies.clear(Explanation.of_captured(paths))
            self._plain.clear_cache()
        return bool(paths)

    def _look_at_trace(self, args: Any, kwargs: Any) -> None:
        """As `JitBody.look_at_trace`, for a call without objects."""
        if self._notes.explanation is not None:
            known = functools.partial(self._plain.trace, *args, **kwargs)
            statics = self._options.statics.take(args, kwargs)[2]
            of = self.__wrapped__, *statics.values()
            captured = [*chain.from_iterable(map(captured_objects, of))]
            self._notes.captured.note(captured, known)
            self._notes.warn(self._given.name, stacklevel=4)

    def _remember(self, bodies: Bodies, args: Any, kwargs: Any, body: JitBody) -> None:
        # Shardings go by position, so arguments by name are moved there each time.
        moves = kwargs and self._options.in_settings is not UNSET
        if self._is_simple and not moves:
            bodies.remember(args, kwargs, body)

    def _can_try_again(self, entry: Entry, error: Exception) -> bool:
        """Divides values that are no arrays, if a call failed since none were checked.

        Args:
            entry: The call.
            error: What it raised.

        Returns:
            Whether it was so. Another error is told in terms of the objects.
        """
        body: JitBody = entry.body
        if isinstance(error, TypeError) and entry.divide():
            body.has_divided = True
            self._bodies.warm = None
            return True
        explain_arrays(error, body, entry.raw)
        return False

    @overload
    def __get__(self, instance: None, owner: Any = None) -> Jitted[P, R]: ...
    @overload
    def __get__(
        self: Callable[Concatenate[Any, Rest], R], instance: object, owner: Any = None
    ) -> Jitted[Rest, R]: ...
    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else _BoundJitted(self, instance)

    # Compiled code belongs to this process and this object. So a copy is the object
    # itself, as with functions, and a pickle makes it anew.

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __repr__(self) -> str:
        return f"<jitted {self.__wrapped__!r}>"

    def __reduce__(self) -> Any:
        f = self.__wrapped__
        found: Any = sys.modules.get(getattr(f, "__module__", None) or "")
        name = getattr(f, "__qualname__", "")
        for part in name.split("."):
            found = getattr(found, part, None)
        # Pickled like a function, by name. What is in a script goes by value, for
        # picklers that can do that.
        if found is self and f.__module__ != "__main__":
            return name
        return Jitted, (f, self._arguments)

    def _enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entry | None:
        """Takes a call apart; None if there are no objects."""
        callee, options = self._callee or self._given.again(), self._options
        # An object of another trace that it hides is one that it captures.
        is_known = callee.function is self._given.function
        settings = options.in_settings
        statics: dict[Any, Any] = {}
        if kwargs and settings is not UNSET and has_objects((*args, *kwargs.values())):
            # Shardings go by position, so keyword arguments are moved to theirs.
            args, kwargs = positions_of(self.__wrapped__, args, kwargs)
        if options.statics:
            args, kwargs, statics = options.statics.take(args, kwargs)
        if settings is not UNSET:
            settings = _per_argument(settings, args, statics)
        entry: Entry | None = enter(
            callee,
            args,
            kwargs,
            settings=settings,
            kwargs_settings=UNSET,
            out_settings=options.out_settings,
            statics=statics,
            make=JitBody,
            options=options,
            cache=self._bodies.current() if is_known else None,
            only_with_objects=not options.places_objects,
            divide=False,
        )
        return entry

    # Ahead of time

    @api_boundary
    def trace(self, /, *args: Any, **kwargs: Any) -> Traced:
        """Traces the function for arguments, which may be abstract.

        Args:
            *args: Arguments; arrays and values of variables may be
                `jax.ShapeDtypeStruct`s.
            **kwargs: Likewise.

        Returns:
            A traced function with `.jaxpr`, `.out_info` and `.lower()`.

        Example:
            >>> import nnx_transforms as nnx
            >>> nnx.jit(lambda x: x * 2).trace(1.0).jaxpr.eqns[0].primitive.name
            'mul'
        """
        self._notes.explanation = None
        self._read_anew()
        entry = self._enter(args, kwargs)
        statics = self._options.statics.take(args, kwargs)[2]
        if entry is None:
            try:
                stage = self._plain.trace(*args, **kwargs)
            except MakesObjects:
                pass
            else:
                self._look_at_trace(args, kwargs)
                return Traced(stage, self._enter, self._remember, statics)
            return self.trace(*args, **kwargs)
        entry.divide()
        try:
            stage = entry.body.call_arranged(entry, only_trace=True)
        except Exception as error:
            explain_arrays(error, entry.body, entry.raw)
            raise
        return Traced(stage, self._enter, self._remember, statics, entry.body)

    @api_boundary
    def lower(self, /, *args: Any, **kwargs: Any) -> Lowered:
        """Lowers the function for arguments, which may be abstract.

        Args:
            *args: As for `trace`.
            **kwargs: Likewise.

        Returns:
            A lowered function; its `.compile()` gives one that is called with live
            objects of the same structure.

        Example:
            >>> import nnx_transforms as nnx
            >>> compiled = nnx.jit(lambda x: x * 2).lower(1.0).compile()
            >>> float(compiled(3.0))
            6.0
        """
        return self.trace(*args, **kwargs).lower()

    @api_boundary
    def eval_shape(self, /, *args: Any, **kwargs: Any) -> Any:
        """Returns shapes and dtypes of the output, without computing anything.

        Args:
            *args: As for `trace`.
            **kwargs: Likewise.

        Returns:
            The output with `jax.ShapeDtypeStruct`s; objects in it are new.

        Example:
            >>> import nnx_transforms as nnx
            >>> nnx.jit(lambda x: x * 2).eval_shape(1.0).shape
            ()
        """
        if self._enter(args, kwargs) is None:
            with contextlib.suppress(MakesObjects):
                of_arrays = self._plain.eval_shape(*args, **kwargs)
                return Inside.empty().put_together(*of_arrays)
        taken = self._options.statics.take(args, kwargs)
        return shapes_of(self.__wrapped__, *taken)

    @property
    def jitted_fn(self) -> Self:
        """The function, for code that asks it for its `_cache_size`, as JAX's have it.

        Example:
            >>> import nnx_transforms as nnx
            >>> f = nnx.jit(lambda x: x + 1)
            >>> float(f(1.0) + f(2.0)), f.jitted_fn._cache_size()
            (5.0, 1)
        """
        return self

    def _cache_size(self) -> int:
        return self._notes.count

    def clear_cache(self) -> None:
        """Forgets what was compiled, for all functions that were jitted alike.

        Example:
            >>> import nnx_transforms as nnx
            >>> nnx.jit(lambda x: x).clear_cache()
        """
        self._bodies.clear()
        self._plain.clear_cache()


def _per_argument(settings: Any, args: tuple[Any, ...], statics: dict[Any, Any]) -> Any:
    """The shardings of positional arguments; static ones have none."""
    if is_mapping(settings):  # By filter: for the variables of all objects.
        return jax.tree.map(
            lambda x: settings if is_object(x) else UNSET, args, is_leaf=is_object
        )
    if not isinstance(settings, tuple):
        return (settings,) * len(args)
    given = tuple(with_statics(settings, dict.fromkeys(statics, UNSET)))
    if len(given) != len(args) and has_objects(args):
        count = len(args) - sum(isinstance(k, int) for k in statics)
        raise ValueError(
            f"in_shardings has {len(settings)} entries, but the call has "
            f"{count} positional arguments that are not static: give one entry for "
            "each."
        )
    return given


class Jit(Protocol[P]):
    """`jit`, with options `P`."""

    @overload
    def __call__(
        self, fun: Callable[Rest, R], /, *args: P.args, **options: P.kwargs
    ) -> Jitted[Rest, R]: ...
    @overload
    def __call__(
        self, *args: P.args, **options: P.kwargs
    ) -> Callable[[Callable[Rest, R]], Jitted[Rest, R]]: ...


def makes_jitted(transform: WithOptions[P]) -> Jit[P]:
    """`optional_function`, for transformations that return a `Jitted`."""
    return cast("Jit[P]", optional_function(transform))


@makes_jitted  # type: ignore[arg-type]  # (`more` will not hold `fun`)
def jit(
    fun: Callable[..., Any] = LATER,
    *,
    in_shardings: Any = None,
    out_shardings: Any = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Iterable[str] | None = None,
    keep_unused: bool = False,
    device: Any = None,
    backend: str | None = None,
    inline: bool = False,
    donate_state: bool = False,
    constrain_state: bool | Callable[[Any], Any] = False,
    **more: Any,
) -> Any:
    """Compiles a function of live objects.

    The function takes and returns any pytrees with graph nodes and variables in them.
    What it does to them is visible in the caller's own objects afterwards. Only
    variables that it writes become outputs; one that is only read costs nothing on
    the way out and keeps its very array.

    Configuration of JAX and evictions from bounded caches apart, a call compiles anew
    exactly if the definition of the objects, the shape or dtype of an array, or a
    static argument changed, or a variable that the function read of an object that it
    captures holds another array; `explain_recompile` says what. Functions that were
    jitted from one with the same arguments share what was compiled, unless it captures
    objects.

    Args:
        fun: The function. Left out, `jit` returns a decorator.
        in_shardings: As for `jax.jit`; a `StateSharding` may stand for an object.
        out_shardings: Likewise. An object that was an argument keeps the sharding that
            `in_shardings` gave it; to ask for another one is an error.
        static_argnums: As for `jax.jit`.
        static_argnames: As for `jax.jit`.
        donate_argnums: As for `jax.jit`; of an object all variables are donated but a
            `jax.Ref`, which is written where it is, and values of NumPy with 64 bits
            where JAX has 32.
        donate_argnames: Likewise, by name.
        keep_unused: As for `jax.jit`.
        device: As for `jax.jit`.
        backend: As for `jax.jit`.
        inline: As for `jax.jit`.
        donate_state: Whether to donate the buffers of all variables that the function
            overwrites. Which those are is found out by tracing it once before it is
            compiled. A buffer that something else in the call holds is never donated,
            and none is inside of another transformation.
        constrain_state: Whether to constrain, inside, the value of each variable to
            be sharded as its `sharding` metadata says, on its `mesh` metadata or else
            the mesh in force; or a function that does it, from `State` to `State`.
        **more: Further arguments that the installed `jax.jit` takes.

    Returns:
        A callable with `trace`, `lower`, `eval_shape` and `clear_cache`.

    Raises:
        TypeError: At a call, if a static attribute of an object can neither be hashed
            nor compared by what it holds, or a variable holds what JAX does not accept;
            with the path.
        ValueError: At a call, if a static argument is not hashable, or an object
            belongs to a different trace level.

    Example:
        >>> import nnx_transforms as nnx, jax.numpy as jnp
        >>> count = nnx.Variable(jnp.array(0))
        >>> @nnx.jit
        ... def step(count, x):
        ...     count.value += 1
        ...     return x * 2
        >>> float(step(count, jnp.array(3.0))), int(count.value)
        (6.0, 1)
    """
    arguments = {**locals()}
    return Jitted(arguments.pop("fun"), arguments)


class PartialJitted(functools.partial[R]):
    """A jitted function with its first arguments, and all that a jitted one offers.

    Args:
        func: The jitted function.
        *args: Its first arguments.

    Example:
        >>> import nnx_transforms as nnx
        >>> counter = nnx.Dict(n=nnx.Variable(1))
        >>> add = PartialJitted(nnx.jit(lambda c, k: c.n.value + k), counter)
        >>> int(add(2)), int(add.lower(2).compile()(3))
        (3, 4)
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(self.func, name)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(functools.partial(self.func, *self.args))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return type(self)(self.func, *copy.deepcopy(self.args, memo))

    def eval_shape(self, /, *args: Any, **kwargs: Any) -> Any:
        """As for a jitted function, with the other arguments."""
        jitted: Any = self.func
        return jitted.eval_shape(*self.args, *args, **kwargs)

    def trace(self, /, *args: Any, **kwargs: Any) -> Traced:
        """As for a jitted function, with the other arguments."""
        jitted: Any = self.func
        traced: Traced = jitted.trace(*self.args, *args, **kwargs)
        return dataclasses.replace(traced, _bound=self.args)

    def lower(self, /, *args: Any, **kwargs: Any) -> Lowered:
        """As for a jitted function, with the other arguments."""
        return self.trace(*args, **kwargs).lower()


class _BoundJitted(PartialJitted[Any]):
    # A jitted method of an instance. (Its documentation is that of the method.)

    @property
    def __self__(self) -> Any:
        return self.args[0]

    @property
    def __func__(self) -> Any:
        return self.func

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]
        return self.func.__doc__


# A pytree like `jax.tree_util.Partial`: passed as an argument, it brings its instance.
jax.tree_util.register_pytree_node(
    _BoundJitted,
    lambda bound: (bound.args, bound.func),
    lambda func, args: _BoundJitted(func, *args),
)


def explain_recompile(jitted: Jitted[..., Any]) -> Explanation:
    """Says why the last call of a jitted function was compiled.

    Args:
        jitted: What `jit` returned.

    Returns:
        A list of `(path, old, new)` against the compilation before; empty if nothing
        was compiled. Prints one line an entry.

    Raises:
        TypeError: If it is something else, such as what `jax.jit` returned.

    Example:
        >>> import nnx_transforms as nnx, jax.numpy as jnp
        >>> double = nnx.jit(lambda x: x * 2)
        >>> _ = double(jnp.ones(2)), double(jnp.ones(3))
        >>> print(nnx.explain_recompile(double))
        args/0: float32[2] -> float32[3]
        >>> _ = double(jnp.ones(3))
        >>> nnx.explain_recompile(double)
        []
    """
    if not hasattr(jitted, "_notes"):
        raise TypeError(f"explain_recompile takes what `jit` returned; got {jitted!r}.")
    explanation: Explanation | None = jitted._notes.explanation
    return Explanation() if explanation is None else explanation
