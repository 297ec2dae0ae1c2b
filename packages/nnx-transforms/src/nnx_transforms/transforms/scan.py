"""`scan`: a loop over axes of arrays, and of the variables of live objects."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from graphcore import broadcast_prefix
from graphcore.authors import (
    Entry,
    Inside,
    Left,
    enter,
    lifted,
    map_settings,
    plain_settings,
)
from nnx_transforms.arguments import positions_of, resolve_kwargs
from nnx_transforms.prefixes import Carry
from nnx_transforms.transforms.compiled.donation import together
from nnx_transforms.transforms.decorators import LATER, called_as_before
from nnx_transforms.transforms.loops.agreement import (
    failure,
    outline,
    type_differences,
    value_differences,
)
from nnx_transforms.transforms.loops.cached_properties import not_kept
from nnx_transforms.transforms.loops.carried_anew import carrying
from nnx_transforms.transforms.loops.carry import (
    check_carried,
    check_carried_objects,
    check_settled,
    objects_by_path,
    put_carry,
    scan_axes,
    take_carry,
)
from nnx_transforms.transforms.loops.held import put_held, take_held
from nnx_transforms.transforms.mapped.mapping import (
    NO_METADATA,
    MappedBody,
    axes_of_arguments,
    is_axis,
    metadata_key,
    states_inside,
)
from nnx_transforms.transforms.mapped.mapping_errors import (
    check_given,
    explained,
    without_room,
)

__all__ = ["scan"]


@called_as_before
def scan(
    f: Callable[..., Any] = LATER,
    *,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    _split_transpose: bool = False,
    in_axes: Any = (Carry, 0),
    out_axes: Any = (Carry, 0),
    transform_metadata: Mapping[str, Any] = NO_METADATA,
) -> Any:
    """Runs a function once for each index of what it is scanned over.

    The function takes and returns any pytrees with graph nodes and variables in them.
    What it does to objects is visible in the caller's own objects afterwards: variables
    with an axis are stacked along it, new ones as well; carried ones have the last
    value. One with axis None is shared: each iteration sees what the one before wrote,
    and the caller what the last one wrote. JAX keeps the trace of a loop with the
    function, so a second call like the first does not trace.

    Args:
        f: The function. Left out, `scan` returns a decorator.
        length: How often to run it; needed if nothing is scanned over.
        reverse: As for `jax.lax.scan`.
        unroll: As for `jax.lax.scan`.
        _split_transpose: As for `jax.lax.scan`.
        in_axes: For each argument: an integer, the axis to scan over; None for an
            argument that all iterations share; or, for one argument, `Carry`: each
            iteration gets what the one before returned. For parts of an argument, a
            pytree of axes; for an object also a `StateAxes`, in which `Carry` threads
            a variable through the iterations.
        out_axes: Likewise for the output: where to stack what the iterations return,
            and `Carry` for the carry.
        transform_metadata: With a `PARTITION_NAME`, the name of the scanned axis in
            the sharding metadata of scanned variables: it is removed on their way in
            and added on their way out. Likewise with any other key, in the metadata
            of that name, where it is a sequence.

    Returns:
        A function that takes the arguments of `f`, keyword arguments as well, and
        returns its output: the last carry, and all else stacked.

    Raises:
        ValueError: If the axes contradict each other. At a call, if an object is
            reached under different axes, if a carried object is not returned or its
            structure changed, if that of a shared one would change in each iteration,
            or if sizes differ; with the paths.
        TypeError: At a call, if the shape or dtype of a carry changed, or of a variable
            that all iterations share; with the path.

    Example:
        >>> import nnx_transforms as nnx, jax.numpy as jnp
        >>> count = nnx.Variable(jnp.array(0))
        >>> def step(count, x):
        ...     count.value += 1
        ...     return count, x * count.value
        >>> same, products = nnx.scan(step)(count, jnp.array([5, 6, 7]))
        >>> same is count, int(count.value), products.tolist()
        (True, 3, [5, 12, 21])
    """
    in_axes, out_axes, place_in, place_out = scan_axes(in_axes, out_axes)
    place_in = (0,) if place_in == () else place_in
    options: dict[str, Any] = {
        "length": length,
        "reverse": reverse,
        "unroll": unroll,
        "_split_transpose": _split_transpose,
    }
    told = metadata_key(transform_metadata), place_in, place_out

    due = len(in_axes) if isinstance(in_axes, tuple) else 0

    def run(f: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        axes = axes_of_arguments("scan", in_axes, args)
        args, _ = states_inside(told[0], axes, args, {})
        entry = enter(
            f,
            args,
            settings=axes,
            out_settings=out_axes,
            make=_Body,
            options=told,
        )
        return _scanned(entry, options)

    @lifted(f)
    def call(f: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        args = resolve_kwargs(f, args, kwargs)
        args, _ = positions_of(f, args, {}, due)
        if in_axes is Carry and len(args) != 1:
            raise ValueError(
                "When in_axes=Carry, the function must take exactly one argument, but "
                f"it got {len(args)}. Give an axis for each: in_axes=(Carry, 0)."
            )
        return carrying(run, (f,), args, place_in, place_out)

    return call


def _scanned(entry: Entry, options: dict[str, Any]) -> Any:
    """Runs the body in `jax.lax.scan` and publishes what it did."""
    body: _Body = entry.body
    carry, others = take_carry(entry.args, body.place_in)
    axes = take_carry(entry.settings[1], body.place_in)[1]
    before = functools.partial(check_given, "scan", entry, options)
    with explained(entry, before, functools.partial(_check_kept, entry)):
        threaded, own = _divided(entry.raw, body.axes)
        leaves, structure = jax.tree.flatten(others)
        leaf_axes = broadcast_prefix(axes, others, lambda p: p is None)
        apart = _divided(leaves, leaf_axes)
        shared, scanned = (_Leaves(part, structure) for part in apart)
        (values, shared), held = take_held((threaded, shared), with_statics=True)
        step = functools.partial(body, held=held) if held else body
        init = values, carry, shared
        if jax.config.jax_disable_jit:
            # JAX would hand the first iteration a number, and the next ones arrays.
            init = jax.tree.map(_as_array, init)
        last, (groups, rest, change) = jax.lax.scan(
            step, init, (own, scanned), **options
        )
    positions = iter(change.positions)
    for group, setting in zip(groups, body.groups, strict=True):
        stacked = is_axis(setting)
        for number, (value, position) in enumerate(zip(group, positions, strict=False)):
            # What all iterations share left with the carry.
            group[number] = _moved(value, 0, setting) if stacked else last[0][position]
    rest_axes = take_carry(plain_settings(body.out_axes), body.place_out)[1]
    rest = map_settings(lambda axis, x: _moved(x, 0, axis), rest_axes, rest)
    out = put_carry(rest, last[1], body.place_out)
    return entry.commit(groups, out, change)


def _as_array(x: Any) -> Any:
    numbers = int, float, complex, np.generic, np.ndarray
    return jnp.asarray(x) if isinstance(x, numbers) else x


@dataclass
class _Leaves:
    """The leaves of a pytree, or some and None for the others; JAX tells their paths.

    A pytree may say in its static part what axes its arrays have. So it is made whole
    where all of its arrays are those of one iteration, as by `jax.lax.scan`.

    Args:
        leaves: The leaves.
        structure: Of the pytree.
    """

    leaves: Sequence[Any]
    structure: Any

    def with_paths(self) -> tuple[Any, Any]:
        whole = self.structure.unflatten(range(self.structure.num_leaves))
        paths = [p for p, _ in jax.tree_util.tree_flatten_with_path(whole)[0]]
        named = zip(map(jax.tree_util.keystr, paths), self.leaves, strict=True)
        return [*named], self.structure


jax.tree_util.register_pytree_with_keys(
    _Leaves,
    _Leaves.with_paths,
    lambda structure, leaves: _Leaves(leaves, structure),
    lambda leaves: (leaves.leaves, leaves.structure),
)


def _divided(values: Sequence[Any], axes: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """What all iterations share of some values, and the rest, the axis in front.

    Each has None in the place of what is in the other.
    """
    pairs = [*zip(values, axes, strict=True)]
    shared = [x if axis is None else None for x, axis in pairs]
    return shared, [None if axis is None else _moved(x, axis, 0) for x, axis in pairs]


def _moved(value: Any, source: int, destination: int) -> Any:
    if source == destination:
        return value
    return jax.tree.map(lambda x: jnp.moveaxis(x, source, destination), value)


class _Body(MappedBody):
    """The function of one iteration, as `jax.lax.scan` calls it.

    Variables without an axis are one object for all iterations: like carried ones,
    they go from one iteration to the next. JAX takes those that none writes out of the
    carry again.

    Attributes:
        axes: The axis of each variable; None for what all iterations share.
        place_in: The place of the carry among the arguments.
        place_out: Its place in the output.
        out_axes: The axes of the output.
    """

    always_explains = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        _, self.place_in, self.place_out = self.options
        settings = self.structure.settings
        self.axes = [axis if is_axis(axis) else None for axis in settings.variables]
        self.out_axes = settings.out

    def __call__(  # type: ignore[override]  # as JAX calls it
        self, carry: Any, scanned: Any, held: Any = None
    ) -> Any:
        """Runs one iteration."""
        (threaded, plain_carry, shared), (own, own_args) = carry, scanned
        mine, common = put_held((threaded, shared), held)
        others = own_args.structure.unflatten(together(common.leaves, own_args.leaves))
        args = put_carry(others, plain_carry, self.place_in)
        before = outline(plain_carry)  # now: it may be of no use after the run
        left = self.run(together(mine, own), args, {})
        for problem in without_room(self, left):
            raise ValueError(problem)
        new = {w.position: w.value for w in left.written if not is_axis(w.setting)}
        next_threaded = [new.get(p, value) for p, value in enumerate(threaded)]
        groups, change = self.divide(left)
        for group, setting in zip(groups, self.groups, strict=True):
            if not is_axis(setting):  # leaves with the carry
                group[:] = [()] * len(group)
        next_plain, rest = take_carry(left.out, self.place_out)
        # JAX would speak of it as one part of what is carried, or as it is taken apart.
        changed = value_differences(self, threaded, next_threaded)
        after = outline(next_plain)
        changed += type_differences(("carry",), before, after, promotes=True)
        self.progress.changed = changed
        return (next_threaded, next_plain, shared), (groups, rest, change)

    def run_inside(
        self, inside: Inside, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Left:
        # A pytree may be of no use any more after the run: what was in it is.
        given = jax.tree.map(lambda x: x, (args, kwargs))
        left = super().run_inside(inside, args, kwargs)
        check_carried(self, left.change)
        for w in left.written:
            if w.position is None and not is_axis(w.setting):
                raise ValueError(
                    f"The function made the variable at {self.place(w.path)!r}, which "
                    f"has {w.setting!r} instead of an axis, but was not there in the "
                    "first iteration. Give it an axis, or make it before the scan."
                )
        changed = left.change.definitions
        if changed is not None:
            check_settled(self, inside, changed, given)
        return left

    def call(self, inside: Inside, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        carry = None if self.place_in is None else args[self.place_in[0]]
        given = objects_by_path(carry)
        with not_kept(inside.roots):
            out = super().call(inside, args, kwargs)
        axes = self.out_axes
        if isinstance(axes, tuple):
            out = tuple(out) if isinstance(out, list) else out  # as JAX takes it
            if not isinstance(out, tuple) or len(out) != len(axes):
                is_tuple = isinstance(out, tuple)
                found = f"a tuple of {len(out)}" if is_tuple else repr(out)
                raise ValueError(
                    f"scan's out_axes={axes!r} say that the function returns a tuple "
                    f"of {len(axes)}, but it returned {found}."
                )
        if self.place_in is not None:
            came_back = take_carry(out, self.place_out)[0]
            check_carried_objects(given, came_back)
        return out


def _check_kept(entry: Entry, error: BaseException) -> None:
    """Says what JAX refused of what a function left, in terms of variables.

    Raises:
        TypeError: If a variable holds what JAX does not take, or one that goes from
            one iteration to the next changed its shape or dtype; with the path.
    """
    body: _Body = entry.body
    body.blame(entry.raw, error)
    if body.progress.changed:
        raise failure(
            TypeError,
            "What is carried, and a variable that all iterations share, must keep its "
            "structure, shape, dtype and sharding, but the function changed it:",
            body.progress.changed,
        ) from error
