"""`checkify`: errors at run time as values, with objects that keep out of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, overload

import jax
import jax.numpy as jnp
from jax.experimental import checkify as jax_checkify

from graphcore.authors import Body, Change, Entry, enter, lifted
from nnx_transforms.transforms.decorators import LATER, optional_function
from nnx_transforms.transforms.loops.agreement import (
    check_unchanged,
    failure,
    value_differences,
)
from nnx_transforms.transforms.types import P, R

Checked: TypeAlias = Callable[P, tuple[jax_checkify.Error, R]]


@overload
def checkify(f: Callable[P, R], errors: frozenset[Any] = ...) -> Checked[P, R]: ...
@overload
def checkify(
    *, errors: frozenset[Any] = ...
) -> Callable[[Callable[P, R]], Checked[P, R]]: ...
@optional_function
def checkify(
    f: Callable[..., Any] = LATER,
    errors: frozenset[Any] = jax_checkify.user_checks,
) -> Any:
    """Turns the checks in a function of live objects into an error that it returns.

    Objects keep the state that they had before the call if a check fails. Where the
    error is not known yet, inside another transformation, each variable that the
    function writes gets one of two values, as the error decides.

    Args:
        f: A function of any pytrees with objects in them. Left out, `checkify`
            returns a decorator.
        errors: What to check, a set from `jax.experimental.checkify`: by default the
            checks that the function makes itself.

    Returns:
        A function that returns `(error, out)`: a `jax.experimental.checkify.Error`,
        and what `f` returned. If a check failed, arrays in that are as JAX leaves
        them, new objects hold such arrays, and objects of the caller are as before.

    Raises:
        ValueError: At a call inside another transformation, if `f` changes the
            structure of the objects, with the path: an error that is not known yet
            can't decide about that.
        TypeError: There, if it changes the shape or dtype of a variable, with the path.

    Example:
        >>> import nnx_transforms as nnx, jax.numpy as jnp
        >>> from jax.experimental import checkify
        >>> total = nnx.Variable(jnp.array(1.0))
        >>> def divide(total, x):
        ...     total.value = total.value / x
        >>> divide = nnx.checkify(divide, errors=checkify.div_checks)
        >>> error, _ = divide(total, 2.0)
        >>> error.get(), float(total.value)
        (None, 0.5)
        >>> error, _ = divide(total, 0.0)
        >>> error.get().partition(' at')[0], float(total.value)
        ('division by zero', 0.5)
    """

    @lifted(f)
    def call(f: Callable[..., Any], /, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        entry = enter(f, args, kwargs, make=_Body)
        checked = jax_checkify.checkify(entry.body, errors)
        error, (groups, out, change) = checked(*entry.values)
        values = change.without_literals(groups[0])
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(error)):
            values = _select(entry, change, _has_failed(error), values)
        elif error.get_exception() is not None:
            return error, entry.discard([values], out, change)
        return error, entry.commit([values], out, change)

    return call


class _Body(Body):
    called = ("args", "kwargs")


def _has_failed(error: Any) -> Any:
    """Whether a check failed, as an array.

    An error has no public way to tell while it is traced. It is a pytree of three:
    whether each kind of check failed, with which code, and what the messages contain.
    """
    failed, *_ = jax.tree.flatten(error, is_leaf=lambda x: x is not error)[0]
    return functools.reduce(jnp.logical_or, map(jnp.any, jax.tree.leaves(failed)))


def _select(
    entry: Entry, change: Change, failed: Any, values: Sequence[Any]
) -> list[Any]:
    """The old values of the written variables if a check failed, else the new."""
    check_unchanged(
        entry.body,
        change,
        "A checked function inside another transformation may not change the structure "
        "of its objects: it is not known yet whether a check fails. It changes "
        "(before -> after):",
    )
    old = entry.raw
    # Nobody has a new object, without a position, unless it is returned.
    pairs = [*zip(change.positions, values, strict=True)]
    written: dict[int | None, Any] = dict(pairs)
    new = [written.get(position, value) for position, value in enumerate(old)]
    if changed := value_differences(entry.body, old, new):
        raise failure(
            TypeError,
            "A variable must keep its shape and dtype in a checked call: it is not "
            "known yet whether a check fails, so one of its two values is selected "
            "when the program runs. It changes (before -> after):",
            changed,
        )

    def either(before: Any, after: Any) -> Any:
        return jax.lax.select(failed, jnp.asarray(before), jnp.asarray(after))

    return [x if p is None else jax.tree.map(either, old[p], x) for p, x in pairs]
