"""`shard_map`: a function of one shard, run on each device, over live objects."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from itertools import chain
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from graphcore.errors import path_text
from nnx_transforms.arguments import resolve_kwargs
from nnx_transforms.transforms.lifting import Callee, Inputs, take
from nnx_transforms.transforms.mapped_arguments import (
    NO_METADATA,
    has_objects,
    updated_by,
)
from nnx_transforms.transforms.mapping import (
    MappedBody,
    check_plain_prefix,
    is_mapping,
    prefix_leaves,
)

__all__ = ["shard_map"]

_ONE_FOR_ALL = PartitionSpec()
_INFER: Any = object()


def shard_map(
    f: Callable[..., Any] | None = None,
    *,
    out_specs: Any,
    in_specs: Any = _INFER,
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
            have the same specs here as there.
        in_specs: Likewise, for the arguments. None means the same as an empty spec.
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
    if f is None:
        return functools.partial(
            shard_map, in_specs=in_specs, out_specs=out_specs, **options
        )
    _check_specs(in_specs, "in_specs")
    _check_specs(out_specs, "out_specs")
    callee = Callee(f)
    given_specs = {} if in_specs is _INFER else {"in_specs": in_specs}
    if isinstance(in_specs, list):
        in_specs = tuple(in_specs)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        args = resolve_kwargs(f, args, kwargs)
        if not callee.bound and not has_objects(args):
            return _call_plain(f, callee, args, given_specs, out_specs, options)
        return _call(callee, args, in_specs, out_specs, options)

    return functools.update_wrapper(wrapper, f, updated=updated_by(f))


def _call(
    callee: Callee, args: tuple[Any, ...], in_specs: Any, out_specs: Any, options: Any
) -> Any:
    if in_specs is _INFER:
        raise ValueError(
            "shard_map needs in_specs where an object is among the arguments: give a "
            "PartitionSpec, or a StateSharding of them, for each argument."
        )
    specs = in_specs if isinstance(in_specs, tuple) else (in_specs,) * len(args)
    if len(specs) != len(args):
        raise ValueError(
            f"shard_map's in_specs has {len(specs)} entries, {in_specs}, but the "
            f"function got {len(args)} arguments: give one entry for each, or one "
            "for all."
        )
    tree, specs = (*args, {}), (*specs, _ONE_FOR_ALL)
    check_plain_prefix(specs, tree, "argument ")
    inputs = take(tree, specs, callee.bound)
    body = _Body(callee, inputs, out_specs, NO_METADATA)
    values = inputs.values()
    plain_specs = _plain_specs(specs)

    def pure(values: Any, plain: Any) -> Any:
        left = body.run(values, plain)
        groups, outcome = body.divide(left)
        return groups, outcome, left.tree

    mapped = jax.shard_map(
        pure,
        in_specs=([body.setting(p) for p in inputs.prefixes], plain_specs),
        out_specs=(list(body.settings), _ONE_FOR_ALL, _plain_specs(out_specs)),
        **options,
    )
    try:
        groups, outcome, tree = mapped(values, inputs.plain)
    except (TypeError, ValueError) as error:
        if body.notes is None:
            body.blame_values(values, error)
            _check_shapes(inputs, options["mesh"], error)
        else:
            _check_left(body, error)
        raise
    return inputs.publish(outcome, list(chain.from_iterable(groups)), tree)


def _call_plain(
    f: Callable[..., Any],
    callee: Callee,
    args: tuple[Any, ...],
    in_specs: dict[str, Any],
    out_specs: Any,
    options: Any,
) -> Any:
    check_plain_prefix(in_specs.get("in_specs"), args, "argument ")
    inputs = take(())
    body = _Body(callee, inputs, out_specs, NO_METADATA)

    @functools.wraps(f, updated=updated_by(f))
    def pure(*args: Any) -> Any:
        left = body.run((), (*args, {}))
        groups, outcome = body.divide(left)
        return groups, outcome, left.tree

    # JAX has a say about None here.
    plain_in = {key: _plain_specs(specs, None) for key, specs in in_specs.items()}
    plain_out = _plain_specs(out_specs, None)
    all_out = list(body.settings), _ONE_FOR_ALL, plain_out
    try:
        groups, outcome, tree = jax.shard_map(
            pure, out_specs=all_out, **plain_in, **options
        )(*args)
    except (TypeError, ValueError) as error:
        if body.returns_objects and body.notes is not None:
            _check_left(body, error)
        elif body.notes is not None:
            # The output doesn't fit: say so in terms of what the function returns.
            jax.shard_map(f, out_specs=plain_out, **plain_in, **options)(*args)
        raise
    return inputs.publish(outcome, list(chain.from_iterable(groups)), tree)


class _Body(MappedBody):
    """The function of one shard."""

    @staticmethod
    def setting(prefix: Any) -> Any:
        if isinstance(prefix, NamedSharding):
            return prefix.spec
        return _ONE_FOR_ALL if prefix is None else prefix


def _plain_specs(specs: Any, none: Any = _ONE_FOR_ALL) -> Any:
    """Specs for the pytree without objects."""

    def plain(spec: Any) -> Any:
        if is_mapping(spec):
            return _ONE_FOR_ALL
        return none if spec is None else spec

    return jax.tree.map(plain, specs, is_leaf=lambda p: p is None or is_mapping(p))


def _check_specs(specs: Any, name: str) -> None:
    for leaf in jax.tree.leaves(specs, is_leaf=is_mapping):
        for setting in prefix_leaves(leaf) if is_mapping(leaf) else ():
            if not isinstance(setting, PartitionSpec | NamedSharding | None):
                raise TypeError(
                    f"shard_map's {name} takes PartitionSpecs, or a StateSharding of "
                    f"these, but got {setting!r} in {leaf!r}."
                )


def _axis_names(entry: Any) -> tuple[Any, ...]:
    """The mesh axes in one entry of a spec."""
    if entry is None:
        return ()
    return tuple(entry) if isinstance(entry, tuple) else (entry,)


def _check_shapes(inputs: Inputs, mesh: Any, error: BaseException) -> None:
    """Says which variable can't be sharded as its spec says.

    Raises:
        ValueError: If there is one, with its path.
    """
    body = _Body
    mesh = jax.sharding.get_abstract_mesh() if mesh is None else mesh
    sizes = dict(mesh.shape)
    for position, (prefix, value) in enumerate(
        zip(inputs.prefixes, inputs.values(), strict=True)
    ):
        spec = body.setting(prefix)
        for leaf in jax.tree.leaves(value):
            shape = np.shape(leaf)
            pieces = [math.prod(sizes.get(n, 1) for n in _axis_names(e)) for e in spec]
            if len(spec) > len(shape) or any(
                n % k for n, k in zip(shape, pieces, strict=False)
            ):
                place = path_text(inputs.variable_path(position))
                raise ValueError(
                    f"The variable at {place!r} cannot be sharded by {spec}: its value "
                    f"has the shape {shape}, the mesh {sizes}. Give it another spec "
                    "with a `StateSharding`."
                ) from error


def _check_left(body: MappedBody, error: BaseException) -> None:
    """Says which written variable does not fit its spec.

    Raises:
        ValueError: If there is one, with its path.
    """
    for note in body.notes or ():
        spec = body.setting(note.prefix)
        place = body.place(note.path)
        if len(spec) > note.rank:
            raise ValueError(
                f"The variable at {place!r} is to be put together by {spec}, but the "
                f"function left it with an array of {note.rank} axes."
            ) from error
        named = {name for entry in spec for name in _axis_names(entry)}
        varying = sorted(map(str, note.varying - named))
        if varying:
            raise ValueError(
                f"The variable at {place!r} has the spec {spec}, which means one value "
                f"over the mesh axes {varying}, but the function left it with values "
                "that may differ there. Name these axes in its spec, or make the "
                "values equal, for example with `jax.lax.pmean`."
            ) from error
