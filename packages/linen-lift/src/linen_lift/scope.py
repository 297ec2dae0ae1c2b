# ruff: noqa: F403, F405
"""Functions of a scope as pure functions of variables: `init`, `apply`, and their kin.

The scopes themselves are in `scope_tree`; all that belongs to working with scopes is
exported here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax

from graphcore import api_boundary

from . import errors, filters
from .dataflow import evaluate_independent
from .filters import *
from .leaves import as_function_of, is_struct
from .scope_tree import Scope
from .scope_variable import Variable
from .signatures import parameters_of

__all__ = ["Scope", "Variable", "apply", "bind", "init", "lazy_init"]
__all__ += filters.__all__


def _check_variables(variables: Any) -> None:
    misfit = errors.ApplyScopeInvalidVariablesTypeError
    if not isinstance(variables, Mapping):
        raise misfit(f"a {type(variables).__name__}")
    for col, tree in variables.items():
        if not isinstance(col, str):
            raise misfit(f"the collection name {col!r}")
        if not isinstance(tree, Mapping):
            raise misfit(f'a {type(tree).__name__} as collection "{col}"')
        for name in tree:
            if not isinstance(name, str):
                raise misfit(f'the name {name!r} in collection "{col}"')
    inner = variables.get("params", {}).get("params")
    if isinstance(inner, Mapping):
        keys = f": {', '.join(map(str, inner))}" if inner else " nothing in it"
        raise errors.ApplyScopeInvalidVariablesStructureError("params", keys)


def bind(
    variables: Mapping[str, Any],
    rngs: Any = None,
    mutable: CollectionFilter = False,
    flags: Mapping[Any, Any] | None = None,
) -> Scope:
    """Makes a root scope.

    Args:
        variables: `{collection: nested dict}`.
        rngs: a key (for the stream `params`), or keys by stream.
        mutable: which collections may be written.
        flags: values for `Scope.get_flag`.

    Returns:
        The scope.

    Raises:
        ApplyScopeInvalidVariablesTypeError: if `variables` is no such mapping.
        ApplyScopeInvalidVariablesStructureError: if a collection is wrapped twice.
        InvalidRngError: if `rngs` is neither a key nor a mapping to keys.

    Example:
        >>> from linen_lift.scope import bind
        >>> bind({'state': {'n': 1}}).get_variable('state', 'n')
        1
    """
    _check_variables(variables)
    return Scope(variables, rngs=rngs, mutable=mutable, flags=flags)


def apply(
    fn: Callable[..., Any],
    mutable: CollectionFilter = False,
    flags: Mapping[Any, Any] | None = None,
) -> Callable[..., Any]:
    """Makes a pure function of variables from a function of a scope.

    Args:
        fn: a function whose first argument is a scope.
        mutable: which collections `fn` may write.
        flags: values for `Scope.get_flag`.

    Returns:
        A function `(variables, *args, rngs=None, **kwargs)`. It returns what `fn`
        returns and, unless `mutable` is False, pairs it with the mutable collections.

    Example:
        >>> from linen_lift.scope import apply
        >>> def count(scope):
        ...     n = scope.variable('state', 'n', lambda: 0)
        ...     n.value += 1
        ...     return n.value
        >>> apply(count, mutable='state')({'state': {'n': 4}})
        (5, {'state': {'n': 5}})
    """
    is_filter_empty(mutable)  # refuses what is no filter

    @api_boundary
    @functools.wraps(fn)
    def wrapper(
        variables: Mapping[str, Any], /, *args: Any, rngs: Any = None, **kwargs: Any
    ) -> Any:
        with bind(variables, rngs, mutable, flags).temporary() as root:
            out = fn(root, *args, **kwargs)
            return out if mutable is False else (out, root.mutable_variables())

    return wrapper


def init(
    fn: Callable[..., Any],
    mutable: CollectionFilter = True,
    flags: Mapping[Any, Any] | None = None,
) -> Callable[..., tuple[Any, dict[str, Any]]]:
    """Makes a function that creates the variables of a function of a scope.

    Args:
        fn: a function whose first argument is a scope.
        mutable: which collections are created.
        flags: values for `Scope.get_flag`; `initializing` is added.

    Returns:
        A function `(rngs, *args, **kwargs)` that returns `(out, variables)`.

    Example:
        >>> import linen_lift as nn, jax
        >>> def dense(scope, x):
        ...     w = scope.param('w', nn.initializers.ones, (x.shape[-1], 2))
        ...     return x @ w
        >>> out, variables = nn.scope.init(dense)(jax.random.key(0), jax.numpy.ones(3))
        >>> jax.tree.map(jax.numpy.shape, variables)
        {'params': {'w': (3, 2)}}
    """
    applied = apply(fn, mutable, {**(flags or {}), "initializing": True})

    @api_boundary
    @functools.wraps(fn)
    def wrapper(rngs: Any, /, *args: Any, **kwargs: Any) -> Any:
        out = applied({}, *args, rngs=rngs, **kwargs)
        return (out, {}) if mutable is False else out

    return wrapper


@parameters_of(init)
def lazy_init(*_args: Any, **_options: Any) -> Callable[..., dict[str, Any]]:
    """Like `init`, but inputs may be given as shapes and nothing else is computed.

    Args:
        fn: a function whose first argument is a scope.
        mutable: which collections are created.
        flags: values for `Scope.get_flag`; `initializing` is added.

    Returns:
        A function `(rngs, *args, **kwargs)` that returns the variables. Arguments may
        contain `jax.ShapeDtypeStruct` in the place of arrays.

    Raises:
        LazyInitError: if a variable depends on the values of such an argument.

    Example:
        >>> import linen_lift as nn, jax
        >>> def dense(scope, x):
        ...     return x @ scope.param('w', nn.initializers.ones, (x.shape[-1], 2))
        >>> x = jax.ShapeDtypeStruct((8, 3), 'float32')
        >>> variables = nn.scope.lazy_init(dense)(jax.random.key(0), x)
        >>> jax.tree.map(jax.numpy.shape, variables)
        {'params': {'w': (3, 2)}}
    """
    initialize = init(*_args, **_options)

    @api_boundary
    @functools.wraps(initialize)
    def wrapper(rngs: Any, /, *args: Any, **kwargs: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            return initialize(rngs, *args, **kwargs)[1]

        of_unknown, unknown = as_function_of(is_struct, run, *args, **kwargs)
        variables, dependent = evaluate_independent(of_unknown, *unknown)
        if dependent is not None:
            raise errors.LazyInitError(*describe_place(dependent))
        return variables

    return wrapper


def describe_place(key_path: Any, root: str = "/") -> tuple[str, str, str]:
    """The collection, name and path text of a leaf in a tree of variables.

    Args:
        key_path: as `jax.tree_util.tree_flatten_with_path` gives it.
        root: the path text of the scope that has the tree.
    """
    names = [str(k.key) for k in key_path if isinstance(k, jax.tree_util.DictKey)]
    col, *path = names
    name = path.pop() if path else col
    return col, name, "/".join([root.rstrip("/"), *path]) or "/"
