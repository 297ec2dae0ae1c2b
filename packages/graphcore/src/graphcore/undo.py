"""Writes to several objects that happen together or not at all."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from graphcore.hashable_mapping import HashableMapping
from graphcore.nodes.owned import OwnedNode
from graphcore.nodes.registry import GraphNodeImpl, containers_of
from graphcore.variables.bare_arrays import BareArray, write_places
from graphcore.variables.impl import VariableImpl, variable_impl
from graphcore.variables.variable import Variable


@contextlib.contextmanager
def undoing() -> Iterator[list[Callable[[], Any]]]:
    """Runs the collected steps backwards if the block raises, whatever it raises.

    A step is added before the write that it takes back. One that fails itself doesn't
    keep the others from running.

    Yields:
        The list of steps.

    Example:
        >>> numbers = [1]
        >>> try:
        ...     with undoing() as undo:
        ...         undo.append(numbers.pop)
        ...         numbers.append(2)
        ...         raise KeyError
        ... except KeyError:
        ...     numbers
        [1]
    """
    steps: list[Callable[[], Any]] = []
    try:
        yield steps
    except BaseException as error:
        for step in reversed(steps):
            try:
                step()
            except BaseException as failure:  # the same interrupt once more, say
                error.add_note(f"While taking back what was written: {failure!r}")
        raise


def overwrite(
    undo: list[Callable[[], Any]],
    variable: Any,
    value: Any,
    metadata: HashableMapping[str, Any] | None = None,
) -> None:
    """Writes a variable that may be written, having noted what it held.

    Args:
        undo: The steps of `undoing`.
        variable: The variable.
        value: Its raw value from now on.
        metadata: Its metadata; None for what it has.

    Raises:
        ValueError: If the metadata differs and the type has no way to change it.

    Example:
        >>> import graphcore as gc
        >>> x = gc.Param(1, unit='m')
        >>> with undoing() as undo:
        ...     overwrite(undo, x, 2)
        >>> x.value, x.unit
        (2, 'm')
    """
    impl = variable_impl(type(variable))
    if metadata is not None and (found := impl.metadata(variable)) != metadata:
        if impl.set_metadata is None:
            raise ValueError(
                f"The metadata of a {type(variable).__name__} would change from "
                f"{dict(found)} to {dict(metadata)}, but this registered variable type "
                "has no way to set it: make a new variable instead."
            )
        undo.append(partial(impl.set_metadata, variable, found))
        impl.set_metadata(variable, metadata)
    undo.append(partial(impl.set_value, variable, impl.get_value(variable)))
    impl.set_value(variable, value)


def overwrite_all(
    undo: list[Callable[[], Any]],
    variables: Sequence[Any],
    values: Sequence[Any],
    renewed: Iterable[tuple[BareArray, int]] = (),
) -> None:
    """Writes several variables that may be written, having noted what they held.

    Args:
        undo: The steps of `undoing`.
        variables: The variables.
        values: Their raw values from now on.
        renewed: As for `write_places`.

    Raises:
        ValueError: If a foreign type refuses.
    """
    places, arrays = [], []
    for variable, value in zip(variables, values, strict=True):
        if type(variable) is BareArray:
            places.append(variable)
            arrays.append(value)
        else:
            overwrite(undo, variable, value)
    write_places(places, arrays, undo, renewed)


def set_values(
    variables: Sequence[Any],
    values: Sequence[Any],
    impl: VariableImpl | None = None,
) -> None:
    """Writes the raw values of variables that may be written: all, or none.

    Args:
        variables: The variables; there may be more of them than values.
        values: The raw values of the first so many.
        impl: How all are handled; None if there is no one way.
    """
    variables = variables[: len(values)]
    if impl is None:
        impls = {*map(variable_impl, set(map(type, variables)))}
        impl = impls.pop() if len(impls) == 1 else None
    if impl is not None and impl.set_values is not None:
        impl.set_values(variables, values)
        return
    with undoing() as undo:
        overwrite_all(undo, variables, values)


def write_raw(writes: Iterable[tuple[Any, Any]]) -> None:
    """Writes values past the hooks; if a variable refuses, none is changed.

    Args:
        writes: Variables with their new raw values.

    Raises:
        TraceContextError: If a variable belongs to another JAX trace.

    Example:
        >>> import graphcore as gc
        >>> from graphcore.authors import write_raw
        >>> a, b = gc.Param(1), gc.Param(2)
        >>> write_raw([(a, 3), (b, 4)]); a.value, b.value
        (3, 4)
    """
    pairs = [*writes]
    for variable, _ in pairs:
        if isinstance(variable, Variable):
            variable._check_writable()
    set_values([variable for variable, _ in pairs], [value for _, value in pairs])


def restorer(node: Any, impl: GraphNodeImpl) -> Callable[[], None]:
    """Takes note of the children of a graph node.

    Args:
        node: The node.
        impl: How it is handled.

    Returns:
        A function that gives the node these children again.

    Example:
        >>> import graphcore as gc
        >>> node = gc.Dict(b=1, a=2)
        >>> restore = restorer(node, gc.get_node_impl(node))
        >>> node.clear(); restore(); list(node)
        ['b', 'a']
    """
    containers = containers_of(node, impl)
    if containers is not None:
        # By its containers: `init` would not restore the order of insertion.
        contents = [container.copy() for container in containers]

        def restore_containers() -> None:
            if isinstance(node, OwnedNode):
                node._node__structure_changed()
            for container, content in zip(containers, contents, strict=True):
                container.clear()
                if isinstance(container, dict):
                    container.update(content)
                else:
                    container.extend(content)

        return restore_containers
    pairs = list(impl.flatten(node)[0])

    def restore() -> None:
        impl.clear(node)
        impl.init(node, pairs)

    return restore
