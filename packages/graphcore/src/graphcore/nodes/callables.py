"""Methods and partials that stand in a graph and hold objects of it.

`self.attend = self._attend_locally` is common in models. Such a method is bound to one
object, so a copy of the model would go on to call the method of the original: a
transform would read what that holds as constants, and find no gradient. So a method
that is bound to an object, and a `functools.partial` that holds one, are pytree nodes,
which are put together again around the object that takes its place. Others are static.

So are functions that transforms made of such, as `lifted` says. What a function closes
over is a constant of it: a `lambda` stays what it is.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from types import MethodType
from typing import Any

from graphcore.known_types import sometimes
from graphcore.nodes.registry import (
    Pairs,
    PytreeNodeImpl,
    find_impl,
    get_node_impl_for_type,
)


def holds_objects(x: Any) -> bool:
    """Whether a value is a graph node or variable, or a pytree node that holds one."""
    if type(x) is Detached:
        return any(holds_objects(child) for _, child in x.pairs)
    impl = find_impl(x)
    if not isinstance(impl, PytreeNodeImpl):
        return impl is not None
    try:
        return any(holds_objects(child) for _, child in impl.flatten(x)[0])
    except Exception:  # A dict that can't be sorted, or a list that contains itself.
        return False


def callables_last(pairs: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """The children of a node, with those behind the others that hold objects to call.

    An object that is reached otherwise as well has its path from there.

    Args:
        pairs: The children, in order of keys.
    """
    found = [x for x in pairs if type(x[1]) in sometimes and holds_objects(x[1])]
    if not found:
        return pairs
    return [x for x in pairs if not any(x is y for y in found)] + found


class _Itself:
    """Stands for an object in a callable that it holds."""


@dataclass(frozen=True)
class Detached:
    """A callable without the object that it is for, compared by what it consists of.

    Args:
        kind: The type of the callable, or of a container in it.
        metadata: As its `flatten` gives them.
        pairs: Its children with their keys.
    """

    kind: type[Any]
    metadata: Any
    pairs: tuple[tuple[Any, Any], ...]


def detached(x: Any, node: Any) -> Any:
    """A callable without an object; what does not hold it as it is.

    Args:
        x: A callable, or anything else.
        node: The object that may be in it.
    """
    if x is node:
        return _Itself
    impl = find_impl(x)
    if not isinstance(impl, PytreeNodeImpl):
        return x
    pairs, metadata = impl.flatten(x)
    without = tuple([(key, detached(child, node)) for key, child in pairs])
    if all(new is old for (_, new), (_, old) in zip(without, pairs, strict=True)):
        return x
    return Detached(type(x), metadata, without)


def attached(x: Any, node: Any) -> Any:
    """What `detached` took apart, with an object in it; anything else as it is."""
    if x is _Itself:
        return node
    if type(x) is not Detached:
        return x
    impl: Any = get_node_impl_for_type(x.kind)
    pairs = [(key, attached(child, node)) for key, child in x.pairs]
    return impl.unflatten(pairs, x.metadata)


def _flatten_method(method: MethodType) -> tuple[Pairs, Any]:
    return [("__self__", method.__self__)], method.__func__


def _unflatten_method(pairs: Pairs, function: Any) -> MethodType:
    ((_, bound),) = pairs
    return MethodType(function, bound)


def _flatten_partial(f: functools.partial[Any]) -> tuple[Pairs, Any]:
    return [("args", f.args), ("func", f.func), ("keywords", f.keywords)], None


def _unflatten_partial(pairs: Pairs, metadata: None) -> functools.partial[Any]:
    held = dict(pairs)
    return functools.partial(held["func"], *held["args"], **held["keywords"])


sometimes[MethodType] = (
    PytreeNodeImpl(MethodType, _flatten_method, _unflatten_method),
    lambda f: holds_objects(f.__self__),
)
sometimes[functools.partial] = (
    PytreeNodeImpl(functools.partial, _flatten_partial, _unflatten_partial),
    lambda f: holds_objects([f.func, f.args, f.keywords]),
)
