"""`init`, `apply` and their kin as functions, and relations between modules."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from graphcore import api_boundary

from .. import scope as scopes
from ..errors import CallShareScopeOnUnboundModuleError
from ..filters import CollectionFilter
from ..signatures import parameters_of
from .base import Module
from .context import context
from .preparation import INIT_MUTABLE, CaptureFilter, check_instance, pure

__all__ = [
    "apply",
    "init",
    "init_with_output",
    "merge_param",
    "share_scope",
    "tabulate",
]


def apply(
    fn: Callable[..., Any],
    module: Module,
    mutable: CollectionFilter = False,
    capture_intermediates: CaptureFilter = False,
) -> Callable[..., Any]:
    """A pure function that applies a function of a module.

    Args:
        fn: a function whose first argument is the module.
        module: an unbound module.
        mutable: which collections may be written.
        capture_intermediates: see `Module.apply`.

    Returns:
        A function `(variables, *args, rngs=None, **kwargs)`.

    Example:
        >>> import linen_lift as nn, jax.numpy as jnp
        >>> dense = nn.Dense(1, use_bias=False)
        >>> twice = nn.apply(lambda dense, x: dense(dense(x)), dense)
        >>> twice({'params': {'kernel': jnp.full((1, 1), 3.0)}}, jnp.ones(1)).tolist()
        [9.0]
    """
    return pure(scopes.apply, fn, module, mutable, capture_intermediates)


def init_with_output(
    fn: Callable[..., Any],
    module: Module,
    mutable: CollectionFilter = INIT_MUTABLE,
    capture_intermediates: CaptureFilter = False,
) -> Callable[..., Any]:
    """A function that creates the variables a function of a module needs.

    Args:
        fn: a function whose first argument is the module.
        module: an unbound module.
        mutable: which collections are created.
        capture_intermediates: see `Module.apply`.

    Returns:
        A function `(rngs, *args, **kwargs)` that returns `(out, variables)`.

    Example:
        >>> import linen_lift as nn, jax, jax.numpy as jnp
        >>> make = nn.init_with_output(lambda dense, x: dense(x), nn.Dense(2))
        >>> make(jax.random.key(0), jnp.ones(3))[0].shape
        (2,)
    """
    return pure(scopes.init, fn, module, mutable, capture_intermediates)


@parameters_of(init_with_output)
def init(*_args: Any, **_options: Any) -> Callable[..., Any]:
    """A function that creates the variables a function of a module needs.

    Args:
        fn: a function whose first argument is the module.
        module: an unbound module.
        mutable: which collections are created.
        capture_intermediates: see `Module.apply`.

    Returns:
        A function `(rngs, *args, **kwargs)` that returns the variables.

    Example:
        >>> import linen_lift as nn, jax, jax.numpy as jnp
        >>> make = nn.init(lambda dense, x: dense(x), nn.Dense(2))
        >>> make(jax.random.key(0), jnp.ones(3))['params']['bias'].shape
        (2,)
    """
    make = init_with_output(*_args, **_options)

    @api_boundary
    def wrapper(rngs: Any, /, *args: Any, **kwargs: Any) -> Any:
        return make(rngs, *args, **kwargs)[1]

    return wrapper


def tabulate(
    module: Module,
    rngs: Any,
    depth: int | None = None,
    show_repeated: bool = False,
    mutable: CollectionFilter = INIT_MUTABLE,
    **options: Any,
) -> Callable[..., str]:
    """`Module.tabulate` as a function of the arguments of the module's method.

    Args:
        module: an unbound module.
        rngs: as for `Module.init`.
        depth: see `Module.tabulate`.
        show_repeated: see `Module.tabulate`.
        mutable: as for `Module.init`.
        **options: further ones of `Module.tabulate`.

    Returns:
        A function `(*args, **kwargs)` that returns the table.

    Example:
        >>> import linen_lift as nn, jax, jax.numpy as jnp
        >>> 'Dense Summary' in nn.tabulate(nn.Dense(2), jax.random.key(0))(jnp.ones(3))
        True
    """
    options |= {"depth": depth, "show_repeated": show_repeated, "mutable": mutable}
    return functools.partial(module.tabulate, rngs, **options)


def share_scope(module: Module, other: Module) -> None:
    """Lets two modules have one scope: their variables lie side by side.

    If `other` is a submodule of `module`, it moves into the scope of `module`; else
    `module` moves into the scope of `other`. A name that one of them takes there is in
    use for the other, also if the other takes it first.

    Args:
        module: a bound module.
        other: another one.

    Raises:
        CallShareScopeOnUnboundModuleError: if one of them is not bound.
        NameInUseError: if both have a submodule of one name.

    Example:
        >>> import linen_lift as nn, jax
        >>> class Wrapped(nn.Module):
        ...     def setup(self):
        ...         self.dense = nn.Dense(2)
        ...         nn.share_scope(self, self.dense)
        ...     def __call__(self, x):
        ...         return self.dense(x)
        >>> variables = Wrapped().init(jax.random.key(0), jax.numpy.ones(3))
        >>> sorted(variables['params'])
        ['bias', 'kernel']
    """
    for each in (module, other):
        check_instance(each, "share_scope")
        if each.scope is None:
            raise CallShareScopeOnUnboundModuleError(type(each).__name__)
    before, scope = module.scope, other.scope
    assert before is not None and scope is not None
    inside = scope._tree is before._tree and (
        scope.path[: len(before.path)] == before.path
    )
    moved = module
    if inside:
        moved, before, scope = other, scope, before
    elif all(running.scope is not scope for running in context.modules):
        scope._free()  # left from an earlier call
    if before is scope:
        return
    moved._module__state.mark, moved._module__state.names = len(scope._log), []
    module._module__state.shares_scope = other._module__state.shares_scope = True
    if inside and before.parent is scope:
        # Its name becomes free: nothing is stored under it any more.
        scope._reserved.pop(before.path[-1], None)
    _move(moved, scope)


def _move(module: Any, scope: scopes.Scope) -> None:
    before, module.__dict__["scope"] = module.scope, scope
    if module._module__state.in_compact:
        scope._numbers = before._numbers  # it goes on naming
    for name, child in module._module__state.children.items():
        if child.scope.parent is before:
            _move(child, scope.push(name))


def merge_param(name: str, a: Any, b: Any) -> Any:
    """The one of two values that is given: as a field, or when calling.

    Args:
        name: what it is called in the error.
        a: a value, or None.
        b: a value, or None.

    Returns:
        The one that is not None.

    Raises:
        ValueError: if both are given, or none.

    Example:
        >>> import linen_lift as nn
        >>> nn.merge_param('deterministic', None, True)
        True
    """
    if a is None and b is None:
        raise ValueError(
            f'Parameter "{name}" is given neither to the module nor to its call. '
            "Give it to one of them."
        )
    if a is not None and b is not None:
        raise ValueError(
            f'Parameter "{name}" is given to the module ({a!r}) and to its call '
            f"({b!r}). Give it to one of them only."
        )
    return b if a is None else a
