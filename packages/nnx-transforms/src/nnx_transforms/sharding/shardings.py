"""Where the values of variables are placed, read from their metadata.

`sharding`, which may be given as `out_sharding`, is a `PartitionSpec`, a tuple of mesh
axis names (a name, None, or a tuple of names for each axis of the value), or a
`Sharding`. `mesh` is the mesh that the names belong to; without it, the mesh is given
by whoever asks. A name may be a logical one, which `sharding_rules` or
`logical_axis_rules` translate.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from graphcore import VariableState, is_graph_node, is_variable, state, with_metadata
from graphcore.authors import axis_rules, key_path, path_text

__all__ = [
    "get_named_sharding",
    "get_partition_spec",
    "get_var_pspec",
    "logical_axis_rules",
    "with_partitioning",
]

ANYWHERE = PartitionSpec.UNCONSTRAINED
"""In a spec, for an axis of a value that may be divided in any way."""
PLACEMENT = ("out_sharding", "sharding", "sharding_rules", "mesh", "eager_sharding")
"""The metadata that says together where a value is placed, and whether at once."""


@contextlib.contextmanager
def logical_axis_rules(rules: Iterable[tuple[Any, Any]]) -> Iterator[None]:
    """Has names in shardings stand for mesh axes, while it is entered.

    Those that linen-lift sets are in force here as well, and the other way round.
    A jitted function places variables that it makes by the rules under which it was
    traced first; to place them by others, jit it again.

    Args:
        rules: Pairs of a logical name and the mesh axis, a tuple of axes, or None.

    Example:
        >>> with logical_axis_rules([('embed', None), ('heads', 'model')]):
        ...     tuple(sharding_of({'sharding': ('embed', 'heads', 'data')}))
        (None, 'model', 'data')
    """
    token = axis_rules.set(tuple(rules))
    try:
        yield
    finally:
        axis_rules.reset(token)


# Where rules in force come from.
_rules_in_force: list[Callable[[], Iterable[tuple[Any, Any]]]] = [axis_rules.get]


def add_axis_rules(rules_in_force: Callable[[], Iterable[tuple[Any, Any]]]) -> None:
    """Has the rules of another library for names in shardings understood.

    Args:
        rules_in_force: Returns those that the library has in force, as pairs.
    """
    _rules_in_force.append(rules_in_force)


def rules_in_force() -> str:
    """What tells apart the rules that are in force, of all libraries."""
    return repr([rule for each in _rules_in_force for rule in each()])


def with_partitioning(
    initializer: Callable[..., Any],
    sharding: Any,
    mesh: Any = None,
    **metadata: Any,
) -> Callable[..., Any]:
    """Wraps an initializer so that variables made from its results are sharded.

    Args:
        initializer: Any callable that returns a value.
        sharding: The `out_sharding` of the variables.
        mesh: The mesh that its names belong to, if not the one in force.
        **metadata: Further metadata.

    Returns:
        An initializer with the same arguments.

    Example:
        >>> import graphcore as gc, jax
        >>> init = with_partitioning(jax.nn.initializers.zeros, (None, 'model'))
        >>> gc.Param(init(jax.random.key(0), (2, 3))).out_sharding
        (None, 'model')
    """
    if mesh is not None:
        metadata["mesh"] = mesh
    return with_metadata(initializer, out_sharding=sharding, **metadata)


def get_partition_spec(tree: Any) -> Any:
    """Replaces each value in a state by the `PartitionSpec` that its metadata names.

    Args:
        tree: A `State`, or any pytree with `VariableState`s or variables among its
            leaves; or a graph node, which stands for its state.

    Returns:
        The same tree with a `PartitionSpec` for each value; `PartitionSpec()` where no
        sharding is named.

    Raises:
        ValueError: If a sharding has no partition spec, or is of an unknown kind; with
            the path.

    Example:
        >>> import graphcore as gc, jax.numpy as jnp
        >>> node = gc.Dict(a=gc.Param(jnp.ones(2), sharding=('data',)), b=gc.Cache(0))
        >>> specs = get_partition_spec(gc.state(node))
        >>> specs.a.value == PartitionSpec('data'), specs.b.value == PartitionSpec()
        (True, True)
    """
    return _map_values(_spec, tree)


def get_var_pspec(variable: Any) -> PartitionSpec:
    """Returns the `PartitionSpec` that the metadata of one variable names.

    Args:
        variable: A variable, or its state.

    Returns:
        The spec; `PartitionSpec()` where no sharding is named.

    Raises:
        ValueError: If the sharding has no partition spec, or is of an unknown kind.

    Example:
        >>> import graphcore as gc, jax.numpy as jnp
        >>> tuple(get_var_pspec(gc.Param(jnp.ones(2), sharding=('data',))))
        ('data',)
    """
    return _spec("", variable.get_metadata())


def get_named_sharding(state: Any, mesh: Any) -> Any:
    """Replaces each value in a state by the sharding that its metadata names.

    Args:
        state: A `State`, or any pytree with `VariableState`s or variables among its
            leaves; or a graph node, which stands for its state.
        mesh: A `Mesh` for the variables that have no `mesh` metadata.

    Returns:
        The same tree with a `Sharding` for each value. A variable without `sharding`
        metadata is replicated over the mesh; a `Sharding` is taken as it is.

    Raises:
        ValueError: If a sharding is of an unknown kind, with the path.

    Example:
        >>> import graphcore as gc, jax, jax.numpy as jnp
        >>> mesh = jax.make_mesh((1,), ('data',))
        >>> node = gc.Dict(a=gc.Param(jnp.ones(2), sharding=('data',)))
        >>> shardings = get_named_sharding(gc.state(node), mesh)
        >>> placed = jax.device_put(gc.state(node), shardings)
        >>> placed.a.value.sharding.spec == PartitionSpec('data')
        True
    """

    def sharding(path: str, metadata: Mapping[str, Any]) -> Any:
        found = sharding_of(metadata, mesh, path)
        return found or NamedSharding(metadata.get("mesh") or mesh, PartitionSpec())

    return _map_values(sharding, state)


def sharding_of(
    metadata: Mapping[str, Any], mesh: Any = None, path: str = ""
) -> Sharding | PartitionSpec | None:
    """The placement that the metadata of one variable names.

    Args:
        metadata: The metadata.
        mesh: The mesh for names, if the metadata has no `mesh`.
        path: Where the variable stands, for messages.

    Returns:
        None without such metadata, a `Sharding` where a mesh is known, else a
        `PartitionSpec`, which JAX reads on the mesh in force.

    Raises:
        ValueError: If the sharding is of an unknown kind, or does not fit the mesh;
            with the path.

    Example:
        >>> sharding_of({'sharding': ('data', None)}) == PartitionSpec('data', None)
        True
        >>> sharding_of({}) is None
        True
    """
    found = metadata.get(sharding_key(metadata))
    if found is None or isinstance(found, Sharding):
        return found
    spec = _spec(path, metadata)
    mesh = metadata.get("mesh") or mesh
    try:
        return spec if mesh is None else NamedSharding(mesh, spec)
    except ValueError as error:
        if path:
            error.add_note(f"The metadata of the variable at {path!r} say so.")
        raise


def sharding_key(metadata: Mapping[str, Any]) -> str:
    """The name that the sharding has in the metadata of a variable."""
    # The second is what Flax up to 0.12.0 calls it.
    names = (name for name in ("out_sharding", "sharding_names") if name in metadata)
    return next(names, "sharding")


def _spec(path: str, metadata: Mapping[str, Any]) -> PartitionSpec:
    sharding = metadata.get(sharding_key(metadata))
    if sharding is None:
        return PartitionSpec()
    if isinstance(sharding, NamedSharding):
        return sharding.spec
    if isinstance(sharding, PartitionSpec | tuple | list):
        rules = dict(metadata.get("sharding_rules", ()))
        for rules_in_force in _rules_in_force:
            rules.update(rules_in_force())
        places = [_mesh_axes(entry, rules) for entry in entries(sharding)]
        spec = sharding if isinstance(sharding, PartitionSpec) else PartitionSpec()
        found: PartitionSpec = spec.update(partitions=places)
        return found
    raise ValueError(
        f"The sharding of the variable at {path!r} is {sharding!r} of type "
        f"{type(sharding).__name__}, which names no mesh axes: expected a "
        "PartitionSpec, a tuple of axis names, or a NamedSharding."
    )


def _mesh_axes(entry: Any, rules: Mapping[Any, Any]) -> Any:
    """What stands for one entry of a spec on the mesh."""
    if entry is ANYWHERE:
        return entry
    of_names = (axis_names(rules.get(name, name)) for name in axis_names(entry))
    return tuple(chain.from_iterable(of_names))


def axis_names(entry: Any) -> tuple[Any, ...]:
    """The names in one entry of a spec.

    Args:
        entry: A name, a tuple of names, or what stands for none: None or `ANYWHERE`.

    Returns:
        The names.

    Example:
        >>> axis_names('data'), axis_names(('data', 'model')), axis_names(None)
        (('data',), ('data', 'model'), ())
    """
    if entry is None or entry is ANYWHERE:
        return ()
    return tuple(entry) if isinstance(entry, tuple | list) else (entry,)


def entries(spec: Iterable[Any]) -> tuple[Any, ...]:
    """What a spec says of each axis of an array.

    JAX does not iterate over a `PartitionSpec` with `reduced` or `unreduced` axes.

    Example:
        >>> entries(PartitionSpec('data', None, unreduced={'model'}))
        ('data', None)
    """
    return tuple(getattr(spec, "partitions", spec))


def names_in(spec: Iterable[Any]) -> set[Any]:
    """The names in a spec, as `axis_names` finds them in each entry."""
    others = (getattr(spec, name, ()) for name in ("reduced", "unreduced"))
    return {*chain(*map(axis_names, entries(spec)), *others)}


def settled(spec: PartitionSpec) -> PartitionSpec:
    """A spec that says where a value is put: whole where it may lie in any way.

    Example:
        >>> settled(PartitionSpec(ANYWHERE, 'data')) == PartitionSpec(None, 'data')
        True
    """
    places = [None if entry is ANYWHERE else entry for entry in entries(spec)]
    found: PartitionSpec = spec.update(partitions=places)
    return found


def check_fits(
    place: str,
    spec: PartitionSpec,
    shape: Sequence[int],
    axis_sizes: Mapping[Any, int],
    cause: BaseException | None = None,
    what: str = "variable",
) -> None:
    """Checks that a spec can divide a variable into shards of one size.

    Args:
        place: The path of the variable.
        spec: The spec.
        shape: The shape of its value.
        axis_sizes: The sizes of the mesh axes; others count as one.
        cause: What JAX said, if anything.
        what: What it is, if no variable.

    Raises:
        ValueError: If the value lacks axes, or one can't be divided by its mesh axes.

    Example:
        >>> spec = PartitionSpec(None, 'model')
        >>> check_fits('w', spec, (3, 4), {'model': 2})
    """
    names = map(axis_names, entries(spec))
    pieces = [math.prod(axis_sizes.get(n, 1) for n in of_axis) for of_axis in names]
    if len(spec) > len(shape) or any(
        n % k for n, k in zip(shape, pieces, strict=False)
    ):
        raise ValueError(
            f"The {what} at {place!r} cannot be sharded by {spec}: its value has the "
            f"shape {shape}, the mesh {axis_sizes}. Give it another spec; single "
            "variables of an object with a `StateSharding`."
        ) from cause


def mesh_in_force() -> Any:
    """The mesh of `jax.set_mesh`, or `use_abstract_mesh`; None if there is none."""
    abstract = jax.sharding.get_abstract_mesh()
    if abstract.empty:
        return None
    try:
        return _on_the_mesh_in_force().sharding.mesh
    except RuntimeError:  # JAX: there are no devices
        return abstract


# JAX 0.8 has no public name for the mesh itself, but puts things on it.
_on_the_mesh_in_force = jax.jit(lambda: 0, out_shardings=PartitionSpec())


def _map_values(function: Any, tree: Any) -> Any:
    if is_graph_node(tree):
        tree = state(tree)

    def leaf(path: tuple[Any, ...], found: Any) -> Any:
        where = path_text(key_path(path))
        if is_variable(found):
            found = VariableState.from_variable(found)
        if isinstance(found, VariableState):
            return found.replace(function(where, found.get_metadata()))
        return function(where, {})

    return jax.tree_util.tree_map_with_path(
        leaf, tree, is_leaf=lambda x: isinstance(x, VariableState) or is_variable(x)
    )
