"""`scan`: a loop over axes of arrays, and of the variables of live objects."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from graphcore import broadcast_prefix
from graphcore.errors import path_text
from nnx_transforms.arguments import resolve_kwargs
from nnx_transforms.prefixes import Carry
from nnx_transforms.transforms.carry import (
    CarriedGraph,
    check_carried_objects,
    check_scan_axes,
    put_carry,
    take_carry,
)
from nnx_transforms.transforms.lifting import (
    Callee,
    Inputs,
    Inside,
    Left,
    key_path,
    take,
)
from nnx_transforms.transforms.mapped_arguments import (
    NO_METADATA,
    axes_of_arguments,
    updated_by,
)
from nnx_transforms.transforms.mapping import (
    MappedBody,
    check_plain_prefix,
    is_axis,
    plain_prefix,
)
from nnx_transforms.transforms.mapping_errors import (
    check_out_ranks,
    check_sizes,
    find_varying,
)

__all__ = ["scan"]


def scan(
    f: Callable[..., Any] | None = None,
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
    value. One that all iterations share is the same at the start of each. Outside of
    `jit`, each call traces and compiles the loop anew.

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
            and added on their way out.

    Returns:
        A function that takes the arguments of `f`, keyword arguments as well, and
        returns its output: the last carry, and all else stacked.

    Raises:
        ValueError: If the axes contradict each other. At a call, if an object is
            reached under different axes, if a carried object is not returned or its
            structure changed, if iterations may leave different values in a variable
            that all of them share (axis None), or if sizes differ; with the paths.
        TypeError: At a call, if the shape or dtype of a carry changed.

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
    in_axes = tuple(in_axes) if isinstance(in_axes, list) else in_axes
    places = check_scan_axes(in_axes, out_axes)
    options: dict[str, Any] = {
        "length": length,
        "reverse": reverse,
        "unroll": unroll,
        "_split_transpose": _split_transpose,
    }
    if f is None:
        return functools.partial(
            scan,
            in_axes=in_axes,
            out_axes=out_axes,
            transform_metadata=transform_metadata,
            **options,
        )
    callee = Callee(f)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        args = resolve_kwargs(f, args, kwargs)
        if in_axes is Carry and len(args) != 1:
            raise ValueError(
                "When in_axes=Carry, the function must take exactly one argument, but "
                f"it got {len(args)}. Give an axis for each: in_axes=(Carry, 0)."
            )
        axes = axes_of_arguments("scan", in_axes, args)
        tree = (*args, {})
        check_plain_prefix(axes, tree, "argument ")
        inputs = take(tree, axes, callee.bound)
        place_in = (0,) if places[0] == () else places[0]
        body = _Body(callee, inputs, out_axes, transform_metadata, place_in, places[1])
        return _scanned(body, plain_prefix(axes), options)

    return functools.update_wrapper(wrapper, f, updated=updated_by(f))


def _scanned(body: _Body, axes: Any, options: dict[str, Any]) -> Any:
    """Runs the body in `jax.lax.scan` and publishes what it did."""
    inputs = body.inputs
    values = inputs.values()
    carry, others = take_carry(inputs.plain, body.place_in)
    leaves, structure = jax.tree.flatten(others)
    leaf_axes = broadcast_prefix(
        take_carry(axes, body.place_in)[1], others, lambda p: p is None
    )
    carried = [i for i, p in enumerate(inputs.prefixes) if p is Carry]

    def run(carry: Any, scanned: Any) -> tuple[Left, list[Any]]:
        (carried_values, plain_carry), (own, own_leaves) = carry, scanned
        mine = [*zip(carried, carried_values, strict=True), *own.items()]
        now = _replaced(values, dict(mine))
        plain = structure.unflatten(_replaced(leaves, own_leaves))
        return body.run(now, put_carry(plain, plain_carry, body.place_in)), now

    def step(carry: Any, scanned: Any) -> Any:
        left, now = run(carry, scanned)
        body.check_made(left)
        check_out_ranks(body, None)
        new = _replaced(now, {w.position: w.value for w in left.written})
        groups, outcome = body.divide(left)
        for group, setting in zip(groups, body.settings, strict=True):
            if setting is Carry:  # leaves with the carry
                group[:] = [()] * len(group)
        plain_carry, rest = take_carry(left.tree, body.place_out)
        new_carry = [new[i] for i in carried], plain_carry
        body.note_carry(carried, now, new)
        return new_carry, (groups, rest, outcome)

    try:
        scanned = _split(values, inputs.prefixes), _split(leaves, leaf_axes)
        init = [values[i] for i in carried], carry
        (last, carry), (groups, rest, outcome) = jax.lax.scan(
            step, init, scanned, **options
        )
    except (IndexError, TypeError, ValueError) as error:
        if body.notes is None:
            body.blame_values(values, error)
            check_sizes("scan", inputs, axes, options, error)
        else:
            body.blame_carry(error)
        raise
    body.check_shared(init, scanned, run)
    final: dict[Any, Any] = dict(zip(carried, last, strict=True))
    new_values: list[Any] = []
    order: list[int] = []
    each = chain.from_iterable(
        [(setting, value) for value in group]
        for group, setting in zip(groups, body.settings, strict=True)
    )
    for number, (setting, value) in enumerate(each):
        if setting is Carry:
            new_values.append(final[outcome.positions[number]])
        elif setting is not None:
            new_values.append(_to_axis(value, setting))
        elif any(len(leaf) == 0 for leaf in jax.tree.leaves(value)):
            continue  # Without iterations nobody wrote.
        else:
            new_values.append(jax.tree.map(_first, value))
        order.append(number)
    rest_axes = take_carry(plain_prefix(body.out_axes), body.place_out)[1]
    out = put_carry(_stacked_output(rest, rest_axes), carry, body.place_out)
    return inputs.publish(outcome.select(order), new_values, out)


def _replaced(values: Sequence[Any], new: Mapping[Any, Any]) -> list[Any]:
    """A list with some entries replaced."""
    return [new.get(i, value) for i, value in enumerate(values)]


def _split(values: Sequence[Any], axes: Sequence[Any]) -> dict[int, Any]:
    """What is scanned over, by number, the axis in front."""
    return {
        i: _from_axis(value, axis)
        for i, (value, axis) in enumerate(zip(values, axes, strict=True))
        if is_axis(axis)
    }


def _first(x: Any) -> Any:
    return jax.lax.index_in_dim(x, 0, keepdims=False)


def _from_axis(value: Any, axis: int) -> Any:
    if axis == 0:
        return value
    return jax.tree.map(lambda x: jnp.moveaxis(x, axis, 0), value)


def _to_axis(value: Any, axis: int) -> Any:
    if axis == 0:
        return value
    return jax.tree.map(lambda x: jnp.moveaxis(x, 0, axis), value)


def _stacked_output(rest: Any, axes: Any) -> Any:
    pairs, structure = jax.tree_util.tree_flatten_with_path(rest)
    moved: list[Any] = []
    leaf_axes = broadcast_prefix(axes, rest, lambda p: p is None)
    for (path, leaf), axis in zip(pairs, leaf_axes, strict=True):
        if not -leaf.ndim <= axis < leaf.ndim:
            raise ValueError(
                f"What the function returned at {path_text(key_path(path))!r} is "
                f"stacked along axis {axis}, but it has {leaf.ndim - 1} axes."
            )
        moved.append(_to_axis(leaf, axis))
    return structure.unflatten(moved)


class _Body(MappedBody):
    """The function of one iteration.

    Args:
        place_in: The place of the carry among the arguments.
        place_out: Its place in the output.
    """

    def __init__(
        self,
        callee: Callee,
        inputs: Inputs,
        out_axes: Any,
        transform_metadata: Mapping[str, Any],
        place_in: Any,
        place_out: Any,
    ) -> None:
        super().__init__(callee, inputs, out_axes, transform_metadata)
        self.out_axes = out_axes
        self.place_in = place_in
        self.place_out = place_out
        self._changed: list[str] = []

    def entered(self, inside: Inside) -> tuple[CarriedGraph, Inside]:
        return CarriedGraph(self.inputs, inside.roots), inside

    def returned(
        self, seen: tuple[CarriedGraph, Inside], args: Sequence[Any], out: Any
    ) -> None:
        axes = self.out_axes
        if isinstance(axes, tuple) and not (
            isinstance(out, tuple) and len(out) == len(axes)
        ):
            found = f"a tuple of {len(out)}" if isinstance(out, tuple) else repr(out)
            raise ValueError(
                f"scan's out_axes={axes!r} say that the function returns a tuple of "
                f"{len(axes)}, but it returned {found}."
            )
        if self.place_in is not None:
            check_carried_objects(
                args[self.place_in[0]], take_carry(out, self.place_out)[0]
            )
        graph, inside = seen
        graph.check(inside.variables)

    def check_made(self, left: Left) -> None:
        """Makes sure that new variables have an axis.

        Raises:
            ValueError: If one has none, with the path.
        """
        for w in left.written:
            if w.position is None and not is_axis(w.prefix):
                raise ValueError(
                    f"The function made the variable at {self.place(w.path)!r}, which "
                    f"has {w.prefix!r} instead of an axis, but was not there in the "
                    "first iteration. Give it an axis, or make it before the scan."
                )

    def check_shared(self, init: Any, scanned: Any, run: Callable[..., Any]) -> None:
        """Makes sure that what all iterations share is left alike by all.

        JAX does not tell what depends on the iteration. `vmap` does: it tells what
        depends on mapped arguments.

        Args:
            init: The first carry.
            scanned: What is scanned over, the axis in front.
            run: Runs the function on a carry and one index of that.

        Raises:
            ValueError: If it isn't, with the path.
        """
        shared = [note.path for note in self.notes or () if note.prefix is None]
        if not shared:
            return
        mapped = jax.tree.map(lambda x: _stand_in(x, np.shape(x)), init)
        slices = jax.tree.map(lambda x: _stand_in(x, np.shape(x)[1:]), scanned)
        place: str | None
        try:
            place = find_varying(
                self, lambda *args: run(*args)[0], (mapped, slices), 0, {"axis_size": 1}
            )
        except Exception:  # What can't be mapped can't be looked into.
            place = self.place(shared[0])
        if place is not None:
            raise ValueError(
                f"The function wrote to the variable at {place!r}, which has axis None "
                "(one value for all iterations), what may differ from iteration to "
                "iteration. Give it an axis, or thread it through (`Carry`)."
            )

    def note_carry(
        self, carried: Sequence[int], old: Sequence[Any], new: Sequence[Any]
    ) -> None:
        """Takes note of carried variables that changed their shape or dtype."""
        self._changed = []
        for i in carried:
            before, after = _abstract(old[i]), _abstract(new[i])
            if before != after:
                place = self.place(self.inputs.joint.paths[i])
                self._changed.append(f"{place}: {before} -> {after}")

    def blame_carry(self, error: BaseException) -> None:
        """Says which carried variable changed its shape or dtype.

        Raises:
            TypeError: If there is one, with the path.
        """
        if self._changed:
            lines = "\n".join(f"  {line}" for line in self._changed)
            raise TypeError(
                "A carried variable must keep its shape and dtype, but the function "
                f"changed it:\n{lines}"
            ) from error


def _stand_in(x: Any, shape: tuple[int, ...]) -> jax.ShapeDtypeStruct:
    """What `vmap` over one index is traced on."""
    return jax.ShapeDtypeStruct((1, *shape), jax.typeof(x).dtype)


def _abstract(value: Any) -> str:
    leaves, structure = jax.tree.flatten(value)
    # A weak type may become a strong one.
    texts = [str(jax.typeof(leaf)).removeprefix("~") for leaf in leaves]
    return texts[0] if jax.tree.structure(0) == structure else f"{structure}{texts}"
