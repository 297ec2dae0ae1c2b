"""`pmap`: a function of one example, applied on several devices, over live objects."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any

import jax

from graphcore.authors import (
    Bodies,
    Callee,
    Entry,
    Inside,
    Left,
    enter,
    lifted,
    plain_settings,
)
from nnx_transforms.arguments import ChosenArguments
from nnx_transforms.transforms.compiled.donation import (
    apart,
    held_twice,
    together,
    variables_at,
)
from nnx_transforms.transforms.decorators import LATER, called_as_before
from nnx_transforms.transforms.mapped.leafwise import arguments_with_axes, without_rules
from nnx_transforms.transforms.mapped.mapping import (
    NO_METADATA,
    MappedBody,
    axes_given,
    metadata_key,
    states_inside,
)
from nnx_transforms.transforms.mapped.mapping_errors import axes_explained, check_left


@called_as_before  # type: ignore[arg-type]  # (`more` will not hold `f`)
def pmap(
    f: Callable[..., Any] = LATER,
    axis_name: Any = None,
    *,
    in_axes: Any = 0,
    out_axes: Any = 0,
    static_broadcasted_argnums: int | Iterable[int] = (),
    devices: Any = None,
    backend: str | None = None,
    axis_size: int | None = None,
    donate_argnums: int | Iterable[int] = (),
    transform_metadata: Mapping[str, Any] = NO_METADATA,
    **more: Any,
) -> Any:
    """Maps a function over axes, each index on a device of its own.

    Objects are treated as by `vmap`. The function is compiled once for each structure
    of the objects. If it writes a variable with axis None, it is traced once more, to
    see whether devices would write other values.

    Args:
        f: The function. Left out, `pmap` returns a decorator.
        axis_name: As for `jax.pmap`.
        in_axes: As for `jax.pmap`. For an object: an axis of all its variables (None
            for one value for all devices), or a `StateAxes`. As for `vmap`, a function
            from a leaf to its axis.
        out_axes: Likewise, for the output. An argument that is returned must have
            the same axes here as there.
        static_broadcasted_argnums: As for `jax.pmap`.
        devices: As for `jax.pmap`.
        backend: As for `jax.pmap`.
        axis_size: As for `jax.pmap`.
        donate_argnums: As for `jax.pmap`; of an object all variables are donated, but
            for those with arrays that something else in the call holds, too.
        transform_metadata: As for `vmap`.
        **more: Further arguments that the installed `jax.pmap` takes.

    Returns:
        The mapped function.

    Raises:
        ValueError: At a call, if an object is reached under different axes, if a
            variable with axis None would become different on different devices, or if
            the sizes of mapped axes differ; with the paths.
        TypeError: If an axis is no integer or None.

    Example:
        >>> import nnx_transforms as nnx, jax, jax.numpy as jnp
        >>> n = jax.local_device_count()
        >>> total = nnx.Variable(jnp.zeros(n))
        >>> @nnx.pmap
        ... def add(total, x):
        ...     total.value += x
        >>> add(total, jnp.ones(n))
        >>> bool((total.value == 1).all())
        True
    """
    in_axes, out_axes = axes_given("pmap", in_axes, out_axes)
    statics = ChosenArguments(f, static_broadcasted_argnums, ())
    donated = ChosenArguments(f, donate_argnums, ())
    plain_in = plain_settings(without_rules(in_axes))
    plain_out = plain_settings(out_axes)
    named = {"axis_name": axis_name, "axis_size": axis_size}
    options: dict[str, Any] = {**named, "devices": devices, "backend": backend, **more}
    metadata = metadata_key(transform_metadata)
    fun, callee, bodies = f, Callee(f), Bodies()

    def by_jax() -> Any:
        return jax.pmap(
            functools.partial(f),  # which no cache knows
            in_axes=plain_in,
            out_axes=plain_out,
            static_broadcasted_argnums=statics.numbers,
            donate_argnums=donated.numbers,
            **options,
        )

    by_jax()  # JAX's own checks of these

    def compiled(entry: Entry) -> Callable[..., Any]:
        body = entry.body
        (*groups,), of_args, of_kwargs = entry.settings
        # Here None stands for no list, only for what is in one.
        each = [
            [axis] * len(values)
            for axis, values in zip(groups, entry.values[0], strict=True)
        ]

        def pure(kept: Any, given: Any, kwargs: Any, /, *args: Any) -> Any:
            return body([*map(together, kept, given)], args, kwargs)

        pure.__name__ = pure.__qualname__ = body.__name__
        mapped: Callable[..., Any] = jax.pmap(
            pure,
            in_axes=(each, each, of_kwargs, *of_args),
            out_axes=entry.out_settings,
            donate_argnums=(1, *(3 + place for place in body.options[1])),
            **options,
        )
        return mapped

    @lifted(f)
    def call(f: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        given, given_kwargs = args, kwargs
        args, kwargs, axes = arguments_with_axes("pmap", f, in_axes, args, kwargs)
        args, kwargs = states_inside(metadata, axes, args, kwargs)
        args, kwargs, fixed = statics.take(args, kwargs)

        entry = enter(
            # A transform around this one gives another.
            callee.again() if f is fun else f,
            args,
            kwargs,
            settings=axes,
            kwargs_settings=0,
            out_settings=out_axes,
            statics=fixed,
            make=_Body,
            options=(metadata, (*donated.take(args, {})[2],)),
            cache=bodies,
        )
        body = entry.body
        if body.mapped is None:
            body.mapped = compiled(entry)
        gone: Set[int] = body.keep
        if gone:
            gone = gone - held_twice(entry.raw, (entry.args, entry.kwargs))
        groups = apart(body, entry.raw, gone)

        def again() -> Any:
            return by_jax()(*given, **given_kwargs)

        with axes_explained("pmap", entry, named, again):
            out = body.mapped(*groups, entry.kwargs, *entry.args)
        if body.unchecked:
            check_left(entry, named, None)
            body.unchecked = False
        return entry.commit(*out)

    return call


class _Body(MappedBody):
    """The function of one device.

    Attributes:
        unchecked: Whether it was traced, and nobody has looked whether variables with
            axis None differ from device to device. JAX does not look.
        mapped: What JAX has made of it; None before it is needed.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        # A donated variable is returned even if it was left alone: its buffer is gone.
        self.keep: Set[int] = variables_at(self, self.options[1])
        self.unchecked = False
        self.mapped: Callable[..., Any] | None = None

    def leave(self, inside: Inside, out: Any) -> Left:
        left = super().leave(inside, out)
        self.unchecked |= any(w.setting is None for w in left.written)
        return left
