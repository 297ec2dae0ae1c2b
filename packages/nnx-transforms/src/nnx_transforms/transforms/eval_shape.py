"""`eval_shape`: what a function would return, without computing it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import jax
from jax.sharding import NamedSharding, PartitionSpec

from graphcore import (
    TraceContextError,
    VariableState,
    clone,
    is_variable,
    iter_graph,
)
from graphcore.authors import (
    Body,
    Inside,
    Left,
    enter,
    is_object,
    key_path,
    path_text,
    raw_value_of,
    variable_impl,
    write_raw,
)
from nnx_transforms.sharding.shardings import names_in, sharding_of
from nnx_transforms.transforms.graph_mode import accepts_graph_mode

__all__ = ["eval_shape"]

A = TypeVar("A")


class _Body(Body):
    """The function without what it does to its arguments."""

    def leave(self, inside: Inside, out: Any) -> Left:
        try:
            return Inside.empty().leave(out)
        except TraceContextError:
            # The function returned what it closed over. Only shapes leave it, so no
            # update can get lost: those of a copy do.
            return Inside.empty().leave(clone([out])[0])


@accepts_graph_mode
def eval_shape(f: Callable[..., A], *args: Any, **kwargs: Any) -> A:
    """Returns what a function would return, with shapes and dtypes for arrays.

    The function runs on stand-ins; the caller's objects are left alone. It may return
    objects that it closes over: what comes back is a description of them.

    Args:
        f: A function of any pytrees with objects in them.
        *args: Its arguments; arrays and values of variables may be
            `jax.ShapeDtypeStruct`s.
        **kwargs: Likewise.

    Returns:
        The output with `jax.ShapeDtypeStruct`s in the place of arrays. Objects in it
        are new; those that share something with each other still do. Where a mesh is
        known, by `jax.set_mesh` or the metadata of a variable, values of variables
        have the sharding that the metadata name, and are replicated without one.

    Raises:
        ValueError: If an object among the arguments belongs to a different trace level.

    Example:
        >>> import nnx_transforms as nnx
        >>> model = nnx.eval_shape(lambda: nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
        >>> model.kernel.value
        ShapeDtypeStruct(shape=(2, 3), dtype=float32)
    """
    if isinstance(f, jax.stages.Wrapped):  # it knows its static arguments
        jitted: Any = f
        out: A = _with_shardings(jitted.eval_shape(*args, **kwargs))
    else:
        out = shapes_of(f, args, kwargs, {})
    return out


def shapes_of(
    f: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    statics: Mapping[int | str, Any],
    find: Callable[..., Any] = jax.eval_shape,
) -> Any:
    """As `eval_shape`, with static arguments.

    Args:
        f: The function.
        args: Its positional arguments, None in the place of static ones.
        kwargs: Its keyword arguments but the static ones.
        statics: The static arguments by position or name.
        find: JAX's function that does it.

    Returns:
        The output.
    """
    entry = enter(f, args, kwargs, statics=statics, make=_Body)
    with entry.blaming():
        (values,), out, change = find(entry.body, *entry.values)
    return _with_shardings(entry.discard([values], out, change))


def _with_shardings(out: Any) -> Any:
    """The output, with the shardings that are known for values of variables in it."""
    in_force = jax.sharding.get_abstract_mesh()

    def sharded(path: Any, metadata: Mapping[str, Any], value: Any) -> Any:
        if not isinstance(value, jax.ShapeDtypeStruct):
            return value
        known = value.sharding
        sharding = sharding_of(metadata, None, path_text(path))
        # Over explicit axes each type has a sharding. Without names, nobody chose it.
        is_open = (
            isinstance(known, NamedSharding) and not names_in(known.spec) and sharding
        )
        if known is not None and not is_open:
            return value
        if sharding is None or isinstance(sharding, PartitionSpec):
            mesh = metadata.get("mesh") or in_force
            spec = sharding or PartitionSpec()
            names = names_in(spec)
            if mesh.empty or not names <= {*mesh.axis_names}:
                return value.update(sharding=None) if is_open else value
            sharding = NamedSharding(mesh, spec)
        return value.update(sharding=sharding)

    def leaf(path: Any, x: Any) -> Any:
        if not isinstance(x, VariableState):
            return x
        return x.replace(sharded(key_path(path), x.get_metadata(), x.value))

    write_raw(
        (x, sharded(path, variable_impl(type(x)).metadata(x), raw_value_of(x)))
        for path, x in iter_graph(out)
        if is_variable(x)
    )
    return jax.tree_util.tree_map_with_path(
        leaf, out, is_leaf=lambda x: isinstance(x, VariableState) or is_object(x)
    )
