"""Placing objects on a mesh of devices: those that are there, and those to be made.

Where a variable lies is written in its metadata (see `shardings`), which all who need
to know ask: `jit(constrain_state=True)` keeps the variable there, an optimizer that is
made for it puts its state beside it, a checkpoint is restored to it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec, Sharding

from graphcore import RefMap, VariableState, is_variable, iter_graph
from graphcore.authors import (
    OUTSIDE,
    Written,
    current_trace,
    enter,
    path_text,
    raw_value_of,
    variable_impl,
    write_raw,
)
from nnx_transforms.prefixes import StateSharding
from nnx_transforms.sharding.eager_sharding import constrained
from nnx_transforms.sharding.shardings import (
    PLACEMENT,
    axis_names,
    check_fits,
    mesh_in_force,
    settled,
    sharding_key,
    sharding_of,
)
from nnx_transforms.states.values import arrays_of, map_value
from nnx_transforms.training.optimizer import Optimizer, slot_placement
from nnx_transforms.transforms.decorators import LATER
from nnx_transforms.transforms.jit import jit, makes_jitted

__all__ = ["create_sharded", "shard"]

Shardings: TypeAlias = Mapping[Any, Any] | StateSharding
Rules: TypeAlias = Mapping[str, Any]
ELSEWHERE = ("out_sharding", "sharding_names", "mesh")
"""Metadata that no longer holds when there is a new setting."""


def shard(
    node: Any, shardings: Shardings | None = None, *, rules: Rules | None = None
) -> None:
    """Places the variables of an object, and notes in their metadata where.

    Outside of transformations values are moved. In a compiled function they are
    constrained, so what is made there is made in shards; see `create_sharded`.

    Args:
        node: A graph node, or a pytree with graph nodes in it. Abstract values, as
            `eval_shape` makes them, become `jax.ShapeDtypeStruct`s with a sharding.
            Arrays that have no variable around them are left alone.
        shardings: From filters to a `PartitionSpec` (or a tuple of axis names) on the
            mesh in force, or to a `jax.sharding.Sharding`; the first match counts.
            None stands for what the variable's own metadata says. Without any, a
            variable lies whole on each device. The state of an `Optimizer` lies where
            its parameters do, whatever the filters say; what it keeps of a parameter
            in another shape, as `optax.adafactor`, lies whole. (That of Flax's does
            not know its parameters: select it by path, or by its own types.)
        rules: From logical axis names, in the shardings here or in the metadata, to
            the mesh axes that stand for them: a name, a tuple of names, or None. They
            are noted, too; the logical names stay.

    Raises:
        ValueError: If no filter selects a variable, there is no mesh, a setting names
            no axes, an axis is not on the mesh or named twice, or a value can't be
            divided as its spec says; with the path. Nothing is changed then.
        TypeError: If the layout is no mapping from filters, or a value no array.
        TraceContextError: If a variable belongs to another JAX trace.

    Example:
        >>> import nnx_transforms as nnx, jax
        >>> from jax.sharding import PartitionSpec as P
        >>> mesh = jax.make_mesh((jax.device_count(),), ('model',))
        >>> layer = nnx.Linear(4, 16, rngs=nnx.Rngs(0))
        >>> layout = {nnx.PathContains('kernel'): P(None, 'model'), ...: P()}
        >>> with jax.set_mesh(mesh):
        ...     nnx.shard(layer, layout)
        >>> tuple(layer.kernel.value.sharding.spec), tuple(layer.bias.sharding)
        ((None, 'model'), ())
    """
    settings: Any = {...: None} if shardings is None else shardings
    given = StateSharding(settings)
    noted: RefMap[Any, dict[str, Any]] = RefMap()
    paths: RefMap[Any, str] = RefMap()
    for path, x in iter_graph(node):
        if is_variable(x):
            paths[x] = path_text(path)
            noted[x] = _with_setting(x, given.map_prefix(path, x), rules)
    for optimizer in [x for _, x in iter_graph(node) if isinstance(x, Optimizer)]:
        # A spec is for the shape of a parameter: what has another one lies whole.
        whole = {"sharding": PartitionSpec()}
        places = RefMap((x, whole) for x, _ in optimizer.mirrors(any_shape=True))
        for slot, parameter in optimizer.mirrors():
            if is_variable(parameter):
                places[slot] = slot_placement(noted[parameter])
        for slot, place in places.items():
            own = {k: v for k, v in noted[slot].items() if k not in PLACEMENT}
            noted[slot] = own | place
    mesh = None if _is_inside() else mesh_in_force()
    write_raw(
        [(x, _placed(x, metadata, mesh, paths[x])) for x, metadata in noted.items()]
    )
    for x, metadata in noted.items():
        impl = variable_impl(type(x))
        if impl.set_metadata is not None:
            impl.set_metadata(x, type(impl.metadata(x))(metadata))


@makes_jitted
def create_sharded(
    f: Callable[..., Any] = LATER,
    *,
    shardings: Shardings | None = None,
    rules: Rules | None = None,
) -> Any:
    """Compiles a function that makes objects, so that they are made in shards.

    No device ever holds the whole of a variable that is divided. An optimizer that the
    function makes gets its state placed beside the parameters. Call it with the mesh in
    force, `with jax.set_mesh(mesh):`. Axes of the mesh may be explicit: the function
    itself runs with automatic ones, and what it returns has explicit types.

    Args:
        f: The function. Left out, `create_sharded` returns a decorator.
        shardings: As for `shard`, of what the function returns.
        rules: As for `shard`.

    Returns:
        A compiled function, as `jit` returns it, with `lower` and the rest.

    Raises:
        ValueError: At a call, as for `shard`.

    Example:
        >>> import nnx_transforms as nnx, jax
        >>> from jax.sharding import PartitionSpec as P
        >>> mesh = jax.make_mesh((jax.device_count(),), ('model',))
        >>> @nnx.create_sharded(shardings={nnx.Param: P('model'), ...: P()})
        ... def make(rngs):
        ...     return nnx.Linear(16, 4, use_bias=False, rngs=rngs)
        >>> with jax.set_mesh(mesh):
        ...     layer = make(nnx.Rngs(0))
        >>> 16 // layer.kernel.value.addressable_shards[0].data.shape[0] == mesh.size
        True
    """

    @functools.wraps(f)
    def make(*args: Any, **kwargs: Any) -> Any:
        out = _with_automatic_axes(f, args, kwargs)
        shard(out, shardings, rules=rules)
        return out

    return jit(make)


def _with_automatic_axes(f: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Calls a function with all axes of the mesh automatic.

    With explicit ones, whatever an initializer makes before it is placed would be whole
    on each device: that is what its type says.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if AxisType.Explicit not in mesh.axis_types:
        return f(*args, **kwargs)
    entry = enter(f, args, kwargs)
    given = entry.raw, entry.args, entry.kwargs
    kinds = dict.fromkeys(mesh.axis_names, AxisType.Auto)
    with jax.sharding.use_abstract_mesh(mesh.update_axis_types(kinds)):
        # Nothing moves: over automatic axes this only changes the type.
        typed = _map_arrays(_typed, given)
        left = entry.body.run(*typed)
    known: RefMap[Any, Any] = RefMap(
        zip(*map(jax.tree.leaves, (typed, given)), strict=True)
    )

    def back(array: Any) -> Any:
        return known[array] if array in known else _typed(array)

    # What is returned is placed later, whatever its shape is by now.
    values, out = left.values(), _map_arrays(back, left.out)
    returned = entry.discard([values], out, left.change)
    placed_later = RefMap((x, None) for _, x in iter_graph(returned))

    def leaving(written: Written) -> Any:
        value = written.value
        if written.position is not None:
            if entry.variables[written.position] in placed_later:
                return value
            before = entry.raw[written.position]
            if _form(value) != _form(before):  # it need not be divisible alike
                return _map_arrays(back, value)
            specs = _map_arrays(lambda x: jax.typeof(x).sharding.spec, before)
            return _map_arrays(jax.sharding.reshard, value, specs)
        state: Any = VariableState.from_variable(written.variable)
        # An array without a variable around it is not going to be placed.
        return value if isinstance(state, VariableState) else back(value)

    return entry.commit([[*map(leaving, left.written)]], out, left.change)


def _form(value: Any) -> Any:
    leaves, structure = jax.tree.flatten(value)
    return structure, [*map(np.shape, leaves)]


def _typed(value: Any) -> Any:
    return jax.sharding.reshard(value, PartitionSpec())


def _map_arrays(function: Callable[..., Any], tree: Any, *rest: Any) -> Any:
    return jax.tree.map(
        lambda x, *of_rest: function(x, *of_rest) if isinstance(x, jax.Array) else x,
        tree,
        *rest,
    )


def _with_setting(x: Any, setting: Any, rules: Rules | None) -> dict[str, Any]:
    """The metadata of a variable that is to be placed."""
    metadata = dict(variable_impl(type(x)).metadata(x))
    if setting is not None:
        metadata = {k: v for k, v in metadata.items() if k not in ELSEWHERE}
        metadata["sharding"] = setting
    if metadata.get(sharding_key(metadata)) is None:
        # Replicated explicitly: without a sharding XLA would choose one.
        metadata[sharding_key(metadata)] = PartitionSpec()
    if rules is not None:
        metadata["sharding_rules"] = tuple(rules.items())
    return metadata


def _placed(x: Any, metadata: Mapping[str, Any], mesh: Any, path: str) -> Any:
    """The value of a variable where it is to lie."""
    place: Any = sharding_of(metadata, None, path)
    for leaf in jax.tree.leaves(arrays_of(raw_value_of(x))):
        _check(place, np.shape(leaf), path)
    no_mesh = (
        f"There is no mesh to place the variable at {path!r} on, as {place}: "
        "put one in force, `with jax.set_mesh(mesh):`, or give Shardings."
    )
    if _is_inside():
        try:
            return constrained(raw_value_of(x), place)
        except RuntimeError as error:  # JAX: there is no mesh
            raise ValueError(no_mesh) from error
    if not isinstance(place, Sharding):
        if mesh is None:
            raise ValueError(no_mesh)
        place = NamedSharding(mesh, settled(place))
    elif isinstance(place, NamedSharding):
        place = place.update(spec=settled(place.spec))

    def moved(value: Any) -> Any:
        if isinstance(value, jax.ShapeDtypeStruct):
            return value.update(sharding=place)
        return jax.device_put(value, place)

    return map_value(functools.partial(jax.tree.map, moved), raw_value_of(x))


def _check(place: Any, shape: tuple[int, ...], path: str) -> None:
    mesh: Any = jax.sharding.get_abstract_mesh()
    if isinstance(place, NamedSharding):
        mesh, place = place.mesh, place.spec
    if not isinstance(place, PartitionSpec) or mesh.empty:
        return
    sizes = dict(mesh.shape)
    names = [n for entry in place for n in axis_names(entry)]
    if twice := sorted({str(n) for n in names if names.count(n) > 1}):
        raise ValueError(
            f"The variable at {path!r} is to be sharded by {place}, which has the mesh "
            f"axes {twice} more than once: each can divide one axis of a value."
        )
    unknown = set(names) - set(sizes)
    if unknown:
        raise ValueError(
            f"The variable at {path!r} is to be sharded by {place}, but the mesh has "
            f"no axes {sorted(map(str, unknown))}: its axes are {list(sizes)}. Say in "
            "`rules` which mesh axis, or None, stands for each name."
        )
    check_fits(path, place, shape, sizes)


def _is_inside() -> bool:
    return bool(current_trace() != OUTSIDE)
