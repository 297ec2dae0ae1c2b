"""What went wrong in a mapped function, told in terms of variables.

JAX checks sizes and what is mapped, and speaks of its own arguments. These functions
run when it has refused, and look for a variable that is the reason.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from graphcore import broadcast_prefix
from graphcore.authors import Divided, Entry, key_path, path_text
from nnx_transforms.transforms.loops.agreement import failure
from nnx_transforms.transforms.mapped.mapping import MappedBody, is_axis

# Stands for the axis where the user named none.
_INDEX = "nnx_transforms.index"
NOT_MAPPED = "Keep it as a static attribute, or give the variable the axis None."


def explain(
    entry: Entry,
    again: Callable[[], Any],
    before: Callable[[], None],
    after: Callable[[], None],
) -> None:
    """Says what JAX refused, in the user's terms, if that is better than JAX's own.

    Args:
        entry: The call.
        again: Makes the same call with the user's own function, for calls without
            objects: what JAX says then is about what the user wrote.
        before: Looks for the reason in what the function was to be given.
        after: Looks for it in what the function left.
    """
    progress = entry.body.progress
    has_run = progress.notes is not None
    if progress.entered and not has_run:
        return  # It comes from the function.
    if not (entry.has_objects or (has_run and progress.returns_objects)):
        again()
    elif has_run:
        after()
    else:
        before()


def explain_axes(
    name: str,
    entry: Entry,
    options: Mapping[str, Any],
    error: BaseException,
    again: Callable[[], Any],
) -> None:
    """Explains what JAX refused where variables have axes.

    Args:
        name: The name of the transformation.
        entry: The call.
        options: What the transformation was told.
        error: What JAX said.
        again: As for `explain`.

    Raises:
        ValueError: If there is a variable that is the reason, with its path.
        TypeError: Likewise.
    """
    body: MappedBody = entry.body

    def after() -> None:
        check_out_ranks(body, error)
        if any(note.setting is None for note in body.progress.notes or ()):
            check_broadcast(entry, options, error)

    explain(entry, again, lambda: check_given(name, entry, options, error), after)


def check_given(
    name: str, entry: Entry, options: Mapping[str, Any], error: BaseException
) -> None:
    """Says which variable cannot be mapped.

    Args:
        name: The name of the transformation.
        entry: The call.
        options: What the transformation was told.
        error: What JAX said.

    Raises:
        ValueError: If there is one, with its path.
        TypeError: Likewise.
    """
    body: MappedBody = entry.body
    axes = body.structure.settings.variables
    mapped = [
        value if is_axis(axis) else None
        for axis, value in zip(axes, entry.raw, strict=True)
    ]
    body.blame(mapped, error, NOT_MAPPED)
    check_sizes(name, entry, options, error)


def mapped_leaves(entry: Entry) -> Iterator[tuple[str, tuple[int, ...], Any, bool]]:
    """Place, shape and axis of what is mapped, and whether it is in a variable."""
    body: MappedBody = entry.body
    for path, axis, value in zip(
        entry.joint.paths, body.structure.settings.variables, entry.raw, strict=True
    ):
        for leaf in jax.tree.leaves(value if is_axis(axis) else None):
            yield body.place(path), np.shape(leaf), axis, True
    plain = entry.args, entry.kwargs
    axes = broadcast_prefix(entry.settings[1:], plain, lambda p: p is None)
    # As the user knows it, with the same arrays in the same order.
    bare = Divided.map(Divided.bare, plain)
    pairs = jax.tree_util.tree_flatten_with_path(bare)[0]
    for (path, leaf), axis in zip(pairs, axes, strict=True):
        if is_axis(axis):
            yield path_text(key_path(path[1:])), np.shape(leaf), axis, False


def check_sizes(
    name: str, entry: Entry, options: Mapping[str, Any], error: BaseException | None
) -> None:
    """Says which variable has no axis to be mapped, or one of another size.

    Args:
        name: The name of the transformation.
        entry: The call.
        options: What the transformation was told.
        error: What JAX said, if anything.

    Raises:
        ValueError: If there is one, with the paths.
    """
    lines: list[str] = []
    sizes: set[Any] = set()
    for key in ("axis_size", "length"):
        if options.get(key) is not None:
            sizes.add(options[key])
            lines.append(f"{key}: {options[key]}")
    for place, shape, axis, in_variable in mapped_leaves(entry):
        if not -len(shape) <= axis < len(shape):
            if in_variable:
                raise ValueError(
                    f"{name} maps the variable at {place!r} over axis {axis}, but its "
                    f"value has the shape {shape}. Give the variable another axis, or "
                    "None, with a `StateAxes`."
                ) from error
            return
        sizes.add(shape[axis])
        lines.append(f"{place}: axis {axis} of shape {shape} has size {shape[axis]}")
    if len(sizes) > 1:
        raise failure(
            ValueError,
            f"{name} got inconsistent sizes of mapped axes, but all of them must be "
            "equal. What is not to be mapped has axis None; for single variables of an "
            "object, say so with a `StateAxes`. The sizes:",
            lines,
        ) from error


def check_out_ranks(body: MappedBody, error: BaseException | None) -> None:
    """Says which variable was left with a value that has no room for its axis.

    Args:
        body: The function, which has run.
        error: What JAX said, if anything.

    Raises:
        ValueError: If there is one, with its path.
    """
    for note in body.progress.notes or ():
        if is_axis(note.setting) and not -note.rank - 1 <= note.setting <= note.rank:
            raise ValueError(
                f"The values of the variable at {body.place(note.path)!r} are stacked "
                f"along axis {note.setting}, but the function left it with an array of "
                f"{note.rank} axes."
            ) from error


def find_varying(entry: Entry, options: Mapping[str, Any]) -> str | None:
    """Finds a variable with axis None that differs from index to index.

    The function is traced once more, with an operation behind it that JAX tells
    which of its operands are mapped.

    Args:
        entry: The call.
        options: Those of `jax.vmap`.

    Returns:
        The place of the first one; None if there is none.
    """
    body: MappedBody = entry.body
    name = options.get("axis_name")
    name = _INDEX if name is None else name
    found: list[bool] = []
    places: list[str] = []

    @jax.custom_batching.custom_vmap
    def observe(index: Any, operands: Any) -> Any:
        return operands

    @observe.def_vmap
    def rule(axis_size: int, mapped: Any, index: Any, operands: Any) -> Any:
        found[:] = [any(jax.tree.leaves(m)) for m in mapped[1]]
        return operands, mapped[1]

    def probe(groups: Any, args: Any, kwargs: Any) -> tuple[()]:
        left = body.run(body.ungrouped(groups), args, kwargs)
        broadcast = [w for w in left.written if w.setting is None]
        places[:] = [body.place(w.path) for w in broadcast]
        observe(jax.lax.axis_index(name), [w.value for w in broadcast])
        return ()

    named = {**options, "axis_name": name}
    jax.eval_shape(jax.vmap(probe, entry.settings, **named), *entry.values)
    return next((p for p, mapped in zip(places, found, strict=False) if mapped), None)


def check_broadcast(
    entry: Entry, options: Mapping[str, Any], error: BaseException | None
) -> None:
    """Says which variable with axis None became different for different indices.

    Args:
        entry: The call, whose function has run.
        options: Those of `jax.vmap`.
        error: What JAX said.

    Raises:
        ValueError: If there is one, with its path.
    """
    place = None
    with contextlib.suppress(Exception):  # The first error is the one to report.
        place = find_varying(entry, options)
    if place is not None:
        raise ValueError(
            f"The variable at {place!r} has axis None, which means one value for all "
            "indices, but the function left it with a value for each index. Give it "
            "an axis, or make the values equal, for example with `jax.lax.pmean` over "
            "a named axis."
        ) from error
