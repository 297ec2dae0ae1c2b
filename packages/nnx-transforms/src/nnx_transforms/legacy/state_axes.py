"""Mapping and scanning with one set of axes for the variables of all objects.

`vmap` and `scan` take the axes of an object where it stands among the arguments. Here,
`state_axes` says it for all objects at once, `in_axes` and `out_axes` speak of arrays
only, and random streams are split for each call. Underneath are the same
transformations.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import jax
import numpy as np

from graphcore import All, Filter, Static, iter_graph, to_predicate
from graphcore.authors import (
    UNSET,
    enter,
    is_object,
    lifted,
    plain_settings,
    settings_of_leaves,
    take_objects,
)
from nnx_transforms.arguments import positions_of
from nnx_transforms.prefixes import Carry, StateAxes
from nnx_transforms.randomness.random_splits import split_rngs as with_split_rngs
from nnx_transforms.randomness.rngs import RngState
from nnx_transforms.transforms.decorators import LATER, optional_function
from nnx_transforms.transforms.mapped.mapping import (
    NO_METADATA,
    axes_of_arguments,
    is_axis,
)
from nnx_transforms.transforms.mapped.mapping_errors import entering
from nnx_transforms.transforms.pmap import pmap as pmap_by_axes
from nnx_transforms.transforms.scan import scan as scan_by_axes
from nnx_transforms.transforms.vmap import vmap as vmap_by_axes

ALL_STACKED: Mapping[Any, Any] = MappingProxyType({...: 0})
_MAX_STRUCTURES = 64


@optional_function
def vmap(
    f: Callable[..., Any] = LATER,
    *,
    in_axes: Any = 0,
    out_axes: Any = 0,
    axis_name: Any = None,
    axis_size: int | None = None,
    spmd_axis_name: Any = None,
    in_axes_kwargs: Any = 0,
    state_axes: Mapping[Any, Any] = ALL_STACKED,
    split_rngs: Filter = ...,
    transform_metadata: Mapping[str, Any] = NO_METADATA,
) -> Any:
    """Maps a function; all objects have the same axes.

    Args:
        f: The function. Left out, `vmap` returns a decorator.
        in_axes: As for `jax.vmap`; what it says of objects has no meaning.
        out_axes: Likewise.
        axis_name: As for `jax.vmap`.
        axis_size: As for `jax.vmap`.
        spmd_axis_name: As for `jax.vmap`.
        in_axes_kwargs: The axes of keyword arguments, a tree prefix of their dict.
        state_axes: From filters to the axis of the variables that they select; None
            for one value for all indices.
        split_rngs: Selects the random streams of which each index has its own. From
            the others all indices draw the same keys.
        transform_metadata: As for `nnx_transforms.vmap`.

    Returns:
        The mapped function.

    Raises:
        ValueError: At a call, as `nnx_transforms.vmap` does; or if no filter selects a
            variable, with its path.

    Example:
        >>> import nnx_transforms as nnx, jax, jax.numpy as jnp
        >>> from nnx_transforms.experimental import vmap
        >>> @vmap(in_axes=None, axis_size=3, state_axes={nnx.Param: 0, ...: None})
        ... def make(rngs):
        ...     return nnx.Linear(2, 4, rngs=rngs)
        >>> make(nnx.Rngs(0)).kernel.value.shape
        (3, 2, 4)
    """
    return _mapped(vmap_by_axes, **locals())


def _mapped(
    transform: Callable[..., Any],
    f: Callable[..., Any],
    *,
    in_axes: Any = 0,
    out_axes: Any = 0,
    axis_size: int | None = None,
    in_axes_kwargs: Any = 0,
    state_axes: Mapping[Any, Any] = ALL_STACKED,
    split_rngs: Filter = ...,
    transform_metadata: Mapping[str, Any] = NO_METADATA,
    **options: Any,
) -> Callable[..., Any]:
    told = {key: x for key, x in locals().items() if key not in ("f", "options")}
    object_axes = _object_axes(_pairs(state_axes), split_rngs)

    @lifted(f)
    def body(f: Callable[..., Any], /, kwargs: dict[str, Any], *args: Any) -> Any:
        # Objects in the output leave on their own, with their own axes.
        plain, places, objects = take_objects(f(*args, **kwargs))
        return plain, objects, Static(places)

    @functools.lru_cache(maxsize=_MAX_STRUCTURES)
    def transformed(structure: Any, axes: tuple[Any, ...]) -> Any:
        return transform(
            body,
            in_axes=structure.unflatten(axes),
            out_axes=(plain_settings(out_axes), object_axes, None),
            axis_size=axis_size,
            transform_metadata=transform_metadata,
            **options,
        )

    @lifted(f)
    def call(g: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if g is not f:  # on the object of a transformation around this one
            return _mapped(f=g, **told, **options)(*args, **kwargs)
        given = (kwargs, *args)
        axes = in_axes_kwargs, *axes_of_arguments(transform.__name__, in_axes, args)
        axes = _with_objects(axes, given, object_axes)
        leaves, structure = jax.tree.flatten(axes, is_leaf=lambda p: p is None)
        function = transformed(structure, tuple(leaves))
        with _split("axis_size", given, axes, axis_size, split_rngs):
            plain, objects, places = function(*given)
        return places.value.fill(plain, objects)

    return call


pmap = functools.partial(_mapped, pmap_by_axes)
"""As `vmap`, over devices, with other options of `nnx_transforms.pmap`."""


def construct_stacked(
    module_constructor: Callable[..., Any],
    init: tuple[Any, Any],
    size_name: str,
    *,
    state_axes: Mapping[Any, Any] = ALL_STACKED,
    split_rngs: Filter = ...,
    transform_metadata: Mapping[str, Any] = NO_METADATA,
    **options: Any,
) -> Any:
    """Makes several modules in one, their variables stacked.

    Args:
        module_constructor: Makes one.
        init: Its positional and keyword arguments. Objects pass the boundary; all else
            is shared.
        size_name: The option that says how many modules.
        state_axes: That of `vmap` or `scan`. Variables without an axis must be the same
            in all modules.
        split_rngs: As for `vmap`.
        transform_metadata: Likewise.
        **options: Other options of `vmap` or `scan`.

    Returns:
        The module.

    Raises:
        ValueError: If it is not said how many.
    """
    if options.get(size_name) is None:
        raise ValueError(
            f"How many modules are to be made? Give `{size_name}`: their variables are "
            "stacked along a new axis of that size."
        )

    plain, places, objects = take_objects(init)

    def make(*objects: Any) -> Any:
        args, kwargs = places.fill(plain, objects)
        return module_constructor(*args, **kwargs)

    stacked = {
        selected: axis if is_axis(axis) else None
        for selected, axis in _pairs(state_axes, None)
    }
    return vmap(
        make,
        in_axes=None,
        out_axes=None,
        axis_size=options[size_name],
        state_axes=stacked,
        split_rngs=split_rngs,
        transform_metadata=transform_metadata,
    )(*objects)


@optional_function
def scan(
    f: Callable[..., Any] = LATER,
    *,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    _split_transpose: bool = False,
    in_axes: Any = 0,
    in_axes_kwargs: Any = 0,
    out_axes: Any = 0,
    carry_argnum: int | None = 0,
    state_axes: Mapping[Any, Any] = ALL_STACKED,
    split_rngs: Filter = ...,
    transform_metadata: Mapping[str, Any] = NO_METADATA,
    scan_output: bool = True,
) -> Any:
    """Scans a function; all objects but those in the carry have the same axes.

    Args:
        f: The function. It returns `(carry, output)`; without a carry the output, and
            without an output the carry. Left out, `scan` returns a decorator.
        length: How often to run it; needed if nothing is scanned over.
        reverse: As for `jax.lax.scan`.
        unroll: As for `jax.lax.scan`.
        _split_transpose: As for `jax.lax.scan`.
        in_axes: The axes of positional arguments, a tree prefix of them; None for what
            all iterations share. What it says of objects and of the carry has no
            meaning.
        in_axes_kwargs: The axes of keyword arguments, a tree prefix of their dict.
        out_axes: The axes along which outputs are stacked.
        carry_argnum: The position of the carry; None if there is none.
        state_axes: From filters to the axis of the variables that they select; None
            for what all iterations share and none writes, and `Carry` for what one
            iteration hands to the next. So is treated what no filter selects.
        split_rngs: Selects the random streams of which each iteration has its own.
            The others are handed from one iteration to the next.
        transform_metadata: As for `nnx_transforms.scan`.
        scan_output: Whether the function returns something besides the carry.

    Returns:
        A function that returns what `f` does: the last carry, and the outputs stacked.

    Raises:
        ValueError: At a call, as `nnx_transforms.scan` does; or if `f` does not return
            a pair where it should.

    Example:
        >>> import nnx_transforms as nnx, jax.numpy as jnp
        >>> from nnx_transforms.experimental import scan
        >>> w = nnx.Param(jnp.array([1.0, 2.0, 3.0]))
        >>> @scan
        ... def product(carry, w):
        ...     return carry * w.value, carry
        >>> last, before = product(jnp.array(10.0), w)
        >>> float(last), before.tolist()
        (60.0, [10.0, 10.0, 20.0])
    """
    told = {key: x for key, x in locals().items() if key != "f"}
    object_axes = _object_axes(_pairs(state_axes, Carry), split_rngs, Carry)
    if carry_argnum is not None:
        out_axes = (Carry, out_axes) if scan_output else Carry

    @lifted(f)
    def body(f: Callable[..., Any], /, kwargs: dict[str, Any], *args: Any) -> Any:
        out = f(*args, **kwargs)
        if carry_argnum is None:
            return out if scan_output else None
        if scan_output and not (isinstance(out, tuple) and len(out) == 2):
            raise ValueError(
                "The scanned function must return a pair (carry, output), but it "
                f"returned {out!r}. With `scan_output=False` it returns the carry "
                "alone, with `carry_argnum=None` the output."
            )
        return out

    @lifted(f)
    def call(g: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if g is not f:  # as in `_mapped`
            return scan(g, **told)(*args, **kwargs)
        if carry_argnum is not None and carry_argnum >= len(args):
            args, kwargs = positions_of(f, args, kwargs)
            if carry_argnum >= len(args):
                raise ValueError(
                    f"Argument {carry_argnum} is carried, but the function got "
                    f"{len(args)} positional arguments: choose another `carry_argnum`, "
                    "or None."
                )
        axes = [in_axes_kwargs, *axes_of_arguments("scan", in_axes, args)]
        given: list[Any] = [kwargs, *args]
        if carry_argnum is not None:
            # It has no axes, and keeps its random streams.
            axes[1 + carry_argnum], given[1 + carry_argnum] = None, ()
        axes = _with_objects(axes, given, object_axes)
        with _split("length", given, axes, length, split_rngs):
            if carry_argnum is not None:
                axes[1 + carry_argnum] = Carry
            return scan_by_axes(
                body,
                length=length,
                reverse=reverse,
                unroll=unroll,
                _split_transpose=_split_transpose,
                in_axes=tuple(axes),
                out_axes=out_axes,
                transform_metadata=transform_metadata,
            )(kwargs, *args)

    return call


def _pairs(
    state_axes: Mapping[Any, Any], others: Any = UNSET
) -> list[tuple[Filter, Any]]:
    """Filters and axes, and an axis for what no filter selects if it is given."""
    pairs = [*StateAxes(state_axes).items()]
    everything = to_predicate(...)
    if others is not UNSET and all(to_predicate(f) != everything for f, _ in pairs):
        pairs.append((..., others))
    return pairs


def _object_axes(
    pairs: list[tuple[Filter, Any]], split_rngs: Filter, unsplit: Any = None
) -> StateAxes:
    """The axes of an object: split random streams are mapped over their keys."""
    return StateAxes([(All(RngState, split_rngs), 0), (RngState, unsplit), *pairs])


def _with_objects(axes: Any, tree: Any, object_axes: StateAxes) -> Any:
    """A tree prefix with the axes of objects in their places."""
    leaves, structure = jax.tree.flatten(tree, is_leaf=is_object)
    if not any(map(is_object, leaves)):
        return axes
    per_leaf = settings_of_leaves(axes, tree)
    return structure.unflatten(
        object_axes if is_object(leaf) else axis
        for leaf, axis in zip(leaves, per_leaf, strict=True)
    )


@contextlib.contextmanager
def _split(
    size_name: str, tree: Any, axes: Any, size: int | None, split_rngs: Filter
) -> Iterator[None]:
    """Gives each index its own random streams, unless they have that already."""
    single = All(RngState, split_rngs, lambda path, x: not np.ndim(x.value))
    if size is None:
        size = next(iter(_sizes(tree, axes)), None)
    if size is not None:
        with with_split_rngs(tree, splits=size, only=single):
            yield
        return
    for path, x in iter_graph(tree):
        if single(path, x):
            raise ValueError(
                f"Into how many is the random stream {x.tag!r} to be split? No array "
                f"or variable is mapped: give `{size_name}`."
            )
    yield


def _sizes(tree: Any, axes: Any) -> list[int]:
    """The sizes of mapped axes."""
    entry = enter(_sizes, tuple(tree), settings=tuple(axes))
    mapped = [(np.shape(x), axis) for *_, x, axis in entering(entry) if is_axis(axis)]
    return [shape[i] for shape, i in mapped if -len(shape) <= i < len(shape)]
