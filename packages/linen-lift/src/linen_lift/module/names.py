"""Whose the names in a scope are, where modules share one.

A second call of a compact method takes the names of the first one again. So a scope
forgets at each call what was taken in it, except for what *other* modules took that
share it: a name of theirs is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Names, with the collections of the variables that have them; None for a submodule.
Names = dict[str, tuple[str | None, ...]]


def without(names: Names, taken: Mapping[str, tuple[str | None, ...]]) -> Names:
    """The names that are not among others.

    Args:
        names: names.
        taken: the others.
    """
    rest = {
        name: tuple(col for col in cols if col not in taken.get(name, ()))
        for name, cols in names.items()
    }
    return {name: cols for name, cols in rest.items() if cols}


def union(names: Names, more: Names) -> Names:
    """The names of both, each once.

    Args:
        names: names.
        more: others.
    """
    new = without(more, names)
    return {**names, **{name: (*names.get(name, ()), *new[name]) for name in new}}


def take_names(module: Any) -> tuple[Names, Names]:
    """Frees the names that a module took in an earlier call, in its scope.

    Args:
        module: a bound module, one of whose compact methods is about to run.

    Returns:
        The names that were taken in the scope, and those of them that still are.
    """
    scope, state = module.scope, module._state
    before: Names = scope._reserved
    others = without(before, state.names) if state.shares_scope else {}
    scope._reserved = dict(others)
    return before, others


def leave_names(module: Any, entered: Any, before: Names, others: Names) -> None:
    """Notes what a module took in a scope that it shares, when its method is over.

    Args:
        module: the module.
        entered: its scope at the time of `take_names`.
        before: from `take_names`.
        others: likewise.
    """
    scope, state = module.scope, module._state
    state.names = union(state.names, without(scope._reserved, others))
    if scope is entered:  # else it came to share another one in its method
        scope._reserved = union(before, scope._reserved)
