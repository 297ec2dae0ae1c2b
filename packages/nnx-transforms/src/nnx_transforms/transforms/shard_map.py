"""`shard_map`: a function of one shard, run on each device, over live objects."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from graphcore import PrefixMapping
from graphcore.authors import (
    UNSET,
    Divided,
    Entry,
    Left,
    enter,
    is_mapping,
    is_object,
    lifted,
    map_settings,
    path_text,
    prefix_leaves,
    raw_value_of,
    settings_within,
)
from nnx_transforms.arguments import resolve_kwargs
from nnx_transforms.sharding.in_modules import shardings_alone
from nnx_transforms.sharding.shardings import axis_names, check_fits, entries, names_in
from nnx_transforms.transforms.decorators import LATER, called_as_before
from nnx_transforms.transforms.loops.agreement import has_type
from nnx_transforms.transforms.mapped.mapping import (
    MappedBody,
    axes_given,
    axes_of_arguments,
)
from nnx_transforms.transforms.mapped.mapping_errors import (
    check_array,
    entering,
    explained,
    least_rank,
    run_again,
)

_ONE_FOR_ALL = PartitionSpec()


@called_as_before  # type: ignore[arg-type]  # (`more` will not hold `f`)
def shard_map(
    f: Callable[..., Any] = LATER,
    *,
    out_specs: Any,
    in_specs: Any = UNSET,
    mesh: Any = None,
    **more: Any,
) -> Any:
    """Runs a function on each shard of arrays, and of the variables of objects.

    What the function does to objects is visible in the caller's own objects
    afterwards: written values are put together as the variable's spec says.

    Args:
        f: The function. Left out, `shard_map` returns a decorator.
        out_specs: As for `jax.shard_map`. For an object: a `PartitionSpec` of all its
            variables, or a `StateSharding` of these. An argument that is returned must
            have the same specs here as there. For a module of Equinox also a module
            of specs.
        in_specs: Likewise, for the arguments. None means the same as an empty spec.
            Left out, over explicit axes of a mesh, it is taken from the types of arrays
            and variables.
        mesh: As for `jax.shard_map`; left out, the mesh in force.
        **more: Further arguments that the installed `jax.shard_map` takes, such as
            `axis_names` and `check_vma`.

    Returns:
        The mapped function.

    Raises:
        ValueError: At a call, if an object is reached under different specs, if a
            variable does not fit its spec, or if it would have to be equal on devices
            on which it is not; with the paths.
        TypeError: If what is given for the variables of an object is no spec.

    Example:
        >>> import nnx_transforms as nnx, jax, jax.numpy as jnp
        >>> from jax.sharding import PartitionSpec as P
        >>> mesh = jax.sharding.Mesh(jax.devices(), ('data',))
        >>> total = nnx.Variable(jnp.array(0.0))
        >>> @nnx.shard_map(mesh=mesh, in_specs=(P(), P('data')), out_specs=None)
        ... def add(total, x):
        ...     total.value += jax.lax.psum(x.sum(), 'data')
        >>> add(total, jnp.ones(16 * jax.device_count()))
        >>> float(total.value) / jax.device_count()
        16.0
    """
    options = {"mesh": mesh, **more}
    in_specs, out_specs = axes_given(
        "shard_map",
        in_specs,
        out_specs,
        "specs",
        "PartitionSpecs, or a StateSharding",
        _may_be_spec,
    )
    if in_specs is not UNSET:
        in_specs = shardings_alone(in_specs)
    out_specs = shardings_alone(out_specs)

    @lifted(f)
    def call(f: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        args = resolve_kwargs(f, args, kwargs)
        specs = in_specs
        if in_specs is not UNSET:
            specs = axes_of_arguments("shard_map", in_specs, args, True, "in_specs")
        entry = enter(
            f,
            args,
            settings=_of_types(args, options) if specs is UNSET else specs,
            out_settings=out_specs,
            make=_Body,
        )
        if specs is UNSET and entry.roots:
            _check_explicit(mesh, options.get("axis_names"))
        body, args = entry.body, entry.args
        # For arrays, JAX has a say about None.
        none = _ONE_FOR_ALL if entry.roots else None
        told, given = dict(options), dict(options)
        groups = [_spec(setting) for setting in body.groups]
        if specs is not UNSET:
            given["in_specs"] = settings_within(_plain_specs(specs, none), args)
            told["in_specs"] = groups, given["in_specs"], _ONE_FOR_ALL
        plain_out = _plain_specs(out_specs, none)
        if Divided.within(plain_out)[1]:
            # Nothing but a trace tells what they are a prefix of.
            loose = {**told, "out_specs": _ONE_FOR_ALL, "check_vma": False}
            _, out, _ = jax.eval_shape(jax.shard_map(body, **loose), *entry.values)
            plain_out = settings_within(plain_out, out)
        mapped: Any = functools.partial(jax.shard_map, **told)
        leaving = groups, plain_out, _ONE_FOR_ALL
        both = given.get("in_specs"), plain_out
        inside = functools.partial(mapped, out_specs=())

        def again() -> Any:
            return jax.shard_map(f, **given, out_specs=plain_out)(*args)

        with explained(
            entry,
            functools.partial(_check_given, entry, both, mesh),
            functools.partial(run_again, entry, inside, body.misfits),
            again,
        ):
            out = mapped(body, out_specs=leaving)(*entry.values)
        return entry.commit(*out)

    return call


def _check_explicit(mesh: Any, names: Any) -> None:
    """Refuses to take the specs of objects from types that do not tell them."""
    mesh = jax.sharding.get_abstract_mesh() if mesh is None else mesh
    kinds = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    auto = [n for n in names or kinds if kinds.get(n) is jax.sharding.AxisType.Auto]
    if auto:
        raise ValueError(
            f"shard_map needs in_specs over the axes {auto} of the mesh, which are "
            "AxisType.Auto: types tell the specs over AxisType.Explicit only. Give a "
            "PartitionSpec, or a StateSharding of them, for each argument."
        )


def _of_types(args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """The specs of arguments for which JAX takes those of their types."""
    of_objects = _OfTypes(frozenset(options.get("axis_names", ())))
    return jax.tree.map(
        lambda x: of_objects if is_object(x) else _ONE_FOR_ALL, args, is_leaf=is_object
    )


@dataclass(frozen=True)
class _OfTypes(PrefixMapping[Any]):
    """The spec of each variable is that of its type.

    Args:
        names: The axes over which it is mapped; all if there are none.
    """

    names: frozenset[Any]
    settings = (_ONE_FOR_ALL,)

    def map_prefix(self, path: tuple[Any, ...], variable: Any) -> Any:
        leaves = jax.tree.leaves(raw_value_of(variable))
        found = {jax.typeof(x).sharding.spec for x in leaves if has_type(x)}
        if len(found) > 1:
            raise ValueError(
                f"The arrays at {path_text(path)!r} have the specs {[*found]}, but a "
                "variable has one: give in_specs."
            )
        spec = next(iter(found), _ONE_FOR_ALL)
        named = [
            tuple(x for x in axis_names(dim) if x in self.names or not self.names)
            for dim in entries(spec)
        ]
        while named and not named[-1]:  # as in specs that users write
            named.pop()
        others = {kind: getattr(spec, kind) for kind in ("reduced", "unreduced")}
        if self.names:
            others = {kind: axes & self.names for kind, axes in others.items()}
        return spec.update(partitions=[x or None for x in named], **others)


def _may_be_spec(leaf: Any, setting: Any) -> bool:
    is_spec = isinstance(setting, PartitionSpec | NamedSharding | None)
    return is_spec or not is_mapping(leaf)


def _spec(setting: Any) -> Any:
    """What a setting says to JAX."""
    if isinstance(setting, NamedSharding):
        return setting.spec
    return _ONE_FOR_ALL if setting is None else setting


def _plain_specs(specs: Any, none: Any) -> Any:
    """Specs for the pytree without objects."""
    return map_settings(
        lambda p: _ONE_FOR_ALL if is_mapping(p) else none if p is None else p, specs
    )


class _Body(MappedBody):
    """The function of one shard."""

    settings_called = ("in_specs", "out_specs")

    def misfits(self, left: Left) -> Iterator[str]:
        """Says which written variable or output does not fit its spec."""
        for shown, setting, value in self.leaving(left):
            spec, rank = _spec(setting), least_rank(value)
            if len(spec) > rank:
                yield (
                    f"{shown} is to be put together by {spec}, but the function left "
                    f"an array of {rank} axes there."
                )
            named = names_in(spec)
            if varying := sorted(map(str, _varying(value) - named)):
                yield (
                    f"{shown} has the spec {spec}, which means one value "
                    f"over the mesh axes {varying}, but the function left it with "
                    "values that may differ there. Name these axes in its spec, or "
                    "make the values equal, for example with `jax.lax.pmean`."
                )


def _varying(value: Any) -> frozenset[Any]:
    """The mesh axes over which a value varies, where JAX tells."""
    found: set[Any] = set()
    for leaf in jax.tree.leaves(value):
        kind = jax.typeof(leaf) if has_type(leaf) else None
        manual = getattr(kind, "manual_axis_type", None)
        # The attribute of older versions of JAX is deprecated in newer ones.
        found |= getattr(kind, "vma", frozenset()) if manual is None else manual.varying
    return frozenset(found)


def _check_given(entry: Entry, plain: Any, mesh: Any, error: BaseException) -> None:
    """Raises an error if a variable or argument can't be sharded as its spec says.

    Args:
        entry: The call.
        plain: The specs of arguments and output without objects.
        mesh: The mesh; None for the one in force.
        error: What JAX said.

    Raises:
        ValueError: If there is one, with its path; or if a spec is none of the mesh.
        TypeError: Likewise; or if what is given is no spec.
    """
    mesh = jax.sharding.get_abstract_mesh() if mesh is None else mesh
    sizes = dict(getattr(mesh, "shape", ()))
    if not sizes:
        return  # JAX says what is wrong with the mesh.
    for spec in map(_spec, [*entry.body.groups, *prefix_leaves(plain)]):
        if not isinstance(spec, PartitionSpec):
            raise TypeError(
                "shard_map takes a PartitionSpec, for the variables of an object also "
                f"a StateSharding of them, but got {spec!r}."
            ) from error
        unknown = names_in(spec) - {*sizes}
        if unknown:
            raise ValueError(
                f"shard_map got {spec}, but the axes of the mesh are {[*sizes]}."
            ) from error
    for what, place, leaf, setting in entering(entry):
        check_array("shard_map", what, place, leaf, error)
        check_fits(place, _spec(setting), np.shape(leaf), sizes, error, what)
