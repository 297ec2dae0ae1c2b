"""What went wrong in a mapped function, told in terms of variables.

JAX checks sizes and what is mapped, and speaks of its own arguments. These functions
run when it has refused, and look for a variable that is the reason.
"""

from __future__ import annotations

import contextlib
import functools
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from graphcore import broadcast_prefix
from graphcore.authors import Entry, Left, key_path, path_text
from nnx_transforms.transforms.loops.agreement import failure, has_type
from nnx_transforms.transforms.mapped.mapping import MappedBody, is_axis, with_settings

# Stands for the axis where the user named none.
_INDEX = "nnx_transforms.index"


@contextlib.contextmanager
def explained(
    entry: Entry,
    before: Callable[[BaseException], None],
    after: Callable[[BaseException], None],
    again: Callable[[], Any] = lambda: None,
) -> Iterator[None]:
    """Tells in the user's terms what JAX refuses of a call, where that can be better.

    Args:
        entry: The call.
        before: Looks for the reason in what the function was to be given; of an error.
        after: Looks for it in what the function left.
        again: Makes the same call with the user's own function, for calls without
            objects: what JAX says then is about what the user wrote.
    """
    body: MappedBody = entry.body
    progress = body.progress
    progress.reset()
    try:
        yield
    except (IndexError, TypeError, ValueError) as error:
        is_always_ours = body.always_explains
        if progress.entered and not progress.has_run and not is_always_ours:
            raise  # It comes from the function.
        if not (is_always_ours or entry.has_objects or progress.returns_objects):
            again()
        elif progress.has_run:
            after(error)
        else:
            before(error)
        raise


def axes_explained(
    name: str, entry: Entry, options: Mapping[str, Any], again: Callable[[], Any]
) -> contextlib.AbstractContextManager[None]:
    """Explains what JAX refuses where variables have axes.

    Args:
        name: The name of the transformation.
        entry: The call.
        options: What the transformation was told.
        again: As for `explained`.

    Raises:
        ValueError: If there is a variable that is the reason, with its path.
        TypeError: Likewise.
    """

    def after(error: BaseException) -> None:
        entry.body.blame(entry.raw, error)
        check_left(entry, options, error)

    before = functools.partial(check_given, name, entry, options)
    return explained(entry, before, after, again)


def entering(entry: Entry) -> Iterator[tuple[str, str, Any, Any]]:
    """Whether a variable or an argument is given; its place, value and setting.

    Args:
        entry: The call.
    """
    body: MappedBody = entry.body
    settings = body.structure.settings.variables
    for path, setting, value in zip(
        entry.joint.paths, settings, entry.raw, strict=True
    ):
        for leaf in jax.tree.leaves(value):
            yield "variable", body.place(path), leaf, setting
    plain = entry.args, entry.kwargs
    per_leaf = broadcast_prefix(entry.settings[1:], plain, lambda p: p is None)
    for path, setting, leaf in with_settings(plain, per_leaf):
        yield "argument", path_text(key_path(path[1:])), leaf, setting


def check_array(
    name: str, what: str, place: str, leaf: Any, error: BaseException | None
) -> None:
    """Raises an error if a mapped function is given something that is no array.

    Args:
        name: The name of the transformation.
        what: A variable or an argument.
        place: Where it is.
        leaf: Its value.
        error: What JAX said, if anything.

    Raises:
        TypeError: If it is none, with the path.
    """
    if not has_type(leaf):
        raise TypeError(
            f"The {what} at {place!r} holds a value of type {type(leaf).__name__}, "
            f"which {name} cannot divide: {reprlib.repr(leaf)}. Keep it as something "
            "static: in an attribute, or bound by `functools.partial`."
        ) from error


def check_given(
    name: str, entry: Entry, options: Mapping[str, Any], error: BaseException | None
) -> None:
    """Raises an error if a variable or argument can't be mapped, or has another size.

    Args:
        name: The name of the transformation.
        entry: The call.
        options: What the transformation was told.
        error: What JAX said, if anything.

    Raises:
        ValueError: If there is one, with the paths.
        TypeError: If what is to be mapped is no array, or a variable holds what JAX
            does not take; with the path.
    """
    lines: list[str] = []
    sizes: set[Any] = set()
    for key in ("axis_size", "length"):
        if isinstance(options.get(key), int | np.integer):  # else JAX says so
            sizes.add(options[key])
            lines.append(f"{key}: {options[key]}")
    for what, place, leaf, axis in entering(entry):
        if not is_axis(axis):
            continue
        shape = np.shape(leaf) if has_type(leaf) else ()
        if not (entry.has_objects or -len(shape) <= axis < len(shape)):
            return  # JAX says so.
        check_array(name, what, place, leaf, error)
        if not -len(shape) <= axis < len(shape):
            raise ValueError(
                f"{name} maps the {what} at {place!r} over axis {axis}, but its "
                f"value has the shape {shape}. Give it another axis, or None, for "
                "single variables of an object with a `StateAxes`."
            ) from error
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
    if error is not None:
        entry.body.blame(entry.raw, error)


def least_rank(value: Any) -> int:
    """The least number of axes of an array in a pytree."""
    return min(map(np.ndim, jax.tree.leaves(value)), default=0)


def without_room(body: MappedBody, left: Left) -> Iterator[str]:
    """Says of what a function left which has no room for its axis.

    Args:
        body: The function.
        left: What it left behind.

    Yields:
        A sentence for each variable and output, with its path.
    """
    for shown, axis, value in body.leaving(left):
        if is_axis(axis) and not -(rank := least_rank(value)) - 1 <= axis <= rank:
            yield (
                f"{shown} is stacked along axis {axis}, but the function left an array "
                f"of {rank} axes there."
            )


def run_again(
    entry: Entry,
    mapped: Callable[[Callable[..., Any]], Callable[..., Any]],
    look: Callable[[Left], Iterable[str]],
    error: BaseException | None,
) -> None:
    """Raises an error if a function that has run left something that JAX refuses.

    The function is traced once more, since what it left may not be kept.

    Args:
        entry: The call.
        mapped: Maps a function of the entry's values as the one of the call was.
        look: Says inside what is wrong; the first counts.
        error: What JAX said, if anything.

    Raises:
        ValueError: If there is something.
    """
    body: MappedBody = entry.body
    found: list[str] = []

    def probe(groups: Any, args: Any, kwargs: Any) -> tuple[()]:
        found.extend(look(body.run(body.ungrouped(groups), args, kwargs)))
        return ()

    with contextlib.suppress(Exception):  # The first error is the one to report.
        jax.eval_shape(mapped(probe), *entry.values)
    if found:
        raise ValueError(found[0]) from error


def check_left(
    entry: Entry, options: Mapping[str, Any], error: BaseException | None
) -> None:
    """Raises an error if what a function left can't be mapped as its axis says.

    It may have no room for the axis; or with axis None differ from index to index:
    an operation behind the function is told by JAX which of its operands are mapped.

    Args:
        entry: The call, whose function has run.
        options: Those of `jax.vmap`.
        error: What JAX said, if anything.

    Raises:
        ValueError: If there is a variable or an output like that, with its path.
    """
    body: MappedBody = entry.body
    name = options.get("axis_name")
    name = _INDEX if name is None else name
    varying: list[bool] = []

    @jax.custom_batching.custom_vmap
    def observe(index: Any, operands: Any) -> Any:
        return operands

    @observe.def_vmap
    def rule(axis_size: int, mapped: Any, index: Any, operands: Any) -> Any:
        varying[:] = [any(jax.tree.leaves(m)) for m in mapped[1]]
        return operands, mapped[1]

    def look(left: Left) -> Iterator[str]:
        yield from without_room(body, left)
        shared = [each for each in body.leaving(left) if each[1] is None]
        observe(jax.lax.axis_index(name), [value for *_, value in shared])
        for (shown, *_), varies in zip(shared, varying, strict=False):
            if varies:
                yield (
                    f"{shown} has axis None, which means one value for all indices, "
                    "but the function left it with a value for each index. Give it an "
                    "axis, or make the values equal, for example with `jax.lax.pmean` "
                    "over a named axis."
                )

    def mapped(function: Callable[..., Any]) -> Callable[..., Any]:
        named = {**options, "axis_name": name}
        return jax.vmap(function, entry.settings, **named)

    run_again(entry, mapped, look, error)
