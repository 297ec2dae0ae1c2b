"""`pmap`: a function of one example, applied on several devices, over live objects."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import jax

from nnx_transforms.transforms.donation import held_twice
from nnx_transforms.transforms.lifting import Callee, Inputs, take
from nnx_transforms.transforms.mapped_arguments import (
    NO_METADATA,
    axes_of_arguments,
    check_axes,
    check_plain_call,
    has_objects,
    updated_by,
    with_positions,
)
from nnx_transforms.transforms.mapping import (
    MappedBody,
    Static,
    check_plain_prefix,
    plain_prefix,
    without_objects,
)
from nnx_transforms.transforms.mapping_errors import (
    check_broadcast,
    check_out_ranks,
    check_sizes,
)

__all__ = ["pmap"]

# More structures than this of one function's arguments are compiled again.
_MAX_STRUCTURES = 64


def pmap(
    f: Callable[..., Any] | None = None,
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
    of the objects.

    Args:
        f: The function. Left out, `pmap` returns a decorator.
        axis_name: As for `jax.pmap`.
        in_axes: As for `jax.pmap`. For an object: an axis of all its variables (None
            for one value for all devices), or a `StateAxes`.
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
    options = {
        "axis_name": axis_name,
        "devices": devices,
        "backend": backend,
        "axis_size": axis_size,
        **more,
    }
    if f is None:
        return functools.partial(
            pmap,
            in_axes=in_axes,
            out_axes=out_axes,
            static_broadcasted_argnums=static_broadcasted_argnums,
            donate_argnums=donate_argnums,
            transform_metadata=transform_metadata,
            **options,
        )
    mapped = _Pmapped(
        f,
        in_axes,
        out_axes,
        _positions(static_broadcasted_argnums),
        _positions(donate_argnums),
        options,
        transform_metadata,
    )

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return mapped(args, kwargs)

    return functools.update_wrapper(wrapper, f, updated=updated_by(f))


def _positions(argnums: int | Iterable[int]) -> tuple[int, ...]:
    return (argnums,) if isinstance(argnums, int) else tuple(argnums)


class _Compiled:
    """The mapped function for one structure of its arguments.

    Attributes:
        unchecked: Whether it was traced, and nobody has looked whether variables with
            axis None differ from device to device. JAX does not look.
    """

    def __init__(self, body: MappedBody) -> None:
        self.body = body
        self.function: Callable[..., Any] = self.run
        self.unchecked = False

    def run(self, values: Sequence[Any], plain: Any) -> Any:
        """Runs the function, where JAX calls it."""
        left = self.body.run(values, plain)
        self.unchecked |= any(w.prefix is None for w in left.written)
        groups, outcome = self.body.divide(left)
        return groups, outcome, left.tree

    def check(self, values: Any, plain: Any, in_axes: Any, options: Any) -> None:
        """Checks what JAX does not.

        Raises:
            ValueError: If a variable with axis None differs, with its path. It is
                unchecked then still.
        """
        if self.unchecked:
            check_broadcast(self.body, values, plain, in_axes, options, None)
            self.unchecked = False


class _Pmapped:
    """A function with its axes."""

    def __init__(
        self,
        f: Callable[..., Any],
        in_axes: Any,
        out_axes: Any,
        statics: tuple[int, ...],
        donated: tuple[int, ...],
        options: dict[str, Any],
        transform_metadata: Mapping[str, Any],
    ) -> None:
        self._f = f
        self._callee = Callee(f)
        self._in_axes = tuple(in_axes) if isinstance(in_axes, list) else in_axes
        self._out_axes = out_axes
        self._plain_out = plain_prefix(out_axes)
        self._statics = statics
        self._donated = donated
        self._options = options
        self._metadata = transform_metadata
        self._named = {k: options[k] for k in ("axis_name", "axis_size")}
        check_axes("pmap", in_axes, out_axes)
        self._entries: dict[Any, _Compiled] = {}
        self._lock = threading.Lock()
        self._plain = self._compile_plain()

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args, kwargs = with_positions(self._f, self._in_axes, args, kwargs)
        dynamic = [x for i, x in enumerate(args) if not self._is_static(i, args)]
        if not self._callee.bound and not has_objects((dynamic, kwargs)):
            return self._call_plain(args, kwargs)
        axes = axes_of_arguments("pmap", self._in_axes, args)
        tree = (*self._mark_statics(args), kwargs)
        check_plain_prefix(axes, tree, "argument ")
        inputs = take(tree, axes, self._callee.bound)
        values = inputs.values()
        gone = self._gone(inputs, values)
        compiled = self._compiled(inputs, gone, axes)
        body = compiled.body
        kept = [None if i in gone else value for i, value in enumerate(values)]
        given = [value if i in gone else None for i, value in enumerate(values)]
        in_axes = inputs.prefixes, plain_prefix(axes)
        try:
            groups, outcome, tree = compiled.function(kept, given, *inputs.plain)
        except (TypeError, ValueError) as error:
            body.blame_values(values, error)
            check_sizes("pmap", inputs, in_axes[1], self._named, error)
            check_out_ranks(body, error)
            raise
        compiled.check(values, inputs.plain, in_axes, self._named)
        return inputs.publish(outcome, list(chain.from_iterable(groups)), tree)

    def _call_plain(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        check_plain_call("pmap", self._in_axes, self._mark_statics(args), kwargs)
        body = self._plain.body
        try:
            groups, outcome, tree = self._plain.function(*args, **kwargs)
        except (TypeError, ValueError) as error:
            if body.returns_objects:
                check_out_ranks(body, error)
            elif body.notes is not None:
                # The output doesn't fit: say so in terms of what the function returns.
                @functools.wraps(self._f, updated=updated_by(self._f))
                def fresh(*args: Any, **kwargs: Any) -> Any:  # known to no cache
                    return self._f(*args, **kwargs)

                self._jax_pmap(fresh, self._plain_out)(*args, **kwargs)
            raise
        if self._plain.unchecked:
            plain = (*self._mark_statics(args), kwargs)
            axes = None, axes_of_arguments("pmap", plain_prefix(self._in_axes), args)
            self._plain.check((), plain, axes, self._named)
        return take(()).publish(outcome, list(chain.from_iterable(groups)), tree)

    def _is_static(self, position: int, args: tuple[Any, ...]) -> bool:
        return position in self._statics or position - len(args) in self._statics

    def _mark_statics(self, args: tuple[Any, ...]) -> list[Any]:
        marked: list[Any] = list(args)
        for i, x in enumerate(args):
            if self._is_static(i, args):
                try:
                    hash(x)
                except TypeError as error:
                    raise ValueError(
                        f"The static argument {i} of {self._callee.name!r} is not "
                        f"hashable: got a {type(x).__name__}, {x!r}. Pass something "
                        "immutable, or leave it out of `static_broadcasted_argnums`."
                    ) from error
                marked[i] = Static(x)
        return marked

    def _gone(self, inputs: Inputs, values: list[Any]) -> frozenset[int]:
        """The variables whose buffers are given away."""
        if not self._donated:
            return frozenset()
        roots = {
            number
            for (path, _, _), (_, number) in zip(
                inputs.spots, inputs.skeleton.spots, strict=True
            )
            if path[0] in self._donated
        }
        found = {i for i, path in enumerate(inputs.joint.paths) if path[0] in roots}
        return frozenset(found - held_twice(values, inputs.plain))

    # Compiling

    def _compiled(self, inputs: Inputs, gone: frozenset[int], axes: Any) -> _Compiled:
        key = (
            inputs.joint.definitions,
            inputs.skeleton,
            tuple(inputs.root_prefixes),
            tuple(inputs.prefixes),
            inputs.bound,
            gone,
        )
        found = self._entries.get(key)
        if found is None:
            with self._lock:
                found = self._entries.get(key)
                if found is None:
                    if len(self._entries) >= _MAX_STRUCTURES:
                        del self._entries[next(iter(self._entries))]
                    found = self._compile(without_objects(inputs), gone, axes)
                    self._entries[key] = found
        return found

    def _compile(self, inputs: Inputs, gone: frozenset[int], axes: Any) -> _Compiled:
        # A donated variable is returned even if it was left alone: its buffer is gone.
        body = MappedBody(self._callee, inputs, self._out_axes, self._metadata, gone)
        compiled = _Compiled(body)

        def pure(kept: Any, given: Any, /, *plain: Any) -> Any:
            values = [given[i] if i in gone else value for i, value in enumerate(kept)]
            return compiled.run(values, plain)

        pure.__name__ = pure.__qualname__ = self._callee.name
        out_axes = list(body.settings), None, self._plain_out
        given = [2 + i for i in self._donated]
        compiled.function = jax.pmap(
            pure,
            in_axes=(inputs.prefixes, inputs.prefixes, *plain_prefix(axes)),
            out_axes=out_axes,
            donate_argnums=(1, *given) if self._donated else (),
            **self._options,
        )
        return compiled

    def _compile_plain(self) -> _Compiled:
        """The function for calls without objects: JAX's own, but for its output."""
        body = MappedBody(self._callee, take(()), self._out_axes, self._metadata)
        compiled = _Compiled(body)

        @functools.wraps(self._f, updated=updated_by(self._f))
        def pure(*args: Any, **kwargs: Any) -> Any:
            return compiled.run((), (*args, kwargs))

        out_axes = list(body.settings), None, self._plain_out
        compiled.function = self._jax_pmap(pure, out_axes)
        return compiled

    def _jax_pmap(self, f: Callable[..., Any], out_axes: Any) -> Any:
        return jax.pmap(
            f,
            in_axes=plain_prefix(self._in_axes),
            out_axes=out_axes,
            static_broadcasted_argnums=self._statics,
            donate_argnums=self._donated,
            **self._options,
        )
