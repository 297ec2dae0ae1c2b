"""How the instances of types are handled, once that was said: nodes and variables.

What is said of a type may hold for its subclasses, as long as nothing is said of them.
A "no" is not kept: the type may be registered later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphcore.adapters.loading import load_adapters, registrations

# Types whose instances are static values, whatever is registered.
ATOMS = frozenset((bool, int, float, complex, str, bytes, type, type(...)))

# Of each type that was met: what was said of it, or follows from a base, or from JAX.
impls: dict[type[Any], Any] = {}
# Without a look at an attribute of what is imported, which takes as long again.
known_impl = impls.get
# Of which types something was said; and what makes the answer for their subclasses.
said: set[type[Any]] = set()
_of_bases: dict[type[Any], Callable[[type[Any]], Any]] = {}
# Types some of whose instances are nodes: how these are handled, and which they are.
sometimes: dict[type[Any], tuple[Any, Callable[[Any], bool]]] = {}


def inherited_impl(kind: type[Any]) -> Any:
    """How instances of a type are handled by what was said of a base; None if by none.

    Args:
        kind: Any class.

    Returns:
        What holds for the subclasses of its nearest base of which that was said.
    """
    for base in kind.__mro__:
        of_subclass = _of_bases.get(base)
        if of_subclass is not None:
            return impls.setdefault(kind, of_subclass(kind))
    return inherited_impl(kind) if load_adapters(kind) else None


def add_impl(
    kind: type[Any],
    impl: Any,
    what: str,
    of_subclass: Callable[[type[Any]], Any] | None = None,
) -> None:
    """Says how instances of a type are handled.

    Args:
        kind: The type.
        impl: How they are.
        what: What they are called.
        of_subclass: Says how those of a subclass are; None if nothing is said of them.

    Raises:
        ValueError: If the instances of the type are always static values.
    """
    if kind in ATOMS:
        raise ValueError(
            f"{kind.__name__} can't be a {what} type: its instances are static values "
            "in every graph. Register a class of your own."
        )
    for known in [*impls]:
        if known not in said and kind in known.__mro__:
            del impls[known]  # It had the answer of a base of this one, or of JAX.
    if of_subclass is not None:
        _of_bases[kind] = of_subclass
    impls[kind] = impl
    said.add(kind)
    registrations.count += 1
