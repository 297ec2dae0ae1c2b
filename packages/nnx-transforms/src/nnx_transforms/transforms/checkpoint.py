"""`remat`: computing again on the way back what would take memory to keep."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax

from graphcore.content import static_key
from graphcore.joint import Joint, joint_of
from graphcore.plans import check_traces
from nnx_transforms.arguments import positions_of
from nnx_transforms.transforms.captures import captured_objects
from nnx_transforms.transforms.lifting import (
    Callee,
    Inputs,
    Inside,
    Skeleton,
    lifted,
    publish,
    take,
)
from nnx_transforms.transforms.spots import Direct, separate

__all__ = ["checkpoint", "remat"]

_MISSING: Any = object()
_MAX_STRUCTURES = 64
_JAX_TAKES_NAMES = "static_argnames" in inspect.signature(jax.checkpoint).parameters


def remat(
    f: Callable[..., Any] = _MISSING,
    *,
    prevent_cse: bool | Sequence[bool] = True,
    static_argnums: int | tuple[int, ...] = (),
    static_argnames: str | Iterable[str] = (),
    policy: Callable[..., bool] | None = None,
) -> Any:
    """Makes a function whose intermediate values are computed again on the way back.

    Under differentiation only what `policy` says, by default nothing, is kept of what
    `f` computes; see `jax.checkpoint`. What `f` does to its objects is published once,
    and the computation that is repeated draws the same random keys, since it starts
    from the same state.

    Like JAX, this keeps traces: `f` is traced again if the definition of its objects,
    an abstract value or a static argument changes, and at each call if `f` can be
    seen to close over objects, so that it reads what they hold now.

    Args:
        f: A function of any pytrees with objects. Left out, this is a decorator.
        prevent_cse: As for `jax.checkpoint`.
        static_argnums: The positions of arguments that are not traced.
        static_argnames: The names of arguments that are not traced.
        policy: As for `jax.checkpoint`, such as one of `jax.checkpoint_policies`.

    Returns:
        A function with the arguments of `f`.

    Raises:
        TypeError: As `jax.checkpoint` does.
        ValueError: At a call, if `static_argnums` are out of range, or an object can't
            be flattened or belongs to another trace.

    Example:
        >>> import nnx_transforms as nnx, jax, jax.numpy as jnp
        >>> model = nnx.Dict(w=nnx.Param(jnp.array(2.0)), calls=nnx.BatchStat(0))
        >>> @nnx.remat
        ... def layer(model, x):
        ...     model.calls.value += 1
        ...     return jnp.sin(model.w.value * x)
        >>> grads = nnx.grad(layer)(model, 0.0)
        >>> float(grads.w.value), int(model.calls.value)
        (0.0, 1)
    """

    def again(f: Callable[..., Any]) -> Callable[..., Any]:
        rematerialized: Callable[..., Any] = remat(
            f,
            prevent_cse=prevent_cse,
            static_argnums=static_argnums,
            static_argnames=static_argnames,
            policy=policy,
        )
        return rematerialized

    if f is _MISSING:
        return again
    names = (static_argnames,) if isinstance(static_argnames, str) else static_argnames
    options = {"prevent_cse": prevent_cse, "policy": policy}
    rematerialized = _Rematerialized(f, static_argnums, tuple(names), options)
    return lifted(f, again)(lambda *args, **kwargs: rematerialized(args, kwargs))


checkpoint = remat


# For each function what was checkpointed of it, by structure and options, the latest
# first: as JAX does it, traces are kept with the function and not with what `remat`
# made of it. Keys are compared and never hashed, which takes longer than a comparison.
# Functions are found by their id, and removed when they go.
_kept: dict[int, tuple[Any, list[tuple[Any, Callable[..., Any]]]]] = {}


class _Structure(NamedTuple):
    """What a trace depends on beside abstract values.

    Args:
        joint: The description of the objects.
        where: Where they are among the arguments.
        bound: The numbers of those that the function is bound to.
        statics: The static arguments by position or name.
    """

    joint: Joint
    where: Direct | Skeleton
    bound: tuple[int, ...]
    statics: dict[Any, Any]

    def key(self) -> Any:
        """Equal for two structures exactly if one trace serves both."""
        joint, where, bound, statics = self
        keys = {name: static_key(x) for name, x in statics.items()}
        return joint.definitions, where, bound, keys


class _Rematerialized:
    """A function, checkpointed for each structure of its objects."""

    def __init__(
        self,
        f: Callable[..., Any],
        static_argnums: Any,
        static_argnames: tuple[str, ...],
        options: dict[str, Any],
    ) -> None:
        self._f = f
        self._argnums = static_argnums
        self._argnames = static_argnames
        self._options = options
        self._plain: Callable[..., Any] | None = None

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        callee = Callee(self._f)
        given, given_kwargs = args, kwargs
        args, kwargs = positions_of(self._f, args, kwargs)
        statics: dict[Any, Any] = {}
        if self._argnums != () or self._argnames:
            statics = self._statics(args, kwargs)
            args = tuple(None if i in statics else x for i, x in enumerate(args))
            kwargs = {k: v for k, v in kwargs.items() if k not in statics}
        plain, named, where, roots = separate(args, kwargs)
        if not roots and not callee.bound:
            if _JAX_TAKES_NAMES or not self._argnames:
                found = self._find_plain()(*given, **given_kwargs)
                return publish((), joint_of(())[0], (), found[2], *found[:2])
        for x in callee.bound:
            if not any(x is root for root in roots):
                roots.append(x)
        bound = tuple(_number(x, roots) for x in callee.bound)
        joint, plans = joint_of(roots)
        check_traces(plans)
        options = self._options
        if isinstance(options["prevent_cse"], Sequence):
            inputs = take((args, kwargs), bound=callee.bound)
            per_value = _prevent_cse(inputs, options["prevent_cse"])
            options = {**options, "prevent_cse": per_value}
        structure = _Structure(joint, where, bound, statics)
        checkpointed = self._checkpoint(callee.function, structure, options)
        values, tree, outcome = checkpointed(joint.values(plans), *plain, **named)
        return publish(roots, joint, plans, outcome, values, tree)

    def _statics(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[Any, Any]:
        """The static arguments of a call by position or name."""
        argnums = self._argnums
        numbers = (argnums,) if isinstance(argnums, int) else argnums
        if not isinstance(numbers, tuple) or not all(
            isinstance(n, int) and -len(args) <= n < len(args) for n in numbers
        ):
            # JAX says what is wrong.
            jax.checkpoint(lambda *_: (), static_argnums=argnums)(*(0.0 for _ in args))
        statics: dict[Any, Any] = {n % len(args): args[n] for n in numbers}
        if self._argnames:
            parameters = list(inspect.signature(self._f).parameters)
            for name in self._argnames:
                if name in kwargs:
                    statics[name] = kwargs[name]
                elif name in parameters and parameters.index(name) < len(args):
                    number = parameters.index(name)
                    statics[number] = args[number]
        return statics

    def _checkpoint(
        self,
        function: Callable[..., Any],
        structure: _Structure,
        options: dict[str, Any],
    ) -> Callable[..., Any]:
        """What JAX checkpoints: a function of the values and the other arguments."""
        key = structure.key(), options["prevent_cse"], options["policy"]
        kept = self._kept_for(function)
        for known_key, known in kept:
            if _equal(known_key, key):
                return known
        checkpointed = jax.checkpoint(_pure(function, structure), **options)
        kept.insert(0, (key, checkpointed))
        del kept[_MAX_STRUCTURES:]
        return checkpointed

    @staticmethod
    def _kept_for(
        function: Callable[..., Any],
    ) -> list[tuple[Any, Callable[..., Any]]]:
        if captured_objects(function):
            return []
        number = id(function)
        found = _kept.get(number)
        if found is None:
            try:
                # Without a function of Python's, since many come and go.
                alive = weakref.ref(function, functools.partial(_kept.pop, number))
            except TypeError:  # No weak reference to it can be made.
                return []
            found = _kept[number] = alive, []
        return found[1]

    def _find_plain(self) -> Callable[..., Any]:
        if captured_objects(self._f):
            return self._checkpoint_plain()
        if self._plain is None:
            self._plain = self._checkpoint_plain()
        return self._plain

    def _checkpoint_plain(self) -> Callable[..., Any]:
        """The function for calls without objects: JAX gets the user's arguments."""

        @functools.wraps(self._f, updated=())
        def plain(*args: Any, **kwargs: Any) -> Any:
            left = Inside(joint_of(())[0], ()).leave(self._f(*args, **kwargs))
            return left.values(), left.tree, left.outcome

        options = dict(self._options, static_argnums=self._argnums)
        if self._argnames and _JAX_TAKES_NAMES:
            options["static_argnames"] = self._argnames
        return jax.checkpoint(plain, **options)


def _equal(a: Any, b: Any) -> bool:
    try:
        return bool(a == b)
    except Exception:  # a stranger's `__eq__`, such as that of an array
        return False


def _number(x: Any, roots: Sequence[Any]) -> int:
    return next(number for number, root in enumerate(roots) if root is x)


def _pure(function: Callable[..., Any], structure: _Structure) -> Callable[..., Any]:
    # What is kept must hold neither the objects of a call, nor the function itself,
    # or neither would ever be collected.
    joint, where, bound, statics = structure
    reference: Any
    try:
        reference = weakref.ref(function)
    except TypeError:  # It is not kept, then.
        reference = lambda: function  # noqa: E731

    def pure(values: list[Any], *args: Any, **kwargs: Any) -> Any:
        inside = Inside(joint, values)
        args, kwargs = where.fill((args, kwargs), inside.roots)
        if statics:
            args = tuple(statics.get(i, x) for i, x in enumerate(args))
            kwargs.update((k, v) for k, v in statics.items() if isinstance(k, str))
        objects = [inside.roots[n] for n in bound]
        left = inside.leave(reference()(*objects, *args, **kwargs))
        return left.values(), left.tree, left.outcome

    pure.__name__ = getattr(function, "__name__", type(function).__name__)
    pure.__qualname__ = getattr(function, "__qualname__", pure.__name__)
    return pure


def _prevent_cse(inputs: Inputs, per_argument: Sequence[bool]) -> Any:
    """The setting where the values of all objects come first.

    Args:
        inputs: The arguments.
        per_argument: The setting of each argument.

    Returns:
        A prefix for the values and the arguments.
    """
    _, named = inputs.plain
    if named:  # There is no setting for arguments by keyword.
        return any(per_argument)
    settings = list(per_argument)
    of_values = []
    for position in range(len(inputs.joint.paths)):
        place, number, *_ = *inputs.variable_path(position), None
        of_values.append(settings[number] if place == 0 else True)
    return (of_values, *settings)
