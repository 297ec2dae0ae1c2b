"""Modules of Flax Linen as submodules.

They have scopes of their own, which know nothing of the lifted transforms here. So one
is run as the pure function that it is, by its own `init` and `apply`; its variables
are in the collections here, under the name of the module that wraps it, and its random
streams start from keys drawn here.
"""

from __future__ import annotations

import functools
from typing import Any

from ..errors import is_flax_module
from ..filters import CollectionFilter, DenyList
from ..metadata import map_axis_meta
from ..module.base import Module
from ..module.decorators import compact


class FlaxModule(Module):
    """A module of Flax Linen as a submodule.

    Every lifted transform here works with it. What it reads, writes and draws is found
    as with other modules: its parameters are in `params`, in a dict with the names that
    it has in Flax.

    Args:
        module: an unbound module of `flax.linen`.
        method: the method to run, or its name; `__call__` if left out.

    Raises:
        TypeError: at a call, if `module` is none of Flax.

    Example:
        >>> import linen_lift as nn
        >>> nn.FlaxModule(None).init({}, 1)
        Traceback (most recent call last):
            ...
        TypeError: FlaxModule takes a module of flax.linen; found NoneType.
    """

    module: Any
    method: Any = None

    @compact
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the module.

        Args:
            *args: arguments of its method.
            **kwargs: likewise.

        Returns:
            What it returns.
        """
        inner, scope = self.module, self.scope
        if not is_flax_module(type(inner)):
            kind = type(inner).__name__
            raise TypeError(f"FlaxModule takes a module of flax.linen; found {kind}.")
        assert scope is not None
        variables = map_axis_meta(_known_to_flax, scope.variables())
        rngs = {name: scope.make_rng(name) for name in scope.rngs}
        mutable = _flax_filter(scope.mutable) or []  # with False, Flax gives no pair
        if self.is_initializing():
            run = _initializing(inner, self.method, mutable)
        else:
            run = functools.partial(inner.apply, method=self.method, mutable=mutable)
        out, written = run(variables, *args, rngs=rngs, **kwargs)
        for col, entries in written.items():
            for name, value in entries.items():
                scope.put_variable(col, name, value)
        return out


def _initializing(module: Any, method: Any, mutable: Any) -> Any:
    """Like `module.apply`, for a module that is being initialized.

    The `init` of a module knows no variables, but a second call of it has those of the
    first one.
    """
    import flax.core

    def run(scope: Any, /, *args: Any, **kwargs: Any) -> Any:
        bound, name = module.clone(parent=scope), method or "__call__"
        if isinstance(name, str):
            return getattr(bound, name)(*args, **kwargs)
        return getattr(name, "__func__", name)(bound, *args, **kwargs)

    return flax.core.apply(run, mutable, flags={"initializing": True})


def _known_to_flax(box: Any) -> Any:
    """Has Flax take a box for one, which it does by class and not by methods."""
    import flax.core

    flax.core.meta.AxisMetadata.register(type(box))
    return box


def _flax_filter(mutable: CollectionFilter) -> Any:
    if isinstance(mutable, DenyList):
        import flax.core

        return flax.core.DenyList(_flax_filter(mutable.deny))
    return mutable if isinstance(mutable, bool | str) else [*mutable]
