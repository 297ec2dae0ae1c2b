"""`jit`: compiled functions of live objects, at the cost of compiled pure ones.

A call on a graph whose plan still holds costs what JAX needs for the flat list of its
arrays: check the plan, read the raw values, call the compiled function, write those
values back that the function overwrites. Everything else is done once, when the
function is traced: see `compiled` and `lifting`.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax

from graphcore.content import static_key
from graphcore.errors import path_text
from graphcore.joint import Joint, joint_of
from graphcore.plans import Plan
from nnx_transforms.arguments import positions_of
from nnx_transforms.prefixes import StateSharding
from nnx_transforms.transforms.ahead_of_time import Lowered, Traced
from nnx_transforms.transforms.eval_shape import eval_shape
from nnx_transforms.transforms.explain_recompile import Explanation, Signature
from nnx_transforms.transforms.jit_variants import (
    Arrangement,
    CompiledFunction,
    Fill,
    Options,
)
from nnx_transforms.transforms.lifting import (
    Callee,
    Inside,
    NoPrefix,
    Skeleton,
    publish,
    remove_objects,
    remove_prefixes,
    take,
)
from nnx_transforms.transforms.spots import Direct, separate

__all__ = ["Jitted", "explain_recompile", "jit"]

MAX_STRUCTURES = 1024
"""How many structures one jitted function keeps compiled functions for."""


class _Statics:
    """Which arguments are static, and how they are recognized in a call."""

    def __init__(self, f: Callable[..., Any], argnums: Any, argnames: Any) -> None:
        numbers = _as_tuple(argnums, int)
        names = _as_tuple(argnames, str)
        try:
            parameters = list(inspect.signature(f).parameters.values())
        except (TypeError, ValueError):
            parameters = []
        positional = [
            p.name
            for p in parameters
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
        # As in JAX: if only one of the two is given, the other follows from it.
        if argnums is None and argnames is not None:
            numbers = tuple(positional.index(n) for n in names if n in positional)
        elif argnames is None and argnums is not None:
            count = len(positional)
            names = tuple(positional[i] for i in numbers if -count <= i < count)
        self.numbers = tuple(sorted(numbers))
        self.names = frozenset(names)

    def __bool__(self) -> bool:
        return bool(self.numbers or self.names)

    def take(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any], dict[Any, Any]]:
        """Moves the static arguments of a call out of the way."""
        found: dict[Any, Any] = {}
        rest = [*args]
        for number in self.numbers:
            place = number if number >= 0 else number + len(args)
            if 0 <= place < len(args):
                found[place] = args[place]
                rest[place] = None
        if kwargs and not self.names.isdisjoint(kwargs):
            found.update((k, kwargs[k]) for k in sorted(self.names & kwargs.keys()))
            kwargs = {k: v for k, v in kwargs.items() if k not in found}
        return tuple(rest), kwargs, found


def _as_tuple(x: Any, kind: type[Any]) -> tuple[Any, ...]:
    if x is None:
        return ()
    return (x,) if isinstance(x, kind) else tuple(x)


def _fill_with(where: Direct | Skeleton, statics: dict[Any, Any]) -> Fill:
    """What puts objects in their places, and static arguments."""
    named = {name: x for name, x in statics.items() if isinstance(name, str)}

    def fill(args: Any, kwargs: Any, objects: Any) -> Any:
        args, kwargs = where.fill((args, kwargs), objects)
        return tuple(statics.get(i, x) for i, x in enumerate(args)), {**kwargs, **named}

    return fill


class Call(NamedTuple):
    """A call, located: what to run, and on what.

    Args:
        function: The compiled function.
        roots: The objects.
        plans: Their plans, which hold.
        joint: Their description.
        args: The arguments that are not static, with None in the place of objects.
        kwargs: Likewise.
        key: What the function was looked up by.
    """

    function: CompiledFunction
    roots: Sequence[Any]
    plans: Sequence[Plan]
    joint: Joint
    args: Sequence[Any]
    kwargs: dict[str, Any]
    key: Any


_Found: TypeAlias = tuple[
    CompiledFunction,
    Sequence[Any],
    Sequence[Plan],
    Joint,
    Sequence[Any],
    dict[str, Any],
    Any,
]


class Jitted:
    """A jitted function; see `jit`.

    Attributes are made by `jit`; call it as the function it wraps.

    Example:
        >>> import nnx_transforms as nnx
        >>> double = nnx.jit(lambda x: x * 2)
        >>> int(double(2))
        4
    """

    def __init__(self, f: Callable[..., Any], arguments: dict[str, Any]) -> None:
        if not callable(f):
            raise TypeError(f"Expected a callable value, got {f!r}.")
        functools.update_wrapper(self, f, updated=())
        if inspect.isroutine(f):
            extra = getattr(f, "__dict__", {}).items()
            vars(self).update((k, v) for k, v in extra if not hasattr(Jitted, k))
            self.__wrapped__ = f
        self._callee = Callee(f)
        self._arguments = arguments
        self._statics = _Statics(
            f,
            arguments["static_argnums"],
            arguments["static_argnames"],
        )
        self._has_statics = bool(self._statics)
        self._bound = self._callee.bound
        # Shardings are told by position, so keyword arguments need theirs.
        self._resolves = arguments["in_shardings"] is not None
        self._entries: dict[Any, CompiledFunction] = {}
        self._signature: Signature | None = None
        self._explanation: Explanation | None = None
        donated = _Statics(f, arguments["donate_argnums"], arguments["donate_argnames"])
        shardings = arguments["in_shardings"], arguments["out_shardings"]
        known = (
            "keep_unused",
            "inline",
            "device",
            "backend",
        )
        passed_on = {
            name: arguments[name]
            for name in known
            if arguments[name] not in (None, False)
        }
        passed_on.update(arguments["more"])
        self._options = Options(
            out_shardings=arguments["out_shardings"],
            has_shardings=any(s is not None for s in shardings),
            donate_argnums=donated.numbers,
            donate_argnames=tuple(sorted(donated.names)),
            donate_state=arguments["donate_state"],
            constrain_state=arguments["constrain_state"],
            passed_on=passed_on,
        )
        # Objects in the output are placed by filter, even if none came in.
        self._places_objects = any(
            isinstance(p, StateSharding)
            for p in jax.tree.leaves(
                arguments["out_shardings"],
                is_leaf=lambda p: isinstance(p, StateSharding),
            )
        )
        self._plain = self._jit_plain(f, passed_on)

    # Calls

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        self._explanation = None
        found = self._find(args, kwargs)
        if found is None:
            out, tree, outcome = self._plain(*args, **kwargs)
            return publish((), joint_of(())[0], (), outcome, out, tree)
        function, roots, plans, joint, plain, named, _ = found
        return function.run(roots, plans, joint, plain, named)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else _BoundJitted(self, instance)

    # What is compiled belongs to this process, and is found by identity: a copy is the
    # same function, as with functions, and elsewhere it is made anew.

    def __copy__(self) -> Jitted:
        return self

    def __deepcopy__(self, memo: object) -> Jitted:
        return self

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

    def _find(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Found | None:
        """As `_locate`; a plain tuple is made in a third of the time."""
        statics: dict[Any, Any] = {}
        static_keys: tuple[Any, ...] = ()
        if kwargs and self._resolves and remove_objects((args, kwargs))[2]:
            args, kwargs = positions_of(self.__wrapped__, args, kwargs)
        if self._has_statics:
            args, kwargs, statics = self._statics.take(args, kwargs)
            static_keys = tuple([(k, static_key(v)) for k, v in statics.items()])
        plain, named, where, roots = separate(args, kwargs)
        for x in self._bound:
            if not any(x is root for root in roots):
                roots.append(x)
        if not roots and not self._places_objects:
            return None
        joint, plans = joint_of(roots)
        key = joint.definitions, where, static_keys
        try:
            function = self._entries.get(key)
        except TypeError:
            self._refuse_unhashable(statics)
            raise
        if function is None:
            fill = _fill_with(where, statics)
            function = self._add(key, args, kwargs, fill, statics)
        return function, roots, plans, joint, plain, named, key

    def _locate(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        """Locates a call; None if there are no objects."""
        found = self._find(args, kwargs)
        return None if found is None else Call(*found)

    @staticmethod
    def _refuse_unhashable(statics: dict[Any, Any]) -> None:
        for name, value in statics.items():
            try:
                hash(value)
            except TypeError as error:
                raise ValueError(
                    f"The static argument {name!r} is not hashable: {value!r} of type "
                    f"{type(value).__name__}. Compiled functions are looked up by "
                    "their static arguments: pass a hashable value, such as a tuple."
                ) from error

    def _add(
        self,
        key: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        fill: Fill,
        statics: dict[Any, Any],
    ) -> CompiledFunction:
        """Makes the compiled function for a structure that was not seen before."""
        hash(key[0])  # says which static attribute is not hashable, if one isn't
        arrangement = self._arrange(args, kwargs, statics)
        function = CompiledFunction(
            self._callee, fill, arrangement, self._options, self._note
        )
        if len(self._entries) >= MAX_STRUCTURES:
            del self._entries[next(iter(self._entries))]
        self._entries[key] = function
        return function

    def _arrange(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], statics: dict[Any, Any]
    ) -> Arrangement:
        bound = self._callee.bound
        shardings = self._arguments["in_shardings"]
        prefix: Any = NoPrefix
        plain_shardings: tuple[Any, ...] | None = None
        if shardings is not None:
            per_arg = self._per_argument(shardings, args, statics)
            prefix = (per_arg, None)
            plain_shardings = remove_prefixes(
                per_arg, lambda p: isinstance(p, StateSharding)
            )
            plain_shardings = tuple(
                None if position in statics else p
                for position, p in enumerate(plain_shardings or ())
            )
        inputs = take((args, kwargs), prefix, bound)
        places: list[str] = []
        donated: set[int] = set()
        for number, root in enumerate(inputs.roots):
            paths = [path for path, x, _ in inputs.spots if x is root]
            places.append(path_text(self._named(paths[0])) if paths else "self")
            for which, name, *_ in paths:
                names = (
                    self._options.donate_argnums
                    if which == 0
                    else self._options.donate_argnames
                )
                if name in names:
                    donated.add(number)
        return Arrangement(
            joint=inputs.joint,
            bound=inputs.bound,
            places=tuple(places),
            root_prefixes=tuple(inputs.root_prefixes),
            prefixes=tuple(inputs.prefixes),
            plain_shardings=plain_shardings,
            donated_roots=frozenset(donated),
            statics={str(name): value for name, value in statics.items()},
        )

    @staticmethod
    def _named(path: tuple[Any, ...]) -> tuple[Any, ...]:
        which, *rest = path
        return ("args", *rest) if which == 0 else tuple(rest)

    @staticmethod
    def _per_argument(
        shardings: Any, args: tuple[Any, ...], statics: dict[Any, Any]
    ) -> tuple[Any, ...]:
        """The shardings of positional arguments; static ones have none."""
        if not isinstance(shardings, tuple | list):
            return tuple([shardings] * len(args))
        given = list(shardings)
        for position in range(len(args)):
            if position in statics:
                given.insert(position, None)
        if len(given) != len(args):
            raise ValueError(
                f"in_shardings has {len(shardings)} entries, but the call has "
                f"{len(args) - sum(isinstance(k, int) for k in statics)} positional "
                "arguments that are not static: give one entry for each."
            )
        return tuple(given)

    def _note(self, signature: Signature) -> None:
        """Told by a compiled function that it is being traced."""
        self._explanation = signature.differences(self._signature)
        self._signature = signature

    def _jit_plain(
        self, f: Callable[..., Any], passed_on: dict[str, Any]
    ) -> Callable[..., Any]:
        """The function for calls without objects: JAX's own, but for its output."""
        arguments = self._arguments
        nothing = joint_of(())[0]

        @functools.wraps(f, updated=())
        def pure(*args: Any, **kwargs: Any) -> Any:
            self._note(Signature.of(nothing, (), (), (args, kwargs), {}))
            left = Inside(nothing, ()).leave(f(*args, **kwargs))
            return left.values(), left.tree, left.outcome

        for name in (
            "static_argnums",
            "static_argnames",
            "donate_argnums",
            "donate_argnames",
        ):
            if arguments[name] is not None:
                passed_on = {**passed_on, name: arguments[name]}
        is_mapping = lambda p: isinstance(p, StateSharding)  # noqa: E731
        if arguments["in_shardings"] is not None:
            given = remove_prefixes(arguments["in_shardings"], is_mapping)
            passed_on = {**passed_on, "in_shardings": given}
        if arguments["out_shardings"] is not None:
            given = remove_prefixes(arguments["out_shardings"], is_mapping)
            whole = given if isinstance(given, jax.sharding.Sharding) else None
            passed_on = {**passed_on, "out_shardings": (whole, given, None)}
        return jax.jit(pure, **passed_on)

    # Ahead of time

    def trace(self, *args: Any, **kwargs: Any) -> Traced:
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
        call = self._locate(args, kwargs)
        statics = self._statics.take(args, kwargs)[2]
        if call is None:
            stage = self._plain.trace(*args, **kwargs)  # type: ignore[attr-defined]
            return Traced(stage, self._locate, statics)
        function, given, named = call.function.prepare(
            call.joint.values(call.plans), call.args, call.kwargs
        )
        traced = function.trace(*given, **named)  # type: ignore[attr-defined]
        return Traced(traced, self._locate, statics, call.key, call.function)

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
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

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
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
        _, _, statics = self._statics.take(args, kwargs)
        f = self.__wrapped__
        if not statics:
            return eval_shape(f, *args, **kwargs)
        free = [x for i, x in enumerate(args) if i not in statics]
        free_kwargs = {k: v for k, v in kwargs.items() if k not in statics}

        def with_statics(*dynamic: Any, **named: Any) -> Any:
            rest = iter(dynamic)
            every = [
                statics[i] if i in statics else next(rest) for i in range(len(args))
            ]
            fixed = {k: v for k, v in statics.items() if isinstance(k, str)}
            return f(*every, **named, **fixed)

        return eval_shape(with_statics, *free, **free_kwargs)

    def clear_cache(self) -> None:
        """Forgets everything that was compiled.

        Example:
            >>> import nnx_transforms as nnx
            >>> nnx.jit(lambda x: x).clear_cache()
        """
        self._entries.clear()
        self._signature = None
        self._plain.clear_cache()  # type: ignore[attr-defined]


def jit(
    fun: Callable[..., Any] | None = None,
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
    static argument changed; `explain_recompile` says what.

    Args:
        fun: The function. Left out, `jit` returns a decorator.
        in_shardings: As for `jax.jit`; a `StateSharding` may stand for an object.
        out_shardings: Likewise. An object that was an argument keeps the sharding of
            `in_shardings`.
        static_argnums: As for `jax.jit`.
        static_argnames: As for `jax.jit`.
        donate_argnums: As for `jax.jit`; of an object all variables are donated.
        donate_argnames: Likewise, by name.
        keep_unused: As for `jax.jit`.
        device: As for `jax.jit`.
        backend: As for `jax.jit`.
        inline: As for `jax.jit`.
        donate_state: Whether to donate the buffers of all variables that the function
            overwrites. Which those are is found out by tracing it once before it is
            compiled. A buffer that something else in the call holds is never donated.
        constrain_state: Whether to constrain, inside, the value of each variable to
            be sharded as its `sharding` metadata says, on its `mesh` metadata or else
            the mesh in force; or a function that does it, from `State` to `State`.
        **more: Further arguments that the installed `jax.jit` takes.

    Returns:
        A callable with `trace`, `lower`, `eval_shape` and `clear_cache`.

    Raises:
        TypeError: At a call, if a static attribute of an object is not hashable, or
            a variable holds what JAX does not accept; with the path.
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
    arguments = {
        "in_shardings": in_shardings,
        "out_shardings": out_shardings,
        "static_argnums": static_argnums,
        "static_argnames": static_argnames,
        "donate_argnums": donate_argnums,
        "donate_argnames": donate_argnames,
        "keep_unused": keep_unused,
        "device": device,
        "backend": backend,
        "inline": inline,
        "donate_state": donate_state,
        "constrain_state": constrain_state,
        "more": more,
    }
    if fun is None:
        return lambda f: Jitted(f, arguments)
    return Jitted(fun, arguments)


class _BoundJitted(functools.partial[Any]):
    # A jitted method of an instance, with all that a jitted function offers. (Its
    # documentation is that of the method.)

    @property
    def __self__(self) -> Any:
        return self.args[0]

    @property
    def __func__(self) -> Any:
        return self.func

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]
        return self.func.__doc__

    def __getattr__(self, name: str) -> Any:
        return getattr(self.func, name)

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        return self.__func__.eval_shape(*self.args, *args, **kwargs)

    def trace(self, *args: Any, **kwargs: Any) -> Traced:
        traced: Traced = self.__func__.trace(*self.args, *args, **kwargs)
        return traced.of(*self.args)

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        return self.trace(*args, **kwargs).lower()


def explain_recompile(jitted: Jitted) -> Explanation:
    """Says why the last call of a jitted function was compiled.

    Args:
        jitted: What `jit` returned.

    Returns:
        A list of `(path, old, new)` against the compilation before; empty if nothing
        was compiled. Prints one line an entry.

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
    explanation: Explanation | None = jitted._explanation
    return Explanation() if explanation is None else explanation
