"""Functions on all variables of a graph or a state."""

from __future__ import annotations

from contextlib import ContextDecorator
from typing import Any, TypeVar

import jax

from graphcore import (
    Filter,
    HashableMapping,
    Variable,
    VariableState,
    is_variable,
    register_variable_name_type_pair,
    to_predicate,
    variables,
)
from graphcore.authors import path_text, raw_value_of, variable_impl
from nnx_transforms.graph import Path, find_duplicates, recursive_map

__all__ = [
    "as_pure",
    "pure",
    "register_variable_name",
    "set_metadata",
    "var_defaults",
    "vars_as",
    "with_vars",
]

_A = TypeVar("_A")


def as_pure(tree: Any) -> Any:
    """Replaces variables and their states by their raw values.

    Args:
        tree: A `State`, or any pytree with such leaves.

    Returns:
        The same tree of values.

    Example:
        >>> import graphcore as gc
        >>> as_pure(gc.state(gc.Dict(a=gc.Param(1)))).a
        1
    """

    def is_leaf(x: Any) -> bool:
        return isinstance(x, VariableState) or is_variable(x)

    return jax.tree.map(raw_value_of, tree, is_leaf=is_leaf)


pure = as_pure


def set_metadata(node: Any, /, *, only: Filter = ..., **metadata: Any) -> None:
    """Sets metadata of the variables of a graph.

    Args:
        node: A graph node or pytree node.
        only: Selects variables; arrays without one are left alone.
        **metadata: What to set.

    Raises:
        ValueError: If a variable is of a registered type that has no way to set its
            metadata; nothing is changed then.

    Example:
        >>> import graphcore as gc
        >>> node = gc.Dict(a=gc.Param(1), b=gc.Cache(2))
        >>> set_metadata(node, only=gc.Param, unit='m'); node.a.unit
        'm'
    """
    found = [x for _, x in variables(node, only).flat_state() if is_variable(x)]
    for kind in map(type, found):
        if variable_impl(kind).set_metadata is None:
            raise ValueError(
                f"{kind.__name__} is registered without a way to set its metadata: "
                "leave its variables out with `only`."
            )
    for x in found:
        if isinstance(x, Variable):
            Variable.set_metadata(x, **metadata)
        else:  # of another library, whose attributes need not be its metadata
            impl = variable_impl(type(x))
            replace: Any = impl.set_metadata
            replace(x, HashableMapping({**impl.metadata(x), **metadata}))


def with_vars(
    node: _A,
    /,
    *,
    only: Filter = ...,
    allow_duplicates: bool = False,
    hijax: bool | None = None,
    ref: bool | None = None,
    mutable: bool | None = None,
) -> _A:
    """Copies a graph with copies of selected variables.

    Args:
        node: A graph node or pytree node.
        only: Selects the variables that are copied; the others are shared.
        allow_duplicates: Whether a copied variable may be reached in several ways.
        hijax: Of Flax, which has further kinds of variables; None or False.
        ref: Likewise.
        mutable: Likewise; None or True.

    Returns:
        The copy.

    Raises:
        ValueError: If another kind of variable is asked for, or a selected one is
            reached in several ways, with its paths.

    Example:
        >>> import graphcore as gc
        >>> node = gc.Dict(a=gc.Param(1), b=gc.Cache(2))
        >>> twin = with_vars(node, only=gc.Param)
        >>> twin.a is node.a, twin.b is node.b
        (False, True)
    """
    _only_plain(hijax=hijax, ref=ref, mutable=mutable is False)
    takes = to_predicate(only)

    def is_taken(path: Path, value: Any) -> bool:
        return is_variable(value) and takes(path, value)

    if not allow_duplicates and (found := find_duplicates(node, only=is_taken)):
        paths = list(map(path_text, found[0]))
        raise ValueError(
            f"The variable at {paths} is reached in several ways, and its copy would "
            "be, too: pass `allow_duplicates=True` if that is wanted."
        )
    return recursive_map(lambda p, x: x.copy() if is_taken(p, x) else x, node)


vars_as = with_vars


class var_defaults(ContextDecorator):  # noqa: N801  a function that is a decorator too
    """The kind of variables that are made, of which there is one here.

    Args:
        hijax: Of Flax, which has further kinds of variables; None or False.
        ref: Likewise.

    Raises:
        ValueError: If another kind is asked for.

    Example:
        >>> with var_defaults(hijax=False):
        ...     pass
        >>> var_defaults().hijax
        False
    """

    hijax = ref = False

    def __init__(self, *, hijax: bool | None = None, ref: bool | None = None) -> None:
        _only_plain(hijax=hijax, ref=ref)

    def __enter__(self) -> var_defaults:
        return self

    def __exit__(self, *exception: object) -> None:
        pass


def _only_plain(**kinds: bool | None) -> None:
    if wanted := [name for name, value in kinds.items() if value]:
        raise ValueError(
            f"Got the kinds of variables {wanted}, which are Flax's: a variable here "
            "holds a value, and every transformation publishes what changes. Leave "
            "the arguments out."
        )


def register_variable_name(
    name: str, typ: Any = None, *, overwrite: bool = False
) -> Any:
    """Names a variable type, for `sow` and for conversions.

    Args:
        name: The name.
        typ: The type. Left out, a decorator of a class is returned.
        overwrite: Whether the name or the type may have been registered before.

    Returns:
        The type, or the decorator.

    Example:
        >>> import graphcore as gc
        >>> @register_variable_name('rotations')
        ... class Rotation(gc.Variable):
        ...     pass
        >>> gc.variable_type_from_name('rotations') is Rotation
        True
    """

    def register(kind: type[Variable[Any]]) -> type[Variable[Any]]:
        register_variable_name_type_pair(name, kind, overwrite=overwrite)
        return kind

    return register if typ is None else register(typ)
