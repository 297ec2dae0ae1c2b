"""Contexts: identity across a functional boundary.

A graph goes through a pure function and back in four steps: split outside, merge
inside, split inside, merge outside. An `UpdateContext` remembers which outer object has
which index, and which inner object stands for it, so that the last step rebuilds the
result into the original objects. What it remembered is gone when it ends.

Contexts are kept per thread and per tag, so that transformations can nest.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from graphcore.functional import taken_apart, unflatten, with_parts
from graphcore.graphdef.definition import GraphDef, NodeRef, VariableDef
from graphcore.hashable_mapping import HashableMapping
from graphcore.refmap import RefMap, compose_mapping, forgetting
from graphcore.state.filters import Filter
from graphcore.state.leaves import merged

__all__ = [
    "MergeContext",
    "SplitContext",
    "UpdateContext",
    "current_update_context",
    "merge_context",
    "split_context",
    "update_context",
]

A = TypeVar("A")


class UpdateContext:
    """Carries graphs through a pure function and back; see `update_context`.

    Args:
        tag: What the context is called.

    Example:
        >>> import graphcore as gc
        >>> node = gc.Dict(n=gc.Variable(1))
        >>> with gc.update_context('demo') as ctx:
        ...     inner = ctx.merge(*ctx.split(node))
        ...     inner.n.value = 2
        ...     same = ctx.merge(*ctx.split(inner)) is node
        >>> same, node.n.value
        (True, 2)
    """

    __slots__ = ("_inner", "_outer", "tag")

    def __init__(self, tag: Any) -> None:
        self.tag = tag
        self._forget()

    def _forget(self) -> None:
        # The outer objects by index, from step 1 on.
        self._outer: dict[int, Any] = {}
        # The outer index of each inner object, from step 2 on.
        self._inner: RefMap[Any, int] | None = None

    def _notice_restart(self, node: Any) -> None:
        # If an outer object is split in step 3, the last round ended with an error, and
        # this is step 1 of a new one.
        if self._inner is not None and node not in self._inner:
            if any(node is known for known in self._outer.values()):
                self._forget()

    def split(self, node: A, /, *filters: Filter) -> Any:
        """Takes a graph apart: step 1 outside, step 3 inside.

        Args:
            node: A graph node or pytree node.
            *filters: As for `graphcore.split`.

        Returns:
            `(graphdef, state, ...)`. Inside, the definition's `index_mapping` says
            which of its indices come from which outer ones.

        Raises:
            ValueError: As `graphcore.split` does.

        Example:
            >>> import graphcore as gc
            >>> with gc.update_context('demo') as ctx:
            ...     graphdef, state = ctx.split(gc.Dict(n=gc.Variable(1)))
            >>> graphdef.index_mapping is None
            True
        """
        with _finishing(SplitContext(self)) as splitter:
            return splitter.split(node, *filters)

    def merge(self, graphdef: GraphDef[A], state: Any, /, *states: Any) -> A:
        """Puts a graph together: step 2 inside, step 4 outside.

        Args:
            graphdef: The definition.
            state: The state, or the first of several.
            *states: The others.

        Returns:
            Inside a new node; outside the original objects, updated.

        Raises:
            ValueError: As `graphcore.merge` does; nothing is changed then.

        Example:
            >>> import graphcore as gc
            >>> with gc.update_context('demo') as ctx:
            ...     inner = ctx.merge(*ctx.split(gc.Dict(n=gc.Variable(1))))
            >>> inner.n.value
            1
        """
        with _finishing(MergeContext(self)) as merger:
            return merger.merge(graphdef, state, *states)


class Stacks(threading.local):
    """What is open in a thread under each tag, the innermost last."""

    def __init__(self) -> None:
        self.of_tag: dict[Any, list[Any]] = {}

    def push(self, tag: Any, x: Any) -> None:
        """Opens something."""
        self.of_tag.setdefault(tag, []).append(x)

    def pop(self, tag: Any) -> Any:
        """Closes what was opened last."""
        stack = self.of_tag[tag]
        if len(stack) == 1:
            del self.of_tag[tag]
        return stack.pop()


_stacks = Stacks()


class update_context(contextlib.ContextDecorator):  # noqa: N801
    """Opens a context with a tag, as a context manager or for calls of a function.

    Args:
        tag: Any hashable name, by which `current_update_context` finds it.

    Example:
        >>> import graphcore as gc
        >>> @gc.update_context('demo')
        ... def tag():
        ...     return gc.current_update_context('demo').tag
        >>> tag()
        'demo'
    """

    # The open context is not kept here, so an instance can be entered again.
    def __init__(self, tag: Any) -> None:
        self._tag = tag

    def __enter__(self) -> UpdateContext:
        context = UpdateContext(self._tag)
        _stacks.push(self._tag, context)
        return context

    def __exit__(self, *exception: object) -> None:
        _stacks.pop(self._tag)._forget()


def current_update_context(tag: Any) -> UpdateContext:
    """Returns the innermost open context of this thread with a tag.

    Args:
        tag: The tag.

    Returns:
        The context.

    Raises:
        ValueError: If there is none.

    Example:
        >>> import graphcore as gc
        >>> with gc.update_context('demo') as ctx:
        ...     gc.current_update_context('demo') is ctx
        True
    """
    stack: list[UpdateContext] | None = _stacks.of_tag.get(tag)
    if not stack:
        raise ValueError(
            f"No update context with the tag {tag!r} is open in this thread; open one "
            f"with `update_context({tag!r})`. Open are {list(_stacks.of_tag)}."
        )
    return stack[-1]


class SplitContext:
    """Takes several graphs apart into one index space; see `split_context`.

    Args:
        context: The update context for which this is step 1 or 3, if any.

    Example:
        >>> import graphcore as gc
        >>> shared = gc.Param(1)
        >>> with gc.split_context() as ctx:
        ...     first, _ = ctx.split(gc.Dict(a=shared))
        ...     second, state = ctx.split(gc.Dict(b=shared))
        >>> len(state)
        0
    """

    __slots__ = ("_context", "_refs")

    def __init__(self, context: UpdateContext | None = None) -> None:
        self._context = context or UpdateContext(None)
        self._refs: RefMap[Any, int] = RefMap()

    def split(self, node: A, /, *filters: Filter) -> Any:
        """Takes a graph, or a variable, apart.

        Args:
            node: A graph node, pytree node or variable.
            *filters: As for `graphcore.split`.

        Returns:
            `(graphdef, state, ...)`. What an earlier graph held appears in the
            definition as a reference, and not in the state. The state of a variable
            is its `VariableState`.

        Raises:
            ValueError: As `graphcore.split` does.

        Example:
            >>> import graphcore as gc
            >>> with gc.split_context() as ctx:
            ...     graphdef, state = ctx.split(gc.Dict(a=gc.Param(1)))
            >>> state.a.value
            1
        """
        with forgetting(self._refs):
            definition, state = taken_apart(node, self._refs)
            self._context._notice_restart(node)
            inner = self._context._inner
            if inner is not None and not isinstance(definition, NodeRef):
                mapping = compose_mapping(dict(enumerate(self._refs)), inner)
                definition = definition.with_index_mapping(HashableMapping(mapping))
            if not filters or isinstance(definition, VariableDef):
                return definition, state
            return with_parts(definition, state, filters)

    def _finish(self) -> None:
        if self._context._inner is None:
            self._context._outer = dict(enumerate(self._refs))


class MergeContext:
    """Puts several graphs of one index space together; see `merge_context`.

    Args:
        context: The update context for which this is step 2 or 4, if any.

    Example:
        >>> import graphcore as gc
        >>> shared = gc.Param(1)
        >>> with gc.split_context() as ctx:
        ...     one, two = ctx.split(gc.Dict(a=shared)), ctx.split(gc.Dict(b=shared))
        >>> with gc.merge_context() as ctx:
        ...     first, second = ctx.merge(*one), ctx.merge(*two)
        >>> first.a is second.b
        True
    """

    __slots__ = ("_context", "_is_last_step", "_objects")

    def __init__(self, context: UpdateContext | None = None) -> None:
        self._context = context or UpdateContext(None)
        self._objects: dict[int, Any] = {}
        self._is_last_step = False

    def merge(self, graphdef: GraphDef[A], state: Any, /, *states: Any) -> A:
        """Puts a graph, or a variable, together.

        Args:
            graphdef: The definition.
            state: The state, or the first of several.
            *states: The others.

        Returns:
            The node or variable.

        Raises:
            ValueError: As `graphcore.merge` does; nothing is changed then.

        Example:
            >>> import graphcore as gc
            >>> with gc.merge_context() as ctx:
            ...     node = ctx.merge(*gc.split(gc.Dict(a=gc.Param(1))))
            >>> node.a.value
            1
        """
        existing: Mapping[int, Any] = {}
        mapping = getattr(graphdef, "index_mapping", None)  # a reference has none
        if mapping is not None:
            self._is_last_step = True
            existing = compose_mapping(mapping, self._context._outer)
        whole = merged((state, *states))
        return unflatten(
            graphdef, whole, index_ref=self._objects, index_ref_cache=existing
        )

    def _finish(self) -> None:
        if self._is_last_step:
            self._context._forget()
        else:
            objects = self._objects.items()
            self._context._inner = RefMap((x, index) for index, x in objects)


C = TypeVar("C", SplitContext, MergeContext)


@contextlib.contextmanager
def _finishing(context: C) -> Iterator[C]:
    """Tells the update context what one of its steps saw, unless that failed."""
    yield context
    context._finish()


def _context_of(tag: Any) -> UpdateContext:
    return UpdateContext(None) if tag is None else current_update_context(tag)


@contextlib.contextmanager
def split_context(ctxtag: Any = None) -> Iterator[SplitContext]:
    """Opens a context in which several graphs are split into one index space.

    Args:
        ctxtag: The tag of an open update context, for which this is step 1 or 3.

    Yields:
        A `SplitContext`.

    Raises:
        ValueError: If there is no open update context with the tag.

    Example:
        >>> import graphcore as gc
        >>> with gc.split_context() as ctx:
        ...     graphdef, state = ctx.split(gc.Dict(a=gc.Param(1)))
    """
    with _finishing(SplitContext(_context_of(ctxtag))) as step:
        yield step


@contextlib.contextmanager
def merge_context(
    ctxtag: Any = None, inner: bool | None = None
) -> Iterator[MergeContext]:
    """Opens a context in which several graphs of one index space are merged.

    Args:
        ctxtag: The tag of an open update context, for which this is step 2 or 4.
        inner: Accepted for Flax: whether it is step 2. The update context knows.

    Yields:
        A `MergeContext`.

    Raises:
        ValueError: If there is no open update context with the tag.

    Example:
        >>> import graphcore as gc
        >>> with gc.merge_context() as ctx:
        ...     node = ctx.merge(*gc.split(gc.Dict(a=gc.Param(1))))
    """
    with _finishing(MergeContext(_context_of(ctxtag))) as step:
        yield step
