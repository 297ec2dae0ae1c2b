"""A pytest plugin: tests of arrays become tests of objects.

Each array that a transform is given is put into a variable, and taken out by the
function that is transformed; what the function returns goes the same way back. So tests
of JAX's tell whether a transform treats the values of objects as it treats arrays. From
a checkout of JAX, after `tools.in_place_of_jax`:

    pytest -p tools.in_place_of_jax -p tools.arrays_in_variables tests/batching_test.py
"""

import contextlib
import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import nnx_transforms as nnx

# Of these the function returns variables, too; of others, such as `grad`, numbers.
RETURNING = ["checkpoint", "jit", "remat", "shard_map", "vmap"]
OTHERS = ["grad", "value_and_grad"]
BRANCHES = ["cond", "switch"]
NUMBERS = bool, int, float, complex


class Held(nnx.Variable[Any]):
    """A variable that no test makes."""


def held(tree: Any, *more: type[Any]) -> Any:
    """A pytree with variables in the places of arrays, and of some more types."""
    kinds = jax.Array, np.ndarray, np.generic, *more
    return jax.tree.map(lambda x: Held(x) if isinstance(x, kinds) else x, tree)


def taken(tree: Any) -> Any:
    """A pytree with arrays in the places of variables, and of their states."""
    kinds = Held, nnx.VariableState
    return jax.tree.map(
        lambda x: x.value if isinstance(x, kinds) else x,
        tree,
        is_leaf=lambda x: isinstance(x, kinds),
    )


def of_variables(f: Callable[..., Any], returns: bool) -> Callable[..., Any]:
    """A function of variables; one for each function, as traces are kept for it."""
    kept = f"_of_variables_{returns}"
    found: Callable[..., Any] | None = getattr(f, "__dict__", {}).get(kept)
    # Whoever wraps a function copies its attributes.
    if found is None or inspect.unwrap(found, stop=lambda g: g is f) is not f:

        def found(*args: Any, **kwargs: Any) -> Any:
            out = f(*taken(args), **taken(kwargs))
            return held(out, *NUMBERS) if returns else out

        _dress(found, f)
        with contextlib.suppress(AttributeError, TypeError):
            vars(f)[kept] = found
    return found


def _dress(wrapper: Any, f: Any) -> None:
    with contextlib.suppress(AttributeError, TypeError):
        functools.update_wrapper(wrapper, f, updated=())
    with contextlib.suppress(ValueError, TypeError):
        wrapper.__signature__ = inspect.signature(f)


class Transformed:
    """A function of arrays that calls one of variables."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return taken(self.inner(*held(args), **held(kwargs)))

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def _transform(transform: Any, returns: bool) -> Any:
    def replaced(f: Any = None, *args: Any, **options: Any) -> Any:
        if f is None:
            return lambda f: replaced(f, *args, **options)
        if not callable(f):  # the test wants an error
            return transform(f, *args, **options)
        call = Transformed(transform(of_variables(f, returns), *args, **options))
        _dress(call, f)
        return call

    return replaced


def _branches(transform: Any) -> Any:
    def ready(x: Any) -> Any:
        if callable(x):
            return of_variables(x, True)
        if isinstance(x, list | tuple) and x and all(map(callable, x)):
            return [*map(ready, x)]
        return held(x)

    def replaced(which: Any, *args: Any, **options: Any) -> Any:
        return taken(transform(which, *map(ready, args), **held(options)))

    return replaced


for name in (*RETURNING, *OTHERS):
    setattr(jax, name, _transform(getattr(nnx, name), name in RETURNING))
for name in BRANCHES:
    setattr(jax.lax, name, _branches(getattr(nnx, name)))
